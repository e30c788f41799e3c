"""The mapping of named fields to model inputs: of JSON, of framed messages, and of Parquet columns.

A model with a single BYTES input receives whole framed records (RecordIO, TFRecord). Otherwise the
fields of --columns or --text-column, or those with the names of the inputs, become the inputs. A
model with one input may also take the only feature of a message (`values` in SageMaker's format), or
all numeric columns of a table.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec, dtype_of
from headrace.formats.column_decode import ColumnsInput, ParquetDecoder, values_dtype
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.encoding import UTF8
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.line import RawDecoder
from headrace.formats.proto_decode import ProtoDecoder, ProtoInput
from headrace.formats.proto_messages import EXAMPLE, RECORD, MessageKind, feature_values, features
from headrace.runs.settings import MappingOptions

FIRST_RECORDS: Final = 100
"""The number of first records; if none of them fits the model, the run is refused."""

FRAMED_KINDS: Final[Mapping[str, MessageKind]] = {"recordio": RECORD, "tfrecord": EXAMPLE}
"""The formats of framed records, with the message type of their records."""

_VECTOR: Final = "values"


def framed_decoder(
    kind: str, metadata: ModelMetadata, mapping: MappingOptions, learned: dict[str, Any], block: Block
) -> Decoder:
    """Return the decoder of a framed format for a model.

    `learned` receives what the first records decide.

    Raises:
        ModelInputError: The records can never fit the model.
    """
    inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
    chosen = mapping.columns if mapping.text_column is None else (mapping.text_column,)
    if len(inputs) == 1 and inputs[0].datatype == "BYTES" and not chosen:
        as_column = inputs[0].shape is not None and len(inputs[0].shape) == 2
        return RawDecoder(inputs[0].name, as_column_vector=as_column)
    names = tuple(str(name) for name in chosen)
    return _FeatureChooser(FRAMED_KINDS[kind], metadata.name, names, learned, block).decoder(inputs)


class _FeatureChooser:
    """The selection of features for each input, based on the first records."""

    def __init__(
        self, kind: MessageKind, model: str, chosen: tuple[str, ...], learned: dict[str, Any], block: Block
    ) -> None:
        self._kind = kind
        self._model = model
        self._chosen = chosen
        self._learned = learned
        self._block = block
        self._sizes, self._why = _first_sizes(kind, block)

    def decoder(self, inputs: tuple[TensorSpec, ...]) -> Decoder:
        """Return the decoder with the features and the shape of each input."""
        if len(inputs) > 1 and self._chosen and len(self._chosen) != len(inputs):
            raise ModelInputError(
                self._model, f"it has {len(inputs)} inputs, but --columns names {len(self._chosen)} features"
            )
        proto_inputs: dict[str, ProtoInput] = {}
        for index, spec in enumerate(inputs):
            wanted = self._chosen if len(inputs) == 1 else self._chosen[index : index + 1]
            key = f"features {spec.name}"
            if key not in self._learned:
                self._learned[key] = list(wanted or self._by_name(spec, inputs))
            names = tuple(self._learned[key])
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            proto_inputs[spec.name] = ProtoInput(names, dtype, self._shape(spec, names))
        return ProtoDecoder(self._kind, proto_inputs)

    def _by_name(self, spec: TensorSpec, inputs: tuple[TensorSpec, ...]) -> tuple[str, ...]:
        if self._sizes is None or spec.name in self._sizes:
            vector = self._sizes is None and len(inputs) == 1 and self._kind is RECORD
            return (_VECTOR,) if vector else (spec.name,)
        if len(inputs) == 1 and _VECTOR in self._sizes and self._kind is RECORD:
            return (_VECTOR,)
        if len(inputs) == 1 and len(self._sizes) == 1:
            return tuple(self._sizes)
        raise ModelInputError(
            self._model,
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {self._block.first} "
            f"on have the features {', '.join(self._sizes) or '(none)'}: choose features with "
            "--columns or --text-column",
        )

    def _shape(self, spec: TensorSpec, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of one row: the model's, with open sizes filled from the first record."""
        shape = (-1,) if spec.shape is None else spec.shape[1:]
        if -1 not in shape:
            return shape
        key = f"feature_shape {spec.name}"
        if key not in self._learned:
            self._learned[key] = self._filled(spec, shape, names)
        return tuple(self._learned[key])

    def _filled(self, spec: TensorSpec, shape: tuple[int, ...], names: tuple[str, ...]) -> list[int]:
        if self._sizes is None:
            raise ModelInputError(
                self._model,
                f"the records from {self._block.first} on are no {self._kind.name} messages "
                f"({self._why}): use a model with one BYTES input, which receives whole records",
            )
        missing = [name for name in names if name not in self._sizes]
        if missing:
            raise ModelInputError(
                self._model,
                f"the records from {self._block.first} on have no feature {', '.join(missing)} (they have "
                f"{', '.join(self._sizes) or 'none'}): choose others with --columns",
            )
        values = sum(self._sizes[name] for name in names)
        known = prod(size for size in shape if size != -1)
        if shape.count(-1) > 1 or not known or values % known:
            raise ModelInputError(
                self._model,
                f"input {spec.name!r} takes {list(spec.shape or shape)}, but a record has {values} values",
            )
        return [values // known if size == -1 else size for size in shape]


def _first_sizes(kind: MessageKind, block: Block) -> tuple[dict[str, int] | None, str]:
    """Return the number of values per feature of the first valid message, or None and the reason."""
    first_why = "they are empty"
    for index in range(min(len(block), FIRST_RECORDS)):
        record = block.record(index)
        try:
            found = {name.decode(): feature for name, feature in features(record, kind, None).items()}
            sizes = {name: len(feature_values(record, feature, name)) for name, feature in found.items()}
        except ValueError as error:
            first_why = str(error)
            continue
        if sizes:
            return sizes, ""
    return None, first_why


class ParquetMapping:
    """The choice of the decoder of one Parquet file for a model.

    `learned` receives what the first rows, those of `block`, decide.
    """

    def __init__(
        self, metadata: ModelMetadata, mapping: MappingOptions, learned: dict[str, Any], block: Block
    ) -> None:
        self._model = metadata.name
        self._inputs = metadata.inputs or (TensorSpec("x", "FP32"),)
        self._learned = learned
        self._block = block
        self._names = block.column_names or tuple(block.columns)
        chosen: Sequence[str | int] = (
            mapping.columns if mapping.text_column is None else (mapping.text_column,)
        )
        self._chosen = tuple(self._name(column) for column in chosen)

    def decoder(self) -> Decoder:
        """Return the decoder with the columns and the shape of each input.

        Raises ModelInputError if the rows can never fit the model.
        """
        if len(self._inputs) > 1 and self._chosen and len(self._chosen) != len(self._inputs):
            raise ModelInputError(
                self._model,
                f"it has {len(self._inputs)} inputs, but --columns names {len(self._chosen)} columns",
            )
        inputs: dict[str, ColumnsInput] = {}
        for index, spec in enumerate(self._inputs):
            key = f"parquet_columns {spec.name}"
            if key not in self._learned:
                self._learned[key] = list(self._columns(index, spec))
            columns = tuple(self._learned[key])
            dtype = None if spec.datatype == "BYTES" else dtype_of(spec.datatype)
            inputs[spec.name] = ColumnsInput(columns, dtype, self._shape(spec, columns))
        return ParquetDecoder(inputs)

    def _name(self, column: str | int) -> str:
        if isinstance(column, str):
            return column
        if not 0 <= column < len(self._names):
            raise ModelInputError(
                self._model,
                f"there is no column {column}: the file has {len(self._names)} columns, counted from 0",
            )
        return self._names[column]

    def _columns(self, index: int, spec: TensorSpec) -> Sequence[str]:
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
        columns = self._block.columns
        found = [n for n in self._names if n in columns and values_dtype(columns[n]).kind in "fiub"]
        shape = spec.shape or (-1, -1)
        takes = shape[1] if len(shape) == 2 else 1
        if not found or takes not in (-1, len(found)):
            raise self._misfit(
                f"input {spec.name!r} takes {'numbers' if takes == -1 else f'{takes} numbers'} per row, but "
                f"{len(found)} columns are numeric: choose columns with --columns"
            )
        return found

    def _shape(self, spec: TensorSpec, columns: tuple[str, ...]) -> tuple[int, ...]:
        """Return the shape of one row: the model's, with open sizes from the columns.

        List columns give the shape of the first row's lists.
        """
        flat = all(name in self._block.columns for name in columns)
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
        key = f"parquet_shape {spec.name}"
        if key not in self._learned:
            text = spec.datatype == "BYTES"
            open_shape = [] if shape is None and text else [1] * (1 if shape is None else len(shape))
            self._learned[key] = open_shape if flat else self._list_shape(next(iter(columns)))
        return tuple(self._learned[key])

    def _list_shape(self, column: str) -> list[int]:
        """Return the shape of the lists in the first row that has any."""
        for index in range(len(self._block)):
            value: Any = orjson.loads(self._block.record(index)).get(column)
            shape: list[int] = []
            while isinstance(value, list):
                shape.append(len(value))  # pyright: ignore[reportUnknownArgumentType]  # parsed JSON
                value = value[0] if value else None  # pyright: ignore[reportUnknownVariableType]
            if shape:
                return shape
        return [1]

    def _misfit(self, why: str) -> ModelInputError:
        return ModelInputError(
            self._model, f"{why} (the file at {self._block.first} has the columns {', '.join(self._names)})"
        )


class JsonMapping:
    """The choice of the decoder of JSON records for one model.

    `learned` receives what the first records decide. `select` returns what the input filter selects
    of a record. `encoding` is that of the source, for messages.
    """

    def __init__(
        self,
        metadata: ModelMetadata,
        mapping: MappingOptions,
        select: Callable[[Any], Any] | None,
        learned: dict[str, Any],
        encoding: str = UTF8,
    ) -> None:
        self._metadata = metadata
        self._mapping = mapping
        self._encoding = encoding
        self._select = select
        self._learned = learned

    def decoder(self, block: Block) -> Decoder:
        """Return a decoder for the records; `block` has the first of them."""
        text = self._mapping.text_column
        if text is not None:
            return JsonDecoder(
                {self._metadata.only_input("--text-column").name: JsonField(str(text), "text")},
                select=self._select,
                encoding=self._encoding,
            )
        if self._mapping.columns:
            spec = self._metadata.only_input("--columns")
            return _StackedFieldsDecoder(
                spec, [str(c) for c in self._mapping.columns], self._select, self._encoding
            )
        inputs = self._metadata.inputs or (self._metadata.only_input("JSON"),)
        # A resumed run accepts the records that the original run accepted.
        first = _first_json(block, self._select, refuse="json_whole" not in self._learned)
        whole = self._learned.setdefault("json_whole", not isinstance(first, dict))
        if whole:
            spec = self._metadata.only_input("a JSON array")
            return JsonDecoder(
                {spec.name: self._field(spec, None, first)}, select=self._select, encoding=self._encoding
            )
        fields = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
        if "json_fields" in self._learned or all(i.name in fields for i in inputs):
            self._learned["json_fields"] = True
            readers = {i.name: self._field(i, i.name, fields.get(i.name)) for i in inputs}
            return JsonDecoder(readers, select=self._select, encoding=self._encoding)
        raise ModelInputError(
            self._metadata.name,
            f"it takes {', '.join(i.name for i in inputs)}, but the records from {block.first} on "
            f"have the fields {', '.join(fields)}: choose fields with --columns or --text-column",
        )

    def _field(self, spec: TensorSpec, path: str | None, first: Any) -> JsonField:
        """Return a field of the model's shape, with open sizes from the first record."""
        text = spec.datatype == "BYTES"
        shape = list(spec.shape[1:]) if spec.shape is not None else [-1]
        if -1 in shape:
            shape = self._learned.setdefault(f"json_shape {spec.name}", _shape_of(first))
        dtype = "text" if text else dtype_of(spec.datatype)
        return JsonField(path, dtype, tuple(shape))


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

    def decode(self, block: Block) -> DecodedBlock:
        decoded = self._inner.decode(block)
        matrix = np.stack([decoded.tensors[f] for f in self._fields], axis=1)
        return DecodedBlock({self._spec.name: matrix}, decoded.rows, decoded.failures)


def _shape_of(value: Any) -> list[int]:
    """Return the shape of a JSON value: the lengths of the nested first lists."""
    shape: list[int] = []
    while isinstance(value, list):
        items = cast("list[Any]", value)
        shape.append(len(items))
        value = items[0] if items else None
    return shape


def _first_json(block: Block, select: Callable[[Any], Any] | None, *, refuse: bool) -> Any:
    """Return the first record that is valid JSON. An invalid record must not decide for the others.

    With `select`, return its selection from the first record that has it. With `refuse` too, raise
    ConfigError if no record has it.
    """
    missing: ValueError | None = None
    for index in range(min(len(block), FIRST_RECORDS)):
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
        raise ConfigError(
            f"the input filter selects nothing from the records from {block.first} on: {missing}"
        )
    return None
