"""Output formats, joins, filters and separators, in whole transforms."""

import numpy as np
import pyarrow.ipc
import pyarrow.parquet
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.runs.encoders import resolve_format
from headrace.runs.settings import TABLES, OutputSettings, TransformSettings
from headrace.storage.resolve import Stores
from runs.support import (
    FailingPredictor,
    InjectedError,
    engine,
    failed_lines,
    make_settings,
    outputs,
    put,
    rows,
    tar,
    transform,
)

INPUTS = {
    "csv": ("a.csv", b'1,2\n"3",4\nx,1\n5,6\n'),
    "jsonl": ("a.jsonl", b'{"x": [1, 2]}\n{"x": [3, 4]}\n{"x": "q"}\n{"x": [5, 6], "id": "z"}\n'),
    "tar": (
        "a.tar",
        tar(
            {
                "1.json": b'{"x": [1, 2]}',
                "2.json": b'{"x":\n[3, 4]}',
                "3.json": b"{",
                "4.json": b'{"x": [5, 6]}',
            }
        ),
    ),
}


def transform_one(shared, kind: str, **output) -> bytes:
    stores = Stores()
    name, data = INPUTS[kind]
    put(stores, {name: data})
    report = transform(stores, predictor=shared, settings=make_settings(output=output))
    assert (report.rows_out, report.rows_failed) == (3, 1)
    found = outputs(stores)
    written = f"{name}.out" + (f".{output['format']}" if output.get("format") in TABLES else "")
    assert set(found) == {written, f"{written}.failed"}
    return found[written]


@for_each(
    ("kind", "output", "expected"),
    [
        ("csv", {}, b"2.0\n6.0\n10.0\n"),
        ("csv", {"join": "input"}, b'1,2,2.0\n"3",4,6.0\n5,6,10.0\n'),
        ("csv", {"join": "input", "output_filter": "$[0,-1]"}, b'1,2.0\n"3",6.0\n5,10.0\n'),
        ("csv", {"header": True}, b"y\n2.0\n6.0\n10.0\n"),
        ("csv", {"format": "jsonl"}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        ("csv", {"format": "jsonl", "output_filter": "$.y"}, b"2.0\n6.0\n10.0\n"),
        ("csv", {"format": "json", "assemble": "none"}, b'{"y":2.0}{"y":6.0}{"y":10.0}'),
        ("csv", {"format": "json"}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        ("jsonl", {}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        (
            "jsonl",
            {"join": "input"},
            b"".join(
                (
                    b'{"x": [1, 2],"SageMakerOutput":{"y":2.0}}\n',
                    b'{"x": [3, 4],"SageMakerOutput":{"y":6.0}}\n',
                    b'{"x": [5, 6], "id": "z","SageMakerOutput":{"y":10.0}}\n',
                )
            ),
        ),
        ("jsonl", {"join": "input", "output_filter": "$.SageMakerOutput.y"}, b"2.0\n6.0\n10.0\n"),
        ("jsonl", {"format": "csv"}, b"2.0\n6.0\n10.0\n"),
        ("tar", {}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        ("tar", {"format": "json", "assemble": "none", "output_filter": "$['y']"}, b"2.06.010.0"),
    ],
)
def test_predictions_have_the_requested_format(shared, kind, output, expected):
    assert transform_one(shared, kind, **output) == expected


@for_each("accept", ["parquet", "arrow"])
@for_each("kind", list(INPUTS))
@for_each("join", ["none", "input"])
def test_predictions_are_written_as_tables(shared, kind, accept, join):
    table = read_table(accept, transform_one(shared, kind, format=accept, join=join))
    assert table["y"].to_pylist() == [2.0, 6.0, 10.0]
    assert table.column_names == (["input", "input_bytes", "y"] if join == "input" else ["y"])
    if join == "input":
        first = {"csv": "1,2", "jsonl": '{"x": [1, 2]}', "tar": '{"x": [1, 2]}'}[kind]
        assert table["input"][0].as_py() == first


@for_each("accept", ["parquet", "arrow"])
def test_table_of_an_object_without_records_is_valid(shared, accept):
    stores = Stores()
    put(stores, {"a.csv": b"", "b.csv": b"x,1\n", "c.csv": rows(3), "d.csv.gz": b"\x1f\x8b"})
    transform(stores, predictor=shared, settings=make_settings(output={"format": accept}))
    found = outputs(stores)
    for name, count in (("a.csv", 0), ("b.csv", 0), ("c.csv", 3), ("d.csv.gz", 0)):
        table = read_table(accept, found[f"{name}.out.{accept}"])
        assert (table.num_rows, table.schema.names, str(table.schema.types[0])) == (count, ["y"], "double")
    assert len(failed_lines(found[f"b.csv.out.{accept}.failed"])) == 1


def read_table(accept: str, data: bytes):
    if accept == "arrow":
        return pyarrow.ipc.open_file(pyarrow.BufferReader(data)).read_all()
    return pyarrow.parquet.read_table(pyarrow.BufferReader(data))


@for_each("accept", ["parquet", "arrow"])
@for_each("checkpoint_s", [0.0, 1e9])
def test_tables_resume_object_by_object(shared, accept, checkpoint_s):
    objects = {"a.csv": rows(9), "b.csv": rows(9, 9), "c.csv": b"x,1\n" + rows(9, 18)}
    whole = Stores()
    put(whole, objects)
    settings = make_settings(output={"format": accept}, checkpoint_s=checkpoint_s)
    transform(whole, predictor=shared, settings=settings)
    for at in range(1, 7):
        stores = Stores()
        put(stores, objects)
        with pytest.raises(InjectedError):
            transform(stores, predictor=FailingPredictor(shared, at=at), settings=settings)
        transform(stores, predictor=shared, settings=settings, if_exists="resume")
        assert outputs(stores) == outputs(whole)


class UppercaseModel(Model):
    """A model from text to text."""

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    max_batch_rows = 3

    def predict(self, text):
        return {"said": np.array([str(t).upper() for t in text], object)}


@for_each(("assemble", "expected"), [("line", b"A\nB C\n\xc3\x84\n"), ("none", b"AB C\xc3\x84")])
def test_text_is_written_unchanged(assemble, expected):
    stores = Stores()
    put(stores, {"a.csv": "a\nb c\nä\n".encode()})
    settings = make_settings(read={"format": "line"}, output={"format": "text", "assemble": assemble})
    with engine(UppercaseModel()) as predictor:
        transform(stores, predictor=predictor, settings=settings)
    assert outputs(stores) == {"a.csv.out": expected}


def test_accept_text_refuses_numbers(shared, stores):
    put(stores, {"a.csv": rows(2)})
    with pytest.raises(ConfigError, match="choose csv or jsonl"):
        transform(stores, predictor=shared, settings=make_settings(output={"format": "text"}))


def test_input_formats_can_be_mixed(shared, stores):
    put(stores, dict(INPUTS.values()))
    report = transform(stores, predictor=shared)
    assert (report.rows_out, report.rows_failed) == (9, 3)
    assert [outputs(stores)[f"a.{k}.out"] for k in ("csv", "jsonl", "tar")] == [b"2.0\n6.0\n10.0\n"] * 3


def test_whole_records_are_passed_to_a_text_model(stores):
    put(stores, {"a.csv": b'1,"b"\n', "a.jsonl": b'{"q": 1}\n'})
    settings = make_settings(mapping={"whole_records": True}, output={"format": "text"})
    with engine(UppercaseModel()) as predictor:
        transform(stores, predictor=predictor, settings=settings)
    assert outputs(stores) == {"a.csv.out": b'1,"B"\n', "a.jsonl.out": b'{"Q": 1}\n'}


@for_each(
    ("kind", "expected"),
    [("csv", "csv"), ("line", "csv"), (None, "csv"), ("json", "jsonl"), ("jsonl", "jsonl"), ("image", "csv")],
)
def test_default_accept_follows_the_first_records(kind, expected):
    assert resolve_format(TransformSettings(), kind) == expected
    assert resolve_format(TransformSettings(output=OutputSettings(format="parquet")), kind) == "parquet"
