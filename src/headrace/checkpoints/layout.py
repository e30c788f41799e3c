"""What a written state consists of, apart from its values; the same from step to step, so it is made and read once.

A layout is a flat JSON list. For each value of the state it has the key, then a code with what belongs to it:

========================== ==================================================== ===============================
code                       stands for                                           numbers, pieces
========================== ==================================================== ===============================
``"<f4", [2, 128]``        an array: numpy's name of its dtype, its shape       its elements
``"O", [3]``               an array of str and bytes                            sizes of them, then they
``"g", "<f4"``             a numpy scalar                                       its bytes
``"n"``                    None
``"?"``, ``"q"``, ``"d"``  a bool, an int of 64 bits, a float                   itself
``"c"``                    a complex number                                     its parts
``"i"``, ``"s"``, ``"b"``  a larger int, a str, bytes                           the size; the bytes
``"[", 2``, ``"(", 2``     a list, a tuple: so many values follow
``"{", 2``                 a dict: so many pairs of values follow
========================== ==================================================== ===============================
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
"""Kinds of dtypes whose elements are what their bytes say."""

_LAYOUTS_MAX: Final = 256
_KEPT_WORDS_MAX: Final = 512
_KEPT_BYTES_MAX: Final = 4096
"""Longer layouts are made each time, rather than that a list of numbers that grows drives all others out."""
_CONTAINERS: Final = ("[", "(", "{")
_NUMBERS: Final = {"?": "?", "q": "q", "d": "d", "c": "dd", "i": "Q", "s": "Q", "b": "Q"}
_LONG: Final = f":{np.finfo(np.longdouble).nmant}"
"""How precise this machine's long doubles are: what they are differs between machines, though they are called the same."""

Signature = tuple[Any, ...]
Made = tuple[bytes, int, Callable[..., bytes]]
"""The layout as it is written, the checksum up to its end, and what packs the numbers."""
Value = tuple[Any, ...]
"""A code, with what is needed to read it; ``"#"`` is one number, ``"a"`` an array."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout that was read: each key with its value, and the numbers."""

    values: tuple[tuple[str, Value], ...]
    unpack_from: Callable[..., tuple[Any, ...]]
    numbers_bytes: int


def dtype_name(dtype: np.dtype[Any]) -> str:
    """What the layout calls it; its kind is one of `RAW_KINDS`."""
    return dtype.str + _LONG if _is_long(dtype) else dtype.str


def _is_long(dtype: np.dtype[Any]) -> bool:
    return dtype.type is np.longdouble or dtype.type is np.clongdouble


# By numpy's own numbers: to look one up costs a third of `dtype.str`. Those that have no unit or length, in this machine's order.
NATIVE: Final[dict[int, str]] = {
    dtype.num: dtype_name(dtype) for dtype in map(np.dtype, np.typecodes["All"]) if dtype.kind in "biufc"
}


def layout_of(signature: Signature) -> Made:
    """The layout of a state: its keys, codes, and what belongs to them. Raises TypeError for a key that is no str."""
    return _kept_made(signature) if len(signature) <= _KEPT_WORDS_MAX else _make(signature)


def read_layout(data: bytes) -> Layout:
    """A layout that was written. Raises ValueError, TypeError, KeyError and IndexError for what is none."""
    return _kept_read(data) if len(data) <= _KEPT_BYTES_MAX else _read(data)


def _make(signature: Signature) -> Made:
    data = json.dumps(signature, separators=(",", ":"), default=_refuse_key).encode()
    numbers = _Words(json.loads(data)).numbers
    return data, zlib.crc32(data, zlib.crc32(struct.pack("<I", len(data)))), struct.Struct(numbers).pack


def _read(data: bytes) -> Layout:
    words = _Words(json.loads(data))
    numbers = struct.Struct(words.numbers)
    return Layout(words.values, numbers.unpack_from, numbers.size)


_kept_made = lru_cache(_LAYOUTS_MAX)(_make)
_kept_read = lru_cache(_LAYOUTS_MAX)(_read)


def _refuse_key(key: object) -> None:
    raise TypeError(f"the state has the key {key!r:.40}; keys are str")


class _Words:
    """A layout's words, understood: its values, and the format of its numbers."""

    def __init__(self, words: Any) -> None:
        if type(words) is not list:
            raise TypeError("its layout is no list")
        self._words = cast("list[Any]", words)
        self._at = 0
        self._numbers = ["<"]
        values: list[tuple[str, Value]] = []
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

    def _value(self, depth: int) -> Value:
        code = self._next()
        if type(code) is not str:
            raise ValueError(f"{code!r:.40} is no code")
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

    def _container(self, code: str, depth: int) -> Value:
        if depth >= DEPTH_MAX:
            raise ValueError(f"lists more than {DEPTH_MAX} deep")
        count = self._count(self._next()) * (2 if code == "{" else 1)
        return code, tuple([self._value(depth + 1) for _ in range(count)])

    def _shape(self) -> tuple[int, ...]:
        return tuple([self._count(size) for size in self._next()])

    @staticmethod
    def _count(word: Any) -> int:
        if type(word) is not int or word < 0:
            raise ValueError(f"{word!r:.40} is no size")
        return word


def _dtype(name: str) -> np.dtype[Any]:
    """Never one of objects: numpy would take bytes for addresses."""
    plain, _, precision = name.partition(":")
    dtype = np.dtype(plain)
    if dtype.kind not in RAW_KINDS:
        raise ValueError(f"dtype {dtype} is never written")
    if dtype_name(dtype) != name:
        raise ValueError(
            f"{plain} with {precision or 'no'} bits of fraction comes from another kind of machine"
        )
    return dtype
