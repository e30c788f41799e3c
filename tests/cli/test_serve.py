"""The command as it is typed: a real process, real ports, a real SIGTERM."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import grpc
import pytest
from click.testing import CliRunner

from headrace.cli import main

WAIT_S = 60.0
MODEL = """\
from headrace import Model


class Twice(Model):
    def __init__(self, factor=2):
        self.factor = factor

    def predict(self, x):
        return x * self.factor
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(MODEL)
    return path


def launched(*arguments):
    command = [sys.executable, "-m", "headrace", "serve", *map(str, arguments)]
    command += ["--rest-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )


def addresses(process):
    """What it says on its way to `ready`."""
    found = {}
    for line in process.stderr:
        if line.strip() == "ready":
            return found
        if match := re.fullmatch(r"(\w+)\s+(\w+://\S+)", line.strip()):
            found[match[1]] = match[2]
    raise AssertionError(f"it ended before it was ready: {found}")


def test_it_serves_until_it_is_told_to_leave(model):
    process = launched(f"double={model}", "-O", "factor=5")
    try:
        where = addresses(process)
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [3]}
        request = urllib.request.Request(
            f"{where['rest']}/v2/models/double/infer", json.dumps({"inputs": [tensor]}).encode()
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert json.loads(answer.read())["outputs"][0]["data"] == [15.0]
        with grpc.insecure_channel(where["grpc"].removeprefix("grpc://")) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"", timeout=WAIT_S) == b"\x08\x01"
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, rest


def test_a_model_that_does_not_load_is_told_in_one_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(MODEL + "\n    def load(self):\n        raise OSError('no weights')\n")
    process = launched(path)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "no weights" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nothing.onnx"], "cannot be read"),
        (["twice.py", "--host", "0.0.0.0"], "can be reached by others"),
        (["twice.py", "--tls-key", "k.pem"], "TLS needs both"),
        (["twice.py", "-O", "factor"], "KEY=VALUE"),
        (["twice.py", "--instances", "0"], "instances must be 1 or more"),
        (["twice.py", "--no-rest", "--no-grpc"], "needs a door"),
    ],
)
def test_what_cannot_be_is_refused_in_plain_words(arguments, why, model, monkeypatch):
    monkeypatch.chdir(model.parent)
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 1, result.output
    assert why in result.output


def test_help_teaches_by_example():
    result = CliRunner().invoke(main, ["serve", "--help"])
    assert "headrace serve churn.onnx" in result.output


def test_grpc_can_be_carried_by_the_other_carrier(model):
    process = launched(model, "--grpc-carrier", "asgi", "--no-rest", "--no-metrics")
    try:
        where = addresses(process)
        with grpc.insecure_channel(where["grpc"].removeprefix("grpc://")) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"", timeout=WAIT_S) == b"\x08\x01"
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, rest


STEPS = """\
from headrace import Model


class Count(Model):
    def step(self, states, x):
        for state in states:
            state["count"] = state.get("count", 0) + 1
        return x
"""


def test_limits_of_sequences_are_set_for_all_models(tmp_path):
    path = tmp_path / "count.py"
    path.write_text(STEPS)
    process = launched(path, "--sequence-limit", "live_max=7", "--checkpoints", tmp_path / "kept.sqlite")
    try:
        where = addresses(process)
        with urllib.request.urlopen(f"{where['rest']}/v2/models/count/sequences", timeout=WAIT_S) as told:
            assert json.load(told)["live_max"] == 7
        assert (tmp_path / "kept.sqlite").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize(
    ("limit", "why"),
    [("foo=1", "no limit foo"), ("live_max=0", "1 or more"), ("idle_ms", "KEY=VALUE")],
)
def test_a_limit_that_there_is_not_is_told(model, limit, why):
    done = CliRunner().invoke(main, ["serve", str(model), "--sequence-limit", limit])
    assert done.exit_code != 0
    assert why in done.output
