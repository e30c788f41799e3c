"""`headrace work` in processes of their own, and the jobs that they are given: payloads in, results looked at."""

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
from job_places import Place

from headrace.jobs.job import Job, NewJob, new_job_id
from headrace.jobs.ledger import JobLedger, Submitted
from headrace.jobs.places import Places
from headrace.jobs.state import JobState
from headrace.storage.local import LocalStore

MODELS = Path(__file__).parent / "job_models.py"
READY_S = 60.0
LEFT_S = 30.0
TOGETHER = 100
"""Jobs of one call of `submit`, by whoever has many to give."""


@contextmanager
def working(
    place: Place, model: str, *, workers: int = 1, concurrency: int = 8, options: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Workers that are ready, told to leave at the end; their process ids."""
    command = [
        *(sys.executable, "-m", "headrace", "work", f"bench={MODELS}:{model}", "--ledger", place.ledger_url),
        *("--store", f"{place.store}/", "--concurrency", str(concurrency), "--log-format", "text", *options),
    ]
    started = [Process(command) for _ in range(workers)]
    try:
        for process in started:
            process.wait_for("ready")
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.leave()


class Process:
    """A command that says on standard error when it is ready."""

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
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._silent = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, word: str) -> str:
        """The first line with the word in it. BrokenRunError where it ends without having said it."""
        with self._changed:
            self._changed.wait_for(lambda: self._silent or self._line(word), READY_S)
            if (line := self._line(word)) is None:
                raise BrokenRunError(f"{self._process.args} is not ready: {''.join(self._said[-5:])}")
            return line

    def _line(self, word: str) -> str | None:
        return next((line for line in self._said if word in line), None)

    def finish(self) -> None:
        """Wait until it ends by itself. BrokenRunError where it does not, or fails."""
        code = self._process.wait(READY_S)
        self._reader.join(LEFT_S)
        if code:
            raise BrokenRunError(f"{self._process.args} ended badly: {''.join(self._said[-5:])}")

    def leave(self) -> None:
        """Tell it to end, and wait for that."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LEFT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(LEFT_S)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with self._changed:
                    self._said = [*self._said[-100:], line]
                    self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()


def request(number: int) -> bytes:
    """A payload: one row, told by its number."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number, 0.5, 0, 0]}
    return orjson.dumps({"inputs": [tensor]})


def payload(place: Place, number: int) -> NewJob:
    """The job of a number, whose payload is in the store, and not yet sure to survive a power cut."""
    where = Places(f"{place.store}/")
    job_id = new_job_id(time.time_ns() // 1_000_000)
    uri = where.input(job_id)
    LocalStore().put_unflushed(uri, request(number), drafts=where.drafts)
    return NewJob(model="bench", id=job_id, input_uri=uri, content_type="application/json", owned_input=True)


def submit_one(ledger: JobLedger, new: NewJob) -> str:
    """Its id. BrokenRunError where it is not taken."""
    (answer,) = ledger.submit([new])
    return _taken(answer)


def submit(ledger: JobLedger, place: Place, numbers: range) -> list[str]:
    """Put payloads into the store and their jobs into the ledger, durably both; their ids."""
    ids: list[str] = []
    for begin in range(0, len(numbers), TOGETHER):
        new = [payload(place, number) for number in numbers[begin : begin + TOGETHER]]
        LocalStore().flush(f"{place.store}/")
        ids += map(_taken, ledger.submit(new))
    return ids


def _taken(answer: Submitted | Exception) -> str:
    if not isinstance(answer, Submitted):
        raise BrokenRunError(f"a job was not taken: {answer}")
    return answer.job.id


def outcome(job: Job) -> list[float]:
    """What the model answered. BrokenRunError unless the job was completed at its first attempt."""
    if job.state is not JobState.COMPLETED or job.lease != 1 or job.result is None:
        raise BrokenRunError(f"job {job.id} is {job.state}, attempt {job.attempt}: {job.failure}")
    return orjson.loads(LocalStore().get(job.result.uri))["outputs"][0]["data"]


def check(ledger: JobLedger, ids: Sequence[str]) -> None:
    """Raise BrokenRunError unless all are completed, at the first attempt, with the results of the numbers from 0 on."""
    found: dict[str, Job] = {}
    for begin in range(0, len(ids), TOGETHER):
        found |= ledger.get_many(ids[begin : begin + TOGETHER])
    for number, job_id in enumerate(ids):
        if job_id not in found:
            raise BrokenRunError(f"job {job_id} is lost")
        if (answer := outcome(found[job_id])) != [2 * number + 1]:
            raise BrokenRunError(f"job {job_id}, number {number}, has the result {answer}")


def wait_until_done(ledger: JobLedger, timeout_s: float = 120.0) -> None:
    """Block until nothing waits and nothing runs any more."""
    until_s = time.monotonic() + timeout_s
    while ledger.counts("default").backlog:
        if time.monotonic() > until_s:
            raise BrokenRunError(f"after {timeout_s:g} s there are {ledger.counts('default')} jobs")
        time.sleep(0.02)
