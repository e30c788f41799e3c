"""``headrace up`` and ``headrace work`` as processes of their own, for tests that signal, kill and ask them."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from headrace.jobs.client import Client
from headrace.jobs.job import Job
from headrace.jobs.state import JobState

READY_S = 60.0
WAIT_S = 40.0
_DOOR = re.compile(r"(jobs|rest) +(http\S+)")

# Two numbers a record. A record that begins with a negative number waits until the file `go` is there.
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


class Process:
    """A command in a folder of its own; what it says is kept. `kill` also kills what it has started."""

    def __init__(self, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        self.said: list[str] = []
        self.doors: dict[str, str] = {}
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=folder,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_until_ready(self) -> Self:
        """Return when it has said so."""
        came = self._ready.wait(READY_S) and self._process.poll() is None
        assert came, "\n".join(self.said)
        return self

    def terminate(self) -> int:
        """SIGTERM; what it exits with."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Its exit status."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status

    def kill(self) -> None:
        """Kill -9 of all of it. Twice does nothing."""
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
                self.said.append(line.rstrip())
                if found := _DOOR.match(line):
                    self.doors[found[1]] = found[2]
                if line.startswith("ready"):
                    self._ready.set()
        self._ready.set()


class Up(Process):
    """``headrace up`` on free ports."""

    def __init__(self, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        if not (folder / "model.py").exists():
            (folder / "model.py").write_text(MODEL)
        ports = ("--port", "0", "--rest-port", "0", "--lease-s", "3", "--beat-s", "0.5")
        super().__init__(folder, "up", *arguments, *ports, environ=environ)

    @property
    def url(self) -> str:
        """The job API."""
        return self.doors["jobs"]

    def client(self, key: str = "") -> Client:
        """A client of it."""
        return Client(self.url, api_key=key)


def until(client: Client, job_id: str, *states: JobState) -> Job:
    """The job as soon as it is in one of these states, by its events; an AssertionError where it ends otherwise."""
    for job in client.events(job_id):
        if job.state in states:
            return job
    raise AssertionError(f"job {job_id} has ended otherwise: {client.get(job_id)}")


def completed(client: Client, job_id: str) -> Job:
    """The job, which has to come to a good end."""
    job = client.wait(job_id, WAIT_S)
    assert job.state is JobState.COMPLETED, job
    return job
