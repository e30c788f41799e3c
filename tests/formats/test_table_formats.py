"""Every format of tables gives the rows that pyarrow and fastavro give, in bounded blocks, until damage."""

import base64
import contextlib
import datetime as dt
import decimal
import gzip
import io
import json
import tarfile

import fastavro
import numpy as np
import orjson
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import compute

from cases import for_each
from formats.table_writers import (
    WRITERS,
    json_rows,
    read_table,
    recode_avro,
    write_arrow,
    write_avro,
    write_orc,
    write_parquet,
)
from headrace.core.block import FailureKind
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.read import read_object
from headrace.formats.read_options import ReadOptions
from headrace.formats.record_table import ROWS_MAX, rows_text
from levels import examples

BASE = "memory://in/"
STREAMED = ("a.arrow", "a.arrows", "a.feather", "a.avro")
DAY = dt.date(2024, 2, 29)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIME = dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC)


def texts(blocks) -> list[bytes]:
    return [text for block in blocks for text in block.texts()]


# Types

KINDS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.float32(): st.floats(width=32, allow_nan=False, allow_infinity=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(dt.date(1800, 1, 1)),
    pa.timestamp("us", "UTC"): st.integers(-(10**15), 10**15).map(
        lambda us: EPOCH + dt.timedelta(microseconds=us)
    ),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(-9, 9), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(-9, 9), "b": st.none() | st.lists(st.text(max_size=2), max_size=2)}
    ),
    pa.map_(pa.string(), pa.float64()): st.dictionaries(
        st.text(max_size=3), st.sampled_from([0.5, None]), max_size=2
    ),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["x", "y", "zz"]),
}


@st.composite
def tables(draw) -> pa.Table:
    """Draw a table of some of the types, with nulls."""
    rows = draw(st.integers(0, 12))
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5))
    columns = {
        f"c{number}": pa.array(draw(st.lists(st.none() | KINDS[kind], min_size=rows, max_size=rows)), kind)
        for number, kind in enumerate(kinds)
    }
    return pa.table(columns)


def in_orc(kind):
    """Return the type of a column in ORC, whose timestamps are in nanoseconds."""
    return pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else kind


@settings(max_examples=examples(2), deadline=None)
@given(tables(), st.integers(1, 5), st.sampled_from(list(WRITERS)))
def test_rows_are_those_of_pyarrow(table, group_rows, name):
    """The types are kept: dictionaries become text in ORC and Avro, which do not have them."""
    found = list(read_table(name, WRITERS[name](table, group_rows=group_rows)))
    if name == "a.orc":
        table = table.cast(pa.schema([field.with_type(in_orc(field.type)) for field in table.schema]))
    expected = [text for batch in table.to_batches() for text in rows_text(batch)]
    assert json_rows(texts(found)) == json_rows(expected)
    records = [block.position(index).record for block in found for index in range(len(block))]
    assert records == list(range(table.num_rows))
    for block in found:
        for field, kept in zip(table.schema, block.table.batch.schema, strict=True):
            plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            if not pa.types.is_nested(plain):
                assert kept.type in (plain, field.type)


AVRO = {
    "type": "record",
    "name": "row",
    "namespace": "space",
    "fields": [
        {"name": "enum", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "again", "type": ["null", "Color"]},
        {"name": "fixed", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "time", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "number", "type": ["int", "null", "double"]},
        {"name": "either", "type": ["null", "string", "long"]},
        {"name": "map", "type": {"type": "map", "values": "space.Color"}},
        {
            "name": "tree",
            "type": {
                "type": "record",
                "name": "Tree",
                "fields": [{"name": "x", "type": "long"}, {"name": "left", "type": ["null", "Tree"]}],
            },
        },
        {"name": "trees", "type": {"type": "array", "items": "Tree"}},
    ],
}
TREE = {"x": 1, "left": {"x": 2, "left": None}}
AVRO_ROW = {
    "enum": "BLUE",
    "again": "RED",
    "fixed": b"ab",
    "day": DAY,
    "millis": TIME,
    "time": dt.time(1, 2, 3),
    "price": decimal.Decimal("12345678901234567890.10"),
    "id": "12345678-1234-5678-1234-567812345678",
    "number": 2.5,
    "either": "text",
    "map": {"k": "RED"},
    "tree": TREE,
    "trees": [TREE],
}


@for_each("codec", ["null", "deflate", "bzip2", "xz"])
def test_avro_types_become_arrow_types(codec):
    file = io.BytesIO()
    fastavro.writer(
        file, AVRO, [AVRO_ROW, AVRO_ROW | {"number": 3, "either": None, "again": None}], codec=codec
    )
    (block,) = read_table("a.avro", file.getvalue())
    kinds = {field.name: str(field.type) for field in block.table.batch.schema}
    assert kinds == {
        "enum": "string",
        "again": "string",
        "fixed": "fixed_size_binary[2]",
        "day": "date32[day]",
        "millis": "timestamp[ms, tz=UTC]",
        "time": "time64[us]",
        "price": "decimal256(40, 2)",
        "id": "string",
        "number": "double",
        "either": "string",
        "map": "map<string, string>",
        "tree": "struct<x: int64, left: string>",
        "trees": "list<item: struct<x: int64, left: string>>",
    }
    first, second = block.table.batch.to_pylist()
    left = '{"x":2,"left":null}'
    millis = TIME.replace(microsecond=0)
    tree = {"x": 1, "left": left}
    assert first == AVRO_ROW | {
        "millis": millis,
        "either": '"text"',
        "map": [("k", "RED")],
        "tree": tree,
        "trees": [tree],
    }
    assert (second["number"], second["either"], second["again"]) == (3.0, None, None)


@for_each("codec", ["snappy", "zstandard"])
def test_avro_codecs_of_spark_need_no_further_library(codec):
    plain = write_avro(COLUMNS, group_rows=3000, codec="null")
    data = recode_avro(plain, codec)
    assert len(data) < len(plain)
    expected = texts(read_table("a.avro", plain))
    assert texts(read_table("a.avro", data)) == expected
    found: list[bytes] = []
    with pytest.raises(TruncatedError, match=r"a\.avro: the Avro file cannot be read: it ends early"):
        found.extend(text for block in read_table("a.avro", data[:-30]) for text in block.texts())
    assert found == expected[:18_000]
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    with pytest.raises(CorruptError, match=r"a\.avro: the Avro file cannot be read"):
        texts(read_table("a.avro", bytes(damaged)))


def test_avro_file_without_records_has_a_column_of_values():
    file = io.BytesIO()
    fastavro.writer(file, "long", [1, 2])
    assert texts(read_table("a.avro", file.getvalue())) == [b'{"value":1}', b'{"value":2}']


def test_text_that_is_no_utf8_is_bytes():
    column = pa.array([b"\xff", b"ok"]).view(pa.string())
    for is_stream in (False, True):
        data = write_arrow({"t": column}, is_stream=is_stream)
        assert texts(read_table("a.arrow", data)) == [
            b'{"t":{"base64":"%s"}}' % base64.b64encode(b"\xff"),
            b'{"t":"ok"}',
        ]


@for_each(
    "column",
    [
        pa.array(["a", None]).cast(pa.string_view()),
        compute.run_end_encode(pa.array([1, 1, 2])),
        pa.array([[1], None], pa.list_view(pa.int64())),
        pa.array(["a", "b"]).cast(pa.large_string()),
    ],
)
def test_newer_arrow_types_are_read_table(column):
    expected = [{"x": value} for value in column.to_pylist()]
    assert json_rows(texts(read_table("a.arrow", write_arrow({"x": column})))) == expected


# Bounds

COLUMNS = {"n": np.arange(20_000), "t": [f"text {i}" for i in range(20_000)]}


@for_each("name", WRITERS)
def test_blocks_are_bounded_and_complete(name):
    for group_rows in (3000, 20_000):
        found = list(read_table(name, WRITERS[name](COLUMNS, group_rows=group_rows)))
        assert [row for block in found for row in block.table.array("n")] == list(range(20_000))
        assert all(0 < len(block) <= ROWS_MAX for block in found)


def test_blocks_of_wide_rows_hold_few_of_them():
    data = write_arrow({"v": [b"x" * 100_000] * 60}, group_rows=60)
    assert {len(block) for block in read_table("a.arrow", data)} == {15}


@for_each("name", WRITERS)
def test_oversized_rows_fail_alone(name):
    data = WRITERS[name]({"t": ["a", "b" * 500, "c", "d" * 500, "e"]}, group_rows=5)
    blocks = list(read_table(name, data, record_bytes_max=100))
    assert [json.loads(text)["t"] for text in texts(blocks)] == ["a", "c", "e"]
    failures = [failure for block in blocks for failure in block.failures]
    assert [(f.position.record, f.kind) for f in failures] == [
        (1, FailureKind.FORMAT),
        (3, FailureKind.FORMAT),
    ]


def test_dictionary_does_not_count_for_each_row():
    words = [f"{'w' * 200}{i}" for i in range(200)]
    data = write_arrow({"t": pa.array(words * 3).dictionary_encode()}, group_rows=300)
    blocks = list(read_table("a.arrow", data, record_bytes_max=1000))
    assert sum(len(block) for block in blocks) == 600
    assert not any(block.failures for block in blocks)


@for_each("name", WRITERS)
def test_only_the_wanted_columns_are_kept(name):
    data = WRITERS[name]({"a": [1], "b": ["x"], "c": [{"d": 1}]})
    (block,) = read_table(name, data, columns=("c", "b", "missing"))
    assert block.table.names == block.column_names == ("b", "c")
    (block,) = read_table(name, data, columns=("missing",))
    assert block.table.names == ("a", "b", "c")


# Layers


@for_each("name", STREAMED)
def test_streamed_formats_are_read_within_compression_and_archives(name):
    data = WRITERS[name](COLUMNS)
    expected = texts(read_table(name, data))
    for suffix, packed in ((".gz", gzip.compress(data)), (".zst", zstandard.compress(data))):
        assert texts(read_table(name + suffix, packed)) == expected
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in (f"1/{name}", f"2/{name}"):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    blocks = list(read_table("a.tar", file.getvalue()))
    assert texts(blocks) == expected * 2
    assert {block.first.member for block in blocks} == {f"1/{name}", f"2/{name}"}
    assert [b.first.record for b in blocks[: len(blocks) // 2]] == [
        b.first.record for b in blocks[len(blocks) // 2 :]
    ]


@for_each("name", STREAMED)
def test_resuming_skips_the_records_before(name):
    data = WRITERS[name](COLUMNS, group_rows=700)
    blocks = list(read_object(BASE + name, [data], ReadOptions()))
    for at in (0, 1, 699, 700, 12_345, 19_999):
        position = next(b for b in reversed(blocks) if b.first.record <= at).first
        rest = read_object(BASE + name, [data], ReadOptions(), resume=replace_record(position, at))
        assert texts(rest)[:2] == texts(blocks)[at : at + 2]


def replace_record(position, record):
    return type(position)(position.object, position.member, record)


# Damage


@for_each("name", [*STREAMED, "a.orc"])
def test_truncated_file_costs_the_rest(name):
    data = WRITERS[name](COLUMNS, group_rows=1000)
    for stop in (len(data) // 2, len(data) - 20, len(data) - 9):
        found: list[bytes] = []
        error = CorruptError if name == "a.orc" else TruncatedError
        with pytest.raises(error, match=f"{name}: the (Arrow|Avro|ORC) file cannot be read"):
            found.extend(text for block in read_table(name, data[:stop]) for text in block.texts())
        if name == "a.orc":
            assert not found  # its metadata is at the end
        else:
            assert 5000 < len(found) <= 20_000
            assert json.loads(found[-1])["n"] == len(found) - 1


@for_each("name", WRITERS)
def test_empty_or_foreign_file_is_corrupt(name):
    for data in (b"", b"a,b\n1,2\n" * 40, b"\xff" * 100, b"\0" * 100):
        with pytest.raises(CorruptError, match=f"{name}: the .* file cannot be read"):
            list(read_table(name, data))


@settings(max_examples=examples(5), deadline=None)
@given(st.sampled_from(["a.arrow", "a.arrows", "a.feather", "a.avro", "a.orc"]), st.data())
def test_damaged_file_gives_rows_or_is_corrupt(name, data):
    """No damage crashes the process or raises another error."""
    table = {"n": [1, 2, 3], "t": ["a", None, "c"], "l": [[1], [], [2, 3]], "d": pa.array(["x", "y", "x"])}
    whole = WRITERS[name](pa.table(table), group_rows=2)
    codec = data.draw(st.sampled_from([None, "snappy", "zstandard"])) if name == "a.avro" else None
    if codec is not None:
        whole = recode_avro(write_avro(pa.table(table), group_rows=2, codec="null"), codec)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptError):
        texts(read_table(name, bytes(damaged)))


def test_first_version_of_feather_is_refused_with_advice():
    with pytest.raises(CorruptError, match=r"Feather version 1: write it again with pyarrow\.feather"):
        list(read_table("a.feather", b"FEA1" + bytes(100)))


@for_each("write", [write_parquet, write_arrow, write_orc])
def test_columns_of_one_name_are_corrupt(write):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    name = {write_parquet: "a.parquet", write_arrow: "a.arrow", write_orc: "a.orc"}[write]
    try:
        data = write(table)
    except (pa.ArrowException, ValueError, KeyError):
        return
    with pytest.raises(CorruptError, match="several columns have the name 'a'"):
        list(read_table(name, data))


def test_fields_of_structs_are_arrays():
    (block,) = read_table(
        "a.arrow", write_arrow({"s": [{"x": 1, "t": {"y": "q"}}, None, {"x": None, "t": None}]})
    )
    assert block.table.array("s.x").tolist() == [1, None, None]
    assert block.table.array("s.t.y").tolist() == ["q", None, None]
    assert block.table.array("s.z") is block.table.array("s.x.y") is block.table.array("s") is None
    assert orjson.loads(block.record(1)) == {"s": None}


@for_each("rest", [b"\x80", b"\x02", b"\x02\x04", b"\x02\x04ab", b"\x02\x04ab" + b"\0" * 15])
def test_avro_that_ends_within_a_block_is_truncated(rest):
    data = write_avro({"n": [1]}, codec="null")
    for whole in (data, recode_avro(data, "snappy")):
        with pytest.raises(TruncatedError):
            list(read_table("a.avro", whole + rest))


def test_wrong_checksum_of_snappy_is_corrupt():
    data = bytearray(recode_avro(write_avro({"n": [1]}, codec="null"), "snappy"))
    data[-17] ^= 1  # the last byte before the sync marker
    with pytest.raises(CorruptError, match="a block is damaged: its checksum is wrong"):
        list(read_table("a.avro", bytes(data)))


@for_each(
    "column",
    [
        pa.Array.from_buffers(
            pa.string(), 2, [None, pa.py_buffer(np.array([0, 10**6, 2], np.int32)), pa.py_buffer(b"abc")]
        ),
        pa.DictionaryArray.from_arrays(pa.array([0, 5], pa.int32()), pa.array(["a"]), safe=False),
    ],
)
def test_offsets_beyond_the_values_are_corrupt(column):
    """Arrow would read memory that belongs to no value."""
    for is_stream in (True, False):
        data = write_arrow({"x": column}, is_stream=is_stream)
        with pytest.raises(CorruptError, match=r"a\.arrow: the Arrow file cannot be read: .*out of bounds"):
            list(read_table("a.arrow", data))
