"""Records on their way through a run: blocks of records in one buffer, and their outcomes as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

RAW_BYTES_KEPT_MAX = 64 * 1024
"""Limit of the raw bytes that a failure keeps of its record."""


@dataclass(frozen=True, slots=True)
class Position:
    """The start of a record in its source.

    - `object`: URI of the object.
    - `member`: name of the archive member, or None.
    - `record`: number of the record in the member (or the object), from 0.
    - `line`: number of the line, from 1; stays 1 for formats without lines.
    - `byte`: offset in the member (or the object) after decompression, and in text of another
      encoding than UTF-8 after its conversion to UTF-8; for framed binary records, the offset of
      the header.
    - `member_byte`: offset of the member's header in the decompressed archive.
    """

    object: str = ""
    member: str | None = None
    record: int = 0
    line: int = 1
    byte: int = 0
    member_byte: int = 0

    def __str__(self) -> str:
        """Return object, member, record, line and byte for a message."""
        place = f"{self.object}!{self.member}" if self.member else self.object
        return f"{place}, record {self.record}, line {self.line}, byte {self.byte}"


class FailureKind(StrEnum):
    """The stage at which a record failed."""

    FORMAT = "format"
    """Not a record of its format: too long, not text, not JSON, not an image."""
    DECODE = "decode"
    """Not convertible to the model's inputs: text instead of a number, a missing field, other columns."""
    MODEL = "model"
    """The model, or the endpoint, refused this row."""
    OBJECT = "object"
    """The rest of an object or member is unreadable. Not a record, and not counted as one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record without a prediction, and the reason `why`.

    `raw` has its bytes, up to RAW_BYTES_KEPT_MAX.
    """

    position: Position
    kind: FailureKind
    why: str
    raw: bytes = b""
    attempts: int = 1

    ok: ClassVar[Literal[False]] = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """The outputs of one record by name: numpy scalars for 1-D outputs, else arrays of one row.

    `record` has the raw bytes of the input. It is empty for media, whose bytes are not kept.
    """

    position: Position
    outputs: Mapping[str, Any]
    record: bytes = b""

    ok: ClassVar[Literal[True]] = True


Outcome = Prediction | Failure
"""A prediction or a failure. A stream raises exceptions only for itself, never for a record.

``isinstance(outcome, Prediction)`` tells them apart for every type checker. mypy also narrows by
``if outcome.ok``; pyright, by design, needs ``if outcome.ok is True``.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of one object or member, in one buffer with two offset arrays.

    Record i is ``data[starts[i]:ends[i]]``, without its line terminator. Its number is
    ``first.record + i``. A format ends a block before a record that it cannot read: the `failures`
    follow the last record and continue its numbers.

    - `first`: position of the first record.
    - `columns`: arrays decoded beside the raw bytes, first axis records (media formats).
    - `column_names`: names of a text format's columns, if its header has them.
    - `line_end`: LF or CRLF if the records are consecutive lines, none with a newline inside. Each
      ends with exactly this terminator; the last record may have none. Empty if unknown.
    - `header_bytes`: size of the header before each binary record, or None for text. `data` then
      has consecutive whole frames: header, record, trailer. The position of a record is that of its
      header, and there are no lines.
    """

    first: Position
    data: bytes = b""
    starts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    ends: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    failures: tuple[Failure, ...] = ()
    column_names: tuple[str, ...] | None = None
    line_end: bytes = b""
    header_bytes: int | None = None
    _newline_offsets: list[NDArray[np.int64]] = field(
        default_factory=list[NDArray[np.int64]], init=False, repr=False, compare=False
    )
    """Offsets of the newlines in `data`, filled at the first use."""

    def __len__(self) -> int:
        """Return the number of records, without failures."""
        return len(self.starts)

    @property
    def records(self) -> int:
        """Number of records and failures: the count that this block adds to the run's `in`."""
        return len(self.starts) + len(self.failures)

    def record(self, index: int) -> bytes:
        """Return a copy of the raw bytes of one record. Too slow for hot paths."""
        return self.data[int(self.starts[index]) : int(self.ends[index])]

    def texts(self) -> list[bytes]:
        """Return copies of the raw bytes of all records."""
        data = self.data
        return [data[s:e] for s, e in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def position(self, index: int) -> Position:
        """Return the position of record `index`.

        Without `line_end`, lines are counted: one scan of the block serves all calls.
        """
        first = self.first
        if not self.data:
            return replace(first, record=first.record + index)
        start, origin = int(self.starts[index]), int(self.starts[0])
        lines = (
            index
            if self.line_end
            else 0
            if self.header_bytes is not None
            else self._newlines_between(origin, start)
        )
        return Position(
            first.object,
            first.member,
            first.record + index,
            first.line + lines,
            first.byte + start - origin,
            first.member_byte,
        )

    def _newlines_between(self, start: int, stop: int) -> int:
        """Return the number of newlines in ``data[start:stop]``."""
        if not self._newline_offsets:
            # Kept for later calls: counting again for each of many failures would be quadratic.
            self._newline_offsets.append(np.flatnonzero(np.frombuffer(self.data, np.uint8) == 0x0A))
        low, high = self._newline_offsets[0].searchsorted((start, stop)).tolist()
        return high - low

    def failure(self, index: int, kind: FailureKind, why: str, attempts: int = 1) -> Failure:
        """Return record `index` as a failure."""
        raw = self.record(index)[:RAW_BYTES_KEPT_MAX]
        return Failure(self.position(index), kind, why, raw, attempts)
