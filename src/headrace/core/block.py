"""Records on their way through a run: blocks of records in one buffer, and their outcomes as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, Self

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
class RecordPlaces:
    """The record number, the line and the byte of each record of a block, as in `Position`."""

    records: NDArray[np.int64]
    lines: NDArray[np.int64]
    bytes: NDArray[np.int64]

    def slice(self, start: int, stop: int) -> "RecordPlaces":
        """Return the places of the records ``start..stop``."""
        return RecordPlaces(self.records[start:stop], self.lines[start:stop], self.bytes[start:stop])


class RecordTable(Protocol):
    """The records of a block as rows of typed columns (Arrow's, see `headrace.formats.record_table`).

    A table is immutable.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of the values in memory in bytes."""
        ...

    def array(self, name: str) -> NDArray[Any] | None:
        """Return a flat column as an array ``[rows]``, or None for a column of lists or structs."""
        ...

    def texts(self, rows: NDArray[np.int64] | None = None) -> list[bytes]:
        """Return rows (all by default) as JSON objects. Too slow for hot paths."""
        ...

    def select(self, names: Sequence[str]) -> Self:
        """Return the table with these columns."""
        ...

    def take(self, rows: NDArray[np.int64]) -> Self:
        """Return the table with these rows."""
        ...

    def slice(self, start: int, stop: int) -> Self:
        """Return the rows ``start..stop`` without a copy."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Records of one object or member in order, in one buffer with two offset arrays, or in a table.

    Record i is ``data[starts[i]:ends[i]]``, without its line terminator. Records of a `table` have no
    bytes: `data` is empty, and ``ends - starts`` are their approximate sizes. The records are
    consecutive: the number of record i is ``first.record + i``. Only a block with `places` has gaps
    between its records. A format ends a block before a record that it cannot read: the `failures`
    follow the last record and continue its numbers.

    - `first`: position of the first record.
    - `columns`: arrays decoded beside the raw bytes, first axis records (media formats).
    - `column_names`: names of a text format's columns, if its header has them.
    - `line_end`: LF or CRLF if the records are consecutive lines, none with a newline inside. Each
      ends with exactly this terminator; the last record may have none. Empty if unknown.
    - `header_bytes`: size of the header before each binary record, or None for text. `data` then
      has consecutive whole frames: header, record, trailer. The position of a record is that of its
      header, and there are no lines.
    - `places`: the places of the records if they are a selection of consecutive ones (`take`).
    - `table`: the records as typed columns, for formats of tables such as Parquet.
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
    places: RecordPlaces | None = None
    table: RecordTable | None = None
    _newline_offsets: list[NDArray[np.int64]] = field(
        default_factory=list[NDArray[np.int64]], init=False, repr=False, compare=False
    )
    """Offsets of the newlines in `data`, filled at the first use."""

    def __len__(self) -> int:
        """Return the number of records, without failures."""
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The size of the records in memory in bytes."""
        columns = sum(column.nbytes for column in self.columns.values())
        return max(len(self.data), columns, 0 if self.table is None else self.table.nbytes)

    @property
    def records(self) -> int:
        """Number of records and failures: the count that this block adds to the run's `in`."""
        return len(self.starts) + len(self.failures)

    def record(self, index: int) -> bytes:
        """Return a copy of the raw bytes of one record, a row of a table as JSON. Too slow for hot paths."""
        if self.table is not None:
            return self.table.texts(np.array([index]))[0]
        return self.data[int(self.starts[index]) : int(self.ends[index])]

    def texts(self) -> list[bytes]:
        """Return copies of the raw bytes of all records; rows of a table are JSON."""
        if self.table is not None:
            return self.table.texts()
        data = self.data
        return [data[s:e] for s, e in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def number(self, entry: int) -> int:
        """Return the record number of an entry: a record, or after the records a failure.

        The number of entry `records` is that of the next record of the source.
        """
        if self.places is None:
            return self.first.record + entry
        if entry < len(self):
            return int(self.places.records[entry])
        failed = entry - len(self)
        if failed < len(self.failures):
            return self.failures[failed].position.record
        return self.number(entry - 1) + 1 if entry else self.first.record

    def index_of(self, number: int) -> int:
        """Return the index of the record with this number, or where it would be in the block."""
        if self.places is None:
            return number - self.first.record
        return int(np.searchsorted(self.places.records, number))

    def position(self, index: int) -> Position:
        """Return the position of record `index`.

        Without `line_end`, lines are counted: one scan of the block serves all calls.
        """
        first = self.first
        if self.places is not None:
            return self._stored_position(self.places, index)
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

    def _stored_position(self, places: RecordPlaces, index: int) -> Position:
        record, line, byte = (int(numbers[index]) for numbers in (places.records, places.lines, places.bytes))
        return replace(self.first, record=record, line=line, byte=byte)

    def places_of(self, rows: NDArray[np.int64]) -> RecordPlaces:
        """Return the places of some records, by ascending index."""
        if self.places is not None:
            of = self.places
            return RecordPlaces(of.records[rows], of.lines[rows], of.bytes[rows])
        first, lines = self.first, np.zeros_like(rows)
        offsets = self.starts[rows] - self.starts[:1] if self.data else lines
        if self.line_end:
            lines = rows
        elif self.data and self.header_bytes is None:
            newlines = self._newlines()
            lines = newlines.searchsorted(self.starts[rows]) - newlines.searchsorted(self.starts[:1])
        return RecordPlaces(first.record + rows, first.line + lines, first.byte + offsets)

    def take(self, rows: NDArray[np.int64], failures: tuple[Failure, ...] = ()) -> "Block":
        """Return the records `rows`, by ascending index, and these failures as a block of their own.

        The records keep their positions. `data` is copied, without the bytes of the other records.
        """
        places = self.places_of(rows)
        data, starts, ends = self._copy_rows(rows)
        taken = replace(
            self,
            data=data,
            starts=starts,
            ends=ends,
            columns={name: values[rows] for name, values in self.columns.items()},
            failures=failures,
            places=places,
            table=None if self.table is None else self.table.take(rows),
        )
        if len(rows):
            return replace(taken, first=taken.position(0))
        return replace(taken, first=failures[0].position) if failures else taken

    def slice(self, start: int, stop: int) -> "Block":
        """Return the entries ``start..stop`` without a copy: first records, then failures."""
        if not start and stop >= self.records:
            return self
        failures = self.failures[max(0, start - len(self)) : max(0, stop - len(self))]
        first = self.first
        if start < len(self):
            first = self.position(start)
        elif failures:
            first = failures[0].position
        return replace(
            self,
            first=first,
            starts=self.starts[start:stop],
            ends=self.ends[start:stop],
            columns={name: data[start:stop] for name, data in self.columns.items()},
            failures=failures,
            places=None if self.places is None else self.places.slice(start, stop),
            table=None if self.table is None else self.table.slice(start, stop),
        )

    def _copy_rows(self, rows: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes of some records, each with its frame or its terminator, and their offsets."""
        starts, ends = self.starts[rows], self.ends[rows]
        if not self.data:
            return b"", starts, ends
        if self.header_bytes is None:
            begins, stops = starts, ends + self._terminator_bytes(ends)
        else:
            # A frame ends where the next one begins.
            frames = np.append(self.starts[1:] - self.header_bytes, len(self.data))
            begins, stops = starts - self.header_bytes, frames[rows]
        shifts = np.cumsum(stops - begins) - stops
        data = self.data
        copied = b"".join([data[b:s] for b, s in zip(begins.tolist(), stops.tolist(), strict=True)])
        return copied, starts + shifts, ends + shifts

    def _terminator_bytes(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the size of the line terminator after each record, 0 at the end of the input."""
        values = np.frombuffer(self.data + b"\0\0", np.uint8)
        newline, carriage_return = values[ends] == 0x0A, values[ends] == 0x0D
        return newline + 2 * (carriage_return & (values[ends + 1] == 0x0A))

    def _newlines_between(self, start: int, stop: int) -> int:
        """Return the number of newlines in ``data[start:stop]``."""
        low, high = self._newlines().searchsorted((start, stop)).tolist()
        return high - low

    def _newlines(self) -> NDArray[np.int64]:
        """Return the offsets of the newlines in `data`."""
        if not self._newline_offsets:
            # Kept for later calls: counting again for each of many failures would be quadratic.
            self._newline_offsets.append(np.flatnonzero(np.frombuffer(self.data, np.uint8) == 0x0A))
        return self._newline_offsets[0]

    def failure(self, index: int, kind: FailureKind, why: str, attempts: int = 1) -> Failure:
        """Return record `index` as a failure."""
        raw = self.record(index)[:RAW_BYTES_KEPT_MAX]
        return Failure(self.position(index), kind, why, raw, attempts)
