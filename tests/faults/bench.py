"""A place for jobs, with real worker processes that can be stopped, killed and cut off, and an account of what came of it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest

from faults.steps import PostgresSteps, SqliteSteps, Step
from faults.tally import Tally, Wreck, duplicate_executions, duplicate_results, recovery_s
from faults.work_model import EXECUTIONS, FOLDER, deed_number
from headrace.core.errors import JobLedgerUnavailableError, StorageError
from headrace.jobs.job import Job, NewJob
from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers.open import open_ledger
from headrace.jobs.places import Places
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores
from servers.ports import free_port

HERE = Path(__file__).parent
PATIENCE_S = 90.0
MODEL = "work_model"
LEASE_S = 2.0
QUICK = {
    "lease_s": LEASE_S,
    "beat_s": 0.5,
    "poll_s": 0.5,
    "maintain_s": 0.4,
    "drain_grace_s": 10.0,
    "concurrency": 4,
}
"""A worker's settings, so short that a lease runs out within a test."""


def full() -> bool:
    """Whether the larger counts were asked for."""
    return bool(os.environ.get("HEADRACE_FAULTS_FULL"))


def one_ledger() -> pytest.MarkDecorator:
    """For tests in which the ledgers hardly differ: over PostgreSQL alone, and over both when the larger counts are asked for."""
    postgres = pytest.param("postgres", marks=pytest.mark.postgres)
    return pytest.mark.parametrize(
        "ledger_url", ["sqlite", postgres] if full() else [postgres], indirect=True
    )


def until(holds: Callable[[], Any], within_s: float = PATIENCE_S, what: str = "it") -> None:
    """Wait for what other processes do."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"{what} never came"
        threading.Event().wait(0.02)


def gone(pid: int) -> bool:
    """Whether a process is there no more; whoever inherits it may not have reaped it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass
class WorkerProcess:
    """A worker in a process of its own, as `headrace work` is one."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def wait_ready(self) -> Self:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == "ready\n", f"{self.name} did not start: {self.said()}"
        return self

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        """Of the worker itself, also where another command runs it."""
        return next(
            (p.pid for p in self._tree() if "worker_process.py" in " ".join(p.cmdline()[:3])),
            self.process.pid,
        )

    @property
    def models(self) -> list[int]:
        """The processes of its models."""
        return [p.pid for p in psutil.Process(self.pid).children(recursive=True)]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9, the worker alone: its models find out by themselves."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self, within_s: float = 60.0) -> int:
        """SIGTERM, and what it then exits with."""
        self.signal(signal.SIGTERM)
        return self.process.wait(within_s)

    def destroy(self) -> None:
        """With all that it started; for the end of a test."""
        tree = self._tree()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def said(self, level: str = "") -> str:
        """What it logged, of that level at least named."""
        return "".join(
            line
            for line in self.log.read_text().splitlines(True)
            if f'"level": "{level}' in line or not level
        )

    def _tree(self) -> list[psutil.Process]:
        try:
            me = psutil.Process(self.process.pid)
            return [me, *me.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


@dataclass
class ApiProcess:
    """The API of jobs in a process of its own."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            # It is asked again and again, and certificates would cost more than its answer.
            return httpx.get(f"{self.url}/v1/queues", timeout=5, verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """Kill -9. Twice does nothing."""
        self.process.kill()
        self.process.wait()


@dataclass
class Bench:
    """One ledger, one store, workers. Use it in a `with`; what runs then is killed at its end."""

    folder: Path
    ledger_url: str
    store_uri: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    record: Callable[[Tally], None] = lambda _: None
    workers: list[WorkerProcess] = field(default_factory=list)
    apis: list["ApiProcess"] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    """Jobs by the numbers that their payloads carry."""
    wrecks: list[Wreck] = field(default_factory=list)
    without_result: set[int] = field(default_factory=set)
    """Jobs whose result is another test's business, or not of the model's one shape."""
    stores_environ: Mapping[str, str] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store_uri = self.store_uri or f"{self.folder / 'objects'}/"
        self.places = Places(self.store_uri)
        self.stores = Stores(self.stores_environ)
        self.ledger: JobLedger = open_ledger(self.ledger_url)
        self.ledger.start()
        sqlite = self.ledger_url.removeprefix("sqlite:///")
        self.steps_at = SqliteSteps(sqlite) if sqlite != self.ledger_url else PostgresSteps(self.ledger_url)
        self.steps_at.install()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.destroy()
        for api in self.apis:
            api.kill()
        self.ledger.stop()
        self.stores.close()

    # Workers

    def worker(
        self,
        *,
        isolation: str = "process",
        serving: Mapping[str, Any] | None = None,
        ledger_url: str = "",
        store_uri: str = "",
        queues: Sequence[str] = ("default",),
        shift_s: float = 0.0,
        dispatcher: str = "",
        config: Path | None = None,
        prefix: Sequence[str] = (),
        log: Path | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> WorkerProcess:
        """Start one; `wait_ready` of it waits until it works. `prefix` is a command that runs it."""
        name = settings.pop("name", f"w{len(self.workers)}")
        given = {
            "ledger": ledger_url or self.ledger_url,
            "store": store_uri or self.store_uri,
            "model": str(HERE / "work_model.py"),
            "isolation": isolation,
            "settings": {**QUICK, "name": name, **settings},
            "serving": {"cancel_grace_s": 0.5, **(serving or {})},
            "queues": list(queues),
            "shift_s": shift_s,
            "dispatcher": dispatcher,
            "config": str(config or ""),
        }
        at = log or self.folder / f"{name}.log"
        source = str(HERE.parent.parent / "src")
        with at.open("a") as told:
            process = subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "worker_process.py"), json.dumps(given)],
                stdout=subprocess.PIPE,
                stderr=told,
                text=True,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": source,
                    FOLDER: str(self.folder),
                    **self.environ,
                    **(environ or {}),
                },
            )
        worker = WorkerProcess(name, process, at)
        self.workers.append(worker)
        return worker

    def api(
        self, *, ledger_url: str = "", dispatcher: str = "", config: Path | None = None, port: int = 0
    ) -> "ApiProcess":
        """Start the API alone, as `headrace up` without models is; returns when it answers."""
        at = self.folder / "api.log"
        api_port = port or free_port()
        command = [
            sys.executable, "-m", "headrace", "up", "--ledger", ledger_url or self.ledger_url, "--store", self.store_uri,
            "--port", str(api_port), "--no-serve", "--log-format", "json",
        ]  # fmt: skip
        command += ["--dispatcher", dispatcher] if dispatcher else []
        command += ["--config", str(config)] if config else []
        with at.open("a") as told:
            process = subprocess.Popen(
                command,
                stdout=told,
                stderr=told,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(HERE.parent.parent / "src"), **self.environ},
            )
        api = ApiProcess(api_port, process, at)
        self.apis.append(api)
        until(api.answers, what=f"the API: {at.read_text()}")
        return api

    def posted(self, job: Mapping[str, Any], number: int | None = None) -> int:
        """Note a job that the API has answered with; its number."""
        at = len(self.ids) if number is None else number
        self.ids[at] = job["id"]
        return at

    def fleet(self, count: int, **options: Any) -> list[WorkerProcess]:
        """So many that work."""
        started = [self.worker(**options) for _ in range(count)]
        return [worker.wait_ready() for worker in started]

    # Jobs

    def submit(self, count: int, *, work_ms: float = 0, deed: str = "work", **spec: Any) -> list[int]:
        """Queue jobs; their numbers. Each has a payload of its own."""
        first = len(self.ids)
        numbers = list(range(first, first + count))
        given = [self.new_job(number, work_ms=work_ms, deed=deed, **spec) for number in numbers]
        for number, told in zip(numbers, self.ledger.submit(given), strict=True):
            assert not isinstance(told, Exception), told
            self.ids[number] = told.job.id
        return numbers

    @staticmethod
    def body(number: int, *, work_ms: float = 0, deed: str = "work") -> bytes:
        """The payload of a job."""
        row = [number, work_ms, deed_number(deed)]
        return json.dumps(
            {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": row}]}
        ).encode()

    def new_job(self, number: int, *, work_ms: float = 0, deed: str = "work", **spec: Any) -> NewJob:
        """A job that is not queued, with its payload where it says."""
        uri = f"{self.store_uri}inputs/number-{number}"
        self.stores.for_uri(uri).put(uri, self.body(number, work_ms=work_ms, deed=deed))
        defaults = NewJob(MODEL, input_uri=uri, content_type="application/json", attempts_max=20)
        return replace(defaults, **spec)

    def job(self, number: int) -> Job:
        return self.ledger.get(self.ids[number])

    def jobs(self, numbers: Iterable[int] | None = None) -> dict[int, Job]:
        """As they are now; of those that the ledger has lost nothing."""
        wanted = list(self.ids if numbers is None else numbers)
        found = self.ledger.get_many([self.ids[number] for number in wanted])
        return {number: found[self.ids[number]] for number in wanted if self.ids[number] in found}

    def wait_ended(self, numbers: Iterable[int] | None = None, within_s: float = PATIENCE_S) -> None:
        """Until all have ended; what has not is told."""
        wanted = list(self.ids if numbers is None else numbers)

        def ended() -> bool:
            try:
                return all(job.state.ended for job in self.jobs(wanted).values())
            except JobLedgerUnavailableError:
                return False

        try:
            until(ended, within_s)
        except AssertionError:
            open_ = {n: job for n, job in self.jobs(wanted).items() if not job.state.ended}
            logs = "\n".join(f"{w.name} {w.process.poll()}: {w.said()[-3000:]}" for w in self.workers)
            raise AssertionError(f"{len(open_)} jobs never ended: {open_}\n{logs}") from None

    def wait_executing(self, numbers: Iterable[int], times: int = 1) -> None:
        """Until the model was asked for each of them so often."""
        wanted = list(numbers)
        until(lambda: all(self.executions()[n] >= times for n in wanted), what=f"executions of {wanted}")

    def wait_any_executing(self, numbers: Iterable[int]) -> None:
        """Until the model was asked for one of them: whose turn it is first is not said."""
        wanted = set(numbers)
        until(lambda: wanted & self.executions().keys(), what=f"an execution of {wanted}")

    def executions(self) -> Counter[int]:
        """How often the model was asked for each job's row."""
        return Counter(number for number, _ in self.executed())

    def executed(self) -> list[tuple[int, int]]:
        """Numbers and processes, in order."""
        path = self.folder / EXECUTIONS
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(float(a)), int(b)) for a, b in (line.split() for line in lines)]

    def go(self) -> None:
        """Let models go on that wait."""
        (self.folder / "go").touch()

    # Accounts

    def wreck(self, worker: str = "") -> None:
        """Note that a fault happens now."""
        self.wrecks.append(Wreck(time.time_ns() // 1_000_000, worker))

    def steps(self) -> list[Step]:
        return self.steps_at.all()

    def steps_of(self, number: int) -> list[Step]:
        return [step for step in self.steps() if step.job_id == self.ids[number]]

    def rate(self) -> float:
        """Jobs a second, from the first submission to the last end."""
        jobs = self.jobs().values()
        begun, ended = min(job.created_at_ms for job in jobs), max(job.ended_at_ms or 0 for job in jobs)
        return 1000 * len(jobs) / max(1, ended - begun)

    def tally(
        self, expected: Mapping[int, JobState] | None = None, *, baseline_rate: float | None = None
    ) -> Tally:
        """Count, check what every run must hold, and put it into the report.

        All must have completed, but for those that `expected` says otherwise of; a job is lost that has not ended as it
        should, or whose result is not there.
        """
        lost = self._lost(expected or {})
        steps = self.steps()
        told = Tally(
            jobs=len(self.ids),
            jobs_lost=len(lost),
            duplicate_results=duplicate_results(steps),
            duplicate_executions=duplicate_executions(self.executions()),
            recovery_seconds=recovery_s(steps, self.wrecks),
            completion_rate_vs_baseline=self.rate() / baseline_rate if baseline_rate else None,
        )
        self.record(told)
        assert told.jobs_lost == 0, lost
        assert told.duplicate_results == 0, [s for s in steps if JobState(s.then).ended]
        return told

    def _lost(self, expected: Mapping[int, JobState]) -> dict[int, str]:
        jobs = self.jobs()
        lost = {}
        for number in self.ids:
            job = jobs.get(number)
            wanted = expected.get(number, JobState.COMPLETED)
            if job is None or job.state is not wanted:
                lost[number] = f"{job.state.value if job else 'gone'}: {job and job.failure}"
            elif wanted is not JobState.COMPLETED or number in self.without_result:
                continue
            elif wrong := self.wrong_with_result(number, job):
                lost[number] = wrong
        return lost

    def wrong_with_result(self, number: int, job: Job) -> str:
        """What is wrong with the object that the ledger names; "" for nothing."""
        if job.result is None:
            return "no result"
        if self.places.lease_of(job.result.uri) != job.lease:
            return f"the result {job.result.uri} is not of lease {job.lease}"
        try:
            body = self.stores.for_uri(job.result.uri).get(job.result.uri)
        except StorageError as error:
            return str(error)
        values = json.loads(body)["outputs"][0]["data"]
        return "" if values == [2 * number + 1] else f"{values}, not {2 * number + 1}"
