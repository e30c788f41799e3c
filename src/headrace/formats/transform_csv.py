"""Predictions as CSV with an output filter: selected columns of the record and of its predictions."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
from typing_extensions import override

from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.csv import QuoteScanner
from headrace.formats.csv_cells import CsvDialect, TextRows, cell_grid, select_columns
from headrace.formats.csv_encode import CsvEncoder, column_names
from headrace.formats.csv_selection import ColumnSelection
from headrace.formats.encode import INPUT, Join
from headrace.formats.json_path import JsonPath
from headrace.formats.lines import QUOTE_MAY_OPEN

_PART_BYTES = 1 << 20
"""The approximate size of text filtered at once: each kept byte needs an offset of eight bytes."""


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

    suffix: ClassVar[str] = ".csv"

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        output_filter: JsonPath,
        header: bool = False,
        delimiter: str = ",",
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
        self._dialect = CsvDialect.from_strings(delimiter, '"')
        self._scanner = QuoteScanner(self._dialect)
        self._encoder = CsvEncoder(
            columns,
            join=join,
            header=header,
            delimiter=delimiter,
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

    @override
    def finish(self) -> bytes:
        return b""

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
        if grid.ragged or grid.data is not rows.data:
            # The grid cannot hold records of several widths, and rewrites records with stray
            # quotes.
            return self._filter_each_row(column_selection, rows)
        selected = select_columns(grid, indices, self._dialect.delimiter)
        if len(indices) > 1 or (selected.starts < selected.ends).all():
            return selected.data
        return _join_lines(selected.texts(np.arange(len(selected))))

    def _filter_each_row(self, column_selection: ColumnSelection, rows: TextRows) -> bytes:
        lines: list[bytes] = []
        for text in rows.texts(np.arange(len(rows))):
            cells = self._dialect.raw_cells(text)
            selected = _column_indices(column_selection, len(cells), self._names)
            lines.append(self._dialect.delimiter.join([cells[index] for index in selected]))
        return _join_lines(lines)


def _join_lines(texts: Sequence[bytes]) -> bytes:
    """Return the texts as lines; an empty text becomes ``""``, since an empty line is not a record."""
    return b"".join([(text or b'""') + b"\n" for text in texts])


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
