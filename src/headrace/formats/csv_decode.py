"""CSV records as inputs of a model: one matrix, or one input per column.

Columns are requested by number, by header name, or by a JSONPath, and named in failures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import override

from headrace.core.block import Block, FailureKind
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array
from headrace.formats.contract import DecodedBlock, Decoder, FailureReasons
from headrace.formats.csv import CellGrid, TextRows, cell_grid, column_texts, select_columns
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.encoding import UTF8, invalid_reason
from headrace.formats.json_path import ColumnSelection, column_index, format_names
from headrace.formats.lines import Offsets
from headrace.formats.matrix import (
    DelimitedNumbers,
    FlatNumbers,
    InvalidCell,
    Matrix,
    NumberParser,
    load_delimited_numbers,
    number_dtype,
)

Column = str | int
"""A column by its header name, or by its index from 0 (negative indices count from the end)."""


@dataclass(frozen=True, slots=True)
class BoundColumns:
    """The requested columns, resolved for records of `width` columns, with names if known.

    `encoding` is that of the source, for messages.
    """

    indices: tuple[int, ...]
    width: int
    names: tuple[str, ...] | None
    encoding: str = UTF8

    @property
    def all_in_order(self) -> bool:
        """Return True if the columns are all columns of the records, in their order."""
        return self.indices == tuple(range(self.width))

    def label(self, column: int) -> str:
        """Return the number and the name of a column for messages."""
        return f"column {column}" if self.names is None else f'column {column} ("{self.names[column]}")'

    def ragged_reasons(self, grid: CellGrid) -> FailureReasons:
        """Return the failure reasons of the records whose number of columns is not `width`."""
        return {row: self.failure_reason(cells, ()) for row, cells in grid.ragged.items()}

    def failure_reason(self, invalid: InvalidCell | int, indices: Sequence[int]) -> tuple[FailureKind, str]:
        """Return the kind and the message of a failure; `indices` are the columns that were read."""
        if isinstance(invalid, int):
            columns = "column" if invalid == 1 else "columns"
            return FailureKind.DECODE, f"has {invalid} {columns}, {self.width} expected"
        label = self.label(indices[invalid.column])
        if invalid.text is None:
            return FailureKind.DECODE, f"{label}: {invalid_reason(self.encoding)}"
        if invalid.is_null:
            return FailureKind.DECODE, f"{label}: missing, expected {invalid.expected}"
        if not invalid.text.strip():
            return FailureKind.DECODE, f"{label}: empty, expected {invalid.expected}"
        text = invalid.text if len(invalid.text) <= 80 else invalid.text[:80] + "…"
        return FailureKind.DECODE, f'{label}: "{text}" is not {invalid.expected}'


class ColumnFinder:
    """A resolver of the requested columns: once without a header, else once for each header.

    `requested` is a list of columns, a selection of columns, or None for all. With
    `input_selection`, columns are counted and named among the columns of that selection. All columns
    have the order of the first header, if a later header has the same names in another order.

    A column that the very first records lack is a ConfigError, because the request was wrong. After
    a first success the data differ, and the records fail.
    """

    def __init__(
        self,
        requested: Sequence[Column] | ColumnSelection | None,
        width: int | None,
        dialect: CsvDialect,
        *,
        input_selection: ColumnSelection | None = None,
    ) -> None:
        if width is not None and width < 1:
            raise ConfigError(f"width must be at least 1, not {width}")
        if isinstance(requested, ColumnSelection):
            if input_selection is not None:
                raise ConfigError(
                    f"two selections of columns, {input_selection.text} and {requested.text}: pass one"
                )
            requested, input_selection = None, requested
        self._requested = requested
        self._input_selection = input_selection
        self._width = width
        self._dialect = dialect
        self._last_bound: BoundColumns | None = None
        self._first_names: tuple[str, ...] | None = None

    @property
    def count(self) -> int:
        """Return the number of requested columns, or 0 while it is unknown."""
        if self._requested is not None:
            return len(self._requested)
        if self._last_bound is not None:
            return len(self._last_bound.indices)
        return self._width or 0 if self._input_selection is None else 0

    def bind(self, names: tuple[str, ...] | None) -> BoundColumns:
        """Resolve the columns by this header.

        Raise ConfigError with the existing columns if one is missing.
        """
        bound = self._resolve(names)
        if isinstance(bound, str):
            raise ConfigError(bound)
        self._last_bound = bound
        return bound

    def find_in(self, block: Block) -> BoundColumns | str:
        """Return the columns in the records of this block, or the reason why they are missing."""
        names = block.column_names
        last_bound = self._last_bound
        if last_bound is not None and last_bound.names == names:
            return last_bound
        if self._width is None and names is None:
            # The width is kept: every later record without a header must match the first record.
            self._width = len(self._dialect.cells(block.record(0)))
        if last_bound is None:
            self.bind(names)
            assert self._last_bound is not None, "bind raises or sets it"
            return self._last_bound
        bound = self._resolve(names)
        if isinstance(bound, BoundColumns):
            self._last_bound = bound
        return bound

    def _resolve(self, names: tuple[str, ...] | None) -> BoundColumns | str:
        width = self._width
        if width is None:
            if names is None:
                return "the records have no header, so their number of columns is not known yet"
            width = len(names)
        if names is not None and len(names) != width:
            return f"the header has {len(names)} columns, {width} expected: {format_names(names)}"
        if self._input_selection is None:
            available = tuple(range(width))
        else:
            try:
                available = self._input_selection.indices(width, names)
            except ValueError as error:
                return str(error)
        if self._requested is None:
            if names is not None and self._input_selection is None:
                available = self._in_first_order(names)
            return BoundColumns(available, width, names, self._dialect.encoding)
        available_names = None if names is None else tuple(names[index] for index in available)
        indices: list[int] = []
        for column in self._requested:
            try:
                index = column_index(column, len(available), available_names)
            except ValueError as error:
                return (
                    str(error) if self._input_selection is None else f"{self._input_selection.text}: {error}"
                )
            indices.append(available[index])
        return BoundColumns(tuple(indices), width, names, self._dialect.encoding)

    def _in_first_order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return all columns in the order of the first header, or their own if the names differ."""
        first = self._first_names = self._first_names or names
        if set(first) != set(names) or len(set(names)) < len(names):
            return tuple(range(len(names)))
        return tuple(map(names.index, first))


CellType = DTypeLike | Literal["text"]
"""The type that the cells of a column become: a boolean, integer or floating dtype, or str."""

_FAILED_ATTEMPTS_MAX = 3
"""Consecutive blocks with a non-numeric column after which whole blocks are no longer parsed."""
_COLUMNS_PER_REQUESTED_MAX = 8
"""Whole blocks are parsed only if at least one column in this number is requested."""


class _CsvDecoder(Decoder):
    """A decoder of the columns that `_columns` finds."""

    _columns: ColumnFinder

    def bind(self, column_names: Sequence[str]) -> None:
        """Resolve the columns by a header before the first block.

        Raise ConfigError if one is missing.
        """
        self._columns.bind(tuple(column_names))

    def _fail_all(self, block: Block, tensors: Mapping[str, Array], why: str) -> DecodedBlock:
        """Return the result for a block without records, or with missing columns."""
        return DecodedBlock.with_failures(
            tensors, block, dict.fromkeys(range(len(block)), (FailureKind.DECODE, why))
        )


class CsvMatrixDecoder(_CsvDecoder):
    """A decoder of some or all columns into one input: a tensor ``[n, F]`` of `dtype`.

    A number is any ASCII text without underscores that Python's `float` accepts, with or without
    quotes. For integer dtypes it is any such text that `int` accepts, in the range of the dtype. A
    boolean is true, false, 1 or 0. The values are those of ``float(text)`` cast to `dtype`, whichever
    parser read them. With the decimal comma of a dialect, it stands for the point, which is invalid
    then. A null word of the dialect is NaN for floating dtypes, and invalid for others.

    Failures (kind DECODE) are a record whose number of columns is not `width`, and a record with a
    requested cell that is not a number.

    Args:
        input_name: The name of the model's input.
        columns: The columns in the order that the model expects: indices, names or a selection.
            None means all columns.
        input_selection: A selection among whose columns `columns` are counted and named.
            None means all columns.
        width: The number of columns of every record. None means the number of header names, or
            else the number of columns of the first decoded record.
        dtype: The dtype of the tensor.
        dialect: The dialect of the records; None is that of RFC 4180.
        flat_numbers: The parser of JSON numbers; None means the fastest one installed.
        delimited_numbers: A function that loads the parser of other numbers if there are many;
            it may return None.
    """

    def __init__(
        self,
        input_name: str,
        *,
        columns: Sequence[str | int] | ColumnSelection | None = None,
        input_selection: ColumnSelection | None = None,
        width: int | None = None,
        dtype: DTypeLike = np.float32,
        dialect: CsvDialect | None = None,
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = load_delimited_numbers,
    ) -> None:
        if columns is not None and not isinstance(columns, ColumnSelection) and not columns:
            raise ConfigError(f"no columns for input {input_name!r}: name at least one, or omit them for all")
        self._name = input_name
        self._dialect = dialect or CsvDialect()
        self._columns = ColumnFinder(columns, width, self._dialect, input_selection=input_selection)
        self._failed_attempts = 0
        self._parser = NumberParser(
            dtype, self._dialect, flat_numbers=flat_numbers, delimited_numbers=delimited_numbers
        )

    @override
    def decode(self, block: Block) -> DecodedBlock:
        """Raise ConfigError if the first block shows that a requested column is missing."""
        bound = self._columns.find_in(block) if len(block) else "no records"
        if isinstance(bound, str):
            empty = np.empty((0, self._columns.count), self._parser.dtype)
            return self._fail_all(block, {self._name: empty}, bound)
        rows = TextRows(block.data, block.starts, block.ends)
        if bound.all_in_order:
            parsed = self._parser.parse(rows, bound.width)
            reasons = {
                row: bound.failure_reason(invalid, bound.indices) for row, invalid in parsed.invalid.items()
            }
            return DecodedBlock.with_failures({self._name: parsed.matrix}, block, reasons)
        matrix = self._decode_all_columns(rows, bound)
        if matrix is not None:
            return DecodedBlock({self._name: matrix})
        grid = cell_grid(rows, self._dialect, bound.width)
        parsed = self._parser.parse(
            select_columns(grid, bound.indices, self._dialect.delimiter), len(bound.indices)
        )
        reasons = bound.ragged_reasons(grid)
        reasons |= {
            int(grid.rows[row]): bound.failure_reason(invalid, bound.indices)
            for row, invalid in parsed.invalid.items()
        }
        return DecodedBlock.with_failures({self._name: parsed.matrix}, block, reasons)

    def _decode_all_columns(self, rows: TextRows, bound: BoundColumns) -> Matrix | None:
        """Take the requested columns from a matrix of all columns, or return None.

        If all columns are numbers, this is much faster than cutting the requested ones out as text.
        """
        if (
            self._failed_attempts >= _FAILED_ATTEMPTS_MAX
            or len(bound.indices) * _COLUMNS_PER_REQUESTED_MAX < bound.width
        ):
            return None
        matrix = self._parser.parse_block(rows, bound.width)
        self._failed_attempts = self._failed_attempts + 1 if matrix is None else 0
        return None if matrix is None else matrix.take(bound.indices, axis=1)


class CsvColumnsDecoder(_CsvDecoder):
    """A decoder of one column per input: numbers, or text as an object array of str.

    Tensors are ``[n]``, or ``[n, 1]`` with `as_column_vectors`. Numbers are parsed and fail as in
    `CsvMatrixDecoder`. Text that is not UTF-8 is a failure (kind DECODE). A record that fails for
    one input is missing from all inputs.

    Args:
        columns: The column and its cell type, by input name.
        input_selection: A selection among whose columns `columns` are counted and named.
            None means all columns.
        width: The number of columns of every record; None as in `CsvMatrixDecoder`.
        dialect: The dialect of the records; None is that of RFC 4180. Null words are text for inputs of
            text.
        as_column_vectors: Give every tensor a second axis of length 1.
        flat_numbers: As in `CsvMatrixDecoder`.
        delimited_numbers: As in `CsvMatrixDecoder`.
    """

    def __init__(
        self,
        columns: Mapping[str, tuple[Column, CellType]],
        *,
        input_selection: ColumnSelection | None = None,
        width: int | None = None,
        dialect: CsvDialect | None = None,
        as_column_vectors: bool = False,
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = load_delimited_numbers,
    ) -> None:
        if not columns:
            raise ConfigError("no inputs are mapped to columns: map at least one input to a column")
        self._dialect = dialect or CsvDialect()
        requested = [column for column, _ in columns.values()]
        self._columns = ColumnFinder(requested, width, self._dialect, input_selection=input_selection)
        self._as_column_vectors = as_column_vectors
        self._names = tuple(columns)
        types = [
            None if type == "text" else number_dtype(type)  # pyright: ignore[reportUnknownArgumentType]
            for _, type in columns.values()
        ]
        self._text_inputs = [i for i, dtype in enumerate(types) if dtype is None]
        # Columns of one dtype are parsed together, with one call of the parser.
        self._number_groups = [
            (
                # numpy treats None as equal to float64.
                [i for i, other in enumerate(types) if other is not None and other == dtype],
                NumberParser(
                    dtype, self._dialect, flat_numbers=flat_numbers, delimited_numbers=delimited_numbers
                ),
            )
            for dtype in dict.fromkeys(d for d in types if d is not None)
        ]

    @override
    def decode(self, block: Block) -> DecodedBlock:
        """Raise ConfigError if the first block shows that a requested column is missing."""
        bound = self._columns.find_in(block) if len(block) else "no records"
        if isinstance(bound, str):
            return self._fail_all(block, self._by_input_name(self._empty_arrays()), bound)
        grid = cell_grid(TextRows(block.data, block.starts, block.ends), self._dialect, bound.width)
        reasons = bound.ragged_reasons(grid)
        by_input: dict[int, tuple[Array, Offsets]] = {}
        for inputs, parser in self._number_groups:
            indices = [bound.indices[i] for i in inputs]
            parsed = parser.parse(select_columns(grid, indices, self._dialect.delimiter), len(indices))
            for row, invalid in parsed.invalid.items():
                reasons.setdefault(int(grid.rows[row]), bound.failure_reason(invalid, indices))
            rows = np.delete(grid.rows, list(parsed.invalid))
            by_input |= {i: (parsed.matrix[:, column], rows) for column, i in enumerate(inputs)}
        for i in self._text_inputs:
            by_input[i] = self._decode_text_column(grid, bound.indices[i], bound, reasons)
        good_rows = (
            np.setdiff1d(np.arange(len(block)), list(reasons), assume_unique=True) if reasons else None
        )
        arrays: list[Array] = []
        for i in range(len(self._names)):
            array, rows = by_input[i]
            kept = array if good_rows is None else array[np.searchsorted(rows, good_rows)]
            arrays.append(np.ascontiguousarray(kept))
        return DecodedBlock.with_failures(self._by_input_name(arrays), block, reasons)

    def _empty_arrays(self) -> list[Array]:
        dtypes = {i: parser.dtype for inputs, parser in self._number_groups for i in inputs}
        return [np.empty(0, dtypes.get(i, np.dtype(object))) for i in range(len(self._names))]

    def _by_input_name(self, arrays: list[Array]) -> dict[str, Array]:
        shaped = [a[:, None] for a in arrays] if self._as_column_vectors else arrays
        return dict(zip(self._names, shaped, strict=True))

    def _decode_text_column(
        self, grid: CellGrid, column: int, bound: BoundColumns, reasons: FailureReasons
    ) -> tuple[Array, Offsets]:
        """Return the cells of a column as str for all rows of the grid; undecodable cells are None."""
        cells = column_texts(grid, column)
        if not self._dialect.is_split_by_delimiters(grid.data):
            # Cells have no delimiter outside quotes, so each is a record of one cell.
            split_cells = self._dialect.cells
            cells = [split_cells(cell)[0] for cell in cells]
        texts = np.empty(len(cells), object)
        try:
            texts[:] = [cell.decode() for cell in cells]
        except UnicodeDecodeError:
            for row, cell in enumerate(cells):
                try:
                    texts[row] = cell.decode()
                except UnicodeDecodeError:
                    why = (FailureKind.DECODE, f"{bound.label(column)}: {invalid_reason(bound.encoding)}")
                    reasons.setdefault(int(grid.rows[row]), why)
        return texts, grid.rows
