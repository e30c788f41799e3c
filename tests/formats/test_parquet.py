"""Tests of `ParquetEncoder` and `ArrowEncoder`: values read back by pyarrow, stable bytes."""

import io
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Position
from headrace.core.errors import ConfigError, MissingExtraError, ModelContractError
from headrace.formats.contract import BlockSelection
from headrace.formats.encode import output_columns
from headrace.formats.line import JsonLinesFormat
from headrace.formats.parquet import ArrowEncoder, ParquetEncoder, RecordColumns, WholeRecords


def select_records(records):
    """Return the records as a selection of one block."""
    text = b"#" * 4096 + b"\n" + b"".join(record + b"\n" for record in records)
    (block,) = JsonLinesFormat(block_bytes_max=8 << 20).blocks([text], Position())
    return BlockSelection(block, 1, len(block))


def encode_part(selection, outputs, *, cuts=(), kind=ParquetEncoder, join="none", **options):
    """Return the bytes of a part whose rows are encoded in one call, or in calls cut at `cuts`."""
    records = WholeRecords(has_bytes=True) if join == "input" else None
    encoder = kind(output_columns(outputs), records=records, **options)
    parts = [encoder.begin()]
    for start, stop in pairwise((0, *cuts, len(selection))):
        share = BlockSelection(selection.block, selection.start + start, selection.start + stop)
        parts.append(encoder.encode([share], {name: data[start:stop] for name, data in outputs.items()}))
    return b"".join((*parts, encoder.finish()))


def read_table(data):
    return pq.read_table(io.BytesIO(data))


def test_every_output_type_is_stored():
    """Scalars keep their type, arrays become nested fixed-size lists, text becomes strings."""
    outputs = {
        "f": np.array([0.5, np.nan], np.float32),
        "h": np.array([0.5, 2], np.float16),
        "i": np.array([-1, 2], np.int8),
        "u": np.array([2**64 - 1, 0], np.uint64),
        "ok": np.array([True, False]),
        "v": np.array([[1, 2, 3], [4, 5, 6]], np.float64)[:, ::-1],
        "m": np.arange(8, dtype=np.int64).reshape(2, 2, 2),
        "s": np.array(["ä", None], object),
        "b": np.array([b"x\xff", 7], object),
        "t": np.array([["a", "b"], ["", "c"]]),
    }
    table = read_table(encode_part(select_records([b"1", b"2"]), outputs))
    assert table.schema.names == list(outputs)
    assert table.schema.types == [
        pa.float32(),
        pa.float16(),
        pa.int8(),
        pa.uint64(),
        pa.bool_(),
        pa.list_(pa.float64(), 3),
        pa.list_(pa.list_(pa.int64(), 2), 2),
        pa.string(),
        pa.string(),
        pa.list_(pa.string(), 2),
    ]
    first, second = table.to_pylist()
    assert np.isnan(second.pop("f"))
    assert first.pop("f") == 0.5
    assert first == {
        "h": 0.5,
        "i": -1,
        "u": 2**64 - 1,
        "ok": True,
        "v": [3, 2, 1],
        "m": [[0, 1], [2, 3]],
        "s": "ä",
        "b": "x\\xff",
        "t": ["a", "b"],
    }
    assert second == {
        "h": 2.0,
        "i": 2,
        "u": 0,
        "ok": False,
        "v": [6, 5, 4],
        "m": [[4, 5], [6, 7]],
        "s": None,
        "b": "7",
        "t": ["", "c"],
    }


def test_joined_records_are_complete():
    """Text is in one column; a second column, always present, holds other records as bytes."""
    records = ["größe".encode(), b"\xff\xfe", b"3"]
    table = read_table(encode_part(select_records(records), {"y": np.arange(3)}, join="input"))
    assert table.schema.names == ["input", "input_bytes", "y"]
    assert table["input"].to_pylist() == ["größe", None, "3"]
    assert table["input_bytes"].to_pylist() == [None, b"\xff\xfe", None]
    all_text = read_table(encode_part(select_records(records[::2]), {"y": np.arange(2)}, join="input"))
    assert all_text.schema == table.schema
    assert all_text["input"].to_pylist() == ["größe", "3"]


def test_row_groups_end_by_rows_or_by_bytes():
    """The first limit that is reached ends the group, so at most one row group is in memory."""

    def groups(**options):
        records = [b"x" * 92] * 10
        metadata = pq.ParquetFile(
            io.BytesIO(encode_part(select_records(records), {"y": np.arange(10)}, join="input", **options))
        ).metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    assert groups() == [10]
    assert groups(row_group_rows=4) == [4, 4, 2]
    assert groups(row_group_rows=5) == [5, 5]
    assert groups(row_group_bytes_max=300) == [3, 3, 3, 1]
    assert groups(row_group_bytes_max=301) == [4, 4, 2]
    assert groups(row_group_bytes_max=1) == [1] * 10


def test_bytes_are_returned_when_a_row_group_is_full():
    encoder = ParquetEncoder(output_columns({"y": np.zeros(1)}), row_group_rows=2)
    assert encoder.begin() == b"PAR1"
    selection = select_records([b"1"])
    assert encoder.encode([selection], {"y": np.zeros(1)}) == b""
    assert encoder.encode([selection], {"y": np.zeros(1)}) != b""
    assert encoder.finish().endswith(b"PAR1")


@given(
    st.integers(1, 4000),
    st.sets(st.integers(1, 3999), max_size=5),
    st.sampled_from([333, 1024, 65536]),
    st.sampled_from([5000, 1 << 20]),
)
def test_bytes_do_not_depend_on_the_batches(rows, cuts, row_group_rows, row_group_bytes_max):
    """A resumed run relies on this."""
    selection = select_records([b"%d,%d" % (i, i * i) for i in range(rows)])
    outputs = {
        "y": np.arange(rows, dtype=np.float32) / 7,
        "s": np.array([f"label {i % 5}" for i in range(rows)], object),
    }
    options = {"join": "input", "row_group_rows": row_group_rows, "row_group_bytes_max": row_group_bytes_max}
    whole = encode_part(selection, outputs, **options)
    assert encode_part(selection, outputs, cuts=sorted(c for c in cuts if c < rows), **options) == whole
    table = read_table(whole)
    assert table["input"].to_pylist() == [f"{i},{i * i}" for i in range(rows)]
    assert table["s"].to_pylist() == outputs["s"].tolist()
    np.testing.assert_array_equal(table["y"].to_numpy(), outputs["y"])


def test_pages_do_not_depend_on_the_batches():
    """The column is long enough for several pages and for its dictionary to be abandoned."""
    rows = 20_000
    selection = select_records([b"%0100d" % i for i in range(rows)])
    outputs = {"s": np.array([f"{i:0100d}" for i in range(rows)], object)}
    whole = encode_part(selection, outputs, join="input")
    assert encode_part(selection, outputs, join="input", cuts=range(777, rows, 777)) == whole


def test_empty_part_is_a_valid_file():
    """The file has its columns and no rows."""
    encoder = ParquetEncoder(output_columns({"y": np.zeros(0, np.float32)}))
    data = encoder.begin() + encoder.encode([], {"y": np.zeros(0, np.float32)}) + encoder.finish()
    assert read_table(data).schema.names == ["y"]
    assert read_table(data).num_rows == 0


def test_empty_rows_and_zero_limits_are_rejected():
    with pytest.raises(ConfigError, match="output 'y' has rows without values"):
        ParquetEncoder(output_columns({"y": np.zeros((1, 0))}))
    with pytest.raises(ConfigError, match="must be at least 1"):
        ParquetEncoder((), row_group_rows=0)


def test_output_type_change_is_rejected():
    """A column has one type for the whole file."""
    encoder = ParquetEncoder(output_columns({"y": np.zeros(1, np.float32)}))
    encoder.begin()
    with pytest.raises(ModelContractError, match="is float64; this part started with FP32"):
        encoder.encode([select_records([b"1"])], {"y": np.zeros(1)})


def test_missing_extra_is_named(monkeypatch):
    """The module can be imported without pyarrow; creating an encoder requires it."""
    monkeypatch.delitem(sys.modules, "headrace.formats.arrow", raising=False)
    monkeypatch.delattr("headrace.formats.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingExtraError, match=r"writing Parquet needs an extra: pip install 'headrace\[arrow\]'"
    ):
        ParquetEncoder(())


# Arrow files


def test_arrow_file_equals_the_parquet_file():
    outputs = {
        "f": np.array([0.5, np.nan], np.float32),
        "v": np.array([[1, 2, 3], [4, 5, 6]], np.float64)[:, ::-1],
        "s": np.array(["ä", None], object),
        "t": np.array([["a", "b"], ["", "c"]]),
    }
    for join in ("none", "input"):
        selection = select_records([b"1", b"\xff"])
        table = pa.ipc.open_file(encode_part(selection, outputs, kind=ArrowEncoder, join=join)).read_all()
        expected = read_table(encode_part(selection, outputs, join=join))
        assert table.schema == expected.schema
        assert repr(table.to_pylist()) == repr(expected.to_pylist())  # NaN is not equal to itself.


@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=4).map(sorted), st.integers(1, 20))
def test_arrow_bytes_do_not_depend_on_the_batches(rows, cuts, row_group_rows):
    selection = select_records([b"%d" % i for i in range(rows)])
    outputs = {"y": np.arange(rows), "s": np.array([f"text {i}" for i in range(rows)])}
    cuts = [cut for cut in cuts if cut < rows]
    options = {"kind": ArrowEncoder, "row_group_rows": row_group_rows, "join": "input"}
    whole = encode_part(selection, outputs, **options)
    assert encode_part(selection, outputs, cuts=cuts, **options) == whole
    reader = pa.ipc.open_file(whole)
    assert reader.num_record_batches == -(-rows // row_group_rows)
    assert reader.read_all()["y"].to_pylist() == list(range(rows))


def test_empty_arrow_part_is_a_valid_file():
    encoder = ArrowEncoder(output_columns({"y": np.zeros(0)}))
    table = pa.ipc.open_file(encoder.begin() + encoder.finish()).read_all()
    assert (table.num_rows, table.schema.names) == (0, ["y"])


def test_column_that_parquet_cannot_store_is_refused():
    class Intervals(RecordColumns):
        schema = pa.schema([("every", pa.month_day_nano_interval())])

        def batch(self, selection):
            raise AssertionError(selection)

    with pytest.raises(ConfigError, match="choose --output-format arrow"):
        ParquetEncoder(output_columns({"y": np.zeros(1)}), records=Intervals()).begin()
