"""``headrace transform`` as a new user types it: messages, exit status and files."""

import bz2
import csv
import gzip
import io
import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from cases import for_each
from integration.command import DOUBLE, headrace
from integration.transform_process import command, failed, leftovers, outputs, run
from runs.support import tar

ROWS = 10


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of ten rows in nested folders, and a model, in the current folder."""
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


def test_each_object_of_a_prefix_gets_an_output():
    done = run("in/", "out/", "--model", "model.py")
    assert done.code == 0, done.err
    assert outputs(Path("out")) == {f"day-{n}/rows.csv.out": doubled(n) for n in range(3)}
    summary = dict(line.split("  ", 1) for line in done.out.splitlines())
    assert summary["predictions"].strip() == "out/ (3 objects)"
    assert summary["records in"].strip() == "30 = 30 out + 0 failed"
    assert summary["status"].strip() == "complete"
    report = json.loads(Path("out/_report.json").read_text())
    assert (report["status"], report["records_in"], report["exit_code"]) == ("complete", 30, 0)
    assert leftovers(Path("out")) == []


def test_json_prints_only_events():
    done = run("in/", "out/", "--model", "model.py", "--json")
    assert done.code == 0
    assert {line["event"] for line in done.lines[:-1]} <= {"progress"}
    report = done.report
    on_disk = json.loads(Path("out/_report.json").read_text())
    assert {**on_disk, "event": "report"} == report
    assert (report["objects"], report["rows_out"], report["model_calls"]) == (3, 30, 8)


def test_failed_records_are_written_beside_the_output_and_exit_with_3():
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


def test_strict_suppresses_the_output_of_an_object_with_a_failed_record():
    Path("in/day-1/rows.csv").write_text("1,1\nx,1\n3,1\n")
    done = transform("--strict", "--json")
    assert done.code == 1
    assert outputs(Path("out")).keys() == {
        "day-0/rows.csv.out",
        "day-1/rows.csv.out.failed",
        "day-2/rows.csv.out",
    }
    last = done.lines[-1]
    assert (last["status"], last["objects_suppressed"], last["rows_out"]) == ("failed", 1, 20)
    assert last["records_in"] == last["rows_out"] + last["rows_failed"] + last["rows_suppressed"]


@pytest.mark.parametrize(
    ("bad", "limit", "code"), [(15, "1%", 3), (25, "1%", 1), (25, "25", 3), (25, "24", 1)]
)
def test_max_failed_is_a_share_or_a_count(bad, limit, code):
    lines = [f"{'x' if row < bad else row},1\n" for row in range(2_000)]
    Path("in/day-1/rows.csv").write_text("".join(lines[::-1]))
    done = transform("--max-failed", limit, "--json")
    assert done.code == code, done.out
    if code == 1:
        assert done.lines[-1]["type"] == "TooManyFailuresError"
        assert not Path("out/_report.json").exists()


# Before anything runs


def test_dry_run_shows_plan_and_inputs_and_writes_nothing():
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


def test_dry_run_as_json():
    done = transform("--dry-run", "--json", "--input-filter", "$[1:]", "--model", "text.py")
    assert done.code == 1  # there is no text.py
    done = transform("--dry-run", "--json")
    (plan,) = done.lines
    assert plan["event"] == "dry-run"
    assert [o["output"] for o in plan["objects"]] == [f"day-{n}/rows.csv.out" for n in range(3)]
    assert plan["size_bytes"] == sum(len(rows(n)) for n in range(3))
    assert plan["records"][1]["inputs"] == {"x": {"shape": [2], "data": [1.0, 1.0]}}
    assert not Path("out").exists()


@for_each(
    ("args", "words"),
    [
        ([], "give SOURCE and DEST"),
        (["in/"], "give SOURCE and DEST"),
        (["in/", ""], "SOURCE or DEST is empty"),
        (["in/", "out"], "give either --model or --endpoint"),
        (["in/", "out", "--model", "m.py", "--endpoint", "http://h/m"], "give either --model or --endpoint"),
        (["in/", "in/day-0/rows.csv", "--model", "model.py"], "is a file: name a folder"),
        (["in/", "out", "--model", "model.py", "--resume", "--overwrite"], "cannot be combined"),
        (["in/", "out", "--model", "model.py", "--join", "sideways"], "'sideways' is not one of"),
        (["in/", "out", "--model", "model.py", "--workers", "0"], "0 is not in the range"),
        (["in/", "out", "--model", "model.py", "--task-bytes", "much"], "much"),
        (["in/", "out", "--model", "model.py", "--max-failed", "lots"], "--max-failed: 'lots' is neither"),
        (["in/", "out", "--model", "model.py", "--input-filter", "$["], "JSONPath '$['"),
        (
            ["in/", "out", "--model", "model.py", "--accept", "arrow", "--output-filter", "$[0]"],
            "the format is arrow",
        ),
        (["in/", "out", "--modl", "model.py"], "No such option"),
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2_and_writes_nothing(args, words):
    done = headrace("transform", *args)
    assert done.code == 2, done.out + done.err
    assert words in " ".join(done.err.split())
    assert "the command line:" not in done.err
    assert done.out == ""
    assert not Path("out").exists()


@for_each(
    ("args", "words"),
    [
        (["nowhere/", "out", "--model", "model.py"], "nowhere/: no object has this prefix"),
        (["in/", "out", "--model", "nomodel.py"], "nomodel.py: its file cannot be read"),
        (["in/", "in/out", "--model", "model.py"], "a run must not read what it writes"),
        (["in/", "out", "--model", "model.py", "--input-filter", "$[7]"], "7"),
        (["in/", "out", "--spec", "none.json"], "none.json: cannot be read"),
        (["in/", "out", "--model", "model.py", "--accept", "text"], "accept text"),  # the last: it makes out/
    ],
)
def test_impossible_transform_exits_with_1_and_writes_nothing(args, words):
    done = headrace("transform", *args)
    assert done.code == 1, done.out + done.err
    assert words in done.error
    # Text output can only be refused at the first record; the other errors are found before.
    assert outputs(Path("out")) == {} if "text" in args else not Path("out").exists()


# A job description of SageMaker


def test_sagemaker_job_description_runs():
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


def test_existing_output_is_refused_resumed_or_overwritten_and_other_files_stay():
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
        if self.calls == 21 and os.path.exists("armed"):
            os.rename("armed", "fired")
            print("READY", file=sys.stderr, flush=True)
            while not os.path.exists("go"):
                time.sleep(0.002)
        return x[:, 0] * 2
"""


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_ctrl_c_keeps_finished_work_and_resuming_writes_the_undisturbed_bytes(isolation):
    Path("model.py").write_text(WAITING)
    for number in range(40):
        Path(f"in/{number:02d}.csv").write_text("".join(f"{number * 100 + row},1\n" for row in range(25)))
    Path("in/large.csv").write_text("".join(f"{row},1\n" for row in range(2_000)))
    options = ["--model", "model.py", "--isolation", isolation, "--task-bytes", "1k", "--json"]
    undisturbed = run("in/", "undisturbed", *options)
    assert undisturbed.code == 0
    expected = outputs(Path("undisturbed"))

    Path("armed").write_text("")
    with subprocess.Popen(
        command("in/", "out", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        log = read_until(process, "READY")
        process.send_signal(signal.SIGINT)
        log += read_until(process, "stopping after work in progress; press Ctrl-C again to stop at once")
        Path("go").write_text("")
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, log + err
    report = json.loads(out.splitlines()[-1])
    assert (report["status"], report["exit_code"]) == ("drained", 130)
    assert not Path("out/_report.json").exists()
    before = outputs(Path("out"))
    assert 0 < len(before) < len(expected)
    assert before.items() <= expected.items()

    resumed = run("in/", "out", *options, "--resume")
    assert resumed.code == 0, resumed.err
    assert outputs(Path("out")) == expected
    assert resumed.report["resumed"]
    # No batch was predicted twice.
    assert report["model_calls"] >= 15
    assert resumed.report["model_calls"] == undisturbed.report["model_calls"] - report["model_calls"]
    assert leftovers(Path("out")) == []


def read_until(process: subprocess.Popen[str], line: str) -> str:
    log = ""
    while not log.endswith(f"{line}\n"):
        more = process.stderr.readline()
        assert more, log + process.stdout.read()
        log += more
    return log


# Inputs and outputs


def test_packed_objects_and_archives_are_recognized_by_name():
    text = rows(7).encode()
    packed = {
        "a.csv.gz": gzip.compress(text),
        "a.csv.bz2": bz2.compress(text),
        "a.csv.zst": zstandard.compress(text),
        "a.tar": tar({"x/1.csv": text, "x/2.csv": rows(8).encode()}),
        "a.tar.gz": gzip.compress(tar({"1.csv": text})),
        "a.tsv": text.replace(b",", b"\t"),
    }
    for name, data in packed.items():
        Path("in", name).write_bytes(data)
    assert transform().code == 0
    found = outputs(Path("out"))
    assert found.pop("a.tar.out") == doubled(7) + doubled(8)
    for name in packed.keys() - {"a.tar"}:
        assert found[f"{name}.out"] == doubled(7), name


IMAGES = """
from headrace import Model, TensorSpec

class Brightness(Model):
    max_batch_rows = 4
    inputs = (TensorSpec("x", "FP32", (-1, 3, 8, 8)),)

    def predict(self, x):
        return {"mean": x.mean(axis=(1, 2, 3)), "red": x[:, 0].mean(axis=(1, 2))}
"""


def test_folder_of_images_with_a_broken_one():
    Path("images").mkdir()
    Path("bright.py").write_text(IMAGES)
    for number in range(9):
        Image.new("RGB", (20, 10), (number * 20, 0, 0)).save(f"images/{number}.png")
    Path("images/broken.png").write_bytes(b"no image")
    done = headrace(
        "transform", "images/", "out", "--model", "bright.py", "--image-size", "8x8",
        "--accept", "jsonl", "--json",
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


def test_parquet_input():
    Path("tables").mkdir()
    table = pa.table({"a": np.arange(100.0), "b": np.ones(100)})
    pq.write_table(table, "tables/rows.parquet", row_group_size=30)
    done = headrace("transform", "tables/", "out", "--model", "model.py", "--accept", "csv", "--json")
    assert done.code == 0, done.out + done.err
    # The output of a table has a header, because its columns have names.
    expected = b"output\n" + "".join(f"{2.0 * row}\n" for row in range(100)).encode()
    assert outputs(Path("out")) == {"rows.parquet.out": expected}


@pytest.mark.parametrize("accept", ["parquet", "arrow"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_table_output(accept, workers):
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
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.soak), "2"])
def test_memory_is_bounded_over_300_mb(workers):
    """One file of 200 MB, and three packed ones of 35 MB, which cannot be split."""
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
    # The peaks of the run and of its workers; a busy machine has more work in progress than an idle
    # one.
    assert done.report["peak_memory_mb"] < (400 if workers == "1" else 480)
