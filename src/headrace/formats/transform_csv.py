"""Predictions as CSV, with a filter over the joined record: of a record's cells and its predictions', some columns."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import Piece
from headrace.formats.csv import QuoteScanner
from headrace.formats.csv_cells import Dialect, Rows, cell_grid, narrowed
from headrace.formats.csv_encode import CsvEncoder, column_names
from headrace.formats.csv_selection import ColumnSelection
from headrace.formats.encode import INPUT, Join
from headrace.formats.json_path import JsonPath
from headrace.formats.lines import OPENABLE

_CUT_BYTES = 1 << 20
"""About how much text is cut at once: an offset for each byte that is kept is eight times as large."""


class TransformCsvEncoder:
    """`CsvEncoder`'s lines, less the columns that `output_filter` does not keep.

    With ``join="input"`` a line is the record and its predictions behind it, and the filter counts columns through
    both; else it is the predictions alone. Cells keep their bytes, quotes and all, and stand in the order asked for;
    a line of one empty cell is written ``""``, since an empty line would be no record. ``$`` costs nothing, and of a
    filter that keeps predictions alone (``$[-1]``) the records are never looked at.

    The filter's columns are found in each line by its own number of cells. Names are those of the outputs
    (`column_names`) and, joined, before them the records' own, `input_columns`.

    Raises ConfigError where `CsvEncoder` does, for a filter that is no path to columns, and for names that nothing
    has or, joined without `input_columns`, that nothing can tell. `encode` raises ConfigError, naming how many
    columns there are, when the filter asks for one beyond them.
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
        predicted = [name for column in columns for name in column_names(column)]
        if not input_is_csv and input_columns is None:
            input_columns = (INPUT,)
        before = input_columns if join == "input" else ()
        selection = output_filter.csv_columns(named=before is not None)
        self._names = None if before is None else (*before, *predicted)
        if selection is not None and self._names is not None:
            _indices(selection, len(self._names), self._names)
        if selection is not None and join == "input" and _is_predicted(selection, predicted):
            # Checked above, so no record has a column of these names: what stands before is not asked for.
            join, self._names = "none", tuple(predicted)
        self._selection = None if selection is not None and selection.is_all else selection
        if self._selection is not None and join == "none":
            kept = _indices(self._selection, len(predicted), self._names)
            if kept == tuple(range(len(predicted))):
                self._selection = None
        self._dialect = Dialect.of(delimiter, '"')
        self._scanner = QuoteScanner(self._dialect)
        self._encoder = CsvEncoder(
            columns,
            join=join,
            header=header,
            delimiter=delimiter,
            input_columns=input_columns,
            input_is_csv=input_is_csv,
        )

    def begin(self) -> bytes:
        """The header line, with the names of the columns that are kept, or nothing."""
        line = self._encoder.begin()
        return line if self._selection is None or not line else self._cut(self._selection, line, 1)

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """The records' lines."""
        text = self._encoder.encode(pieces, outputs)
        if self._selection is None or not text:
            return text
        return self._cut(self._selection, text, sum(map(len, pieces)))

    def finish(self) -> bytes:
        """Nothing."""
        return b""

    def _cut(self, selection: ColumnSelection, text: bytes, lines: int) -> bytes:
        ends, _ = self._scanner.scan(text, OPENABLE)
        if len(ends) != lines:
            raise DataError(
                f"the output filter found {len(ends)} lines of CSV where {lines} records were written: a record has a "
                "quote that never closes, or is no CSV; leave the filter out, or correct the record"
            )
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        rows = Rows(text, starts, ends)
        width = len(self._dialect.cells(rows.row(0)))
        indices = _indices(selection, width, self._names)
        bounds = np.searchsorted(ends, np.arange(_CUT_BYTES, len(text), _CUT_BYTES)).tolist()
        parts = [
            self._cut_rows(selection, rows.slice(start, stop), width, indices)
            for start, stop in pairwise(dict.fromkeys([0, *bounds, lines]))
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _cut_rows(
        self, selection: ColumnSelection, rows: Rows, width: int, indices: tuple[int, ...]
    ) -> bytes:
        grid = cell_grid(rows, self._dialect, width)
        if grid.ragged or grid.data is not rows.data:
            # Records of several widths, or with stray quotes, which the grid writes anew.
            return self._cut_each(selection, rows)
        kept = narrowed(grid, indices, self._dialect.delimiter)
        if len(indices) > 1 or (kept.starts < kept.ends).all():
            return kept.data
        return _lines(kept.texts(np.arange(len(kept))))

    def _cut_each(self, selection: ColumnSelection, rows: Rows) -> bytes:
        lines: list[bytes] = []
        for text in rows.texts(np.arange(len(rows))):
            cells = self._dialect.raw_cells(text)
            kept = _indices(selection, len(cells), self._names)
            lines.append(self._dialect.delimiter.join([cells[index] for index in kept]))
        return _lines(lines)


def _lines(texts: Sequence[bytes]) -> bytes:
    """Lines, none of them empty: that would be no record."""
    return b"".join([(text or b'""') + b"\n" for text in texts])


def _indices(selection: ColumnSelection, width: int, names: Sequence[str] | None) -> tuple[int, ...]:
    try:
        return selection.indices(width, names)
    except ValueError as error:
        raise ConfigError(f"the output filter does not fit what is written: {error}") from None


def _is_predicted(selection: ColumnSelection, predicted: Sequence[str]) -> bool:
    """Whether it keeps predictions alone, whatever the records are."""
    if selection.names:
        return set(selection.names) <= set(predicted)
    return selection.is_within_last(len(predicted))
