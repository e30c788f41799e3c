"""What is seen of a model's outputs while a transform runs: some rows of every batch, kept until many are counted together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from headrace.core.tensor import Array
from headrace.transforms.distribution import Distribution, FrequentTexts

COLUMNS_MAX: Final = 8
"""Of a row of an output, so many values are looked at, the first."""
SAMPLE_VALUES_MAX: Final = 256
"""Of an output of one batch, about so many numbers are looked at."""
SAMPLE_TEXTS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 80
"""Longer texts are told apart by their beginnings."""
_PENDING_ROWS: Final = 4096
"""So many rows are counted together: the work is mostly that of calls, not that of values."""

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
    """One column of an output: what was seen of its values.

    `rows` are all that came, of which `distribution` counts those that were looked at. Of text, it is of their lengths,
    in characters (of bytes: in bytes), and `texts` are the most frequent.
    """

    label: str
    kind: OutputKind
    rows: int = 0
    distribution: Distribution = field(default_factory=Distribution)
    texts: FrequentTexts = field(default_factory=FrequentTexts)

    @property
    def seen(self) -> int:
        """How many values were looked at."""
        return self.distribution.count + self.distribution.nan + self.distribution.infinite

    def add_all(self, other: "Series") -> None:
        """Count what `other` counted."""
        self.rows += other.rows
        self.distribution.add_all(other.distribution)
        self.texts.add_all(other.texts)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        found: dict[str, Any] = {"label": self.label, "kind": self.kind, "rows": self.rows}
        found["distribution"] = self.distribution.to_json()
        if self.kind == "text":
            found["texts"] = self.texts.to_json()
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Series":
        """What `to_json` gave."""
        texts = FrequentTexts.from_json(data["texts"]) if "texts" in data else FrequentTexts()
        distribution = Distribution.from_json(data["distribution"])
        return cls(data["label"], data["kind"], data["rows"], distribution, texts)


class NumberWatch:
    """Looks at an output of numbers; what it takes of each batch waits until there is enough to count."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series
        self._pending = np.empty((_PENDING_ROWS, len(series)))
        self._filled = 0
        self._rows = 0
        self._sample_rows_max = max(SAMPLE_VALUES_MAX // len(series), 1)

    def look(self, data: Array, turn: int) -> None:
        """Take some rows, others in every `turn`."""
        rows = len(data)
        self._rows += rows
        if rows > self._sample_rows_max:
            step = -(-rows // self._sample_rows_max)
            # Not the same rows of every batch: what is periodic in the source would be seen on one side only.
            data = data[turn % step :: step]
            rows = len(data)
        begin, end = self._filled, self._filled + rows
        if end > _PENDING_ROWS:
            self.count()
            begin, end = 0, rows
        self._pending[begin:end] = data.reshape(rows, 1) if data.ndim == 1 else _first_columns(data)
        self._filled = end

    def count(self) -> None:
        """Count what waits."""
        for column, series in enumerate(self.series):
            series.rows += self._rows
            series.distribution.add(self._pending[: self._filled, column])
        self._filled = self._rows = 0


class TextWatch:
    """Looks at an output of text: the first of a row's."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series
        self._pending: list[str | bytes] = []
        self._lengths: list[int] = []
        self._rows = 0

    def look(self, data: Array, turn: int) -> None:
        """Take some rows, others in every `turn`."""
        rows = len(data)
        self._rows += rows
        step = -(-rows // SAMPLE_TEXTS_MAX)
        values: list[Any] = data[(slice(turn % step, None, step), *(0,) * (data.ndim - 1))].tolist()
        if len(self._pending) + len(values) > _PENDING_ROWS:
            self.count()
        for value in values:
            text = value if isinstance(value, (str, bytes)) else str(value)
            self._lengths.append(len(text))
            self._pending.append(text[:TEXT_CHARACTERS_MAX])

    def count(self) -> None:
        """Count what waits."""
        (series,) = self.series
        series.rows += self._rows
        series.distribution.add(np.array(self._lengths, np.float64))
        series.texts.add(Counter(_as_text(value) for value in self._pending))
        self._pending, self._lengths, self._rows = [], [], 0


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else writable(value)


def _first_columns(data: Array) -> Array:
    """The first COLUMNS_MAX values of each row, or as many as there are; a copy of little more than these."""
    index: list[slice] = []
    wanted = COLUMNS_MAX
    for size in reversed(data.shape[1:]):
        taken = min(size, wanted)
        index.insert(0, slice(taken))
        wanted = -(-wanted // taken)
    return data[(slice(None), *index)].reshape(len(data), -1)[:, :COLUMNS_MAX]


Watch = NumberWatch | TextWatch


def writable(text: str) -> str:
    """Names that are not UTF-8 have lone surrogates, which JSON and pages do not take."""
    return text.encode("utf-8", "backslashreplace").decode()
