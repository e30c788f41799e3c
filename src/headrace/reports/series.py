"""Series of what was observed in constant memory: sampled values of outputs, and counts over time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import msgspec
import numpy as np

from headrace.core.tensor import Array
from headrace.reports.distribution import Distribution, FrequentTexts

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
POINTS_MAX: Final = 240
STEP_MIN_S: Final = 1 / 16


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


def _zeros() -> list[int]:
    return []


@dataclass(slots=True)
class Timeline:
    """Records, failed records and batches, counted over time.

    Point i covers the seconds from ``i * step_s`` to ``(i + 1) * step_s``. There are at most
    POINTS_MAX points; to make space, neighbours are merged and the step doubles. The counts do not
    depend on the order of events. `last_s` is the time of the last batch.
    """

    step_s: float = STEP_MIN_S
    records: list[int] = field(default_factory=_zeros)
    failures: list[int] = field(default_factory=_zeros)
    batches: list[int] = field(default_factory=_zeros)
    last_s: float = 0.0

    def add(self, at_s: float, *, records: int, failures: int, batches: int = 1) -> None:
        """Count events at `at_s` seconds after the start; earlier events count for the first point."""
        at_s = max(at_s, 0.0)
        self.last_s = max(self.last_s, at_s)
        point = int(at_s / self.step_s)
        while point >= POINTS_MAX:
            self._double()
            point = int(at_s / self.step_s)
        if point >= len(self.records):
            self._extend(point + 1)
        self.records[point] += records
        self.failures[point] += failures
        self.batches[point] += batches

    def add_all(self, other: "Timeline") -> None:
        """Add the counts of another timeline with the same start."""
        while self.step_s < other.step_s:
            self._double()
        ratio = int(self.step_s / other.step_s)
        if other.records:
            self._extend((len(other.records) - 1) // ratio + 1)
        for mine, theirs in zip(self.counts(), other.counts(), strict=True):
            for point, count in enumerate(theirs):
                mine[point // ratio] += count
        self.last_s = max(self.last_s, other.last_s)

    def counts(self) -> tuple[list[int], list[int], list[int]]:
        """Return the counts of records, failures and batches by point."""
        return self.records, self.failures, self.batches

    def _extend(self, points: int) -> None:
        for counts in self.counts():
            counts.extend([0] * (points - len(counts)))

    def _double(self) -> None:
        self.step_s *= 2
        for counts in self.counts():
            counts[:] = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]

    def folded(self, by: int) -> "Timeline":
        """Return the timeline with points `by` times as long."""
        found = Timeline(self.step_s * by, last_s=self.last_s)
        for mine, counts in zip(found.counts(), self.counts(), strict=True):
            mine += [sum(counts[i : i + by]) for i in range(0, len(counts), by)]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the timeline as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Timeline":
        """Return the timeline from its JSON values."""
        return msgspec.convert(data, cls)
