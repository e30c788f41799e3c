"""Runs that write the place of each record beside its prediction."""

import io

import pyarrow.parquet
import pytest

from cases import for_each
from headrace.app.runs import retry_failed, run_sync, transform_sync
from headrace.core.errors import ConfigError
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.plan_pages import make_plan
from headrace.runs.records import PlannedObject
from headrace.runs.settings import StreamSettings, SubsetSettings, TaskSettings, TransformSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

IN, OUT = "memory://b/in/", "memory://b/out/"
ROWS = b'1,2\n"3\n",4\n\nx,1\n5,6\n'


class Sum(Model):
    refused = -1.0

    def predict(self, x):
        bad = {i: "refused" for i in range(len(x)) if x[i, 0] == Sum.refused}
        if bad:
            raise RowError(bad)
        return x.sum(axis=1)


class Size(Model):
    inputs = (TensorSpec("b", "BYTES", (-1,)),)
    bytes_as = "bytes"

    def predict(self, b):
        return [len(value) for value in b]


class Clash(Model):
    def predict(self, x):
        return {"line": x.sum(axis=1)}


def stores_of(objects: dict[str, bytes]) -> Stores:
    stores = Stores()
    for name, content in objects.items():
        stores.for_uri(IN).put(IN + name, content)
    return stores


def transformed(stores: Stores, name: str, *, model=Sum, read=None, **output) -> bytes:
    settings = TransformSettings(read=read or ReadOptions(), output=OutputSettings(**output))
    transform_sync(IN, OUT, model=model, stores=stores, settings=settings)
    return stores.for_uri(OUT).get(OUT + name)


@for_each(
    ("output", "text"),
    [
        ({"join": "key"}, b"memory://b/in/a.csv,3.0\nmemory://b/in/a.csv,7.0\nmemory://b/in/a.csv,11.0\n"),
        (
            {"join": "position", "header": True},
            b"object,member,record,line,output\n"
            + b"".join(
                b"memory://b/in/a.csv,,%d,%d,%d.0\n" % row for row in ((0, 1, 3), (1, 2, 7), (3, 6, 11))
            ),
        ),
        ({"join": "position", "output_filter": "$[2,-1]"}, b"0,3.0\n1,7.0\n3,11.0\n"),
    ],
)
def test_places_are_written_before_predictions(output, text):
    assert transformed(stores_of({"a.csv": ROWS}), "a.csv.out", format="csv", **output) == text


@for_each("run", [transform_sync, run_sync])
def test_json_lines_and_tables_have_named_columns(run):
    stores, preset = (
        stores_of({"a.csv": b"1,2\n"}),
        TransformSettings if run is transform_sync else StreamSettings,
    )
    where = {"destination": OUT} if run is transform_sync else {"output": OUT}
    name = {"jsonl": "a.csv.out", "parquet": "a.csv.out.parquet"}
    expected = {"object": f"{IN}a.csv", "member": "", "record": 0, "line": 1, "output": 3.0}
    for format in ("jsonl", "parquet"):
        settings = preset(output=OutputSettings(format=format, join="position"))
        run(IN, **where, model=Sum, stores=stores, settings=settings, overwrite=True)
        data = stores.for_uri(OUT).get(
            OUT + (name[format] if run is transform_sync else f"part-00000.{format}")
        )
        if format == "parquet":
            assert pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist() == [expected]
        else:
            assert data == (
                b'{"object":"memory://b/in/a.csv","member":"","record":0,"line":1,"output":3.0}\n'
            )


def test_whole_objects_are_named_instead_of_copied():
    stores = stores_of({"a.bin": b"\0\1,\n", "b.bin": b"xy"})
    settings = StreamSettings(read=ReadOptions(format="whole"), output=OutputSettings(join="input"))
    run_sync(IN, output=OUT, model=Size, stores=stores, settings=settings)
    assert stores.for_uri(OUT).get(OUT + "part-00000.csv") == (
        b"memory://b/in/a.bin,4\nmemory://b/in/b.bin,2\n"
    )


def test_retried_records_have_their_own_place():
    stores = stores_of({"a.csv": b"1,2\n3,4\n5,6\n"})
    Sum.refused = 3.0
    try:
        transformed(stores, "a.csv.out", join="position")
    finally:
        Sum.refused = -1.0
    assert retry_failed(OUT, model=Sum, stores=stores).exit_code == 0
    lines = stores.for_uri(OUT).get(OUT + "a.csv.out").splitlines()
    assert lines == [f"{IN}a.csv,,{n},{n + 1},{4.0 * n + 3}".encode() for n in range(3)]


def test_sampled_records_have_their_own_place():
    stores = stores_of({"a.csv": b"".join(b"%d,0\n" % n for n in range(200))})
    settings = StreamSettings(
        output=OutputSettings(join="position", header=False), subset=SubsetSettings(sample=0.2)
    )
    report = run_sync(IN, output=OUT, model=Sum, stores=stores, settings=settings)
    lines = stores.for_uri(OUT).get(OUT + "part-00000.csv").decode().splitlines()
    assert 0 < report.rows_out == len(lines) < 200
    for record, line, value in (text.split(",")[2:] for text in lines):
        assert (int(record), int(line)) == (float(value), float(value) + 1)


def test_output_with_the_name_of_a_place_is_refused():
    with pytest.raises(ConfigError, match="two columns of the output have the name 'line'"):
        transformed(stores_of({"a.csv": b"1,2\n"}), "a.csv.out", model=Clash, join="position")


@for_each(("join", "count"), [("key", 16), ("position", 1)])
def test_objects_with_positions_are_not_cut(join, count):
    settings = TransformSettings(output=OutputSettings(join=join), tasks=TaskSettings(task_bytes=64 << 20))
    planned = PlannedObject(ObjectInfo(IN + "a.csv", 1 << 30), "a.csv.out")
    assert len(make_plan([[planned]], settings).tasks) == count
