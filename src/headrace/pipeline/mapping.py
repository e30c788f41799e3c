"""Records to a model's inputs: which decoder, given the model's inputs, the options, and the first records.

Arrives: blocks. Leaves: `Decoded` tensors by input name. What cannot fit is found here, before the first call:
too few columns chosen, a file with more columns than the model takes, text for a model of numbers.
"""

import csv
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.column_decode import ColumnDecoder
from headrace.formats.contract import Decoded, Decoder
from headrace.formats.csv_cells import Dialect
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder, RawDecoder
from headrace.formats.csv_selection import ColumnSelection
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.json_path import compile_path
from headrace.formats.read import ReadOptions, delimiter_of, format_name
from headrace.pipeline.feature_mapping import FRAMED_KINDS, framed_decoder
from headrace.pipeline.parquet_mapping import parquet_decoder
from headrace.pipeline.sequence_mapping import (
    RecordSequences,
    SequenceReader,
    by_place,
    columns_beside,
    sequence_reader,
    without_failed,
)
from headrace.pipeline.settings import MappingOptions

JSON_KINDS: Final = frozenset({"json", "jsonl"})
"""The formats of JSON text."""
_MEDIA_COLUMNS = ("image", "audio")
_FILTERED = frozenset({"csv", *JSON_KINDS})
"""The formats whose records an input filter can select of."""
_FIRST_RECORDS = 100
"""How many of the first records must all disagree with the model before the run is refused."""


class Mapper:
    """Decodes blocks of any format for one model; chooses a decoder per format at its first block.

    What the first records decide (how many columns, the shape of a row) is in `learned`: a resumed run is given
    it, so that it judges records as the run did that it resumes.
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
        self._select = None if self._filter.is_root else self._filter.value
        self._read = read
        self._decoders: dict[tuple[str, str], Decoder] = {}
        self._sequence_readers: dict[tuple[str, str], SequenceReader] = {}
        self.learned: dict[str, Any] = dict(learned or {})

    @property
    def kind(self) -> str | None:
        """The format of the source's first records."""
        return self.learned.get("format")

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """The source's column names, once a header told them."""
        names: list[str] | None = self.learned.get("column_names")
        return None if names is None else tuple(names)

    @property
    def delimiter(self) -> str:
        """What stands between the cells of the source's first CSV records."""
        return self.learned.get("delimiter", ",")

    def decode(self, block: Block) -> Decoded:
        """The block's records as tensors. Raises ConfigError or ModelInputError when nothing could ever fit."""
        if not len(block):
            return Decoded({})
        kind, delimiter = self.layout_of(block)
        decoder = self._decoders.get((kind, delimiter))
        if decoder is None:
            self.learned.setdefault("format", kind)
            decoder = self._decoders[kind, delimiter] = self._choose(kind, delimiter, block)
        return decoder.decode(block)

    def decode_steps(self, block: Block) -> tuple[Decoded, RecordSequences | None]:
        """`decode`, and which sequences the records belong to, where the options ask for that; those that do not tell fail."""
        decoded = self.decode(block)
        if self._mapping.sequence is None:
            return decoded, None
        sequences = self._sequences(block)
        return without_failed(block, decoded, sequences.failures), sequences

    def _sequences(self, block: Block) -> RecordSequences:
        if self._mapping.by_place or not len(block):
            return by_place(block, self._mapping)
        layout = self.layout_of(block)
        reader = self._sequence_readers.get(layout)
        if reader is None:
            kind, delimiter = layout
            width = self._learned_width(block, delimiter) if kind == "csv" else None
            reader = sequence_reader(
                self._mapping, block, kind, delimiter, width=width, names=self.input_names
            )
            self._sequence_readers[layout] = reader
        return reader(block)

    @property
    def by_sequence(self) -> bool:
        """Whether records are said to belong to sequences."""
        return self._mapping.sequence is not None

    def layout_of(self, block: Block) -> tuple[str, str]:
        """The format of a block's records and, for CSV, their delimiter (else it is empty)."""
        name = block.first.member or block.first.object
        kind = format_name(name, self._read) or "whole"
        # Parquet's columns have names of their own, which may be these.
        for column in _MEDIA_COLUMNS if kind != "parquet" else ():
            if column in block.columns:
                return column, ""
        return kind, delimiter_of(name, self._read) if kind == "csv" else ""

    def _choose(self, kind: str, delimiter: str, block: Block) -> Decoder:
        if kind not in _FILTERED and not self._filter.is_root:
            raise ConfigError(
                f"the input filter {self._filter.text} selects of CSV and JSON records, but {block.first.object} "
                f"is read as {kind}: leave the filter out, or say what the records are with --format (of a transform: --split)"
            )
        if kind in _MEDIA_COLUMNS:
            return self._media(kind)
        if self._mapping.whole_records and kind in _FILTERED and self._takes_text():
            return self._text_records(kind, delimiter, block)
        if kind == "csv":
            return self._csv_cells(block, delimiter)
        if kind in JSON_KINDS:
            return self._json(block)
        if kind == "line":
            return self._line()
        if kind == "parquet":
            return parquet_decoder(self._metadata, self._mapping, self.learned, block)
        if kind in FRAMED_KINDS:
            return framed_decoder(kind, self._metadata, self._mapping, self.learned, block)
        return RawDecoder(self._one_input("a whole object").name, text=False)

    def _csv_cells(self, block: Block, delimiter: str) -> Decoder:
        decoder = self._csv(block, delimiter)
        self._learn_csv(block, delimiter)
        if self.input_names:
            # A header of another file must not decide, in a resumed run, what the first one did.
            decoder.bind(self.input_names)
        return decoder

    def _learn_csv(self, block: Block, delimiter: str) -> None:
        self.learned.setdefault("delimiter", delimiter)
        if block.column_names and "column_names" not in self.learned:
            self.learned["column_names"] = list(block.column_names)

    def _one_input(self, what: str) -> TensorSpec:
        inputs = self._metadata.inputs
        if len(inputs) == 1:
            return inputs[0]
        if not inputs:
            return TensorSpec("x", "FP32")
        names = ", ".join(i.name for i in inputs)
        raise ModelInputError(
            self._metadata.name, f"{what} feeds one input, but the model has several: {names}"
        )

    def _takes_text(self) -> bool:
        """Whether the model has one input, of text, and is not said to take it from a column."""
        inputs, mapping = self._metadata.inputs, self._mapping
        chosen = mapping.columns or mapping.text_column is not None
        return len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen

    def _text_records(self, kind: str, delimiter: str, block: Block) -> Decoder:
        """CSV and JSON records, or what the input filter selects of them, as text."""
        if kind == "csv":
            self._learn_csv(block, delimiter)
            select = self._cells_of(delimiter)
        else:
            select = self._json_of
        spec = self._one_input("a record")
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(spec.name, text=as_text, as_column_vector=_takes_column_vector(spec), select=select)

    def _cells_of(self, delimiter: str) -> Callable[[bytes], bytes] | None:
        names = self.input_names
        columns = self._filter.csv_columns(named=names is not None)
        if columns is None:
            return None
        dialect = Dialect.of(delimiter, '"')

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
        spec = self._one_input("a line")
        if self._metadata.inputs and spec.datatype != "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes {spec.datatype}, but a line is text: for numbers in lines choose "
                "--format (of a transform: --split) csv or jsonl",
            )
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(spec.name, text=as_text, as_column_vector=_takes_column_vector(spec))

    def _media(self, kind: str) -> Decoder:
        spec = self._one_input(f"{kind} data")
        return ColumnDecoder(self._metadata.name, spec, kind, scale=self._mapping.image_scale)

    # CSV

    def _csv(self, block: Block, delimiter: str) -> CsvMatrixDecoder | CsvColumnsDecoder:
        inputs, columns = self._metadata.inputs, self._mapping.columns
        within = self._filter.csv_columns(named=bool(self.input_names or block.column_names))
        if self._mapping.text_column is not None:
            name = self._one_input("--text-column").name
            return CsvColumnsDecoder(
                {name: (self._mapping.text_column, "text")},
                within=within,
                width=self._learned_width(block, delimiter),
                delimiter=delimiter,
            )
        if len(inputs) <= 1 and not _is_single_column(self._one_input("CSV")):
            return self._csv_matrix(block, delimiter, within)
        return self._csv_columns(inputs, columns, block, delimiter, within)

    def _csv_matrix(self, block: Block, delimiter: str, within: ColumnSelection | None) -> CsvMatrixDecoder:
        spec = self._one_input("CSV")
        if spec.datatype == "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes text: say which column with --text-column",
            )
        takes = spec.shape[1] if spec.shape is not None and len(spec.shape) == 2 else -1
        columns = self._mapping.columns or self._beside_sequence(block, delimiter, within)
        if columns:
            if takes not in (-1, len(columns)):
                what = (
                    "--columns names" if self._mapping.columns else "beside those of its sequence there are"
                )
                raise ModelInputError(
                    self._metadata.name,
                    f"input {spec.name!r} takes {takes} numbers a record, but {what} {len(columns)}",
                )
            width = self._learned_width(block, delimiter)
        elif takes == -1:
            width = self._learned_width(block, delimiter)
        else:
            width = self.learned.get("csv_width")
            if within is not None:
                width = width or self._width_behind(within, spec, takes, block, delimiter)
            elif width is None:
                self._check_width(spec, block, takes, delimiter)
            width = self.learned["csv_width"] = width or takes
        return CsvMatrixDecoder(
            spec.name,
            columns=columns or None,
            within=within,
            width=width,
            dtype=dtype_of(spec.datatype),
            delimiter=delimiter,
        )

    def _beside_sequence(
        self, block: Block, delimiter: str, within: ColumnSelection | None
    ) -> tuple[str, ...] | tuple[int, ...]:
        """The columns but those that tell of sequences; () where there are none of these, or a filter selects the others."""
        if self._mapping.sequence is None or self._mapping.by_place or within is not None:
            return ()
        names, width = self.input_names or block.column_names, self._learned_width(block, delimiter)
        return columns_beside(self._mapping, width, names, delimiter)

    def _learned_width(self, block: Block, delimiter: str) -> int:
        """How many columns records have: as the header says, else as the run's first record has."""
        width: int | None = self.learned.get("csv_width")
        if width is None:
            names = block.column_names
            width = self.learned["csv_width"] = len(names) if names else _cells(block.record(0), delimiter)
        return width

    def _check_width(self, spec: TensorSpec, block: Block, width: int, delimiter: str) -> None:
        """A source in which no record has the model's width was not meant like this."""
        records = [block.record(i) for i in range(min(len(block), _FIRST_RECORDS))]
        widths = [_cells(r, delimiter) for r in records]
        if width in widths:
            return
        names = f" ({', '.join(block.column_names)})" if block.column_names else ""
        raise ModelInputError(
            self._metadata.name,
            f"input {spec.name!r} takes {width} numbers a record, but the records from {block.first} on have "
            f"{widths[0]} columns{names}: choose {width} of them with --columns, or another --delimiter",
        )

    def _width_behind(
        self, within: ColumnSelection, spec: TensorSpec, takes: int, block: Block, delimiter: str
    ) -> int:
        """How many columns records have of which the filter leaves as many as the model takes."""
        names = block.column_names
        why = ""
        widths = [_cells(block.record(i), delimiter) for i in range(min(len(block), _FIRST_RECORDS))]
        for width in dict.fromkeys([len(names)] if names else widths):
            try:
                kept = len(within.indices(width, names))
            except ValueError as error:
                why = why or str(error)
                continue
            if kept == takes:
                return width
            why = why or f"{within.text} leaves {kept} of {width} columns"
        raise ModelInputError(
            self._metadata.name,
            f"input {spec.name!r} takes {takes} numbers a record, but of the records from {block.first} on the input "
            f"filter leaves something else ({why}): choose {takes} columns with it",
        )

    def _csv_columns(
        self,
        inputs: tuple[TensorSpec, ...],
        columns: tuple[str, ...] | tuple[int, ...],
        block: Block,
        delimiter: str,
        within: ColumnSelection | None,
    ) -> CsvColumnsDecoder:
        """Several inputs of a column each: by --columns in order, else by header name, else by position."""
        if columns and len(columns) != len(inputs):
            raise ModelInputError(
                self._metadata.name,
                f"it has {len(inputs)} inputs, but --columns names {len(columns)} columns",
            )
        chosen: list[str | int] = list(columns)
        if not chosen:
            names = self.input_names or block.column_names
            if names and within is not None:
                names = _kept_names(within, names)
            missing = [i.name for i in inputs if i.name not in names] if names else []
            if missing:
                raise ConfigError(
                    f"the header has no column {', '.join(map(repr, missing))} (it has "
                    f"{', '.join(names or ())}): name the columns for the inputs with --columns, in their order"
                )
            beside = self._beside_sequence(block, delimiter, within)
            chosen = (
                [i.name for i in inputs] if names else list((beside or range(len(inputs)))[: len(inputs)])
            )
        wanted = {
            spec.name: (column, "text" if spec.datatype == "BYTES" else dtype_of(spec.datatype))
            for spec, column in zip(inputs, chosen, strict=True)
        }
        as_vectors = any(spec.shape is not None and len(spec.shape) == 2 for spec in inputs)
        return CsvColumnsDecoder(
            wanted,
            within=within,
            width=self._learned_width(block, delimiter),
            delimiter=delimiter,
            as_column_vectors=as_vectors,
        )

    # JSON, JSON Lines

    def _json(self, block: Block) -> Decoder:
        text = self._mapping.text_column
        if text is not None:
            return JsonDecoder(
                {self._one_input("--text-column").name: JsonField(str(text), "text")}, select=self._select
            )
        if self._mapping.columns:
            spec = self._one_input("--columns")
            return _Stacked(spec, [str(c) for c in self._mapping.columns], self._select)
        inputs = self._metadata.inputs or (self._one_input("JSON"),)
        # What is missing from a resumed run's first records does not refuse what the run that it resumes took.
        first = _first_json(block, self._select, refuse="json_whole" not in self.learned)
        whole = self.learned.setdefault("json_whole", not isinstance(first, dict))
        if whole:
            spec = self._one_input("a JSON array")
            return JsonDecoder({spec.name: self._field(spec, None, first)}, select=self._select)
        fields = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
        if "json_fields" in self.learned or all(i.name in fields for i in inputs):
            self.learned["json_fields"] = True
            readers = {i.name: self._field(i, i.name, fields.get(i.name)) for i in inputs}
            return JsonDecoder(readers, select=self._select)
        raise ModelInputError(
            self._metadata.name,
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {block.first} on have the fields "
            f"{', '.join(fields)}: choose fields with --columns or --text-column",
        )

    def _field(self, spec: TensorSpec, path: str | None, first: Any) -> JsonField:
        """A field of the model's shape; where that leaves sizes open, of the first record's."""
        text = spec.datatype == "BYTES"
        shape = list(spec.shape[1:]) if spec.shape is not None else [-1]
        if -1 in shape:
            shape = self.learned.setdefault(f"json_shape {spec.name}", _shape_of(first))
        dtype = "text" if text else dtype_of(spec.datatype)
        return JsonField(path, dtype, tuple(shape))


class _Stacked:
    """Scalar JSON fields, side by side, as one matrix."""

    def __init__(self, spec: TensorSpec, fields: list[str], select: Callable[[Any], Any] | None) -> None:
        self._spec = spec
        self._fields = fields
        dtype = dtype_of(spec.datatype)
        self._inner = JsonDecoder({f: JsonField(f, dtype, ()) for f in fields}, select=select)

    def decode(self, block: Block) -> Decoded:
        decoded = self._inner.decode(block)
        matrix = np.stack([decoded.tensors[f] for f in self._fields], axis=1)
        return Decoded({self._spec.name: matrix}, decoded.rows, decoded.failures)


def _shape_of(value: Any) -> list[int]:
    """The shape of a JSON value: how many lists, and how long the first of each is."""
    shape: list[int] = []
    while isinstance(value, list):
        items = cast("list[Any]", value)
        shape.append(len(items))
        value = items[0] if items else None
    return shape


def _is_single_column(spec: TensorSpec) -> bool:
    """Whether an input takes one value a record: [n], or [n, 1] of text."""
    return spec.shape is not None and (
        len(spec.shape) == 1 or (spec.datatype == "BYTES" and len(spec.shape) == 2)
    )


def _takes_column_vector(spec: TensorSpec) -> bool:
    """Whether an input of one value a record is [n, 1] rather than [n]."""
    return spec.shape is not None and len(spec.shape) == 2


def _cells(record: bytes, delimiter: str) -> int:
    """How many cells a record has."""
    rows = list(csv.reader([record.decode("utf-8", "replace")], delimiter=delimiter))
    return len(rows[0]) if rows else 0


def _kept_names(within: ColumnSelection, names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(names[index] for index in within.indices(len(names), names))
    except ValueError as error:
        raise ConfigError(f"the input filter does not fit the header: {error}") from None


def _first_json(block: Block, select: Callable[[Any], Any] | None, *, refuse: bool) -> Any:
    """The first of the first records that is JSON at all: one that is not must not decide for the others.

    With `select`, what is selected of the first in which that is there; with `refuse` too, ConfigError when it is in
    none of them.
    """
    missing: ValueError | None = None
    for index in range(min(len(block), _FIRST_RECORDS)):
        try:
            value = orjson.loads(block.record(index))
        except orjson.JSONDecodeError:
            continue
        if select is None:
            return value
        try:
            return select(value)
        except ValueError as error:
            missing = missing or error
    if missing is not None and refuse:
        raise ConfigError(f"the input filter selects nothing of the records from {block.first} on: {missing}")
    return None
