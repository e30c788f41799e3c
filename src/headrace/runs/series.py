"""Sample a model's outputs during a transform: some rows of every batch, counted many at a time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from headrace.core.tensor import Array
from headrace.runs.distribution import Distribution, FrequentTexts

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
