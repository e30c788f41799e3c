"""Records to a model's inputs: which decoder, given the model's inputs, the options, and the first records.

Arrives: blocks. Leaves: `Decoded` tensors by input name. What cannot fit is found here, before the first call:
too few columns chosen, a file with more columns than the model takes, text for a model of numbers.
"""

import csv
from typing import Any

import numpy as np
import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.column_decode import ColumnDecoder
from headrace.formats.contract import Decoded, Decoder
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.raw_decode import RawDecoder
from headrace.formats.read import ReadOptions, format_name
from headrace.pipeline.settings import MappingOptions

_MEDIA_COLUMNS = ("image", "audio")
_FIRST_RECORDS = 100
"""How many of the first records must all disagree with the model before the run is refused."""


class Mapper:
    """Decodes blocks of any format for one model; chooses a decoder per format at its first block."""

    def __init__(self, metadata: ModelMetadata, mapping: MappingOptions, read: ReadOptions) -> None:
        self._metadata = metadata
        self._mapping = mapping
        self._read = read
        self._decoders: dict[str, Decoder] = {}
        self.input_names: tuple[str, ...] | None = None
        """The source's column names, once a header told them."""

    def decode(self, block: Block) -> Decoded:
        """The block's records as tensors. Raises ConfigError or ModelInputError when nothing could ever fit."""
        if not len(block):
            return Decoded({})
        kind = self._kind(block)
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = self._choose(kind, block)
            self.input_names = self.input_names or block.column_names
        return decoder.decode(block)

    def _kind(self, block: Block) -> str:
        for column in _MEDIA_COLUMNS:
            if column in block.columns:
                return column
        return format_name(block.first.member or block.first.object, self._read)

    def _choose(self, kind: str, block: Block) -> Decoder:
        if kind in _MEDIA_COLUMNS:
            return self._media(kind)
        if kind == "csv":
            return self._csv(block)
        if kind == "jsonl":
            return self._jsonl(block)
        return RawDecoder(self._one_input("a whole object").name, text=False)

    def _one_input(self, what: str) -> TensorSpec:
        inputs = self._metadata.inputs
        if not inputs:
            return TensorSpec("x", "FP32")
        if len(inputs) > 1:
            names = ", ".join(i.name for i in inputs)
            raise ModelInputError(
                self._metadata.name, f"{what} feeds one input, but the model has several: {names}"
            )
        return inputs[0]

    def _media(self, kind: str) -> Decoder:
        spec = self._one_input(f"{kind} data")
        return ColumnDecoder(self._metadata.name, spec, kind, scale=self._mapping.image_scale)

    # CSV

    def _csv(self, block: Block) -> Decoder:
        delimiter = self._read.delimiter or ","
        inputs, columns = self._metadata.inputs, self._mapping.columns
        if self._mapping.text_column is not None:
            name = self._one_input("--text-column").name
            return CsvColumnsDecoder({name: (self._mapping.text_column, "text")}, delimiter=delimiter)
        if len(inputs) <= 1 and not _is_single_column(self._one_input("CSV")):
            return self._csv_matrix(block, delimiter)
        return self._csv_columns(inputs, columns, block, delimiter)

    def _csv_matrix(self, block: Block, delimiter: str) -> Decoder:
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
            width = len(block.column_names) if block.column_names else None
        else:
            width = None if takes == -1 else takes
            self._check_width(spec, block, width, delimiter)
        return CsvMatrixDecoder(
            spec.name,
            columns=columns or None,
            width=width,
            dtype=dtype_of(spec.datatype),
            delimiter=delimiter,
        )

    def _check_width(self, spec: TensorSpec, block: Block, width: int | None, delimiter: str) -> None:
        """A source in which no record has the model's width was not meant like this."""
        if width is None:
            return
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
        columns: tuple[str | int, ...],
        block: Block,
        delimiter: str,
    ) -> Decoder:
        """Several inputs of a column each: by --columns in order, else by header name, else by position."""
        if columns and len(columns) != len(inputs):
            raise ModelInputError(
                self._metadata.name, f"it has {len(inputs)} inputs, but --columns names {len(columns)} columns"
            )
        chosen: list[str | int] = list(columns)
        if not chosen:
            names = block.column_names
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
        return CsvColumnsDecoder(wanted, delimiter=delimiter, as_column_vectors=as_vectors)

    # JSON Lines

    def _jsonl(self, block: Block) -> Decoder:
        text = self._mapping.text_column
        if text is not None:
            return JsonDecoder({self._one_input("--text-column").name: JsonField(str(text), "text")})
        if self._mapping.columns:
            spec = self._one_input("--columns")
            return _Stacked(spec, [str(c) for c in self._mapping.columns])
        inputs = self._metadata.inputs or (self._one_input("JSON Lines"),)
        first = _json_or_none(block.record(0))
        if not isinstance(first, dict):
            spec = self._one_input("a JSON array")
            return JsonDecoder({spec.name: _field(spec, None)})
        missing = [i.name for i in inputs if i.name not in first]
        if not missing:
            return JsonDecoder({i.name: _field(i, i.name) for i in inputs})
        raise ModelInputError(
            self._metadata.name,
            f"it takes {', '.join(i.name for i in inputs)}, but the first record, {block.first}, has the fields "
            f"{', '.join(map(str, first))}: choose fields with --columns or --text-column",
        )


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


def _field(spec: TensorSpec, path: str | None) -> JsonField:
    tail = None if spec.shape is None or -1 in spec.shape[1:] else spec.shape[1:]
    return JsonField(path, "text" if spec.datatype == "BYTES" else dtype_of(spec.datatype), tail)


def _is_single_column(spec: TensorSpec) -> bool:
    """Whether an input takes one value a record: [n], or [n, 1] of text."""
    return spec.shape is not None and (len(spec.shape) == 1 or (spec.datatype == "BYTES" and len(spec.shape) == 2))


def _cells(record: bytes, delimiter: str) -> int:
    """How many cells a record has."""
    rows = list(csv.reader([record.decode("utf-8", "replace")], delimiter=delimiter))
    return len(rows[0]) if rows else 0


def _json_or_none(record: bytes) -> Any:
    try:
        return orjson.loads(record)
    except orjson.JSONDecodeError:
        return None
