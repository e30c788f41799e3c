"""How values are distributed that pass by once: in bins that double, and, of texts, the most frequent.

Both take bounded room, and both add up: what several processes saw is the same as if one had seen it all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from headrace.core.tensor import Array

BINS_MAX: Final = 4096
DISTINCT_MAX: Final = 50
"""So many different values are counted each by itself."""
_EXPONENT_MIN: Final = -1000
_MANTISSA_BITS: Final = 40
"""A bin is no narrower than this much below the largest value, so that a bin's number is exact in a float64."""


def _no_bins() -> Array:
    return np.zeros(BINS_MAX, np.int64)


def _nothing_counted() -> dict[float, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bars, the first of which begins at `low`; `below` and `above` are how many values are on neither of them."""

    low: float
    width: float
    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(slots=True, eq=False)
class Distribution:
    """Numbers that passed by, in at most BINS_MAX bins.

    Bin k of width ``2 ** exponent`` holds the values from ``k * width`` up to ``(k + 1) * width``; `bins[0]` is number
    `low`. The width is the least power of two with which all values find room, so that counts depend on the values
    alone: never on their order, nor on how they were shared out. Only `mean` is rounded by order.

    `count` are the finite values; `nan` and `infinite` were not put into bins. `distinct` counts every value by itself
    while there are DISTINCT_MAX at most; None once there were more.
    """

    count: int = 0
    nan: int = 0
    infinite: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    exponent: int = _EXPONENT_MIN
    low: int = 0
    bins: Array = field(default_factory=_no_bins)
    distinct: dict[float, int] | None = field(default_factory=_nothing_counted)

    @property
    def width(self) -> float:
        """Of a bin."""
        return math.ldexp(1.0, self.exponent)

    def add(self, values: Array) -> None:
        """Count float64 values."""
        finite = np.isfinite(values)
        if not finite.all():
            nan = int(np.count_nonzero(np.isnan(values)))
            self.nan += nan
            self.infinite += len(values) - int(np.count_nonzero(finite)) - nan
            values = values[finite]
        if not len(values):
            return
        values = np.add(values, 0.0)  # in which there is no minus zero
        self._cover(float(values.min()), float(values.max()))
        self.bins += np.bincount(self._numbers(values) - self.low, minlength=BINS_MAX)
        # Each divided first: the sum of large values may be more than a float64 holds, rounded even so.
        with np.errstate(over="ignore"):
            mean = float((values / len(values)).sum())
        self._average(min(max(mean, float(values.min())), float(values.max())), len(values))
        if self.distinct is not None:
            found, counts = np.unique(values, return_counts=True)
            self._distinguish(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def add_all(self, other: "Distribution") -> None:
        """Count what `other` counted."""
        self.nan += other.nan
        self.infinite += other.infinite
        if not other.count:
            return
        self._cover(other.minimum, other.maximum)
        held = np.flatnonzero(other.bins)
        numbers = (held + other.low) >> (self.exponent - other.exponent)
        np.add.at(self.bins, numbers - self.low, other.bins[held])
        self._average(other.mean, other.count)
        self._distinguish(other.distinct)

    def _numbers(self, values: Array) -> Array:
        """Of the bins of the values."""
        scaled = np.ldexp(values, -self.exponent)
        numbers = np.floor(scaled)
        # What is too small to be scaled is still on its side of zero.
        numbers -= (scaled == 0) & (values < 0)
        return numbers.astype(np.int64)

    def _number(self, value: float) -> int:
        scaled = math.ldexp(value, -self.exponent)
        return math.floor(scaled) - (scaled == 0 and value < 0)

    def _average(self, mean: float, count: int) -> None:
        total = self.count + count
        self.mean = self.mean * (self.count / total) + mean * (count / total)
        self.count = total

    def _distinguish(self, counts: Mapping[float, int] | None) -> None:
        if self.distinct is None or counts is None:
            self.distinct = None
            return
        for value, count in counts.items():
            self.distinct[value] = self.distinct.get(value, 0) + count
        if len(self.distinct) > DISTINCT_MAX:
            self.distinct = None

    def _cover(self, minimum: float, maximum: float) -> None:
        """Make room for values in this range: bins that are wide enough, and begin low enough."""
        if minimum >= self.minimum and maximum <= self.maximum:
            return
        before, held = self.exponent, np.flatnonzero(self.bins)
        self.minimum, self.maximum = min(minimum, self.minimum), max(maximum, self.maximum)
        self.exponent = max(self.exponent, self._exponent_min())
        while self._number(self.maximum) - self._number(self.minimum) >= BINS_MAX:
            self.exponent += 1
        low = self._number(self.minimum)
        bins = _no_bins()
        np.add.at(bins, ((held + self.low) >> (self.exponent - before)) - low, self.bins[held])
        self.low, self.bins = low, bins

    def _exponent_min(self) -> int:
        largest = max(abs(self.minimum), abs(self.maximum))
        return max(math.frexp(largest)[1] - _MANTISSA_BITS, _EXPONENT_MIN) if largest else _EXPONENT_MIN

    def quantile(self, share: float) -> float:
        """The value that `share` (0 to 1) of the values are at most; wrong by a bin's width at most. NaN of no values."""
        if not self.count:
            return math.nan
        reached = np.cumsum(self.bins)
        rank = max(math.ceil(share * self.count), 1)
        index = int(np.searchsorted(reached, rank))
        held = int(self.bins[index])
        inside = (rank - (int(reached[index]) - held) - 0.5) / held
        return min(max((self.low + index + inside) * self.width, self.minimum), self.maximum)

    def histogram(self, bars: int, low: float, high: float) -> "Histogram":
        """Counts of the values from about `low` to `high`, in at most `bars` bars of the same width."""
        first, last = (max(0, min(self._number(v) - self.low, BINS_MAX - 1)) for v in (low, high))
        by = 1 + (last - first) // bars
        counts = [int(self.bins[i : min(i + by, last + 1)].sum()) for i in range(first, last + 1, by)]
        below, above = int(self.bins[:first].sum()), int(self.bins[last + 1 :].sum())
        return Histogram((self.low + first) * self.width, by * self.width, tuple(counts), below, above)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back; bins only those between the least and the greatest value."""
        last = self._number(self.maximum) - self.low + 1 if self.count else 0
        return {
            "count": self.count,
            "nan": self.nan,
            "infinite": self.infinite,
            "minimum": self.minimum if self.count else None,
            "maximum": self.maximum if self.count else None,
            "mean": self.mean,
            "exponent": self.exponent,
            "low": self.low,
            "bins": self.bins[:last].tolist(),
            "distinct": None if self.distinct is None else sorted(self.distinct.items()),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Distribution":
        """What `to_json` gave."""
        bins = _no_bins()
        bins[: len(data["bins"])] = data["bins"]
        distinct = data["distinct"]
        return cls(
            count=data["count"],
            nan=data["nan"],
            infinite=data["infinite"],
            minimum=math.inf if data["minimum"] is None else data["minimum"],
            maximum=-math.inf if data["maximum"] is None else data["maximum"],
            mean=data["mean"],
            exponent=data["exponent"],
            low=data["low"],
            bins=bins,
            distinct=None if distinct is None else dict(distinct),
        )


def _no_texts() -> dict[str, int]:
    return {}


@dataclass(slots=True, eq=False)
class FrequentTexts:
    """The most frequent of texts that passed by, by the counting of Misra and Gries: DISTINCT_MAX are kept.

    A text came at least as often as `counts` says, and at most `missed` times more; one that is not there came at most
    `missed` times, which is at most ``total / (DISTINCT_MAX + 1)``. 0 where there were no more different ones: then all
    is exact, and does not depend on order.
    """

    total: int = 0
    missed: int = 0
    counts: dict[str, int] = field(default_factory=_no_texts)

    def add(self, counts: Mapping[str, int]) -> None:
        """Count texts that came so often."""
        self.total += sum(counts.values())
        self._put(counts)

    def add_all(self, other: "FrequentTexts") -> None:
        """Count what `other` counted."""
        self.total += other.total
        self.missed += other.missed
        self._put(other.counts)

    def _put(self, counts: Mapping[str, int]) -> None:
        held = self.counts
        for text, count in counts.items():
            held[text] = held.get(text, 0) + count
        if len(held) > DISTINCT_MAX:
            cut = sorted(held.values(), reverse=True)[DISTINCT_MAX]
            self.missed += cut
            self.counts = {text: count - cut for text, count in held.items() if count > cut}

    def most(self) -> list[tuple[str, int]]:
        """Those that are kept, the most frequent first."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {"total": self.total, "missed": self.missed, "counts": self.most()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FrequentTexts":
        """What `to_json` gave."""
        return cls(data["total"], data["missed"], dict(data["counts"]))
