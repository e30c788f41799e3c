"""The mapping of CSV records to model inputs: one matrix, or one input for each column.

Mismatches are found before the first call: too few columns, a file with more columns than the model
takes, text for a numeric model.
"""

import csv
from typing import Any, Final

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.json_path import ColumnSelection, JsonPath
from headrace.runs.sequence_mapping import other_columns
from headrace.runs.settings import MappingOptions

FIRST_RECORDS: Final = 100
"""The number of first records; if none of them fits the model, the run is refused."""


def one_input(metadata: ModelMetadata, what: str) -> TensorSpec:
    """Return the model's only input, for `what`. Raise ModelInputError if the model has several."""
    inputs = metadata.inputs
    if len(inputs) == 1:
        return inputs[0]
    if not inputs:
        return TensorSpec("x", "FP32")
    names = ", ".join(i.name for i in inputs)
    raise ModelInputError(metadata.name, f"{what} is one input, but the model has several: {names}")


class CsvMapping:
    """The choice of the decoder of CSV records for one model.

    `learned` receives what the first records decide: their delimiter, column names and number of
    columns.
    """

    def __init__(
        self,
        metadata: ModelMetadata,
        mapping: MappingOptions,
        input_filter: JsonPath,
        learned: dict[str, Any],
    ) -> None:
        self._metadata = metadata
        self._mapping = mapping
        self._filter = input_filter
        self._learned = learned

    @property
    def names(self) -> tuple[str, ...] | None:
        """The column names of the source, once a header is known."""
        names: list[str] | None = self._learned.get("column_names")
        return None if names is None else tuple(names)

    def decoder(self, block: Block, delimiter: str) -> CsvMatrixDecoder | CsvColumnsDecoder:
        """Return a decoder for the records of this layout; `block` has the first of them."""
        decoder = self._choose(block, delimiter)
        self.learn(block, delimiter)
        if self.names:
            # In a resumed run, the header of another file must not replace the decision of the
            # first file.
            decoder.bind(self.names)
        return decoder

    def learn(self, block: Block, delimiter: str) -> None:
        """Learn the delimiter and the column names of the first records."""
        self._learned.setdefault("delimiter", delimiter)
        if block.column_names and "column_names" not in self._learned:
            self._learned["column_names"] = list(block.column_names)

    def _choose(self, block: Block, delimiter: str) -> CsvMatrixDecoder | CsvColumnsDecoder:
        inputs, columns = self._metadata.inputs, self._mapping.columns
        input_selection = self._filter.csv_columns(named=bool(self.names or block.column_names))
        if self._mapping.text_column is not None:
            name = one_input(self._metadata, "--text-column").name
            return CsvColumnsDecoder(
                {name: (self._mapping.text_column, "text")},
                input_selection=input_selection,
                width=self.width(block, delimiter),
                delimiter=delimiter,
            )
        if len(inputs) <= 1 and not _is_single_column(one_input(self._metadata, "CSV")):
            return self._matrix(block, delimiter, input_selection)
        return self._columns(inputs, columns, block, delimiter, input_selection)

    def _matrix(
        self, block: Block, delimiter: str, input_selection: ColumnSelection | None
    ) -> CsvMatrixDecoder:
        spec = one_input(self._metadata, "CSV")
        if spec.datatype == "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes text: choose its column with --text-column",
            )
        takes = spec.shape[1] if spec.shape is not None and len(spec.shape) == 2 else -1
        columns = self._mapping.columns or self._non_sequence_columns(block, delimiter, input_selection)
        if columns:
            if takes not in (-1, len(columns)):
                what = (
                    "--columns names" if self._mapping.columns else "without the sequence columns there are"
                )
                raise ModelInputError(
                    self._metadata.name,
                    f"input {spec.name!r} takes {takes} numbers per record, but {what} {len(columns)}",
                )
            width = self.width(block, delimiter)
        elif takes == -1:
            width = self.width(block, delimiter)
        else:
            width = self._learned.get("csv_width")
            if input_selection is not None:
                width = width or self._width_for_filter(input_selection, spec, takes, block, delimiter)
            elif width is None:
                self._check_width(spec, block, takes, delimiter)
            width = self._learned["csv_width"] = width or takes
        return CsvMatrixDecoder(
            spec.name,
            columns=columns or None,
            input_selection=input_selection,
            width=width,
            dtype=dtype_of(spec.datatype),
            delimiter=delimiter,
        )

    def _non_sequence_columns(
        self, block: Block, delimiter: str, input_selection: ColumnSelection | None
    ) -> tuple[str, ...] | tuple[int, ...]:
        """Return the columns that do not define sequences.

        The result is () without such columns, or if a filter selects the others.
        """
        if self._mapping.sequence is None or self._mapping.by_place or input_selection is not None:
            return ()
        names, width = self.names or block.column_names, self.width(block, delimiter)
        return other_columns(self._mapping, width, names, delimiter)

    def width(self, block: Block, delimiter: str) -> int:
        """Return the number of columns of a record: the header's, else that of the first record."""
        width: int | None = self._learned.get("csv_width")
        if width is None:
            names = block.column_names
            width = self._learned["csv_width"] = len(names) if names else _cells(block.record(0), delimiter)
        return width

    def _check_width(self, spec: TensorSpec, block: Block, width: int, delimiter: str) -> None:
        """Raise ModelInputError if no record has the number of columns that the model takes."""
        records = [block.record(i) for i in range(min(len(block), FIRST_RECORDS))]
        widths = [_cells(r, delimiter) for r in records]
        if width in widths:
            return
        names = f" ({', '.join(block.column_names)})" if block.column_names else ""
        raise ModelInputError(
            self._metadata.name,
            f"input {spec.name!r} takes {width} numbers per record, but the records from "
            f"{block.first} on have {widths[0]} columns{names}: choose {width} of them with "
            "--columns, or another --delimiter",
        )

    def _width_for_filter(
        self, input_selection: ColumnSelection, spec: TensorSpec, takes: int, block: Block, delimiter: str
    ) -> int:
        """Return the number of columns of records of which the filter keeps the model's number."""
        names = block.column_names
        why = ""
        widths = [_cells(block.record(i), delimiter) for i in range(min(len(block), FIRST_RECORDS))]
        for width in dict.fromkeys([len(names)] if names else widths):
            try:
                kept = len(input_selection.indices(width, names))
            except ValueError as error:
                why = why or str(error)
                continue
            if kept == takes:
                return width
            why = why or f"{input_selection.text} selects {kept} of {width} columns"
        raise ModelInputError(
            self._metadata.name,
            f"input {spec.name!r} takes {takes} numbers per record, but the input filter selects "
            f"another number from the records from {block.first} on ({why}): select {takes} columns "
            "with it",
        )

    def _columns(
        self,
        inputs: tuple[TensorSpec, ...],
        columns: tuple[str | int, ...],
        block: Block,
        delimiter: str,
        input_selection: ColumnSelection | None,
    ) -> CsvColumnsDecoder:
        """Return a decoder for inputs of one column each.

        The columns are those of --columns in order, else by header name, else by position.
        """
        if columns and len(columns) != len(inputs):
            raise ModelInputError(
                self._metadata.name,
                f"it has {len(inputs)} inputs, but --columns names {len(columns)} columns",
            )
        chosen: list[str | int] = list(columns)
        if not chosen:
            names = self.names or block.column_names
            if names and input_selection is not None:
                names = _selected_names(input_selection, names)
            missing = [i.name for i in inputs if i.name not in names] if names else []
            if missing:
                raise ConfigError(
                    f"the header has no column {', '.join(map(repr, missing))} (it has "
                    f"{', '.join(names or ())}): choose the columns of the inputs with --columns, in "
                    "their order"
                )
            others = self._non_sequence_columns(block, delimiter, input_selection)
            chosen = (
                [i.name for i in inputs] if names else list((others or range(len(inputs)))[: len(inputs)])
            )
        wanted = {
            spec.name: (column, "text" if spec.datatype == "BYTES" else dtype_of(spec.datatype))
            for spec, column in zip(inputs, chosen, strict=True)
        }
        as_vectors = any(spec.shape is not None and len(spec.shape) == 2 for spec in inputs)
        return CsvColumnsDecoder(
            wanted,
            input_selection=input_selection,
            width=self.width(block, delimiter),
            delimiter=delimiter,
            as_column_vectors=as_vectors,
        )


def _is_single_column(spec: TensorSpec) -> bool:
    """Return True if an input takes one value per record: [n], or [n, 1] for text."""
    return spec.shape is not None and (
        len(spec.shape) == 1 or (spec.datatype == "BYTES" and len(spec.shape) == 2)
    )


def _cells(record: bytes, delimiter: str) -> int:
    """Return the number of cells of a record."""
    rows = list(csv.reader([record.decode("utf-8", "replace")], delimiter=delimiter))
    return len(rows[0]) if rows else 0


def _selected_names(input_selection: ColumnSelection, names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(names[index] for index in input_selection.indices(len(names), names))
    except ValueError as error:
        raise ConfigError(f"the input filter does not fit the header: {error}") from None
