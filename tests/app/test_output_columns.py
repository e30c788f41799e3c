"""Tests of `keep`, `drop` and `rename`: the columns of records and outputs that are written."""

import io
from functools import partial

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import for_each
from headrace.app.runs import retry_failed, run_sync, transform_sync
from headrace.core.errors import ConfigError, ResumeRefusedError
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import StreamSettings, TransformSettings
from headrace.storage.resolve import Stores

IN, OUT = "memory://b/in/", "memory://b/out/"
CSV = b'id,x,name\n007,1.50,"a,b"\n008,2,\n009,bad,c\n'
JSON = b'{"id": 7, "x": 1.5, "tags": ["a"]}\n{"id": null, "x": 2, "tags": []}\n'


class Two(Model):
    """Two outputs of the column `x`."""

    inputs = (TensorSpec("x", "FP64", (-1,)),)
    outputs = (TensorSpec("y", "FP64", (-1,)), TensorSpec("z", "FP64", (-1,)))

    def predict(self, x):
        return {"y": 2 * x, "z": 3 * x}


class Same(Model):
    """An output with the name of its input."""

    inputs = (TensorSpec("x", "FP64", (-1,)),)

    def predict(self, x):
        return {"x": 2 * x}


def written(objects, *, preset=TransformSettings, model=Two, read=None, **output):
    """Return the outputs of a run by the names of their objects."""
    stores = Stores()
    store = stores.for_uri(IN)
    for name, data in objects.items():
        store.put(IN + name, data)
    settings = preset(read=read or ReadOptions(header="names"), output=OutputSettings(**output))
    if preset is TransformSettings:
        transform_sync(IN, OUT, model=model, settings=settings, stores=stores)
    else:
        run_sync(IN, output=OUT, model=model, settings=settings, stores=stores)
    found = {info.uri.removeprefix(OUT): store.get(info.uri) for info in store.list(OUT)}
    return {n: d for n, d in found.items() if not n.startswith("_") and "failed" not in n}


def table(objects, **output):
    (data,) = written(objects, format="parquet", **output).values()
    return pq.read_table(io.BytesIO(data))


@for_each("preset", [TransformSettings, StreamSettings])
def test_kept_cells_are_columns_of_csv_with_their_digits(preset):
    (text,) = written({"a.csv": CSV}, preset=preset, keep=("name", "id", "x")).values()
    assert text == b'name,id,x,y,z\n"a,b",007,1.50,3.0,4.5\n,008,2,4.0,6.0\n'


@for_each("preset", [TransformSettings, StreamSettings])
def test_kept_fields_are_fields_of_json_lines(preset):
    output = {"format": "jsonl", "keep": ("tags", "id"), "drop": ("z",), "rename": ("id=key",)}
    (text,) = written({"a.jsonl": JSON}, preset=preset, **output).values()
    assert [orjson.loads(line) for line in text.splitlines()] == [
        {"tags": ["a"], "key": 7, "y": 3.0},
        {"tags": [], "key": None, "y": 4.0},
    ]


@for_each("preset", [TransformSettings, StreamSettings])
@for_each(
    ("output", "columns"),
    [
        ({"keep": ("name", "id")}, ["name", "id", "y", "z"]),
        ({"join": "input"}, ["id", "x", "name", "y", "z"]),
        ({"join": "input", "drop": ("x", "y")}, ["id", "name", "z"]),
        ({"join": "input", "rename": ("x=input", "y=score")}, ["id", "input", "name", "score", "z"]),
        ({"join": "position", "keep": ("id",), "drop": ("y",)}, [
            "id", "object", "member", "record", "line", "z"
        ]),
        ({"drop": ("y",), "rename": ("z=y",)}, ["y"]),
    ],
)  # fmt: skip
def test_columns_of_tables_are_chosen_and_renamed(preset, output, columns):
    found = table({"a.csv": CSV}, preset=preset, **output)
    assert found.column_names == columns
    assert found.num_rows == 2


def test_rows_of_tables_are_chosen_without_conversion():
    source = pa.table({"id": pa.array([1, None], pa.uint8()), "x": [1.0, 2.0], "v": pa.array([[1], [2, 3]])})
    sink = io.BytesIO()
    pq.write_table(source, sink)
    found = table({"a.parquet": sink.getvalue()}, keep=("v", "id"), rename=("id=key",))
    assert found.column_names == ["v", "key", "y", "z"]
    assert found["key"].type == pa.uint8()
    (text,) = written({"a.parquet": sink.getvalue()}, keep=("v", "id"), format="csv").values()
    assert text.splitlines() == [b"v,id,y,z", b"[1],1,2.0,3.0", b'"[2,3]",,4.0,6.0']


def test_nulls_and_numbers_that_are_not_finite_differ_in_csv():
    source = pa.table({"v": [None, float("nan"), float("-inf"), 0.1], "x": [1.0, 2.0, 3.0, 4.0]})
    sink = io.BytesIO()
    pq.write_table(source, sink)
    (text,) = written({"a.parquet": sink.getvalue()}, keep=("v",), drop=("z",), format="csv").values()
    assert text.splitlines() == [b"v,y", b",2.0", b"nan,4.0", b"-inf,6.0", b"0.1,8.0"]


def test_names_that_clash_mean_the_output():
    assert table({"a.csv": CSV}, model=Same, join="input", rename=("x=doubled",)).column_names == [
        "id",
        "x",
        "name",
        "doubled",
    ]
    assert table({"a.csv": CSV}, model=Same, join="input", drop=("x",)).column_names == ["id", "x", "name"]


@for_each(
    ("output", "says"),
    [
        ({"keep": ("nothing",)}, r"--keep nothing: .* the columns are id, x, name"),
        ({"drop": ("nothing",)}, r"--drop nothing: .* the names are y, z"),
        ({"rename": ("id=a",)}, r"--rename id: no output and no written column"),
        ({"rename": ("y=z",)}, r"two columns of the output have the name 'z'"),
        ({"keep": ("id",), "rename": ("id=y",)}, r"two columns of the output have the name 'y'"),
        ({"drop": ("y", "z")}, r"--drop leaves no column to write"),
    ],
)
@for_each("format", ["csv", "jsonl", "parquet"])
def test_names_without_a_column_or_with_two_are_refused(output, says, format):
    with pytest.raises(ConfigError, match=says):
        written({"a.csv": CSV}, format=format, **output)


@for_each("preset", [TransformSettings, StreamSettings])
@for_each(
    "output",
    [
        {"keep": ("no",)},
        {"drop": ("no",)},
        {"rename": ("y=z",)},
        {"drop": ("y", "z")},
        {"join": "input", "format": "parquet", "rename": ("x=y",)},
    ],
)
@for_each("objects", [{"a.csv": CSV}, {"a.jsonl": JSON}])
def test_names_are_refused_before_an_output_is_touched(preset, output, objects):
    """Otherwise the corrected command would find an output of other settings."""
    stores = Stores()
    for name, data in objects.items():
        stores.for_uri(IN).put(IN + name, data)
    settings = preset(output=OutputSettings(**output))
    is_transform = preset is TransformSettings
    run = partial(transform_sync, IN, OUT) if is_transform else partial(run_sync, IN, output=OUT)
    with pytest.raises(ConfigError, match=r"--|two columns"):
        run(model=Two, settings=settings, stores=stores)
    assert list(stores.for_uri(OUT).list(OUT)) == []


def test_fields_that_are_not_kept_fail_no_record():
    lines = b'{"x": 1, "k": 2}\n' * 1100 + b'{"x": 1, "k": "q", "new": 1}\n'
    assert table({"a.jsonl": lines}, keep=("x",)).num_rows == 1101


def test_empty_objects_have_the_chosen_columns():
    found = written({"a.csv": CSV, "b.csv": b"id,x,name\n"}, keep=("id",), rename=("z=score",))
    assert found["b.csv.out"] == b"id,y,score\n"
    assert written({"b.csv": b""}, keep=("id",)) == {"b.csv.out": b"id,y,z\n"}
    tables = written({"a.csv": CSV, "b.csv": b"id,x,name\n"}, format="parquet", keep=("id",), drop=("z",))
    assert pq.read_table(io.BytesIO(tables["b.csv.out.parquet"])).column_names == ["id", "y"]


def test_choice_is_part_of_the_run():
    stores = Stores()
    stores.for_uri(IN).put(IN + "a.csv", CSV)
    settings = TransformSettings(
        read=ReadOptions(header="names"),
        output=OutputSettings(keep=("id",), drop=("z",), rename=("y=score",)),
    )
    transform_sync(IN, OUT, model=Two, settings=settings, stores=stores)
    with pytest.raises(ResumeRefusedError):
        transform_sync(IN, OUT, model=Two, stores=stores, resume=True)
    retry_failed(OUT, model=Two, stores=stores)
    lines = stores.for_uri(OUT).get(OUT + "a.csv.out").splitlines()
    assert lines == [b"id,score", b"007,3.0", b"008,4.0"]
