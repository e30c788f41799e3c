"""Requests, responses and errors between an instance and its process, as bytes or plain values.

An item of a stream consists of two lengths, a JSON header and the raw bytes of its arrays. Most
items of a stream have equal headers, so a header is parsed once and cached. An opaque request, or
its response, is a header in a message and arrays in shared memory. Error types that clients
distinguish keep their type; any other becomes a `RemoteError`.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DataError,
    DeadlineError,
    InstanceLostError,
    LimitError,
    MissingExtraError,
    ModelContractError,
    ModelError,
    ModelInputError,
    ModelLoadError,
    ModelNotFoundError,
    ModelNotReadyError,
    PredictError,
    PredictorError,
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import HandleRequest, HandleResponse, RowError
from headrace.core.model_traceback import ModelTraceback
from headrace.core.tensor import Array, InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.model_methods import WHY_CHARS_MAX, RemoteError, describe_error
from headrace.engine.process.messages import OpaqueHeader, ResponseHeader
from headrace.engine.process.shared_arrays import decode_objects, encode_objects

_ITEM: Final = struct.Struct("<IQ")
_SIZE: Final = struct.Struct("<Q")
_JSON: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_HEADER_CACHE_MAX: Final = 256

_MODEL_ERRORS: Final[Mapping[str, type[ModelError]]] = {
    kind.__name__: kind
    for kind in (
        ModelContractError,
        ModelError,
        ModelInputError,
        ModelLoadError,
        ModelNotFoundError,
        ModelNotReadyError,
        PredictError,
    )
}
_SEQUENCE_ERRORS: Final[Mapping[str, type[SequenceGoneError | SequenceLostError]]] = {
    kind.__name__: kind for kind in (SequenceGoneError, SequenceLostError)
}
# Of Python's own: exceptions outside of Exception end their request only, and MemoryError concerns
# the batch size.
_TEXT_ERRORS: Final[Mapping[str, type[BaseException]]] = {
    kind.__name__: kind
    for kind in (
        CancelledRequestError,
        ConfigError,
        DataError,
        DeadlineError,
        KeyboardInterrupt,
        LimitError,
        MemoryError,
        PredictorError,
        StoppedError,
        SystemExit,
        UnsupportedError,
    )
}

ItemHeader = tuple[Any, ...]


def _pack_item(tensors: Sequence[Tensor], header: list[Any]) -> bytes:
    """Return one item.

    Raises TypeError for values that are not plain, and DataError for invalid text.
    """
    arrays: list[Any] = []
    raw: list[bytes] = []
    for tensor in tensors:
        data = tensor.data
        kind = data.dtype.kind
        if kind == "O":
            elements, text = encode_objects(tensor.name, data)
            arrays.append((tensor.name, "O", data.shape, text and text.hex()))
            raw += (_SIZE.pack(elements.nbytes), elements.tobytes())
        elif kind == "V":
            raise TypeError(
                f"array {tensor.name!r} has dtype {data.dtype}, which cannot be sent to another process"
            )
        else:
            arrays.append((tensor.name, data.dtype.str, data.shape, None))
            raw.append(data.tobytes())
    text = orjson.dumps([arrays, *header], option=_JSON)
    body = b"".join(raw)
    return b"".join((_ITEM.pack(len(text), len(body)), text, body))


def pack_response(item: InferResponse) -> bytes:
    """Pack a response for `unpack_responses`."""
    failures = [(f.row, f.why, f.attempts) for f in item.failures]
    return _pack_item(item.outputs, [item.model_name, item.model_version, item.id, item.parameters, failures])


def pack_request(item: InferRequest, now: float) -> bytes:
    """Pack a request for `unpack_requests`. Its deadline becomes the seconds that are left."""
    left_s = None if item.deadline is None else item.deadline - now
    return _pack_item(item.inputs, [item.id, item.outputs, item.parameters, left_s, item.priority])


def unpack_responses(data: memoryview) -> list[InferResponse]:
    """Unpack responses of `pack_response`."""
    return list(_unpack_items(data, _response))


def unpack_requests(data: memoryview, now: float) -> list[InferRequest]:
    """Unpack requests of `pack_request`."""

    def request(inputs: tuple[Tensor, ...], header: ItemHeader) -> InferRequest:
        id, outputs, parameters, left_s, priority = header
        deadline = None if left_s is None else now + left_s
        return InferRequest(inputs, id, tuple(outputs), dict(parameters), deadline, priority)

    return list(_unpack_items(data, request))


def _response(outputs: tuple[Tensor, ...], header: ItemHeader) -> InferResponse:
    name, version, id, parameters, failures = header
    failed = tuple([RowFailure(*failure) for failure in failures])
    return InferResponse(outputs, name, version, id, dict(parameters), failed)


def _unpack_items(data: memoryview, make: Callable[[tuple[Tensor, ...], ItemHeader], Any]) -> Iterator[Any]:
    at = 0
    while at < len(data):
        text_size, size = _ITEM.unpack_from(data, at)
        at += _ITEM.size
        arrays, header = _parse_header(bytes(data[at : at + text_size]))
        at += text_size
        tensors: list[Tensor] = []
        for name, dtype, shape, text, nbytes in arrays:
            if dtype is None:
                (nbytes,) = _SIZE.unpack_from(data, at)  # noqa: PLW2901 - the length is in the data
                at += _SIZE.size
                tensors.append(Tensor(name, decode_objects(name, shape, data[at : at + nbytes], text)))
            else:
                tensors.append(Tensor(name, _array(data, at, shape, dtype, nbytes)))
            at += nbytes
        del size
        yield make(tuple(tensors), header)


def _array(data: memoryview, at: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
    if not nbytes:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, prod(shape), at).reshape(shape).copy()


@lru_cache(_HEADER_CACHE_MAX)
def _parse_header(text: bytes) -> tuple[Sequence[tuple[Any, ...]], ItemHeader]:
    """Parse a header. The result is cached and shared: copy its mutable values."""
    arrays, *header = orjson.loads(text)
    return [_parse_array_header(*array) for array in arrays], tuple(header)


def _parse_array_header(name: str, dtype: str, sizes: Sequence[int], text: str | None) -> tuple[Any, ...]:
    shape = tuple(sizes)
    if dtype == "O":
        return name, None, shape, None if text is None else bytes.fromhex(text), 0
    made = np.dtype(dtype)
    return name, made, shape, None, prod(shape) * made.itemsize


def pack_chunk(item: bytes) -> bytes:
    """Pack a chunk of a body for `unpack_chunks`."""
    return _SIZE.pack(len(item)) + item


def unpack_chunks(data: memoryview) -> list[bytes]:
    """Unpack chunks of `pack_chunk`."""
    chunks: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _SIZE.size
        at = start + int(_SIZE.unpack_from(data, at)[0])
        chunks.append(bytes(data[start:at]))
    return chunks


def pack_opaque_requests(
    requests: Sequence[HandleRequest], now: float
) -> tuple[list[OpaqueHeader], dict[str, Array]]:
    """Return the headers of requests, and their parts as arrays in order."""
    headers: list[OpaqueHeader] = []
    arrays: dict[str, Array] = {}
    for request in requests:
        left_s = None if request.deadline is None else request.deadline - now
        headers.append(
            OpaqueHeader(list(request.parts), dict(request.headers), request.id, request.priority, left_s)
        )
        for data in request.parts.values():
            arrays[str(len(arrays))] = np.frombuffer(data, np.uint8)
    return headers, arrays


def unpack_opaque_requests(
    headers: Sequence[OpaqueHeader], arrays: Mapping[str, Array], now: float
) -> list[HandleRequest]:
    """Return the requests of `pack_opaque_requests`."""
    parts = iter(arrays.values())
    return [
        HandleRequest(
            {name: next(parts).tobytes() for name in header.names},
            header.headers,
            header.id,
            None if header.left_s is None else now + header.left_s,
            header.priority,
        )
        for header in headers
    ]


def opaque_response_header(response: HandleResponse, chunked: int | None) -> ResponseHeader:
    """Return the header of a response."""
    return ResponseHeader(response.status, response.content_type, dict(response.headers), chunked)


def pack_bodies(responses: Sequence[object]) -> dict[str, Array]:
    """Return the whole bodies of responses as arrays, in order."""
    bodies = [r.body for r in responses if isinstance(r, HandleResponse)]
    return {
        str(at): np.frombuffer(body, np.uint8) for at, body in enumerate(bodies) if isinstance(body, bytes)
    }


def unpack_opaque_responses(
    headers: Sequence[ResponseHeader], arrays: Mapping[str, Array]
) -> list[HandleResponse]:
    """Return the responses; a chunked body is empty here."""
    bodies = iter(arrays.values())
    return [
        HandleResponse(
            next(bodies).tobytes() if header.chunked is None else b"",
            header.status,
            header.content_type,
            header.headers,
        )
        for header in headers
    ]


def error_to_wire(error: BaseException, traceback: ModelTraceback | None = None) -> dict[str, Any]:
    """Return an error as plain values, its texts cut at WHY_CHARS_MAX.

    An exception that arrives as a RemoteError has its `traceback` with it.
    """
    kind = type(error).__name__
    if isinstance(error, RowError):
        rows = {str(row): _text(why) for row, why in error.rows.items()}
        return {"kind": "RowError", "rows": rows}
    if isinstance(error, MissingExtraError):
        return {"kind": kind, "extra": error.extra, "needed_for": error.needed_for}
    if isinstance(error, InstanceLostError):
        details = {"cause": error.cause, "exit_code": error.exit_code, "signal": error.signal}
        return {"kind": "InstanceLostError", "model": error.model, "why": _text(error.why), **details}
    if isinstance(error, ModelError) and kind in _MODEL_ERRORS:
        return {"kind": kind, "model": error.model, "why": _text(error.why)}
    if isinstance(error, (SequenceGoneError, SequenceLostError)) and kind in _SEQUENCE_ERRORS:
        return {"kind": kind, "sequence_id": _text(error.sequence_id), "why": _text(error.why)}
    if _TEXT_ERRORS.get(kind) is type(error):
        return {"kind": kind, "why": _text(error)}
    remote = {"kind": "RemoteError", "why": _text(describe_error(error))}
    return remote if traceback is None else {**remote, "traceback": traceback.to_json()}


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the rest
        text = type(value).__name__
    # Text that UTF-8 cannot encode would keep the whole error from arriving.
    return text[:WHY_CHARS_MAX].encode(errors="replace").decode()


def error_from_wire(values: Mapping[str, Any]) -> BaseException:
    """Return the error that `error_to_wire` encoded, or a RemoteError with its description."""
    kind: str = values["kind"]
    if kind == "RowError":
        return RowError({int(row): why for row, why in values["rows"].items()})
    if kind == "MissingExtraError":
        return MissingExtraError(values["extra"], values["needed_for"])
    if kind == "InstanceLostError":
        details = {name: values[name] for name in ("cause", "exit_code", "signal")}
        return InstanceLostError(values["model"], values["why"], **details)
    if kind in _MODEL_ERRORS:
        return _MODEL_ERRORS[kind](values["model"], values["why"])
    if kind in _SEQUENCE_ERRORS:
        return _SEQUENCE_ERRORS[kind](values["sequence_id"], values["why"])
    error = _TEXT_ERRORS.get(kind, RemoteError)(values["why"])
    if isinstance(error, RemoteError) and "traceback" in values:
        error.traceback = ModelTraceback.from_json(values["traceback"])
    return error
