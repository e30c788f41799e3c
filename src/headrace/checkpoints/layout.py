"""The layout of an encoded state: its keys, types and shapes, without the values.

The layout is the same from step to step, so it is encoded and decoded once. It is a flat JSON list.
For each value of the state, it has the key, then a code with its arguments:

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
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final, cast

import numpy as np

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
