"""`headrace work` in separate processes, and jobs: payloads are stored, results are checked."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
from competition import BrokenRunError
from inputs import environment
from job_storage import JobStorage

from headrace.jobs.job import Job, NewJob, new_job_id
from headrace.jobs.ledger import JobLedger, SubmitReply
from headrace.jobs.paths import JobPaths
from headrace.jobs.state import JobState
from headrace.storage.local import LocalStore

MODELS = Path(__file__).parent / "job_models.py"
READY_S = 60.0
TERMINATE_S = 30.0
TOGETHER = 100
"""Jobs of one call of `submit`."""


@contextmanager
def running_workers(
    storage: JobStorage, model: str, *, workers: int = 1, concurrency: int = 8, options: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Start workers and yield their process ids once they are ready. Terminate them at the end."""
    command = [
        *(
            sys.executable,
            "-m",
            "headrace",
            "work",
            f"bench={MODELS}:{model}",
            "--ledger",
            storage.ledger_url,
        ),
        *(
            "--store",
            f"{storage.store}/",
            "--concurrency",
            str(concurrency),
            "--log-format",
            "text",
            *options,
        ),
    ]
    started = [Process(command) for _ in range(workers)]
    try:
        for process in started:
            process.wait_for("ready")
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()


class Process:
    """A command that reports its readiness on standard error."""

    def __init__(self, command: Sequence[str], environ: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            env=environ or environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, word: str) -> str:
        """Return the first line that contains a word. Raise BrokenRunError if the command ends
        without it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._line(word), READY_S)
            if (line := self._line(word)) is None:
                raise BrokenRunError(f"{self._process.args} is not ready: {''.join(self._lines[-5:])}")
            return line

    def _line(self, word: str) -> str | None:
        return next((line for line in self._lines if word in line), None)

    def finish(self) -> None:
        """Wait for the command's own end. Raise BrokenRunError if it does not end, or fails."""
        code = self._process.wait(READY_S)
        self._reader.join(TERMINATE_S)
        if code:
            raise BrokenRunError(f"{self._process.args} failed: {''.join(self._lines[-5:])}")

    def terminate(self) -> None:
        """Send SIGTERM and wait for the end; kill the process if it does not end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(TERMINATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(TERMINATE_S)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with self._changed:
                    self._lines = [*self._lines[-100:], line]
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def request(number: int) -> bytes:
    """Return a payload of one row that contains its number."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number, 0.5, 0, 0]}
    return orjson.dumps({"inputs": [tensor]})


def payload(storage: JobStorage, number: int) -> NewJob:
    """Return the job of a number. Its payload is in the store, but not flushed yet."""
    paths = JobPaths(f"{storage.store}/")
    job_id = new_job_id(time.time_ns() // 1_000_000)
    uri = paths.input(job_id)
    LocalStore().put_unflushed(uri, request(number), drafts=paths.drafts)
    return NewJob(model="bench", id=job_id, input_uri=uri, content_type="application/json", owned_input=True)


def submit_one(ledger: JobLedger, new: NewJob) -> str:
    """Return the job's id. Raise BrokenRunError if the job is refused."""
    (reply,) = ledger.submit([new])
    return _job_id(reply)


def submit(ledger: JobLedger, storage: JobStorage, numbers: range) -> list[str]:
    """Write payloads to the store and their jobs to the ledger, both durably. Return the ids."""
    ids: list[str] = []
    for begin in range(0, len(numbers), TOGETHER):
        new = [payload(storage, number) for number in numbers[begin : begin + TOGETHER]]
        LocalStore().flush(f"{storage.store}/")
        ids += map(_job_id, ledger.submit(new))
    return ids


def _job_id(reply: SubmitReply | Exception) -> str:
    if not isinstance(reply, SubmitReply):
        raise BrokenRunError(f"the ledger refused a job: {reply}")
    return reply.job.id


def outcome(job: Job) -> list[float]:
    """Return the model's output. Raise BrokenRunError unless the first attempt completed the job."""
    if job.state is not JobState.COMPLETED or job.lease != 1 or job.result is None:
        raise BrokenRunError(f"job {job.id} is {job.state}, attempt {job.attempt}: {job.failure}")
    return orjson.loads(LocalStore().get(job.result.uri))["outputs"][0]["data"]


def check(ledger: JobLedger, ids: Sequence[str]) -> None:
    """Raise BrokenRunError unless all jobs completed at the first attempt, with the right results.

    The job at index N has the payload of the number N.
    """
    found: dict[str, Job] = {}
    for begin in range(0, len(ids), TOGETHER):
        found |= ledger.get_many(ids[begin : begin + TOGETHER])
    for number, job_id in enumerate(ids):
        if job_id not in found:
            raise BrokenRunError(f"job {job_id} is lost")
        if (result := outcome(found[job_id])) != [2 * number + 1]:
            raise BrokenRunError(f"job {job_id}, number {number}, has the result {result}")


def wait_until_done(ledger: JobLedger, timeout_s: float = 120.0) -> None:
    """Block until no job is pending or running."""
    until_s = time.monotonic() + timeout_s
    while ledger.counts("default").backlog:
        if time.monotonic() > until_s:
            raise BrokenRunError(f"after {timeout_s:g} s, jobs are left: {ledger.counts('default')}")
        time.sleep(0.02)
