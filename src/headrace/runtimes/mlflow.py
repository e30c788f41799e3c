"""MLflow's pyfunc folders as models. The only module that imports mlflow."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import orjson
from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError, ModelInputError, ModelLoadError
from headrace.core.model import Model, RowError
from headrace.core.tensor import Array, InferRequest, TensorSpec, datatype_of, text_array
from headrace.runtimes.model_io import decode_text, encode_json_texts, option_advice, summarize_error

# mlflow sends usage data unless this is set before its import.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
try:
    with warnings.catch_warnings():
        # mlflow's own type hints make it warn.
        warnings.simplefilter("ignore")
        import mlflow.pyfunc as _pyfunc
        import mlflow.types as _types

    # This module has an extra of its own, which would be named first and is included in this one.
    from headrace.runtimes.frames import columns_from_frame, frame_from_columns, is_frame
except (ImportError, MissingExtraError) as _error:
    raise MissingExtraError("mlflow", "an MLflow model") from _error

pyfunc: Any = _pyfunc
types: Any = _types

_DATATYPES: Final = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
}
_UNNAMED_INPUT: Final = "x"
_UNNAMED_OUTPUT: Final = "output"


class MlflowModel(Model):
    """A folder with an ``MLmodel`` file of the ``python_function`` flavor.

    Inputs and outputs come from the signature:

    - Columns: each is an input ``[n]``, and the model is called with a DataFrame. Strings are text,
      dates are text in ISO form, and arrays, objects and maps are JSON.
    - Tensors: a single tensor without a name is ``x``.
    - No signature: one input is passed unchanged, several as the columns of a DataFrame.

    Each column of a returned DataFrame is an output. An unnamed output is ``output``. Values that
    are neither numbers nor text become JSON. A model marked ``streamable`` streams: one row in, an
    item for each piece that it yields.

    Args:
        path: The folder.
        allow_pickle: Must be true. Loading such a folder runs its code and unpickles objects.
        params: Values of the signature's params. In a stream, a request's parameters of the same
            names override them.
        model_config: The model's configuration.
    """

    writes_inputs = True

    def __init__(
        self,
        path: Path,
        *,
        allow_pickle: bool = False,
        params: Mapping[str, Any] | None = None,
        model_config: Mapping[str, Any] | None = None,
    ) -> None:
        if allow_pickle is not True:
            raise ConfigError(
                f"{path} is an MLflow model: loading it runs the code and the pickles in the folder. "
                f"If you trust the folder, {option_advice('allow_pickle', True)}"
            )
        self._path = path
        self._name = path.resolve().name
        self._params = dict(params or {})
        self._config = dict(model_config) if model_config is not None else None
        self._model: Any = None

    @override
    def load(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._model = pyfunc.load_model(
                    str(self._path.resolve()), suppress_warnings=True, model_config=self._config
                )
        except Exception as error:
            raise ModelLoadError(
                self._name, f"{self._path} does not load: {summarize_error(error)}"
            ) from error
        metadata = self._model.metadata
        signature = metadata.signature
        self._schema = signature.inputs if signature is not None else None
        known: Any = signature.params.params if signature is not None and signature.params is not None else ()
        self._known_params = frozenset(str(p.name) for p in known)
        if unknown := self._params.keys() - self._known_params:
            has = ", ".join(sorted(self._known_params)) or "none"
            raise ConfigError(
                f"{self._path} has no param {', '.join(sorted(unknown))}; its signature has {has}"
            )
        self.inputs = _specs(self._schema, _UNNAMED_INPUT)
        self.outputs = _specs(signature.outputs if signature is not None else None, _UNNAMED_OUTPUT)
        if not metadata.flavors["python_function"].get("streamable"):
            # Without this the model would count as one with streams.
            vars(self)["predict_stream"] = super().predict_stream

    @override
    def close(self) -> None:
        self._model = None

    @override
    def predict(self, /, **tensors: Array) -> Mapping[str, Array]:
        """Call the pyfunc with a batch.

        Raises RowError for text that is not UTF-8 and for malformed JSON.
        """
        result = self._model.predict(self._pyfunc_argument(tensors), params=self._params or None)
        rows = len(next(iter(tensors.values())))
        return _outputs(result, [s.name for s in self.outputs], rows)

    @override
    def predict_stream(self, requests: Iterator[InferRequest], /) -> Iterator[Mapping[str, Any]]:
        """Yield the pieces of the model's stream for each request, which must have one row.

        Raises:
            ModelInputError: A request has another number of rows, or an input is missing.
        """
        for request in requests:
            if request.rows != 1:
                raise ModelInputError(
                    self._name, f"a stream takes one row, but the request has {request.rows}"
                )
            overrides = {n: v for n, v in request.parameters.items() if n in self._known_params}
            data = self._row({t.name: t.data for t in request.inputs})
            with closing(
                self._model.predict_stream(data, params={**self._params, **overrides} or None)
            ) as pieces:
                for piece in pieces:
                    yield _item(piece)

    def _pyfunc_argument(self, tensors: Mapping[str, Array]) -> Any:
        """Return the argument of the pyfunc: an array, arrays by name, or a DataFrame."""
        if self._schema is None:
            texts = {n: decode_text(n, d) if d.dtype == object else d for n, d in tensors.items()}
            return next(iter(texts.values())) if len(texts) == 1 else frame_from_columns(texts)
        if self._schema.is_tensor_spec():
            named = all(spec.name for spec in self._schema.inputs)
            return dict(tensors) if named else next(iter(tensors.values()))
        columns = {str(spec.name or _UNNAMED_INPUT): spec.type for spec in self._schema.inputs}
        if len(columns) < len(self._schema.inputs):
            # The columns have no names: the request has one matrix.
            matrix = next(iter(tensors.values()))
            return frame_from_columns({str(index): column for index, column in enumerate(matrix.T)}).set_axis(
                range(matrix.shape[1]), axis=1
            )
        frame = frame_from_columns({n: _column(n, tensors[n], kind) for n, kind in columns.items()})
        return frame if any(spec.name for spec in self._schema.inputs) else frame.set_axis([0], axis=1)

    def _row(self, tensors: Mapping[str, Array]) -> Any:
        """Return one row for a streaming pyfunc: a dict by column, or a value without a name."""
        try:
            texts = {n: decode_text(n, d) if d.dtype == object else d for n, d in tensors.items()}
        except RowError as error:
            raise ModelInputError(self._name, str(error)) from None
        if self._schema is not None and self._schema.is_tensor_spec():
            return self._pyfunc_argument(texts)
        kinds = (
            {}
            if self._schema is None
            else {str(s.name or _UNNAMED_INPUT): s.type for s in self._schema.inputs}
        )
        if missing := kinds.keys() - texts.keys():
            raise ModelInputError(self._name, f"input {', '.join(map(repr, sorted(missing)))} is missing")
        row: dict[str, Any] = {}
        for name, data in texts.items():
            value: Any = data[0]
            plain: Any = value.tolist() if hasattr(value, "tolist") else value
            row[name] = _from_json(plain) if _is_json(kinds.get(name)) else plain
        unnamed = self._schema is not None and len(kinds) == 1 and not self._schema.inputs[0].name
        return row[_UNNAMED_INPUT] if unnamed else row


def _specs(schema: Any, unnamed: str) -> tuple[TensorSpec, ...]:
    """Return the specs of one side of a signature.

    The result is empty if the side is missing or several of its values have no name.
    """
    if schema is None:
        return ()
    if schema.is_tensor_spec():
        return tuple(_tensor_spec(s, unnamed) for s in schema.inputs) if _are_distinct(schema) else ()
    if _are_distinct(schema):
        return tuple(TensorSpec(str(s.name or unnamed), _datatype(s.type), (-1,)) for s in schema.inputs)
    kinds = {_datatype(s.type) for s in schema.inputs}
    return (TensorSpec(unnamed, kinds.pop(), (-1, len(schema.inputs))),) if len(kinds) == 1 else ()


def _are_distinct(schema: Any) -> bool:
    return len(schema.inputs) == 1 or all(s.name for s in schema.inputs)


def _tensor_spec(spec: Any, unnamed: str) -> TensorSpec:
    shape = tuple(int(size) for size in spec.shape)
    return TensorSpec(str(spec.name or unnamed), datatype_of(np.dtype(spec.type)), (-1, *shape[1:]))


def _datatype(kind: Any) -> str:
    return _DATATYPES.get(str(getattr(kind, "name", kind)), "BYTES")


def _is_json(kind: Any) -> bool:
    """Return True if a column's values are nested: an array, an object, a map, or any type."""
    return kind is not None and not isinstance(kind, types.DataType)


def _from_json(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, (str, bytes)) else value


def _column(name: str, data: Array, kind: Any) -> Array:
    """Return a column in the form that the pyfunc expects in its DataFrame."""
    if _is_json(kind):
        values, errors = text_array([None] * len(data)), dict[int, str]()
        for row, text in enumerate(data.reshape(len(data))):
            try:
                values[row] = _from_json(text)
            except orjson.JSONDecodeError as error:
                errors[row] = f"input {name!r} is not JSON: {error}"
        if errors:
            raise RowError(errors)
        return values
    if kind == types.DataType.binary:
        return text_array([v.encode() if isinstance(v, str) else v for v in data.reshape(len(data))])
    if data.dtype != object:
        return data
    texts = decode_text(name, data)
    return _dates(name, texts) if kind == types.DataType.datetime else texts


def _dates(name: str, texts: Array) -> Array:
    dates, errors = np.empty(len(texts), "datetime64[ns]"), dict[int, str]()
    for row, text in enumerate(texts.reshape(len(texts))):
        try:
            dates[row] = np.datetime64(text)
        except ValueError as error:
            errors[row] = f"input {name!r} is not a date: {error}"
    if errors:
        raise RowError(errors)
    return dates


def _outputs(result: Any, names: Sequence[str], rows: int) -> dict[str, Array]:
    """Return a pyfunc's result by output name."""
    if is_frame(result):
        found = columns_from_frame(result)
    elif isinstance(result, Mapping):
        found = {str(n): _array(v) for n, v in cast("Mapping[Any, Any]", result).items()}
    else:
        found = {
            _UNNAMED_OUTPUT: _array(
                result if rows != 1 or np.ndim(result) or isinstance(result, (list, dict)) else [result]
            )
        }
    found = {name: _encodable(data) for name, data in found.items()}
    # A single value is accepted under either name, the model's or the signature's.
    return {names[0]: next(iter(found.values()))} if len(names) == len(found) == 1 else found


def _array(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    if hasattr(value, "toarray"):
        return value.toarray()
    try:
        return np.asarray(value)
    except ValueError:  # The lists have several lengths.
        return text_array(list(value))


def _encodable(data: Array) -> Array:
    """Return an array that a protocol can carry.

    Dates become ISO text; objects other than text become JSON.
    """
    if data.dtype.kind in "mM":
        return text_array(
            np.datetime_as_string(data).tolist() if data.dtype.kind == "M" else data.astype(str).tolist()
        )
    if data.dtype != object or all(isinstance(v, (str, bytes)) for v in data.flat):
        return data
    return encode_json_texts(data.tolist())


def _item(piece: Any) -> Mapping[str, Any]:
    """Return a piece of a stream by output name.

    Text and numbers stay unchanged; other values become JSON.
    """
    named = cast("Mapping[Any, Any]", piece) if isinstance(piece, Mapping) else {_UNNAMED_OUTPUT: piece}
    return {str(name): _one(value) for name, value in named.items()}


def _one(value: Any) -> Array:
    if isinstance(value, (str, bytes)):
        return text_array([value])
    if isinstance(value, (bool, int, float, np.generic)):
        return np.array([value])
    return encode_json_texts([value])
