"""A CSV record taken apart into cells: one record exactly, or a block of them by their offsets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Delimited rows in one buffer: row i is ``data[starts[i]:ends[i]]``.

    Between rows stand line ends (and blank lines) alone.
    """

    data: bytes
    starts: Offsets
    ends: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int) -> bytes:
        """The bytes of one row."""
        return self.data[int(self.starts[index]) : int(self.ends[index])]

    def texts(self, indices: Sequence[int] | Offsets) -> list[bytes]:
        """The bytes of some rows."""
        bounds = zip(self.starts[indices].tolist(), self.ends[indices].tolist(), strict=True)
        return [self.data[start:end] for start, end in bounds]

    def slice(self, start: int, stop: int) -> "Rows":
        """Rows ``start .. stop`` of the same buffer."""
        return Rows(self.data, self.starts[start:stop], self.ends[start:stop])

    @staticmethod
    def joined(texts: Sequence[bytes]) -> "Rows":
        """Rows in a buffer of their own, one newline between them."""
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1) - 1
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        return Rows(b"\n".join(texts), starts, ends)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What separates fields and what quotes them: one byte each; an empty `quote` quotes nothing."""

    delimiter: bytes
    quote: bytes

    @staticmethod
    def of(delimiter: str, quote: str) -> "Dialect":
        """Checked; raises ConfigError for what is not one ASCII character."""
        for name, value in (("delimiter", delimiter), ("quote", quote or '"')):
            if len(value) != 1 or not value.isascii() or value in "\r\n\0":
                raise ConfigError(f"{name} must be one ASCII character and no line end, not {value!r}")
        if delimiter == quote:
            raise ConfigError(f"delimiter and quote are both {quote!r}")
        return Dialect(delimiter.encode(), quote.encode())

    def cells(self, record: bytes, *, strict: bool = False) -> list[bytes]:
        """The fields of one record, without their quotes, as `csv.reader` gives them.

        With `strict`, ValueError for text after a closing quote.
        """
        if not self.quote or self.quote not in record:
            return record.split(self.delimiter)
        match = _cell_pattern(self.delimiter, self.quote).match
        cells: list[bytes] = []
        at = 0
        while True:
            cell = match(record, at)
            assert cell is not None, "every part of the pattern may be empty"
            quoted, text, delimiter = cell.groups()
            if quoted is None:
                cells.append(text)
            else:
                if strict and text:
                    raise ValueError(f"text after the closing quote of column {len(cells)}")
                cells.append(quoted.replace(self.quote * 2, self.quote) + text)
            if not delimiter:
                return cells
            at = cell.end()

    def raw_cells(self, record: bytes) -> list[bytes]:
        """The fields of one record as they stand, quotes and all."""
        if not self.quote or self.quote not in record:
            return record.split(self.delimiter)
        match = _cell_pattern(self.delimiter, self.quote).match
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

    def names(self, record: bytes) -> tuple[str, ...]:
        """A header's cells as text; ValueError when it is not strictly CSV, or not UTF-8."""
        return tuple(cell.decode() for cell in self.cells(record, strict=True))

    def encoded(self, cells: Sequence[bytes]) -> bytes:
        """A record of these cells, with quotes where they are needed."""
        special = re.compile(b"[%b%b\r\n]" % (re.escape(self.delimiter), re.escape(self.quote)))
        quote = self.quote
        return self.delimiter.join(
            quote + cell.replace(quote, quote * 2) + quote if special.search(cell) else cell for cell in cells
        )


@lru_cache(maxsize=16)
def _cell_pattern(delimiter: bytes, quote: bytes) -> re.Pattern[bytes]:
    """One cell: a quoted part or None, text as it stands, and the delimiter or nothing."""
    q, d = re.escape(quote), re.escape(delimiter)
    return re.compile(
        b"(?:%b([^%b]*+(?:%b%b[^%b]*+)*+)%b?)?([^%b]*+)(%b?)" % (q, q, q, q, q, q, d, d), re.DOTALL
    )


@dataclass(frozen=True, slots=True)
class CellGrid:
    """Where the cells of rows are: cell (i, j) is ``data[starts[i, j]:ends[i, j]]``, with its quotes.

    `rows` are the indices of the rows that have as many cells as they should; `ragged` are the others, with how
    many they have.
    """

    data: bytes
    starts: Offsets
    ends: Offsets
    rows: Offsets
    ragged: dict[int, int]


def cell_grid(rows: Rows, dialect: Dialect, width: int) -> CellGrid:
    """Find every cell of every row, `width` to a row."""
    found = _delimiters(rows, dialect)
    if found is None:
        # Stray quotes. Rare, so row by row: written anew as they should have been.
        texts = rows.texts(np.arange(len(rows)))
        rows = Rows.joined([dialect.encoded(dialect.cells(text)) for text in texts])
        found = _delimiters(rows, dialect)
        assert found is not None, "an encoded record has no stray quotes"
    low, high = np.searchsorted(found, rows.starts), np.searchsorted(found, rows.ends)
    cells = high - low + 1
    right = cells == width
    ragged: dict[int, int] = {}
    starts, ends, indices = rows.starts, rows.ends, np.arange(len(rows))
    if not right.all():
        wrong = np.flatnonzero(~right)
        ragged = dict(zip(wrong.tolist(), cells[wrong].tolist(), strict=True))
        found = found[np.repeat(right, high - low)]
        starts, ends, indices = starts[right], ends[right], indices[right]
    inner = found.reshape(len(starts), width - 1)
    return CellGrid(
        rows.data,
        np.concatenate((starts[:, None], inner + 1), axis=1),
        np.concatenate((inner, ends[:, None]), axis=1),
        indices,
        ragged,
    )


def _delimiters(rows: Rows, dialect: Dialect) -> Offsets | None:
    """Offsets of the delimiters between the rows' cells; None when there are stray quotes."""
    origin, stop = int(rows.starts[0]), int(rows.ends[-1])
    values = np.frombuffer(rows.data, np.uint8, stop - origin, origin)
    found = np.flatnonzero(values == dialect.delimiter[0])
    if dialect.quote and rows.data.find(dialect.quote, origin, stop) >= 0:
        quotes = np.flatnonzero(values == dialect.quote[0])
        openings = quotes[0::2]
        before = values[openings - 1]
        right = (before == dialect.delimiter[0]) | (before == 0x0A) | (before == dialect.quote[0])
        if openings[0] == 0:
            right[0] = True
        if not right.all():
            return None
        found = found[np.searchsorted(quotes, found) & 1 == 0]
    return found + origin


def narrowed(grid: CellGrid, columns: Sequence[int], delimiter: bytes) -> Rows:
    """Rows of some columns alone, quotes and all, in the order asked for."""
    if columns and list(columns) == list(range(columns[0], columns[-1] + 1)):
        # Neighbours stay as they stand, delimiters and all.
        return _cut_out(grid.data, grid.starts[:, columns[0]], grid.ends[:, columns[-1]])
    starts, ends = grid.starts[:, list(columns)], grid.ends[:, list(columns)]
    lengths = (ends - starts + 1).ravel()
    stops = np.cumsum(lengths)
    # Byte k of the result comes from k + (where its cell stood - where it stands now).
    source = np.arange(int(stops[-1]) if len(stops) else 0) + np.repeat(
        starts.ravel() - stops + lengths, lengths
    )
    # The byte after the last cell may not exist; whatever is taken there is overwritten just below.
    values = np.frombuffer(grid.data, np.uint8).take(source, mode="clip")
    values[stops - 1] = delimiter[0]
    row_stops = stops[len(columns) - 1 :: len(columns)]
    values[row_stops - 1] = 0x0A
    row_starts = np.zeros_like(row_stops)
    row_starts[1:] = row_stops[:-1]
    return Rows(values.tobytes(), row_starts, row_stops - 1)


def _cut_out(data: bytes, starts: Offsets, ends: Offsets) -> Rows:
    """Rows of these parts of `data`, each ended by a newline."""
    parts = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    row_ends = np.cumsum(ends - starts + 1) - 1
    row_starts = np.zeros_like(row_ends)
    row_starts[1:] = row_ends[:-1] + 1
    return Rows(b"\n".join([*parts, b""]), row_starts, row_ends)


def column_texts(grid: CellGrid, column: int) -> list[bytes]:
    """One column's cells, quotes and all."""
    bounds = zip(grid.starts[:, column].tolist(), grid.ends[:, column].tolist(), strict=True)
    return [grid.data[start:end] for start, end in bounds]
