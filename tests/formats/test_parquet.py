"""Parquet out: pyarrow reads back every value, and the bytes depend on the rows alone."""

import io
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.block import Position
from headrace.core.errors import ConfigError, MissingExtraError, ModelContractError
from headrace.formats.contract import Piece
from headrace.formats.encode import output_columns
from headrace.formats.jsonl import JsonLinesFormat
from headrace.formats.parquet import ArrowEncoder, ParquetEncoder


def piece_of(records):
    """The records as lines of one block."""
    text = b"#" * 4096 + b"\n" + b"".join(record + b"\n" for record in records)
    (block,) = JsonLinesFormat(block_bytes_max=8 << 20).blocks([text], Position())
    return Piece(block, 1, len(block))


def encoded(piece, outputs, *, cuts=(), kind=ParquetEncoder, **options):
    """A whole part, its rows given in one call, or cut at these rows."""
    encoder = kind(output_columns(outputs), **options)
    parts = [encoder.begin()]
    for start, stop in pairwise((0, *cuts, len(piece))):
        share = Piece(piece.block, piece.start + start, piece.start + stop)
        parts.append(encoder.encode([share], {name: data[start:stop] for name, data in outputs.items()}))
    return b"".join((*parts, encoder.finish()))


def read(data):
    return pq.read_table(io.BytesIO(data))


def test_every_kind_of_output():
    """Scalars of their own type, arrays as nested fixed-size lists, text as strings."""
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
    table = read(encoded(piece_of([b"1", b"2"]), outputs))
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


def test_records_are_joined_and_none_is_lost():
    """As text where they are; where not, their bytes are in a column that is always there."""
    records = ["größe".encode(), b"\xff\xfe", b"3"]
    table = read(encoded(piece_of(records), {"y": np.arange(3)}, join="input"))
    assert table.schema.names == ["input", "input_bytes", "y"]
    assert table["input"].to_pylist() == ["größe", None, "3"]
    assert table["input_bytes"].to_pylist() == [None, b"\xff\xfe", None]
    all_text = read(encoded(piece_of(records[::2]), {"y": np.arange(2)}, join="input"))
    assert all_text.schema == table.schema
    assert all_text["input"].to_pylist() == ["größe", "3"]


def test_row_groups_end_by_rows_or_by_bytes():
    """The first bound that is reached; so no part holds more than one row group of memory."""

    def groups(**options):
        records = [b"x" * 92] * 10
        metadata = pq.ParquetFile(
            io.BytesIO(encoded(piece_of(records), {"y": np.arange(10)}, join="input", **options))
        ).metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    assert groups() == [10]
    assert groups(row_group_rows=4) == [4, 4, 2]
    assert groups(row_group_rows=5) == [5, 5]
    assert groups(row_group_bytes_max=300) == [3, 3, 3, 1]
    assert groups(row_group_bytes_max=301) == [4, 4, 2]
    assert groups(row_group_bytes_max=1) == [1] * 10


def test_bytes_leave_as_row_groups_fill():
    """Nothing is kept that could have gone."""
    encoder = ParquetEncoder(output_columns({"y": np.zeros(1)}), row_group_rows=2)
    assert encoder.begin() == b"PAR1"
    piece = piece_of([b"1"])
    assert encoder.encode([piece], {"y": np.zeros(1)}) == b""
    assert encoder.encode([piece], {"y": np.zeros(1)}) != b""
    assert encoder.finish().endswith(b"PAR1")


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4000),
    st.sets(st.integers(1, 3999), max_size=5),
    st.sampled_from([333, 1024, 65536]),
    st.sampled_from([5000, 1 << 20]),
)
def test_bytes_do_not_depend_on_the_batches(rows, cuts, row_group_rows, row_group_bytes_max):
    """Any cut of the same rows into calls gives the same file: what a resumed run relies on."""
    piece = piece_of([b"%d,%d" % (i, i * i) for i in range(rows)])
    outputs = {
        "y": np.arange(rows, dtype=np.float32) / 7,
        "s": np.array([f"label {i % 5}" for i in range(rows)], object),
    }
    options = {"join": "input", "row_group_rows": row_group_rows, "row_group_bytes_max": row_group_bytes_max}
    whole = encoded(piece, outputs, **options)
    assert encoded(piece, outputs, cuts=sorted(c for c in cuts if c < rows), **options) == whole
    table = read(whole)
    assert table["input"].to_pylist() == [f"{i},{i * i}" for i in range(rows)]
    assert table["s"].to_pylist() == outputs["s"].tolist()
    np.testing.assert_array_equal(table["y"].to_numpy(), outputs["y"])


def test_pages_do_not_depend_on_the_batches():
    """Nor where a column is long enough for several pages, and for its dictionary to be given up."""
    rows = 20_000
    piece = piece_of([b"%0100d" % i for i in range(rows)])
    outputs = {"s": np.array([f"{i:0100d}" for i in range(rows)], object)}
    whole = encoded(piece, outputs, join="input")
    assert encoded(piece, outputs, join="input", cuts=range(777, rows, 777)) == whole


def test_a_part_of_no_rows_is_a_file():
    """It has its columns, and no rows."""
    encoder = ParquetEncoder(output_columns({"y": np.zeros(0, np.float32)}))
    data = encoder.begin() + encoder.encode([], {"y": np.zeros(0, np.float32)}) + encoder.finish()
    assert read(data).schema.names == ["y"]
    assert read(data).num_rows == 0


@pytest.mark.parametrize("name", ["input", "input_bytes"])
def test_an_output_called_like_a_joined_column_is_refused(name):
    """Readers could not tell them apart."""
    with pytest.raises(ConfigError, match=f"output '{name}' has the name of a joined column"):
        ParquetEncoder(output_columns({name: np.zeros(1)}), join="input")


def test_what_parquet_cannot_hold_is_refused():
    """Rows of no values, and bounds of nothing."""
    with pytest.raises(ConfigError, match="output 'y' has rows of no values"):
        ParquetEncoder(output_columns({"y": np.zeros((1, 0))}))
    with pytest.raises(ConfigError, match="must be at least 1"):
        ParquetEncoder((), row_group_rows=0)


def test_outputs_that_change_their_type_are_refused():
    """A column has one type for the whole file."""
    encoder = ParquetEncoder(output_columns({"y": np.zeros(1, np.float32)}))
    encoder.begin()
    with pytest.raises(ModelContractError, match="is float64; this part began with FP32"):
        encoder.encode([piece_of([b"1"])], {"y": np.zeros(1)})


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    """The module itself imports without it; only making an encoder needs it."""
    monkeypatch.delitem(sys.modules, "headrace.formats.arrow", raising=False)
    monkeypatch.delattr("headrace.formats.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingExtraError, match=r"writing Parquet needs an extra: pip install 'headrace\[arrow\]'"
    ):
        ParquetEncoder(())


# Arrow


def test_an_arrow_file_holds_what_a_parquet_file_does():
    outputs = {
        "f": np.array([0.5, np.nan], np.float32),
        "v": np.array([[1, 2, 3], [4, 5, 6]], np.float64)[:, ::-1],
        "s": np.array(["ä", None], object),
        "t": np.array([["a", "b"], ["", "c"]]),
    }
    for join in ("none", "input"):
        piece = piece_of([b"1", b"\xff"])
        table = pa.ipc.open_file(encoded(piece, outputs, kind=ArrowEncoder, join=join)).read_all()
        expected = read(encoded(piece, outputs, join=join))
        assert table.schema == expected.schema
        assert repr(table.to_pylist()) == repr(expected.to_pylist())  # NaN is not itself


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=4).map(sorted), st.integers(1, 20))
def test_arrow_bytes_do_not_depend_on_the_batches(rows, cuts, row_group_rows):
    piece = piece_of([b"%d" % i for i in range(rows)])
    outputs = {"y": np.arange(rows), "s": np.array([f"text {i}" for i in range(rows)])}
    cuts = [cut for cut in cuts if cut < rows]
    options = {"kind": ArrowEncoder, "row_group_rows": row_group_rows, "join": "input"}
    whole = encoded(piece, outputs, **options)
    assert encoded(piece, outputs, cuts=cuts, **options) == whole
    reader = pa.ipc.open_file(whole)
    assert reader.num_record_batches == -(-rows // row_group_rows)
    assert reader.read_all()["y"].to_pylist() == list(range(rows))


def test_an_arrow_file_of_no_rows_is_one():
    encoder = ArrowEncoder(output_columns({"y": np.zeros(0)}))
    table = pa.ipc.open_file(encoder.begin() + encoder.finish()).read_all()
    assert (table.num_rows, table.schema.names, encoder.suffix) == (0, ["y"], ".arrow")
