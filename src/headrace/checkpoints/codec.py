"""Encoding of a sequence's state as bytes, the content of a checkpoint.

::

    version       1 byte
    checksum      4 bytes, CRC-32 of all following bytes
    layout size   4 bytes
    layout        a flat JSON list of the keys, types and shapes, without the values
    numbers       8 bytes for each int and float, 1 for each bool, 8 for each size that the layout omits
    pieces        array elements in C order, text, bytes; one after the other, without gaps

All numbers are little-endian, except for the elements of arrays in another byte order. The layout
is mostly the same from step to step, so it is encoded and decoded once and cached. For each value of
the state, it has the key, then a code with its arguments:

========================== ============================================ ========================
code                       stands for                                   numbers, pieces
========================== ============================================ ========================
``"<f4", [2, 128]``        an array: its numpy dtype name and shape     its elements
``"O", [3]``               an array of str and bytes                    the sizes; the elements
``"g", "<f4"``             a numpy scalar                               its bytes
``"n"``                    None
``"?"``, ``"q"``, ``"d"``  a bool, an int of 64 bits, a float           the value
``"c"``                    a complex number                             its two parts
``"i"``, ``"s"``, ``"b"``  a larger int, a str, bytes                   the size; the bytes
``"[", 2``, ``"(", 2``     a list, a tuple with the number of values
``"{", 2``                 a dict with the number of key-value pairs
========================== ============================================ ========================
"""

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final, cast

import numpy as np

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
DEPTH_MAX: Final = 32
RAW_KINDS: Final = "biufcmMSU"
"""Kinds of dtypes whose elements are fully described by their bytes."""
_CACHED_LAYOUTS_MAX: Final = 256
_CACHED_WORDS_MAX: Final = 512
_CACHED_BYTES_MAX: Final = 4096
"""Size limit of a cached layout: a growing list of numbers would evict all other layouts."""
_CONTAINERS: Final = ("[", "(", "{")
_NUMBERS: Final = {"?": "?", "q": "q", "d": "d", "c": "dd", "i": "Q", "s": "Q", "b": "Q"}
_LONG: Final = f":{np.finfo(np.longdouble).nmant}"
"""Suffix with the precision of this machine's long double, which differs between machines under the
same name.
"""
Signature = tuple[Any, ...]
EncodedLayout = tuple[bytes, int, Callable[..., bytes]]
"""The encoded layout, the checksum up to its end, and the packing function of the numbers."""
ValueSpec = tuple[Any, ...]
"""A code with its decoding arguments; ``"#"`` is one number, ``"a"`` an array."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A decoded layout: each key with its value's specification, and the format of the numbers."""

    values: tuple[tuple[str, ValueSpec], ...]
    unpack_from: Callable[..., tuple[Any, ...]]
    numbers_bytes: int


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
        if value is None:
            self.signature.append("n")
        elif kind is str:
            self._put_piece("s", value.encode(errors="surrogatepass"))
        elif kind is bytes:
            self._put_piece("b", value)
        elif (writer := _WRITERS.get(kind)) is not None:
            writer(self, key, value, depth)
        elif issubclass(kind, np.generic):
            self._put_scalar(key, value)
        else:
            hint = "; convert it by np.asarray" if issubclass(kind, np.ndarray) else ""
            raise TypeError(f"the state's {key!r} has a {kind.__qualname__}, an unsupported type{hint}")

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
    bool: _StateEncoder.put_number,
    float: _StateEncoder.put_number,
    int: _StateEncoder.put_int,
    complex: _StateEncoder.put_complex,
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
        code = value[0]
        if code in "isb":
            return self._piece(code)
        if code == "#":
            return next(self._numbers)
        return None if code == "n" else _READERS[code](self, *value[1:])

    def _piece(self, code: str) -> int | str | bytes:
        at = self._take(next(self._numbers))
        piece = self._data[at : self._at]
        if code == "i":
            return int.from_bytes(piece, "little", signed=True)
        return piece.decode(errors="surrogatepass") if code == "s" else piece

    def read_complex(self) -> complex:
        real = next(self._numbers)
        return complex(real, next(self._numbers))

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
    "c": _StateDecoder.read_complex,
    "[": _StateDecoder.read_list,
    "(": _StateDecoder.read_tuple,
    "{": _StateDecoder.read_dict,
    "g": _StateDecoder.read_scalar,
    "a": _StateDecoder.read_array,
    "O": _StateDecoder.read_objects,
}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the layout's name of a dtype whose kind is one of `RAW_KINDS`."""
    return dtype.str + _LONG if _is_long(dtype) else dtype.str


def _is_long(dtype: np.dtype[Any]) -> bool:
    return dtype.type is np.longdouble or dtype.type is np.clongdouble


# Keyed by numpy's type numbers: a lookup costs a third of `dtype.str`. Only dtypes without unit or
# length, in native byte order.
NATIVE: Final[dict[int, str]] = {
    dtype.num: dtype_name(dtype) for dtype in map(np.dtype, np.typecodes["All"]) if dtype.kind in "biufc"
}


def encode_layout(signature: Signature) -> EncodedLayout:
    """Return the encoded layout of a state from its signature.

    Raise TypeError for a key that is not a str.
    """
    return _cached_encode(signature) if len(signature) <= _CACHED_WORDS_MAX else _encode(signature)


def decode_layout(data: bytes) -> Layout:
    """Return a decoded layout.

    Raise ValueError, TypeError, KeyError or IndexError for invalid bytes.
    """
    return _cached_decode(data) if len(data) <= _CACHED_BYTES_MAX else _decode(data)


def _encode(signature: Signature) -> EncodedLayout:
    data = json.dumps(signature, separators=(",", ":"), default=_refuse_key).encode()
    numbers = _LayoutParser(json.loads(data)).numbers
    return data, zlib.crc32(data, zlib.crc32(struct.pack("<I", len(data)))), struct.Struct(numbers).pack


def _decode(data: bytes) -> Layout:
    words = _LayoutParser(json.loads(data))
    numbers = struct.Struct(words.numbers)
    return Layout(words.values, numbers.unpack_from, numbers.size)


_cached_encode = lru_cache(_CACHED_LAYOUTS_MAX)(_encode)

_cached_decode = lru_cache(_CACHED_LAYOUTS_MAX)(_decode)


def _refuse_key(key: object) -> None:
    raise TypeError(f"the state has the key {key!r:.40}; keys are str")


class _LayoutParser:
    """A parser of a layout's JSON list: collects the values, and the format of the numbers."""

    def __init__(self, words: Any) -> None:
        if type(words) is not list:
            raise TypeError("its layout is not a list")
        self._words = cast("list[Any]", words)
        self._at = 0
        self._numbers = ["<"]
        values: list[tuple[str, ValueSpec]] = []
        while self._at < len(self._words):
            values.append((self._key(), self._value(0)))
        self.values = tuple(values)
        self.numbers = "".join(self._numbers)

    def _next(self) -> Any:
        self._at += 1
        return self._words[self._at - 1]

    def _key(self) -> str:
        key = self._next()
        if type(key) is not str:
            _refuse_key(key)
        return key

    def _value(self, depth: int) -> ValueSpec:
        code = self._next()
        if type(code) is not str:
            raise ValueError(f"{code!r:.40} is not a code")
        if code in _NUMBERS:
            self._numbers.append(_NUMBERS[code])
            return ("#",) if code in "?qd" else (code,)
        if code == "n":
            return ("n",)
        if code in _CONTAINERS:
            return self._container(code, depth)
        if code == "g":
            dtype = _dtype(self._next())
            return "g", dtype, dtype.itemsize
        shape = self._shape()
        if code == "O":
            return "O", shape, prod(shape)
        dtype = _dtype(code)
        return "a", dtype, shape, prod(shape) * dtype.itemsize

    def _container(self, code: str, depth: int) -> ValueSpec:
        if depth >= DEPTH_MAX:
            raise ValueError(f"lists more than {DEPTH_MAX} deep")
        count = self._count(self._next()) * (2 if code == "{" else 1)
        return code, tuple([self._value(depth + 1) for _ in range(count)])

    def _shape(self) -> tuple[int, ...]:
        return tuple([self._count(size) for size in self._next()])

    @staticmethod
    def _count(word: Any) -> int:
        if type(word) is not int or word < 0:
            raise ValueError(f"{word!r:.40} is not a size")
        return word


def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name. Refuse object dtypes, whose bytes numpy would read as addresses."""
    plain, _, precision = name.partition(":")
    dtype = np.dtype(plain)
    if dtype.kind not in RAW_KINDS:
        raise ValueError(f"dtype {dtype} is not allowed")
    if dtype_name(dtype) != name:
        raise ValueError(f"{plain} with {precision or 'no'} bits of fraction is from another kind of machine")
    return dtype
