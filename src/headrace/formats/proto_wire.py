"""Protobuf's wire format, read without a schema compiler: fields one by one, repeated numbers as arrays.

Only what messages of tensors need: no groups, which nobody has written since 2008.
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
"""The protobuf types of numbers that are read."""

_FIXED: Final[dict[Scalar, tuple[int, np.dtype[Any]]]] = {
    "float": (FIXED32, np.dtype("<f4")),
    "double": (FIXED64, np.dtype("<f8")),
}
_FIXED_BYTES: Final = {FIXED32: 4, FIXED64: 8}
_VARINT_BYTES_MAX: Final = 10


class WireError(ValueError):
    """These bytes are no protobuf message; says at which byte, counted from where the message's record begins."""


class Field(NamedTuple):
    """One field of a message: its number, its wire type, and where its value stands."""

    number: int
    wire: int
    start: int
    stop: int


def fields(data: bytes, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message ``data[start:stop]``, in order. Raises WireError where it is none."""
    at = start
    while at < stop:
        key, at = _varint(data, at, stop)
        number, wire = key >> 3, key & 7
        if not number:
            raise WireError(f"a field of number 0 at byte {at}")
        size = _FIXED_BYTES.get(wire)
        begin = at
        if size is not None:
            at += size
        elif wire == VARINT:
            _, at = _varint(data, at, stop)
        elif wire == BYTES:
            size, begin = _varint(data, at, stop)
            at = begin + size
        else:
            raise WireError(f"a field of wire type {wire} at byte {at}")
        if at > stop:
            raise WireError(f"field {number} at byte {begin} is longer than its message")
        yield Field(number, wire, begin, at)


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    value = shift = 0
    for index in range(at, min(stop, at + _VARINT_BYTES_MAX)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, index + 1
        shift += 7
    raise WireError(f"a varint at byte {at} does not end")


def is_fixed(kind: Scalar) -> bool:
    """Whether every number of this type takes the same number of bytes."""
    return kind in _FIXED


def fixed_dtype(kind: Scalar) -> np.dtype[Any]:
    """How numbers of a fixed type stand in the message; KeyError for one that is a varint."""
    return _FIXED[kind][1]


def numbers(data: bytes, kind: Scalar, found: list[Field]) -> NDArray[Any]:
    """The numbers of one repeated field, whose occurrences these are, packed or one by one. Raises WireError."""
    parts = [_numbers(data, kind, field) for field in found]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, _dtype(kind))


def _numbers(data: bytes, kind: Scalar, field: Field) -> NDArray[Any]:
    wire, dtype = _FIXED.get(kind, (VARINT, _dtype(kind)))
    if field.wire not in (wire, BYTES):
        raise WireError(
            f"field {field.number} at byte {field.start} has wire type {field.wire}, not that of {kind}"
        )
    if wire == VARINT:
        return varints(data[field.start : field.stop], field.start).astype(dtype)
    if (field.stop - field.start) % dtype.itemsize:
        raise WireError(f"field {field.number} at byte {field.start} is no whole number of {kind}s")
    return np.frombuffer(data, dtype, (field.stop - field.start) // dtype.itemsize, field.start)


def _dtype(kind: Scalar) -> np.dtype[Any]:
    return _FIXED[kind][1] if kind in _FIXED else np.dtype(kind)


def varints(packed: bytes, at: int = 0) -> NDArray[np.uint64]:
    """Varints, one behind the other, as they would be without a sign; `at` is where they stand, for the WireError."""
    if not packed:
        return np.empty(0, np.uint64)
    values = np.frombuffer(packed, np.uint8)
    last = np.flatnonzero(values < 0x80)
    if not len(last) or last[-1] != len(values) - 1:
        raise WireError(f"a varint at byte {at} or behind it does not end")
    begins = np.zeros_like(last)
    begins[1:] = last[:-1] + 1
    lengths = last - begins + 1
    if int(lengths.max()) > _VARINT_BYTES_MAX:
        raise WireError(f"a varint at byte {at} or behind it is longer than {_VARINT_BYTES_MAX} bytes")
    shifts = (np.arange(len(values)) - np.repeat(begins, lengths)) * 7
    return np.add.reduceat((values & 0x7F).astype(np.uint64) << shifts.astype(np.uint64), begins)
