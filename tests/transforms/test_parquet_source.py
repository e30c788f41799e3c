"""Parquet objects, read where they are: by row groups, with what is wrong told of the object."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ChangedError, CorruptError, HeadraceError, NotFoundError
from headrace.formats.read import ReadOptions
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms.parquet_source import parquet_blocks

URI = "memory://in/a.parquet"


def table(count: int, row_group_size: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(
        pa.table({"n": list(range(count))}, pa.schema([("n", pa.int64())])),
        out,
        row_group_size=row_group_size,
    )
    return out.getvalue()


def placed(data: bytes) -> tuple[Stores, ObjectInfo]:
    stores = Stores()
    stores.for_uri(URI).put(URI, data)
    return stores, stores.for_uri(URI).head(URI)


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_row_comes_once_in_order_whatever_the_row_groups_are(count, row_group_size):
    stores, info = placed(table(count, row_group_size))
    blocks = list(parquet_blocks(info, stores, ReadOptions()))
    found = [json.loads(block.record(i)) for block in blocks for i in range(len(block))]
    assert found == [{"n": n} for n in range(count)]
    firsts = [block.first.record for block in blocks]
    assert firsts == [sum(len(b) for b in blocks[:i]) for i in range(len(blocks))]
    assert {block.first.object for block in blocks} <= {URI}


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no table" * 50, table(9, 3)[:-1], table(9, 3)[7:]])
def test_what_is_no_parquet_file_is_told_of_the_object(data):
    stores, info = placed(data)
    with pytest.raises(CorruptError, match=r"memory://in/a\.parquet"):
        list(parquet_blocks(info, stores, ReadOptions()))


def test_whole_row_groups_before_a_damaged_one_come():
    data = bytearray(table(4000, 1000))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    stores, info = placed(bytes(data))
    came: list[int] = []
    blocks = (came.append(len(block)) for block in parquet_blocks(info, stores, ReadOptions()))
    with pytest.raises(CorruptError, match=r"memory://in/a\.parquet"):
        list(blocks)
    assert 0 < sum(came) < 4000


@pytest.mark.parametrize("gone", [True, False])
def test_an_object_that_does_not_stay_is_told(gone):
    stores, info = placed(table(9, 3))
    store = stores.for_uri(URI)
    store.delete(URI) if gone else store.put(URI, table(9, 4))
    with pytest.raises(NotFoundError if gone else ChangedError, match=r"memory://in/a\.parquet"):
        list(parquet_blocks(info, stores, ReadOptions()))


def test_an_object_of_unknown_size_is_refused():
    stores, info = placed(table(9, 3))
    unknown = ObjectInfo(info.uri, None, info.etag)
    with pytest.raises(HeadraceError, match="its size is not known"):
        list(parquet_blocks(unknown, stores, ReadOptions()))
