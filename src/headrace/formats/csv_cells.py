"""The cells of CSV records: exact splitting of one record, and cell offsets for a block of records."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

Offsets = NDArray[np.int64]


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
