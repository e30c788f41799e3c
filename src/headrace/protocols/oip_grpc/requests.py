"""ModelInferRequest messages to requests: typed contents and raw contents, checked before anything is made of them.

Arrives: the bytes of a message. Leaves: a request, and what else the message says. Every malformed message is a
`DataError` that names the tensor and what is wrong.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.core.errors import DataError, UnsupportedError
from headrace.core.sequence import is_bare_end
from headrace.core.tensor import (
    DEFAULT_PRIORITY,
    Array,
    InferRequest,
    Tensor,
    dtype_of,
    little_endian,
    text_array,
)
from headrace.protocols.oip_grpc.messages import message_class, parsed
from headrace.protocols.tensors import (
    DIMENSIONS_MAX,
    array_from_binary,
    checked_datatype,
    checked_shape,
)

TENSORS_MAX: Final = 1024
"""Inputs of one message, and requested outputs."""
PARAMETERS_MAX: Final = 1024
"""Parameters of one message."""
NAME_CHARS_MAX: Final = 4096
"""Of a name, a version or an id."""

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
# What raw bytes can be seen as without a look at the values.
_RAW: Final = {
    name: little_endian(dtype_of(name)) for name in (*_CONTENTS, "FP16") if name not in ("BOOL", "BYTES")
}
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_SHARED_MEMORY: Final = "shared_memory_region"
_CLASSIFICATION: Final = "classification"


class WireRequest(NamedTuple):
    """A request as it came, for which model, and whether its tensors came raw: then so do those of the answer."""

    model: str
    version: str
    request: InferRequest
    raw: bool
    empty_final: bool = False
    """Whether, after the last answer of a stream, one without tensors is to say so (a wish of Triton's clients)."""


def decode_request(data: bytes, *, now: float, deadline: float | None = None) -> WireRequest:
    """A request from the bytes of a ModelInferRequest.

    The parameters `priority` and `timeout` (microseconds from `now`; both 0 where there is none) become the request's
    priority and deadline, and are taken out of its parameters. BF16 comes as float32, BYTES as bytes. Arrays of raw
    contents are read-only.

    Args:
        data: The message.
        now: The clock's monotonic seconds.
        deadline: What is known of it already, on the same clock; the earlier one counts.

    Raises:
        DataError: The message is malformed.
        UnsupportedError: It asks for shared memory or classification, which are not offered.
    """
    head = _HEADS.get((len(data), data[:_KEY_BYTES]))
    if head is not None and data.startswith(head.sent):
        return head.request(data[len(head.sent) :], deadline)
    message = parsed(_REQUEST, data)
    if (plain := _plain(message)) is not None:
        raw_data = message.raw_input_contents[0]
        _remember(plain, data, raw_data)
        return plain.request(raw_data, deadline)
    raw = message.raw_input_contents
    if message.inputs or raw or not message.parameters or not is_bare_end(parameters_of(message.parameters)):
        inputs = tensors_of(message.inputs, raw)
    else:
        inputs = ()
    model, version, id = message.model_name, message.model_version, message.id
    if len(model) > NAME_CHARS_MAX or len(version) > NAME_CHARS_MAX or len(id) > NAME_CHARS_MAX:
        raise DataError(f"model_name, model_version and id may have {NAME_CHARS_MAX} characters, not more")
    outputs = _requested_outputs(message.outputs) if message.outputs else ()
    if not message.parameters:
        return WireRequest(model, version, InferRequest(inputs, id, outputs, {}, deadline), bool(raw))
    parameters = parameters_of(message.parameters)
    priority = _count(parameters, "priority") or DEFAULT_PRIORITY
    timeout_us = _count(parameters, "timeout")
    if timeout_us:
        expires = now + timeout_us / 1e6
        deadline = expires if deadline is None else min(deadline, expires)
    empty_final = parameters.pop(EMPTY_FINAL_RESPONSE, False) is True
    request = InferRequest(inputs, id, outputs, parameters, deadline, priority)
    return WireRequest(model, version, request, bool(raw), empty_final)


class _Head(NamedTuple):
    """What a message says besides the values of its one raw tensor, and the bytes that say so."""

    model: str
    version: str
    id: str
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sent: bytes = b""

    def request(self, data: bytes, deadline: float | None) -> WireRequest:
        """The request that has these values."""
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        inputs = (Tensor(self.name, array),)
        return WireRequest(
            self.model, self.version, InferRequest(inputs, self.id, (), {}, deadline), raw=True
        )


# By the length of their messages, and how these begin, which is with the model's name. Most clients send the same head again and
# again, and nothing but other values behind it: to compare it takes a fraction of reading it.
_HEADS: Final[dict[tuple[int, bytes], _Head]] = {}
_KEY_BYTES: Final = 48
_HEADS_MAX: Final = 256
_HEAD_BYTES_MAX: Final = 1024


def _remember(head: _Head, data: bytes, raw: bytes) -> None:
    # Ids are never the same again.
    if head.id or len(data) - len(raw) > _HEAD_BYTES_MAX:
        return
    sent = data[: -len(raw)]
    # Whether what stands behind the head is the values, and nothing else, is tried with others.
    other = bytes(byte ^ 255 for byte in raw[:1]) + raw[1:]
    try:
        message = parsed(_REQUEST, sent + other)
    except DataError:
        return
    if message.raw_input_contents[:] == [other] and _plain(message) == head:
        if len(_HEADS) >= _HEADS_MAX:
            _HEADS.clear()
        _HEADS[len(data), data[:_KEY_BYTES]] = head._replace(sent=sent)


def _plain(message: Any) -> _Head | None:
    """What nearly every message is: one raw tensor, and nothing else said.

    None for another message, and for any that is not plainly right: the long way says what is wrong with it.
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
    return _Head(model, version, id, name, dtype, tuple(shape))


def parameters_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as bool, int, str, float or bytes by name; one without a value is left out."""
    if len(parameters) > PARAMETERS_MAX:
        raise DataError(f"{len(parameters)} parameters; at most {PARAMETERS_MAX} are taken")
    found: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice:
            found[name] = getattr(parameter, choice)
    return found


def _count(parameters: dict[str, Any], name: str) -> int:
    """A parameter that is a whole number, taken out; 0 where there is none."""
    value: object = parameters.pop(name, 0)
    if type(value) is not int or value < 0:
        raise DataError(f"parameter {name!r} must be a whole number of at least 0, not {value!r:.40}")
    return value


def _requested_outputs(outputs: Sequence[Any]) -> tuple[str, ...]:
    names = tuple(_name(output, "a requested output") for output in _bounded(outputs, "outputs"))
    if len(set(names)) < len(names):
        raise DataError("an output is asked for twice")
    if any(_CLASSIFICATION in output.parameters for output in outputs):
        raise UnsupportedError("classification of outputs is not offered: ask for the scores and sort them")
    if any(_SHARED_MEMORY in output.parameters for output in outputs):
        raise _no_shared_memory()
    return names


def tensors_of(tensors: Sequence[Any], raw: Sequence[bytes]) -> tuple[Tensor, ...]:
    """The tensors of a message, whose values are raw contents where it has any; else typed ones. Raises DataError."""
    return _raw_inputs(tensors, raw) if raw else _typed_inputs(tensors)


def _raw_inputs(inputs: Sequence[Any], raw: Sequence[bytes]) -> tuple[Tensor, ...]:
    if len(inputs) != len(raw):
        raise DataError(
            f"{len(inputs)} inputs, but {len(raw)} raw_input_contents: when any input is raw, all must be, in order"
        )
    # Slices make plain lists, over which a loop takes half the time.
    pairs = zip(_bounded(inputs, "inputs")[:], raw[:], strict=True)
    return _distinct([_raw_input(tensor, data) for tensor, data in pairs])


def _raw_input(tensor: Any, data: bytes) -> Tensor:
    name = _name(tensor, "an input")
    if tensor.HasField("contents") and tensor.contents.ByteSize():
        raise DataError(f"tensor {name!r} has contents, but the request has raw_input_contents: use one")
    array = _raw_array(name, tensor.datatype, tensor.shape[:], data)
    parameters = tensor.parameters
    return Tensor(name, array, parameters_of(parameters)) if parameters else Tensor(name, array)


def _raw_dtype(datatype: str, shape: list[int], data: bytes) -> np.dtype[Any] | None:
    """What raw bytes can be seen as, where they are as many as positive sizes say: then nothing is left to be checked."""
    dtype = _RAW.get(datatype)
    if dtype is None or not 0 < len(shape) <= DIMENSIONS_MAX or min(shape) <= 0:
        return None
    return dtype if prod(shape) * dtype.itemsize == len(data) else None


def _raw_array(name: str, datatype: str, shape: list[int], data: bytes) -> Array:
    dtype = _raw_dtype(datatype, shape, data)
    if dtype is not None:
        return np.frombuffer(data, dtype).reshape(shape)
    checked = checked_shape(name, shape)
    return array_from_binary(
        name, checked_datatype(name, datatype), checked, memoryview(data), bf16="float32"
    )


def _typed_inputs(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    if not inputs:
        raise DataError("a request needs at least one tensor in 'inputs'")
    made: list[Tensor] = []
    for tensor in _bounded(inputs, "inputs")[:]:
        name = _name(tensor, "an input")
        if _SHARED_MEMORY in tensor.parameters:
            raise _no_shared_memory()
        shape = checked_shape(name, tensor.shape[:])
        array = _typed_array(name, tensor.datatype, shape, tensor.contents)
        made.append(Tensor(name, array, parameters_of(tensor.parameters)))
    return _distinct(made)


def _typed_array(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> Array:
    field = _CONTENTS.get(datatype)
    if field is None:
        checked_datatype(name, datatype)
        raise DataError(f"tensor {name!r}: {datatype} travels only in raw_input_contents")
    values = getattr(contents, field)
    present = contents.ListFields()
    if len(values) != prod(shape) or len(present) > 1:
        found = " and ".join(f"{len(v)} {f.name}" for f, v in present) or "no contents"
        raise DataError(
            f"tensor {name!r}: {datatype} of shape {list(shape)} takes {prod(shape)} {field}, but it has {found}"
        )
    if datatype == "BYTES":
        return text_array(values).reshape(shape)
    return _fitted(name, datatype, np.array(values, _WIDE[field])).reshape(shape)


_WIDE: Final = {
    "bool_contents": np.dtype(np.bool_),
    "int_contents": np.dtype(np.int32),
    "int64_contents": np.dtype(np.int64),
    "uint_contents": np.dtype(np.uint32),
    "uint64_contents": np.dtype(np.uint64),
    "fp32_contents": np.dtype(np.float32),
    "fp64_contents": np.dtype(np.float64),
}


def _fitted(name: str, datatype: str, wide: Array) -> Array:
    """The values in the datatype's own width."""
    dtype = dtype_of(datatype)
    if wide.dtype == dtype:
        return wide
    made = wide.astype(dtype)
    if (made != wide).any():
        raise DataError(f"tensor {name!r}: a value is out of the range of {datatype}")
    return made


def _bounded(tensors: Sequence[Any], what: str) -> Sequence[Any]:
    if len(tensors) > TENSORS_MAX:
        raise DataError(f"{len(tensors)} tensors in {what!r}; at most {TENSORS_MAX} are taken")
    return tensors


def _name(tensor: Any, what: str) -> str:
    name: str = tensor.name
    if not name:
        raise DataError(f"{what} has no name")
    if len(name) > NAME_CHARS_MAX:
        raise DataError(f"the name of {what} has {len(name)} characters; at most {NAME_CHARS_MAX} are taken")
    return name


def _distinct(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    if len(tensors) > 1 and len({tensor.name for tensor in tensors}) < len(tensors):
        raise DataError("two inputs have the same name")
    return tuple(tensors)


def _no_shared_memory() -> UnsupportedError:
    return UnsupportedError("shared memory is not offered: send the tensors in raw_input_contents")
