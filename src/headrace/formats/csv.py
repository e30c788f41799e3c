"""CSV according to RFC 4180: text is cut into records with unchanged bytes, and records into cells.

Input that violates the RFC (`5" disk` unquoted, text after a closing quote) has the meaning that
Python's `csv.reader` gives it: a quote opens only at the start of a field, and is an ordinary
character elsewhere. There are two differences from `csv.reader`. A lone carriage return is data,
and an unclosed quote is a failure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.lines import (
    INSIDE_QUOTES,
    QUOTE_MAY_OPEN,
    UNQUOTED_TEXT,
    NewlineScanner,
    Offsets,
    RangeStop,
    RecordEndScanner,
    cut_text,
    newline_offsets,
)


@dataclass(frozen=True, slots=True)
class TextRows:
    """Delimited rows in one buffer: row i is ``data[starts[i]:ends[i]]``.

    Only line ends and blank lines stand between rows.
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


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The delimiter and the quote of a CSV text, one byte each. An empty `quote` disables quoting."""

    delimiter: bytes
    quote: bytes

    @staticmethod
    @lru_cache(maxsize=16)
    def from_strings(delimiter: str, quote: str) -> "CsvDialect":
        """Return the dialect. Raise ConfigError for a value other than one ASCII character."""
        for name, value in (("delimiter", delimiter), ("quote", quote or '"')):
            if len(value) != 1 or not value.isascii() or value in "\r\n\0":
                raise ConfigError(f"{name} must be one ASCII character other than a line end, not {value!r}")
        if delimiter == quote:
            raise ConfigError(f"delimiter and quote are both {quote!r}: choose different characters")
        return CsvDialect(delimiter.encode(), quote.encode())

    def cells(self, record: bytes, *, strict: bool = False) -> list[bytes]:
        """Return the fields of one record without their quotes, as `csv.reader` does.

        With `strict`, raise ValueError for text after a closing quote.
        """
        if not self.quote or self.quote not in record:
            return record.split(self.delimiter)
        match = _compile_cell_pattern(self.delimiter, self.quote).match
        cells: list[bytes] = []
        at = 0
        while True:
            cell = match(record, at)
            assert cell is not None, "every part of the pattern may be empty"
            quoted_text, text, delimiter = cell.groups()
            if quoted_text is None:
                cells.append(text)
            else:
                if strict and text:
                    raise ValueError(f"text after the closing quote of column {len(cells)}")
                cells.append(quoted_text.replace(self.quote * 2, self.quote) + text)
            if not delimiter:
                return cells
            at = cell.end()

    def raw_cells(self, record: bytes) -> list[bytes]:
        """Return the fields of one record with their quotes, unchanged."""
        if not self.quote or self.quote not in record:
            return record.split(self.delimiter)
        match = _compile_cell_pattern(self.delimiter, self.quote).match
        cells: list[bytes] = []
        at = 0
        while True:
            cell = match(record, at)
            assert cell is not None, "every part of the pattern may be empty"
            delimiter = cell[3]
            cells.append(record[at : cell.end() - len(delimiter)])
            if not delimiter:
                return cells
            at = cell.end()

    def header_names(self, record: bytes) -> tuple[str, ...]:
        """Return the cells of a header as text. Raise ValueError if not strict CSV or not UTF-8."""
        return tuple(cell.decode() for cell in self.cells(record, strict=True))

    def encode_record(self, cells: Sequence[bytes]) -> bytes:
        """Return a record of these cells, quoted where necessary."""
        special = re.compile(b"[%b%b\r\n]" % (re.escape(self.delimiter), re.escape(self.quote)))
        quote = self.quote
        return self.delimiter.join(
            quote + cell.replace(quote, quote * 2) + quote if special.search(cell) else cell for cell in cells
        )


@lru_cache(maxsize=16)
def _compile_cell_pattern(delimiter: bytes, quote: bytes) -> re.Pattern[bytes]:
    """Return the pattern of one cell: a quoted part or None, unquoted text, optional delimiter."""
    quote_pattern, delimiter_pattern = re.escape(quote), re.escape(delimiter)
    return re.compile(
        b"(?:%b([^%b]*+(?:%b%b[^%b]*+)*+)%b?)?([^%b]*+)(%b?)"
        % (
            quote_pattern,
            quote_pattern,
            quote_pattern,
            quote_pattern,
            quote_pattern,
            quote_pattern,
            delimiter_pattern,
            delimiter_pattern,
        ),
        re.DOTALL,
    )


Header = Literal["none", "drop", "names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(Format):
    """Records of delimiter-separated fields, ended by LF, CRLF or the end of the input.

    Quoted fields may hold delimiters, doubled quotes and newlines. An empty `quote` disables
    quoting. Blank lines are not records, but count as lines. A UTF-8 byte order mark is dropped.

    `header` says how the first record is used: "none" (it is data), "drop" (it is dropped), or
    "names" (it is dropped and names the columns of every block). Record numbers start after the
    header.

    Failures of kind FORMAT are a record that has not ended within `record_bytes_max` bytes, and the
    rest of the input from a record with an unclosed quote. After a record that is too long, the
    next record starts after the first newline beyond the limit. A member is one failure of kind
    OBJECT if its first 4096 bytes contain a NUL, if it is UTF-16, or if its header is not a valid
    record.

    `block_bytes_max` bounds the size of a block; a single longer record has a block of its own.
    Raises ConfigError if the delimiter or the quote is not one ASCII character.
    """

    delimiter: str = ","
    quote: str = '"'
    header: Header = "none"
    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def __post_init__(self) -> None:
        CsvDialect.from_strings(self.delimiter, self.quote)
        if self.header not in {"none", "drop", "names"}:
            raise ConfigError(f'header must be "none", "drop" or "names", not {self.header!r}')

    @override
    def blocks(
        self, chunks: Iterable[Buffer], first: Position, range_stop: RangeStop | None = None
    ) -> Iterator[Block]:
        """With `range_stop`, yield only the records that begin before its byte."""
        blocks = cut_text(
            chunks,
            first,
            self.scanner(),
            "CSV",
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
            range_stop=range_stop,
        )
        return blocks if self.header == "none" else self._skip_header(blocks, range_stop)

    def scanner(self) -> RecordEndScanner:
        """Return the scanner that finds the ends of the records."""
        return _scanner(CsvDialect.from_strings(self.delimiter, self.quote))

    def _skip_header(self, blocks: Iterator[Block], range_stop: RangeStop | None) -> Iterator[Block]:
        header_block = next(blocks, None)
        if header_block is None:
            return
        names: tuple[str, ...] | None = None
        reason = header_block.failures[0].why if header_block.failures else ""
        if self.header == "names" and not reason:
            try:
                dialect = CsvDialect.from_strings(self.delimiter, self.quote)
                names = dialect.header_names(header_block.record(0))
            except ValueError as error:
                reason = str(error)
        if reason:
            yield _unreadable_header(header_block, reason)
            for _ in blocks:
                pass
            return
        if len(header_block) > 1:
            first_data = replace(header_block.position(1), record=header_block.first.record)
            yield replace(
                header_block,
                first=first_data,
                starts=header_block.starts[1:],
                ends=header_block.ends[1:],
                column_names=names,
            )
        for block in blocks:
            yield _renumber(block, names)
        if range_stop is not None and range_stop.next_position is not None:
            range_stop.next_position = replace(
                range_stop.next_position, record=range_stop.next_position.record - 1
            )


@lru_cache(maxsize=16)
def _scanner(dialect: CsvDialect) -> RecordEndScanner:
    """Return the scanner of a dialect. Scanners are stateless, so all texts of a dialect share one."""
    return QuoteScanner(dialect) if dialect.quote else NewlineScanner()


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


def _renumber(block: Block, names: tuple[str, ...] | None) -> Block:
    """Return the block with record numbers that do not count the header, and with the column names."""
    first = replace(block.first, record=block.first.record - 1)
    failures = tuple(
        replace(f, position=replace(f.position, record=f.position.record - 1)) for f in block.failures
    )
    return replace(block, first=first, failures=failures, column_names=names)


class QuoteScanner(RecordEndScanner):
    """A scanner for which every newline outside quotes ends a record.

    The fast path counts quotes: a newline with an even number of quotes before it is outside. The
    count is right as long as every opening quote stands where a quote may open, and the scanner
    checks this. Other text is walked field by field. Both paths agree wherever the first one
    applies, so the choice of path never changes the result.
    """

    def __init__(self, dialect: CsvDialect) -> None:
        self.quote = dialect.quote
        self.delimiter = dialect.delimiter
        self._quote = dialect.quote[0]
        self._delimiter = dialect.delimiter[0]
        quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
        # All quantifiers are possessive: nothing backtracks, so the time is linear in the text.
        self._section = re.compile(b"[^%b]*+(?:%b%b[^%b]*+)*+(%b?)" % (quote, quote, quote, quote, quote))
        self._token = re.compile(b"(?<=[%b\n])%b%b|\n" % (delimiter, quote, self._section.pattern))

    @override
    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        if self.quote not in text:
            if state == INSIDE_QUOTES:
                return np.empty(0, np.int64), INSIDE_QUOTES
            return newline_offsets(text), self._state_outside(text)
        values = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(values == self._quote)
        if not self._can_count(values, quotes, state):
            ends, next_state, _ = self._walk_fields(text, state)
            return np.array(ends, np.int64), next_state
        starts_inside = int(state == INSIDE_QUOTES)
        newlines = newline_offsets(text)
        ends = newlines[(np.searchsorted(quotes, newlines) + starts_inside) & 1 == 0]
        if (len(quotes) + starts_inside) & 1:
            return ends, INSIDE_QUOTES
        return ends, QUOTE_MAY_OPEN if int(quotes[-1]) == len(text) - 1 else self._state_outside(text)

    @override
    def open_quote_offset(self, text: bytes) -> int:
        return self._walk_fields(text, QUOTE_MAY_OPEN)[2]

    def _state_outside(self, text: bytes) -> int:
        """Return the state after text that ends outside quotes and not with a closing quote."""
        return QUOTE_MAY_OPEN if text[-1] in (self._delimiter, 0x0A) else UNQUOTED_TEXT

    def _can_count(self, values: NDArray[np.uint8], quotes: Offsets, state: int) -> bool:
        """Return True if every opening quote, by its number, stands where a quote may open.

        The proof is by induction. Assume that the count was right up to this quote. If the
        preceding byte is a delimiter or a newline, it ends a field. If it is a quote, that quote
        has just closed a field, and the two are a doubled quote.
        """
        openings = quotes[int(state == INSIDE_QUOTES) :: 2]
        if not len(openings):
            return True
        preceding = values[openings - 1]
        valid = (preceding == self._delimiter) | (preceding == 0x0A) | (preceding == self._quote)
        if openings[0] == 0:
            valid[0] = state == QUOTE_MAY_OPEN
        return bool(valid.all())

    def _walk_fields(self, text: bytes, state: int) -> tuple[list[int], int, int]:
        """Walk the fields.

        Return the ends, the next state, and the offset of the last opening quote.
        """
        ends: list[int] = []
        offset, last_opened = 0, -1
        if state == INSIDE_QUOTES or (state == QUOTE_MAY_OPEN and text.startswith(self.quote)):
            last_opened = 0
            section = self._section.match(text, int(state != INSIDE_QUOTES))
            assert section is not None, "a section may be empty, so it always matches"
            offset, state = section.end(), QUOTE_MAY_OPEN if section[1] else INSIDE_QUOTES
        for token in self._token.finditer(text, offset):
            start, offset = token.span()
            if token[1] is None:
                ends.append(start)
                state = QUOTE_MAY_OPEN
            else:
                last_opened = start
                state = QUOTE_MAY_OPEN if token[1] else INSIDE_QUOTES
        # `state` is the state after the last token; the text after that token may change it.
        if state != INSIDE_QUOTES and offset < len(text):
            state = self._state_outside(text)
        return ends, state, last_opened


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
    """Return the offsets of every cell of every row that has `width` cells."""
    delimiters = _delimiter_offsets(rows, dialect)
    if delimiters is None:
        # Stray quotes are rare, so the rows are rewritten one by one as valid CSV.
        texts = rows.texts(np.arange(len(rows)))
        rows = TextRows.from_texts([dialect.encode_record(dialect.cells(text)) for text in texts])
        delimiters = _delimiter_offsets(rows, dialect)
        assert delimiters is not None, "an encoded record has no stray quotes"
    low, high = np.searchsorted(delimiters, rows.starts), np.searchsorted(delimiters, rows.ends)
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
    """Return the offsets of the delimiters between cells, or None if there are stray quotes."""
    origin, stop = int(rows.starts[0]), int(rows.ends[-1])
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
