"""The mapping of records to model inputs, by the model, the options and the schema of the records.

Blocks become `DecodedBlock`s with tensors by input name. `CsvMapping` chooses the decoder for CSV: one
matrix, or one input for each column. The decoders for JSON, framed messages and tables are chosen in
`headrace.runs.field_mapping`. Mismatches are found before the first call: too few columns, a file with
more columns than the model takes, text for a numeric model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

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
from headrace.formats.read import csv_dialect, format_name
from headrace.formats.read_options import TABLE_FORMATS, V2, WEBDATASET, ReadOptions
from headrace.runs.field_mapping import TableMapping, framed_decoder, json_decoder, takes_column_vector
from headrace.runs.infer import (
    FRAMED_KINDS,
    JSON_KINDS,
    infer_csv,
    infer_json,
    infer_messages,
    infer_requests,
    infer_table,
    infer_webdataset,
)
from headrace.runs.items import RecordSequences
from headrace.runs.schema import RecordSchema, Schema
from headrace.runs.sequences import SequenceReader, drop_failed_records, sequence_reader, sequences_by_place
from headrace.runs.settings import MappingOptions

SAMPLE_RECORDS: Final = 1000
"""The number of records that decide about the schema of a format."""
_MEDIA_COLUMNS = ("image", "audio")
_FILTERED = TABLE_FORMATS | {"csv", *JSON_KINDS}
"""The formats whose records an input filter supports."""
_TEXTS = _FILTERED - TABLE_FORMATS - {WEBDATASET}
"""The formats whose records a model may receive as text."""


class Mapper:
    """A decoder of blocks of any format for one model.

    The schema and the model select the decoder of each format. The schema of a format that `schema`
    lacks is inferred from the first block of the format.
    """

    def __init__(
        self,
        metadata: ModelMetadata,
        mapping: MappingOptions,
        read: ReadOptions,
        schema: Schema | None = None,
    ) -> None:
        self._metadata = metadata
        self._mapping = self.options = mapping
        self._filter = compile_path(mapping.input_filter, slice_end=mapping.slice_end)
        self.read = read
        self._decoders: dict[tuple[str, CsvDialect | None], Decoder] = {}
        self._sequence_readers: dict[tuple[str, CsvDialect | None], SequenceReader] = {}
        self.schema = schema or Schema()

    @property
    def kind(self) -> str | None:
        """The format of the first records."""
        return self.schema.formats[0].format if self.schema.formats else None

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """The column names of CSV records, if they are known."""
        return self.schema.column_names

    @property
    def dialect(self) -> CsvDialect:
        """The dialect of the first CSV records."""
        csv = self.schema.find("csv")
        return csv_dialect("", self.read, delimiter=csv.delimiter if csv else None)

    def decode(self, block: Block) -> DecodedBlock:
        """Return the records of a block as tensors.

        Raises:
            ConfigError: The options can never fit the records.
            ModelInputError: The records can never fit the model.
        """
        if not len(block):
            return DecodedBlock({})
        layout = self.layout_of(block)
        decoder = self._decoders.get(layout)
        if decoder is None:
            decoder = self._decoders[layout] = self._choose(layout[1], block, self.learn([block]))
        return decoder.decode(block)

    def learn(self, blocks: Sequence[Block], *, finds_header: bool = False) -> RecordSchema:
        """Return the schema of the format of these blocks; infer it from them if it is not known.

        Set `finds_header` for blocks of a sample only: a run that has begun to read does not look for a
        header any more.

        Raises:
            ConfigError: The input filter selects nothing from any record.
        """
        kind = self.layout_of(blocks[0])[0]
        records = self.schema.find(kind)
        if records is None:
            some = [block.slice(0, SAMPLE_RECORDS) for block in blocks]
            records = self._infer(kind, some, finds_header=finds_header)
            self.schema = self.schema.plus(records)
        return records

    def _infer(self, kind: str, blocks: Sequence[Block], *, finds_header: bool) -> RecordSchema:
        if kind == "csv":
            records = infer_csv(
                blocks,
                [dialect for block in blocks if (dialect := self.layout_of(block)[1]) is not None],
                finds_header=finds_header and self.read.header == "auto",
                wanted=_column_names(self._metadata, self._mapping),
            )
        elif kind == WEBDATASET:
            records = infer_webdataset(blocks, self._filter)
        elif kind in JSON_KINDS:
            records = infer_json(kind, blocks, self._filter)
        elif kind == V2:
            records = infer_requests(blocks)
        elif kind in TABLE_FORMATS:
            records = infer_table(kind, blocks)
        elif kind in FRAMED_KINDS:
            records = infer_messages(kind, blocks)
        else:
            records = RecordSchema(kind)
        count = records.records if kind == "csv" else sum(map(len, blocks))
        return replace(records, records=count, place=str(blocks[0].first))

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
            records = self.learn([block])
            reader = sequence_reader(
                self._mapping,
                block,
                kind,
                dialect,
                width=len(records.columns),
                names=records.names or None,
            )
            self._sequence_readers[layout] = reader
        return reader(block)

    def layout_of(self, block: Block) -> tuple[str, CsvDialect | None]:
        """Return the format of a block's records, and for CSV their dialect."""
        name = block.first.member or block.first.object
        kind = format_name(name, self.read) or "whole"
        if kind == WEBDATASET:
            return kind, None
        for column in _MEDIA_COLUMNS:
            if column in block.columns:
                return column, None
        return kind, csv_dialect(name, self.read) if kind == "csv" else None

    def _choose(self, dialect: CsvDialect | None, block: Block, records: RecordSchema) -> Decoder:
        kind = records.format
        self._check_filter(kind, block)
        if kind in _MEDIA_COLUMNS:
            return self._media(kind)
        if self._mapping.whole_records and kind in _TEXTS and self._takes_text():
            return self._text_records(dialect)
        if dialect is not None:
            return CsvMapping(self._metadata, self._mapping, self._filter, records, dialect).decoder()
        if kind in JSON_KINDS:
            return self._json(records)
        if kind == V2:
            return self._requests()
        if kind == "line":
            return self._line()
        if kind in TABLE_FORMATS:
            return TableMapping(self._metadata, self._mapping, records).decoder()
        if kind in FRAMED_KINDS:
            return framed_decoder(self._metadata, self._mapping, records)
        return RawDecoder(self._metadata.only_input("a whole object").name, text=False)

    def _check_filter(self, kind: str, block: Block) -> None:
        """Raise ConfigError for an input filter of records that have no parts to select."""
        if kind not in _FILTERED and not self._filter.is_root:
            raise ConfigError(
                f"the input filter {self._filter.text} needs CSV, JSON or table records, but "
                f"{block.first.object} is read as {kind}: remove the filter, or set the format with "
                "--format (of a transform: --split)"
            )

    def _takes_text(self) -> bool:
        """Return True if the model has one text input and no column is selected for it."""
        inputs, mapping = self._metadata.inputs, self._mapping
        chosen = mapping.columns or mapping.text_column is not None
        return len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen

    def _text_records(self, dialect: CsvDialect | None) -> Decoder:
        """Return a decoder of CSV and JSON records as text, or of what the input filter selects."""
        select = self._json_of if dialect is None else self._cells_of(dialect)
        spec = self._metadata.only_input("a record")
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(
            spec.name,
            text=as_text,
            encoding=self.read.encoding,
            as_column_vector=takes_column_vector(spec),
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

    def _json(self, records: RecordSchema) -> Decoder:
        select = None if self._filter.is_root else self._filter.value
        if records.format == WEBDATASET:
            from headrace.runs.webdataset_mapping import WebDatasetMapping  # noqa: PLC0415 - rare

            return WebDatasetMapping(self._metadata, self._mapping, records, self.read).decoder(select)
        return json_decoder(self._metadata, self._mapping, select, records, self.read.encoding)

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
            encoding=self.read.encoding,
            as_column_vector=takes_column_vector(spec),
        )

    def _requests(self) -> Decoder:
        from headrace.runs.requests import RequestDecoder  # noqa: PLC0415 - for this format alone

        return RequestDecoder(self._metadata)

    def _media(self, kind: str) -> Decoder:
        spec = self._metadata.only_input(f"{kind} data")
        return ColumnDecoder(self._metadata.name, spec, kind, scale=self._mapping.image_scale)


class CsvMapping:
    """The choice of the decoder of CSV records for one model."""

    def __init__(
        self,
        metadata: ModelMetadata,
        mapping: MappingOptions,
        input_filter: JsonPath,
        records: RecordSchema,
        dialect: CsvDialect,
    ) -> None:
        self._metadata = metadata
        self._mapping = mapping
        self._records = records
        self._names = records.names or None
        self._width = len(records.columns)
        self._dialect = dialect
        self._selection = input_filter.csv_columns(named=bool(self._names))

    def decoder(self) -> CsvMatrixDecoder | CsvColumnsDecoder:
        """Return the decoder.

        Raises:
            ConfigError: A chosen column does not exist.
            ModelInputError: The records can never fit the model.
        """
        decoder = self._choose()
        if self._names:
            # The header of another file must not replace that of the schema.
            decoder.bind(self._names)
        return decoder

    def _choose(self) -> CsvMatrixDecoder | CsvColumnsDecoder:
        inputs = self._metadata.inputs
        if self._mapping.text_column is not None:
            name = self._metadata.only_input("--text-column").name
            return CsvColumnsDecoder(
                {name: (self._mapping.text_column, "text")},
                input_selection=self._selection,
                width=self._width,
                dialect=self._dialect,
            )
        if len(inputs) <= 1 and not _is_single_column(self._metadata.only_input("CSV")):
            return self._matrix(self._metadata.only_input("CSV"))
        return self._columns(inputs)

    def _matrix(self, spec: TensorSpec) -> CsvMatrixDecoder:
        if spec.datatype == "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes text: choose its column with --text-column",
            )
        takes = spec.shape[1] if spec.shape is not None and len(spec.shape) == 2 else -1
        columns = self._mapping.columns or self._non_sequence_columns()
        width = self._width
        if columns and takes not in (-1, len(columns)):
            what = "--columns names" if self._mapping.columns else "without the sequence columns there are"
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes {takes} numbers per record, but {what} {len(columns)}",
            )
        if not columns and takes != -1:
            width = self._width_of(takes) if self._selection is None else self._filtered_width(takes)
        return CsvMatrixDecoder(
            spec.name,
            columns=columns or None,
            input_selection=self._selection,
            width=width,
            dtype=dtype_of(spec.datatype),
            dialect=self._dialect,
        )

    def _non_sequence_columns(self) -> tuple[str, ...] | tuple[int, ...]:
        """Return the columns that do not define sequences.

        The result is () without such columns, or if a filter selects the others.
        """
        if self._mapping.sequence is None or self._mapping.by_place or self._selection is not None:
            return ()
        return other_columns(self._mapping, self._width, self._names, self._dialect)

    @property
    def _widths(self) -> list[int]:
        """The widths that a record may have: that of the schema, then those of other sampled records."""
        return list(dict.fromkeys((self._width, *self._records.widths)))

    def _width_of(self, takes: int) -> int:
        """Return the width that the model takes. Raise ModelInputError if no sampled record has it."""
        if takes in self._widths:
            return takes
        names = f" ({', '.join(self._names)})" if self._names else ""
        raise ModelInputError(
            self._metadata.name,
            f"input {self._metadata.only_input('CSV').name!r} takes {takes} numbers per record, but the "
            f"records from {self._records.place} on have {self._width} columns{names}: choose {takes} of "
            "them with --columns, or another --delimiter",
        )

    def _filtered_width(self, takes: int) -> int:
        """Return the width of records of which the filter keeps as many columns as the model takes."""
        assert self._selection is not None, "there is a filter"
        why = ""
        for width in [self._width] if self._names else self._widths:
            try:
                kept = len(self._selection.indices(width, self._names))
            except ValueError as error:
                why = why or str(error)
                continue
            if kept == takes:
                return width
            why = why or f"{self._selection.text} selects {kept} of {width} columns"
        raise ModelInputError(
            self._metadata.name,
            f"input {self._metadata.only_input('CSV').name!r} takes {takes} numbers per record, but the "
            f"input filter selects another number from the records from {self._records.place} on ({why}): "
            f"select {takes} columns with it",
        )

    def _columns(self, inputs: tuple[TensorSpec, ...]) -> CsvColumnsDecoder:
        """Return a decoder for inputs of one column each.

        The columns are those of --columns in order, else by header name, else by position.
        """
        columns = self._mapping.columns
        if columns and len(columns) != len(inputs):
            raise ModelInputError(
                self._metadata.name,
                f"it has {len(inputs)} inputs, but --columns names {len(columns)} columns",
            )
        wanted = {
            spec.name: (column, "text" if spec.datatype == "BYTES" else dtype_of(spec.datatype))
            for spec, column in zip(inputs, columns or self._columns_of(inputs), strict=True)
        }
        as_vectors = any(spec.shape is not None and len(spec.shape) == 2 for spec in inputs)
        return CsvColumnsDecoder(
            wanted,
            input_selection=self._selection,
            width=self._width,
            dialect=self._dialect,
            as_column_vectors=as_vectors,
        )

    def _columns_of(self, inputs: tuple[TensorSpec, ...]) -> Sequence[str | int]:
        """Return the columns with the names of the inputs, or the first ones without a header."""
        names = self._names
        if names is None:
            return (self._non_sequence_columns() or range(len(inputs)))[: len(inputs)]
        if self._selection is not None:
            names = _selected_names(self._selection, names)
        missing = [i.name for i in inputs if i.name not in names]
        if missing:
            raise ConfigError(
                f"the header has no column {', '.join(map(repr, missing))} (it has "
                f"{', '.join(names)}): choose the columns of the inputs with --columns, in "
                "their order"
            )
        return [i.name for i in inputs]


def _column_names(metadata: ModelMetadata, mapping: MappingOptions) -> list[str]:
    """Return the names that a header may have: of the columns of the mapping, and of inputs of one column."""
    chosen = (*mapping.columns, mapping.text_column, mapping.sequence, mapping.sequence_end)
    inputs = [spec.name for spec in metadata.inputs if len(metadata.inputs) > 1 or _is_single_column(spec)]
    return [column for column in chosen if isinstance(column, str)] + inputs


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
