"""Bodies without descriptions of tensors, which are read by the model's metadata. Pure.

- Plain JSON values: one input's values, or an object of values by input. One row may be written
  without its brackets, a column may be flat, and numbers take the declared datatype.
- The ``generate`` extension of the Open Inference Protocol: ``{"text_input": "..."}``, with
  parameters beside it or below ``parameters``, becomes a request. A response becomes
  ``{"text_output": "..."}``. Other inputs and outputs of a model keep their own names, as in
  Triton's mapping. A body with ``inputs`` is an inference request, which is the form of MLServer's
  ``generate``.
- The raw values of the model's one input.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, ModelInputError
from headrace.core.sequence import SEQUENCE_PARAMETERS, may_omit_inputs
from headrace.core.tensor import (
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Tensor,
    TensorSpec,
    dtype_of,
    text_array,
)
from headrace.protocols.oip_json import JsonWireRequest, read_object
from headrace.protocols.tensors import array_from_binary, array_from_json

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"
VALUES_MAX: Final = 1 << 20
"""Limit of the values of one input in a body."""

_Json = dict[str, Any]
_RESERVED = {"id", "parameters"}


# Plain values


def request_from_json(value: Any, metadata: ModelMetadata) -> InferRequest:
    """Return the request of a parsed value.

    Raises DataError, with the model's inputs, for a value that does not fit.
    """
    named = cast("dict[str, Any]", value) if isinstance(value, dict) else {_only_input(metadata): value}
    if not named:
        raise DataError(f"the request has no input. {describe_inputs(metadata)}")
    return InferRequest(
        tuple(
            Tensor(name, input_from_json(name, data, find_input_spec(name, metadata)))
            for name, data in named.items()
        )
    )


def input_from_json(name: str, value: Any, spec: TensorSpec | None) -> Array:
    """Return the values of an input as an array of the declared datatype and shape.

    Raises DataError if they do not fit.
    """
    values: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    shape, first = _nesting(values)
    return fit_to_spec(name, array_from_json(name, datatype_for(spec, first), shape, values), spec)


def _only_input(metadata: ModelMetadata) -> str:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0].name
    if not metadata.inputs:
        raise DataError('the model does not declare its inputs: name them, as in {"NAME": values}')
    raise DataError(f'name the input, as in {{"NAME": values}}. {describe_inputs(metadata)}')


def find_input_spec(name: str, metadata: ModelMetadata) -> TensorSpec | None:
    """Return the spec of an input, or None if the model declares no inputs.

    Raises DataError for an unknown input.
    """
    for spec in metadata.inputs:
        if spec.name == name:
            return spec
    if metadata.inputs:
        raise DataError(f"the model has no input {name!r}. {describe_inputs(metadata)}")
    return None


def describe_inputs(metadata: ModelMetadata) -> str:
    """Return the model's inputs as a sentence without its full stop."""
    if not metadata.inputs:
        return "The server does not declare the model's inputs"
    described = (
        f"{s.name} {s.datatype}{'' if s.shape is None else f' {list(s.shape)}'}" for s in metadata.inputs
    )
    return f"It takes {', '.join(described)}"


def datatype_for(spec: TensorSpec | None, first: object) -> str:
    """Return the declared datatype, or, for an undeclared input, the datatype of its values.

    `first` is one of them.
    """
    # Servers report FP32 [-1] for a Python model without declared inputs. Text must be able to
    # reach such a model.
    undeclared = spec is None or (spec.shape in (None, (-1,)) and spec.datatype == "FP32")
    if undeclared and isinstance(first, str):
        return "BYTES"
    if undeclared and isinstance(first, bool):
        return "BOOL"
    if spec is None:
        return "FP32"
    return "FP32" if spec.datatype == "BF16" else spec.datatype


def fit_to_spec(name: str, array: Array, spec: TensorSpec | None) -> Array:
    """Return the array with the declared dimensions.

    A row may lack its brackets, and a column may be flat.
    """
    if array.ndim == 0:
        array = array.reshape(1)
    shape = None if spec is None else spec.shape
    # Servers that do not know the shape also report [-1].
    if shape is None or shape == (-1,):
        return array
    for candidate in (array, array[None], array[..., None]):
        if _fits(candidate.shape, shape):
            return candidate
    raise DataError(f"input {name!r} has shape {list(array.shape)}, but the model takes {list(shape)}")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True))


def _nesting(values: list[Any]) -> tuple[tuple[int, ...], object]:
    """Return the sizes of nested lists and the first value in them.

    `array_from_json` checks that all lists are alike.
    """
    sizes: list[int] = []
    found: Any = values
    while isinstance(found, list):
        inner = cast("list[Any]", found)
        sizes.append(len(inner))
        found = inner[0] if inner else 0.0
    return tuple(sizes), found


# The generate extension


def is_infer_request(body: bytes) -> bool:
    """Return True if a body sent to ``generate`` is an inference request.

    A body that is not JSON gives False.
    """
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    inputs: Any = cast("_Json", found).get("inputs") if isinstance(found, dict) else None
    return isinstance(inputs, list) and all(isinstance(i, dict) for i in cast("list[object]", inputs)[:1])


def decode_generate_request(body: bytes, metadata: ModelMetadata) -> InferRequest:
    """Return the request of a ``generate`` body.

    ``text_input`` feeds the model's input of that name, or the only input of a model with one
    input. A key that names no input becomes a parameter. A scalar is one row. A list is one row of
    as many values if the model declares two dimensions, else as many rows.

    Raises:
        DataError: The body is malformed; the message says how.
    """
    document = read_object(body)
    parameters = _parameters(document)
    specs = {s.name: s for s in metadata.inputs}
    tensors: list[Tensor] = []
    for key, value in document.items():
        if key in _RESERVED:
            continue
        name = _input_name(key, specs)
        if name is None:
            parameters[key] = value
            continue
        tensors.append(Tensor(name, _array(name, specs.get(name), value)))
    if not tensors and not may_omit_inputs(parameters):
        raise DataError(f"a generate request needs {TEXT_INPUT!r}")
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise DataError(f"'id' must be a string, not {type(request_id).__name__}")
    return InferRequest(tuple(tensors), request_id or "", parameters=parameters)


def _parameters(document: _Json) -> _Json:
    parameters = document.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise DataError(f"'parameters' must be an object, not {type(parameters).__name__}")
    return dict(cast("_Json", parameters))


def _input_name(key: str, specs: dict[str, TensorSpec]) -> str | None:
    """Return the model's input that a key feeds, or None for a parameter."""
    if key in specs:
        return key
    if key != TEXT_INPUT:
        return None
    return next(iter(specs)) if len(specs) == 1 else key


def _array(name: str, spec: TensorSpec | None, value: object) -> Array:
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    if len(values) > VALUES_MAX:
        raise DataError(f"{name!r} has {len(values)} values; the limit is {VALUES_MAX}")
    dimensions = len(spec.shape) if spec is not None and spec.shape is not None else 1
    shape = (1, len(values)) if dimensions == 2 else (len(values),)
    if spec is None or not values or isinstance(values[0], str):
        if not all(isinstance(v, str) for v in values):
            raise DataError(f"{name!r} must be text or a list of texts")
        return text_array(values).reshape(shape)
    return array_from_json(name, spec.datatype, shape, values)


def encode_generate_response(response: InferResponse) -> bytes:
    """Return the body of a response: outputs by name.

    A single value is a scalar, several are a list.

    The first text output is called ``text_output``. Parameters about the sequence stand beside the
    outputs.
    """
    document: _Json = {"model_name": response.model_name}
    if response.model_version is not None:
        document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    for key in SEQUENCE_PARAMETERS:
        if key in response.parameters:
            document[key] = response.parameters[key]
    names = [t.name for t in response.outputs]
    renamed = next((t.name for t in response.outputs if t.datatype == "BYTES"), None)
    for tensor in response.outputs:
        is_text_output = tensor.name == renamed and TEXT_OUTPUT not in names
        document[TEXT_OUTPUT if is_text_output else tensor.name] = _value(tensor)
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise DataError(f"the response cannot be written as JSON: {error}") from error


def _value(tensor: Tensor) -> Any:
    data = tensor.data.ravel()
    if tensor.datatype == "BYTES":
        values = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in data.tolist()]
        return values[0] if len(values) == 1 else values
    return data[0] if len(data) == 1 else np.ascontiguousarray(data)


# The raw values of one input


def decode_raw_request(body: bytes, metadata: ModelMetadata) -> JsonWireRequest:
    """Return the request of a body that holds only the values of the model's one input.

    Every output will be binary.

    The size of the body gives the number of rows. If another size of the input is variable, the
    body is one row and its size gives the variable size. A BYTES input takes the whole body as its
    one element.

    Raises:
        DataError: The body does not fit the input.
        ModelInputError: The model has several inputs, or an input of unknown shape.
    """
    if len(metadata.inputs) != 1:
        why = f"a raw request needs a model with one input, but it has {len(metadata.inputs)}: send JSON too"
        raise ModelInputError(metadata.name, why)
    spec = metadata.inputs[0]
    if spec.shape is None:
        why = f"a raw request needs the shape of input {spec.name!r}, which is not known: send JSON too"
        raise ModelInputError(metadata.name, why)
    shape = _raw_shape(spec.name, spec.datatype, spec.shape, len(body))
    if spec.datatype == "BYTES":
        body = len(body).to_bytes(4, "little") + body
    array = array_from_binary(spec.name, spec.datatype, shape, memoryview(body), bf16="float32")
    return JsonWireRequest(InferRequest((Tensor(spec.name, array),)), binary_default=True, binary_by_name={})


def _raw_shape(name: str, datatype: str, declared: tuple[int, ...], size_bytes: int) -> tuple[int, ...]:
    """Return the shape of an input from the number of its bytes.

    Raises DataError if that leaves the shape open.

    `declared` begins with the rows. One other size may be variable; then there is one row. A BYTES
    input is one element.
    """
    inner = declared[1:]
    if datatype == "BYTES":
        if any(size > 1 for size in declared):
            raise DataError(
                f"tensor {name!r}: a raw request has one BYTES element, but the model takes {list(declared)}"
            )
        return (1,) * len(declared)
    width = 2 if datatype == "BF16" else dtype_of(datatype).itemsize
    varying = [i for i, size in enumerate(inner) if size < 0]
    if len(varying) > 1:
        raise DataError(
            f"tensor {name!r}: more than one size of {list(declared)} is variable, "
            "so the number of bytes does not give the shape"
        )
    unit = width * prod(size for size in inner if size >= 0)
    if not unit or size_bytes % unit:
        raise DataError(
            f"tensor {name!r}: {size_bytes} bytes are not a multiple of the {unit} bytes of {list(declared)}"
        )
    count = size_bytes // unit
    if not varying:
        return (count, *inner)
    at = varying[0]
    return (1, *inner[:at], count, *inner[at + 1 :])
