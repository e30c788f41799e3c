"""Tests of `ParquetReader`: bounded blocks, complete files, damaged files."""

import importlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from formats.parquet_files import open_parquet, read_blocks, write_parquet
from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, StorageError
from headrace.formats.parquet_read import ParquetReader, RowGroup
from levels import examples

ROWS = st.lists(st.tuples(st.integers(-5, 5), st.text(max_size=20)), max_size=40)


def table(rows):
    return pa.table(
        {"n": pa.array([n for n, _ in rows], pa.int64()), "t": pa.array([t for _, t in rows], pa.string())}
    )


def records(blocks):
    return [block.record(i) for block in blocks for i in range(len(block))]


@given(ROWS, st.integers(1, 12), st.integers(1, 9), st.integers(1, 300))
def test_every_row_is_yielded_once_with_its_columns(rows, group_rows, rows_max, block_bytes_max):
    """The blocks are bounded and their records numbered without a gap."""
    blocks = read_blocks(
        write_parquet(table(rows), group_rows=group_rows), rows_max=rows_max, block_bytes_max=block_bytes_max
    )
    assert [orjson.loads(r) for r in records(blocks)] == [{"n": n, "t": t} for n, t in rows]
    record = 0
    for block in blocks:
        assert 0 < len(block) <= rows_max
        assert block.column_names == block.table.names == ("n", "t")
        assert (block.data, block.columns) == (b"", {})
        for index in range(len(block)):
            at = block.position(index)
            assert (at.record, at.line, at.byte) == (record, 1, 0)
            assert [block.table.array(name)[index] for name in ("n", "t")] == list(rows[record])
            record += 1
    assert record == len(rows)


def test_row_groups_are_listed_and_read_independently():
    data = write_parquet({"x": np.arange(10)}, group_rows=4)
    reader = open_parquet(data)
    assert [group.rows for group in reader.row_groups] == [4, 4, 2]
    assert abs(sum(group.compressed_bytes for group in reader.row_groups) - len(data)) <= 3
    assert all(isinstance(g, RowGroup) and 0 < g.compressed_bytes < len(data) for g in reader.row_groups)
    assert reader.column_names == ("x",)
    first = Position("o", record=4)
    (block,) = reader.blocks(1, 2, first)
    assert (block.first, block.table.array("x").tolist()) == (first, [4, 5, 6, 7])
    assert list(reader.blocks(2, 2, first)) == []
    apart = [block.texts() for g in range(3) for block in reader.blocks(g, g + 1, Position())]
    assert apart == [block.texts() for block in reader.blocks(0, 3, Position())]


def test_only_the_footer_and_the_requested_row_groups_are_read():
    """Ranges of one file can therefore be read independently."""
    data = write_parquet({"x": np.random.default_rng(0).normal(size=60_000)}, group_rows=20_000)
    calls_read = []

    def read_at(start, size):
        calls_read.append((start, size))
        return data[start : start + size]

    reader = ParquetReader(read_at, len(data))
    assert sum(size for _, size in calls_read) <= 65_536 + 8
    calls_read.clear()
    assert sum(len(b) for b in reader.blocks(1, 2, Position())) == 20_000
    (group,) = reader.row_groups[1:2]
    assert group.compressed_bytes // 2 < sum(size for _, size in calls_read) < len(data) // 2


def test_oversized_row_is_a_failure_in_its_place():
    blocks = read_blocks(write_parquet({"t": ["a", "b" * 100, "c", "d" * 100]}), record_bytes_max=50)
    entries = []
    for block in blocks:
        entries += [(block.position(i).record, None) for i in range(len(block))]
        entries += [(f.position.record, f) for f in block.failures]
    assert [number for number, _ in entries] == [0, 1, 2, 3]
    (failure, _) = [f for _, f in entries if f]
    assert (failure.kind, failure.why) == (
        FailureKind.FORMAT,
        "longer than record_bytes_max=50 in memory",
    )
    assert failure.raw == b'{"t":"' + b"b" * 44


@for_each("columns", [{"x": pa.array([], pa.int32())}, {"x": pa.array([], pa.string())}])
def test_empty_file_has_no_blocks(columns):
    assert read_blocks(write_parquet(columns)) == []


@for_each(
    "data",
    [
        b"",
        b"PAR1",
        b"a,b\n1,2\n" * 10,
        write_parquet({"x": [1]})[:-1],
        write_parquet({"x": [1]})[:-9] + b"?" + write_parquet({"x": [1]})[-8:],
    ],
)
def test_invalid_file_is_corrupt(data):
    with pytest.raises(CorruptError, match="the Parquet file cannot be read: "):
        open_parquet(data)


def test_rows_before_a_damaged_row_group_are_yielded():
    values = np.random.default_rng(2).normal(size=3000)
    data = bytearray(
        write_parquet(
            {"x": values}, group_rows=1000, write_page_checksum=True, use_dictionary=False, compression="none"
        )
    )
    data[data.index(values[1500].tobytes())] ^= 1
    blocks = open_parquet(bytes(data)).blocks(0, 3, Position())
    assert next(blocks).table.array("x").tolist() == values[:1000].tolist()
    with pytest.raises(CorruptError, match="the Parquet file cannot be read: "):
        next(blocks)


@given(st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=examples(3))
def test_flipped_bit_yields_rows_or_a_corrupt_error(at, bit):
    """Arrow would abort the process if the reader requested the size of a damaged column."""
    data = bytearray(SMALL)
    data[at % len(data)] ^= 1 << bit
    try:
        reader = open_parquet(bytes(data))
        for _ in reader.blocks(0, len(reader.row_groups), Position()):
            pass
    except CorruptError:
        pass


SMALL = write_parquet({"x": [1.5, None, 2.5], "t": ["a", "bé", None]}, write_page_checksum=True)


def test_missing_rows_are_detected():
    reader = open_parquet(SMALL)
    (group,) = reader.row_groups
    reader.row_groups = (replace(group, rows=4),)
    blocks = reader.blocks(0, 1, Position())
    assert len(next(blocks)) == 3
    with pytest.raises(CorruptError, match="row group 0 holds 3 rows instead of 4"):
        next(blocks)


def test_duplicate_column_names_are_rejected():
    both = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(CorruptError, match="several columns have the name 'a'"):
        open_parquet(write_parquet(both))


@for_each("calls", [0, 1])
@for_each("error", [StorageError("memory://b/a", "gone"), OSError("gone"), ValueError("gone")])
def test_read_errors_propagate(calls, error):
    """This includes error types that Arrow raises for damage. They occur at the footer or a row
    group.
    """
    data = write_parquet({"x": np.arange(100_000)})
    left = [calls]

    def read_at(start, size):
        if not left[0]:
            raise error
        left[0] -= 1
        return data[start : start + size]

    with pytest.raises(type(error), match="gone"):
        list(ParquetReader(read_at, len(data)).blocks(0, 1, Position()))


@for_each("wrong", ["rows_max", "block_bytes_max", "record_bytes_max"])
def test_zero_limits_are_rejected(wrong):
    with pytest.raises(ConfigError, match="must be at least 1"):
        open_parquet(SMALL, **{wrong: 0})


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("arrow", "parquet_read"):
        monkeypatch.delitem(sys.modules, f"headrace.formats.{name}", raising=False)
        monkeypatch.delattr(f"headrace.formats.{name}", raising=False)
    with pytest.raises(
        MissingExtraError, match=r"reading and writing Arrow data needs an extra: .*headrace\[arrow\]"
    ):
        importlib.import_module("headrace.formats.parquet_read")


MEMORY = """
import resource, sys
from headrace.core.block import Position
from headrace.formats.parquet_read import ParquetReader

path = sys.argv[1]
with open(path, "rb") as file:
    size = file.seek(0, 2)
    def read_at(start, length):
        file.seek(start)
        return file.read(length)
    reader = ParquetReader(read_at, size)
    for block in reader.blocks(0, 1, Position()):
        del block
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for block in reader.blocks(0, len(reader.row_groups), Position()):
        del block
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_arrow_memory_is_bounded_by_a_row_group():
    data = write_parquet({"x": np.arange(400_000.0)}, group_rows=20_000, compression="none")
    reader = open_parquet(data)
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() for _ in reader.blocks(0, 20, Position()))
    assert peak - before < 4 * 20_000 * 8


@pytest.mark.slow
def test_process_memory_is_bounded_by_a_row_group(tmp_path):
    """The file has forty row groups."""
    path = tmp_path / "a.parquet"
    path.write_bytes(
        write_parquet(
            {"x": np.random.default_rng(1).normal(size=2_000_000)}, group_rows=50_000, compression="none"
        )
    )
    assert path.stat().st_size > 15 << 20
    process = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    assert int(process.stdout) < 10 << 10
