"""CSV records to a model's inputs: one matrix, or an input a column; and any record as it stands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, text_array
from headrace.formats.contract import Decoded
from headrace.formats.csv_cells import CellGrid, Dialect, Offsets, Rows, cell_grid, column_texts, narrowed
from headrace.formats.csv_columns import BoundColumns, Column, ColumnFinder, Whys
from headrace.formats.csv_selection import ColumnSelection
from headrace.formats.matrix import (
    DelimitedNumbers,
    FlatNumbers,
    Matrix,
    NumberParser,
    arrow_delimited_numbers,
    number_dtype,
)

CellType = DTypeLike | Literal["text"]
"""What a column's cells become: a boolean, integer or floating dtype, or str."""

_MISSES_MAX = 3
"""After so many blocks in a row in which some column that is not wanted is no number, that is not tried again."""
_SHARE_MIN = 8
"""It is tried when at least one column in so many is wanted."""


class CsvMatrixDecoder:
    """Numbers of some or all columns as one input: a tensor ``[n, F]`` of `dtype`.

    A number is what Python's `float` (or `int`, for integer dtypes: exactly, and within their range) takes, with
    or without quotes; a boolean is true, false, 1 or 0. The values are those of ``float(text)`` cast to `dtype`,
    whichever engine read them.

    Failures: a record whose number of columns is not `width` (kind FORMAT), and one with anything else than a
    number in a column that is wanted (kind DECODE).

    Args:
        input_name: The model's input.
        columns: Which, in the order in which the model wants them: by index, by name, or as a selection; None is all.
        within: A selection among which `columns` are counted and named; None is all.
        width: How many columns every record must have. None: as many as the header names, or else as the first
            record ever decoded has.
        dtype: Of the tensor.
        delimiter: What stands between fields.
        quote: What fields may be quoted with; empty for nothing.
        flat_numbers: The engine that reads JSON's numbers; None is the fastest one installed.
        delimited_numbers: Fetches the engine for other numbers, when there are many; may give None.
    """

    def __init__(
        self,
        input_name: str,
        *,
        columns: Sequence[int] | Sequence[str] | ColumnSelection | None = None,
        within: ColumnSelection | None = None,
        width: int | None = None,
        dtype: DTypeLike = np.float32,
        delimiter: str = ",",
        quote: str = '"',
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = arrow_delimited_numbers,
    ) -> None:
        if columns is not None and not isinstance(columns, ColumnSelection) and not columns:
            raise ConfigError(f"no columns for input {input_name!r}: name some, or leave them out for all")
        self._name = input_name
        self._dialect = Dialect.of(delimiter, quote)
        self._columns = ColumnFinder(columns, width, self._dialect, within=within)
        self._misses = 0
        self._parser = NumberParser(
            dtype, self._dialect, flat_numbers=flat_numbers, delimited_numbers=delimited_numbers
        )

    def bind(self, column_names: Sequence[str]) -> None:
        """Check the columns against a header before the first block; ConfigError when one is not there."""
        self._columns.bind(tuple(column_names))

    def decode(self, block: Block) -> Decoded:
        """The block's matrix. ConfigError when the first block shows that a wanted column is not there."""
        bound = self._columns.of(block) if len(block) else "no records"
        if isinstance(bound, str):
            empty = np.empty((0, self._columns.count), self._parser.dtype)
            return _decoded(block, {self._name: empty}, _all_fail(block, bound))
        rows = Rows(block.data, block.starts, block.ends)
        if bound.all_in_order:
            parsed = self._parser.parse(rows, bound.width)
            whys = {row: bound.why(bad, bound.indices) for row, bad in parsed.bad.items()}
            return _decoded(block, {self._name: parsed.matrix}, whys)
        matrix = self._of_all_columns(rows, bound)
        if matrix is not None:
            return _decoded(block, {self._name: matrix}, {})
        grid = cell_grid(rows, self._dialect, bound.width)
        parsed = self._parser.parse(
            narrowed(grid, bound.indices, self._dialect.delimiter), len(bound.indices)
        )
        whys = bound.ragged(grid)
        whys |= {int(grid.rows[row]): bound.why(bad, bound.indices) for row, bad in parsed.bad.items()}
        return _decoded(block, {self._name: parsed.matrix}, whys)

    def _of_all_columns(self, rows: Rows, bound: BoundColumns) -> Matrix | None:
        """The wanted columns out of a matrix of all: much quicker than cutting them out as text, where all are numbers."""
        if self._misses >= _MISSES_MAX or len(bound.indices) * _SHARE_MIN < bound.width:
            return None
        matrix = self._parser.block(rows, bound.width)
        self._misses = self._misses + 1 if matrix is None else 0
        return None if matrix is None else matrix.take(bound.indices, axis=1)


class CsvColumnsDecoder:
    """One input a column: numbers, or text as an object array of str.

    Tensors are ``[n]``, or ``[n, 1]`` with `as_column_vectors`. Numbers are read and fail as `CsvMatrixDecoder`
    has it; text that is not UTF-8 is a failure (kind DECODE). A record that fails for one input is in none.

    Args:
        columns: By input name, the column and what its cells become.
        within: A selection among which `columns` are counted and named; None is all.
        width: How many columns every record must have; None as in `CsvMatrixDecoder`.
        delimiter: What stands between fields.
        quote: What fields may be quoted with; empty for nothing.
        as_column_vectors: Give every tensor a second axis of length 1.
        flat_numbers: As in `CsvMatrixDecoder`.
        delimited_numbers: As in `CsvMatrixDecoder`.
    """

    def __init__(
        self,
        columns: Mapping[str, tuple[Column, CellType]],
        *,
        within: ColumnSelection | None = None,
        width: int | None = None,
        delimiter: str = ",",
        quote: str = '"',
        as_column_vectors: bool = False,
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = arrow_delimited_numbers,
    ) -> None:
        if not columns:
            raise ConfigError("no columns for any input: name one for each")
        self._dialect = Dialect.of(delimiter, quote)
        wanted = [column for column, _ in columns.values()]
        self._columns = ColumnFinder(wanted, width, self._dialect, within=within)
        self._as_column_vectors = as_column_vectors
        self._names = tuple(columns)
        types = [None if type == "text" else number_dtype(type) for _, type in columns.values()]  # pyright: ignore[reportUnknownArgumentType]  # DTypeLike
        self._texts = [i for i, dtype in enumerate(types) if dtype is None]
        # Columns of one dtype are read together: one call of the engine for all of them.
        self._numbers = [
            (
                # None equals float64 in numpy's eyes.
                [i for i, other in enumerate(types) if other is not None and other == dtype],
                NumberParser(
                    dtype, self._dialect, flat_numbers=flat_numbers, delimited_numbers=delimited_numbers
                ),
            )
            for dtype in dict.fromkeys(d for d in types if d is not None)
        ]

    def bind(self, column_names: Sequence[str]) -> None:
        """Check the columns against a header before the first block; ConfigError when one is not there."""
        self._columns.bind(tuple(column_names))

    def decode(self, block: Block) -> Decoded:
        """The block's columns. ConfigError when the first block shows that a wanted column is not there."""
        bound = self._columns.of(block) if len(block) else "no records"
        if isinstance(bound, str):
            return _decoded(block, self._shaped(self._nothing()), _all_fail(block, bound))
        grid = cell_grid(Rows(block.data, block.starts, block.ends), self._dialect, bound.width)
        whys = bound.ragged(grid)
        found: dict[int, tuple[Array, Offsets]] = {}
        for inputs, parser in self._numbers:
            indices = [bound.indices[i] for i in inputs]
            parsed = parser.parse(narrowed(grid, indices, self._dialect.delimiter), len(indices))
            for row, bad in parsed.bad.items():
                whys.setdefault(int(grid.rows[row]), bound.why(bad, indices))
            rows = np.delete(grid.rows, list(parsed.bad))
            found |= {i: (parsed.matrix[:, at], rows) for at, i in enumerate(inputs)}
        for i in self._texts:
            found[i] = self._text(grid, bound.indices[i], bound, whys)
        good = np.setdiff1d(np.arange(len(block)), list(whys), assume_unique=True) if whys else None
        arrays: list[Array] = []
        for i in range(len(self._names)):
            array, rows = found[i]
            kept = array if good is None else array[np.searchsorted(rows, good)]
            arrays.append(np.ascontiguousarray(kept))
        return _decoded(block, self._shaped(arrays), whys)

    def _nothing(self) -> list[Array]:
        dtypes = {i: parser.dtype for inputs, parser in self._numbers for i in inputs}
        return [np.empty(0, dtypes.get(i, np.dtype(object))) for i in range(len(self._names))]

    def _shaped(self, arrays: list[Array]) -> dict[str, Array]:
        shaped = [a[:, None] for a in arrays] if self._as_column_vectors else arrays
        return dict(zip(self._names, shaped, strict=True))

    def _text(self, grid: CellGrid, column: int, bound: BoundColumns, whys: Whys) -> tuple[Array, Offsets]:
        """A column's cells as str; all of the grid's rows, those that fail as None."""
        cells = column_texts(grid, column)
        quote, one = self._dialect.quote, self._dialect.cells
        if quote and quote in grid.data:
            # A cell cut out by its offsets holds no delimiter outside quotes: it is a record of one cell.
            cells = [one(cell)[0] if quote in cell else cell for cell in cells]
        texts = np.empty(len(cells), object)
        try:
            texts[:] = [cell.decode() for cell in cells]
        except UnicodeDecodeError:
            for row, cell in enumerate(cells):
                try:
                    texts[row] = cell.decode()
                except UnicodeDecodeError:
                    why = (FailureKind.DECODE, f"{bound.label(column)}: not UTF-8")
                    whys.setdefault(int(grid.rows[row]), why)
        return texts, grid.rows


class RawDecoder:
    """Whole records as they stand: an object array ``[n]`` of bytes, or of str.

    With `text`, a record that is not UTF-8 is a failure (kind DECODE); without, nothing fails. With
    `as_column_vector` the array is ``[n, 1]``. `select` gives what of a record is meant; the record for which it
    raises ValueError is a failure (kind DECODE).
    """

    def __init__(
        self,
        input_name: str,
        *,
        text: bool = False,
        as_column_vector: bool = False,
        select: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._name = input_name
        self._select = select
        self._text = text
        self._as_column_vector = as_column_vector

    def decode(self, block: Block) -> Decoded:
        """The block's records, copied out."""
        records = Rows(block.data, block.starts, block.ends).texts(np.arange(len(block)))
        whys: Whys = {}
        values: list[bytes | str] = []
        for index, record in enumerate(records):
            try:
                chosen = record if self._select is None else self._select(record)
                values.append(chosen.decode() if self._text else chosen)
            except UnicodeDecodeError as error:
                whys[index] = (FailureKind.DECODE, f"not UTF-8 at byte {error.start} of the record")
            except ValueError as error:
                whys[index] = (FailureKind.DECODE, str(error))
        array = text_array(values)
        return _decoded(block, {self._name: array[:, None] if self._as_column_vector else array}, whys)


def _all_fail(block: Block, why: str) -> Whys:
    return dict.fromkeys(range(len(block)), (FailureKind.FORMAT, why))


def _decoded(block: Block, tensors: Mapping[str, Any], whys: Whys) -> Decoded:
    """With the failures in order, and the indices of the others."""
    if not whys:
        return Decoded(tensors)
    failed = sorted(whys)
    failures: tuple[Failure, ...] = tuple(block.failure(row, *whys[row]) for row in failed)
    rows = np.setdiff1d(np.arange(len(block)), failed, assume_unique=True)
    return Decoded(tensors, rows, failures)
