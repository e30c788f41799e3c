"""A sequence's state as bytes, and back: what a checkpoint holds.

::

    version       1 byte
    checksum      4 bytes, CRC-32 of all that follows
    layout size   4 bytes
    layout        JSON: what there is, in one flat list; see `headrace.checkpoints.layout`
    numbers       8 bytes for each int and float, 1 for each bool, 8 for each size that the layout does not know
    pieces        arrays' elements in C order, texts, bytes; one after the other, without gaps

All numbers are little-endian, but for arrays that are not. From step to step of one model the layout is mostly the same: it
is made, and read, once.
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
    Value,
    dtype_name,
    layout_of,
    read_layout,
)
from headrace.core.tensor import Array

VERSION: Final = 1
STATE_BYTES_MAX: Final = 256 << 20
"""The most that one state may come to: several are written in one go, and a store has bounds of its own."""

_PREFIX: Final = struct.Struct("<BII")
_CHECKED_FROM: Final = 5
_SIZE: Final = struct.Struct("<I")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


def encode_state(state: Mapping[str, Any]) -> bytes:
    """A state's values by their names, as bytes that `decode_state` makes the same of.

    Values are numpy arrays of numbers, bools, times and fixed-length text, in any byte order and memory layout; arrays of
    objects that are str or bytes; numpy's scalars; None, bool, int, float, complex, str and bytes; lists, tuples and dicts of all these
    (keys of inner dicts are str, bytes or int). Nothing is pickled.

    Raises TypeError, which names the key, for values of other types, subclasses of these among them; ValueError for a
    state of more than `STATE_BYTES_MAX`, and for lists and dicts that stand more than `DEPTH_MAX` deep in each other.
    """
    made = _Writing()
    signature, numbers, pieces = made.signature, made.numbers, made.pieces
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
            made.put(key, value, 0)
    layout, checksum, pack = layout_of(tuple(signature))
    packed = pack(*numbers)
    checksum = zlib.crc32(packed, checksum)
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    data = b"".join((_PREFIX.pack(VERSION, checksum, len(layout)), layout, packed, *pieces))
    if len(data) > STATE_BYTES_MAX:
        largest = max(state, key=lambda key: getattr(state[key], "nbytes", 0))
        raise ValueError(
            f"the state comes to {len(data)} bytes, and at most {STATE_BYTES_MAX} are kept; its largest value may be {largest!r}"
        )
    return data


def decode_state(data: bytes) -> dict[str, Any]:
    """The values that `encode_state` was given, in their order. Arrays are new, contiguous, and may be written to.

    Raises ValueError for what is no state, was written by a later version, or was damaged since.
    """
    if len(data) < _PREFIX.size:
        raise ValueError(f"a checkpoint of {len(data)} bytes was cut off, or is none")
    version, checksum, size = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise ValueError(
            f"a checkpoint of version {version} cannot be read; this is headrace with version {VERSION}"
        )
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise ValueError("a checkpoint was damaged: its checksum does not fit")
    start = _PREFIX.size + size
    try:
        layout = read_layout(data[_PREFIX.size : start])
        return _Reading(data, layout.unpack_from(data, start), start + layout.numbers_bytes).state(layout)
    except (TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"a checkpoint is none that was written here: {error}") from error


class _Writing:
    """A state on its way to bytes: what there is, and the values apart from it."""

    __slots__ = ("numbers", "pieces", "signature")

    def __init__(self) -> None:
        self.signature: list[Any] = []
        self.numbers: list[Any] = []
        self.pieces: list[bytes] = []

    def put(self, key: object, value: Any, depth: int) -> None:
        """Add a value, which belongs to the state's `key`."""
        kind = cast("type[Any]", type(value))
        writer = _WRITERS.get(kind)
        if writer is not None:
            writer(self, key, value, depth)
        elif issubclass(kind, np.generic):
            self._put_scalar(key, value)
        else:
            hint = "; np.asarray makes a plain array of it" if issubclass(kind, np.ndarray) else ""
            raise TypeError(f"the state's {key!r} has a {kind.__qualname__}, which cannot be kept{hint}")

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
        # An array has a dtype of some length also for an empty text.
        array = np.asarray(value)
        self.signature += ("g", self._dtype(key, array))
        self.pieces.append(array.tobytes())

    def _put_objects(self, key: object, value: Array) -> None:
        """Each element's size, doubled, and one more where it is bytes; then all of them."""
        sizes: list[int] = []
        raw: list[bytes] = []
        for each in cast("list[object]", value.ravel().tolist()):
            if isinstance(each, bytes):
                raw.append(each)
            elif isinstance(each, str):
                raw.append(each.encode(errors="surrogatepass"))
            else:
                raise TypeError(
                    f"the state's {key!r} is an array of objects with a {type(each).__qualname__}; only str and bytes can be kept"
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
                f"the state's {key!r} has dtype {value.dtype}, which cannot be kept: view it as numbers, such as uint16"
            )
        return dtype_name(value.dtype)

    @staticmethod
    def _enter(key: object, depth: int) -> None:
        if depth >= DEPTH_MAX:
            raise ValueError(f"the state's {key!r} has lists or dicts more than {DEPTH_MAX} deep")


_WRITERS: Final[dict[type, Callable[[_Writing, object, Any, int], None]]] = {
    type(None): _Writing.put_none,
    bool: _Writing.put_number,
    float: _Writing.put_number,
    int: _Writing.put_int,
    complex: _Writing.put_complex,
    str: _Writing.put_text,
    bytes: _Writing.put_bytes,
    list: _Writing.put_list,
    tuple: _Writing.put_list,
    dict: _Writing.put_dict,
    np.ndarray: _Writing.put_array,
}


class _Reading:
    """A state on its way from bytes: its numbers, and where the next piece is."""

    __slots__ = ("_at", "_data", "_numbers")

    def __init__(self, data: bytes, numbers: Sequence[Any], at: int) -> None:
        self._data = data
        self._numbers = iter(numbers)
        self._at = at

    def state(self, layout: Layout) -> dict[str, Any]:
        """All values. Raises ValueError when the pieces end early or late, or are not what they should be."""
        made = {
            key: next(self._numbers) if value[0] == "#" else self._value(value)
            for key, value in layout.values
        }
        if self._at != len(self._data):
            raise ValueError(f"a checkpoint has {len(self._data) - self._at} bytes too many")
        return made

    def _value(self, value: Value) -> Any:
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

    def read_list(self, values: Sequence[Value]) -> list[Any]:
        return [self._value(value) for value in values]

    def read_tuple(self, values: Sequence[Value]) -> tuple[Any, ...]:
        return tuple([self._value(value) for value in values])

    def read_dict(self, values: Sequence[Value]) -> dict[Any, Any]:
        flat = self.read_list(values)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def read_scalar(self, dtype: np.dtype[Any], size: int) -> Any:
        return np.ndarray((), dtype, self._data, self._take(size))[()]

    def read_array(self, dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> Array:
        return np.ndarray(shape, dtype, self._data, self._take(size)).copy()

    def read_objects(self, shape: tuple[int, ...], count: int) -> Array:
        sizes = self.read_array(np.dtype("<i8"), (count,), 8 * count)
        made = np.empty(count, object)
        for number, size in enumerate(sizes.tolist()):
            at = self._take(size >> 1)
            raw = self._data[at : self._at]
            made[number] = raw if size & 1 else raw.decode(errors="surrogatepass")
        return made.reshape(shape)

    def _take(self, size: int) -> int:
        """Where the next `size` bytes begin."""
        at = self._at
        if not 0 <= size <= len(self._data) - at:
            raise ValueError(f"a checkpoint ends before the {size} bytes that one of its values has")
        self._at = at + size
        return at


_READERS: Final[dict[str, Callable[..., Any]]] = {
    "#": _Reading.read_number,
    "n": _Reading.read_none,
    "c": _Reading.read_complex,
    "i": _Reading.read_large,
    "s": _Reading.read_text,
    "b": _Reading.read_bytes,
    "[": _Reading.read_list,
    "(": _Reading.read_tuple,
    "{": _Reading.read_dict,
    "g": _Reading.read_scalar,
    "a": _Reading.read_array,
    "O": _Reading.read_objects,
}
