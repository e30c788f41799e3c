"""Read the protobuf wire format without a schema compiler.

Fields are read one by one, repeated numbers as arrays. Only the part that tensor messages need is
implemented; groups, unused since 2008, are not.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

Scalar = Literal["float", "double", "int32", "int64", "uint64"]
"""Supported protobuf number types."""

_FIXED: Final[dict[Scalar, tuple[int, np.dtype[Any]]]] = {
    "float": (FIXED32, np.dtype("<f4")),
    "double": (FIXED64, np.dtype("<f8")),
}
_FIXED_BYTES: Final = {FIXED32: 4, FIXED64: 8}
_VARINT_BYTES_MAX: Final = 10


class WireError(ValueError):
    """The bytes are not a protobuf message.

    The message names the byte, counted from the start of the record.
    """


class ProtoField(NamedTuple):
    """A field of a message: its number, its wire type, and the offsets of its value."""

    number: int
    wire_type: int
    start: int
    stop: int


def fields(data: bytes, start: int, stop: int) -> Iterator[ProtoField]:
    """Yield the fields of the message ``data[start:stop]`` in order.

    Raise WireError if it is malformed.
    """
    at = start
    while at < stop:
        key, at = _varint(data, at, stop)
        number, wire_type = key >> 3, key & 7
        if not number:
            raise WireError(f"field number 0 at byte {at}")
        size = _FIXED_BYTES.get(wire_type)
        begin = at
        if size is not None:
            at += size
        elif wire_type == VARINT:
            _, at = _varint(data, at, stop)
        elif wire_type == BYTES:
            size, begin = _varint(data, at, stop)
            at = begin + size
        else:
            raise WireError(f"unsupported wire type {wire_type} at byte {at}")
        if at > stop:
            raise WireError(f"field {number} at byte {begin} is longer than its message")
        yield ProtoField(number, wire_type, begin, at)


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a varint and its end offset."""
    value = shift = 0
    for index in range(at, min(stop, at + _VARINT_BYTES_MAX)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, index + 1
        shift += 7
    raise WireError(f"a varint at byte {at} does not end")


def is_fixed_width(kind: Scalar) -> bool:
    """Return True if every number of this type has the same number of bytes."""
    return kind in _FIXED


def fixed_dtype(kind: Scalar) -> np.dtype[Any]:
    """Return the dtype of fixed-width numbers in a message. Raise KeyError for a varint type."""
    return _FIXED[kind][1]


def numbers(data: bytes, kind: Scalar, occurrences: list[ProtoField]) -> NDArray[Any]:
    """Return the numbers of one repeated field, packed or one by one, from its `occurrences`.

    Raises WireError.
    """
    parts = [_numbers(data, kind, field) for field in occurrences]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, _dtype(kind))


def _numbers(data: bytes, kind: Scalar, field: ProtoField) -> NDArray[Any]:
    wire_type, dtype = _FIXED.get(kind, (VARINT, _dtype(kind)))
    if field.wire_type not in (wire_type, BYTES):
        raise WireError(
            f"field {field.number} at byte {field.start} has wire type {field.wire_type}, not that of {kind}"
        )
    if wire_type == VARINT:
        return varints(data[field.start : field.stop], field.start).astype(dtype)
    if (field.stop - field.start) % dtype.itemsize:
        raise WireError(f"field {field.number} at byte {field.start} does not hold a whole number of {kind}s")
    return np.frombuffer(data, dtype, (field.stop - field.start) // dtype.itemsize, field.start)


def _dtype(kind: Scalar) -> np.dtype[Any]:
    return _FIXED[kind][1] if kind in _FIXED else np.dtype(kind)


def varints(packed: bytes, at: int = 0) -> NDArray[np.uint64]:
    """Decode consecutive varints as unsigned integers. `at` is their offset for the WireError."""
    if not packed:
        return np.empty(0, np.uint64)
    values = np.frombuffer(packed, np.uint8)
    last = np.flatnonzero(values < 0x80)
    if not len(last) or last[-1] != len(values) - 1:
        raise WireError(f"a varint at or after byte {at} does not end")
    begins = np.zeros_like(last)
    begins[1:] = last[:-1] + 1
    lengths = last - begins + 1
    if int(lengths.max()) > _VARINT_BYTES_MAX:
        raise WireError(f"a varint at or after byte {at} is longer than {_VARINT_BYTES_MAX} bytes")
    shifts = (np.arange(len(values)) - np.repeat(begins, lengths)) * 7
    return np.add.reduceat((values & 0x7F).astype(np.uint64) << shifts.astype(np.uint64), begins)
