"""CSV records as inputs of a model: one matrix, or one input per column, or whole records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, text_array
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.csv_cells import (
    CellGrid,
    CsvDialect,
    Offsets,
    TextRows,
    cell_grid,
    column_texts,
    select_columns,
)
from headrace.formats.csv_columns import BoundColumns, Column, ColumnFinder, ColumnSelection, FailureReasons
from headrace.formats.matrix import (
    DelimitedNumbers,
    FlatNumbers,
    Matrix,
    NumberParser,
    load_delimited_numbers,
    number_dtype,
)

CellType = DTypeLike | Literal["text"]
"""The type that the cells of a column become: a boolean, integer or floating dtype, or str."""

_FAILED_ATTEMPTS_MAX = 3
"""Consecutive blocks with a non-numeric column after which whole blocks are no longer parsed."""
_COLUMNS_PER_REQUESTED_MAX = 8
"""Whole blocks are parsed only if at least one column in this number is requested."""


class CsvMatrixDecoder(Decoder):
    """A decoder of some or all columns into one input: a tensor ``[n, F]`` of `dtype`.

    A number is any text that Python's `float` accepts, with or without quotes. For integer dtypes
    it is any text that `int` accepts, in the range of the dtype. A boolean is true, false, 1 or 0.
    The values are those of ``float(text)`` cast to `dtype`, whichever parser read them.

    Failures are a record whose number of columns is not `width` (kind FORMAT), and a record with a
    requested cell that is not a number (kind DECODE).

    Args:
        input_name: The name of the model's input.
        columns: The columns in the order that the model expects: indices, names or a selection.
            None means all columns.
        input_selection: A selection among whose columns `columns` are counted and named.
            None means all columns.
        width: The number of columns of every record. None means the number of header names, or
            else the number of columns of the first decoded record.
        dtype: The dtype of the tensor.
        delimiter: The delimiter between fields.
        quote: The quote around fields; empty to disable quoting.
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
        delimiter: str = ",",
        quote: str = '"',
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = load_delimited_numbers,
    ) -> None:
        if columns is not None and not isinstance(columns, ColumnSelection) and not columns:
            raise ConfigError(f"no columns for input {input_name!r}: name at least one, or omit them for all")
        self._name = input_name
        self._dialect = CsvDialect.from_strings(delimiter, quote)
        self._columns = ColumnFinder(columns, width, self._dialect, input_selection=input_selection)
        self._failed_attempts = 0
        self._parser = NumberParser(
            dtype, self._dialect, flat_numbers=flat_numbers, delimited_numbers=delimited_numbers
        )

    def bind(self, column_names: Sequence[str]) -> None:
        """Resolve the columns by a header before the first block.

        Raise ConfigError if one is missing.
        """
        self._columns.bind(tuple(column_names))

    @override
    def decode(self, block: Block) -> DecodedBlock:
        """Raise ConfigError if the first block shows that a requested column is missing."""
        bound = self._columns.find_in(block) if len(block) else "no records"
        if isinstance(bound, str):
            empty = np.empty((0, self._columns.count), self._parser.dtype)
            return _build_result(block, {self._name: empty}, _fail_all(block, bound))
        rows = TextRows(block.data, block.starts, block.ends)
        if bound.all_in_order:
            parsed = self._parser.parse(rows, bound.width)
            reasons = {
                row: bound.failure_reason(invalid, bound.indices) for row, invalid in parsed.invalid.items()
            }
            return _build_result(block, {self._name: parsed.matrix}, reasons)
        matrix = self._decode_all_columns(rows, bound)
        if matrix is not None:
            return _build_result(block, {self._name: matrix}, {})
        grid = cell_grid(rows, self._dialect, bound.width)
        parsed = self._parser.parse(
            select_columns(grid, bound.indices, self._dialect.delimiter), len(bound.indices)
        )
        reasons = bound.ragged_reasons(grid)
        reasons |= {
            int(grid.rows[row]): bound.failure_reason(invalid, bound.indices)
            for row, invalid in parsed.invalid.items()
        }
        return _build_result(block, {self._name: parsed.matrix}, reasons)

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


class CsvColumnsDecoder(Decoder):
    """A decoder of one column per input: numbers, or text as an object array of str.

    Tensors are ``[n]``, or ``[n, 1]`` with `as_column_vectors`. Numbers are parsed and fail as in
    `CsvMatrixDecoder`. Text that is not UTF-8 is a failure (kind DECODE). A record that fails for
    one input is missing from all inputs.

    Args:
        columns: The column and its cell type, by input name.
        input_selection: A selection among whose columns `columns` are counted and named.
            None means all columns.
        width: The number of columns of every record; None as in `CsvMatrixDecoder`.
        delimiter: The delimiter between fields.
        quote: The quote around fields; empty to disable quoting.
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
        delimiter: str = ",",
        quote: str = '"',
        as_column_vectors: bool = False,
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = load_delimited_numbers,
    ) -> None:
        if not columns:
            raise ConfigError("no inputs are mapped to columns: map at least one input to a column")
        self._dialect = CsvDialect.from_strings(delimiter, quote)
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

    def bind(self, column_names: Sequence[str]) -> None:
        """Resolve the columns by a header before the first block.

        Raise ConfigError if one is missing.
        """
        self._columns.bind(tuple(column_names))

    @override
    def decode(self, block: Block) -> DecodedBlock:
        """Raise ConfigError if the first block shows that a requested column is missing."""
        bound = self._columns.find_in(block) if len(block) else "no records"
        if isinstance(bound, str):
            return _build_result(block, self._by_input_name(self._empty_arrays()), _fail_all(block, bound))
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
        return _build_result(block, self._by_input_name(arrays), reasons)

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
        quote, split_cells = self._dialect.quote, self._dialect.cells
        if quote and quote in grid.data:
            # Cells have no delimiter outside quotes, so each is a record of one cell.
            cells = [split_cells(cell)[0] if quote in cell else cell for cell in cells]
        texts = np.empty(len(cells), object)
        try:
            texts[:] = [cell.decode() for cell in cells]
        except UnicodeDecodeError:
            for row, cell in enumerate(cells):
                try:
                    texts[row] = cell.decode()
                except UnicodeDecodeError:
                    why = (FailureKind.DECODE, f"{bound.label(column)}: not UTF-8")
                    reasons.setdefault(int(grid.rows[row]), why)
        return texts, grid.rows


class RawDecoder(Decoder):
    """A decoder of whole records into an object array ``[n]`` of bytes or str.

    With `text`, a record that is not UTF-8 is a failure (kind DECODE); without it, no record fails.
    With `as_column_vector` the array is ``[n, 1]``. `select` returns the part of a record to use. A
    record for which `select` raises ValueError is a failure (kind DECODE).
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

    @override
    def decode(self, block: Block) -> DecodedBlock:
        records = TextRows(block.data, block.starts, block.ends).texts(np.arange(len(block)))
        reasons: FailureReasons = {}
        values: list[bytes | str] = []
        for index, record in enumerate(records):
            try:
                selected = record if self._select is None else self._select(record)
                values.append(selected.decode() if self._text else selected)
            except UnicodeDecodeError as error:
                reasons[index] = (FailureKind.DECODE, f"not UTF-8 at byte {error.start} of the record")
            except ValueError as error:
                reasons[index] = (FailureKind.DECODE, str(error))
        array = text_array(values)
        return _build_result(
            block, {self._name: array[:, None] if self._as_column_vector else array}, reasons
        )


def _fail_all(block: Block, why: str) -> FailureReasons:
    return dict.fromkeys(range(len(block)), (FailureKind.FORMAT, why))


def _build_result(block: Block, tensors: Mapping[str, Any], reasons: FailureReasons) -> DecodedBlock:
    """Return the tensors with the failures in order and the indices of the decoded records."""
    if not reasons:
        return DecodedBlock(tensors)
    failed = sorted(reasons)
    failures: tuple[Failure, ...] = tuple(block.failure(row, *reasons[row]) for row in failed)
    rows = np.setdiff1d(np.arange(len(block)), failed, assume_unique=True)
    return DecodedBlock(tensors, rows, failures)
