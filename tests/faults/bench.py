"""A ledger and a store with real workers, which tests stop, kill and cut off, and the costs of
that.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest

import levels
from faults.costs import FaultCosts, FaultMoment, duplicate_executions, duplicate_results, recovery_s
from faults.state_changes import ChangeLog, PostgresChangeLog, SqliteChangeLog, StateChange
from faults.work_model import EXECUTIONS, FOLDER, HELD, action_number
from headrace.core.errors import JobLedgerUnavailableError, StorageError
from headrace.jobs.job import Job, NewJob
from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.paths import JobPaths
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores
from servers.polling import TIMEOUT_S, reached, wait_until
from servers.ports import free_port

HERE = Path(__file__).parent
MODEL = "work_model"
SHORT_LEASE_S = 2.0
"""The lease of workers that a test kills, stops or cuts off: it expires within the test.

A busy machine may hold up a healthy worker for as long, and then its jobs run again.
"""
WORKER_SETTINGS = {
    "lease_s": 60.0,
    "heartbeat_s": 0.5,
    "poll_s": 0.5,
    "maintain_s": 0.4,
    "drain_grace_s": 10.0,
    "concurrency": 4,
}


def one_ledger() -> pytest.MarkDecorator:
    """Return a mark that runs a test over PostgreSQL alone, and over both kinds of ledger in `make soak`."""
    postgres = pytest.param("postgres", marks=pytest.mark.postgres)
    return pytest.mark.parametrize(
        "ledger_url", ["sqlite", postgres] if levels.soaking() else [postgres], indirect=True
    )


def has_ended(pid: int) -> bool:
    """Return True if the process has ended, even if its parent has not reaped it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass
class WorkerProcess:
    """A worker in a process of its own, like `headrace work`."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def wait_ready(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"{self.name} did not start: {self.log_lines()}"
        return self

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process of the worker itself, even if another command runs it."""
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
        """Kill the worker's process alone with SIGKILL; its models' processes must notice."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self, timeout_s: float = 60.0) -> int:
        """Send SIGTERM. Return the exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill_tree(self) -> None:
        """Kill all processes, at the end of a test."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def log_lines(self, level: str = "") -> str:
        """Return the log's lines, all or those of a level."""
        lines = self.log.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not level or f'"level": "{level}' in line)

    def warnings(self) -> int:
        """Return the number of logged warnings."""
        return self.log_lines("warning").count("\n")

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
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

    def responds(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            # Reading the system's certificates would cost more than the request.
            return httpx.get(f"{self.url}/v1/queues", timeout=5, verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """Kill the process with SIGKILL. A second call does nothing."""
        self.process.kill()
        self.process.wait()


@dataclass
class Bench:
    """One ledger, one store, and workers. Leaving its `with` block kills all processes."""

    folder: Path
    ledger_url: str
    store_uri: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    record: Callable[[FaultCosts], None] = lambda _: None
    workers: list[WorkerProcess] = field(default_factory=list)
    apis: list[ApiProcess] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    """The jobs' ids by the numbers in their payloads."""
    faults: list[FaultMoment] = field(default_factory=list)
    unchecked_results: set[int] = field(default_factory=set)
    """Jobs whose results `costs` does not check."""
    stores_environ: Mapping[str, str] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store_uri = self.store_uri or f"{self.folder / 'objects'}/"
        self.paths = JobPaths(self.store_uri)
        self.stores = Stores(self.stores_environ)
        self.ledger: JobLedger = open_ledger(self.ledger_url)
        self.ledger.start()
        file = self.ledger_url.removeprefix("sqlite:///")
        self.change_log: ChangeLog = (
            SqliteChangeLog(file) if file != self.ledger_url else PostgresChangeLog(self.ledger_url)
        )
        self.change_log.install()
        self._held = (self.folder / HELD).open("w")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill_tree()
        for api in self.apis:
            api.kill()
        self._held.close()
        self.ledger.stop()
        self.stores.close()

    # Processes

    def worker(
        self,
        *,
        isolation: str = "process",
        serving: Mapping[str, Any] | None = None,
        ledger_url: str = "",
        store_uri: str = "",
        queues: Sequence[str] = ("default",),
        dispatcher: str = "",
        config: Path | None = None,
        prefix: Sequence[str] = (),
        log: Path | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker; its `wait_ready` waits until it works.

        `prefix` is a command that runs the worker's command; `settings` are its `WorkerSettings`.
        """
        name = settings.pop("name", f"w{len(self.workers)}")
        arguments = {
            "ledger": ledger_url or self.ledger_url,
            "store": store_uri or self.store_uri,
            "model": str(HERE / "work_model.py"),
            "isolation": isolation,
            "settings": {**WORKER_SETTINGS, "name": name, **settings},
            "serving": {"cancel_grace_s": 0.5, **(serving or {})},
            "queues": list(queues),
            "dispatcher": dispatcher,
            "config": str(config or ""),
            "encryption_key": str(self.folder / "encryption.key"),
        }
        log_path = log or self.folder / f"{name}.log"
        with log_path.open("a") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "worker_process.py"), json.dumps(arguments)],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
                env=self._process_environ({FOLDER: str(self.folder), **self.environ, **(environ or {})}),
            )
        worker = WorkerProcess(name, process, log_path)
        self.workers.append(worker)
        return worker

    def start_workers(self, count: int, **options: Any) -> list[WorkerProcess]:
        """Start workers and wait until all of them work."""
        started = [self.worker(**options) for _ in range(count)]
        return [worker.wait_ready() for worker in started]

    def api(
        self, *, ledger_url: str = "", dispatcher: str = "", config: Path | None = None, port: int = 0
    ) -> ApiProcess:
        """Start the API alone, like `headrace up` without models, and wait until it responds."""
        log_path = self.folder / "api.log"
        api_port = port or free_port()
        command = [
            sys.executable, "-m", "headrace", "up", "--ledger", ledger_url or self.ledger_url,
            "--store", self.store_uri, "--port", str(api_port), "--no-serve", "--no-metrics",
            "--log-format", "json",
        ]  # fmt: skip
        command += ["--dispatcher", dispatcher] if dispatcher else []
        command += ["--config", str(config)] if config else []
        with log_path.open("a") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=self._process_environ(self.environ),
            )
        api = ApiProcess(api_port, process, log_path)
        self.apis.append(api)
        wait_until(api.responds, "a response of the API")
        return api

    def _process_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with this checkout's sources first on Python's path."""
        paths = [environ.get("PYTHONPATH", ""), str(HERE.parent.parent / "src")]
        return {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    # Jobs

    def submit(self, count: int, *, work_ms: float = 0, action: str = "work", **spec: Any) -> list[int]:
        """Queue jobs, each with a payload of its own. Return their numbers."""
        first = len(self.ids)
        numbers = list(range(first, first + count))
        jobs = [self.new_job(number, work_ms=work_ms, action=action, **spec) for number in numbers]
        for number, submitted in zip(numbers, self.ledger.submit(jobs), strict=True):
            assert not isinstance(submitted, Exception), submitted
            self.ids[number] = submitted.job.id
        return numbers

    def add_job(self, job_id: str, number: int | None = None) -> int:
        """Note a job that was not queued by `submit`. Return its number."""
        added = len(self.ids) if number is None else number
        self.ids[added] = job_id
        return added

    @staticmethod
    def payload(number: int, *, work_ms: float = 0, action: str = "work") -> bytes:
        """Return the payload of a job: one row."""
        row = [number, work_ms, action_number(action)]
        return json.dumps(
            {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": row}]}
        ).encode()

    def new_job(self, number: int, *, work_ms: float = 0, action: str = "work", **spec: Any) -> NewJob:
        """Return a job that is not queued, with its payload in the store."""
        uri = f"{self.store_uri}inputs/number-{number}"
        self.stores.for_uri(uri).put(uri, self.payload(number, work_ms=work_ms, action=action))
        defaults = NewJob(MODEL, input_uri=uri, content_type="application/json", attempts_max=20)
        return replace(defaults, **spec)

    def job(self, number: int) -> Job:
        return self.ledger.get(self.ids[number])

    def jobs(self, numbers: Iterable[int] | None = None) -> dict[int, Job]:
        """Return the jobs' current states, without those that the ledger has lost."""
        wanted = list(self.ids if numbers is None else numbers)
        found = self.ledger.get_many([self.ids[number] for number in wanted])
        return {number: found[self.ids[number]] for number in wanted if self.ids[number] in found}

    def ended(self, numbers: Iterable[int] | None = None) -> int:
        """Return the number of the jobs that have ended."""
        return sum(job.state.ended for job in self.jobs(numbers).values())

    def wait_ended(self, numbers: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until all of the jobs have ended."""
        wanted = list(self.ids if numbers is None else numbers)

        def ended() -> bool:
            try:
                return all(job.state.ended for job in self.jobs(wanted).values())
            except JobLedgerUnavailableError:
                return False

        if not reached(ended, timeout_s=timeout_s):
            left = {n: job for n, job in self.jobs(wanted).items() if not job.state.ended}
            logs = "\n".join(f"{w.name} {w.process.poll()}: {w.log_lines()[-3000:]}" for w in self.workers)
            raise AssertionError(f"{len(left)} jobs did not end in {timeout_s:g} s: {left}\n{logs}")

    def wait_executing(self, numbers: Iterable[int], times: int = 1) -> None:
        """Wait until the model was called `times` times for each of the jobs."""
        wanted = list(numbers)

        def executed() -> bool:
            executions = self.executions()
            return all(executions[number] >= times for number in wanted)

        wait_until(executed, f"the execution of {wanted}")

    def wait_any_executing(self, numbers: Iterable[int]) -> None:
        """Wait until the model was called for one of the jobs: their order is not defined."""
        wanted = set(numbers)
        wait_until(lambda: wanted & self.executions().keys(), f"the execution of one of {wanted}")

    def wait_executions(self, count: int) -> None:
        """Wait until the model was called for more than `count` jobs."""
        wait_until(lambda: len(self.executions()) > count, f"the execution of {count} jobs")

    def executions(self) -> Counter[int]:
        """Return the number of model calls for each job."""
        path = self.folder / EXECUTIONS
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(int(float(line.split()[0])) for line in lines)

    def release(self) -> None:
        """Let the models return that wait."""
        fcntl.flock(self._held, fcntl.LOCK_UN)

    # Costs

    def fault_happens(self, worker: str = "") -> None:
        """Note that a fault happens now, to one worker or to all."""
        self.faults.append(FaultMoment(time.time_ns() // 1_000_000, worker))

    def changes(self) -> list[StateChange]:
        return self.change_log.read()

    def lost_leases(self) -> list[str]:
        """Return the workers that lost a lease or gave a job back, once per job."""
        return [change.worker for change in self.changes() if change.lease_lost]

    def rate(self) -> float:
        """Return the jobs per second from the first submission to the last end."""
        jobs = self.jobs().values()
        begun, ended = min(job.created_at_ms for job in jobs), max(job.ended_at_ms or 0 for job in jobs)
        return 1000 * len(jobs) / max(1, ended - begun)

    def costs(
        self, expected: Mapping[int, JobState] | None = None, *, baseline_rate: float | None = None
    ) -> FaultCosts:
        """Compute the costs, put them into the report, and check that no job was lost or ended twice.

        A job must have completed, or ended in the state that `expected` has for it. It is lost if it
        has not, or if its result is missing.
        """
        lost = self._lost(expected or {})
        changes = self.changes()
        costs = FaultCosts(
            jobs=len(self.ids),
            jobs_lost=len(lost),
            duplicate_results=duplicate_results(changes),
            duplicate_executions=duplicate_executions(self.executions()),
            recovery_seconds=recovery_s(changes, self.faults),
            completion_rate_vs_baseline=self.rate() / baseline_rate if baseline_rate else None,
        )
        self.record(costs)
        assert costs.jobs_lost == 0, lost
        assert costs.duplicate_results == 0, [c for c in changes if JobState(c.after).ended]
        return costs

    def check_single_executions(self) -> None:
        """Check `costs`, and that the model was called once for each job."""
        costs = self.costs()
        assert costs.duplicate_executions == 0, (
            f"executed again: {[n for n, count in self.executions().items() if count > 1]}; "
            f"workers that lost leases: {self.lost_leases()}"
        )

    def _lost(self, expected: Mapping[int, JobState]) -> dict[int, str]:
        jobs = self.jobs()
        lost = {}
        for number in self.ids:
            job = jobs.get(number)
            wanted = expected.get(number, JobState.COMPLETED)
            if job is None or job.state is not wanted:
                lost[number] = f"{job.state.value if job else 'missing'}: {job and job.failure}"
            elif wanted is not JobState.COMPLETED or number in self.unchecked_results:
                continue
            elif error := self._result_error(number, job):
                lost[number] = error
        return lost

    def _result_error(self, number: int, job: Job) -> str:
        """Return the error of the result that the ledger names, or ""."""
        if job.result is None:
            return "no result"
        if self.paths.lease_of(job.result.uri) != job.lease:
            return f"the result {job.result.uri} is not of lease {job.lease}"
        try:
            body = self.stores.for_uri(job.result.uri).get(job.result.uri)
        except StorageError as error:
            return str(error)
        values = json.loads(body)["outputs"][0]["data"]
        return "" if values == [2 * number + 1] else f"{values}, not {2 * number + 1}"
