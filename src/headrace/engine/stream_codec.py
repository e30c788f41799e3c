"""Requests and responses of a stream as bytes, many at once, for the way between an instance and its process.

One item is two lengths, what is said of it as JSON, and its arrays' raw bytes. What is said is mostly the same from item
to item, and is read once.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from headrace.core.tensor import Array, InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.shared_arrays import objects, raw_bytes

_ITEM: Final = struct.Struct("<IQ")
_SIZE: Final = struct.Struct("<Q")
_JSON: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_KNOWN_MAX: Final = 256

Said = tuple[Any, ...]


def _packed(tensors: Sequence[Tensor], said: list[Any]) -> bytes:
    """One item. Raises TypeError and DataError for what is no plain value, or no text."""
    arrays: list[Any] = []
    raw: list[bytes] = []
    for tensor in tensors:
        data = tensor.data
        kind = data.dtype.kind
        if kind == "O":
            elements, text = raw_bytes(tensor.name, data)
            arrays.append((tensor.name, "O", data.shape, text and text.hex()))
            raw += (_SIZE.pack(elements.nbytes), elements.tobytes())
        elif kind == "V":
            raise TypeError(f"array {tensor.name!r} has dtype {data.dtype}, which goes to no other process")
        else:
            arrays.append((tensor.name, data.dtype.str, data.shape, None))
            raw.append(data.tobytes())
    text = orjson.dumps([arrays, *said], option=_JSON)
    body = b"".join(raw)
    return b"".join((_ITEM.pack(len(text), len(body)), text, body))


def pack_response(item: InferResponse) -> bytes:
    """A response; see `unpack_responses`."""
    failures = [(f.row, f.why, f.attempts) for f in item.failures]
    return _packed(item.outputs, [item.model_name, item.model_version, item.id, item.parameters, failures])


def pack_request(item: InferRequest, now: float) -> bytes:
    """A request; its deadline travels as what is left of it."""
    left_s = None if item.deadline is None else item.deadline - now
    return _packed(item.inputs, [item.id, item.outputs, item.parameters, left_s, item.priority])


def unpack_responses(data: memoryview) -> list[InferResponse]:
    """What `pack_response` packed, item after item."""
    return list(_items(data, _response))


def unpack_requests(data: memoryview, now: float) -> list[InferRequest]:
    """What `pack_request` packed, item after item."""

    def request(inputs: tuple[Tensor, ...], said: Said) -> InferRequest:
        id, outputs, parameters, left_s, priority = said
        deadline = None if left_s is None else now + left_s
        return InferRequest(inputs, id, tuple(outputs), dict(parameters), deadline, priority)

    return list(_items(data, request))


def _response(outputs: tuple[Tensor, ...], said: Said) -> InferResponse:
    name, version, id, parameters, failures = said
    failed = tuple([RowFailure(*failure) for failure in failures])
    return InferResponse(outputs, name, version, id, dict(parameters), failed)


def _items(data: memoryview, make: Callable[[tuple[Tensor, ...], Said], Any]) -> Iterator[Any]:
    at = 0
    while at < len(data):
        text_size, size = _ITEM.unpack_from(data, at)
        at += _ITEM.size
        arrays, said = _read(bytes(data[at : at + text_size]))
        at += text_size
        tensors: list[Tensor] = []
        for name, dtype, shape, text, nbytes in arrays:
            if dtype is None:
                (nbytes,) = _SIZE.unpack_from(data, at)  # noqa: PLW2901 - only the bytes themselves know
                at += _SIZE.size
                tensors.append(Tensor(name, objects(name, shape, data[at : at + nbytes], text)))
            else:
                tensors.append(Tensor(name, _array(data, at, shape, dtype, nbytes)))
            at += nbytes
        del size
        yield make(tuple(tensors), said)


def _array(data: memoryview, at: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
    if not nbytes:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, prod(shape), at).reshape(shape).copy()


@lru_cache(_KNOWN_MAX)
def _read(text: bytes) -> tuple[Sequence[tuple[Any, ...]], Said]:
    """What is said of an item; shared by all that it is said of, so what can be changed is copied by who hands it on."""
    arrays, *said = orjson.loads(text)
    return [_read_array(*array) for array in arrays], tuple(said)


def _read_array(name: str, dtype: str, sizes: Sequence[int], text: str | None) -> tuple[Any, ...]:
    shape = tuple(sizes)
    if dtype == "O":
        return name, None, shape, None if text is None else bytes.fromhex(text), 0
    made = np.dtype(dtype)
    return name, made, shape, None, prod(shape) * made.itemsize


def plain(values: Mapping[str, Any]) -> bytes:
    """A small message as JSON."""
    return orjson.dumps(values, option=_JSON)
