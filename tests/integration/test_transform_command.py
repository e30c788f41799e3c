"""``headrace transform`` as a new user would type it: what it says, exits with, and leaves behind."""

import bz2
import csv
import gzip
import io
import json
import signal
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from integration.command import DOUBLE, headrace
from integration.transforming import command, failed, leftovers, outputs, run

ROWS = 10


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of ten rows, in a folder of a folder, and a model, where the command runs."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(DOUBLE)
    for number in range(3):
        path = Path(f"in/day-{number}/rows.csv")
        path.parent.mkdir(parents=True)
        path.write_text(rows(number))
    return tmp_path


def rows(number: int) -> str:
    return "".join(f"{number * 100 + row},1\n" for row in range(ROWS))


def doubled(number: int) -> bytes:
    return "".join(f"{2.0 * (number * 100 + row)}\n" for row in range(ROWS)).encode()


def transform(*more: str | Path):
    return headrace("transform", "in/", "out/", "--model", "model.py", *more)


# The plain run


def test_a_prefix_becomes_one_predictions_file_for_each_object():
    done = run("in/", "out/", "--model", "model.py")
    assert done.code == 0, done.err
    assert outputs(Path("out")) == {f"day-{n}/rows.csv.out": doubled(n) for n in range(3)}
    said = dict(line.split("  ", 1) for line in done.out.splitlines())
    assert said["predictions"].strip() == "out/ (3 objects)"
    assert said["records in"].strip() == "30 = 30 out + 0 failed"
    assert said["status"].strip() == "complete"
    report = json.loads(Path("out/_report.json").read_text())
    assert (report["status"], report["records_in"], report["exit_code"]) == ("complete", 30, 0)
    assert leftovers(Path("out")) == []


def test_json_says_nothing_but_events():
    done = run("in/", "out/", "--model", "model.py", "--json")
    assert done.code == 0
    assert {line["event"] for line in done.lines[:-1]} <= {"progress"}
    report = done.report
    on_disk = json.loads(Path("out/_report.json").read_text())
    assert {**on_disk, "event": "report"} == report
    assert (report["objects"], report["rows_out"], report["model_calls"]) == (3, 30, 8)


def test_failed_records_stand_beside_the_output_and_exit_with_3():
    Path("in/day-1/rows.csv").write_text("1,1\nx,1\n3,1\n4\n5,1\n")
    done = transform()
    assert done.code == 3
    assert Path("out/day-1/rows.csv.out").read_bytes() == b"2.0\n6.0\n10.0\n"
    first, second = failed(Path("out/day-1/rows.csv.out.failed"))
    assert (first["line"], first["byte"], first["raw"], first["output_row"]) == (2, 4, "x,1", 1)
    assert (second["line"], second["byte"], second["raw"], second["output_row"]) == (4, 12, "4", 2)
    assert "25 = 23 out + 2 failed" in done.out
    assert "in/day-1/rows.csv" in done.out
    assert outputs(Path("out")).keys() == {
        *(f"day-{n}/rows.csv.out" for n in range(3)),
        "day-1/rows.csv.out.failed",
    }


def test_strict_gives_an_object_with_a_failed_record_no_output():
    Path("in/day-1/rows.csv").write_text("1,1\nx,1\n3,1\n")
    done = transform("--strict", "--json")
    assert done.code == 1
    assert outputs(Path("out")).keys() == {
        "day-0/rows.csv.out",
        "day-1/rows.csv.out.failed",
        "day-2/rows.csv.out",
    }
    last = done.lines[-1]
    assert (last["status"], last["objects_withheld"], last["rows_out"]) == ("failed", 1, 20)
    assert last["records_in"] == last["rows_out"] + last["rows_failed"] + last["rows_withheld"]


@pytest.mark.parametrize(
    ("bad", "most", "code"), [(15, "1%", 3), (25, "1%", 1), (25, "25", 3), (25, "24", 1)]
)
def test_max_failed_is_a_share_or_a_count(bad, most, code):
    lines = [f"{'x' if row < bad else row},1\n" for row in range(2_000)]
    Path("in/day-1/rows.csv").write_text("".join(lines[::-1]))
    done = transform("--max-failed", most, "--json")
    assert done.code == code, done.out
    if code == 1:
        assert done.lines[-1]["type"] == "TooManyFailuresError"
        assert not Path("out/_report.json").exists()


# Before anything runs


def test_a_dry_run_shows_the_plan_and_what_the_model_would_see_and_writes_nothing():
    Path("in/day-0/rows.csv").write_text('1,"2"\nx,3\n')
    done = transform("--dry-run")
    assert done.code == 0
    for words in (
        "3, ",  # objects
        "in/day-0/rows.csv → day-0/rows.csv.out",
        '1,"2"',
        "x = [1, 2] (float32, 2)",
        "would fail",
        "record 3",
    ):
        assert words in done.out, done.out
    assert not Path("out").exists()


def test_a_dry_run_as_json():
    done = transform("--dry-run", "--json", "--input-filter", "$[1:]", "--model", "text.py")
    assert done.code == 1  # there is no text.py
    done = transform("--dry-run", "--json")
    (plan,) = done.lines
    assert plan["event"] == "dry-run"
    assert [o["output"] for o in plan["objects"]] == [f"day-{n}/rows.csv.out" for n in range(3)]
    assert plan["size_bytes"] == sum(len(rows(n)) for n in range(3))
    assert plan["records"][1]["inputs"] == {"x": {"shape": [2], "data": [1.0, 1.0]}}
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give SOURCE and DEST"),
        (["in/"], "give SOURCE and DEST"),
        (["in/", ""], "SOURCE or DEST is empty"),
        (["in/", "out"], "give either --model or --endpoint"),
        (["in/", "out", "--model", "m.py", "--endpoint", "http://h/m"], "give either --model or --endpoint"),
        (["in/", "in/day-0/rows.csv", "--model", "model.py"], "is a file: name a folder"),
        (["in/", "out", "--model", "model.py", "--resume", "--overwrite"], "contradict each other"),
        (["in/", "out", "--model", "model.py", "--join", "sideways"], "'sideways' is not one of"),
        (["in/", "out", "--model", "model.py", "--workers", "0"], "0 is not in the range"),
        (["in/", "out", "--model", "model.py", "--task-bytes", "much"], "much"),
        (["in/", "out", "--model", "model.py", "--max-failed", "lots"], "--max-failed: 'lots' is neither"),
        (["in/", "out", "--model", "model.py", "--input-filter", "$["], "JSONPath '$['"),
        (["in/", "out", "--model", "model.py", "--accept", "arrow", "--output-filter", "$[0]"], "accept is arrow"),
        (["in/", "out", "--modl", "model.py"], "No such option"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_in_plain_words(args, words):
    done = headrace("transform", *args)
    assert done.code == 2, done.out + done.err
    assert words in " ".join(done.err.split())
    assert "the command line:" not in done.err
    assert done.out == ""
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere/", "out", "--model", "model.py"], "nowhere/: no object has this prefix"),
        (["in/", "out", "--model", "nomodel.py"], "nomodel.py: its file cannot be read"),
        (["in/", "in/out", "--model", "model.py"], "a transform must not read what it writes"),
        (["in/", "out", "--model", "model.py", "--input-filter", "$[7]"], "7"),
        (["in/", "out", "--model", "model.py", "--accept", "text"], "accept text"),
        (["in/", "out", "--spec", "none.json"], "none.json: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_written(args, words):
    done = headrace("transform", *args)
    assert done.code == 1, done.out + done.err
    assert words in done.error
    # An output of a record cannot be judged before it is there; all else can.
    assert outputs(Path("out")) == {} if "text" in args else not Path("out").exists()


# A spec in the vendor's words


def test_a_job_as_the_vendor_has_it_runs_here():
    job = {
        "TransformJobName": "nightly",
        "ModelName": "model.py",
        "BatchStrategy": "MultiRecord",
        "MaxConcurrentTransforms": 4,
        "MaxPayloadInMB": 6,
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "in/day"}},
            "ContentType": "text/csv",
            "SplitType": "Line",
        },
        "TransformOutput": {"S3OutputPath": "out/", "Accept": "text/csv", "AssembleWith": "Line"},
        "DataProcessing": {"InputFilter": "$[1:]", "JoinSource": "Input", "OutputFilter": "$[0,-1]"},
    }
    for number in range(3):
        path = Path(f"in/day-{number}/rows.csv")
        path.write_text(
            "".join(f'"id, {row}",{line}\n' for row, line in enumerate(path.read_text().splitlines()))
        )
    Path("job.json").write_text(json.dumps(job))
    done = headrace("transform", "--spec", "job.json", "--model", "model.py", "--json")
    assert done.code == 0, done.out + done.err
    found = outputs(Path("out"))
    assert found.keys() == {f"day-{n}/rows.csv.out" for n in range(3)}
    read = list(csv.reader(io.StringIO(found["day-2/rows.csv.out"].decode())))
    assert read == [[f"id, {row}", f"{2.0 * (200 + row)}"] for row in range(ROWS)]

    job["DataProcessing"]["OutputFilter"] = "$["
    Path("job.json").write_text(json.dumps(job))
    done = headrace("transform", "--spec", "job.json", "--model", "model.py")
    assert done.code == 1
    assert done.error.startswith("job.json: ")
    assert "OutputFilter" in done.error or "$[" in done.error


# A destination that is not empty


def test_what_is_there_is_refused_resumed_or_overwritten_and_foreign_files_stay():
    Path("out/day-0").mkdir(parents=True)
    Path("out/day-0/mine.txt").write_text("mine")
    Path("out/README").write_text("mine too")
    assert transform().code == 0
    refused = transform()
    assert refused.code == 1
    assert "--resume" in refused.error
    assert "--overwrite" in refused.error
    finished = transform("--resume", "--json")
    assert (finished.code, finished.report["rows_out"]) == (0, 30)

    Path("in/day-1/rows.csv").unlink()
    assert transform("--overwrite").code == 0
    assert outputs(Path("out")) == {
        "day-0/rows.csv.out": doubled(0),
        "day-2/rows.csv.out": doubled(2),
        "day-0/mine.txt": b"mine",
        "README": b"mine too",
    }


# Ctrl-C

WAITING = """
import os, sys, time
from headrace import Model, TensorSpec

class Waiting(Model):
    max_batch_rows = 10
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    calls = 0

    def predict(self, x):
        self.calls += 1
        if self.calls == 21 and os.path.exists("ask"):
            os.rename("ask", "asked")
            print("READY", file=sys.stderr, flush=True)
            while not os.path.exists("go"):
                time.sleep(0.002)
        return x[:, 0] * 2
"""


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_ctrl_c_keeps_what_is_finished_and_resuming_ends_with_the_undisturbed_bytes(isolation):
    Path("model.py").write_text(WAITING)
    for number in range(40):
        Path(f"in/{number:02d}.csv").write_text("".join(f"{number * 100 + row},1\n" for row in range(25)))
    Path("in/large.csv").write_text("".join(f"{row},1\n" for row in range(2_000)))
    given = ["--model", "model.py", "--isolation", isolation, "--task-bytes", "1k", "--json"]
    undisturbed = run("in/", "undisturbed", *given)
    assert undisturbed.code == 0
    expected = outputs(Path("undisturbed"))

    Path("ask").write_text("")
    with subprocess.Popen(
        command("in/", "out", *given), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = until(process, "READY")
        process.send_signal(signal.SIGINT)
        said += until(process, "stopping: what is under way is delivered; again to stop at once")
        Path("go").write_text("")
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, said + err
    report = json.loads(out.splitlines()[-1])
    assert (report["status"], report["exit_code"]) == ("drained", 130)
    assert not Path("out/_report.json").exists()
    before = outputs(Path("out"))
    assert 0 < len(before) < len(expected)
    assert before.items() <= expected.items()

    resumed = run("in/", "out", *given, "--resume")
    assert resumed.code == 0, resumed.err
    assert outputs(Path("out")) == expected
    assert resumed.report["resumed"]
    # Nothing was asked twice.
    assert report["model_calls"] >= 15
    assert resumed.report["model_calls"] == undisturbed.report["model_calls"] - report["model_calls"]
    assert leftovers(Path("out")) == []


def until(process: subprocess.Popen[str], line: str) -> str:
    said = ""
    while not said.endswith(f"{line}\n"):
        more = process.stderr.readline()
        assert more, said + process.stdout.read()
        said += more
    return said


# What comes in, and what goes out


def test_packed_objects_and_archives_are_read_by_their_names():
    text = rows(7).encode()
    packed = {
        "a.csv.gz": gzip.compress(text),
        "a.csv.bz2": bz2.compress(text),
        "a.csv.zst": zstandard.compress(text),
        "a.tar": tar_of({"x/1.csv": text, "x/2.csv": rows(8).encode()}),
        "a.tar.gz": gzip.compress(tar_of({"1.csv": text})),
        "a.tsv": text.replace(b",", b"\t"),
    }
    for name, data in packed.items():
        Path("in", name).write_bytes(data)
    assert transform().code == 0
    found = outputs(Path("out"))
    assert found.pop("a.tar.out") == doubled(7) + doubled(8)
    for name in packed.keys() - {"a.tar"}:
        assert found[f"{name}.out"] == doubled(7), name


def tar_of(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


IMAGES = """
from headrace import Model, TensorSpec

class Brightness(Model):
    max_batch_rows = 4
    inputs = (TensorSpec("x", "FP32", (-1, 3, 8, 8)),)

    def predict(self, x):
        return {"mean": x.mean(axis=(1, 2, 3)), "red": x[:, 0].mean(axis=(1, 2))}
"""


def test_a_folder_of_images_with_one_that_is_none():
    Path("images").mkdir()
    Path("bright.py").write_text(IMAGES)
    for number in range(9):
        Image.new("RGB", (20, 10), (number * 20, 0, 0)).save(f"images/{number}.png")
    Path("images/broken.png").write_bytes(b"no image")
    done = headrace(
        "transform", "images/", "out", "--model", "bright.py", "--image-size", "8x8", "--accept", "jsonl", "--json"
    )  # fmt: skip
    assert done.code == 3, done.out
    found = outputs(Path("out"))
    for number in range(9):
        red = np.float32(number * 20) / np.float32(255)
        line = json.loads(found[f"{number}.png.out"])
        assert line["red"] == pytest.approx(red, rel=1e-5)
        assert line["mean"] == pytest.approx(red / 3, rel=1e-5)
    (line,) = failed(Path("out/broken.png.out.failed"))
    assert line["object"] == "images/broken.png"


def test_parquet_in():
    Path("tables").mkdir()
    table = pa.table({"a": np.arange(100.0), "b": np.ones(100)})
    pq.write_table(table, "tables/rows.parquet", row_group_size=30)
    done = headrace("transform", "tables/", "out", "--model", "model.py", "--accept", "csv", "--json")
    assert done.code == 0, done.out + done.err
    # A table's columns have names, and so has what is made of it.
    expected = b"output\n" + "".join(f"{2.0 * row}\n" for row in range(100)).encode()
    assert outputs(Path("out")) == {"rows.parquet.out": expected}


@pytest.mark.parametrize("accept", ["parquet", "arrow"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_tables_out(accept, workers):
    done = transform(
        "--accept", accept, "--join", "input", "--header", "none", "--workers", workers, "--json"
    )
    assert done.code == 0, done.out + done.err
    found = outputs(Path("out"))
    assert found.keys() == {f"day-{n}/rows.csv.out.{accept}" for n in range(3)}
    for number in range(3):
        path = f"out/day-{number}/rows.csv.out.{accept}"
        table = pq.read_table(path) if accept == "parquet" else pa.ipc.open_file(path).read_all()
        assert table.num_rows == ROWS
        assert table.column(table.num_columns - 1).to_pylist() == [
            2.0 * (number * 100 + r) for r in range(ROWS)
        ]


# Memory


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_memory_stays_bounded_over_300_mb(workers):
    """One file of 200 MB, and three of 35 MB that are packed and so cannot be cut."""
    line = b"%d," + b"0," * 98 + b"1\n"
    block = b"".join(line % row for row in range(10_000))
    Path("wide.py").write_text(DOUBLE.replace("(-1, 2)", "(-1, 100)").replace("= 4", "= 4096"))
    Path("big").mkdir()
    with Path("big/large.csv").open("wb") as file:
        file.writelines(block for _ in range(200_000_000 // len(block)))
    for number in range(3):
        with gzip.open(f"big/{number}.csv.gz", "wb", compresslevel=1) as file:
            for _ in range(35_000_000 // len(block)):
                file.write(block)
    records = 10_000 * (200_000_000 // len(block) + 3 * (35_000_000 // len(block)))
    done = run("big/", "out", "--model", "wide.py", "--join", "input", "--workers", workers, "--json")
    assert done.code == 0, done.out[-2_000:] + done.err
    assert done.report["rows_out"] == records
    # Of the run and its workers, each at its own highest; on a busy machine more is under way than on an idle one.
    assert done.report["peak_memory_mb"] < (400 if workers == "1" else 480)
