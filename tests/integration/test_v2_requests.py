"""A file of V2 requests gives the same responses in each command, also at an endpoint and after kills."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import levels
from integration.command import contents, failures, headrace, predictions
from integration.random_kills import kill, run_with_kills, wait_for_random_moment
from integration.transform_process import outputs
from servers.served import serving

REQUESTS = levels.by_level(600, 600, 5_000)
MODEL = """
import numpy as np
from headrace import Model, RowError, TensorSpec

class Sums(Model):
    max_batch_rows = 16
    inputs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("word", "BYTES", (-1,)))
    outputs = (TensorSpec("sum", "FP32", (-1,)), TensorSpec("upper", "BYTES", (-1,)))

    def predict(self, x, word):
        bad = dict.fromkeys(np.flatnonzero(x[:, 0] < 0).tolist(), "negative")
        if bad:
            raise RowError(bad)
        return {"sum": x.sum(axis=1), "upper": np.array([text.upper() for text in word], object)}
"""


def request(number: int, rng: random.Random) -> dict[str, object]:
    rows = rng.randrange(6)
    words = [rng.choice(["a", "straße", "\N{SNOWMAN}", "two\nlines"]) for _ in range(rows)]
    values = [[rng.randrange(-1 if number % 50 == 7 else 0, 9), 0.5] for _ in range(rows)]
    found: dict[str, object] = {
        "inputs": [
            {"name": "x", "shape": [rows, 2], "datatype": rng.choice(["FP32", "FP16"]), "data": values},
            {"name": "word", "shape": [rows], "datatype": "BYTES", "data": words},
        ]
    }
    if rng.random() < 0.9:
        found["id"] = f"request {number}"
    if rng.random() < 0.2:
        found["outputs"] = [{"name": "upper"}]
    if rng.random() < 0.2:
        found["parameters"] = {"who": number}
    return found


@pytest.fixture
def lines(tmp_path, monkeypatch) -> list[str]:
    """Requests, in ``requests.jsonl`` of the current folder, beside a model ``sums.py``."""
    monkeypatch.chdir(tmp_path)
    Path("sums.py").write_text(MODEL)
    rng = random.Random(19)
    lines = [json.dumps(request(number, rng)) for number in range(REQUESTS)]
    lines[3], lines[11] = "not json", '{"inputs": []}'
    Path("requests.jsonl").write_text("\n".join(lines) + "\n")
    return lines


def expected_response(document: dict[str, object]) -> dict[str, object]:
    """Return the response of the model, computed without headrace."""
    x, word = document["inputs"]
    shape = word["shape"]
    outputs = [
        {"name": "sum", "shape": shape, "datatype": "FP32", "data": [sum(row) for row in x["data"]]},
        {"name": "upper", "shape": shape, "datatype": "BYTES", "data": [w.upper() for w in word["data"]]},
    ]
    if "outputs" in document:
        outputs = outputs[1:]
    id = {"id": document["id"]} if "id" in document else {}
    return {"model_name": "sums", **id, "outputs": outputs}


def expected_responses(lines: list[str]) -> list[dict[str, object]]:
    documents = [json.loads(line) for number, line in enumerate(lines) if number not in (3, 11)]
    good = [one for one in documents if all(row[0] >= 0 for row in one["inputs"][0]["data"])]
    return list(map(expected_response, good))


def responses(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]


def test_stream_and_transform_write_the_expected_responses(lines):
    wanted = expected_responses(lines)
    done = headrace(
        "stream", "requests.jsonl", "--format", "v2", "--model", "sums.py", "--output", "s/", "--json"
    )
    assert (done.code, done.report["rows_out"]) == (3, len(wanted))
    assert responses(predictions(Path("s"), "jsonl")) == wanted
    for failed in failures(Path("s")):
        assert failed["raw"] == lines[failed["record"]]
    assert [failed["record"] for failed in failures(Path("s"))][:2] == [3, 11]
    many = ("--workers", "2", "--task-bytes", "20k")
    done = headrace("transform", "requests.jsonl", "t/", "--content-type", "v2", "--model", "sums.py", *many)
    assert done.code == 3
    assert Path("t/requests.jsonl.out").read_bytes() == predictions(Path("s"), "jsonl")


def test_served_model_gives_the_responses_of_a_local_one(lines):
    options = ("--format", "v2", "--output")
    assert headrace("stream", "requests.jsonl", *options, "l/", "--model", "sums.py").code == 3
    with serving("sums.py") as served:
        url = f"{served.rest}/v2/models/sums"
        assert headrace("stream", "requests.jsonl", *options, "e/", "--endpoint", url).code == 3
    local, remote = (responses(predictions(Path(name), "jsonl")) for name in "le")
    assert remote == [{**one, "model_version": "1"} for one in local]
    assert [one["record"] for one in failures(Path("e"))] == [one["record"] for one in failures(Path("l"))]


def test_retried_requests_join_the_others(lines):
    options = ("--format", "v2", "--model", "sums.py", "--output")
    assert headrace("stream", "requests.jsonl", *options, "s/").code == 3
    Path("sums.py").write_text(MODEL.replace("x[:, 0] < 0", "x[:, 0] < -1"))
    assert headrace("stream", "retry-failed", "s/", "--other-model").code == 3
    assert headrace("stream", "requests.jsonl", *options, "fresh/").code == 3
    assert predictions(Path("s"), "jsonl") == predictions(Path("fresh"), "jsonl")
    assert [failed["record"] for failed in failures(Path("s"))] == [3, 11]


def test_inspect_shows_inputs_and_the_share_of_requests(lines):
    done = headrace("inspect", "requests.jsonl", "--format", "v2", "--model", "sums.py", "--records", "1")
    assert done.code == 3
    assert "v2, 2 columns: x number[" in done.out
    assert "of 600 sampled records" in done.out or levels.soaking()
    assert "record 3, line 4" in done.out
    assert "model input       word = " in done.out


def test_dry_run_names_the_output_format(lines):
    done = headrace(
        "transform", "requests.jsonl", "t/", "--content-type", "v2", "--model", "sums.py", "--dry-run"
    )
    assert "v2, join none" in done.out
    assert not Path("t").exists()


@pytest.mark.parametrize("mode", ["stream", "transform"])
def test_killed_runs_write_the_bytes_of_an_undisturbed_one(lines, tmp_path, mode):
    def command(output: Path) -> list[str]:
        words = {
            "stream": ["stream", "requests.jsonl", "--format", "v2", "--output", f"{output}/"],
            "transform": ["transform", "requests.jsonl", f"{output}/", "--content-type", "v2"],
        }[mode]
        tasks = ["--task-bytes", "20k"] if mode == "transform" else []
        common = ["--model", "sums.py", "--checkpoint-s", "0", "--quiet", "--resume"]
        return [sys.executable, "-m", "headrace", *words, *tasks, *common]

    def kill_at_random(process: subprocess.Popen[bytes], output: Path, rng: random.Random) -> bool:
        if not wait_for_random_moment(process, output, rng, changes=range(1, 20)):
            return False
        kill(process)
        return True

    read = contents if mode == "stream" else outputs
    whole = tmp_path / "whole"
    assert subprocess.run(command(whole), capture_output=True, check=False).returncode == 3
    run_with_kills(command, tmp_path, kill_at_random, read=read, expected=read(whole), status=3)
