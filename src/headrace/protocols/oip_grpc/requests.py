"""ModelInferRequest messages to requests, with typed or raw contents, and requests to raw messages.

A decoded message is a request, its model and options. Messages are checked before any array is made
of them. Every malformed message is a `DataError` that names the tensor and the defect.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple, cast

import numpy as np
import orjson

from headrace.core.errors import DataError, UnsupportedError
from headrace.core.sequence import may_omit_inputs
from headrace.core.tensor import (
    DEFAULT_PRIORITY,
    Array,
    InferRequest,
    Tensor,
    datatype_of,
    dtype_of,
    little_endian,
    text_array,
)
from headrace.protocols.protobuf import message_class, parse_message
from headrace.protocols.tensors import (
    DIMENSIONS_MAX,
    array_from_binary,
    binary_values,
    validate_datatype,
    validate_shape,
)

DIALECT_KEY: Final = "headrace-stream-dialect"
"""The key of the call metadata that selects the form of a stream's messages: ``mlserver`` or ``triton``."""
TENSORS_MAX: Final = 1024
"""Limit of a message's inputs, and of its requested outputs."""
PARAMETERS_MAX: Final = 1024
"""Limit of a message's parameters."""
NAME_CHARS_MAX: Final = 4096
"""Limit of the characters of a name, a version or an id."""

_REQUEST: Any = message_class("ModelInferRequest")
_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# Datatypes whose raw bytes numpy can view without a look at the values.
_RAW: Final = {
    name: little_endian(dtype_of(name)) for name in (*_CONTENTS, "FP16") if name not in ("BOOL", "BYTES")
}
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_SHARED_MEMORY: Final = "shared_memory_region"
_CLASSIFICATION: Final = "classification"


class GrpcWireRequest(NamedTuple):
    """A decoded request and the model it is for.

    `raw` is True if its tensors were raw. Those of its response are raw too then.
    """

    model: str
    version: str
    request: InferRequest
    raw: bool
    empty_final: bool = False
    """Send a response without tensors after the last one of a stream (a parameter of Triton's clients)."""


def decode_request(data: bytes, *, now: float, deadline: float | None = None) -> GrpcWireRequest:
    """Return the request of a ModelInferRequest.

    The parameters `priority` and `timeout` (microseconds from `now`, 0 if absent) become the
    request's priority and deadline, and leave its parameters. BF16 becomes float32, BYTES elements
    are bytes. Arrays of raw contents are read-only.

    Args:
        data: The message.
        now: The current time of the monotonic clock, in seconds.
        deadline: A deadline known from elsewhere, on the same clock. The earlier one counts.

    Raises:
        DataError: The message is malformed.
        UnsupportedError: The message requests shared memory or classification, which headrace does
            not offer.
    """
    prefix = _PREFIXES.get((len(data), data[:_KEY_BYTES]))
    if prefix is not None and data.startswith(prefix.prefix_bytes):
        return prefix.request(data[len(prefix.prefix_bytes) :], deadline)
    message = parse_message(_REQUEST, data)
    if (single := _single_raw_tensor(message)) is not None:
        raw_data = message.raw_input_contents[0]
        _remember_prefix(single, data, raw_data)
        return single.request(raw_data, deadline)
    raw = message.raw_input_contents
    if (
        message.inputs
        or raw
        or not message.parameters
        or not may_omit_inputs(decode_parameters(message.parameters))
    ):
        inputs = decode_tensors(message.inputs, raw)
    else:
        inputs = ()
    model, version, id = message.model_name, message.model_version, message.id
    if len(model) > NAME_CHARS_MAX or len(version) > NAME_CHARS_MAX or len(id) > NAME_CHARS_MAX:
        raise DataError(
            f"model_name, model_version or id is too long; the limit is {NAME_CHARS_MAX} characters"
        )
    outputs = _requested_outputs(message.outputs) if message.outputs else ()
    if not message.parameters:
        return GrpcWireRequest(model, version, InferRequest(inputs, id, outputs, {}, deadline), bool(raw))
    parameters = decode_parameters(message.parameters)
    priority = _count(parameters, "priority") or DEFAULT_PRIORITY
    timeout_us = _count(parameters, "timeout")
    if timeout_us:
        expires = now + timeout_us / 1e6
        deadline = expires if deadline is None else min(deadline, expires)
    empty_final = parameters.pop(EMPTY_FINAL_RESPONSE, False) is True
    request = InferRequest(inputs, id, outputs, parameters, deadline, priority)
    return GrpcWireRequest(model, version, request, bool(raw), empty_final)


class _MessagePrefix(NamedTuple):
    """The parts of a message besides the values of its one raw tensor.

    `prefix_bytes` are the bytes that encode these parts.
    """

    model: str
    version: str
    id: str
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    prefix_bytes: bytes = b""

    def request(self, data: bytes, deadline: float | None) -> GrpcWireRequest:
        """Return the request with these values."""
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        inputs = (Tensor(self.name, array),)
        return GrpcWireRequest(
            self.model, self.version, InferRequest(inputs, self.id, (), {}, deadline), raw=True
        )


# Known prefixes, by message length and first bytes (the model's name). Most clients send the same
# prefix again, with other values behind it. Comparing a prefix takes a fraction of the time of
# parsing it.
_PREFIXES: Final[dict[tuple[int, bytes], _MessagePrefix]] = {}
_KEY_BYTES: Final = 48
_PREFIXES_MAX: Final = 256
_PREFIX_BYTES_MAX: Final = 1024


def _remember_prefix(prefix: _MessagePrefix, data: bytes, raw: bytes) -> None:
    # Request ids do not repeat.
    if prefix.id or len(data) - len(raw) > _PREFIX_BYTES_MAX:
        return
    prefix_bytes = data[: -len(raw)]
    # Parse the prefix with other values to prove that only the values follow it.
    other = bytes(byte ^ 255 for byte in raw[:1]) + raw[1:]
    try:
        message = parse_message(_REQUEST, prefix_bytes + other)
    except DataError:
        return
    if message.raw_input_contents[:] == [other] and _single_raw_tensor(message) == prefix:
        if len(_PREFIXES) >= _PREFIXES_MAX:
            _PREFIXES.clear()
        _PREFIXES[len(data), data[:_KEY_BYTES]] = prefix._replace(prefix_bytes=prefix_bytes)


def _single_raw_tensor(message: Any) -> _MessagePrefix | None:
    """Return the prefix of a message with one raw tensor and nothing else, the most common form.

    Return None for other messages and for malformed ones. The general path reports what is wrong
    with those.
    """
    inputs, raw = message.inputs, message.raw_input_contents
    if len(inputs) != 1 or len(raw) != 1 or message.parameters or message.outputs:
        return None
    tensor, data = inputs[0], raw[0]
    name, shape = tensor.name, tensor.shape[:]
    dtype = _raw_dtype(tensor.datatype, shape, data)
    if not name or dtype is None or tensor.parameters or tensor.HasField("contents"):
        return None
    model, version, id = message.model_name, message.model_version, message.id
    if max(len(name), len(model), len(version), len(id)) > NAME_CHARS_MAX:
        return None
    return _MessagePrefix(model, version, id, name, dtype, tuple(shape))


def decode_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as bool, int, str, float or bytes by name.

    A parameter without a value is left out.
    """
    if len(parameters) > PARAMETERS_MAX:
        raise DataError(f"the message has {len(parameters)} parameters; the limit is {PARAMETERS_MAX}")
    found: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice:
            found[name] = getattr(parameter, choice)
    return found


def set_parameters(target: Any, parameters: Mapping[str, Any]) -> None:
    """Write parameters into a map of InferParameter.

    Values without a type of their own (lists, mappings, numbers beyond 64 bits) are sent as JSON
    text. None is left out.

    Raises:
        DataError: A value cannot be encoded even as JSON; the message names the parameter.
    """
    for name, value in parameters.items():
        if value is None:
            continue
        field, sent = _parameter(name, value)
        try:
            setattr(target[name], field, sent)
        except (TypeError, ValueError, UnicodeError) as error:
            raise DataError(f"parameter {name!r} cannot be written: {error}") from None


def _parameter(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, np.generic):
        value = cast("Any", value).item()
    if isinstance(value, bool):
        return "bool_param", value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return ("int64_param" if value < 1 << 63 else "uint64_param"), value
    if isinstance(value, float):
        return "double_param", value
    if isinstance(value, str):
        return "string_param", value
    try:
        return "string_param", orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError as error:
        raise DataError(f"parameter {name!r} cannot be written: {error}") from None


def _count(parameters: dict[str, Any], name: str) -> int:
    """Remove a parameter and return its whole number, 0 if absent."""
    value: object = parameters.pop(name, 0)
    if type(value) is not int or value < 0:
        raise DataError(f"parameter {name!r} must be a whole number of at least 0, not {value!r:.40}")
    return value


def _requested_outputs(outputs: Sequence[Any]) -> tuple[str, ...]:
    names = tuple(_name(output, "a requested output") for output in _bounded(outputs, "outputs"))
    if len(set(names)) < len(names):
        raise DataError("an output is requested twice")
    if any(_CLASSIFICATION in output.parameters for output in outputs):
        raise UnsupportedError("classification of outputs is not offered: request the scores and sort them")
    if any(_SHARED_MEMORY in output.parameters for output in outputs):
        raise _no_shared_memory()
    return names


def decode_tensors(tensors: Sequence[Any], raw: Sequence[bytes]) -> tuple[Tensor, ...]:
    """Return the tensors of a message: raw contents if it has any, else typed contents."""
    return _raw_inputs(tensors, raw) if raw else _typed_inputs(tensors)


def _raw_inputs(inputs: Sequence[Any], raw: Sequence[bytes]) -> tuple[Tensor, ...]:
    if len(inputs) != len(raw):
        raise DataError(
            f"{len(inputs)} inputs, but {len(raw)} raw_input_contents: "
            "if one input is raw, send all raw, in order"
        )
    # A slice makes a plain list, and a loop over a plain list takes half the time.
    pairs = zip(_bounded(inputs, "inputs")[:], raw[:], strict=True)
    return _distinct([_raw_input(tensor, data) for tensor, data in pairs])


def _raw_input(tensor: Any, data: bytes) -> Tensor:
    name = _name(tensor, "an input")
    if tensor.HasField("contents") and tensor.contents.ByteSize():
        raise DataError(f"tensor {name!r} has contents, but the request has raw_input_contents: use one")
    array = _raw_array(name, tensor.datatype, tensor.shape[:], data)
    parameters = tensor.parameters
    return Tensor(name, array, decode_parameters(parameters)) if parameters else Tensor(name, array)


def _raw_dtype(datatype: str, shape: list[int], data: bytes) -> np.dtype[Any] | None:
    """Return the dtype with which numpy can view the raw bytes, or None if the values need a check.

    The number of bytes must match positive sizes.
    """
    dtype = _RAW.get(datatype)
    if dtype is None or not 0 < len(shape) <= DIMENSIONS_MAX or min(shape) <= 0:
        return None
    return dtype if prod(shape) * dtype.itemsize == len(data) else None


def _raw_array(name: str, datatype: str, shape: list[int], data: bytes) -> Array:
    dtype = _raw_dtype(datatype, shape, data)
    if dtype is not None:
        return np.frombuffer(data, dtype).reshape(shape)
    checked = validate_shape(name, shape)
    return array_from_binary(
        name, validate_datatype(name, datatype), checked, memoryview(data), bf16="float32"
    )


def _typed_inputs(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    if not inputs:
        raise DataError("a request needs at least one tensor in 'inputs'")
    made: list[Tensor] = []
    for tensor in _bounded(inputs, "inputs")[:]:
        name = _name(tensor, "an input")
        if _SHARED_MEMORY in tensor.parameters:
            raise _no_shared_memory()
        shape = validate_shape(name, tensor.shape[:])
        array = _typed_array(name, tensor.datatype, shape, tensor.contents)
        made.append(Tensor(name, array, decode_parameters(tensor.parameters)))
    return _distinct(made)


def _typed_array(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> Array:
    field = _CONTENTS.get(datatype)
    if field is None:
        validate_datatype(name, datatype)
        raise DataError(f"tensor {name!r}: {datatype} has no typed contents: send raw_input_contents")
    values = getattr(contents, field)
    present = contents.ListFields()
    if len(values) != prod(shape) or len(present) > 1:
        found = " and ".join(f"{len(v)} {f.name}" for f, v in present) or "no contents"
        raise DataError(
            f"tensor {name!r}: {datatype} of shape {list(shape)} takes {prod(shape)} {field}, "
            f"but it has {found}"
        )
    if datatype == "BYTES":
        return text_array(values).reshape(shape)
    return _narrowed(name, datatype, np.array(values, _WIDE[field])).reshape(shape)


_WIDE: Final = {
    "bool_contents": np.dtype(np.bool_),
    "int_contents": np.dtype(np.int32),
    "int64_contents": np.dtype(np.int64),
    "uint_contents": np.dtype(np.uint32),
    "uint64_contents": np.dtype(np.uint64),
    "fp32_contents": np.dtype(np.float32),
    "fp64_contents": np.dtype(np.float64),
}


def _narrowed(name: str, datatype: str, wide: Array) -> Array:
    """Return the values in the datatype's own width."""
    dtype = dtype_of(datatype)
    if wide.dtype == dtype:
        return wide
    made = wide.astype(dtype)
    if (made != wide).any():
        raise DataError(f"tensor {name!r}: a value is out of the range of {datatype}")
    return made


def _bounded(tensors: Sequence[Any], what: str) -> Sequence[Any]:
    if len(tensors) > TENSORS_MAX:
        raise DataError(f"{what!r} has {len(tensors)} tensors; the limit is {TENSORS_MAX}")
    return tensors


def _name(tensor: Any, what: str) -> str:
    name: str = tensor.name
    if not name:
        raise DataError(f"{what} has no name")
    if len(name) > NAME_CHARS_MAX:
        raise DataError(f"the name of {what} has {len(name)} characters; the limit is {NAME_CHARS_MAX}")
    return name


def _distinct(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    if len(tensors) > 1 and len({tensor.name for tensor in tensors}) < len(tensors):
        raise DataError("two inputs have the same name")
    return tuple(tensors)


def _no_shared_memory() -> UnsupportedError:
    return UnsupportedError("shared memory is not offered: send the tensors in raw_input_contents")


def encode_request(
    model: str, version: str, request: InferRequest, *, datatypes: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a ModelInferRequest, without the request's deadline and priority.

    `datatypes` holds the datatypes that the model declares, by input name. Only BF16 needs it:
    numpy has no such type. Raises DataError for a value that the protocol cannot carry.
    """
    message = _REQUEST(model_name=model, model_version=version, id=request.id)
    set_parameters(message.parameters, request.parameters)
    for name in request.outputs:
        message.outputs.add(name=name)
    for tensor in request.inputs:
        datatype = datatype_of(tensor.data.dtype)
        if datatypes and datatypes.get(tensor.name) == "BF16" and tensor.data.dtype.name == "float32":
            datatype = "BF16"
        message.inputs.add(name=tensor.name, datatype=datatype, shape=tensor.data.shape)
        values = binary_values(tensor.name, datatype, tensor.data)
        message.raw_input_contents.append(values if isinstance(values, bytes) else values.tobytes())
    return message.SerializeToString()
