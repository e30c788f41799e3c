"""Responses to and from ModelInferResponse messages, raw or typed; Triton's wrapped form for streams."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from headrace.core.tensor import InferResponse, Tensor, datatype_of
from headrace.protocols.oip_grpc.requests import decode_parameters, decode_tensors, set_parameters
from headrace.protocols.protobuf import encode_message, message_class, parse_message
from headrace.protocols.tensors import binary_values, byte_elements

FINAL_RESPONSE: Final = "triton_final_response"
"""Triton's parameter that marks the last response to a request."""

_RESPONSE: Any = message_class("ModelInferResponse")
_OUTPUT_CLASS: Any = message_class("ModelInferResponse.InferOutputTensor")
_CONTENTS_CLASS: Any = message_class("InferTensorContents")
_STREAM_RESPONSE: Any = message_class("ModelStreamInferResponse")

_RAW_ONLY: Final = frozenset({"FP16", "BF16"})

# Tags of length-delimited fields: the field number, and wire type 2.
_ID: Final = b"\x1a"
_OUTPUT: Final = b"\x2a"
_RAW_OUTPUT: Final = b"\x32"
_CONTENTS: Final = b"\x2a"
_BYTES_CONTENTS: Final = b"\x42"
_INFER_RESPONSE: Final = b"\x12"
# Packed floats and booleans have the same bytes on the wire and in memory. Integers do not.
_PACKED: Final = {"BOOL": b"\x0a", "FP32": b"\x32", "FP64": b"\x3a"}
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))
_CACHE_MAX: Final = 1024
"""Limit of cached response heads and of cached output heads, since shapes vary."""
_INTEGER_FIELDS: Final = {
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
}


def encode_response(
    response: InferResponse,
    *,
    raw: bool,
    id: str = "",
    datatypes: Mapping[str, str] | None = None,
    final: bool | None = None,
) -> bytes:
    """Return the bytes of a ModelInferResponse.

    Args:
        response: The model's response, without failed rows.
        raw: Send tensors as raw contents. A FP16 or BF16 tensor makes all tensors raw.
        id: The request's id, for a response without an id of its own.
        datatypes: The datatypes that the model declares, by output name. Only BF16 needs it: numpy
            has no such type.
        final: Triton's flag of the last response to a request. None leaves it out.

    Raises:
        DataError: A value cannot be encoded; the message names tensor and element.
        TypeError: The protocol does not have the dtype.
        ValueError: Rows failed, which the protocol cannot express.
    """
    if response.failures:
        raise ValueError(f"{len(response.failures)} rows failed, which a V2 response cannot express")
    parts = [_response_head(response.model_name, response.model_version or "")]
    sent_id = response.id or id
    if sent_id:
        _append_field(parts, _ID, sent_id.encode())
    if response.parameters or final is not None:
        parts.append(_parameters(_RESPONSE(), response.parameters, final))
    typed = [(tensor, _datatype(tensor, datatypes)) for tensor in response.outputs]
    for _, datatype in typed:
        raw = raw or datatype in _RAW_ONLY
    raw_outputs: list[Any] = []
    for tensor, datatype in typed:
        output = _output_head(tensor.name, datatype, tensor.data.shape)
        if tensor.parameters:
            output += _parameters(_OUTPUT_CLASS(), tensor.parameters, None)
        if raw:
            values = binary_values(tensor.name, datatype, tensor.data)
            _append_field(
                raw_outputs, _RAW_OUTPUT, values, len(values) if isinstance(values, bytes) else values.nbytes
            )
        else:
            contents = _contents(tensor, datatype)
            output = b"".join((output, _CONTENTS, _varint(len(contents)), contents))
        _append_field(parts, _OUTPUT, output)
    return b"".join(parts + raw_outputs)


# Messages are joined from the bytes of their fields, and most fields repeat from response to
# response. Filling and serializing a message object takes several times as long, and copies raw
# contents twice more.


@lru_cache(_CACHE_MAX)
def _response_head(model: str, version: str) -> bytes:
    return encode_message("ModelInferResponse", model_name=model, model_version=version)


@lru_cache(_CACHE_MAX)
def _output_head(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    return encode_message("ModelInferResponse.InferOutputTensor", name=name, datatype=datatype, shape=shape)


def _parameters(message: Any, parameters: Mapping[str, Any], final: bool | None) -> bytes:
    set_parameters(message.parameters, parameters)
    if final is not None:
        message.parameters[FINAL_RESPONSE].bool_param = final
    return message.SerializeToString()


def _append_field(parts: list[Any], tag: bytes, value: Any, size: int | None = None) -> None:
    parts += (tag, _varint(len(value) if size is None else size), value)


def wrap_stream_response(response: bytes) -> bytes:
    """Return the bytes of Triton's ModelStreamInferResponse around those of a ModelInferResponse."""
    return b"".join((_INFER_RESPONSE, _varint(len(response)), response))


def encode_stream_error(
    why: str, *, model: str = "", id: str = "", parameters: Mapping[str, Any] | None = None
) -> bytes:
    """Return the bytes of the ModelStreamInferResponse of a failed request in Triton's stream."""
    message = _STREAM_RESPONSE(error_message=why)
    message.infer_response.model_name = model
    message.infer_response.id = id
    set_parameters(message.infer_response.parameters, parameters or {})
    message.infer_response.parameters[FINAL_RESPONSE].bool_param = True
    return message.SerializeToString()


def _datatype(tensor: Tensor, datatypes: Mapping[str, str] | None) -> str:
    dtype = tensor.data.dtype
    if datatypes and datatypes.get(tensor.name) == "BF16" and dtype.name in ("uint16", "float32"):
        return "BF16"
    return datatype_of(dtype)


def _contents(tensor: Tensor, datatype: str) -> bytes:
    """Return the bytes of InferTensorContents."""
    if datatype == "BYTES":
        parts: list[Any] = []
        for element in byte_elements(tensor.name, tensor.data.ravel().tolist()):
            _append_field(parts, _BYTES_CONTENTS, element)
        return b"".join(parts)
    if tag := _PACKED.get(datatype):
        values: Any = binary_values(tensor.name, datatype, tensor.data)
        return b"".join((tag, _varint(values.nbytes), values)) if values.nbytes else b""
    message = _CONTENTS_CLASS()
    getattr(message, _INTEGER_FIELDS[datatype]).extend(tensor.data.ravel().tolist())
    return message.SerializeToString()


def _varint(number: int) -> bytes:
    """Return an unsigned number as a protobuf varint: seven bits per byte, low bits first."""
    if number < 128:
        return _ONE_BYTE[number]
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def decode_response(data: bytes) -> InferResponse:
    """Return the response of a ModelInferResponse. BF16 becomes float32, BYTES elements are bytes."""
    message = parse_message(_RESPONSE, data)
    outputs = decode_tensors(message.outputs, message.raw_output_contents) if message.outputs else ()
    return InferResponse(
        outputs,
        message.model_name,
        message.model_version or None,
        message.id,
        decode_parameters(message.parameters),
    )
