"""``headrace serve`` as a process with real ports and a real SIGTERM."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from cases import for_each
from headrace.app import serving
from headrace.app.serving import DrainSettings, RestLimits, ServerOptions, TlsFiles
from headrace.cli import main
from headrace.core.errors import UnavailableError
from headrace.engine.settings import ServeSettings
from integration.command import headrace

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
    """Return the addresses that the process prints before `ready`."""
    found = {}
    for line in process.stderr:
        if line.strip() == "ready":
            return found
        if match := re.fullmatch(r"(\w+)\s+(\w+://\S+)", line.strip()):
            found[match[1]] = match[2]
    raise AssertionError(f"it ended before it was ready: {found}")


@pytest.mark.slow
def test_server_serves_until_sigterm(model):
    process = launched(f"double={model}", "-O", "factor=5")
    try:
        urls = addresses(process)
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [3]}
        request = urllib.request.Request(
            f"{urls['rest']}/v2/models/double/infer", json.dumps({"inputs": [tensor]}).encode()
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            assert json.loads(response.read())["outputs"][0]["data"] == [15.0]
        with grpc.insecure_channel(urls["grpc"].removeprefix("grpc://")) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"", timeout=WAIT_S) == b"\x08\x01"
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, rest


def test_model_that_does_not_load_is_one_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(MODEL + "\n    def load(self):\n        raise OSError('no weights')\n")
    ports = ("--rest-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    done = headrace("serve", path, *ports)
    assert done.code == 1
    # grpc may log before it, about the event loop of an earlier test in this process.
    assert done.err.splitlines()[-1] == "error: model broken: it did not load: OSError: no weights"
    assert "in load" not in done.err  # a line of the model's traceback


@for_each(
    ("arguments", "reason"),
    [
        (["nothing.onnx"], "cannot be read"),
        (["twice.py", "--host", "0.0.0.0"], "reachable from other machines"),
        (["twice.py", "--tls-key", "k.pem"], "TLS needs both"),
        (["twice.py", "-O", "factor"], "KEY=VALUE"),
        (["twice.py", "--no-rest", "--no-grpc"], "no port to listen on"),
    ],
)
def test_invalid_options_are_refused(arguments, reason, model, monkeypatch):
    monkeypatch.chdir(model.parent)
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 1, result.output
    assert reason in result.output


def test_value_out_of_range_is_wrong_usage():
    result = CliRunner().invoke(main, ["serve", "twice.py", "--instances", "0"])
    assert (result.exit_code, "0 is not in the range x>=1" in result.output) == (2, True)


@pytest.fixture
def opened(monkeypatch):
    """The arguments of `open_server`, which raises instead of opening a server."""
    calls = []

    def open_server(models, options, **settings):
        calls.append((models, options, settings))
        raise UnavailableError("server", "not opened")

    monkeypatch.setattr(serving, "open_server", open_server)
    return calls


def test_default_options_are_the_default_settings(opened):
    assert headrace("serve", "m.py").error == "server: not opened"
    assert opened == [(("m.py",), ServerOptions(), {"settings": ServeSettings(), "model_options": None})]


def test_every_option_reaches_its_setting(opened):
    headrace(
        "serve", "a.onnx", "b=c.py:D", "--host", "::1", "--rest-port", "1", "--grpc-port", "2",
        "--metrics-port", "3", "--instances", "4", "--isolation", "process", "--max-batch-rows", "5",
        "--max-batch-delay-ms", "6", "--queue-rows-max", "7", "--streams-max", "8", "--sequence-limit",
        "live_max=9", "--checkpoints", "memory:", "-O", "factor=5", "--api-keys", "keys.txt",
        "--tls-certificate", "c.pem", "--tls-key", "k.pem", "--tls-client-ca", "ca.pem", "--grpc-carrier",
        "asgi", "--stream-dialect", "triton", "--insecure", "--body-bytes-max", "10MiB", "--drain-notice-s",
        "11", "--drain-grace-s", "12", "--access-log",
    )  # fmt: skip
    ((models, options, settings),) = opened
    assert models == ("a.onnx", "b=c.py:D")
    assert options == ServerOptions(
        host="::1",
        rest_port=1,
        grpc_port=2,
        metrics_port=3,
        api_keys=Path("keys.txt"),
        tls=TlsFiles(Path("c.pem"), Path("k.pem"), Path("ca.pem")),
        insecure=True,
        limits=RestLimits(body_bytes_max=10 << 20),
        grpc_carrier="asgi",
        stream_dialect="triton",
        drain=DrainSettings(11, 12),
        access_log=True,
    )
    assert settings["model_options"] == {"factor": 5}
    assert settings["settings"] == ServeSettings(
        instances=4,
        isolation="process",
        max_batch_rows=5,
        max_batch_delay_ms=6,
        queue_rows_max=7,
        streams_max=8,
        sequences={"live_max": 9},
        checkpoints="memory:",
    )


def test_ports_can_be_closed(opened):
    headrace("serve", "m.py", "--no-rest", "--no-grpc", "--no-metrics")
    ((_, options, _),) = opened
    assert (options.rest_port, options.grpc_port, options.metrics_port) == (None, None, None)


def test_help_has_examples():
    result = CliRunner().invoke(main, ["serve", "--help"])
    assert "headrace serve churn.onnx" in result.output


@pytest.mark.slow
def test_grpc_is_served_by_the_asgi_carrier(model):
    process = launched(model, "--grpc-carrier", "asgi", "--no-rest", "--no-metrics")
    try:
        urls = addresses(process)
        with grpc.insecure_channel(urls["grpc"].removeprefix("grpc://")) as channel:
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


@pytest.mark.slow
def test_sequence_limits_apply_to_all_models(tmp_path):
    path = tmp_path / "count.py"
    path.write_text(STEPS)
    process = launched(path, "--sequence-limit", "live_max=7", "--checkpoints", tmp_path / "kept.sqlite")
    try:
        urls = addresses(process)
        with urllib.request.urlopen(f"{urls['rest']}/v2/models/count/sequences", timeout=WAIT_S) as response:
            assert json.load(response)["live_max"] == 7
        assert (tmp_path / "kept.sqlite").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)


@for_each(
    ("limit", "reason"),
    [("foo=1", "unknown sequence limit foo"), ("live_max=0", "1 or more"), ("idle_ms", "KEY=VALUE")],
)
def test_invalid_sequence_limit_is_refused(model, limit, reason):
    done = CliRunner().invoke(main, ["serve", str(model), "--sequence-limit", limit])
    assert done.exit_code != 0
    assert reason in done.output
