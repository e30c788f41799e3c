"""The mapping of fields of WebDataset records to model inputs: JSON values, text, numbers, and files.

A file is decoded only if it becomes an input: an image or a `.npy` array for an input of numbers, and its
bytes for an input of text or bytes.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.block import Block, FailureKind
from headrace.core.errors import ModelInputError
from headrace.core.tensor import Array, ModelMetadata, TensorSpec, dtype_of, text_array
from headrace.formats.column_decode import ColumnDecoder, shape_fits
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.json_decode import JsonDecoder
from headrace.formats.read import format_name, make_format
from headrace.formats.read_options import ReadOptions
from headrace.formats.webdataset import KEY, last_suffix
from headrace.runs.field_mapping import json_decoder, json_field, takes_column_vector
from headrace.runs.schema import Column, RecordSchema
from headrace.runs.settings import MappingOptions

_ARRAY: Final = "npy"
_IMAGE: Final = "image"
_TEXT: Final = "text"


class WebDatasetMapping:
    """The choice of the fields and the decoder of WebDataset records for one model.

    An input takes the field of `--columns` at its place, else the field of its name, else the only field of
    its kind: text for an input of text, an image for numbers of three axes or more, else a `.npy` array.
    """

    def __init__(
        self, metadata: ModelMetadata, mapping: MappingOptions, records: RecordSchema, read: ReadOptions
    ) -> None:
        self._metadata = metadata
        self._mapping = mapping
        self._records = records
        self._read = read
        self._files = {c.name for c in records.columns if c.type == "bytes" and c.name is not None}

    def decoder(self, select: Callable[[Any], Any] | None) -> Decoder:
        """Return the decoder. `select` returns the filtered part of a record's JSON.

        Raises ModelInputError if the records can never fit the model.
        """
        inputs, chosen = self._metadata.inputs or (TensorSpec("x", "FP32"),), self._chosen
        if len(inputs) == 1 and len(chosen) > 1 and self._files.isdisjoint(chosen):
            return json_decoder(self._metadata, self._mapping, select, self._records)
        if chosen and len(chosen) != len(inputs):
            raise self._misfit(f"it has {len(inputs)} inputs, but {len(chosen)} fields are chosen")
        names = self._records.names
        if missing := [name for name in chosen if name not in names and name.partition(".")[0] not in names]:
            raise self._misfit(f"there is no field {missing[0]!r}")
        fields = dict(zip(inputs, chosen or map(self._field_of, inputs), strict=True))
        parts: list[Decoder] = [
            self._file_decoder(spec, name) for spec, name in fields.items() if name in self._files
        ]
        values = {
            spec.name: json_field(spec, name, self._records.column(name))
            for spec, name in fields.items()
            if name not in self._files
        }
        if values:
            parts.append(JsonDecoder(values, select=select))
        return parts[0] if len(parts) == 1 else _JoinedDecoder(parts)

    @property
    def _chosen(self) -> Sequence[str]:
        """The fields of the options."""
        text_column = self._mapping.text_column
        return [str(c) for c in (self._mapping.columns if text_column is None else (text_column,))]

    def _field_of(self, spec: TensorSpec) -> str:
        """Return the field with the name of an input, or the only one of the first kind that it takes."""
        if spec.name in self._records.names:
            return spec.name
        found: list[str] = []
        for kind in _kinds(spec):
            found = found or [c.name for c in self._records.columns if c.name and self._kind(c) == kind]
        if len(found) == 1:
            return found[0]
        several = f"the fields {', '.join(found)}" if found else "no field"
        raise self._misfit(
            f"there is no field {spec.name!r}, and {several} could be this input: choose the fields of the "
            "inputs, in their order, with --columns"
        )

    def _kind(self, column: Column) -> str:
        if column.type == "text" and column.name != KEY:
            return _TEXT
        return self._file_kind(column.name or "") if column.type == "bytes" else ""

    def _file_kind(self, name: str) -> str:
        suffix = last_suffix(name)
        return suffix if suffix == _ARRAY else format_name(f"x.{suffix}", ReadOptions()) or suffix

    def _file_decoder(self, spec: TensorSpec, name: str) -> Decoder:
        if spec.datatype == "BYTES":
            return _FileDecoder(spec, name, lambda _, data: data)
        kind = self._file_kind(name)
        if kind == _IMAGE:
            return self._image_decoder(spec, name)
        if kind == _ARRAY:
            return _FileDecoder(spec, name, lambda _, data: _array(spec, data))
        raise self._misfit(
            f"input {spec.name!r} takes {spec.datatype}, but the field {name!r} is a file that is not "
            "decoded: let the model take its bytes (an input of BYTES)"
        )

    def _image_decoder(self, spec: TensorSpec, name: str) -> Decoder:
        images = make_format(f"x.{name}", "image", self._read)
        columns = ColumnDecoder(self._metadata.name, spec, _IMAGE, scale=self._mapping.image_scale)

        def pixels(block: Block, data: bytes) -> Array:
            (decoded,) = images.blocks((data,), block.first)
            if decoded.failures:
                raise ValueError(decoded.failures[0].why)
            return columns.decode(decoded).tensors[spec.name][0]

        return _FileDecoder(spec, name, pixels)

    def _misfit(self, why: str) -> ModelInputError:
        fields = ", ".join(f"{c.name} ({c.type})" for c in self._records.columns)
        place = self._records.place
        return ModelInputError(self._metadata.name, f"{why} (the records from {place} on have {fields})")


def _kinds(spec: TensorSpec) -> tuple[str, ...]:
    """Return the kinds of fields that an input takes: the first one before the others."""
    if spec.datatype == "BYTES":
        return (_TEXT,)
    axes = 0 if spec.shape is None else len(spec.shape)
    return (_ARRAY,) if axes in (1, 2) else (_IMAGE, _ARRAY)


class _FileDecoder(Decoder):
    """A decoder of one field that is a file, for blocks of one record.

    `decode_file` returns the row of the record, or raises ValueError.
    """

    def __init__(self, spec: TensorSpec, name: str, decode_file: Callable[[Block, bytes], Any]) -> None:
        self._spec = spec
        self._name = name
        self._decode_file = decode_file

    @override
    def decode(self, block: Block) -> DecodedBlock:
        files = block.columns.get(self._name)
        if files is None:
            why = f"the record has no field {self._name}"
            return DecodedBlock.with_failures({}, block, {0: (FailureKind.DECODE, why)})
        try:
            row = self._decode_file(block, files[0].tobytes())
        except ValueError as error:
            why = f"field {self._name}: {error}"
            return DecodedBlock.with_failures({}, block, {0: (FailureKind.FORMAT, why)})
        return DecodedBlock({self._spec.name: self._tensor(row)})

    def _tensor(self, row: Any) -> Array:
        if self._spec.datatype != "BYTES":
            return row[np.newaxis]
        texts = text_array([row])
        return texts[:, np.newaxis] if takes_column_vector(self._spec) else texts


def _array(spec: TensorSpec, data: bytes) -> Array:
    """Return the array of a `.npy` file as a row of an input. Raise ValueError if it does not fit."""
    try:
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"not an array of numbers: {error}") from error
    dtype, shape = dtype_of(spec.datatype), spec.shape
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"the array is {array.dtype}, but input {spec.name!r} takes {spec.datatype}")
    if shape is not None and not shape_fits(array.shape, shape[1:]):
        raise ValueError(f"the array is {list(array.shape)}, but input {spec.name!r} takes {list(shape)}")
    return array.astype(dtype)


class _JoinedDecoder(Decoder):
    """A decoder of the inputs of several decoders, for blocks of one record.

    The failure of the record is that of the first decoder that fails.
    """

    def __init__(self, parts: Sequence[Decoder]) -> None:
        self._parts = parts

    @override
    def decode(self, block: Block) -> DecodedBlock:
        decoded = [part.decode(block) for part in self._parts]
        for each in decoded:
            if each.failures:
                return each
        return DecodedBlock({name: data for each in decoded for name, data in each.tensors.items()})
