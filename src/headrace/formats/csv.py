"""CSV according to RFC 4180: text is cut into records with unchanged bytes, and records into cells.

`csv_dialect` says what a quote and an escape mean, also in input that violates the RFC.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, get_args

import numpy as np
from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.csv_scan import record_scanner
from headrace.formats.lines import Offsets, RangeStop, RecordEndScanner, cut_text


@dataclass(frozen=True, slots=True)
class TextRows:
    """Delimited rows in one buffer: row i is ``data[starts[i]:ends[i]]``.

    Only line ends, blank lines and blanked comments stand between rows.
    """

    data: bytes
    starts: Offsets
    ends: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> bytes:
        """Return the bytes of one row."""
        return self.data[int(self.starts[index]) : int(self.ends[index])]

    def texts(self, indices: Sequence[int] | Offsets) -> list[bytes]:
        """Return the bytes of the rows with these indices."""
        bounds = zip(self.starts[indices].tolist(), self.ends[indices].tolist(), strict=True)
        return [self.data[start:end] for start, end in bounds]

    def slice(self, start: int, stop: int) -> "TextRows":
        """Return rows ``start .. stop`` in the same buffer."""
        return TextRows(self.data, self.starts[start:stop], self.ends[start:stop])

    @staticmethod
    def from_texts(texts: Sequence[bytes]) -> "TextRows":
        """Return rows in a new buffer, separated by newlines."""
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1) - 1
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        return TextRows(b"\n".join(texts), starts, ends)


Header = Literal["auto", "none", "drop", "names"]
"""The use of the first record, as in `CsvFormat`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(Format):
    """Records of delimiter-separated fields, ended by LF, CRLF or the end of the input.

    Quoted fields may hold delimiters, doubled quotes and newlines. Blank lines are not records, but
    count as lines; so do lines that begin with `comment` where a record could begin. The first
    `skip_rows` lines are dropped before anything else. A UTF-8 byte order mark is dropped.

    `header` says how the first record is used: "none" (it is data), "drop" (it is dropped), "names"
    (it is dropped and names the columns of every block), or "auto". With "auto", the first record is
    a header that names the columns if its cells are exactly `names`, in any order; else it is data.
    Columns that no header names have `names`, in that order. Record numbers start after the header.
    If only a header with names exists, one empty block carries them.

    Failures of kind FORMAT are a record that has not ended within `record_bytes_max` bytes, and the
    rest of the input from a record with an unclosed quote. After a record that is too long, the
    next record starts after the first newline beyond the limit. A member is one failure of kind
    OBJECT if its first 4096 bytes contain a NUL, if it is UTF-16, or if its header is not a valid
    record.

    `block_bytes_max` bounds the size of a block; a single longer record has a block of its own.
    Raises ConfigError for an unknown `header`, and for a `comment` with characters of the dialect.
    """

    dialect: CsvDialect = field(default_factory=CsvDialect)
    header: Header = "auto"
    names: tuple[str, ...] = ()
    comment: str = ""
    skip_rows: int = 0
    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def __post_init__(self) -> None:
        if self.header not in get_args(Header):
            raise ConfigError(f"header must be one of {', '.join(get_args(Header))}, not {self.header!r}")
        characters = self.dialect.delimiter + self.dialect.quote + self.dialect.escape
        if any(character in self.comment for character in characters.decode()):
            raise ConfigError(
                f"comment {self.comment!r} contains the delimiter, the quote or the escape: choose another"
            )

    @override
    def blocks(
        self, chunks: Iterable[Buffer], first: Position, range_stop: RangeStop | None = None
    ) -> Iterator[Block]:
        """With `range_stop`, yield only the records that begin before its byte, and the header."""
        range_stop = range_stop or RangeStop()
        may_have_header = self.header != "none" and (self.header != "auto" or bool(self.names))
        blocks = cut_text(
            chunks,
            first,
            self.scanner(),
            "CSV",
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
            range_stop=range_stop,
            comment=self.comment_bytes,
            skip_lines=self.skip_rows,
            cuts_first_record=may_have_header,
        )
        if may_have_header:
            return self._with_header(blocks, first, range_stop)
        return _with_names(blocks, self.names) if self.names else blocks

    @property
    def comment_bytes(self) -> bytes:
        """The prefix of comments as UTF-8."""
        return self.comment.encode()

    def scanner(self) -> RecordEndScanner:
        """Return the scanner that finds the ends of the records."""
        return record_scanner(self.dialect, self.comment_bytes)

    def _with_header(
        self, blocks: Iterator[Block], first: Position, range_stop: RangeStop
    ) -> Iterator[Block]:
        head = next(blocks, None)
        if head is None:
            return
        if self.header == "auto" and not self._has_header(head):
            yield from _with_names(chain((head,), blocks), self.names)
            return
        names: tuple[str, ...] | None = self.names or None
        reason = head.failures[0].why if head.failures and not len(head) else ""
        if self.header != "drop" and not reason:
            try:
                names = self.dialect.header_names(head.record(0))
            except ValueError as error:
                reason = str(error)
        if reason:
            yield _unreadable_header(head, reason)
            for _ in blocks:
                pass
            return
        is_empty = True
        for block in _without_header(head, blocks, names):
            is_empty = False
            yield block
        end = range_stop.next_position
        if end is not None:
            end = range_stop.next_position = replace(end, record=end.record - 1)
        if is_empty and names:
            yield Block(end or first, column_names=names)

    def _has_header(self, head: Block) -> bool:
        """Return True if the cells of the first record are the names."""
        try:
            return bool(len(head)) and sorted(self.dialect.header_names(head.record(0))) == sorted(self.names)
        except ValueError:
            return False


def _with_names(blocks: Iterable[Block], names: tuple[str, ...]) -> Iterator[Block]:
    for block in blocks:
        yield replace(block, column_names=names)


def _without_header(head: Block, blocks: Iterable[Block], names: tuple[str, ...] | None) -> Iterator[Block]:
    """Yield the blocks without the first record of `head`, and with the column names."""
    if head.records > 1:
        at = head.position(1) if len(head) > 1 else head.failures[0].position
        rest = replace(
            head, first=replace(at, record=head.first.record), starts=head.starts[1:], ends=head.ends[1:]
        )
        yield replace(rest, failures=_renumber(rest.failures), column_names=names)
    for block in blocks:
        first = replace(block.first, record=block.first.record - 1)
        yield replace(block, first=first, failures=_renumber(block.failures), column_names=names)


def _renumber(failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Return the failures with record numbers that do not count the header."""
    return tuple(replace(f, position=replace(f.position, record=f.position.record - 1)) for f in failures)


def _unreadable_header(header_block: Block, reason: str) -> Block:
    """Return a block that reports the unreadable header, and with it all records below."""
    if header_block.failures and header_block.failures[0].kind is FailureKind.OBJECT:
        return header_block
    raw = (
        header_block.failures[0].raw
        if header_block.failures
        else header_block.failure(0, FailureKind.OBJECT, reason).raw
    )
    failure = Failure(header_block.first, FailureKind.OBJECT, f"header: {reason}", raw)
    return Block(header_block.first, failures=(failure,))


@dataclass(frozen=True, slots=True)
class CellGrid:
    """The offsets of the cells of rows: cell (i, j) is ``data[starts[i, j]:ends[i, j]]``.

    Cells include their quotes. `rows` are the indices of the rows with the expected number of
    cells. `ragged` maps the index of every other row to its number of cells.
    """

    data: bytes
    starts: Offsets
    ends: Offsets
    rows: Offsets
    ragged: dict[int, int]


def cell_grid(rows: TextRows, dialect: CsvDialect, width: int) -> CellGrid:
    """Return the offsets of every cell of every row that has `width` cells.

    The rows are in the order of the data, which may have other records between them.
    """
    delimiters = _delimiter_offsets(rows, dialect)
    if delimiters is None:
        delimiters = _parsed_delimiter_offsets(rows, dialect)
    low, high = np.searchsorted(delimiters, rows.starts), np.searchsorted(delimiters, rows.ends)
    if int((high - low).sum()) < len(delimiters):
        # Other records lie between the rows.
        before = np.searchsorted(rows.starts, delimiters, side="right") - 1
        delimiters = delimiters[delimiters < rows.ends[before]]
    cells = high - low + 1
    matching = cells == width
    ragged: dict[int, int] = {}
    starts, ends, indices = rows.starts, rows.ends, np.arange(len(rows))
    if not matching.all():
        mismatched = np.flatnonzero(~matching)
        ragged = dict(zip(mismatched.tolist(), cells[mismatched].tolist(), strict=True))
        delimiters = delimiters[np.repeat(matching, high - low)]
        starts, ends, indices = starts[matching], ends[matching], indices[matching]
    inner = delimiters.reshape(len(starts), width - 1)
    return CellGrid(
        rows.data,
        np.concatenate((starts[:, None], inner + 1), axis=1),
        np.concatenate((inner, ends[:, None]), axis=1),
        indices,
        ragged,
    )


def _delimiter_offsets(rows: TextRows, dialect: CsvDialect) -> Offsets | None:
    """Return the offsets of the delimiters between cells, or None if there are stray quotes or escapes."""
    origin, stop = int(rows.starts[0]), int(rows.ends[-1])
    if dialect.escape and rows.data.find(dialect.escape, origin, stop) >= 0:
        return None
    values = np.frombuffer(rows.data, np.uint8, stop - origin, origin)
    delimiters = np.flatnonzero(values == dialect.delimiter[0])
    if dialect.quote and rows.data.find(dialect.quote, origin, stop) >= 0:
        quotes = np.flatnonzero(values == dialect.quote[0])
        openings = quotes[0::2]
        before = values[openings - 1]
        matching = (before == dialect.delimiter[0]) | (before == 0x0A) | (before == dialect.quote[0])
        if openings[0] == 0:
            matching[0] = True
        if not matching.all():
            return None
        delimiters = delimiters[np.searchsorted(quotes, delimiters) & 1 == 0]
    return delimiters + origin


def _parsed_delimiter_offsets(rows: TextRows, dialect: CsvDialect) -> Offsets:
    """Return the offsets of the delimiters between cells, from each row on its own: slow, but rarely used."""
    starts = rows.starts.tolist()
    texts = rows.texts(np.arange(len(rows)))
    offsets = [
        start + offset
        for start, text in zip(starts, texts, strict=True)
        for offset in dialect.delimiter_offsets(text)
    ]
    return np.array(offsets, np.int64)


def select_columns(grid: CellGrid, columns: Sequence[int], delimiter: bytes) -> TextRows:
    """Return rows of the given columns only, with their quotes, in the given order."""
    if columns and list(columns) == list(range(columns[0], columns[-1] + 1)):
        # Adjacent columns are copied as one span, with their delimiters.
        return _copy_spans(grid.data, grid.starts[:, columns[0]], grid.ends[:, columns[-1]])
    starts, ends = grid.starts[:, list(columns)], grid.ends[:, list(columns)]
    lengths = (ends - starts + 1).ravel()
    stops = np.cumsum(lengths)
    # Byte k of the result comes from k + (old start of its cell - new start of its cell).
    source = np.arange(int(stops[-1]) if len(stops) else 0) + np.repeat(
        starts.ravel() - stops + lengths, lengths
    )
    # The byte after the last cell may not exist. The code below overwrites the byte taken for it.
    values = np.frombuffer(grid.data, np.uint8).take(source, mode="clip")
    values[stops - 1] = delimiter[0]
    row_stops = stops[len(columns) - 1 :: len(columns)]
    values[row_stops - 1] = 0x0A
    row_starts = np.zeros_like(row_stops)
    row_starts[1:] = row_stops[:-1]
    return TextRows(values.tobytes(), row_starts, row_stops - 1)


def _copy_spans(data: bytes, starts: Offsets, ends: Offsets) -> TextRows:
    """Return rows of these spans of `data`, each ended by a newline."""
    parts = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    row_ends = np.cumsum(ends - starts + 1) - 1
    row_starts = np.zeros_like(row_ends)
    row_starts[1:] = row_ends[:-1] + 1
    return TextRows(b"\n".join([*parts, b""]), row_starts, row_ends)


def column_texts(grid: CellGrid, column: int) -> list[bytes]:
    """Return the cells of one column, with their quotes."""
    bounds = zip(grid.starts[:, column].tolist(), grid.ends[:, column].tolist(), strict=True)
    return [grid.data[start:end] for start, end in bounds]
