"""Runs over sources whose first records, first objects or headers are unusual; schema files; inspect."""

import json

import orjson
import pytest
from click.testing import CliRunner

import headrace
from cases import for_each
from headrace.app.runs import dry_run, inspect_source, retry_failed, run_sync, transform_sync
from headrace.app.stream import stream
from headrace.cli.main import main
from headrace.core.errors import ConfigError, ResumeRefusedError
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.ledger import Ledger
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import MappingOptions, StreamSettings, TransformSettings
from headrace.storage.resolve import Stores

IN, OUT = "memory://b/in/", "memory://b/out/"
THREE = b"1,2,3\n" * 1000


class Sum(Model):
    """The sum of any number of columns."""

    def predict(self, x):
        return x.reshape(len(x), -1).sum(axis=1)


class Field(Model):
    """The sum of a field of any length."""

    inputs = (TensorSpec("f", "FP64"),)

    def predict(self, f):
        return f.sum(axis=1)


class Named(Model):
    """The difference of two named columns."""

    inputs = (TensorSpec("b", "FP64", (-1,)), TensorSpec("a", "FP64", (-1,)))

    def predict(self, b, a):
        return b - a


def stores_of(objects: dict[str, bytes]) -> Stores:
    stores = Stores()
    for name, content in objects.items():
        stores.for_uri(IN).put(IN + name, content)
    return stores


def counts(objects: dict[str, bytes], model=Sum, **settings) -> list[tuple[int, int]]:
    """Return the predicted and the failed rows of a transform and of a stream; both end with their report."""
    found = []
    for run, preset in ((transform_sync, TransformSettings), (run_sync, StreamSettings)):
        stores = stores_of(objects)
        where = {"destination": OUT} if run is transform_sync else {"output": OUT}
        report = run(IN, **where, model=model, stores=stores, settings=preset(**settings))
        assert report.status == "complete"
        found.append((report.rows_out, report.rows_failed))
    with stream(IN, model=model, stores=stores_of(objects), settings=StreamSettings(**settings)) as outcomes:
        ok = [outcome.ok for outcome in outcomes]
    assert found[0] == found[1] == (ok.count(True), ok.count(False))
    return found[0]


@for_each("first", [b"1,2\n", b"# comment\n", b"a\rb\n", b'"' + b"x" * 140_000 + b'"\n'])
def test_unusual_first_record_costs_one_record(first):
    others = {"b.csv": b"4,5,6\n" * 10, "c.csv": b"7,8,9\n" * 10}
    assert counts({"a.csv": first + THREE} | others) == (1020, 1)


def test_unusual_first_json_record_costs_one_record():
    lines = b'{"f":["x"]}\n' + b'{"f":[1,2]}\n' * 1000
    assert counts({"a.jsonl": lines}, Field) == (1000, 1)
    assert counts({"a.jsonl": b'{"f":[1]}\n' + lines}, Field) == (1000, 2)


def test_first_object_without_the_filtered_field_fails_alone():
    objects = {"a.jsonl": b'{"g":[1,2]}\n'} | {f"{n}.jsonl": b'{"f":[1,2]}\n' * 3 for n in "bcd"}
    assert counts(objects, mapping=MappingOptions(input_filter="$.f")) == (9, 1)


def test_objects_of_two_delimiters_have_one_schema():
    objects = {"a.csv": b"1,2,3\n" * 3, "b.tsv": b"4\t5\t6\n" * 9, "c.tsv": b"4\t5\t6\n" * 9}
    assert counts(objects) == (21, 0)


def test_unusual_first_object_costs_its_own_records():
    objects = {"a.csv": b"1,2\n" * 5} | {f"{n}.csv": b"1,2,3\n" * 5 for n in "bcd"}
    assert counts(objects) == (15, 5)


def test_header_is_found_in_each_object():
    objects = {
        "a.csv": b"a,b,id\n1,5,x\n2,7,y\n",
        "b.csv": b"b,a,id\n5,1,x\n",
        "c.csv": b"9,10,z\n",
        "d.csv": b"a,b,id\n",
    }
    assert counts(objects, Named) == (4, 0)


class First(Model):
    """The first of two columns."""

    def predict(self, x):
        return x[:, 0]


@for_each("header", ["auto", "names"])
def test_columns_keep_their_meaning_in_files_of_another_order(header):
    objects = {"a.csv": b"p,q\n1,2\n", "b.csv": b"q,p\n4,3\n", "c.csv": b"p,q\n5,6\n"}
    stores = stores_of(objects)
    settings = StreamSettings(read=ReadOptions(header=header), output=OutputSettings(header=False))
    run_sync(IN, output=OUT, model=First, stores=stores, settings=settings)
    assert stores.for_uri(OUT).get(OUT + "part-00000.csv") == b"1.0\n3.0\n5.0\n"


def test_headers_may_be_read_as_data():
    assert counts({"a.csv": b"p,q\n1,2\n"}, read=ReadOptions(header="none")) == (1, 1)


def test_found_header_is_written_beside_predictions():
    stores = stores_of({"a.csv": b"p,q\n1,2\n"})
    settings = TransformSettings(output=OutputSettings(join="input"))
    transform_sync(IN, OUT, model=Sum, stores=stores, settings=settings)
    assert stores.for_uri(OUT).get(OUT + "a.csv.out").splitlines()[0] == b"p,q,output"


def test_schema_is_shown_and_stored():
    stores = stores_of({"a.csv": b"p,q\n1,2.5\n,4\n"})
    found = dry_run(IN, OUT, model=Sum, stores=stores)
    line = "csv, 2 columns: p integer, q number (from 2 records)"
    assert found.trial.schema.text() == line
    report = transform_sync(IN, OUT, model=Sum, stores=stores)
    assert report.schema == report.figures()["schema"] == line
    assert orjson.loads(stores.for_uri(OUT).get(OUT + "_report.json"))["schema"] == line
    assert Ledger(stores.for_uri(OUT), OUT).schema() == found.trial.schema


def with_schema(stores: Stores, **column) -> str:
    """Store a schema file with three columns and return its URI."""
    uri = "memory://b/schema.json"
    document = {"formats": [{"format": "csv", "columns": [column] * 3}]}
    stores.for_uri(uri).put(uri, json.dumps(document).encode())
    return uri


@for_each("run", [transform_sync, run_sync])
def test_retry_with_a_schema_repairs_a_run(run):
    stores = stores_of({"a.csv": b"1,2\n" * 5 + b"1,2,3\n" * 3})
    where = {"destination": OUT} if run is transform_sync else {"output": OUT}
    assert run(IN, **where, model=Sum, stores=stores).rows_failed == 3
    report = retry_failed(OUT, model=Sum, stores=stores, schema=with_schema(stores))
    assert (report.rows_out, report.rows_failed) == (8, 0)


def test_resumed_run_takes_another_schema():
    stores = stores_of({"a.csv": b"1,2\n" * 5 + b"1,2,3\n" * 3, "b.csv": b"1,2,3\n" * 2})

    class StopsAtFirst(Sum):
        stopped = False

        def predict(self, x):
            if not StopsAtFirst.stopped:
                StopsAtFirst.stopped = True
                raise headrace.ModelError("stopped")
            return super().predict(x)

    settings = TransformSettings(schema=with_schema(stores))
    transform_sync(IN, OUT, model=Sum, stores=stores)
    ledger = Ledger(stores.for_uri(OUT), OUT)
    ledger.reopen()
    transform_sync(IN, OUT, model=Sum, stores=stores, settings=settings, resume=True)
    assert len(ledger.schema().formats[0].columns) == 3
    named = TransformSettings(schema=with_schema(stores, name="p"))
    with pytest.raises(ResumeRefusedError, match="the columns of CSV have other names"):
        transform_sync(IN, OUT, model=Sum, stores=stores, settings=named, resume=True)


def test_strict_run_is_refused_before_it_writes():
    stores = stores_of({"a.csv": b"1,2\n" + THREE})
    with pytest.raises(ConfigError, match=r"the schema is strict, but 99.9 % of 1,000 sampled records"):
        transform_sync(IN, OUT, model=Sum, stores=stores, settings=TransformSettings(schema="strict"))
    assert list(stores.for_uri(OUT).list(OUT)) == []


# Inspect


def inspect(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["inspect", *arguments])
    return done.exit_code, done.output


def test_inspect_shows_schema_sample_and_records(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1,2\n" + THREE)
    code, text = inspect(f"{tmp_path}/a.csv")
    assert code == 3
    assert "csv, 3 columns: integer (from 1,000 records)" in text
    assert "99.9 % of 1,000 sampled records of 1 object decode; the first that does not is" in text
    assert "a.csv, record 0, line 1, byte 0: has 2 columns, 3 expected" in text
    assert "column 2 = 3 (int64)" in text


def test_inspect_reads_inputs_of_a_model(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,5\n2,7\n")
    (tmp_path / "m.py").write_text(
        "from headrace import Model\n\nclass M(Model):\n    def predict(self, x):\n        return x\n"
    )
    code, text = inspect(f"{tmp_path}/a.csv", "--model", f"{tmp_path}/m.py", "--columns", "b", "--json")
    found = json.loads(text)
    assert (code, found["exit_code"], found["sample"]["decoded"]) == (0, 0, 2)
    assert found["records"][0]["inputs"] == {"x": {"shape": [1], "data": [5.0]}}
    assert [c["name"] for c in found["schema"]["formats"][0]["columns"]] == ["a", "b"]


def test_saved_schema_can_be_given(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,5\n2,7\n")
    file = tmp_path / "schema.json"
    assert inspect(f"{tmp_path}/a.csv", "--save-schema", str(file))[0] == 0
    code, text = inspect(f"{tmp_path}/a.csv", "--schema", str(file))
    assert (code, "a integer, b integer" in text) == (0, True)
    file.write_text("{}}")
    code, text = inspect(f"{tmp_path}/a.csv", "--schema", str(file))
    assert (code, "schema.json: not a schema" in text) == (1, True)


def test_inspect_without_objects_or_records(tmp_path):
    code, text = inspect(f"{tmp_path}/")
    assert (code, "error:" in text) == (1, True)
    (tmp_path / "a.csv").write_bytes(b"")
    assert inspect_source(f"{tmp_path}/a.csv").text() == "no records in the sampled objects"
