"""``headrace up`` and ``headrace work`` as processes that tests signal, kill and send requests to."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from headrace.jobs.client import Client
from headrace.jobs.job import Job
from headrace.jobs.state import JobState

READY_S = 60.0
WAIT_S = 40.0
_LISTENER = re.compile(r"(\w+) +(\w+://\S+)")

# Two numbers per record. A record with a negative first number waits until the file `go` exists.
MODEL = """
import os, time
from headrace import Model, TensorSpec

class Double(Model):
    max_batch_rows = 8
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)

    def predict(self, x):
        while (x[:, 0] < 0).any() and not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            time.sleep(0.005)
        return x[:, 0] * 2
"""


class CommandProcess:
    """A command that runs in a folder; `log` has its lines. `kill` also kills its children.

    Its environment is `environ` and the variables of this process, or `inherited` in place of these.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        inherited: Mapping[str, str] = os.environ,
        program: Sequence[str] = (sys.executable, "-m", "headrace"),
    ) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.urls: dict[str, str] = {}
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [*program, *arguments],
            cwd=folder,
            env={**inherited, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_until_ready(self) -> Self:
        """Wait until the process reports that it is ready."""
        assert self._ready.wait(READY_S), "\n".join(self.log)
        assert any(line.startswith("ready") for line in self.log), "\n".join(self.log)
        return self

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def terminate(self) -> int:
        """Send SIGTERM. Return the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the process. Return its exit status."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL. A second call does nothing."""
        if self._process.poll() is None:
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            for child in children:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    continue
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                self.log.append(line.rstrip())
                if found := _LISTENER.match(line):
                    self.urls[found[1]] = found[2]
                if line.startswith("ready"):
                    self._ready.set()
        self._ready.set()


class UpProcess(CommandProcess):
    """``headrace up`` on free ports."""

    def __init__(self, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        if not (folder / "model.py").exists():
            (folder / "model.py").write_text(MODEL)
        ports = ("--port", "0", "--rest-port", "0", "--metrics-port", "0")
        leases = ("--lease-s", "3", "--heartbeat-s", "0.5")
        super().__init__(folder, "up", *arguments, *ports, *leases, environ=environ)

    @property
    def url(self) -> str:
        """The URL of the job API."""
        return self.urls["jobs"]

    def client(self, key: str = "") -> Client:
        """Return a client of the job API."""
        return Client(self.url, api_key=key)


def wait_for_state(client: Client, job_id: str, *states: JobState) -> Job:
    """Follow the job's events until it is in one of the states, and return it.

    Raise AssertionError if the job ends in another state.
    """
    for job in client.events(job_id):
        if job.state in states:
            return job
    raise AssertionError(f"job {job_id} ended in another state: {client.get(job_id)}")


def wait_completed(client: Client, job_id: str) -> Job:
    """Wait for the job's end, which must be COMPLETED, and return the job."""
    job = client.wait(job_id, WAIT_S)
    assert job.state is JobState.COMPLETED, job
    return job
