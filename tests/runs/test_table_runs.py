"""Runs over tables: only needed columns are read, and large Parquet files are cut by row groups."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from formats.table_writers import WRITERS, read_table, write_arrow, write_json_array, write_parquet
from headrace.core.errors import ConfigError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.parquet_read import ParquetReader
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.output_settings import OutputSettings
from headrace.runs.plan import cuttable
from headrace.runs.projection import needed_columns
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.schema import Column, RecordSchema, Schema
from headrace.runs.settings import MappingOptions, StreamSettings
from headrace.runs.table_source import table_blocks
from headrace.storage.resolve import Stores
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    OverlaidStores,
    allow_small_tasks,
    failed_lines,
    make_settings,
    make_transform,
    outputs,
    plan_of,
    put,
    shuffle,
    transform,
)

ROWS = 60
NUMBERS = {
    # Every seventh row is refused by the model, and every eleventh has no number.
    "a": pa.array([None if i % 11 == 5 else -i if i % 7 == 3 else i for i in range(ROWS)], pa.int64()),
    "b": pa.array([1.0] * ROWS),
    "t": [f"text {i}" * 9 for i in range(ROWS)],
}
PARQUET = write_parquet(NUMBERS, group_rows=7)


# Ranges


@given(st.integers(0, 50), st.integers(1, 9), st.lists(st.integers(1, 4000), max_size=4))
def test_ranges_divide_the_row_groups(count, group_rows, edges):
    stores, data = Stores(), write_parquet({"n": list(range(count))}, group_rows=group_rows)
    put(stores, {"a.parquet": data})
    info = stores.for_uri(IN).head(IN + "a.parquet")
    edges = sorted({0, *(edge for edge in edges if edge < len(data))})
    found: list[tuple[int, int]] = []
    for start, stop in pairwise([*edges, None]):
        for block in table_blocks(info, stores, ReadOptions(), start=start, stop=stop):
            numbers = block.table.array("n").tolist()
            found += [(block.first.record + place, number) for place, number in enumerate(numbers)]
    assert found == [(number, number) for number in range(count)]


def test_every_byte_before_the_footer_belongs_to_one_row_group():
    groups = ParquetReader(lambda start, size: PARQUET[start : start + size], len(PARQUET)).row_groups
    assert [group.first_row for group in groups] == list(range(0, ROWS, 7))
    assert groups[0].start_byte == 0
    assert all(before.start_byte < after.start_byte for before, after in pairwise(groups))
    assert groups[-1].start_byte < len(PARQUET)


@for_each(
    ("name", "output", "expected"),
    [
        ("a.parquet", {"format": "csv"}, True),
        ("a.parquet", {"format": "jsonl", "join": "position"}, True),
        ("a.parquet", {"format": "jsonl", "join": "input"}, True),
        ("a.parquet", {"format": "parquet"}, False),
        ("a.parquet.gz", {"format": "csv"}, False),
        ("a.orc", {"format": "csv"}, False),
        ("a.arrow", {"format": "csv"}, False),
        ("a.csv", {"format": "csv"}, True),
        ("a.csv", {"format": "csv", "join": "position"}, False),
    ],
)
def test_which_objects_are_cut(name, output, expected):
    assert cuttable(IN + name, make_settings(output=output)) == expected


OUTPUTS = st.sampled_from(
    [
        {"format": "csv"},
        {"format": "jsonl", "join": "input"},
        {"format": "jsonl", "join": "position"},
        {"format": "json", "assemble": "line"},
    ]
)


@settings(max_examples=levels.examples(1))
@given(OUTPUTS, st.integers(300, 4000), st.randoms())
def test_tasks_and_their_order_do_not_change_the_output(shared, output, task_bytes, random):
    stores = Stores()
    put(stores, {"a.parquet": PARQUET, "b.parquet": PARQUET})
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole = transform(
            stores, predictor=shared, settings=make_settings(output=output), destination="memory://whole/"
        )
        used = make_settings(output=output, tasks={"task_bytes": task_bytes})
        assert (len(plan_of(stores, used).tasks) > 2) == (task_bytes <= len(PARQUET) // 2)
        run = make_transform(stores, predictor=shared, settings=used)
        shuffle(run, random)
        report = run.execute()
    assert outputs(stores) == outputs(stores, "memory://whole/")
    assert (report.records_in, report.rows_out) == (whole.records_in, whole.rows_out) == (2 * ROWS, 94)
    failed = failed_lines(outputs(stores)["a.parquet.out.failed"])
    assert [line["record"] for line in failed] == [i for i in range(ROWS) if i % 11 == 5 or i % 7 == 3]


@settings(max_examples=levels.examples(0.5))
@given(st.lists(st.integers(0, 14), min_size=1, max_size=3), st.booleans())
def test_interrupted_runs_resume_to_the_same_bytes(shared, kills, is_stream):
    used = make_settings(
        output={"format": "jsonl", "join": "input"},
        tasks={"task_bytes": 900},
        checkpoint_s=0,
        **({"preset": StreamSettings} if is_stream else {}),
    )
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole, stores = Stores(), Stores()
        for some in (whole, stores):
            put(some, {"a.parquet": PARQUET})
        expected = transform(whole, predictor=shared, settings=used)
        for at in kills:
            run = make_transform(
                stores, predictor=FailingPredictor(shared, at=at), settings=used, if_exists="resume"
            )
            try:
                run.execute()
            except InjectedError:
                continue
        report = make_transform(stores, predictor=shared, settings=used, if_exists="resume").execute()
    assert outputs(stores) == outputs(whole)
    assert (report.records_in, report.rows_out) == (expected.records_in, expected.rows_out)


def test_rows_before_a_damaged_row_group_are_scored(shared, monkeypatch):
    allow_small_tasks(monkeypatch)
    columns = {"a": np.arange(4000.0), "b": np.random.default_rng(0).normal(size=4000)}
    data = bytearray(write_parquet(columns, group_rows=1000))
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xff" * 200
    found = []
    for task_bytes in (1 << 30, len(data) // 6):
        stores = Stores()
        put(stores, {"a.parquet": bytes(data)})
        used = make_settings(output={"format": "csv"}, tasks={"task_bytes": task_bytes})
        report = transform(stores, predictor=shared, settings=used)
        assert report.objects_broken == 1
        assert 1000 <= report.rows_out < 4000
        found.append({n: v for n, v in outputs(stores).items() if not n.endswith(".failed")})
    assert found[0] == found[1]
    assert found[0].keys() == {"a.parquet.out.partial"}


# Projections


class CountingStore:
    """A store that counts the bytes of ranges."""

    def __init__(self, inner) -> None:
        self.inner, self.bytes_read = inner, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def get_range(self, uri, start, length, *, etag=""):
        self.bytes_read += length
        return self.inner.get_range(uri, start, length, etag=etag)


WIDE = {
    "a": np.arange(5000.0),
    "b": np.ones(5000),
    **{f"t{i}": [f"{i} {row * 7919 % 4999}" * 9 for row in range(5000)] for i in range(6)},
}


@for_each("name", ["a.parquet", "a.orc"])
@for_each("more", [{"mapping": {"columns": ("a", "b")}}, {}, {"mapping": {"input_filter": "$['a','b']"}}])
def test_only_needed_columns_are_read(shared, name, more):
    data = WRITERS[name](WIDE)
    stores = Stores()
    put(stores, {name: data})
    counting = CountingStore(stores.for_uri(IN))
    overlaid = OverlaidStores(stores, IN, counting)
    results, read = [], []
    for join in ("none", "input"):
        used = make_settings(output={"format": "jsonl", "join": join}, **more)
        counting.bytes_read = 0
        transform(
            overlaid,
            predictor=shared,
            settings=used,
            destination=f"memory://{join}/",
        )
        read.append(counting.bytes_read)
        lines = outputs(stores, f"memory://{join}/")[f"{name}.out"].splitlines()
        results.append([json.loads(line) for line in lines])
    # The sample before the run, and the footers, are read by both.
    assert read[1] - read[0] > len(data) // 2
    predictions = [{"y": 2.0 * row} for row in range(5000)]
    assert results[0] == predictions
    assert [line["SageMakerOutput"] for line in results[1]] == predictions
    assert set(results[1][0]) == {*WIDE, "SageMakerOutput"}


SCHEMA = Schema(
    (
        RecordSchema(
            "parquet",
            (
                Column("id", "text"),
                Column("a", "number"),
                Column("b", "integer"),
                Column("s", "object"),
                Column("v", "number", (3,)),
                Column("end", "boolean"),
            ),
        ),
        RecordSchema("jsonl", (Column("a", "number"),)),
    )
)


@for_each(
    ("inputs", "mapping", "join", "expected"),
    [
        ([("x", "FP32", (-1, 2))], {"columns": ("b", "a")}, "none", ("b", "a")),
        ([("x", "FP32", (-1, 2))], {"columns": (1, 2)}, "none", ("a", "b")),
        ([("x", "FP32", (-1, -1))], {}, "none", ("a", "b", "end")),
        ([("x", "FP32", (-1, -1))], {}, "position", ("a", "b", "end")),
        ([("x", "FP32", (-1, -1))], {}, "input", None),
        ([("t", "BYTES", (-1,))], {"text_column": "id"}, "none", ("id",)),
        ([("t", "BYTES", (-1,))], {"text_column": "s.x.y"}, "key", ("s",)),
        ([("v", "FP32", (-1, 3)), ("b", "INT64", (-1,))], {}, "none", ("v", "b")),
        ([("x", "FP32", (-1, -1))], {"input_filter": "$[1:3]"}, "none", ("a", "b")),
        ([("x", "FP32", (-1, 1))], {"input_filter": "$.s.x"}, "none", ("s",)),
        (
            [("x", "FP32", (-1, -1))],
            {"sequence": "id", "sequence_end": "end"},
            "none",
            ("a", "b", "id", "end"),
        ),
        ([("x", "FP32", (-1, -1))], {"sequence": "@object"}, "none", ("a", "b", "end")),
        ([("x", "FP32", (-1, 9))], {}, "none", None),
    ],
)
def test_needed_columns(inputs, mapping, join, expected):
    metadata = ModelMetadata("m", inputs=tuple(TensorSpec(*spec) for spec in inputs))
    found = needed_columns(metadata, MappingOptions(**mapping), OutputSettings(join=join), SCHEMA)
    assert found == ({} if expected is None else {"parquet": expected})


def test_failed_records_hold_the_columns_that_were_read_and_can_be_retried(shared):
    stores = Stores()
    put(stores, {"a.parquet": PARQUET})
    used = make_settings(output={"format": "csv"})
    report = transform(stores, predictor=shared, settings=used)
    failed = failed_lines(outputs(stores)["a.parquet.out.failed"])
    assert json.loads(failed[0]["raw"]) == {"a": -3, "b": 1.0}
    retry = FailedRecordsRetry(OUT, stores=stores, predictor=shared, model_identity="m")
    assert retry.execute().rows_failed == report.rows_failed


# Filters


PEOPLE = {
    "id": ["u", "v", "u"],
    "a": [1, 2, 3],
    "b": [0.5, 1.5, 2.5],
    "s": [{"x": 7, "t": {"y": 70}}, None, {"x": 9, "t": {"y": 90}}],
    "end": [False, False, True],
}


def decode(mapping, *specs, name="a.arrow"):
    (block,) = read_table(name, WRITERS[name](PEOPLE))
    metadata = ModelMetadata("m", inputs=tuple(TensorSpec(*spec) for spec in specs))
    mapper = Mapper(metadata, MappingOptions(**mapping), ReadOptions())
    return mapper, block


@for_each("name", WRITERS)
@for_each(
    ("path", "expected"),
    [
        ("$.a", [[1], [2], [3]]),
        ("$['b','a']", [[0.5, 1], [1.5, 2], [2.5, 3]]),
        ("$[2,1]", [[0.5, 1], [1.5, 2], [2.5, 3]]),
        ("$[1:3]", [[1, 0.5], [2, 1.5], [3, 2.5]]),
        ("$[-1]", [[0], [0], [1]]),
        ("$[1,1]", [[1, 1], [2, 2], [3, 3]]),
        ("$[*]", [[1, 0.5, 0], [2, 1.5, 0], [3, 2.5, 1]]),
        ("$", [[1, 0.5, 0], [2, 1.5, 0], [3, 2.5, 1]]),
        ("$.s.x", [[7], [9]]),
        ("$.s.t.y", [[70], [90]]),
    ],
)
def test_filter_selects_columns(name, path, expected):
    mapper, block = decode({"input_filter": path}, ("x", "FP32", (-1, -1)), name=name)
    decoded = mapper.decode(block)
    assert decoded.tensors["x"].tolist() == expected
    assert len(decoded.failures) == 3 - len(expected)


@for_each(
    ("path", "why"),
    [
        ("$.zz", 'there is no column "zz"; the columns are: id, a, b'),
        ("$[9]", "there is no column 9"),
        ("$.zz.x", "does not select columns of the file"),
        ("$.s[0]", "does not select columns of the file"),
        ("$['s'].*", "does not select columns of the file"),
    ],
)
def test_filter_that_selects_no_columns_is_refused(path, why):
    mapper, block = decode({"input_filter": path}, ("x", "FP32", (-1, -1)))
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        mapper.decode(block)


# Sequences


@for_each("name", WRITERS)
def test_sequences_are_named_by_columns(name):
    mapper, block = decode({"sequence": "id", "sequence_end": "end"}, ("x", "FP32", (-1, 2)), name=name)
    decoded, sequences = mapper.decode_steps(block)
    assert decoded.tensors["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert sequences.ids.tolist() == ["u", "v", "u"]
    assert sequences.ends.tolist() == [False, False, True]


def test_missing_sequence_column_is_refused():
    mapper, block = decode({"sequence": "zz"}, ("x", "FP32", (-1, -1)))
    with pytest.raises(ConfigError, match="there is no column zz: the columns are id, a, b, s, end"):
        mapper.decode_steps(block)


# Whole runs


@for_each("name", WRITERS)
def test_every_format_gives_the_same_predictions(shared, name):
    stores = Stores()
    put(stores, {name: WRITERS[name](NUMBERS, group_rows=9)})
    transform(stores, predictor=shared, settings=make_settings(output={"format": "jsonl", "join": "input"}))
    lines = [json.loads(line) for line in outputs(stores)[f"{name}.out"].splitlines()]
    rows = [row for row in pa.table(NUMBERS).to_pylist() if row["a"] is not None and row["a"] >= 0]
    assert lines == [row | {"SageMakerOutput": {"y": 2.0 * row["a"]}} for row in rows]


VALUES = {
    pa.int64(): st.integers(-(2**53), 2**53),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(-9, 9), max_size=3),
    pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"x": st.none() | st.integers(-9, 9), "y": st.none() | st.lists(st.text(max_size=2), max_size=2)}
    ),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["one", "two", '"']),
}


@st.composite
def tables_with_numbers(draw):
    """Draw a table with the columns of the model, some missing or refused, among others of any type."""
    rows = draw(st.integers(1, 15))

    def column(kind, values):
        return pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)

    kinds = draw(st.lists(st.sampled_from(list(VALUES)), max_size=3))
    others = {f"c{number}": column(kind, VALUES[kind]) for number, kind in enumerate(kinds)}
    numbers = {"a": column(pa.int64(), st.integers(-3, 9)), "b": column(pa.float64(), st.just(1.0))}
    return pa.table(dict(draw(st.permutations([*numbers.items(), *others.items()]))))


@settings(max_examples=levels.examples(1), deadline=None)
@given(tables_with_numbers(), st.integers(1, 6), st.sampled_from([*WRITERS, "a.json"]))
def test_outputs_equal_what_pyarrow_and_json_say(shared, table, group_rows, name):
    stores, write = Stores(), WRITERS.get(name, write_json_array)
    put(stores, {name: write(table, group_rows=group_rows)})
    used = make_settings(
        mapping={"columns": ("a", "b")},
        output={"format": "jsonl", "join": "input"},
        failures={"on_error": "record"},
    )
    report = transform(stores, predictor=shared, settings=used)
    rows = table.to_pylist()
    is_good = [None not in (row["a"], row["b"]) and row["a"] >= 0 for row in rows]
    expected = [
        row | {"SageMakerOutput": {"y": 2.0 * row["a"]}}
        for row, good in zip(rows, is_good, strict=False)
        if good
    ]
    found = outputs(stores)
    assert [json.loads(line) for line in found[f"{name}.out"].splitlines()] == expected
    failed = failed_lines(found.get(f"{name}.out.failed", b""))
    assert [line["record"] for line in failed] == [number for number, good in enumerate(is_good) if not good]
    assert [json.loads(line["raw"]) for line in failed] == [
        row for row, good in zip(rows, is_good, strict=False) if not good
    ]
    assert report.records_in == len(rows)


def test_elements_of_json_arrays_are_records(shared):
    stores = Stores()
    put(stores, {"a.json": write_json_array({"x": [[1, 2], [3, 4], [-5, 6]]}), "b.json": b'{"x": [7, 8]}'})
    report = transform(stores, predictor=shared, settings=make_settings(output={"format": "csv"}))
    assert (report.records_in, report.rows_failed) == (4, 1)
    assert outputs(stores)["a.json.out"] == b"2.0\n6.0\n"
    (failed,) = failed_lines(outputs(stores)["a.json.out.failed"])
    assert (failed["record"], failed["line"] > 10) == (2, True)


def test_arrow_stream_without_an_end_is_read():
    data = write_arrow({"x": [1, 2]}, is_stream=True)[:-8]
    assert [text for block in read_table("a.arrows", data) for text in block.texts()] == [
        b'{"x":1}',
        b'{"x":2}',
    ]
