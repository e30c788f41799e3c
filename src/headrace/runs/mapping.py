"""The mapping of records to model inputs, by the model, the options and the first records.

Blocks become `DecodedBlock`s with tensors by input name. The choice of a decoder for CSV is in
`csv_mapping`, that for JSON, framed messages and Parquet in `field_mapping`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.column_decode import ColumnDecoder
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.csv import CsvDialect
from headrace.formats.json_path import compile_path
from headrace.formats.line import RawDecoder
from headrace.formats.read import ReadOptions, csv_delimiter, format_name
from headrace.runs.csv_mapping import CsvMapping, one_input
from headrace.runs.field_mapping import FRAMED_KINDS, JsonMapping, ParquetMapping, framed_decoder
from headrace.runs.sequence_mapping import (
    RecordSequences,
    SequenceReader,
    drop_failed_records,
    sequence_reader,
    sequences_by_place,
)
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
        self._decoders: dict[tuple[str, str], Decoder] = {}
        self._sequence_readers: dict[tuple[str, str], SequenceReader] = {}
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
    def delimiter(self) -> str:
        """The delimiter of the first CSV records."""
        return self.learned.get("delimiter", ",")

    def decode(self, block: Block) -> DecodedBlock:
        """Return the records of a block as tensors.

        Raises:
            ConfigError: The options can never fit the records.
            ModelInputError: The records can never fit the model.
        """
        if not len(block):
            return DecodedBlock({})
        kind, delimiter = self.layout_of(block)
        decoder = self._decoders.get((kind, delimiter))
        if decoder is None:
            self.learned.setdefault("format", kind)
            decoder = self._decoders[kind, delimiter] = self._choose(kind, delimiter, block)
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
            kind, delimiter = layout
            width = self._csv.width(block, delimiter) if kind == "csv" else None
            reader = sequence_reader(
                self._mapping, block, kind, delimiter, width=width, names=self.input_names
            )
            self._sequence_readers[layout] = reader
        return reader(block)

    @property
    def by_sequence(self) -> bool:
        """True if the options assign records to sequences."""
        return self._mapping.sequence is not None

    def layout_of(self, block: Block) -> tuple[str, str]:
        """Return the format of a block's records, and for CSV their delimiter.

        The delimiter of other formats is an empty string.
        """
        name = block.first.member or block.first.object
        kind = format_name(name, self._read) or "whole"
        # The columns of a Parquet file may have these names.
        for column in _MEDIA_COLUMNS if kind != "parquet" else ():
            if column in block.columns:
                return column, ""
        return kind, csv_delimiter(name, self._read) if kind == "csv" else ""

    def _choose(self, kind: str, delimiter: str, block: Block) -> Decoder:
        if kind not in _FILTERED and not self._filter.is_root:
            raise ConfigError(
                f"the input filter {self._filter.text} needs CSV or JSON records, but "
                f"{block.first.object} is read as {kind}: remove the filter, or set the format with "
                "--format (of a transform: --split)"
            )
        if kind in _MEDIA_COLUMNS:
            return self._media(kind)
        if self._mapping.whole_records and kind in _FILTERED and self._takes_text():
            return self._text_records(kind, delimiter, block)
        if kind == "csv":
            return self._csv.decoder(block, delimiter)
        if kind in JSON_KINDS:
            select = None if self._filter.is_root else self._filter.value
            return JsonMapping(self._metadata, self._mapping, select, self.learned).decoder(block)
        if kind == "line":
            return self._line()
        if kind == "parquet":
            return ParquetMapping(self._metadata, self._mapping, self.learned, block).decoder()
        if kind in FRAMED_KINDS:
            return framed_decoder(kind, self._metadata, self._mapping, self.learned, block)
        return RawDecoder(one_input(self._metadata, "a whole object").name, text=False)

    def _takes_text(self) -> bool:
        """Return True if the model has one text input and no column is selected for it."""
        inputs, mapping = self._metadata.inputs, self._mapping
        chosen = mapping.columns or mapping.text_column is not None
        return len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen

    def _text_records(self, kind: str, delimiter: str, block: Block) -> Decoder:
        """Return a decoder of CSV and JSON records as text, or of what the input filter selects."""
        if kind == "csv":
            self._csv.learn(block, delimiter)
            select = self._cells_of(delimiter)
        else:
            select = self._json_of
        spec = one_input(self._metadata, "a record")
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(spec.name, text=as_text, as_column_vector=_takes_column_vector(spec), select=select)

    def _cells_of(self, delimiter: str) -> Callable[[bytes], bytes] | None:
        names = self.input_names
        columns = self._filter.csv_columns(named=names is not None)
        if columns is None:
            return None
        dialect = CsvDialect.from_strings(delimiter, '"')

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
        spec = one_input(self._metadata, "a line")
        if self._metadata.inputs and spec.datatype != "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes {spec.datatype}, but a line is text: for lines of numbers set "
                "--format (of a transform: --split) to csv or jsonl",
            )
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(spec.name, text=as_text, as_column_vector=_takes_column_vector(spec))

    def _media(self, kind: str) -> Decoder:
        spec = one_input(self._metadata, f"{kind} data")
        return ColumnDecoder(self._metadata.name, spec, kind, scale=self._mapping.image_scale)


def _takes_column_vector(spec: TensorSpec) -> bool:
    """Return True if an input of one value per record is [n, 1] rather than [n]."""
    return spec.shape is not None and len(spec.shape) == 2
