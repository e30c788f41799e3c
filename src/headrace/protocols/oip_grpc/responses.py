"""Responses to ModelInferResponse messages, raw or typed, and to Triton's wrapped form for streams."""

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import orjson

from headrace.core.errors import DataError
from headrace.core.tensor import InferResponse, Tensor, datatype_of, dtype_of
from headrace.protocols.oip_grpc.messages import message_class
from headrace.protocols.tensors import binary_values

FINAL_RESPONSE: Final = "triton_final_response"
"""Triton's parameter that says whether more answers to the same request follow."""

_RESPONSE: Any = message_class("ModelInferResponse")
_STREAM_RESPONSE: Any = message_class("ModelStreamInferResponse")

_NUMBERS: Final = (
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64".split()  # noqa: SIM905 - a table of 12
)
_DATATYPES: Final = {dtype_of(name): name for name in _NUMBERS}
_RAW_ONLY: Final = frozenset({"FP16", "BF16"})

# The tag byte of a field whose values are length-delimited: its number, and wire type 2.
_RAW_OUTPUT: Final = b"\x32"
_INFER_RESPONSE: Final = b"\x12"
# Packed floats and booleans look on the wire as they do in memory; integers do not.
_PACKED: Final = {"BOOL": b"\x0a", "FP32": b"\x32", "FP64": b"\x3a"}
_LISTED: Final = {
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
    """The bytes of a ModelInferResponse.

    Args:
        response: What the model answered; no row of it failed.
        raw: Whether tensors travel as raw contents. All do, also when not asked to, where one is FP16 or BF16.
        id: The request's, for a response that has none of its own.
        datatypes: What the model declares, by output name; needed for BF16 only, which numpy cannot tell.
        final: Triton's word on whether this is the last answer to its request; None leaves it unsaid.

    Raises:
        DataError: A value cannot travel; the message names tensor and element.
        TypeError: A dtype that the protocol does not have.
        ValueError: Rows failed, which the protocol cannot say.
    """
    if response.failures:
        raise ValueError(f"{len(response.failures)} rows failed, which a V2 response cannot say")
    message = _RESPONSE(
        model_name=response.model_name, model_version=response.model_version or "", id=response.id or id
    )
    if response.parameters:
        set_parameters(message.parameters, response.parameters)
    if final is not None:
        message.parameters[FINAL_RESPONSE].bool_param = final
    named = [(tensor, _datatype(tensor, datatypes)) for tensor in response.outputs]
    add = message.outputs.add
    if not raw and not any(datatype in _RAW_ONLY for _, datatype in named):
        for tensor, datatype in named:
            entry = add(name=tensor.name, datatype=datatype, shape=tensor.data.shape)
            if tensor.parameters:
                set_parameters(entry.parameters, tensor.parameters)
            _set_contents(entry.contents, tensor, datatype)
        return message.SerializeToString()
    parts: list[Any] = [b""]
    for tensor, datatype in named:
        entry = add(name=tensor.name, datatype=datatype, shape=tensor.data.shape)
        if tensor.parameters:
            set_parameters(entry.parameters, tensor.parameters)
        values = binary_values(tensor.name, datatype, tensor.data)
        size = len(values) if isinstance(values, bytes) else values.nbytes
        parts += (_RAW_OUTPUT, _varint(size), values)
    # Raw contents are appended as the wire has them: through the message they would be copied twice more.
    parts[0] = message.SerializeToString()
    return b"".join(parts)


def wrapped(response: bytes) -> bytes:
    """The bytes of Triton's ModelStreamInferResponse around those of a ModelInferResponse."""
    return b"".join((_INFER_RESPONSE, _varint(len(response)), response))


def encode_stream_error(why: str, *, model: str = "", id: str = "") -> bytes:
    """The bytes of Triton's ModelStreamInferResponse that says that the request of this id failed."""
    message = _STREAM_RESPONSE(error_message=why)
    message.infer_response.model_name = model
    message.infer_response.id = id
    message.infer_response.parameters[FINAL_RESPONSE].bool_param = True
    return message.SerializeToString()


def set_parameters(target: Any, parameters: Mapping[str, Any]) -> None:
    """Write parameters into a map of InferParameter.

    What it has no type for (lists, mappings, numbers beyond 64 bits) travels as JSON text; None is left out.

    Raises:
        DataError: Not even JSON can carry a value; the message names it.
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


def _datatype(tensor: Tensor, datatypes: Mapping[str, str] | None) -> str:
    dtype = tensor.data.dtype
    if datatypes and datatypes.get(tensor.name) == "BF16" and dtype.name in ("uint16", "float32"):
        return "BF16"
    return _DATATYPES.get(dtype) or datatype_of(dtype)


def _set_contents(contents: Any, tensor: Tensor, datatype: str) -> None:
    if datatype == "BYTES":
        contents.bytes_contents.extend(_elements(tensor))
    elif tag := _PACKED.get(datatype):
        values: Any = binary_values(tensor.name, datatype, tensor.data)
        contents.MergeFromString(b"".join((tag, _varint(values.nbytes), values)))
    else:
        getattr(contents, _LISTED[datatype]).extend(tensor.data.ravel().tolist())


def _elements(tensor: Tensor) -> list[bytes]:
    made: list[bytes] = []
    values: list[object] = tensor.data.ravel().tolist()
    for i, value in enumerate(values):
        try:
            element: object = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError:
            raise DataError(
                f"tensor {tensor.name!r}: element {i} has a lone surrogate, which is no text"
            ) from None
        if not isinstance(element, bytes):
            raise DataError(
                f"tensor {tensor.name!r}: element {i} must be bytes or str, not {type(value).__name__}"
            )
        made.append(element)
    return made


def _varint(number: int) -> bytes:
    """An unsigned number as protobuf writes it: seven bits a byte, the low ones first."""
    if number < 128:
        return bytes((number,))
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)
