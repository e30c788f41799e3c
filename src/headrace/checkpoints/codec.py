"""Encoding of a sequence's state as bytes, the content of a checkpoint.

::

    version       1 byte
    checksum      4 bytes, CRC-32 of all following bytes
    layout size   4 bytes
    layout        JSON: a flat list that describes the values; see `headrace.checkpoints.layout`
    numbers       8 bytes for each int and float, 1 for each bool, 8 for each size that the layout omits
    pieces        array elements in C order, text, bytes; one after the other, without gaps

All numbers are little-endian, except for the elements of arrays in another byte order. The layout
is mostly the same from step to step, so it is encoded and decoded once and cached.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from headrace.checkpoints.layout import (
    DEPTH_MAX,
    NATIVE,
    RAW_KINDS,
    Layout,
    ValueSpec,
    decode_layout,
    dtype_name,
    encode_layout,
)
from headrace.core.tensor import Array

VERSION: Final = 1
STATE_BYTES_MAX: Final = 256 << 20
"""Size limit of one encoded state in bytes. Several states are written in one call, and stores have
limits of their own.
"""

_PREFIX: Final = struct.Struct("<BII")
_CHECKED_FROM: Final = 5
_SIZE: Final = struct.Struct("<I")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


def encode_state(state: Mapping[str, Any]) -> bytes:
    """Return the values of a state as bytes for `decode_state`.

    Supported values: numpy arrays of numbers, bools, times and fixed-length text, in any byte order
    and memory layout; object arrays of str or bytes; numpy scalars; None, bool, int, float,
    complex, str and bytes; lists, tuples and dicts of these. Keys of inner dicts are str, bytes or
    int. Nothing is pickled.

    Raises:
        TypeError: A value has another type, or is of a subclass. The message names the key.
        ValueError: The state exceeds `STATE_BYTES_MAX`, or lists and dicts nest deeper than `DEPTH_MAX`.
    """
    encoder = _StateEncoder()
    signature, numbers, pieces = encoder.signature, encoder.numbers, encoder.pieces
    for key, value in state.items():
        signature.append(key)
        kind = cast("type[Any]", type(value))
        if kind is np.ndarray and (name := NATIVE.get(value.dtype.num)) and value.dtype.isnative:
            signature.append(name)
            signature.append(value.shape)
            pieces.append(value.tobytes())
        elif kind is int and _INT64_MIN <= value <= _INT64_MAX:
            signature.append("q")
            numbers.append(value)
        else:
            encoder.put(key, value, 0)
    layout, checksum, pack = encode_layout(tuple(signature))
    packed = pack(*numbers)
    checksum = zlib.crc32(packed, checksum)
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    data = b"".join((_PREFIX.pack(VERSION, checksum, len(layout)), layout, packed, *pieces))
    if len(data) > STATE_BYTES_MAX:
        largest = max(state, key=lambda key: getattr(state[key], "nbytes", 0))
        raise ValueError(
            f"the state has {len(data)} bytes; the limit is {STATE_BYTES_MAX}. "
            f"Its largest value may be {largest!r}"
        )
    return data


def decode_state(data: bytes) -> dict[str, Any]:
    """Return the values that `encode_state` received, in their order.

    Arrays are new, contiguous and writable.

    Raises:
        ValueError: The bytes are not a state, are damaged, or come from a later version.
    """
    if len(data) < _PREFIX.size:
        raise ValueError(f"a checkpoint of {len(data)} bytes is truncated or invalid")
    version, checksum, size = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise ValueError(
            f"a checkpoint of version {version} cannot be read; this headrace reads version {VERSION}"
        )
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise ValueError("the checkpoint is damaged: its checksum does not match")
    start = _PREFIX.size + size
    try:
        layout = decode_layout(data[_PREFIX.size : start])
        return _StateDecoder(data, layout.unpack_from(data, start), start + layout.numbers_bytes).state(
            layout
        )
    except (TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"the checkpoint is invalid: {error}") from error


class _StateEncoder:
    """A state during encoding: the signature of its layout, and its values."""

    __slots__ = ("numbers", "pieces", "signature")

    def __init__(self) -> None:
        self.signature: list[Any] = []
        self.numbers: list[Any] = []
        self.pieces: list[bytes] = []

    def put(self, key: object, value: Any, depth: int) -> None:
        """Add a value that belongs to `key` of the state."""
        kind = cast("type[Any]", type(value))
        writer = _WRITERS.get(kind)
        if writer is not None:
            writer(self, key, value, depth)
        elif issubclass(kind, np.generic):
            self._put_scalar(key, value)
        else:
            hint = "; convert it by np.asarray" if issubclass(kind, np.ndarray) else ""
            raise TypeError(f"the state's {key!r} has a {kind.__qualname__}, an unsupported type{hint}")

    def put_none(self, _key: object, _value: None, _depth: int) -> None:
        self.signature.append("n")

    def put_number(self, _key: object, value: bool | float, _depth: int) -> None:
        self.signature.append("?" if type(value) is bool else "d")
        self.numbers.append(value)

    def put_int(self, _key: object, value: int, _depth: int) -> None:
        if _INT64_MIN <= value <= _INT64_MAX:
            self.signature.append("q")
            self.numbers.append(value)
        else:
            self._put_piece("i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def put_complex(self, _key: object, value: complex, _depth: int) -> None:
        self.signature.append("c")
        self.numbers += (value.real, value.imag)

    def put_text(self, _key: object, value: str, _depth: int) -> None:
        self._put_piece("s", value.encode(errors="surrogatepass"))

    def put_bytes(self, _key: object, value: bytes, _depth: int) -> None:
        self._put_piece("b", value)

    def put_list(self, key: object, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        self._enter(key, depth)
        self.signature += ("[" if type(value) is list else "(", len(value))
        for each in value:
            self.put(key, each, depth + 1)

    def put_dict(self, key: object, value: dict[Any, Any], depth: int) -> None:
        self._enter(key, depth)
        self.signature += ("{", len(value))
        for name, each in value.items():
            if type(name) not in (str, bytes, int):
                raise TypeError(
                    f"the state's {key!r} has a dict with the key {name!r:.40}; keys are str, bytes or int"
                )
            self.put(key, name, depth + 1)
            self.put(key, each, depth + 1)

    def put_array(self, key: object, value: Array, _depth: int) -> None:
        if value.dtype.kind == "O":
            self._put_objects(key, value)
            return
        self.signature += (self._dtype(key, value), value.shape)
        self.pieces.append(value.tobytes())

    def _put_scalar(self, key: object, value: Any) -> None:
        # np.asarray gives an empty str a dtype of length 1; the scalar's own dtype has length 0.
        array = np.asarray(value)
        self.signature += ("g", self._dtype(key, array))
        self.pieces.append(array.tobytes())

    def _put_objects(self, key: object, value: Array) -> None:
        """Add an object array.

        Its sizes come first, one for each element: the doubled size, plus one for bytes. The
        elements follow.
        """
        sizes: list[int] = []
        raw: list[bytes] = []
        for each in cast("list[object]", value.ravel().tolist()):
            if isinstance(each, bytes):
                raw.append(each)
            elif isinstance(each, str):
                raw.append(each.encode(errors="surrogatepass"))
            else:
                raise TypeError(
                    f"the state's {key!r} is an object array with a {type(each).__qualname__}; "
                    "elements must be str or bytes"
                )
            sizes.append(2 * len(raw[-1]) + isinstance(each, bytes))
        self.signature += ("O", value.shape)
        self.pieces += (np.array(sizes, "<i8").tobytes(), *raw)

    def _put_piece(self, code: str, piece: bytes) -> None:
        self.signature.append(code)
        self.numbers.append(len(piece))
        self.pieces.append(piece)

    @staticmethod
    def _dtype(key: object, value: Array) -> str:
        if value.dtype.kind not in RAW_KINDS:
            raise TypeError(
                f"the state's {key!r} has the unsupported dtype {value.dtype}: "
                "view it as numbers, such as uint16"
            )
        return dtype_name(value.dtype)

    @staticmethod
    def _enter(key: object, depth: int) -> None:
        if depth >= DEPTH_MAX:
            raise ValueError(f"the state's {key!r} has lists or dicts more than {DEPTH_MAX} deep")


_WRITERS: Final[dict[type, Callable[[_StateEncoder, object, Any, int], None]]] = {
    type(None): _StateEncoder.put_none,
    bool: _StateEncoder.put_number,
    float: _StateEncoder.put_number,
    int: _StateEncoder.put_int,
    complex: _StateEncoder.put_complex,
    str: _StateEncoder.put_text,
    bytes: _StateEncoder.put_bytes,
    list: _StateEncoder.put_list,
    tuple: _StateEncoder.put_list,
    dict: _StateEncoder.put_dict,
    np.ndarray: _StateEncoder.put_array,
}


class _StateDecoder:
    """A state during decoding: its numbers, and the offset of the next piece."""

    __slots__ = ("_at", "_data", "_numbers")

    def __init__(self, data: bytes, numbers: Sequence[Any], at: int) -> None:
        self._data = data
        self._numbers = iter(numbers)
        self._at = at

    def state(self, layout: Layout) -> dict[str, Any]:
        """Return all values. Raise ValueError if the pieces do not match the layout."""
        values = {
            key: next(self._numbers) if value[0] == "#" else self._value(value)
            for key, value in layout.values
        }
        if self._at != len(self._data):
            raise ValueError(f"the checkpoint has {len(self._data) - self._at} extra bytes")
        return values

    def _value(self, value: ValueSpec) -> Any:
        return _READERS[value[0]](self, *value[1:])

    def read_number(self) -> Any:
        return next(self._numbers)

    def read_none(self) -> None:
        return None

    def read_complex(self) -> complex:
        real = next(self._numbers)
        return complex(real, next(self._numbers))

    def read_large(self) -> int:
        return int.from_bytes(self.read_bytes(), "little", signed=True)

    def read_text(self) -> str:
        return self.read_bytes().decode(errors="surrogatepass")

    def read_bytes(self) -> bytes:
        size = next(self._numbers)
        at = self._take(size)
        return self._data[at : at + size]

    def read_list(self, values: Sequence[ValueSpec]) -> list[Any]:
        return [self._value(value) for value in values]

    def read_tuple(self, values: Sequence[ValueSpec]) -> tuple[Any, ...]:
        return tuple([self._value(value) for value in values])

    def read_dict(self, values: Sequence[ValueSpec]) -> dict[Any, Any]:
        flat = self.read_list(values)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def read_scalar(self, dtype: np.dtype[Any], size: int) -> Any:
        return np.ndarray((), dtype, self._data, self._take(size))[()]

    def read_array(self, dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> Array:
        return np.ndarray(shape, dtype, self._data, self._take(size)).copy()

    def read_objects(self, shape: tuple[int, ...], count: int) -> Array:
        sizes = self.read_array(np.dtype("<i8"), (count,), 8 * count)
        elements = np.empty(count, object)
        for number, size in enumerate(sizes.tolist()):
            at = self._take(size >> 1)
            raw = self._data[at : self._at]
            elements[number] = raw if size & 1 else raw.decode(errors="surrogatepass")
        return elements.reshape(shape)

    def _take(self, size: int) -> int:
        """Return the offset of the next `size` bytes, and move past them."""
        at = self._at
        if not 0 <= size <= len(self._data) - at:
            raise ValueError(f"the checkpoint ends inside a value of {size} bytes")
        self._at = at + size
        return at


_READERS: Final[dict[str, Callable[..., Any]]] = {
    "#": _StateDecoder.read_number,
    "n": _StateDecoder.read_none,
    "c": _StateDecoder.read_complex,
    "i": _StateDecoder.read_large,
    "s": _StateDecoder.read_text,
    "b": _StateDecoder.read_bytes,
    "[": _StateDecoder.read_list,
    "(": _StateDecoder.read_tuple,
    "{": _StateDecoder.read_dict,
    "g": _StateDecoder.read_scalar,
    "a": _StateDecoder.read_array,
    "O": _StateDecoder.read_objects,
}
