"""The mapping of named fields to model inputs: of JSON, of framed messages, and of columns of tables.

A model with a single BYTES input receives whole framed records (RecordIO, TFRecord). Otherwise the
fields of --columns or --text-column, or those with the names of the inputs, become the inputs. A
model with one input may also take the only feature of a message (`values` in SageMaker's format), or
all numeric columns of a table.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.column_decode import ColumnsInput, TableDecoder
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.encoding import UTF8
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.json_path import JsonPath, compile_path
from headrace.formats.json_select import MemberSelector
from headrace.formats.line import RawDecoder
from headrace.formats.proto_decode import ProtoDecoder, ProtoInput
from headrace.formats.proto_messages import RECORD
from headrace.runs.infer import FRAMED_KINDS
from headrace.runs.schema import NUMERIC, Column, RecordSchema
from headrace.runs.sequences import sequence_columns
from headrace.runs.settings import MappingOptions

_VECTOR: Final = "values"


def framed_decoder(metadata: ModelMetadata, mapping: MappingOptions, records: RecordSchema) -> Decoder:
    """Return the decoder of a framed format for a model.

    Raises:
        ModelInputError: The records can never fit the model.
    """
    inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
    chosen = mapping.columns if mapping.text_column is None else (mapping.text_column,)
    if len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen:
        return RawDecoder(inputs[0].name, as_column_vector=takes_column_vector(inputs[0]))
    names = tuple(str(name) for name in chosen)
    return _FeatureChooser(metadata.name, names, records).decoder(inputs)


def takes_column_vector(spec: TensorSpec) -> bool:
    """Return True if an input of one value per record is [n, 1] rather than [n]."""
    return spec.shape is not None and len(spec.shape) == 2


class _FeatureChooser:
    """The selection of features for each input."""

    def __init__(self, model: str, chosen: tuple[str, ...], records: RecordSchema) -> None:
        self._kind = FRAMED_KINDS[records.format]
        self._model = model
        self._chosen = chosen
        self._records = records
        self._sizes = {name: prod(column.shape) for name, column in _by_name(records).items()}

    def decoder(self, inputs: tuple[TensorSpec, ...]) -> Decoder:
        """Return the decoder with the features and the shape of each input."""
        if len(inputs) > 1 and self._chosen and len(self._chosen) != len(inputs):
            raise ModelInputError(
                self._model, f"it has {len(inputs)} inputs, but --columns names {len(self._chosen)} features"
            )
        proto_inputs: dict[str, ProtoInput] = {}
        for index, spec in enumerate(inputs):
            wanted = self._chosen if len(inputs) == 1 else self._chosen[index : index + 1]
            names = wanted or self._names(spec, inputs)
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            proto_inputs[spec.name] = ProtoInput(names, dtype, self._shape(spec, names))
        return ProtoDecoder(self._kind, proto_inputs)

    def _names(self, spec: TensorSpec, inputs: tuple[TensorSpec, ...]) -> tuple[str, ...]:
        if not self._sizes or spec.name in self._sizes:
            vector = not self._sizes and len(inputs) == 1 and self._kind is RECORD
            return (_VECTOR,) if vector else (spec.name,)
        if len(inputs) == 1 and _VECTOR in self._sizes and self._kind is RECORD:
            return (_VECTOR,)
        if len(inputs) == 1 and len(self._sizes) == 1:
            return tuple(self._sizes)
        raise ModelInputError(
            self._model,
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {self._records.place} "
            f"on have the features {', '.join(self._sizes) or '(none)'}: choose features with "
            "--columns or --text-column",
        )

    def _shape(self, spec: TensorSpec, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of one row: the model's, with open sizes filled from the records."""
        shape = (-1,) if spec.shape is None else spec.shape[1:]
        return shape if -1 not in shape else self._filled(spec, shape, names)

    def _filled(self, spec: TensorSpec, shape: tuple[int, ...], names: tuple[str, ...]) -> tuple[int, ...]:
        if not self._sizes:
            raise ModelInputError(
                self._model,
                f"the records from {self._records.place} on are no {self._kind.name} messages "
                f"({self._records.problem}): use a model with one BYTES input, which receives whole records",
            )
        missing = [name for name in names if name not in self._sizes]
        if missing:
            raise ModelInputError(
                self._model,
                f"the records from {self._records.place} on have no feature {', '.join(missing)} (they have "
                f"{', '.join(self._sizes) or 'none'}): choose others with --columns",
            )
        values = sum(self._sizes[name] for name in names)
        known = prod(size for size in shape if size != -1)
        if shape.count(-1) > 1 or not known or values % known:
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape or shape)}, but a record has {values} values",
            )
        return tuple(values // known if size == -1 else size for size in shape)


def _by_name(records: RecordSchema) -> dict[str, Column]:
    """Return the columns that have names."""
    return {column.name: column for column in records.columns if column.name is not None}


def select_columns(records: RecordSchema, path: JsonPath) -> RecordSchema:
    """Return the schema of the columns of a table that the input filter selects, in its order.

    A path into structs selects one column, whose name has dots.

    Raises ConfigError if the path selects no columns, or columns that are missing.
    """
    if path.is_root:
        return records
    if (selection := path.columns) is not None:
        try:
            selected = selection.indices(len(records.columns), records.names)
        except ValueError as error:
            raise ConfigError(f"the input filter {error}") from None
        return replace(records, columns=tuple(records.columns[index] for index in selected))
    names = [s.names[0] for s in path.segments if isinstance(s, MemberSelector) and len(s.names) == 1]
    if len(names) < len(path.segments) or names[0] not in records.names:
        raise ConfigError(
            f"the input filter {path.text} does not select columns of the file at {records.place}: use "
            f"$, names such as $['id'], numbers and slices such as $[0,2:], or a path into structs such as "
            f"$.a.b; the columns are {', '.join(records.names)}"
        )
    return replace(records, columns=(Column(".".join(names), "object"),))


class TableMapping:
    """The choice of the decoder of rows of tables for a model.

    Raises:
        ConfigError: The input filter, or a column of sequences, does not fit the columns.
        ModelInputError: A chosen column does not exist.
    """

    def __init__(self, metadata: ModelMetadata, mapping: MappingOptions, records: RecordSchema) -> None:
        self._model = metadata.name
        self._inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
        self._all_names = records.names
        self._sequence_columns = sequence_columns(mapping, records.names)
        path = compile_path(mapping.input_filter, slice_end=mapping.slice_end)
        self._is_filtered = not path.is_root
        records = select_columns(records, path)
        self._records = records
        self._columns = _by_name(records)
        self._names = records.names
        chosen: Sequence[str | int] = (
            mapping.columns if mapping.text_column is None else (mapping.text_column,)
        )
        self._chosen = tuple(self._name(column) for column in chosen)

    def decoder(self) -> Decoder:
        """Return the decoder with the columns and the shape of each input.

        Raises ModelInputError if the rows can never fit the model.
        """
        return TableDecoder(self._column_inputs())

    def needed_columns(self) -> tuple[str, ...]:
        """Return the columns of a file that become inputs or name sequences, each once.

        Raises ModelInputError if the rows can never fit the model.
        """
        names = [name for found in self._column_inputs().values() for name in found.columns]
        heads = [name if name in self._all_names else name.partition(".")[0] for name in names]
        return tuple(dict.fromkeys((*heads, *self._sequence_columns)))

    def _column_inputs(self) -> dict[str, ColumnsInput]:
        if len(self._inputs) > 1 and self._chosen and len(self._chosen) != len(self._inputs):
            raise ModelInputError(
                self._model,
                f"it has {len(self._inputs)} inputs, but --columns names {len(self._chosen)} columns",
            )
        inputs: dict[str, ColumnsInput] = {}
        for index, spec in enumerate(self._inputs):
            columns = tuple(self._names_for(index, spec))
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            inputs[spec.name] = ColumnsInput(columns, dtype, self._shape(spec, columns))
        return inputs

    def _name(self, column: str | int) -> str:
        if isinstance(column, str):
            return column
        if not 0 <= column < len(self._names):
            raise ModelInputError(
                self._model,
                f"there is no column {column}: the file has {len(self._names)} columns, counted from 0",
            )
        return self._names[column]

    def _names_for(self, index: int, spec: TensorSpec) -> Sequence[str]:
        single_input = len(self._inputs) == 1
        chosen = self._chosen if single_input else self._chosen[index : index + 1]
        if not chosen and (spec.name in self._names or not single_input):
            chosen = (spec.name,)
        if chosen:
            missing = [
                name
                for name in chosen
                if name.partition(".")[0] not in self._names and name not in self._names
            ]
            if missing:
                raise self._misfit(f"there is no column {', '.join(missing)}")
            return chosen
        if len(self._names) == 1:
            return self._names
        if spec.datatype == "BYTES":
            raise self._misfit(f"input {spec.name!r} takes text: choose its column with --text-column")
        return self._numeric(spec)

    def _numeric(self, spec: TensorSpec) -> Sequence[str]:
        """Return all numeric columns, if the model takes as many."""
        left_out = () if self._is_filtered else self._sequence_columns
        found = [
            column.name
            for column in self._records.columns
            if column.name is not None
            and column.name not in left_out
            and column.type in NUMERIC
            and not column.shape
        ]
        shape = spec.shape or (-1, -1)
        takes = shape[1] if len(shape) == 2 else 1
        if not found or takes not in (-1, len(found)):
            raise self._misfit(
                f"input {spec.name!r} takes {'numbers' if takes == -1 else f'{takes} numbers'} per row, but "
                f"{len(found)} columns are numeric: choose columns with --columns"
            )
        return found

    def _shape(self, spec: TensorSpec, columns: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of one row: the model's, with open sizes from the columns."""
        shape = None if spec.shape is None else spec.shape[1:]
        if len(columns) > 1:
            if shape is not None and shape not in ((-1,), (len(columns),)):
                raise self._misfit(
                    f"input {spec.name!r} takes {list(spec.shape or ())}, but {len(columns)} columns "
                    "are selected for it"
                )
            return (len(columns),)
        if shape is not None and -1 not in shape:
            return shape
        column = self._columns.get(next(iter(columns)))
        if column is not None and column.shape:
            return column.shape
        if shape is None and spec.datatype == "BYTES" and column is not None:
            return ()
        return (1,) * (1 if shape is None else len(shape))

    def _misfit(self, why: str) -> ModelInputError:
        return ModelInputError(
            self._model, f"{why} (the file at {self._records.place} has the columns {', '.join(self._names)})"
        )


def json_decoder(
    metadata: ModelMetadata,
    mapping: MappingOptions,
    select: Callable[[Any], Any] | None,
    records: RecordSchema,
    encoding: str = UTF8,
) -> Decoder:
    """Return the decoder of JSON records for a model. `select` returns the filtered part of a record.

    `encoding` is that of the source, for messages.

    Raises:
        ModelInputError: The records can never fit the model.
    """
    if mapping.text_column is not None:
        name = metadata.only_input("--text-column").name
        field = JsonField(str(mapping.text_column), "text")
        return JsonDecoder({name: field}, select=select, encoding=encoding)
    if mapping.columns:
        spec = metadata.only_input("--columns")
        return _StackedFieldsDecoder(spec, [str(c) for c in mapping.columns], select, encoding)
    if records.is_whole:
        spec = metadata.only_input("a JSON array")
        whole = records.columns[0] if records.columns else None
        return JsonDecoder({spec.name: json_field(spec, None, whole)}, select=select, encoding=encoding)
    inputs = metadata.inputs or (metadata.only_input("JSON"),)
    if not all(i.name in records.names for i in inputs):
        raise ModelInputError(
            metadata.name,
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {records.place} on "
            f"have the fields {', '.join(records.names)}: choose fields with --columns or --text-column",
        )
    fields = {i.name: json_field(i, i.name, records.column(i.name)) for i in inputs}
    return JsonDecoder(fields, select=select, encoding=encoding)


def json_field(spec: TensorSpec, path: str | None, column: Column | None) -> JsonField:
    """Return a field of the model's shape, with open sizes from the records.

    `column` is None for a field within another one, whose sizes are those of the first record.
    """
    shape = spec.shape[1:] if spec.shape is not None else (-1,)
    dtype = "text" if spec.datatype == "BYTES" else dtype_of(spec.datatype)
    if -1 not in shape:
        return JsonField(path, dtype, shape)
    if column is not None:
        return JsonField(path, dtype, column.shape)
    return JsonField(path, dtype, () if path is None else None)


class _StackedFieldsDecoder(Decoder):
    """A decoder of scalar JSON fields as the columns of one matrix."""

    def __init__(
        self, spec: TensorSpec, fields: list[str], select: Callable[[Any], Any] | None, encoding: str
    ) -> None:
        self._spec = spec
        self._fields = fields
        dtype = dtype_of(spec.datatype)
        self._inner = JsonDecoder(
            {f: JsonField(f, dtype, ()) for f in fields}, select=select, encoding=encoding
        )

    @override
    def decode(self, block: Block) -> DecodedBlock:
        decoded = self._inner.decode(block)
        matrix = np.stack([decoded.tensors[f] for f in self._fields], axis=1)
        return DecodedBlock({self._spec.name: matrix}, decoded.rows, decoded.failures)
