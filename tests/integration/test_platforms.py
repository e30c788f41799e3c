"""Without the calls that Linux alone has, as on macOS; and on Windows.

`without_linux/sitecustomize.py` removes those calls from every process of a test.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace.core.errors import WINDOWS_REFUSAL
from integration.command import predictions
from integration.jobs_process import UpProcess, wait_completed
from servers.polling import wait_until

pytestmark = pytest.mark.slow

WITHOUT_LINUX = {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parent / "without_linux"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
    # A warning of the resource tracker would be an error line.
    "PYTHONWARNINGS": "error",
}
_PROCESS = """
import os, signal, sys
import numpy as np
from headrace.core.model import current_call
from headrace.core.errors import ConfigError, InstanceLostError
from headrace.core.model import ModelRecipe
from headrace.engine.backend import CallInputs
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.settings import ServeSettings

assert not hasattr(os, "memfd_create"), "the calls of Linux are still here"
recipe = ModelRecipe("model:Double", {})
x = np.arange(2_000_000.0).reshape(-1, 2)  # more than the first arena holds
backend = ProcessBackend(recipe, "double")
for rows in (2, len(x)):
    called = backend.call(CallInputs(({"x": x[:rows]},), rows, fresh=True), current_call())
    np.testing.assert_array_equal(called.outputs["y"], x[:rows, 0] * 2)
os.kill(backend.pid, signal.SIGKILL)
try:
    backend.call(CallInputs(({"x": x},), len(x), fresh=True), current_call())
except InstanceLostError as error:
    print(error.signal)
backend.close()
for limit in ("memory_bytes_max", "processes_max"):
    try:
        ProcessBackend(recipe, "double", settings=ServeSettings(**{limit: 1 << 30}))
    except ConfigError as error:
        print(error)
"""
_WINDOWS = """
import sys
import click, numpy, rich.console  # as they are on this system
sys.platform = "win32"
import headrace
try:
    headrace.stream
except ImportError as error:
    print(error)
from headrace.cli import main
"""


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("headrace-")}


def run(folder, *arguments, environ=WITHOUT_LINUX):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(
        "from headrace import Model, TensorSpec\n\n\n"
        "class Double(Model):\n"
        "    inputs = (TensorSpec('x', 'FP64', (-1, 2)),)\n"
        "    outputs = (TensorSpec('y', 'FP64', (-1,)),)\n\n"
        "    def predict(self, x):\n"
        "        return x[:, 0] * 2\n"
    )
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    return tmp_path


def test_model_process_shares_memory(folder):
    """Nothing is left after the processes, and the resource tracker has nothing to report."""
    before = shared_memory()
    done = run(folder, "-c", _PROCESS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    killed, memory, processes = done.stdout.splitlines()
    assert killed == "SIGKILL"
    assert "need Linux" in memory
    assert "need Linux" in processes
    assert shared_memory() == before


def test_files_are_scored_by_processes(folder):
    for arguments in (
        ("stream", "rows.csv", "--model", "model.py", "--output", "out/"),
        ("transform", "rows.csv", "done/", "--model", "model.py", "--workers", "2"),
    ):
        done = run(folder, "-m", "headrace", *arguments)
        assert done.returncode == 0, done.stderr
    assert predictions(folder / "out") == b"2.0\n6.0\n"
    assert (folder / "done" / "rows.csv.out").read_bytes() == b"2.0\n6.0\n"


def test_up_runs_jobs_and_replaces_a_killed_model(folder):
    before = shared_memory()
    with UpProcess(folder, "model.py", environ=WITHOUT_LINUX) as up:
        up.wait_until_ready()
        process = psutil.Process(up.pid)
        (model,) = process.children()
        with up.client() as client:
            wait_completed(client, client.submit("model", {"x": [[1, 2]]}).id)
            model.send_signal(signal.SIGKILL)
            wait_until(lambda: [c for c in process.children() if c.pid != model.pid], "another model process")
            wait_completed(client, client.submit("model", {"x": [[3, 4]]}).id)
        assert up.terminate() == 0
    assert shared_memory() == before


def test_model_process_ends_with_its_killed_server(folder):
    with UpProcess(folder, "model.py", environ=WITHOUT_LINUX) as up:
        up.wait_until_ready()
        (model,) = psutil.Process(up.pid).children()
        os.kill(up.pid, signal.SIGKILL)
        wait_until(lambda: not model.is_running(), "the end of the model process")


def test_windows_is_refused_in_one_sentence(folder):
    done = run(folder, "-c", _WINDOWS, environ={})
    assert (done.returncode, done.stdout, done.stderr) == (1, f"{WINDOWS_REFUSAL}\n", f"{WINDOWS_REFUSAL}\n")
