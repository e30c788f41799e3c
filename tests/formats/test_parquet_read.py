"""Parquet read by row groups: bounded blocks, whole files, and damage that is told."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.parquet_files import blocks, reader, written
from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError, StorageError
from headrace.formats.parquet_read import ParquetReader, RowGroup

ROWS = st.lists(st.tuples(st.integers(-5, 5), st.text(max_size=20)), max_size=40)


def table(rows):
    return pa.table(
        {"n": pa.array([n for n, _ in rows], pa.int64()), "t": pa.array([t for _, t in rows], pa.string())}
    )


def records(found):
    return [block.record(i) for block in found for i in range(len(block))]


@settings(max_examples=50)
@given(ROWS, st.integers(1, 12), st.integers(1, 9), st.integers(1, 300))
def test_every_row_comes_once_as_json_with_its_columns(rows, group_rows, rows_max, block_bytes_max):
    """In blocks that are bounded, and numbered without a gap."""
    found = blocks(
        written(table(rows), group_rows=group_rows), rows_max=rows_max, block_bytes_max=block_bytes_max
    )
    assert [orjson.loads(r) for r in records(found)] == [{"n": n, "t": t} for n, t in rows]
    text, record = b"".join(block.data for block in found), 0
    for block in found:
        assert 0 < len(block) <= rows_max
        assert len(block) == 1 or len(block.data) <= block_bytes_max
        assert block.line_end == b"\n"
        assert block.column_names == ("n", "t")
        assert {name: len(column) for name, column in block.columns.items()} == {
            "n": len(block),
            "t": len(block),
        }
        for index in range(len(block)):
            at = block.position(index)
            assert (at.record, at.line) == (record, record + 1)
            assert text[at.byte :].startswith(block.record(index) + b"\n")
            assert [block.columns["n"][index], block.columns["t"][index]] == list(rows[record])
            record += 1
    assert record == len(rows)


def test_row_groups_are_told_and_read_by_themselves():
    data = written({"x": np.arange(10)}, group_rows=4)
    opened = reader(data)
    assert [group.rows for group in opened.row_groups] == [4, 4, 2]
    assert abs(sum(group.compressed_bytes for group in opened.row_groups) - len(data)) <= 3
    assert all(isinstance(g, RowGroup) and 0 < g.compressed_bytes < len(data) for g in opened.row_groups)
    assert opened.column_names == ("x",)
    first = Position("o", record=4, line=5, byte=100)
    (block,) = opened.blocks(1, 2, first)
    assert (block.first, block.columns["x"].tolist()) == (first, [4, 5, 6, 7])
    assert list(opened.blocks(2, 2, first)) == []
    apart = [block.data for g in range(3) for block in opened.blocks(g, g + 1, Position())]
    assert apart == [block.data for block in opened.blocks(0, 3, Position())]


def test_only_what_is_asked_for_is_read():
    """The end, and then the row group: nothing else, so that ranges of one file can be read apart."""
    data = written({"x": np.random.default_rng(0).normal(size=60_000)}, group_rows=20_000)
    asked = []

    def read_at(start, size):
        asked.append((start, size))
        return data[start : start + size]

    opened = ParquetReader(read_at, len(data))
    assert sum(size for _, size in asked) <= 65_536 + 8
    asked.clear()
    assert sum(len(b) for b in opened.blocks(1, 2, Position())) == 20_000
    (group,) = opened.row_groups[1:2]
    assert group.compressed_bytes // 2 < sum(size for _, size in asked) < len(data) // 2


def test_a_row_that_is_too_long_is_a_failure_in_its_place():
    found = blocks(written({"t": ["a", "b" * 100, "c", "d" * 100]}), record_bytes_max=50)
    entries = []
    for block in found:
        entries += [(block.position(i).record, None) for i in range(len(block))]
        entries += [(f.position.record, f) for f in block.failures]
    assert [number for number, _ in entries] == [0, 1, 2, 3]
    assert [block.position(0).line for block in found if len(block)] == [1, 3]
    (failure, _) = [f for _, f in entries if f]
    assert (failure.kind, failure.why) == (
        FailureKind.FORMAT,
        "longer than record_bytes_max=50, as JSON text",
    )
    assert failure.raw == b'{"t":"' + b"b" * 44


@pytest.mark.parametrize("columns", [{"x": pa.array([], pa.int32())}, {"x": pa.array([], pa.string())}])
def test_a_file_of_no_rows_has_no_blocks(columns):
    assert blocks(written(columns)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"a,b\n1,2\n" * 10,
        written({"x": [1]})[:-1],
        written({"x": [1]})[:-9] + b"?" + written({"x": [1]})[-8:],
    ],
)
def test_what_is_no_parquet_is_corrupt(data):
    with pytest.raises(CorruptError, match="the Parquet file cannot be read: "):
        reader(data)


def test_a_damaged_row_group_ends_the_reading_after_those_before():
    values = np.random.default_rng(2).normal(size=3000)
    data = bytearray(
        written(
            {"x": values}, group_rows=1000, write_page_checksum=True, use_dictionary=False, compression="none"
        )
    )
    data[data.index(values[1500].tobytes())] ^= 1
    came = reader(bytes(data)).blocks(0, 3, Position())
    assert next(came).columns["x"].tolist() == values[:1000].tolist()
    with pytest.raises(CorruptError, match="the Parquet file cannot be read: "):
        next(came)


@given(st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=100)
def test_any_flipped_bit_gives_rows_or_is_corrupt(at, bit):
    """No other error gets out, and Arrow does not end the process: it does when asked of a damaged column's size."""
    data = bytearray(SMALL)
    data[at % len(data)] ^= 1 << bit
    try:
        opened = reader(bytes(data))
        for _ in opened.blocks(0, len(opened.row_groups), Position()):
            pass
    except CorruptError:
        pass


SMALL = written({"x": [1.5, None, 2.5], "t": ["a", "bé", None]}, write_page_checksum=True)


def test_rows_that_are_fewer_than_were_promised_are_noticed():
    opened = reader(SMALL)
    (group,) = opened.row_groups
    opened.row_groups = (replace(group, rows=4),)
    came = opened.blocks(0, 1, Position())
    assert len(next(came)) == 3
    with pytest.raises(CorruptError, match="row group 0 holds 3 rows instead of 4"):
        next(came)


def test_two_columns_of_one_name_are_refused():
    both = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(CorruptError, match="several columns are called 'a'"):
        reader(written(both))


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("error", [StorageError("memory://b/a", "gone"), OSError("gone"), ValueError("gone")])
def test_what_the_store_raises_goes_through(calls, error):
    """At the end of the file, and at a row group; also what Arrow itself raises for damage."""
    data = written({"x": np.arange(100_000)})
    left = [calls]

    def read_at(start, size):
        if not left[0]:
            raise error
        left[0] -= 1
        return data[start : start + size]

    with pytest.raises(type(error), match="gone"):
        list(ParquetReader(read_at, len(data)).blocks(0, 1, Position()))


@pytest.mark.parametrize("wrong", ["rows_max", "block_bytes_max", "record_bytes_max"])
def test_bounds_of_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match="must be at least 1"):
        reader(SMALL, **{wrong: 0})


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headrace.formats.arrow", raising=False)
    monkeypatch.delattr("headrace.formats.arrow", raising=False)
    with pytest.raises(MissingExtraError, match=r"reading Parquet needs an extra: .*headrace\[arrow\]"):
        reader(SMALL)


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
    opened = ParquetReader(read_at, size)
    for block in opened.blocks(0, 1, Position()):
        del block
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for block in opened.blocks(0, len(opened.row_groups), Position()):
        del block
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded_by_a_row_group(tmp_path):
    """Of a file of forty times as much."""
    path = tmp_path / "a.parquet"
    path.write_bytes(
        written({"x": np.random.default_rng(1).normal(size=2_000_000)}, group_rows=50_000, compression="none")
    )
    assert path.stat().st_size > 15 << 20
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10 << 10
