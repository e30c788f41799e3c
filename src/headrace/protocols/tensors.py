"""Values of a tensor of the Open Inference Protocol, as JSON or as raw bytes.

Input: the datatype, shape and values of a tensor in a body. Output: a numpy array of exactly these,
or a `DataError` that names the tensor. A shape alone allocates no memory: the values must be there
first.
"""

import struct
import sys
from itertools import chain
from math import prod
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, DataError
from headrace.core.json_numbers import whole_number
from headrace.core.tensor import Array, dtype_of, little_endian, text_array

_LITTLE_ENDIAN = sys.byteorder == "little"

Bf16 = Literal["bits", "float32"]
"""numpy form of BF16, which numpy lacks: uint16 bit patterns, or exact widening to float32."""

DIMENSIONS_MAX = 16
"""Limit of a tensor's dimensions. A larger number is a mistake or an attack."""

ELEMENTS_MAX = 2**40
"""Limit of a tensor's elements. The bytes that arrive limit them further."""

_LENGTH = struct.Struct("<I")


class TensorEncodingError(DataError):
    """A tensor value that the protocol does not have. The producer of the tensor is at fault."""


_NUMBERS = {int, float}


def validate_shape(name: str, shape: object) -> tuple[int, ...]:
    """Return a tensor's shape from a JSON document.

    Raises:
        DataError: The shape is not a list of up to DIMENSIONS_MAX sizes of 0 or more. The first
            dimension is the rows. A tensor without dimensions has one value.
    """
    if not isinstance(shape, list):
        raise DataError(f"tensor {name!r}: its shape must be a list of sizes, not {_excerpt(shape)}")
    shown = _excerpt(cast("object", shape))
    sizes = cast("list[object]", shape)
    if len(sizes) > DIMENSIONS_MAX:
        raise DataError(f"tensor {name!r}: {len(sizes)} dimensions; the limit is {DIMENSIONS_MAX}")
    sizes = [size if type(size) is int else whole_number(size) for size in sizes]
    for size in sizes:
        if type(size) is not int or size < 0:
            raise DataError(f"tensor {name!r}: a size in its shape must be 0 or more, not {_excerpt(size)}")
    checked = tuple(cast("list[int]", sizes))
    # Sizes of 0 count as 1: numpy multiplies the other sizes even if one is 0.
    if prod(max(size, 1) for size in checked) > ELEMENTS_MAX:
        raise DataError(f"tensor {name!r}: shape {shown} is too large")
    return checked


def validate_datatype(name: str, datatype: object) -> str:
    """Return a tensor's datatype from a JSON document.

    Raises DataError for a datatype that the protocol does not have.
    """
    if not isinstance(datatype, str):
        raise DataError(
            f"tensor {name!r}: its datatype must be a name such as FP32, not {_excerpt(datatype)}"
        )
    if datatype == "BF16":
        return datatype
    try:
        dtype_of(datatype)
    except TypeError as error:
        raise DataError(f"tensor {name!r}: {error}") from None
    return datatype


# Decoding


def array_from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Array:
    """Return the array of JSON values, nested as `shape` says or flat in row-major order.

    The one value of a tensor without dimensions may stand alone or in a list.
    Null in a float tensor is NaN, since JSON has no NaN. Numbers must fit the datatype: integers
    have no fractions, and no value is out of range. BYTES elements become str.
    """
    if datatype == "BF16":
        raise DataError(f"tensor {name!r}: BF16 cannot be JSON; send it as binary data")
    values = _flat(name, shape, data)
    types = set(map(type, values))
    if datatype == "BYTES":
        _check_types(name, datatype, types, {str})
        return text_array(values).reshape(shape)
    if datatype == "BOOL":
        return _booleans(name, values, types).reshape(shape)
    dtype = dtype_of(datatype)
    if dtype.kind == "f":
        return _floats(name, datatype, values, types).reshape(shape)
    return _integers(name, datatype, values, types).reshape(shape)


def _flat(name: str, shape: tuple[int, ...], data: object) -> list[Any]:
    """Return the values in one list, checked against the shape."""
    if not isinstance(data, list):
        if shape == () and isinstance(data, str | int | float):
            return [data]
        raise DataError(f"tensor {name!r}: its data must be a list, not {_excerpt(data)}")
    values = cast("list[Any]", data)
    sizes = [len(values)]
    while values and isinstance(values[0], list):
        if len(sizes) == DIMENSIONS_MAX:
            raise DataError(f"tensor {name!r}: its data is nested deeper than {DIMENSIONS_MAX} lists")
        if set(map(type, values)) != {list}:
            raise DataError(f"tensor {name!r}: its data mixes lists and values")
        lengths = set(map(len, values))
        if len(lengths) > 1:
            raise DataError(
                f"tensor {name!r}: its nested data is ragged (lists of {sorted(lengths)[:4]} values)"
            )
        sizes.append(lengths.pop())
        values = list(chain.from_iterable(values))
    if len(values) != prod(shape):
        raise DataError(
            f"tensor {name!r}: shape {list(shape)} has {prod(shape)} values, but its data has {len(values)}"
        )
    if len(sizes) > 1 and tuple(sizes) != shape:
        raise DataError(f"tensor {name!r}: its data is nested as {sizes}, but its shape is {list(shape)}")
    return values


def _check_types(name: str, datatype: str, found: set[type], taken: set[type]) -> None:
    wrong = found - taken
    if wrong:
        names = ", ".join(sorted("null" if t is type(None) else t.__name__ for t in wrong))
        raise DataError(f"tensor {name!r}: {datatype} values cannot be {names}")


def _booleans(name: str, values: list[Any], types: set[type]) -> Array:
    _check_types(name, "BOOL", types, {bool, int})
    if int in types and not all(v in (0, 1) for v in values):
        raise DataError(f"tensor {name!r}: BOOL values are true and false, or 1 and 0")
    return np.array(values, bool)


def _floats(name: str, datatype: str, values: list[Any], types: set[type]) -> Array:
    _check_types(name, datatype, types, {*_NUMBERS, type(None)})
    try:
        wide = np.array(values, np.float64)
    except OverflowError:  # An integer of hundreds of digits.
        raise DataError(f"tensor {name!r}: a value is too large for {datatype}") from None
    with np.errstate(over="ignore"):
        made = wide.astype(dtype_of(datatype))
    if (np.isinf(made) & np.isfinite(wide)).any():
        raise DataError(f"tensor {name!r}: a value is too large for {datatype}")
    return made


def _integers(name: str, datatype: str, values: list[Any], types: set[type]) -> Array:
    _check_types(name, datatype, types, _NUMBERS)
    if float in types:
        if not all(type(v) is int or v.is_integer() for v in values):
            raise DataError(f"tensor {name!r}: {datatype} values cannot have fractions")
        values = [int(v) for v in values]
    try:
        return np.array(values, dtype_of(datatype))
    except OverflowError:
        raise DataError(f"tensor {name!r}: a value is out of the range of {datatype}") from None


def array_from_binary(
    name: str, datatype: str, shape: tuple[int, ...], data: memoryview, *, bf16: Bf16 = "bits"
) -> Array:
    """Return the array of raw bytes: little-endian, row-major. Aligned values are not copied.

    The array may be read-only. BYTES elements become bytes.
    """
    count = prod(shape)
    if datatype == "BYTES":
        return _bytes_elements(name, count, data).reshape(shape)
    dtype = np.dtype(np.uint16) if datatype == "BF16" else dtype_of(datatype)
    if count * dtype.itemsize != len(data):
        raise DataError(
            f"tensor {name!r}: shape {list(shape)} of {datatype} takes {count * dtype.itemsize} bytes, "
            f"but its binary_data_size is {len(data)}"
        )
    if datatype == "BOOL":
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    made: Array = np.frombuffer(data, little_endian(dtype)).astype(dtype, copy=False)
    if not made.flags.aligned:
        made = made.copy()
    if datatype == "BF16" and bf16 == "float32":
        made = float32_from_bf16(made)
    return made.reshape(shape)


def _bytes_elements(name: str, count: int, data: memoryview) -> Array:
    size, at = len(data), 0
    if count * _LENGTH.size > size:
        raise DataError(f"tensor {name!r}: {count} BYTES elements do not fit in {size} bytes")
    made = np.empty(count, object)
    for i in range(count):
        if at + _LENGTH.size > size:
            raise DataError(f"tensor {name!r}: its data ends before element {i} of {count}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > size - at:
            raise DataError(
                f"tensor {name!r}: element {i} declares {length} bytes, but only {size - at} are left"
            )
        made[i] = bytes(data[at : at + length])
        at += length
    if at != size:
        raise DataError(f"tensor {name!r}: {size - at} bytes follow its {count} elements")
    return made


# Encoding


def json_values(name: str, datatype: str, data: Array) -> Array | list[Any]:
    """Return the values flat, in a form that orjson can write. NaN becomes null.

    Raises:
        DataError: JSON cannot carry an element (infinity, or bytes that are not UTF-8); the message
            names it.
        ConfigError: The datatype is BF16.
    """
    if datatype == "BF16":
        raise ConfigError(f"tensor {name!r} is BF16, which JSON cannot carry; use binary tensors")
    if datatype == "BYTES":
        return [_text(name, i, v) for i, v in enumerate(data.ravel().tolist())]
    values = np.ascontiguousarray(data).ravel().astype(data.dtype.newbyteorder("="), copy=False)
    if values.dtype.kind == "f":
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise DataError(
                f"tensor {name!r}: element {infinite[0]} is infinite, which JSON cannot carry; "
                "use binary tensors"
            )
    return values


def _text(name: str, index: int, value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise _not_bytes(name, index, value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"tensor {name!r}: element {index} is not UTF-8, and JSON carries only text; use binary tensors"
        ) from None


def _not_bytes(name: str, index: int, value: object) -> DataError:
    return TensorEncodingError(
        f"tensor {name!r}: element {index} must be bytes or str, not {type(value).__name__}"
    )


def binary_values(name: str, datatype: str, data: Array) -> bytes | Array:
    """Return the values as a buffer: little-endian, row-major, without a copy if they already are.

    For BF16, uint16 values are bit patterns, and float32 values are rounded to the nearest BF16.
    """
    if datatype == "BYTES":
        return _length_prefixed(name, data.ravel().tolist())
    if datatype == "BF16" and data.dtype != np.uint16:
        data = bf16_from_float32(data)
    if _LITTLE_ENDIAN and data.dtype.isnative and data.flags.c_contiguous:
        return data
    return np.ascontiguousarray(data, little_endian(data.dtype))


def _length_prefixed(name: str, values: list[object]) -> bytes:
    parts: list[bytes] = []
    for element in byte_elements(name, values):
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def byte_elements(name: str, values: list[object]) -> list[bytes]:
    """Return the elements of a BYTES tensor as bytes.

    Raises DataError for an element that is neither bytes nor text that UTF-8 can encode.
    """
    elements: list[bytes] = []
    for i, value in enumerate(values):
        try:
            element = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError:
            raise DataError(
                f"tensor {name!r}: element {i} has a lone surrogate, which UTF-8 cannot encode"
            ) from None
        if not isinstance(element, bytes):
            raise _not_bytes(name, i, value)
        elements.append(element)
    return elements


def float32_from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of BF16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_from_float32(values: Array) -> NDArray[np.uint16]:
    """Return the nearest BF16 of each value as bit patterns, ties to even. NaN stays NaN."""
    wide = np.ascontiguousarray(values, np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding could carry a NaN's low bits into an infinity, so NaN becomes a quiet NaN.
    return np.where(np.isnan(wide), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
