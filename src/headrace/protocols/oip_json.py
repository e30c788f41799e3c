"""Requests and responses of the Open Inference Protocol (V2) over REST, as JSON or binary data.

A server decodes a body (and its ``Inference-Header-Content-Length`` header) to a request, and
encodes responses. A client does the reverse. Decoding accepts nested or flat data and unknown keys.
Every malformed body is a `DataError` that names the tensor and the defect, raised before memory is
allocated for the tensor.

A binary body is a JSON document whose tensors have ``parameters.binary_data_size`` in place of
``data``, followed by the raw values of these tensors in the same order.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, ModelContractError, UnsupportedError
from headrace.core.frozen import statically_frozen
from headrace.core.json_numbers import whole_number
from headrace.core.sequence import may_omit_inputs
from headrace.core.tensor import (
    DEFAULT_PRIORITY,
    Array,
    InferRequest,
    InferResponse,
    Tensor,
)
from headrace.protocols.tensors import (
    DIMENSIONS_MAX,
    Bf16,
    TensorEncodingError,
    array_from_binary,
    array_from_json,
    binary_values,
    json_values,
    validate_datatype,
    validate_shape,
)

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
TENSORS_MAX = 1024
"""Limit of the tensors in one body."""

_NO_BINARY_DATA: Final = memoryview(b"")
_Json = dict[str, Any]
_NO_BINARY_CHOICES: Final[Mapping[str, bool]] = {}
_PRIORITY_MAX: Final = 2**32


@statically_frozen
class WireBody:
    """A body ready to send.

    `json_bytes` is the length of its JSON part if binary tensors follow, else None.
    """

    body: bytes
    json_bytes: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The content type, and the header that binary tensors need."""
        if self.json_bytes is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(self.json_bytes)}


@statically_frozen
class JsonWireRequest:
    """A decoded request, and the choice of outputs that the response must carry as binary data."""

    request: InferRequest
    binary_default: bool
    binary_by_name: Mapping[str, bool]

    def binary(self, output: str) -> bool:
        """Return True if this output must be binary: its own parameter, else the request's default."""
        return self.binary_by_name.get(output, self.binary_default)


def parse_header_length(value: str | None) -> int | None:
    """Return the number in an ``Inference-Header-Content-Length`` header, None without the header."""
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 19):
        raise DataError(f"{HEADER_LENGTH} must be a number of bytes, not {value[:40]!r}")
    return int(value)


# Requests


def encode_request(
    request: InferRequest, *, binary: bool, datatypes: Mapping[str, str] | None = None
) -> WireBody:
    """Return the body of a request.

    Args:
        request: The request. Its deadline is not sent.
        binary: Send inputs as binary data, and request binary outputs.
        datatypes: The datatypes that the model declares, by input name. Only BF16 needs it: numpy
            has no such type.

    Raises:
        DataError: A value cannot be encoded (see `tensors`); the message names tensor and element.
    """
    document: _Json = {"id": request.id} if request.id else {}
    parameters = dict(request.parameters)
    if binary and not request.outputs:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    if request.outputs:
        choice = {"parameters": {"binary_data": True}} if binary else {}
        document["outputs"] = [{"name": name, **choice} for name in request.outputs]
    return _encode(document, "inputs", request.inputs, lambda _: binary, datatypes or {})


def decode_request(body: bytes, json_bytes: int | None = None, *, bf16: Bf16 = "bits") -> JsonWireRequest:
    """Return the request of a body.

    `json_bytes` is the value of the header. 0 (a raw tensor without JSON) is refused:
    `plain_bodies.decode_raw_request` decodes such bodies, with the model's metadata.

    Raises:
        DataError: The body is malformed; the message says how.
        UnsupportedError: The request needs shared memory or classification.
    """
    rest = _NO_BINARY_DATA
    if json_bytes is None:
        document = read_object(body)
        if (quick := fast_decode_request(document, body)) is not None:
            return JsonWireRequest(quick, binary_default=False, binary_by_name=_NO_BINARY_CHOICES)
    else:
        document, rest = _split_body(body, json_bytes)
    for entry in read_objects(document, "inputs"):
        if "parameters" in entry:
            _check_supported(_parameters(entry, "an input"), "an input")
    inputs = _tensors(document, "inputs", rest, bf16)
    parameters = _parameters(document, "the request")
    if not inputs and not may_omit_inputs(parameters):
        raise DataError("a request needs at least one tensor in 'inputs'")
    default = _boolean(parameters.pop("binary_data_output", False), "binary_data_output")
    names, choices = _requested_outputs(document)
    request = InferRequest(inputs, read_text(document, "id"), names, parameters)
    return JsonWireRequest(request, default, choices)


def _requested_outputs(document: _Json) -> tuple[tuple[str, ...], dict[str, bool]]:
    names: list[str] = []
    choices: dict[str, bool] = {}
    for requested in read_objects(document, "outputs"):
        name = read_name(requested, "outputs")
        if name in names:
            raise DataError(f"output {name!r} is requested twice")
        names.append(name)
        parameters = _parameters(requested, f"output {name!r}")
        _check_supported(parameters, f"output {name!r}")
        if "binary_data" in parameters:
            choices[name] = _boolean(parameters["binary_data"], "binary_data")
    return tuple(names), choices


def apply_scheduling_parameters(request: InferRequest, now: float) -> InferRequest:
    """Return the request with the priority and the deadline of its parameters.

    ``priority`` is 1 for the most urgent, 0 for the default. ``timeout`` is in microseconds from
    `now`, 0 for none. An earlier deadline of the request stays.

    Raises:
        DataError: A parameter is not a whole number of 0 or more.
    """
    parameters = request.parameters
    if not parameters:
        return request
    priority = _number(parameters.get("priority", 0), "priority")
    timeout_us = _number(parameters.get("timeout", 0), "timeout")
    if not priority and not timeout_us:
        return request
    deadline = request.deadline
    if timeout_us:
        requested = now + timeout_us / 1e6
        deadline = requested if deadline is None else min(requested, deadline)
    return replace(request, priority=min(priority, _PRIORITY_MAX) or DEFAULT_PRIORITY, deadline=deadline)


def _number(value: object, name: str) -> int:
    number = whole_number(value)
    if type(number) is not int or number < 0:
        raise DataError(f"the parameter {name!r} must be a whole number of 0 or more, not {value!r:.40}")
    return number


# Responses


def encode_response(
    response: InferResponse,
    *,
    binary: Callable[[str], bool] | bool = False,
    datatypes: Mapping[str, str] | None = None,
) -> WireBody:
    """Return the body of a response. `binary` selects the outputs that are sent as binary data.

    Raises:
        DataError: A value cannot be encoded in the selected form.
        ModelContractError: A value is not a value of the protocol.
        ValueError: Rows failed. The protocol cannot express that, and omitting them would shift the
            others.
    """
    if response.failures:
        raise ValueError(f"{len(response.failures)} rows failed, which a V2 response cannot express")
    if not datatypes and binary is False and (quick := fast_encode_response(response)) is not None:
        return WireBody(quick)
    document = _response_head(response)

    def is_binary(output: str) -> bool:
        return binary(output) if callable(binary) else binary

    try:
        return _encode(document, "outputs", response.outputs, is_binary, datatypes or {})
    except TensorEncodingError as error:
        raise ModelContractError(response.model_name, str(error)) from error


def decode_response(body: bytes, json_bytes: int | None = None, *, bf16: Bf16 = "bits") -> InferResponse:
    """Return the response of a JSON or binary body. Raises DataError for a malformed body.

    NaN and Infinity are accepted, since some servers write them into JSON.
    """
    document, rest = (
        (read_object(body, lenient=True), _NO_BINARY_DATA)
        if json_bytes is None
        else _split_body(body, json_bytes, lenient=True)
    )
    if "outputs" not in document:
        raise DataError(
            f"the response has no 'outputs', only {', '.join(map(repr, document)) or 'an empty object'}"
        )
    version = document.get("model_version")
    return InferResponse(
        _tensors(document, "outputs", rest, bf16),
        model_name=read_text(document, "model_name"),
        model_version=None if version is None else str(version),
        id=read_text(document, "id"),
        parameters=_parameters(document, "the response"),
    )


# General codec of requests and responses


def _encode(
    document: _Json,
    key: str,
    tensors: Sequence[Tensor],
    binary: Callable[[str], bool],
    datatypes: Mapping[str, str],
) -> WireBody:
    buffers: list[bytes | memoryview] = []
    listed: list[_Json] = []
    for tensor in tensors:
        datatype = tensor.datatype
        if datatypes.get(tensor.name) == "BF16" and tensor.data.dtype.name in ("uint16", "float32"):
            datatype = "BF16"
        entry: _Json = {"name": tensor.name, "shape": list(tensor.data.shape), "datatype": datatype}
        if tensor.parameters:
            entry["parameters"] = dict(tensor.parameters)
        if binary(tensor.name):
            values = binary_values(tensor.name, datatype, tensor.data)
            buffers.append(values if isinstance(values, bytes) else values.data)
            size = len(values) if isinstance(values, bytes) else values.nbytes
            entry["parameters"] = {**tensor.parameters, "binary_data_size": size}
        else:
            entry["data"] = json_values(tensor.name, datatype, tensor.data)
        listed.append(entry)
    try:
        text = orjson.dumps({**document, key: listed}, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise TensorEncodingError(f"the tensors cannot be written as JSON: {error}") from error
    return WireBody(b"".join((text, *buffers)), len(text)) if buffers else WireBody(text)


def _split_body(body: bytes, json_bytes: int, *, lenient: bool = False) -> tuple[_Json, memoryview]:
    """Return the JSON document and the bytes behind it."""
    if json_bytes == 0:
        raise DataError(
            f"{HEADER_LENGTH} is 0 (a raw tensor without JSON), which is not supported here: send JSON too"
        )
    if json_bytes > len(body):
        raise DataError(f"{HEADER_LENGTH} is {json_bytes}, but the body has only {len(body)} bytes")
    whole = memoryview(body)
    return read_object(whole[:json_bytes], lenient=lenient), whole[json_bytes:]


def read_object(text: bytes | memoryview, *, lenient: bool = False) -> _Json:
    """Return the JSON object of a body, with NaN and Infinity if `lenient` is true.

    Raises:
        DataError: The body is not JSON, or not an object.
    """
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        found = _lenient(text) if lenient else None
        if found is None:
            raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {type(found).__name__}")
    return cast("_Json", found)


def _lenient(text: bytes | memoryview) -> Any:
    """Return JSON with the literals NaN and Infinity, as Python's encoder writes them.

    Return None for other text.
    """
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError):
        return None


def _tensors(document: _Json, key: str, rest: memoryview, bf16: Bf16) -> tuple[Tensor, ...]:
    """Return the tensors of a body. Every byte behind the JSON must belong to a tensor."""
    found: dict[str, Tensor] = {}
    at = 0
    for entry in read_objects(document, key):
        name = read_name(entry, key)
        if name in found:
            raise DataError(f"tensor {name!r} is in {key!r} twice")
        datatype = validate_datatype(name, entry.get("datatype"))
        shape = validate_shape(name, entry.get("shape"))
        parameters = _parameters(entry, f"tensor {name!r}")
        size = _binary_size(entry, name, parameters.pop("binary_data_size", None))
        if size is None:
            array = array_from_json(name, datatype, shape, entry["data"])
        else:
            if size > len(rest) - at:
                raise DataError(
                    f"tensor {name!r}: its binary_data_size is {size}, "
                    f"but only {len(rest) - at} bytes are left"
                )
            array = array_from_binary(name, datatype, shape, rest[at : at + size], bf16=bf16)
            at += size
        found[name] = Tensor(name, array, parameters)
    if at != len(rest):
        raise DataError(f"{len(rest) - at} bytes follow the last tensor")
    return tuple(found.values())


def _binary_size(entry: _Json, name: str, size: Any) -> int | None:
    """Return the number of bytes of binary data, or None if the values are JSON.

    The entry must have exactly one of both.
    """
    if (size is None) == (entry.get("data") is None):
        both = "neither" if size is None else "both"
        raise DataError(f"tensor {name!r} needs either 'data' or 'binary_data_size', but has {both}")
    if size is not None and (type(size) is not int or size < 0):
        raise DataError(f"tensor {name!r}: binary_data_size must be a number of bytes, not {size!r:.40}")
    return size


def _check_supported(parameters: _Json, what: str) -> None:
    """Raise UnsupportedError for Triton's parameters that headrace does not implement.

    Ignoring them would change results.
    """
    if "shared_memory_region" in parameters:
        raise UnsupportedError(
            f"{what}: shared memory is not offered: send the tensors in the request, as binary data"
        )
    if "classification" in parameters:
        raise UnsupportedError(f"{what}: classification is not offered: request the scores and sort them")


def read_objects(document: _Json, key: str) -> Iterable[_Json]:
    """Return the objects of a list of tensors; nothing without the key. Raise DataError for others."""
    listed = document.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(o, dict) for o in cast("list[object]", listed)):
        raise DataError(f"{key!r} must be a list of objects")
    objects = cast("list[_Json]", listed)
    if len(objects) > TENSORS_MAX:
        raise DataError(f"{key!r} has {len(objects)} tensors; the limit is {TENSORS_MAX}")
    return objects


def read_name(entry: _Json, where: str) -> str:
    """Return the name of a tensor. Raise DataError if it has none."""
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise DataError(f"a tensor in {where!r} has no name")
    return name


def read_text(document: _Json, key: str) -> str:
    """Return a string, "" if it is missing. Raise DataError for another value."""
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{key!r} must be a string, not {type(value).__name__}")
    return value


def _parameters(holder: _Json, what: str) -> _Json:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise DataError(f"'parameters' of {what} must be an object, not {type(parameters).__name__}")
    return dict(cast("_Json", parameters))


def _boolean(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"{key!r} must be true or false, not {value!r:.40}")
    return value


# Fast codec for nearly every body: a few tensors of numbers as JSON.
#
# Each function returns None for any document that is not plainly valid. The general codec then
# decodes the same document and reports its defects. Both give equal results for every body that both
# accept.

_FAST_TENSORS_MAX: Final = 64

_FLOAT32: Final = np.dtype(np.float32)
_FLOAT64: Final = np.dtype(np.float64)
_INT64: Final = np.dtype(np.int64)
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_DTYPES: Final[dict[object, np.dtype[Any]]] = {
    "FP32": _FLOAT32,
    "FP64": _FLOAT64,
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": _INT64,
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
}
# Keyed by numpy's type numbers, which are looked up faster than dtypes. Byte order does not change
# the number.
_DATATYPES: Final = {dtype.num: cast("str", name) for name, dtype in _DTYPES.items()}
_TEXT: Final = frozenset({str})
_DATATYPES[np.dtype(object).num] = "BYTES"


def fast_decode_request(document: _Json, body: bytes) -> InferRequest | None:
    """Return the request of a JSON document without parameters and requested outputs, else None."""
    # numpy would take booleans for numbers, so a body with true or false takes the general path.
    # Searching one character is much faster than a word, and usually settles it: "inputs" has the
    # only u.
    if (body.count(b"u") > 1 and b"true" in body) or (b"l" in body and b"false" in body):
        return None
    entries, id_ = document.get("inputs"), ""
    if len(document) > 1:
        id_ = document.get("id")
        if len(document) > 2 or type(id_) is not str:
            return None
    if type(entries) is not list:
        return None
    listed = cast("list[Any]", entries)
    if len(listed) == 1:
        tensor = _fast_tensor(listed[0])
        return None if tensor is None else InferRequest((tensor,), id_)
    if not 0 < len(listed) <= _FAST_TENSORS_MAX:
        return None
    found: dict[str, Tensor] = {}
    for entry in listed:
        tensor = _fast_tensor(entry)
        if tensor is None or tensor.name in found:
            return None
        found[tensor.name] = tensor
    return InferRequest(tuple(found.values()), id_)


def _fast_tensor(entry: Any) -> Tensor | None:
    try:
        name, dtype, shape, data = entry["name"], _DTYPES[entry["datatype"]], entry["shape"], entry["data"]
    except (KeyError, TypeError):
        return None
    if type(name) is not str or not name or type(data) is not list or type(shape) is not list:
        return None
    sizes = cast("list[Any]", shape)
    parameters = entry.get("parameters")
    if not 0 < len(sizes) <= DIMENSIONS_MAX or (parameters is not None and _affects_values(parameters)):
        return None
    for size in sizes:
        if type(size) is not int or size <= 0:
            return None
    try:
        # numpy's choice of dtype reveals the contents of the list: text or null would give another
        # dtype.
        found: Array = np.array(cast("Any", data))
        if found.ndim > 1 and found.shape != tuple(sizes):
            return None
        made = found if found.dtype is dtype else _convert(found, dtype)
        return None if made is None else Tensor(name, made.reshape(sizes), parameters or {})
    except (ValueError, OverflowError):
        return None


def _affects_values(parameters: Any) -> bool:
    """Return True if a tensor's parameters describe its values, or are malformed."""
    return type(parameters) is not dict or "binary_data_size" in parameters


def _convert(found: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return the same numbers in another dtype, or None if a number does not fit."""
    kind = found.dtype
    if dtype is _FLOAT32 or dtype is _FLOAT64:
        if kind is not _FLOAT64:
            if kind is not _INT64:
                return None
            found = found.astype(_FLOAT64)
        if dtype is _FLOAT64:
            return found
        # argmax and argmin are much faster than max and min.
        flat = found if found.ndim == 1 else found.ravel()
        if flat[flat.argmax()] > _FLOAT32_MAX or flat[flat.argmin()] < -_FLOAT32_MAX:
            return None
        return found.astype(_FLOAT32)
    if kind is not _INT64:
        return None
    made = found.astype(dtype)
    return made if np.array_equal(made, found) else None


def _response_head(response: InferResponse) -> _Json:
    """Return the document of a response without its outputs."""
    document: _Json = {"model_name": response.model_name}
    if response.model_version is not None:
        document["model_version"] = response.model_version
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    return document


def fast_encode_response(response: InferResponse) -> bytes | None:
    """Return the body of a response whose outputs are finite numbers or text, else None."""
    listed: list[_Json] = []
    for tensor in response.outputs:
        data = tensor.data
        dtype = data.dtype
        datatype = _DATATYPES.get(dtype.num)
        if datatype is None or not dtype.isnative or tensor.parameters:
            return None
        values: Any = data.ravel()
        if datatype == "BYTES":
            values = values.tolist()
            if not _TEXT.issuperset(map(type, values)):
                return None
        listed.append({"name": tensor.name, "shape": data.shape, "datatype": datatype, "data": values})
    document = _response_head(response)
    document["outputs"] = listed
    try:
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return None
    # orjson writes infinities and NaN as null, and infinities must be refused. A text with the word
    # null also gives None.
    return None if b"null" in text else text
