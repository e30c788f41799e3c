"""The peers of the job benchmark: their properties, and one run of each."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import competition
from competition import BrokenRunError
from inputs import FOLDER
from job_workers import Process
from process_tree import tree_cpu_s

from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer

PEERS_HERE = Path(__file__).parent / "peers"
DONE_S = 120.0
POLL_S = 0.005


@dataclass(frozen=True)
class Peer:
    """A job queue. With `bounded`, headrace's target is to be faster."""

    name: str
    script: str
    does: str
    """Its work, and the parts of headrace's work that it lacks."""
    concurrency: int
    """Concurrent jobs of each worker: its fastest setting."""
    over_postgres: bool
    bounded: bool


PEERS = (
    Peer(
        "celery",
        "celery_tasks.py",
        "Celery, Redis without persistence: one message for each submission, lost with the server or a "
        "killed worker; no status, no result",
        concurrency=8,
        over_postgres=False,
        bounded=True,
    ),
    Peer(
        "procrastinate",
        "procrastinate_tasks.py",
        "procrastinate, PostgreSQL: submits in batches; durable, keeps a status, no result",
        concurrency=16,
        over_postgres=True,
        bounded=True,
    ),
    Peer(
        "pgqueuer",
        "pgqueuer_tasks.py",
        "PgQueuer, PostgreSQL: submits in batches; durable, rows move to a log of states, no result",
        concurrency=100,
        over_postgres=True,
        bounded=False,
    ),
)  # fmt: skip


def interpreters(options: Sequence[str]) -> dict[str, Path]:
    """Return each peer's interpreter, as `competition.interpreters` does."""
    return competition.interpreters([peer.name for peer in PEERS], options)


@contextmanager
def peer_url(peer: Peer) -> Iterator[str]:
    """Start an empty server for one run. Yield its URL."""
    if peer.over_postgres:
        server = PostgresServer()
        try:
            server.start()
            name = server.create_database()
            yield server.url(name).replace("+psycopg", "")
        finally:
            server.close()
        return
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        valkey = ValkeyServer(Path(folder))
        valkey.start()
        try:
            yield f"{valkey.url}/0"
        finally:
            valkey.stop()


def by_peer(
    peer: Peer,
    interpreter: Path,
    jobs: int,
    job_s: float,
    *,
    workers: int,
    warm_jobs: int,
    concurrency: int | None = None,
) -> dict:
    """Run one peer with waiting workers, timed from the first submission to the end of the last
    job.
    """
    FOLDER.mkdir(exist_ok=True)
    with peer_url(peer) as url, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        marks = Path(folder) / "marks"
        marks.touch()
        run = _Runner(peer, interpreter, url, marks.resolve(), job_s, concurrency or peer.concurrency)
        if peer.over_postgres:
            run.run_role("prepare")
        started = [Process(run.command("work"), run.environment) for _ in range(workers)]
        try:
            for process in started:
                process.wait_for("ready")
            run.submit(warm_jobs)
            _wait_for(marks, warm_jobs)
            used_s = tree_cpu_s()
            began_s, submitted_s = run.submit(jobs)
            _wait_for(marks, warm_jobs + jobs)
            wall_s, cpu_s = time.perf_counter() - began_s, tree_cpu_s() - used_s
        finally:
            for process in started:
                process.terminate()
        if (done := marks.stat().st_size) != warm_jobs + jobs:
            raise BrokenRunError(f"{peer.name} finished {done} of {warm_jobs + jobs} jobs")
    return {
        "jobs_per_s": jobs / wall_s,
        "cpu_us_per_job": cpu_s / jobs * 1e6,
        "submit_s": submitted_s - began_s,
        "wall_s": wall_s,
    }


@dataclass(frozen=True)
class _Runner:
    peer: Peer
    interpreter: Path
    url: str
    marks: Path
    job_s: float
    concurrency: int

    def command(self, role: str, jobs: int = 0) -> list[str]:
        # Not resolved: the interpreter of an environment is a link, and its path locates the
        # packages.
        script = [str(self.interpreter), str(PEERS_HERE / self.peer.script)]
        return [*script, role, self.url, str(self.marks), str(jobs), str(self.job_s), str(self.concurrency)]

    @property
    def environment(self) -> dict[str, str]:
        # Without PYTHONPATH: peers use their own packages.
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run_role(self, role: str) -> None:
        done = subprocess.run(
            self.command(role), env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BrokenRunError(f"{self.peer.name} {role}: {done.stderr[-500:]}")

    def submit(self, jobs: int) -> tuple[float, float]:
        """Submit. Return the times of the start, after imports and connecting, and of the end."""
        process = Process(self.command("submit", jobs), self.environment)
        process.wait_for("begin")
        began_s = time.perf_counter()
        process.finish()
        return began_s, time.perf_counter()


def _wait_for(marks: Path, done: int) -> None:
    until_s = time.monotonic() + DONE_S
    while marks.stat().st_size < done:
        if time.monotonic() > until_s:
            raise BrokenRunError(f"after {DONE_S:g} s, {marks.stat().st_size} of {done} jobs are finished")
        time.sleep(POLL_S)
