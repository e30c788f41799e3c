"""The mapping of records to model inputs, by the model, the options and the first records.

Blocks become `DecodedBlock`s with tensors by input name. `CsvMapping` chooses the decoder for CSV: one
matrix, or one input for each column. The decoders for JSON, framed messages and Parquet are chosen in
`headrace.runs.field_mapping`. Mismatches are found before the first call: too few columns, a file with
more columns than the model takes, text for a numeric model.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.column_decode import ColumnDecoder
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.csv_decode import ColumnFinder, CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.json_path import ColumnSelection, JsonPath, compile_path
from headrace.formats.line import RawDecoder
from headrace.formats.read import ReadOptions, csv_dialect, format_name
from headrace.runs.field_mapping import (
    FIRST_RECORDS,
    FRAMED_KINDS,
    JsonMapping,
    ParquetMapping,
    framed_decoder,
)
from headrace.runs.items import RecordSequences
from headrace.runs.sequences import SequenceReader, drop_failed_records, sequence_reader, sequences_by_place
from headrace.runs.settings import MappingOptions

JSON_KINDS: Final = frozenset({"json", "jsonl"})
"""The formats of JSON text."""
_MEDIA_COLUMNS = ("image", "audio")
_FILTERED = frozenset({"csv", *JSON_KINDS})
"""The formats whose records an input filter supports."""


class Mapper:
    """A decoder of blocks of any format for one model.

    It selects a decoder at the first block of a format. `learned` has what the first records decide
    (number of columns, shape of a row). A resumed run receives it, so that it judges records as the
    original run did.
    """

    def __init__(
        self,
        metadata: ModelMetadata,
        mapping: MappingOptions,
        read: ReadOptions,
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        self._metadata = metadata
        self._mapping = self.options = mapping
        self._filter = compile_path(mapping.input_filter, slice_end=mapping.slice_end)
        self._read = read
        self._decoders: dict[tuple[str, CsvDialect | None], Decoder] = {}
        self._sequence_readers: dict[tuple[str, CsvDialect | None], SequenceReader] = {}
        self.learned: dict[str, Any] = dict(learned or {})
        self._csv = CsvMapping(metadata, mapping, self._filter, self.learned)

    @property
    def kind(self) -> str | None:
        """The format of the first records."""
        return self.learned.get("format")

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """The column names of the source, once a header is known."""
        return self._csv.names

    @property
    def dialect(self) -> CsvDialect:
        """The dialect of the first CSV records."""
        return csv_dialect("", self._read, delimiter=self.learned.get("delimiter"))

    def decode(self, block: Block) -> DecodedBlock:
        """Return the records of a block as tensors.

        Raises:
            ConfigError: The options can never fit the records.
            ModelInputError: The records can never fit the model.
        """
        if not len(block):
            return DecodedBlock({})
        kind, dialect = self.layout_of(block)
        decoder = self._decoders.get((kind, dialect))
        if decoder is None:
            self.learned.setdefault("format", kind)
            decoder = self._decoders[kind, dialect] = self._choose(kind, dialect, block)
        return decoder.decode(block)

    def decode_steps(self, block: Block) -> tuple[DecodedBlock, RecordSequences | None]:
        """Return the decoded block and, with sequence options, the sequence of each record.

        Records without a sequence become failures.
        """
        decoded = self.decode(block)
        if self._mapping.sequence is None:
            return decoded, None
        sequences = self._sequences(block)
        return drop_failed_records(block, decoded, sequences.failures), sequences

    def _sequences(self, block: Block) -> RecordSequences:
        if self._mapping.by_place or not len(block):
            return sequences_by_place(block, self._mapping)
        layout = self.layout_of(block)
        reader = self._sequence_readers.get(layout)
        if reader is None:
            kind, dialect = layout
            width = None if dialect is None else self._csv.width(block, dialect)
            reader = sequence_reader(self._mapping, block, kind, dialect, width=width, names=self.input_names)
            self._sequence_readers[layout] = reader
        return reader(block)

    def layout_of(self, block: Block) -> tuple[str, CsvDialect | None]:
        """Return the format of a block's records, and for CSV their dialect."""
        name = block.first.member or block.first.object
        kind = format_name(name, self._read) or "whole"
        # The columns of a Parquet file may have these names.
        for column in _MEDIA_COLUMNS if kind != "parquet" else ():
            if column in block.columns:
                return column, None
        return kind, csv_dialect(name, self._read) if kind == "csv" else None

    def _choose(self, kind: str, dialect: CsvDialect | None, block: Block) -> Decoder:
        if kind not in _FILTERED and not self._filter.is_root:
            raise ConfigError(
                f"the input filter {self._filter.text} needs CSV or JSON records, but "
                f"{block.first.object} is read as {kind}: remove the filter, or set the format with "
                "--format (of a transform: --split)"
            )
        if kind in _MEDIA_COLUMNS:
            return self._media(kind)
        if self._mapping.whole_records and kind in _FILTERED and self._takes_text():
            return self._text_records(dialect, block)
        if dialect is not None:
            return self._csv.decoder(block, dialect)
        if kind in JSON_KINDS:
            select = None if self._filter.is_root else self._filter.value
            encoding = self._read.encoding
            return JsonMapping(self._metadata, self._mapping, select, self.learned, encoding).decoder(block)
        if kind == "line":
            return self._line()
        if kind == "parquet":
            return ParquetMapping(self._metadata, self._mapping, self.learned, block).decoder()
        if kind in FRAMED_KINDS:
            return framed_decoder(kind, self._metadata, self._mapping, self.learned, block)
        return RawDecoder(self._metadata.only_input("a whole object").name, text=False)

    def _takes_text(self) -> bool:
        """Return True if the model has one text input and no column is selected for it."""
        inputs, mapping = self._metadata.inputs, self._mapping
        chosen = mapping.columns or mapping.text_column is not None
        return len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen

    def _text_records(self, dialect: CsvDialect | None, block: Block) -> Decoder:
        """Return a decoder of CSV and JSON records as text, or of what the input filter selects."""
        if dialect is not None:
            self._csv.learn(block, dialect)
            select = self._cells_of(dialect)
        else:
            select = self._json_of
        spec = self._metadata.only_input("a record")
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(
            spec.name,
            text=as_text,
            encoding=self._read.encoding,
            as_column_vector=_takes_column_vector(spec),
            select=select,
        )

    def _cells_of(self, dialect: CsvDialect) -> Callable[[bytes], bytes] | None:
        names = self.input_names
        columns = self._filter.csv_columns(named=names is not None)
        if columns is None:
            return None

        def select(record: bytes) -> bytes:
            cells = dialect.raw_cells(record)
            return dialect.delimiter.join([cells[i] for i in columns.indices(len(cells), names)])

        return select

    def _json_of(self, record: bytes) -> bytes:
        try:
            orjson.loads(record)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        return self._filter.raw(record)

    def _line(self) -> Decoder:
        spec = self._metadata.only_input("a line")
        if self._metadata.inputs and spec.datatype != "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes {spec.datatype}, but a line is text: for lines of numbers set "
                "--format (of a transform: --split) to csv or jsonl",
            )
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(
            spec.name,
            text=as_text,
            encoding=self._read.encoding,
            as_column_vector=_takes_column_vector(spec),
        )

    def _media(self, kind: str) -> Decoder:
        spec = self._metadata.only_input(f"{kind} data")
        return ColumnDecoder(self._metadata.name, spec, kind, scale=self._mapping.image_scale)


def _takes_column_vector(spec: TensorSpec) -> bool:
    """Return True if an input of one value per record is [n, 1] rather than [n]."""
    return spec.shape is not None and len(spec.shape) == 2


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

    def decoder(self, block: Block, dialect: CsvDialect) -> CsvMatrixDecoder | CsvColumnsDecoder:
        """Return a decoder for the records of this layout; `block` has the first of them."""
        decoder = self._choose(block, dialect)
        self.learn(block, dialect)
        if self.names:
            # In a resumed run, the header of another file must not replace the decision of the
            # first file.
            decoder.bind(self.names)
        return decoder

    def learn(self, block: Block, dialect: CsvDialect) -> None:
        """Learn the delimiter and the column names of the first records."""
        self._learned.setdefault("delimiter", dialect.delimiter.decode())
        if block.column_names and "column_names" not in self._learned:
            self._learned["column_names"] = list(block.column_names)

    def _choose(self, block: Block, dialect: CsvDialect) -> CsvMatrixDecoder | CsvColumnsDecoder:
        inputs, columns = self._metadata.inputs, self._mapping.columns
        input_selection = self._filter.csv_columns(named=bool(self.names or block.column_names))
        if self._mapping.text_column is not None:
            name = self._metadata.only_input("--text-column").name
            return CsvColumnsDecoder(
                {name: (self._mapping.text_column, "text")},
                input_selection=input_selection,
                width=self.width(block, dialect),
                dialect=dialect,
            )
        if len(inputs) <= 1 and not _is_single_column(self._metadata.only_input("CSV")):
            return self._matrix(block, dialect, input_selection)
        return self._columns(inputs, columns, block, dialect, input_selection)

    def _matrix(
        self, block: Block, dialect: CsvDialect, input_selection: ColumnSelection | None
    ) -> CsvMatrixDecoder:
        spec = self._metadata.only_input("CSV")
        if spec.datatype == "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes text: choose its column with --text-column",
            )
        takes = spec.shape[1] if spec.shape is not None and len(spec.shape) == 2 else -1
        columns = self._mapping.columns or self._non_sequence_columns(block, dialect, input_selection)
        if columns:
            if takes not in (-1, len(columns)):
                what = (
                    "--columns names" if self._mapping.columns else "without the sequence columns there are"
                )
                raise ModelInputError(
                    self._metadata.name,
                    f"input {spec.name!r} takes {takes} numbers per record, but {what} {len(columns)}",
                )
            width = self.width(block, dialect)
        elif takes == -1:
            width = self.width(block, dialect)
        else:
            width = self._learned.get("csv_width")
            if input_selection is not None:
                width = width or self._width_for_filter(input_selection, spec, takes, block, dialect)
            elif width is None:
                self._check_width(spec, block, takes, dialect)
            width = self._learned["csv_width"] = width or takes
        return CsvMatrixDecoder(
            spec.name,
            columns=columns or None,
            input_selection=input_selection,
            width=width,
            dtype=dtype_of(spec.datatype),
            dialect=dialect,
        )

    def _non_sequence_columns(
        self, block: Block, dialect: CsvDialect, input_selection: ColumnSelection | None
    ) -> tuple[str, ...] | tuple[int, ...]:
        """Return the columns that do not define sequences.

        The result is () without such columns, or if a filter selects the others.
        """
        if self._mapping.sequence is None or self._mapping.by_place or input_selection is not None:
            return ()
        names, width = self.names or block.column_names, self.width(block, dialect)
        return other_columns(self._mapping, width, names, dialect)

    def width(self, block: Block, dialect: CsvDialect) -> int:
        """Return the number of columns of a record: the header's, else that of the first record."""
        width: int | None = self._learned.get("csv_width")
        if width is None:
            names = block.column_names
            width = self._learned["csv_width"] = len(names) if names else len(dialect.cells(block.record(0)))
        return width

    def _check_width(self, spec: TensorSpec, block: Block, width: int, dialect: CsvDialect) -> None:
        """Raise ModelInputError if no record has the number of columns that the model takes."""
        records = [block.record(i) for i in range(min(len(block), FIRST_RECORDS))]
        widths = [len(dialect.cells(r)) for r in records]
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
        self,
        input_selection: ColumnSelection,
        spec: TensorSpec,
        takes: int,
        block: Block,
        dialect: CsvDialect,
    ) -> int:
        """Return the number of columns of records of which the filter keeps the model's number."""
        names = block.column_names
        why = ""
        widths = [len(dialect.cells(block.record(i))) for i in range(min(len(block), FIRST_RECORDS))]
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
        dialect: CsvDialect,
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
            others = self._non_sequence_columns(block, dialect, input_selection)
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
            width=self.width(block, dialect),
            dialect=dialect,
            as_column_vectors=as_vectors,
        )


def other_columns(
    mapping: MappingOptions, width: int, names: tuple[str, ...] | None, dialect: CsvDialect
) -> tuple[str, ...] | tuple[int, ...]:
    """Return the CSV columns that do not define sequences: by name if a header has unique names.

    Another file may have the columns in another order.

    Raises:
        ConfigError: A column that defines sequences does not exist.
    """
    sequence_columns = [c for c in (mapping.sequence, mapping.sequence_end) if c is not None]
    excluded = ColumnFinder(sequence_columns, width, dialect).bind(names).indices
    remaining = tuple(index for index in range(width) if index not in excluded)
    if names is not None and len(set(names)) == width:
        return tuple(names[index] for index in remaining)
    return remaining


def _is_single_column(spec: TensorSpec) -> bool:
    """Return True if an input takes one value per record: [n], or [n, 1] for text."""
    return spec.shape is not None and (
        len(spec.shape) == 1 or (spec.datatype == "BYTES" and len(spec.shape) == 2)
    )


def _selected_names(input_selection: ColumnSelection, names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(names[index] for index in input_selection.indices(len(names), names))
    except ValueError as error:
        raise ConfigError(f"the input filter does not fit the header: {error}") from None
