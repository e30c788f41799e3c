"""Arrays in memory that two processes share: one writes them, the other sees them without a copy.

An arena has no name anywhere: it is a file in memory that lives as long as somebody has it open or mapped, so that
nothing is left of it however its processes end.
"""

import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from headrace.core.errors import LimitError
from headrace.core.tensor import Array
from headrace.protocols.tensors import array_from_binary, binary_values

ARENA_BYTES_MAX: Final = 4 * 2**30
"""The most bytes that the arrays of one call may take, each way."""
ARENA_BYTES_MIN: Final = 2**20
_NOTHING: Final[Mapping[str, Array]] = {}
_ALIGNED: Final = 64
"""Where arrays begin: a cache line, and enough for any vector instruction."""

Placed = list[Any]
"""Where an array lies: name, dtype, shape, offset, bytes, and for text which elements are str."""


class Memory:
    """A mapping of an arena. Arrays in it keep it alive."""

    def __init__(self, fd: int, size: int) -> None:
        mapped = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mapped, np.uint8)
        self._references = sys.getrefcount(self._bytes)
        self.size = size

    @property
    def kept(self) -> bool:
        """Whether somebody still holds an array in it."""
        return sys.getrefcount(self._bytes) > self._references

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array in it, without a copy."""
        size = prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)

    def bytes(self, offset: int, size: int) -> memoryview:
        """Some bytes of it."""
        return self._bytes[offset : offset + size].data


class Arena:
    """The side that writes. It grows by being replaced: `fd` is then to be handed to the side that reads."""

    def __init__(self, bytes_max: int = ARENA_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._memory: Memory | None = None
        self._fd: int | None = None

    @property
    def size(self) -> int:
        """How many bytes it has now."""
        return self._memory.size if self._memory else 0

    def place(self, sizes: Sequence[int]) -> list[int]:
        """Make room for so many bytes each; their offsets. LimitError beyond the bound, MemoryError beyond the machine's."""
        offsets: list[int] = []
        end = 0
        for size in sizes:
            offsets.append(end)
            end += -(-size // _ALIGNED) * _ALIGNED
        if end > self._bytes_max:
            raise LimitError(
                f"the arrays of one call take {end} bytes, and at most {self._bytes_max} go to or from an "
                "instance in a process of its own: set max_batch_rows lower, or isolation to thread"
            )
        if self._memory is None or end > self._memory.size:
            self._replace(end)
        return offsets

    def _replace(self, size: int) -> None:
        self.drop()
        room = min(max(ARENA_BYTES_MIN, 1 << (size - 1).bit_length() if size else 0), self._bytes_max)
        fd = os.memfd_create("headrace-arrays", os.MFD_CLOEXEC)
        try:
            # Now, where there is an error for it; a page that cannot be had later is a signal that kills.
            os.posix_fallocate(fd, 0, room)
            self._memory = Memory(fd, room)
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"no room for {room} bytes of arrays: {error.strerror}") from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    @property
    def memory(self) -> Memory:
        """What `place` made room in."""
        assert self._memory is not None, "place() comes first"
        return self._memory

    def new_fd(self) -> int | None:
        """The file to hand over, once after each growth; its receiver has the only one."""
        fd, self._fd = self._fd, None
        return fd

    def drop(self) -> None:
        """Let go of it; the next `place` makes a new one."""
        self._memory = None
        if (fd := self.new_fd()) is not None:
            os.close(fd)


def raw_bytes(name: str, data: Array) -> tuple[Array, bytes | None]:
    """An array of objects as bytes with their lengths, and which of its elements are str (None: not one).

    Raises DataError for elements that are neither bytes nor str.
    """
    values = data.ravel().tolist()
    text = bytes(isinstance(value, str) for value in values)
    raw = np.frombuffer(binary_values(name, "BYTES", data), np.uint8)
    return raw, text if any(text) else None


def objects(name: str, shape: tuple[int, ...], data: memoryview, text: bytes | None) -> Array:
    """What `raw_bytes` was given."""
    found = array_from_binary(name, "BYTES", shape, data)
    if text is not None:
        flat = found.reshape(-1)
        for i, is_text in enumerate(text):
            if is_text:
                flat[i] = flat[i].decode()
    return found


def write_arrays(
    arena: Arena, parts: Sequence[Mapping[str, Array]], beside: Mapping[str, Array] = _NOTHING
) -> list[Placed]:
    """Join arrays by name, part after part along the first axis, right into the arena; then those `beside`.

    Raises LimitError and MemoryError (see `Arena.place`), DataError for objects that are no text, TypeError for types
    that no other process can be told of, and ValueError where the parts do not fit together.
    """
    headers: list[Placed] = []
    pieces: list[list[Array]] = []
    groups = [(name, [part[name] for part in parts]) for name in parts[0]]
    for name, several in (*groups, *((name, [array]) for name, array in beside.items())):
        first = several[0]
        shape = (sum(map(len, several)), *first.shape[1:]) if len(several) > 1 else first.shape
        dtype = np.result_type(*several) if len(several) > 1 else first.dtype
        if dtype.kind == "O":
            joined = np.concatenate(several) if len(several) > 1 else first
            raw, text = raw_bytes(name, joined)
            headers.append([name, "O", shape, 0, raw.nbytes, text and text.hex()])
            pieces.append([raw])
            continue
        if dtype.kind == "V":
            raise TypeError(f"array {name!r} has dtype {dtype}, which goes to no other process")
        headers.append([name, dtype.str, shape, 0, prod(shape) * dtype.itemsize, None])
        pieces.append(several)
    offsets = arena.place([header[4] for header in headers])
    for header, several, offset in zip(headers, pieces, offsets, strict=True):
        header[3] = offset
        if header[1] == "O":
            np.copyto(arena.memory.array(offset, several[0].shape, several[0].dtype), several[0])
            continue
        room = arena.memory.array(offset, header[2], np.dtype(header[1]))
        if len(several) == 1:
            np.copyto(room, several[0])
        else:
            np.concatenate(several, out=room)
    return headers


def read_arrays(memory: Memory, headers: Sequence[Placed], *, copy: bool) -> dict[str, Array]:
    """The arrays that `write_arrays` wrote; numbers where they lie, unless a copy is asked for."""
    found: dict[str, Array] = {}
    for name, dtype, sizes, offset, size, text in headers:
        shape = tuple(sizes)
        if dtype == "O":
            chars = None if text is None else bytes.fromhex(text)
            found[name] = objects(name, shape, memory.bytes(offset, size), chars)
        else:
            array = memory.array(offset, shape, np.dtype(dtype))
            found[name] = array.copy() if copy else array
    return found
