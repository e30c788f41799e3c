"""Records on their way through: a block of them in one buffer, and failures as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

RAW_BYTES_KEPT_MAX = 64 * 1024
"""A failure keeps at most this much of its record, so that a failed gigabyte does not cost a gigabyte."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a record starts.

    `object` is a URI; `member` the archive member, or None; `record` counts from 0 within the member (or the
    object); `line` counts from 1, and stays 1 where there are no lines; `byte` is the offset in the member (or the
    object) after decompression, of framed binary records that of the header; `member_byte` is the offset of the member's header in the decompressed archive.
    """

    object: str = ""
    member: str | None = None
    record: int = 0
    line: int = 1
    byte: int = 0
    member_byte: int = 0

    def __str__(self) -> str:
        """For people: object, member, line, byte."""
        place = f"{self.object}!{self.member}" if self.member else self.object
        return f"{place}, record {self.record}, line {self.line}, byte {self.byte}"


class FailureKind(StrEnum):
    """Which part of the way a record failed on."""

    FORMAT = "format"
    """It is not a record of its format: ragged, too long, not text, not an image."""
    DECODE = "decode"
    """It could not be turned into the model's inputs: text where a number is wanted, a missing field."""
    MODEL = "model"
    """The model, or the endpoint, refused this row."""
    OBJECT = "object"
    """The rest of an object or member could not be read; not a record, and not counted as one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that gets no prediction, and why. `raw` is its bytes, cut at RAW_BYTES_KEPT_MAX."""

    position: Position
    kind: FailureKind
    why: str
    raw: bytes = b""
    attempts: int = 1

    ok: ClassVar[bool] = False


def _no_columns() -> dict[str, NDArray[Any]]:
    return {}


def _no_offsets() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _nothing_found() -> list[NDArray[np.int64]]:
    return []


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of one object or member: one buffer, two offset arrays, the first's position.

    Record i is ``data[starts[i]:ends[i]]``, without its line terminator. `columns` holds what was decoded
    beside it (media formats: decoded arrays, first axis records). A format ends a block before a record
    that it cannot take, so records and then `failures` are consecutive: record i is number
    ``first.record + i``, and the failures follow the last record.
    `column_names` are the names of a text format's columns, when its header told them. `line_end`, LF or
    CRLF, says that the records are consecutive lines, each followed by exactly that (the last perhaps by nothing) and
    none with a newline in it; empty says nothing.
    `header_bytes` is for binary records, each in a frame (a header of so many bytes, the record, a trailer): `data` is
    consecutive whole frames, a record's position is its header's, and there are no lines. None: it is text.
    """

    first: Position
    data: bytes = b""
    starts: NDArray[np.int64] = field(default_factory=_no_offsets)
    ends: NDArray[np.int64] = field(default_factory=_no_offsets)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=_no_columns)
    failures: tuple[Failure, ...] = ()
    column_names: tuple[str, ...] | None = None
    line_end: bytes = b""
    header_bytes: int | None = None
    _newlines: list[NDArray[np.int64]] = field(
        default_factory=_nothing_found, init=False, repr=False, compare=False
    )
    """Their offsets in `data`, once they were asked for."""

    def __len__(self) -> int:
        """Records, failures not counted."""
        return len(self.starts)

    @property
    def records(self) -> int:
        """Records and failures: what this block adds to the run's `in`."""
        return len(self.starts) + len(self.failures)

    def record(self, index: int) -> bytes:
        """The raw bytes of one record, a copy. For failures and for people, not for hot paths."""
        return self.data[int(self.starts[index]) : int(self.ends[index])]

    def position(self, index: int) -> Position:
        """Where record `index` starts. Where `line_end` does not tell, lines are counted: one scan for the block."""
        first = self.first
        if not self.data:
            return replace(first, record=first.record + index)
        start, origin = int(self.starts[index]), int(self.starts[0])
        lines = index if self.line_end else 0 if self.header_bytes is not None else self._lines(origin, start)
        return Position(
            first.object,
            first.member,
            first.record + index,
            first.line + lines,
            first.byte + start - origin,
            first.member_byte,
        )

    def _lines(self, start: int, stop: int) -> int:
        """How many newlines there are in ``data[start:stop]``."""
        if not self._newlines:
            # Looked up from then on: counting anew for each of many failures would be quadratic.
            self._newlines.append(np.flatnonzero(np.frombuffer(self.data, np.uint8) == 0x0A))
        low, high = self._newlines[0].searchsorted((start, stop)).tolist()
        return high - low

    def failure(self, index: int, kind: FailureKind, why: str, attempts: int = 1) -> Failure:
        """Record `index` as a failure."""
        raw = self.record(index)[:RAW_BYTES_KEPT_MAX]
        return Failure(self.position(index), kind, why, raw, attempts)
