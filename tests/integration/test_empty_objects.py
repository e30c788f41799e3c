"""Objects without records: they fail nothing, and are counted as read."""

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import for_each
from integration.command import CommandResult, headrace, leftovers
from runs.support import tar

MODEL = """
from headrace import Model, TensorSpec

class Double(Model):
    max_batch_rows = 4
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)), TensorSpec("p", "FP64", (-1, 2)))

    def predict(self, x):
        return {"y": x[:, 0] * 2, "p": x}

class Undeclared(Model):
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        return {"y": x[:, 0] * 2}
"""
COMMANDS = ("stream", "transform")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test, with a model in it."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return tmp_path


def parquet_without_rows() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), out)
    return out.getvalue()


def score(
    command: str, objects: dict[str, bytes], *args: str, case: str = "", model: str = "Double"
) -> tuple[CommandResult, dict[str, bytes]]:
    """Run the command over a folder of these objects. Return its result and its published files."""
    source, output = Path(f"in{case}"), Path(f"out{case}")
    source.mkdir(exist_ok=True)
    for name, data in objects.items():
        (source / name).write_bytes(data)
    places = [f"{source}/", "--output", str(output)] if command == "stream" else [f"{source}/", str(output)]
    done = headrace(command, *places, "--model", f"model.py:{model}", "--json", *args)
    found = {p.name: p.read_bytes() for p in output.glob("*") if p.is_file() and p.name != "_report.json"}
    return done, found


EMPTY = {
    "nothing.csv": b"",
    "blank.csv": b"\n\r\n\n",
    "header.csv": b"a,b\n",
    "mark.csv": b"\xef\xbb\xbf",
    "nothing.tsv": b"",
    "nothing.jsonl": b"",
    "blank.jsonl": b"\n\r\n",
    "nothing.tfrecord": b"",
    "nothing.rec": b"",
    "none.parquet": parquet_without_rows(),
    "packed.csv.gz": gzip.compress(b"", mtime=0),
    "packed.jsonl.gz": gzip.compress(b"\n", mtime=0),
    "members.tar": tar({"1.csv": b"", "2.jsonl": b"\n"}),
}


@for_each("name", EMPTY)
@for_each("command", COMMANDS)
@for_each("workers", [(), ("--workers", "2", "--isolation", "thread")])
def test_object_without_records_is_a_complete_run(command, name, workers):
    case = f"-{command}-{name}-{len(workers)}"
    args = ["--header", "drop"] if name == "header.csv" else []
    done, found = score(command, {name: EMPTY[name]}, *args, *workers, case=case)
    assert (done.code, done.err) == (0, "")
    report = done.report
    assert (report["status"], report["records_in"], report["failures"]) == ("complete", 0, {})
    assert (report["objects"], report["objects_done"], report["objects_broken"]) == (1, 1, 0)
    assert found == ({} if command == "stream" else {f"{name}.out": b""})
    assert leftovers(Path(f"out{case}")) == ([] if command == "stream" else [f"{name}.out"])


def test_lines_without_records():
    for command, args in (("stream", ["--format", "line"]), ("transform", ["--split", "line"])):
        done, found = score(command, {"a.log": b"", "b.log": b"\n"}, *args, case=command)
        assert (done.code, done.report["records_in"], done.report["objects_done"]) == (0, 0, 2)
        assert found == ({} if command == "stream" else {"a.log.out": b"", "b.log.out": b""})


@for_each("command", COMMANDS)
def test_empty_objects_among_others(command):
    objects = {"a.csv": b"a,b\n", "b.csv": b"", "c.csv": b"a,b\n1,2\n", "d.csv": b"a,b"}
    done, found = score(command, objects, "--header", "names", case=command)
    assert (done.code, done.report["records_in"], done.report["objects_done"]) == (0, 1, 4)
    header = b"y,p_0,p_1\n"
    if command == "stream":
        assert found == {"part-00000.csv": header + b"2.0,1.0,2.0\n"}
    else:
        assert found == {
            "a.csv.out": header,
            "b.csv.out": header,
            "c.csv.out": header + b"2.0,1.0,2.0\n",
            "d.csv.out": header,
        }


@for_each(
    ("args", "expected"),
    [
        (["--header", "names"], b"y,p_0,p_1\n"),
        (["--header", "names", "--join", "input"], b'a;"b;c";y;p_0;p_1\n'),
        (["--header", "names", "--join", "input", "--output-filter", "$[0,-1]"], b"a;p_1\n"),
        (["--header", "names", "--no-output-header"], b""),
        (["--header", "drop"], b""),
        (["--header", "drop", "--output-header"], b"y;p_0;p_1\n"),
        (["--header", "drop", "--output-header", "--join", "input"], b""),
    ],
)
@for_each("command", COMMANDS)
@for_each("workers", [(), ("--workers", "2", "--isolation", "thread")])
def test_header_only_object_gets_the_header_of_its_output(command, args, expected, workers):
    case = f"-{command}-{abs(hash((*args, *workers)))}"
    if args == ["--header", "names"]:
        expected = expected.replace(b",", b";")
    done, found = score(command, {"a.csv": b'a;"b;c"\r\n'}, "--delimiter", ";", *args, *workers, case=case)
    assert (done.code, done.report["records_in"], done.report["out_bytes"]) == (0, 0, len(expected))
    if command == "stream":
        assert found == ({"part-00000.csv": expected} if expected else {})
        assert done.report["parts"] == len(found)
    else:
        assert found == {"a.csv.out": expected}


@for_each("command", COMMANDS)
def test_unknown_outputs_or_input_columns_give_no_header(command):
    none = {} if command == "stream" else {"a.csv.out": b""}
    for number, (data, model, args) in enumerate(
        [
            (b"a,b\n", "Undeclared", ["--header", "names"]),
            (b"", "Double", ["--header", "names", "--join", "input"]),
        ]
    ):
        done, found = score(command, {"a.csv": data}, *args, model=model, case=f"{command}{number}")
        assert (done.code, found) == (0, none)


@for_each("output_format", ["parquet", "arrow"])
def test_tables_of_objects_without_records_have_their_columns(output_format):
    case = f"-{output_format}"
    done, found = score("transform", {"a.csv": b""}, "--accept", output_format, case=case)
    assert done.code == 0
    data = io.BytesIO(found[f"a.csv.out.{output_format}"])
    table = pq.read_table(data) if output_format == "parquet" else pa.ipc.open_file(data).read_all()
    assert (table.num_rows, table.column_names) == (0, ["y", "p"])


@for_each("command", COMMANDS)
def test_header_of_an_empty_run_stays_when_it_is_resumed(command):
    objects = {"a.csv": b"a,b\n"}
    _, found = score(command, objects, "--header", "names", case=command)
    done, again = score(command, objects, "--header", "names", "--resume", case=command)
    assert (done.code, again) == (0, found)
    done, again = score(command, objects, "--header", "names", "--overwrite", case=command)
    assert (done.code, again) == (0, found)


@for_each("data", [b"", b"\n"])
@for_each("command", COMMANDS)
def test_json_document_without_text_is_a_failed_record(command, data):
    case = f"{command}{len(data)}"
    done, _ = score(command, {"a.json": data}, case=case)
    assert (done.code, done.report["records_in"], done.report["rows_failed"]) == (3, 1, 1)


@for_each("name", ["a.csv.gz", "a.parquet"])
@for_each("command", COMMANDS)
def test_container_without_bytes_is_broken(command, name):
    done, _ = score(command, {name: b""}, case=f"{command}-{len(name)}")
    assert (done.code, done.report["objects_broken"]) == (1, 1)


def test_source_without_objects_is_still_an_error():
    done = headrace("stream", "none/", "--model", "model.py:Double", "--output", "out")
    assert (done.code, done.error) == (
        1,
        "none/: no object has this prefix; check the spelling and the bucket",
    )
