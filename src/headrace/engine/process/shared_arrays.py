"""Arrays in memory that two processes share: one writes them, the other reads them without a copy.

An arena is memory without a name: the kernel frees it with its last mapping, so that nothing is left
of it however the processes end.
"""

import mmap
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import prod
from typing import Any, Final

import numpy as np

from headrace.core.errors import LimitError
from headrace.core.tensor import Array
from headrace.protocols.tensors import array_from_binary, binary_values

ARENA_BYTES_MAX: Final = 4 * 2**30
"""Limit of bytes for the arrays of one call, each way."""
ARENA_BYTES_MIN: Final = 2**20
_NOTHING: Final[Mapping[str, Array]] = {}
_ALIGNED: Final = 64
"""Alignment of arrays in bytes: a cache line, and enough for any vector instruction."""

ArrayHeader = list[Any]
"""Position of an array: name, dtype, shape, offset, bytes, and for text the elements that are str.
Position of an array: name, dtype, shape, offset, bytes, and for text the elements that are str.
"""


def open_unnamed_memory(purpose: str, size: int) -> int:
    """Return a new file of `size` bytes. The caller closes it. Raises OSError if memory is short."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"headrace-{purpose}", os.MFD_CLOEXEC)
    else:
        fd = _open_without_memfd()
    try:
        if hasattr(os, "posix_fallocate"):
            # Allocated now, where failure is an error. A page missing later would be a fatal
            # signal.
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_without_memfd() -> int:
    """Return an empty object of POSIX shared memory whose name is already removed.

    It makes the system calls of `multiprocessing.shared_memory` directly. That module keeps the
    name, and needs a process that removes the names which killed processes leave.
    """
    posix: Any = import_module("_posixshmem")  # has no types
    name = f"/headrace-{secrets.token_hex(8)}"  # macOS allows 31 characters
    fd: int = posix.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    posix.shm_unlink(name)
    return fd


class ArenaMapping:
    """A mapping of an arena. Its arrays keep it alive."""

    def __init__(self, fd: int, size: int) -> None:
        mapped = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mapped, np.uint8)
        self._references = sys.getrefcount(self._bytes)
        self.size = size

    @property
    def in_use(self) -> bool:
        """True while an array of this mapping is referenced."""
        return sys.getrefcount(self._bytes) > self._references

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of the mapping, without a copy."""
        size = prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        return self._bytes[offset : offset + size].view(dtype).reshape(shape)

    def bytes(self, offset: int, size: int) -> memoryview:
        """Return bytes of the mapping, without a copy."""
        return self._bytes[offset : offset + size].data


class Arena:
    """The writing side of shared memory.

    It grows by replacement: pass the new `take_fd` to the reader.
    """

    def __init__(self, bytes_max: int = ARENA_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._memory: ArenaMapping | None = None
        self._fd: int | None = None

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._memory.size if self._memory else 0

    def place(self, sizes: Sequence[int]) -> list[int]:
        """Reserve space for arrays of these sizes and return their offsets.

        Raises LimitError beyond the limit of the arena, and MemoryError beyond the machine's
        memory.
        """
        offsets: list[int] = []
        end = 0
        for size in sizes:
            offsets.append(end)
            end += -(-size // _ALIGNED) * _ALIGNED
        if end > self._bytes_max:
            raise LimitError(
                f"the arrays of one call take {end} bytes; the limit is {self._bytes_max} for an instance "
                "in a process of its own: reduce max_batch_rows, or set isolation to thread"
            )
        if self._memory is None or end > self._memory.size:
            self._replace(end)
        return offsets

    def _replace(self, size: int) -> None:
        self.drop()
        capacity = min(max(ARENA_BYTES_MIN, 1 << (size - 1).bit_length() if size else 0), self._bytes_max)
        try:
            fd = open_unnamed_memory("arrays", capacity)
            try:
                self._memory = ArenaMapping(fd, capacity)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise MemoryError(f"no memory for {capacity} bytes of arrays: {error.strerror}") from error
        self._fd = fd

    @property
    def memory(self) -> ArenaMapping:
        """The mapping that `place` reserved space in."""
        assert self._memory is not None, "call place() first"
        return self._memory

    def take_fd(self) -> int | None:
        """Return the file to pass to the reader, once after each growth, else None.

        The caller closes it.
        """
        fd, self._fd = self._fd, None
        return fd

    def drop(self) -> None:
        """Release the memory; the next `place` makes a new arena."""
        self._memory = None
        if (fd := self.take_fd()) is not None:
            os.close(fd)


def encode_objects(name: str, data: Array) -> tuple[Array, bytes | None]:
    """Return an array of objects as length-prefixed bytes, and a flag per element that is a str.

    The flags are None if no element is a str. Raises DataError for elements that are not bytes or
    str.
    """
    values = data.ravel().tolist()
    text = bytes(isinstance(value, str) for value in values)
    raw = np.frombuffer(binary_values(name, "BYTES", data), np.uint8)
    return raw, text if any(text) else None


def decode_objects(name: str, shape: tuple[int, ...], data: memoryview, text: bytes | None) -> Array:
    """Return the array that `encode_objects` encoded."""
    arrays_by_name = array_from_binary(name, "BYTES", shape, data)
    if text is not None:
        flat = arrays_by_name.reshape(-1)
        for i, is_text in enumerate(text):
            if is_text:
                flat[i] = flat[i].decode()
    return arrays_by_name


def write_arrays(
    arena: Arena, parts: Sequence[Mapping[str, Array]], extra: Mapping[str, Array] = _NOTHING
) -> list[ArrayHeader]:
    """Join arrays by name along the first axis, directly into the arena; then write `extra` arrays.

    Raises LimitError and MemoryError (see `Arena.place`), DataError for objects that are not text,
    TypeError for dtypes that no other process can read, and ValueError for parts of unequal shape.
    """
    headers: list[ArrayHeader] = []
    sources: list[list[Array]] = []
    groups = [(name, [part[name] for part in parts]) for name in parts[0]]
    for name, arrays in (*groups, *((name, [array]) for name, array in extra.items())):
        first = arrays[0]
        shape = (sum(map(len, arrays)), *first.shape[1:]) if len(arrays) > 1 else first.shape
        dtype = np.result_type(*arrays) if len(arrays) > 1 else first.dtype
        if dtype.kind == "O":
            joined = np.concatenate(arrays) if len(arrays) > 1 else first
            raw, text = encode_objects(name, joined)
            headers.append([name, "O", shape, 0, raw.nbytes, text and text.hex()])
            sources.append([raw])
            continue
        if dtype.kind == "V":
            raise TypeError(f"array {name!r} has dtype {dtype}, which cannot be sent to another process")
        headers.append([name, dtype.str, shape, 0, prod(shape) * dtype.itemsize, None])
        sources.append(arrays)
    offsets = arena.place([header[4] for header in headers])
    for header, arrays, offset in zip(headers, sources, offsets, strict=True):
        header[3] = offset
        if header[1] == "O":
            np.copyto(arena.memory.array(offset, arrays[0].shape, arrays[0].dtype), arrays[0])
            continue
        capacity = arena.memory.array(offset, header[2], np.dtype(header[1]))
        if len(arrays) == 1:
            np.copyto(capacity, arrays[0])
        else:
            np.concatenate(arrays, out=capacity)
    return headers


def read_arrays(memory: ArenaMapping, headers: Sequence[ArrayHeader], *, copy: bool) -> dict[str, Array]:
    """Return the arrays of `write_arrays`. Numeric arrays stay in shared memory unless `copy`."""
    arrays_by_name: dict[str, Array] = {}
    for name, dtype, sizes, offset, size, text in headers:
        shape = tuple(sizes)
        if dtype == "O":
            chars = None if text is None else bytes.fromhex(text)
            arrays_by_name[name] = decode_objects(name, shape, memory.bytes(offset, size), chars)
        else:
            array = memory.array(offset, shape, np.dtype(dtype))
            arrays_by_name[name] = array.copy() if copy else array
    return arrays_by_name
