"""The latency of live requests with and without a background transform on the same device.

The device of the model is a lock on a file, as a GPU that runs one call at a time: for a millisecond a
row. A live request has one row, a call of the transform 200.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from integration.jobs_process import CommandProcess, UpProcess
from servers.polling import wait_until

pytestmark = pytest.mark.slow

MODEL = """
import fcntl
import threading
from pathlib import Path

from headrace import Model, TensorSpec


class Device(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    max_batch_rows = 200

    def load(self):
        self._device = Path(__file__).with_name("device").open("ab", buffering=0)

    def predict(self, x):
        fcntl.flock(self._device, fcntl.LOCK_EX)
        threading.Event().wait(len(x) / 1000)
        if len(x) > 1:
            self._device.write(b".")
        fcntl.flock(self._device, fcntl.LOCK_UN)
        return x
"""
CALL_MS = 200
LIMIT_MS = 100
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]})


@dataclass(frozen=True)
class Running:
    """A served model and a transform, which `start` starts, with one device in a folder."""

    folder: Path
    rest: str
    start: Callable[[], object]

    def calls(self) -> int:
        """Return the number of calls of the transform that have ended."""
        return (self.folder / "device").stat().st_size

    def start_transform(self) -> None:
        """Start the transform, and wait for its first call."""
        self.start()
        wait_until(self.calls)

    def latencies_ms(self, count: int) -> np.ndarray:
        """Send live requests one after another, and return their latencies."""
        connection = http.client.HTTPConnection(urlsplit(self.rest).netloc, timeout=60)
        latencies: list[float] = []
        for _ in range(count):
            began_s = time.perf_counter()
            connection.request("POST", "/v2/models/model/infer", REQUEST)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            latencies.append((time.perf_counter() - began_s) * 1000)
        connection.close()
        return np.array(latencies)


def make_folder(folder: Path) -> dict[str, str]:
    """Write the model and the rows of the transform. Return the variables of the processes."""
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "rows.csv").write_text("1\n" * CALL_MS * 200)
    (folder / "model.py").write_text(MODEL)
    return {"XDG_RUNTIME_DIR": str(folder)}


@contextmanager
def beside_job(folder: Path, *options: str) -> Iterator[Running]:
    """Serve the model in the process of a job server, which also runs the transform: one queue."""
    environ = make_folder(folder)
    allowed = ("--allow-input", str(folder), "--allow-output", str(folder))
    with UpProcess(folder, "model.py", *allowed, *options, environ=environ) as up:
        rest = up.wait_until_ready().urls["rest"]
        with up.client() as client:
            job = {"input_uri": f"file://{folder}/in/", "output_uri": f"file://{folder}/out/"}
            yield Running(folder, rest, lambda: client.submit("model", kind="transform", **job))


@contextmanager
def beside_command(folder: Path, *options: str) -> Iterator[Running]:
    """Serve the model, and run ``headrace transform`` in a process of its own."""
    environ = make_folder(folder)
    ports = ("--rest-port", "0", "--grpc-port", "0", "--no-metrics")
    command = ("transform", "in/", "out/", "--model", "model.py")
    with ExitStack() as stack:
        server = stack.enter_context(
            CommandProcess(folder, "serve", "model.py", *ports, *options, environ=environ)
        )
        rest = server.wait_until_ready().urls["rest"]
        yield Running(
            folder, rest, lambda: stack.enter_context(CommandProcess(folder, *command, environ=environ))
        )


def p99(latencies_ms: np.ndarray) -> float:
    return float(np.quantile(latencies_ms, 0.99))


@pytest.mark.parametrize("deployed", [beside_job, beside_command])
def test_transform_yields_to_the_latency_limit_of_live_requests(deployed, tmp_path):
    with deployed(tmp_path / "free") as running:
        alone = running.latencies_ms(500)
        running.start_transform()
        beside = running.latencies_ms(30)
    with deployed(tmp_path / "limited", "--latency-limit-ms", str(LIMIT_MS)) as running:
        running.latencies_ms(1)
        running.start_transform()
        before = running.calls()
        limited = running.latencies_ms(2000)
        calls = running.calls() - before
    found = {"alone": p99(alone), "beside": p99(beside), "limited": p99(limited), "calls": calls}
    assert p99(alone) < LIMIT_MS, found
    assert np.median(beside) > LIMIT_MS, found
    assert p99(limited) < LIMIT_MS, found
    assert calls > 0, found
