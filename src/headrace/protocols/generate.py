"""The ``generate`` extension of the Open Inference Protocol: text in, text out, without tensors.

``{"text_input": "..."}``, with parameters beside it or below ``parameters``, becomes a request. A
response becomes ``{"text_output": "..."}``. Other inputs and outputs of a model keep their own
names, as in Triton's mapping. A body with ``inputs`` is an inference request, which is the form of
MLServer's ``generate``.
"""

from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError
from headrace.core.sequence import SEQUENCE_PARAMETERS, may_omit_inputs
from headrace.core.tensor import (
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Tensor,
    TensorSpec,
    text_array,
)
from headrace.protocols.tensors import array_from_json

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"
VALUES_MAX: Final = 1 << 20
"""Limit of the values of one input in a body."""

_Json = dict[str, Any]
_RESERVED = {"id", "parameters"}


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
    document = _document(body)
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


def _document(body: bytes) -> _Json:
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {type(found).__name__}")
    return cast("_Json", found)


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
