"""Records to a model's inputs: which decoder, given the model's inputs, the options, and the first records.

Arrives: blocks. Leaves: `Decoded` tensors by input name. What cannot fit is found here, before the first call:
too few columns chosen, a file with more columns than the model takes, text for a model of numbers.
"""

import csv
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.column_decode import ColumnDecoder
from headrace.formats.contract import Decoded, Decoder
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder, RawDecoder
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.read import ReadOptions, delimiter_of, format_name
from headrace.pipeline.feature_mapping import FRAMED_KINDS, framed_decoder
from headrace.pipeline.parquet_mapping import parquet_decoder
from headrace.pipeline.settings import MappingOptions

JSON_KINDS: Final = frozenset({"json", "jsonl"})
"""The formats of JSON text."""
_MEDIA_COLUMNS = ("image", "audio")
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
        self._mapping = mapping
        self._read = read
        self._decoders: dict[tuple[str, str], Decoder] = {}
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
        if kind in _MEDIA_COLUMNS:
            return self._media(kind)
        if kind == "csv":
            decoder = self._csv(block, delimiter)
            self.learned.setdefault("delimiter", delimiter)
            if block.column_names and "column_names" not in self.learned:
                self.learned["column_names"] = list(block.column_names)
            if self.input_names:
                # A header of another file must not decide, in a resumed run, what the first one did.
                decoder.bind(self.input_names)
            return decoder
        if kind in JSON_KINDS:
            return self._json(block)
        if kind == "line":
            return self._line()
        if kind == "parquet":
            return parquet_decoder(self._metadata, self._mapping, self.learned, block)
        if kind in FRAMED_KINDS:
            return framed_decoder(kind, self._metadata, self._mapping, self.learned, block)
        return RawDecoder(self._one_input("a whole object").name, text=False)

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

    def _line(self) -> Decoder:
        spec = self._one_input("a line")
        if self._metadata.inputs and spec.datatype != "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes {spec.datatype}, but a line is text: for numbers in lines choose "
                "--format csv or jsonl",
            )
        as_text = self._metadata.bytes_as != "bytes"
        return RawDecoder(spec.name, text=as_text, as_column_vector=_takes_column_vector(spec))

    def _media(self, kind: str) -> Decoder:
        spec = self._one_input(f"{kind} data")
        return ColumnDecoder(self._metadata.name, spec, kind, scale=self._mapping.image_scale)

    # CSV

    def _csv(self, block: Block, delimiter: str) -> CsvMatrixDecoder | CsvColumnsDecoder:
        inputs, columns = self._metadata.inputs, self._mapping.columns
        if self._mapping.text_column is not None:
            name = self._one_input("--text-column").name
            return CsvColumnsDecoder(
                {name: (self._mapping.text_column, "text")},
                width=self._learned_width(block, delimiter),
                delimiter=delimiter,
            )
        if len(inputs) <= 1 and not _is_single_column(self._one_input("CSV")):
            return self._csv_matrix(block, delimiter)
        return self._csv_columns(inputs, columns, block, delimiter)

    def _csv_matrix(self, block: Block, delimiter: str) -> CsvMatrixDecoder:
        spec = self._one_input("CSV")
        if spec.datatype == "BYTES":
            raise ModelInputError(
                self._metadata.name,
                f"input {spec.name!r} takes text: say which column with --text-column",
            )
        takes = spec.shape[1] if spec.shape is not None and len(spec.shape) == 2 else -1
        columns = self._mapping.columns
        if columns:
            if takes not in (-1, len(columns)):
                raise ModelInputError(
                    self._metadata.name,
                    f"input {spec.name!r} takes {takes} numbers a record, but --columns names {len(columns)}",
                )
            width = self._learned_width(block, delimiter)
        elif takes == -1:
            width = self._learned_width(block, delimiter)
        else:
            width = takes
            if "csv_width" not in self.learned:
                self._check_width(spec, block, width, delimiter)
                self.learned["csv_width"] = width
        return CsvMatrixDecoder(
            spec.name,
            columns=columns or None,
            width=width,
            dtype=dtype_of(spec.datatype),
            delimiter=delimiter,
        )

    def _learned_width(self, block: Block, delimiter: str) -> int | None:
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

    def _csv_columns(
        self,
        inputs: tuple[TensorSpec, ...],
        columns: tuple[str, ...] | tuple[int, ...],
        block: Block,
        delimiter: str,
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
            missing = [i.name for i in inputs if i.name not in names] if names else []
            if missing:
                raise ConfigError(
                    f"the header has no column {', '.join(map(repr, missing))} (it has "
                    f"{', '.join(names or ())}): name the columns for the inputs with --columns, in their order"
                )
            chosen = [i.name for i in inputs] if names else list(range(len(inputs)))
        wanted = {
            spec.name: (column, "text" if spec.datatype == "BYTES" else dtype_of(spec.datatype))
            for spec, column in zip(inputs, chosen, strict=True)
        }
        as_vectors = any(spec.shape is not None and len(spec.shape) == 2 for spec in inputs)
        return CsvColumnsDecoder(
            wanted,
            width=self._learned_width(block, delimiter),
            delimiter=delimiter,
            as_column_vectors=as_vectors,
        )

    # JSON, JSON Lines

    def _json(self, block: Block) -> Decoder:
        text = self._mapping.text_column
        if text is not None:
            return JsonDecoder({self._one_input("--text-column").name: JsonField(str(text), "text")})
        if self._mapping.columns:
            spec = self._one_input("--columns")
            return _Stacked(spec, [str(c) for c in self._mapping.columns])
        inputs = self._metadata.inputs or (self._one_input("JSON"),)
        first = _first_json(block)
        whole = self.learned.setdefault("json_whole", not isinstance(first, dict))
        if whole:
            spec = self._one_input("a JSON array")
            return JsonDecoder({spec.name: self._field(spec, None, first)})
        fields = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
        if "json_fields" in self.learned or all(i.name in fields for i in inputs):
            self.learned["json_fields"] = True
            return JsonDecoder({i.name: self._field(i, i.name, fields.get(i.name)) for i in inputs})
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

    def __init__(self, spec: TensorSpec, fields: list[str]) -> None:
        self._spec = spec
        self._fields = fields
        dtype = dtype_of(spec.datatype)
        self._inner = JsonDecoder({f: JsonField(f, dtype, ()) for f in fields})

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


def _first_json(block: Block) -> Any:
    """The first of the first records that is JSON at all: one that is not must not decide for the others."""
    for index in range(min(len(block), _FIRST_RECORDS)):
        try:
            return orjson.loads(block.record(index))
        except orjson.JSONDecodeError:
            continue
    return None
