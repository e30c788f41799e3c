"""Arrays in shared memory: placed, joined, read without a copy, and kept arrays detected."""

import gc
import mmap
import os

import numpy as np
import psutil
import pytest

from headrace.core.errors import DataError, LimitError
from headrace.engine.process.shared_arrays import (
    ARENA_BYTES_MIN,
    Arena,
    ArenaMapping,
    open_unnamed_memory,
    read_arrays,
    write_arrays,
)


def _seen(arena: Arena) -> ArenaMapping:
    """Return the mapping of the other process."""
    fd = arena.take_fd()
    try:
        return ArenaMapping(fd, arena.size)
    finally:
        os.close(fd)


def test_arrays_are_read_in_place():
    arena = Arena()
    headers = write_arrays(
        arena, ({"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.zeros((2, 0))},)
    )
    memory = _seen(arena)
    found = read_arrays(memory, headers, copy=False)
    assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["y"].shape == (2, 0)
    found["x"][0, 0] = 9
    assert read_arrays(arena.memory, headers, copy=True)["x"][0, 0] == 9


def test_arrays_are_aligned():
    arena = Arena()
    headers = write_arrays(arena, ({f"n{i}": np.zeros(i + 1, np.uint8) for i in range(5)},))
    assert [header[3] % 64 for header in headers] == [0] * 5
    assert len({header[3] for header in headers}) == 5


def test_parts_are_joined_like_numpy():
    """Also if their types differ."""
    parts = ({"x": np.array([1, 2], np.int32)}, {"x": np.array([0.5], np.float64)})
    arena = Arena()
    headers = write_arrays(arena, parts)
    found = read_arrays(_seen(arena), headers, copy=True)["x"]
    expected = np.concatenate([p["x"] for p in parts])
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    with pytest.raises(ValueError, match="dimension"):
        write_arrays(arena, ({"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}))


def test_extra_arrays_are_not_joined():
    """They follow the joined arrays, also under the same name."""
    arena = Arena()
    headers = write_arrays(
        arena, ({"x": np.ones(2)}, {"x": np.zeros(1)}), {"x": np.arange(3, dtype=np.uint8)}
    )
    memory = _seen(arena)
    assert read_arrays(memory, headers[:1], copy=True)["x"].tolist() == [1, 1, 0]
    assert read_arrays(memory, headers[1:], copy=True)["x"].tolist() == [0, 1, 2]


def test_str_and_bytes_keep_their_type():
    values = np.array([["a", b"b"], ["ü", b""]], object)
    arena = Arena()
    headers = write_arrays(arena, ({"t": values}, {"t": values}))
    found = read_arrays(_seen(arena), headers, copy=False)["t"]
    assert found.tolist() == [*values.tolist(), *values.tolist()]
    with pytest.raises(DataError, match="must be bytes or str"):
        write_arrays(arena, ({"t": np.array([1.5], object)},))


def test_arena_grows_up_to_limit():
    arena = Arena(bytes_max=4 * ARENA_BYTES_MIN)
    arena.place([1])
    first = _seen(arena)
    assert (arena.size, arena.take_fd()) == (ARENA_BYTES_MIN, None)
    arena.place([ARENA_BYTES_MIN, ARENA_BYTES_MIN + 1])
    assert arena.size == 4 * ARENA_BYTES_MIN
    assert _seen(arena).size == arena.size != first.size
    with pytest.raises(LimitError, match="max_batch_rows"):
        arena.place([4 * ARENA_BYTES_MIN, 1])


def test_kept_array_is_detected():
    """Views too; a copy does not count."""
    arena = Arena()
    headers = write_arrays(arena, ({"x": np.arange(4.0)},))
    memory = _seen(arena)
    assert not memory.in_use
    view = read_arrays(memory, headers, copy=False)["x"][1:].reshape(3, 1)
    assert memory.in_use
    copied = view.copy()
    del view
    assert not memory.in_use
    assert copied.tolist() == [[1], [2], [3]]


def test_arena_leaves_no_file():
    """After a drop; arrays that are held stay readable."""
    gc.collect()
    before = psutil.Process().num_fds()
    arena = Arena()
    headers = write_arrays(arena, ({"x": np.arange(4.0)},))
    memory = _seen(arena)
    held = read_arrays(memory, headers, copy=False)["x"]
    arena.drop()
    del memory
    assert held.tolist() == [0, 1, 2, 3]
    del held
    assert psutil.Process().num_fds() == before
    arena.drop()


def test_memory_without_memfd_has_no_name_left(monkeypatch):
    """As on macOS: the arena grows too, and its memory is no entry of a file system."""
    for name in ("memfd_create", "posix_fallocate"):
        monkeypatch.delattr(os, name)
    monkeypatch.delattr(mmap, "MAP_POPULATE")
    arena = Arena()
    for rows in (2, ARENA_BYTES_MIN):
        headers = write_arrays(arena, ({"x": np.arange(float(rows))},))
        memory = _seen(arena)
        assert read_arrays(memory, headers, copy=True)["x"].tolist() == list(range(rows))
    fd = open_unnamed_memory("test", 1)
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
