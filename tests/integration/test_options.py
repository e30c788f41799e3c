"""Options of ``headrace stream`` for selection, mapping and output, as a user types them."""

import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from integration.command import DOUBLE, CommandResult, contents, failures, headrace, leftovers, predictions

OUT = Path("out")

UPPER = """
from headrace import Model, TensorSpec

class Upper(Model):
    inputs = (TensorSpec("text", "BYTES", (-1,)),)

    def predict(self, text):
        return [t.upper() for t in text]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("double.py").write_text(DOUBLE)
    Path("upper.py").write_text(UPPER)
    return tmp_path


def put(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def score(*args: str, model: str = "double.py") -> CommandResult:
    done = headrace("stream", *args, "--model", model, "--output", OUT, "--json")
    assert done.code in (0, 3), done.err
    assert leftovers(OUT) == []
    return done


def test_module_of_the_current_folder_is_a_model(monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    Path("here_alone.py").write_text(DOUBLE)
    score(put("a.csv", "1,1\n"), model="here_alone:Double")
    assert predictions(OUT) == b"2.0\n"


NAMED = 'id,a,b,note\nr1,1,10,"x, y"\nr2,2,20,z\n'


@pytest.mark.parametrize(
    ("columns", "header", "wanted"),
    [
        ("a,b", "names", b"output\n2.0\n4.0\n"),
        ("b,a", "names", b"output\n20.0\n40.0\n"),
        ("1-2", "names", b"output\n2.0\n4.0\n"),
        ("2,1", "drop", b"20.0\n40.0\n"),
    ],
)
def test_columns_by_name_and_by_index(columns, header, wanted):
    score(put("a.csv", NAMED), "--header", header, "--columns", columns)
    assert predictions(OUT) == wanted


def test_output_has_a_header_on_request():
    put("a.csv", NAMED)
    score("a.csv", "--header", "names", "--columns", "a,b", "--no-output-header")
    assert predictions(OUT) == b"2.0\n4.0\n"
    score("a.csv", "--header", "drop", "--columns", "1,2", "--output-header", "--overwrite")
    assert predictions(OUT) == b"output\n2.0\n4.0\n"


def test_join_keeps_the_input_line_unchanged():
    score(put("a.csv", NAMED), "--header", "names", "--columns", "a,b", "--join", "input")
    assert predictions(OUT) == b'id,a,b,note,output\nr1,1,10,"x, y",2.0\nr2,2,20,z,4.0\n'


@pytest.mark.parametrize(("header", "column"), [("names", "note"), ("drop", "3")])
def test_text_column_of_csv(header, column):
    score(
        put("a.csv", NAMED), "--header", header, "--text-column", column, "--output-format", "jsonl",
        model="upper.py",
    )  # fmt: skip
    assert [json.loads(x) for x in predictions(OUT, "jsonl").splitlines()] == [
        {"output": "X, Y"},
        {"output": "Z"},
    ]


def test_text_field_of_json_lines_joined_with_its_input():
    put("a.jsonl", '{"id": 1, "body": {"text": "grüezi"}}\n{"id": 2, "body": {}}\nnot json\n')
    done = score(
        "a.jsonl",
        "--text-column",
        "body.text",
        "--output-format",
        "jsonl",
        "--join",
        "input",
        model="upper.py",
    )
    assert done.code == 3
    (line,) = predictions(OUT, "jsonl").splitlines()
    assert json.loads(line) == {"input": {"id": 1, "body": {"text": "grüezi"}}, "output": "GRÜEZI"}
    assert [(f["record"], f["line"]) for f in failures(OUT)] == [(1, 2), (2, 3)]


def test_fields_of_json_lines_by_name():
    put("a.jsonl", '{"p": 1, "q": 2}\n{"p": 3, "q": 4}\n')
    score("a.jsonl", "--columns", "q,p")
    assert predictions(OUT) == b"4.0\n8.0\n"


def test_first_line_that_is_not_json_fails_alone():
    """It must not determine how the other lines are read."""
    put("a.jsonl", 'oops\n{"x": [1, 2]}\n{"x": [3, 4]}\n')
    done = score("a.jsonl")
    assert predictions(OUT) == b"2.0\n6.0\n"
    assert done.report["rows_failed"] == 1


def test_parquet_has_typed_columns_of_records_and_outputs():
    pq = pytest.importorskip("pyarrow.parquet")
    score(put("a.csv", "1,2\n3,4\n"), "--output-format", "parquet", "--join", "input")
    table = pq.read_table(OUT / "part-00000.parquet")
    assert table.column("output").to_pylist() == [2.0, 6.0]
    assert str(table.schema.field("output").type) == "float"
    assert table.select(["0", "1"]).to_pylist() == [{"0": 1, "1": 2}, {"0": 3, "1": 4}]
    assert str(table.schema.field("0").type) == "int64"


def test_delimiter_comes_from_the_name_or_the_option():
    put("in/a.tsv", "1\t2\n")
    put("in/b.csv", "3,4\n")
    score("in/")
    assert predictions(OUT) == b"2.0\n6.0\n"
    put("c.txt", "5\t6\n")
    score("c.txt", "--delimiter", r"\t", "--overwrite")
    assert predictions(OUT) == b"10.0\n"


# Selection


@pytest.fixture
def sources() -> None:
    for number, name in enumerate(["in/a.csv", "in/b/a.csv", "in/b/c.csv", "in/d.csv", "in/skip.txt"]):
        put(name, f"{number},0\n")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (["in/a.csv"], [0]),
        (["in/"], [0, 1, 2, 3, 4]),
        (["in"], [0, 1, 2, 3, 4]),
        (["in/b/"], [1, 2]),
        (["in/*.csv"], [0, 1, 2, 3]),
        (["in/?.csv"], [0, 3]),
        (["in/[bc]/*"], [1, 2]),
        (["in/d.csv", "in/b/", "in/d.csv"], [3, 1, 2]),
        (["manifest:list.txt"], [3, 0]),
        (["manifest:list.json"], [2, 1]),
    ],
)
def test_objects_are_selected_by_name_prefix_glob_or_manifest(sources, source, wanted):
    put("list.txt", "# two\nin/d.csv\n\nin/a.csv\n")
    put("list.json", '[{"prefix": "in/b/"}, "c.csv", "a.csv"]')
    done = score(*source)
    assert predictions(OUT) == b"".join(b"%.1f\n" % (2.0 * n) for n in wanted)
    assert done.report["objects_read"] == len(wanted)


# Logs


def test_v_logs_the_steps_of_a_run():
    put("in/a.csv", "1,0\n")
    put("in/b.csv.gz", "no gzip")
    done = headrace("stream", "in/", "--model", "double.py", "--output", OUT, "-v", "--log-format", "json")
    assert done.code == 1
    logged = [json.loads(line) for line in done.err.splitlines()]
    assert [line["message"] for line in logged if not line["message"].startswith("object broken")] == [
        "run started",
        "part published",
        "run complete",
    ]
    (broken,) = [line for line in logged if line["message"].startswith("object broken: in/b.csv.gz: ")]
    assert broken["at"].startswith("in/b.csv.gz, record 0")
    assert {line["level"] for line in logged} == {"info"}
    assert logged[-1]["records_in"] == 1


# Watching


def test_watch_predicts_new_objects_once_until_ctrl_c():
    put("in/a.csv", "1,0\n2,0\n")
    command = [
        sys.executable, "-m", "headrace", "stream", "in/", "--model", "double.py", "--output", "out",
        "--watch", "--poll-s", "0.02", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert next_report(process)["records_in"] == 2
        put("in/b.csv", "3,0\n")
        assert next_report(process)["records_in"] == 3
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert predictions(OUT) == b"2.0\n4.0\n6.0\n"
    before = contents(OUT)

    put("in/c.csv", "oops,0\n4,0\n")
    with subprocess.Popen(
        [*command, "--resume"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        report = next_report(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 3, err
    assert (report["records_in"], report["rows_failed"], report["resumed"]) == (5, 1, True)
    assert report["objects_read"] == 3
    assert contents(OUT).items() > before.items()
    assert predictions(OUT) == b"2.0\n4.0\n6.0\n8.0\n"


def next_report(process: subprocess.Popen[str]) -> dict:
    while line := process.stdout.readline():
        event = json.loads(line)
        if event["event"] == "report":
            return event
    raise AssertionError(process.stderr.read())


# Sequences

SUM = """
import numpy as np
from headrace import Model, TensorSpec

class Sum(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 1)),)

    def step(self, states, x):
        total = states.stack("total", (1,)) + x
        states.keep("total", total)
        return total[:, 0]
"""
VISITS = "user,spent,left\na,1,\nb,2,\na,3,true\nb,4,0\na,5,\n"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--sequence", "user", "--columns", "spent", "--sequences-live-max", "2"), [1, 2, 4, 6, 9]),
        (("--sequence", "user", "--sequence-end", "left"), [1, 2, 4, 6, 5]),
        (("--sequence", "0", "--sequence-end", "2"), [1, 2, 4, 6, 5]),
        (("--sequence", "@object", "--columns", "spent"), [1, 3, 6, 10, 15]),
        (("--columns", "spent"), [1, 2, 3, 4, 5]),
    ],
)
def test_state_belongs_to_its_sequence(options, wanted):
    Path("sum.py").write_text(SUM)
    done = score(put("a.csv", VISITS), "--header", "names", *options, model="sum.py")
    assert [float(v) for v in predictions(OUT).split()[1:]] == wanted
    assert done.report["records_replayed"] == 0


def test_members_of_an_archive_are_sequences():
    Path("sum.py").write_text(SUM)
    with tarfile.open("days.tar", "w") as archive:
        for day, text in (("mon", "1\n2\n"), ("tue", "3\n"), ("wed", "4\n5\n")):
            archive.add(put(f"{day}.csv", text))
    score("days.tar", "--sequence", "@member", model="sum.py")
    assert [float(v) for v in predictions(OUT).split()] == [1, 3, 3, 4, 9]


def test_fields_of_json_lines_name_sequences():
    Path("sum.py").write_text(SUM)
    lines = ['{"who":{"id":7},"x":[1]}', '{"who":{"id":"b"},"x":[2]}', '{"who":{"id":7},"x":[3],"bye":true}']
    score(
        put("a.jsonl", "\n".join([*lines, lines[0]])),
        "--sequence",
        "who.id",
        "--sequence-end",
        "bye",
        model="sum.py",
    )
    assert [float(v) for v in predictions(OUT).split()] == [1, 2, 4, 1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--model", "sum.py", "--sequence-end", "x"), "--sequence-end requires --sequence"),
        (("--model", "sum.py", "--sequences-live-max", "3"), "--sequences-live-max requires"),
        (
            ("--endpoint", "http://h/v2/models/m", "--sequence", "0"),
            "--sequence requires --model",
        ),
        (("--model", "sum.py", "--sequence", "@objects"), "neither a column"),
        (("--model", "sum.py", "--sequence", "@object", "--sequence-end", "1"), "cannot be combined"),
    ],
)
def test_impossible_sequence_options_are_wrong_usage(options, why):
    done = headrace("stream", put("a.csv", "1\n"), "--output", OUT, *options)
    assert done.code == 2
    assert why in " ".join(done.err.split())
    assert not OUT.exists()


def test_model_without_a_step_has_no_sequences():
    done = headrace(
        "stream", put("a.csv", "1,2\n"), "--model", "double.py", "--sequence", "0", "--output", OUT, "--quiet"
    )
    assert done.code == 1
    assert "model double declares no step" in done.error
