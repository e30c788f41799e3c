"""Predictions as CSV (RFC 4180, but lines end with LF), alone or after the records they belong to.

An output filter selects columns of a record and of its predictions (`TransformCsvEncoder`).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from typing_extensions import override

from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.csv import TextRows, cell_grid, select_columns
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.csv_scan import record_scanner
from headrace.formats.encode import (
    INPUT,
    Join,
    RecordJoiner,
    check_join,
    check_outputs,
    is_text,
    join_selections,
    number_text,
    raw_records,
    row_width,
    selection_text,
    selections_text,
    text_bytes,
)
from headrace.formats.json_path import ColumnSelection, JsonPath
from headrace.formats.lines import QUOTE_MAY_OPEN

_NUMBER_CHARACTERS = b"0123456789+-.einfatrus"
"""The characters of written numbers and booleans."""
_PART_BYTES = 1 << 20
"""The approximate size of text filtered at once: each kept byte needs an offset of eight bytes."""


class CsvEncoder(Encoder):
    r"""An encoder of one CSV line per record.

    With ``join="input"``, the record's own bytes stand before the predictions. A scalar output is
    one column with the output's name. An output of k values per row is k columns, ``NAME_0`` to
    ``NAME_{k-1}`` (with more dimensions: flattened, last axis fastest).

    Numbers have the fewest digits that read back to the same value of their dtype. Numbers that are
    not finite are ``nan``, ``inf`` or ``-inf``; booleans are ``true`` and ``false``. Strings are
    UTF-8 (a lone surrogate becomes its ``\uXXXX``), bytes are unchanged, None is empty, and other
    objects are their JSON text. Cells are quoted only where necessary. Numbers have the decimal mark of
    the `dialect`, which is that of RFC 4180 if it is None.

    `columns` is the result of `output_columns` for the first outputs of the part. With `header`,
    every part starts with a line of names. With a join, the header needs the column names of the
    records, `input_columns`. Records that are not CSV (`input_is_csv` false) are joined as one
    quoted field, named ``input`` unless `input_columns` names it.

    Raises ConfigError for a header without `input_columns`. `encode` raises ModelContractError if
    outputs change their names or shapes within a part, and DataError for text that a dialect without
    quote and escape cannot express.
    """

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        header: bool = False,
        dialect: CsvDialect | None = None,
        input_columns: Sequence[str] | None = None,
        input_is_csv: bool = True,
    ) -> None:
        check_join(join)
        self._dialect = dialect or CsvDialect()
        self._columns = tuple(columns)
        self._joins_input = join == "input"
        self._input_is_csv = input_is_csv
        self._decimal_marks = bytes.maketrans(b",.", self._dialect.delimiter + self._dialect.decimal.encode())
        self._quotes_numbers = self._dialect.delimiter in _NUMBER_CHARACTERS
        widths = [row_width(column) for column in self._columns]
        self._writes_one_cell = not self._joins_input and sum(widths) == 1
        self._joiner = RecordJoiner(b"", self._dialect.delimiter if sum(widths) else b"", b"\n")
        self._header = self._header_line(input_columns) if header else b""

    @override
    def begin(self) -> bytes:
        return self._header

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        rows, arrays = check_outputs(self._columns, selections, outputs)
        if not rows:
            return b""
        predictions = self._prediction_cells(arrays, rows)
        if not self._joins_input:
            return self._joiner.prediction_lines(predictions)
        text = selections_text(selections) if self._input_is_csv else None
        if text is not None:
            return self._joiner.join_text(text, predictions)
        return join_selections(selections, predictions, self._join_selection)

    def _header_line(self, input_columns: Sequence[str] | None) -> bytes:
        names = [name for column in self._columns for name in column_names(column)]
        if self._joins_input:
            if input_columns is None and self._input_is_csv:
                raise ConfigError(
                    "a header for joined records needs the names of the input columns: "
                    "read the input with its header, or write no header"
                )
            names = [*((INPUT,) if input_columns is None else input_columns), *names]
        if not names:
            return b""
        line = self._dialect.encode_record([text_bytes(name) for name in names])
        return (line or self._dialect.empty_cell) + b"\n"

    def _join_selection(self, selection: BlockSelection, predictions: Sequence[bytes]) -> bytes:
        text = selection_text(selection)
        if text is not None and (self._input_is_csv or not self._needs_quotes(text)):
            return self._joiner.join_text(text, predictions)
        records = raw_records(selection)
        if not self._input_is_csv:
            records = [self._dialect.encode_record([record]) for record in records]
        return self._joiner.join_records(records, predictions)

    def _needs_quotes(self, text: bytes) -> bool:
        """Return True if a text of several records needs quotes anywhere, apart from its line ends."""
        return self._dialect.needs_quotes(text.replace(b"\n", b""))

    def _prediction_cells(self, arrays: Sequence[Array], rows: int) -> Sequence[bytes]:
        """Return the predicted cells of each row, separated by delimiters."""
        columns = [
            self._text_cells(data) if is_text(data) else self._number_cells(data)
            for data in arrays
            if data.size
        ]
        if not columns:
            return [b""] * rows
        if len(columns) == 1:
            return columns[0]
        return list(map(self._dialect.delimiter.join, zip(*columns, strict=True)))

    def _number_cells(self, data: Array) -> list[bytes]:
        rows, width = len(data), data.size // len(data)
        if self._quotes_numbers:
            numbers = number_text(data.reshape(data.size), nonfinite_names=True)[1:-1].split(b",")
            decimal = self._dialect.decimal.encode()
            return self._join_cells([self._encode_cell(n.replace(b".", decimal)) for n in numbers], width)
        if width == 1:
            text = number_text(data.reshape(rows), nonfinite_names=True)[1:-1]
            return text.split(b",") if self._dialect.decimal == "." else self._lines(text, b",")
        text = number_text(data.reshape(rows, -1), nonfinite_names=True)[2:-2]
        if self._dialect.delimiter == b",":
            return text.split(b"],[")
        return self._lines(text, b"],[")

    def _lines(self, text: bytes, separator: bytes) -> list[bytes]:
        """Split numbers at `separator`, with delimiters for commas and decimal marks for points."""
        return text.replace(separator, b"\n").translate(self._decimal_marks).split(b"\n")

    def _encode_cell(self, cell: bytes) -> bytes:
        return self._dialect.encode_record([cell])

    def _join_cells(self, cells: list[bytes], width: int) -> list[bytes]:
        """Return the cells of each row, of which there are `width`, separated by delimiters."""
        if width == 1:
            return cells
        return list(map(self._dialect.delimiter.join, zip(*[iter(cells)] * width, strict=True)))

    def _text_cells(self, data: Array) -> list[bytes]:
        cells = [text_bytes(value) for value in data.ravel().tolist()]
        if self._dialect.needs_quotes(b"".join(cells)):
            cells = [self._encode_cell(cell) for cell in cells]
        if self._writes_one_cell:
            # An empty line would not be a record.
            return [cell or self._dialect.empty_cell for cell in cells]
        return self._join_cells(cells, len(cells) // len(data))


def column_names(column: TensorSpec) -> list[str]:
    """Return the names of the CSV columns of an output."""
    if column.shape is None or len(column.shape) == 1:
        return [column.name]
    return [f"{column.name}_{index}" for index in range(row_width(column))]


class TransformCsvEncoder(Encoder):
    """An encoder of the lines of `CsvEncoder`, reduced to the columns that `output_filter` selects.

    With ``join="input"`` a line is the record followed by its predictions, and the filter counts
    columns through both. Otherwise a line is the predictions alone. Cells keep their bytes,
    including quotes, and stand in the order of the filter. A line of one empty cell is written
    ``""``, because an empty line would not be a record. The filter ``$`` costs nothing. A filter
    that selects predictions only (``$[-1]``) never reads the records.

    The columns are resolved in each line by its own number of cells. Column names are those of the
    outputs (`column_names`). With a join, the names of the record's columns, `input_columns`, stand
    before them.

    Raises ConfigError where `CsvEncoder` does, for a filter that does not select columns, and for
    unknown names. Names in a join without `input_columns` are unknown. `encode` raises ConfigError
    with the number of columns if the filter selects a column beyond them.
    """

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        output_filter: JsonPath,
        header: bool = False,
        dialect: CsvDialect | None = None,
        input_columns: Sequence[str] | None = None,
        input_is_csv: bool = True,
    ) -> None:
        prediction_names = [name for column in columns for name in column_names(column)]
        if not input_is_csv and input_columns is None:
            input_columns = (INPUT,)
        input_names = input_columns if join == "input" else ()
        column_selection = output_filter.csv_columns(named=input_names is not None)
        self._names = None if input_names is None else (*input_names, *prediction_names)
        if column_selection is not None and self._names is not None:
            _column_indices(column_selection, len(self._names), self._names)
        if (
            column_selection is not None
            and join == "input"
            and _keeps_predictions_only(column_selection, prediction_names)
        ):
            # The names were checked above, so none of these predictions shares its name with a
            # column of the records.
            join, self._names = "none", tuple(prediction_names)
        self._column_selection = (
            None if column_selection is not None and column_selection.is_all else column_selection
        )
        if self._column_selection is not None and join == "none":
            selected = _column_indices(self._column_selection, len(prediction_names), self._names)
            if selected == tuple(range(len(prediction_names))):
                self._column_selection = None
        self._dialect = dialect or CsvDialect()
        self._scanner = record_scanner(self._dialect)
        self._encoder = CsvEncoder(
            columns,
            join=join,
            header=header,
            dialect=dialect,
            input_columns=input_columns,
            input_is_csv=input_is_csv,
        )

    @override
    def begin(self) -> bytes:
        line = self._encoder.begin()
        return (
            line
            if self._column_selection is None or not line
            else self._filter_lines(self._column_selection, line, 1)
        )

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        text = self._encoder.encode(selections, outputs)
        if self._column_selection is None or not text:
            return text
        return self._filter_lines(self._column_selection, text, sum(map(len, selections)))

    def _filter_lines(self, column_selection: ColumnSelection, text: bytes, lines: int) -> bytes:
        ends, _ = self._scanner.scan(text, QUOTE_MAY_OPEN)
        if len(ends) != lines:
            raise DataError(
                f"the output filter found {len(ends)} CSV lines for {lines} records: a record has "
                "an unclosed quote, or is not CSV; correct the record, or omit the filter"
            )
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        rows = TextRows(text, starts, ends)
        width = len(self._dialect.cells(rows.row(0)))
        indices = _column_indices(column_selection, width, self._names)
        bounds = np.searchsorted(ends, np.arange(_PART_BYTES, len(text), _PART_BYTES)).tolist()
        parts = [
            self._filter_rows(column_selection, rows.slice(start, stop), width, indices)
            for start, stop in pairwise(dict.fromkeys([0, *bounds, lines]))
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _filter_rows(
        self, column_selection: ColumnSelection, rows: TextRows, width: int, indices: tuple[int, ...]
    ) -> bytes:
        grid = cell_grid(rows, self._dialect, width)
        if grid.ragged:
            # The grid cannot hold records of several widths.
            return self._filter_each_row(column_selection, rows)
        selected = select_columns(grid, indices, self._dialect.delimiter)
        if len(indices) > 1 or (selected.starts < selected.ends).all():
            return selected.data
        return self._join_lines(selected.texts(np.arange(len(selected))))

    def _filter_each_row(self, column_selection: ColumnSelection, rows: TextRows) -> bytes:
        lines: list[bytes] = []
        for text in rows.texts(np.arange(len(rows))):
            cells = self._dialect.raw_cells(text)
            selected = _column_indices(column_selection, len(cells), self._names)
            lines.append(self._dialect.delimiter.join([cells[index] for index in selected]))
        return self._join_lines(lines)

    def _join_lines(self, texts: Sequence[bytes]) -> bytes:
        """Return the texts as lines; an empty text becomes ``""``, since an empty line is not a record."""
        return b"".join([(text or self._dialect.empty_cell) + b"\n" for text in texts])


def _column_indices(
    column_selection: ColumnSelection, width: int, names: Sequence[str] | None
) -> tuple[int, ...]:
    try:
        return column_selection.indices(width, names)
    except ValueError as error:
        raise ConfigError(f"the output filter does not match the output: {error}") from None


def _keeps_predictions_only(column_selection: ColumnSelection, prediction_names: Sequence[str]) -> bool:
    """Return True if the filter selects only predictions, independent of the records."""
    if column_selection.names:
        return set(column_selection.names) <= set(prediction_names)
    return column_selection.is_within_last(len(prediction_names))
