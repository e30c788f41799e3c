"""The distribution of a run's outputs in constant memory: samples, bins of doubling width, frequent texts.

Summaries can be merged: the sum of several processes' summaries equals that of one process.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np

from headrace.core.tensor import Array

COLUMNS_MAX: Final = 8
"""The number of columns of an output that are observed."""
SAMPLE_VALUES_MAX: Final = 256
"""The approximate number of sampled values per output and batch."""
SAMPLE_TEXTS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 80
"""Longer texts are distinguished by their first characters."""
_PENDING_ROWS: Final = 4096
"""The number of rows that are counted together; calls cost more than values."""
OutputKind = Literal["float", "integer", "bool", "text"]
KINDS: Final[Mapping[str, OutputKind]] = {
    "f": "float",
    "i": "integer",
    "u": "integer",
    "b": "bool",
    "O": "text",
    "S": "text",
    "U": "text",
}
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
    distinct: dict[float, int] | None = field(default_factory=dict[float, int])

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
    counts: dict[str, int] = field(default_factory=dict[str, int])

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


@dataclass(slots=True, eq=False)
class Series:
    """The observed values of one output column.

    `rows` counts all rows; `distribution` counts the sampled values. For text, `distribution` is
    that of the lengths in characters (for bytes: in bytes), and `texts` are the most frequent
    texts.
    """

    label: str
    kind: OutputKind
    rows: int = 0
    distribution: Distribution = field(default_factory=Distribution)
    texts: FrequentTexts = field(default_factory=FrequentTexts)

    @property
    def seen(self) -> int:
        """The number of sampled values."""
        return self.distribution.count + self.distribution.nan + self.distribution.infinite

    def add_all(self, other: "Series") -> None:
        """Add the values of another series."""
        self.rows += other.rows
        self.distribution.add_all(other.distribution)
        self.texts.add_all(other.texts)

    def to_json(self) -> dict[str, Any]:
        """Return the series as JSON values."""
        found: dict[str, Any] = {"label": self.label, "kind": self.kind, "rows": self.rows}
        found["distribution"] = self.distribution.to_json()
        if self.kind == "text":
            found["texts"] = self.texts.to_json()
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Series":
        """Return the series from its JSON values."""
        texts = FrequentTexts.from_json(data["texts"]) if "texts" in data else FrequentTexts()
        distribution = Distribution.from_json(data["distribution"])
        return cls(data["label"], data["kind"], data["rows"], distribution, texts)


class NumberSampler:
    """A sampler of a numeric output. It collects rows of many batches before it counts them."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series
        self._pending = np.empty((_PENDING_ROWS, len(series)))
        self._filled = 0
        self._rows = 0
        self._sample_rows_max = max(SAMPLE_VALUES_MAX // len(series), 1)

    def add(self, data: Array, turn: int) -> None:
        """Sample rows of a batch; the sampled rows vary with `turn`."""
        rows = len(data)
        self._rows += rows
        if rows > self._sample_rows_max:
            step = -(-rows // self._sample_rows_max)
            # The sampled rows vary, so that periodic sources are sampled evenly.
            data = data[turn % step :: step]
            rows = len(data)
        begin, end = self._filled, self._filled + rows
        if end > _PENDING_ROWS:
            self.flush()
            begin, end = 0, rows
        self._pending[begin:end] = data.reshape(rows, 1) if data.ndim == 1 else _first_columns(data)
        self._filled = end

    def flush(self) -> None:
        """Count the collected rows."""
        for column, series in enumerate(self.series):
            series.rows += self._rows
            series.distribution.add(self._pending[: self._filled, column])
        self._filled = self._rows = 0


class TextSampler:
    """A sampler of a text output. It samples the first value of a row."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series
        self._pending: list[str | bytes] = []
        self._lengths: list[int] = []
        self._rows = 0

    def add(self, data: Array, turn: int) -> None:
        """Sample rows of a batch; the sampled rows vary with `turn`."""
        rows = len(data)
        self._rows += rows
        step = -(-rows // SAMPLE_TEXTS_MAX)
        values: list[Any] = data[(slice(turn % step, None, step), *(0,) * (data.ndim - 1))].tolist()
        if len(self._pending) + len(values) > _PENDING_ROWS:
            self.flush()
        for value in values:
            text = value if isinstance(value, (str, bytes)) else str(value)
            self._lengths.append(len(text))
            self._pending.append(text[:TEXT_CHARACTERS_MAX])

    def flush(self) -> None:
        """Count the collected texts."""
        (series,) = self.series
        series.rows += self._rows
        series.distribution.add(np.array(self._lengths, np.float64))
        series.texts.add(Counter(_as_text(value) for value in self._pending))
        self._pending, self._lengths, self._rows = [], [], 0


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else writable(value)


def _first_columns(data: Array) -> Array:
    """Return the first COLUMNS_MAX values of each row, or fewer. Copies little more than these."""
    index: list[slice] = []
    wanted = COLUMNS_MAX
    for size in reversed(data.shape[1:]):
        taken = min(size, wanted)
        index.insert(0, slice(taken))
        wanted = -(-wanted // taken)
    return data[(slice(None), *index)].reshape(len(data), -1)[:, :COLUMNS_MAX]


Sampler = NumberSampler | TextSampler


def writable(text: str) -> str:
    """Return text that JSON and pages accept: names that are not UTF-8 have lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
