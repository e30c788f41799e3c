"""Summaries of value streams in constant memory: bins of doubling width, and the most frequent texts.

Summaries can be merged: the sum of several processes' summaries equals that of one process.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from headrace.core.tensor import Array

BINS_MAX: Final = 4096
DISTINCT_MAX: Final = 50
"""The maximal number of different values that are counted separately."""
_EXPONENT_MIN: Final = -1000
_MANTISSA_BITS: Final = 40
"""The width of a bin relative to the largest value, as a power of two; bin numbers stay exact in
float64.
"""


def _empty_bins() -> Array:
    return np.zeros(BINS_MAX, np.int64)


def _empty_counts() -> dict[float, int]:
    return {}


@dataclass(frozen=True, slots=True)
class BinCounts:
    """The bars of a histogram; the first begins at `low`.

    `below` and `above` count the values outside.
    """

    low: float
    width: float
    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(slots=True, eq=False)
class Distribution:
    """A summary of a stream of numbers in up to BINS_MAX bins.

    Bin k of width ``2 ** exponent`` holds the values from ``k * width`` up to ``(k + 1) * width``;
    `bins[0]` is bin number `low`. The width is the smallest power of two for which all values fit.
    Counts therefore depend on the values alone, not on their order or on how they were split. Only
    the rounding of `mean` depends on the order.

    `count` counts the finite values; `nan` and `infinite` count the others. `distinct` counts each
    value separately; it is None once there were more than DISTINCT_MAX values.
    """

    count: int = 0
    nan: int = 0
    infinite: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    exponent: int = _EXPONENT_MIN
    low: int = 0
    bins: Array = field(default_factory=_empty_bins)
    distinct: dict[float, int] | None = field(default_factory=_empty_counts)

    @property
    def width(self) -> float:
        """The width of a bin."""
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
        values = np.add(values, 0.0)  # turns -0.0 into 0.0
        self._extend_range(float(values.min()), float(values.max()))
        self.bins += np.bincount(self._numbers(values) - self.low, minlength=BINS_MAX)
        # Divide first: the sum of large values may overflow float64.
        with np.errstate(over="ignore"):
            mean = float((values / len(values)).sum())
        self._update_mean(min(max(mean, float(values.min())), float(values.max())), len(values))
        if self.distinct is not None:
            found, counts = np.unique(values, return_counts=True)
            self._count_distinct(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def add_all(self, other: "Distribution") -> None:
        """Add the values of another distribution."""
        self.nan += other.nan
        self.infinite += other.infinite
        if not other.count:
            return
        self._extend_range(other.minimum, other.maximum)
        held = np.flatnonzero(other.bins)
        numbers = (held + other.low) >> (self.exponent - other.exponent)
        np.add.at(self.bins, numbers - self.low, other.bins[held])
        self._update_mean(other.mean, other.count)
        self._count_distinct(other.distinct)

    def _numbers(self, values: Array) -> Array:
        """Return the bin numbers of the values."""
        scaled = np.ldexp(values, -self.exponent)
        numbers = np.floor(scaled)
        # Values that underflow when scaled stay on their side of zero.
        numbers -= (scaled == 0) & (values < 0)
        return numbers.astype(np.int64)

    def _number(self, value: float) -> int:
        scaled = math.ldexp(value, -self.exponent)
        return math.floor(scaled) - (scaled == 0 and value < 0)

    def _update_mean(self, mean: float, count: int) -> None:
        total = self.count + count
        self.mean = self.mean * (self.count / total) + mean * (count / total)
        self.count = total

    def _count_distinct(self, counts: Mapping[float, int] | None) -> None:
        if self.distinct is None or counts is None:
            self.distinct = None
            return
        for value, count in counts.items():
            self.distinct[value] = self.distinct.get(value, 0) + count
        if len(self.distinct) > DISTINCT_MAX:
            self.distinct = None

    def _extend_range(self, minimum: float, maximum: float) -> None:
        """Widen and shift the bins so that values of this range fit."""
        if minimum >= self.minimum and maximum <= self.maximum:
            return
        before, held = self.exponent, np.flatnonzero(self.bins)
        self.minimum, self.maximum = min(minimum, self.minimum), max(maximum, self.maximum)
        self.exponent = max(self.exponent, self._exponent_min())
        while self._number(self.maximum) - self._number(self.minimum) >= BINS_MAX:
            self.exponent += 1
        low = self._number(self.minimum)
        bins = _empty_bins()
        np.add.at(bins, ((held + self.low) >> (self.exponent - before)) - low, self.bins[held])
        self.low, self.bins = low, bins

    def _exponent_min(self) -> int:
        largest = max(abs(self.minimum), abs(self.maximum))
        return max(math.frexp(largest)[1] - _MANTISSA_BITS, _EXPONENT_MIN) if largest else _EXPONENT_MIN

    def quantile(self, share: float) -> float:
        """Return the value below which `share` (0 to 1) of the values lie, or NaN without values.

        The error is at most the width of a bin.
        """
        if not self.count:
            return math.nan
        reached = np.cumsum(self.bins)
        rank = max(math.ceil(share * self.count), 1)
        index = int(np.searchsorted(reached, rank))
        held = int(self.bins[index])
        inside = (rank - (int(reached[index]) - held) - 0.5) / held
        return min(max((self.low + index + inside) * self.width, self.minimum), self.maximum)

    def histogram(self, bars: int, low: float, high: float) -> "BinCounts":
        """Return the counts between about `low` and `high`, in at most `bars` bars of equal width."""
        first, last = (max(0, min(self._number(v) - self.low, BINS_MAX - 1)) for v in (low, high))
        by = 1 + (last - first) // bars
        counts = [int(self.bins[i : min(i + by, last + 1)].sum()) for i in range(first, last + 1, by)]
        below, above = int(self.bins[:first].sum()), int(self.bins[last + 1 :].sum())
        return BinCounts((self.low + first) * self.width, by * self.width, tuple(counts), below, above)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values. The bins span the smallest to the largest value."""
        last = self._number(self.maximum) - self.low + 1 if self.count else 0
        numbers = {f.name: getattr(self, f.name) for f in fields(self)}
        extremes = {} if self.count else {"minimum": None, "maximum": None}
        distinct = None if self.distinct is None else sorted(self.distinct.items())
        return {**numbers, **extremes, "bins": self.bins[:last].tolist(), "distinct": distinct}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Distribution":
        """Return the summary from its JSON values."""
        bins = _empty_bins()
        bins[: len(data["bins"])] = data["bins"]
        values: dict[str, Any] = {**data, "bins": bins}
        if not data["count"]:
            values |= {"minimum": math.inf, "maximum": -math.inf}
        if data["distinct"] is not None:
            values["distinct"] = dict(data["distinct"])
        return cls(**values)


def _empty_texts() -> dict[str, int]:
    return {}


@dataclass(slots=True, eq=False)
class FrequentTexts:
    """A summary of a stream of texts: the DISTINCT_MAX most frequent ones, by Misra and Gries.

    The true count of a text is between `counts` and `counts` + `missed`; that of a text not in
    `counts` is at most `missed`. `missed` is at most ``total / (DISTINCT_MAX + 1)``. It is 0 if
    there were no more than DISTINCT_MAX texts; then all counts are exact and do not depend on the
    order.
    """

    total: int = 0
    missed: int = 0
    counts: dict[str, int] = field(default_factory=_empty_texts)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add texts with their counts."""
        self.total += sum(counts.values())
        self._put(counts)

    def add_all(self, other: "FrequentTexts") -> None:
        """Add the texts of another summary."""
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

    def most_frequent(self) -> list[tuple[str, int]]:
        """Return the retained texts with their counts, the most frequent first."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {"total": self.total, "missed": self.missed, "counts": self.most_frequent()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FrequentTexts":
        """Return the summary from its JSON values."""
        return cls(data["total"], data["missed"], dict(data["counts"]))
