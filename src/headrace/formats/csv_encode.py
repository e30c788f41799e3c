"""Predictions as CSV (RFC 4180, but lines end with LF), alone or behind the records that they belong to."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import Piece
from headrace.formats.csv_cells import Dialect
from headrace.formats.encode import (
    INPUT,
    Join,
    check_join,
    checked_outputs,
    is_text,
    number_text,
    row_width,
    text_bytes,
)
from headrace.formats.weave import Weave, one_text, plain_text, raw_records, woven


class CsvEncoder:
    r"""One line a record: with ``join="input"`` the record's own bytes as they came, then the predictions.

    A scalar output is one column of its name; one of k values a row is k columns, ``NAME_0`` to ``NAME_{k-1}``
    (of more dimensions: flattened, last axis fastest). Numbers are in the fewest digits that read back to the
    same value of their dtype; what is not finite is ``nan``, ``inf`` or ``-inf``; booleans are ``true`` and
    ``false``. Strings are UTF-8 (a lone surrogate becomes its ``\uXXXX``), bytes are written as they are, None is
    empty, other objects are their JSON text; all quoted only where they must be.

    `columns` is what `output_columns` says of the part's first outputs. With `header` every part starts with a
    line of names; joined, that takes the records' own, `input_columns`. A record that is no CSV
    (`input_is_csv` false) is joined as one quoted field, called ``input`` unless `input_columns` says otherwise.

    Raises ConfigError for a header without `input_columns`, or a delimiter that is not one ASCII character;
    `encode` raises ModelContractError when outputs change their names or shapes within a part.
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
        self._dialect = Dialect.of(delimiter, '"')
        self._columns = tuple(columns)
        self._joined = join == "input"
        self._input_is_csv = input_is_csv
        self._special = re.compile(b'[%b"\r\n]' % re.escape(self._dialect.delimiter))
        widths = [row_width(column) for column in self._columns]
        self._single = not self._joined and sum(widths) == 1
        self._weave = Weave(b"", self._dialect.delimiter if sum(widths) else b"", b"\n")
        self._header = self._header_line(input_columns) if header else b""

    def begin(self) -> bytes:
        """The header line, or nothing."""
        return self._header

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """The records' lines."""
        rows, arrays = checked_outputs(self._columns, pieces, outputs)
        if not rows:
            return b""
        predictions = self._predictions(arrays, rows)
        if not self._joined:
            return self._weave.lines(predictions)
        text = plain_text(pieces) if self._input_is_csv else None
        if text is not None:
            return self._weave.into_text(text, predictions)
        return woven(pieces, predictions, self._join)

    def finish(self) -> bytes:
        """Nothing."""
        return b""

    def _header_line(self, input_columns: Sequence[str] | None) -> bytes:
        names = [name for column in self._columns for name in column_names(column)]
        if self._joined:
            if input_columns is None and self._input_is_csv:
                raise ConfigError(
                    "a header over joined records needs the names of the input's columns: "
                    "take them from the input's own header, or write none"
                )
            names = [*((INPUT,) if input_columns is None else input_columns), *names]
        if not names:
            return b""
        line = self._dialect.encoded([text_bytes(name) for name in names])
        return (line or b'""') + b"\n"

    def _join(self, piece: Piece, predictions: Sequence[bytes]) -> bytes:
        text = one_text(piece)
        if text is not None and (self._input_is_csv or not self._quotes(text)):
            return self._weave.into_text(text, predictions)
        records = raw_records(piece)
        if not self._input_is_csv:
            records = [self._dialect.encoded([record]) for record in records]
        return self._weave.into_records(records, predictions)

    def _quotes(self, text: bytes) -> bool:
        """Whether a text of several records has anything that needs quoting, line ends aside."""
        return self._dialect.delimiter in text or self._dialect.quote in text or b"\r" in text

    def _predictions(self, arrays: Sequence[Array], rows: int) -> Sequence[bytes]:
        """Each row's predicted cells with delimiters between them."""
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
        if self._special.search(b"".join(cells)):
            cells = [self._dialect.encoded([cell]) for cell in cells]
        if self._single:
            # An empty line would be no record.
            return [cell or b'""' for cell in cells]
        width = len(cells) // len(data)
        if width == 1:
            return cells
        return list(map(self._dialect.delimiter.join, zip(*[iter(cells)] * width, strict=True)))


def column_names(column: TensorSpec) -> list[str]:
    """The names of an output's CSV columns."""
    if column.shape is None or len(column.shape) == 1:
        return [column.name]
    return [f"{column.name}_{index}" for index in range(row_width(column))]
