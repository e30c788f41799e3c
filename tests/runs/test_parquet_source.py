"""Parquet objects are read by row groups from their store."""

import io
import json
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ChangedError, CorruptError, HeadraceError, NotFoundError
from headrace.formats.read_options import ReadOptions
from headrace.runs.table_source import read_ahead, table_blocks
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

URI = "memory://in/a.parquet"


def table(count: int, row_group_size: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(
        pa.table({"n": list(range(count))}, pa.schema([("n", pa.int64())])),
        out,
        row_group_size=row_group_size,
    )
    return out.getvalue()


def store_object(data: bytes) -> tuple[Stores, ObjectInfo]:
    stores = Stores()
    stores.for_uri(URI).put(URI, data)
    return stores, stores.for_uri(URI).head(URI)


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_row_is_read_once_in_order(count, row_group_size):
    stores, info = store_object(table(count, row_group_size))
    blocks = list(table_blocks(info, stores, ReadOptions()))
    found = [json.loads(block.record(i)) for block in blocks for i in range(len(block))]
    assert found == [{"n": n} for n in range(count)]
    firsts = [block.first.record for block in blocks]
    assert firsts == [sum(len(b) for b in blocks[:i]) for i in range(len(blocks))]
    assert {block.first.object for block in blocks} <= {URI}


@for_each("data", [b"", b"PAR1", b"no table" * 50, table(9, 3)[:-1], table(9, 3)[7:]])
def test_invalid_parquet_file_is_corrupt(data):
    stores, info = store_object(data)
    with pytest.raises(CorruptError, match=r"memory://in/a\.parquet"):
        list(table_blocks(info, stores, ReadOptions()))


def test_row_groups_before_a_damaged_one_are_read():
    data = bytearray(table(4000, 1000))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    stores, info = store_object(bytes(data))
    counts: list[int] = []
    blocks = (counts.append(len(block)) for block in table_blocks(info, stores, ReadOptions()))
    with pytest.raises(CorruptError, match=r"memory://in/a\.parquet"):
        list(blocks)
    assert 0 < sum(counts) < 4000


def test_next_row_group_is_read_while_the_last_one_is_used():
    stores, info = store_object(table(4000, 1000))
    blocks, second_is_read = table_blocks(info, stores, ReadOptions()), threading.Event()

    def tracked():
        yield next(blocks)
        yield next(blocks)
        second_is_read.set()
        yield from blocks

    ahead = read_ahead(tracked(), 4 << 20)
    assert next(ahead).first.record == 0
    assert second_is_read.wait(10)
    assert [block.first.record for block in ahead] == [1000, 2000, 3000]


def test_error_of_reading_ahead_comes_in_its_place():
    data = bytearray(table(4000, 1000))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    stores, info = store_object(bytes(data))
    alone, ahead = (
        table_blocks(info, stores, ReadOptions()),
        read_ahead(table_blocks(info, stores, ReadOptions()), 64 << 20),
    )
    counts = ([], [])
    for blocks, count in zip((alone, ahead), counts, strict=True):
        with pytest.raises(CorruptError, match="the Parquet file cannot be read"):
            count.extend(len(block) for block in blocks)
    assert counts[0] == counts[1] != []


@for_each("is_deleted", [True, False])
def test_deleted_or_changed_object_is_an_error(is_deleted):
    stores, info = store_object(table(9, 3))
    store = stores.for_uri(URI)
    store.delete(URI) if is_deleted else store.put(URI, table(9, 4))
    with pytest.raises(NotFoundError if is_deleted else ChangedError, match=r"memory://in/a\.parquet"):
        list(table_blocks(info, stores, ReadOptions()))


def test_object_of_unknown_size_is_refused():
    stores, info = store_object(table(9, 3))
    unknown = ObjectInfo(info.uri, None, info.etag)
    with pytest.raises(HeadraceError, match="its size is unknown"):
        list(table_blocks(unknown, stores, ReadOptions()))
