"""Predictions as CSV (RFC 4180, but lines end with LF), alone or after the records they belong to."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.csv_cells import CsvDialect
from headrace.formats.encode import (
    INPUT,
    Join,
    check_join,
    check_outputs,
    is_text,
    number_text,
    row_width,
    text_bytes,
)
from headrace.formats.record_joiner import (
    RecordJoiner,
    join_selections,
    raw_records,
    selection_text,
    selections_text,
)


class CsvEncoder(Encoder):
    r"""An encoder of one CSV line per record.

    With ``join="input"``, the record's own bytes stand before the predictions. A scalar output is
    one column with the output's name. An output of k values per row is k columns, ``NAME_0`` to
    ``NAME_{k-1}`` (with more dimensions: flattened, last axis fastest).

    Numbers have the fewest digits that read back to the same value of their dtype. Numbers that are
    not finite are ``nan``, ``inf`` or ``-inf``; booleans are ``true`` and ``false``. Strings are
    UTF-8 (a lone surrogate becomes its ``\uXXXX``), bytes are unchanged, None is empty, and other
    objects are their JSON text. Cells are quoted only where necessary.

    `columns` is the result of `output_columns` for the first outputs of the part. With `header`,
    every part starts with a line of names. With a join, the header needs the column names of the
    records, `input_columns`. Records that are not CSV (`input_is_csv` false) are joined as one
    quoted field, named ``input`` unless `input_columns` names it.

    Raises ConfigError for a header without `input_columns`, or a delimiter that is not one ASCII
    character. `encode` raises ModelContractError if outputs change their names or shapes within a
    part.
    """

    suffix: ClassVar[str] = ".csv"

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        header: bool = False,
        delimiter: str = ",",
        input_columns: Sequence[str] | None = None,
        input_is_csv: bool = True,
    ) -> None:
        check_join(join)
        self._dialect = CsvDialect.from_strings(delimiter, '"')
        self._columns = tuple(columns)
        self._joins_input = join == "input"
        self._input_is_csv = input_is_csv
        self._special_bytes = re.compile(b'[%b"\r\n]' % re.escape(self._dialect.delimiter))
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

    @override
    def finish(self) -> bytes:
        return b""

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
        return (line or b'""') + b"\n"

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
        return self._dialect.delimiter in text or self._dialect.quote in text or b"\r" in text

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
        rows = len(data)
        if data.size == rows:
            return number_text(data.reshape(rows), nonfinite_names=True)[1:-1].split(b",")
        text = number_text(data.reshape(rows, -1), nonfinite_names=True)[2:-2]
        if self._dialect.delimiter == b",":
            return text.split(b"],[")
        return text.replace(b"],[", b"\n").replace(b",", self._dialect.delimiter).split(b"\n")

    def _text_cells(self, data: Array) -> list[bytes]:
        cells = [text_bytes(value) for value in data.ravel().tolist()]
        if self._special_bytes.search(b"".join(cells)):
            cells = [self._dialect.encode_record([cell]) for cell in cells]
        if self._writes_one_cell:
            # An empty line would not be a record.
            return [cell or b'""' for cell in cells]
        width = len(cells) // len(data)
        if width == 1:
            return cells
        return list(map(self._dialect.delimiter.join, zip(*[iter(cells)] * width, strict=True)))


def column_names(column: TensorSpec) -> list[str]:
    """Return the names of the CSV columns of an output."""
    if column.shape is None or len(column.shape) == 1:
        return [column.name]
    return [f"{column.name}_{index}" for index in range(row_width(column))]
