"""Fault 5: the database restarts, dies, ends all sessions, or is away for longer than any timeout."""

import os
import threading
import time

import pytest

import levels
from faults.bench import SHORT_LEASE_S, Bench, WorkerProcess
from faults.report import PATH
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(300)]

JOBS = levels.by_level(40, 40, 300)
WORK_MS = 100
WORKERS = 2
TERMINATIONS = levels.by_level(15, 15, 300)
TERMINATION_INTERVAL_S = 0.2
OUTAGE_REPORTS = 4
"""Warnings of each worker before the outage ends."""


@pytest.fixture
def workers(postgres_bench: Bench) -> list[WorkerProcess]:
    """Workers with leases (2 s) and timeouts (1 s) that are shorter than the outage."""
    url = f"{postgres_bench.ledger_url}?connect_timeout=1&tcp_user_timeout=1000"
    return postgres_bench.start_workers(WORKERS, ledger_url=url, lease_s=SHORT_LEASE_S)


def _wait_partly_done(bench: Bench, numbers: list[int]) -> None:
    wait_until(lambda: bench.ended(numbers) > len(numbers) // 5, "the end of a fifth of the jobs")


def _check_recovered(bench: Bench, workers: list[WorkerProcess], request: pytest.FixtureRequest) -> None:
    """Check that all jobs complete, by the workers that were there all the time."""
    bench.wait_ended()
    assert all(worker.running for worker in workers)
    costs = bench.costs(baseline_rate=_baseline(bench, request))
    assert costs.recovery_seconds is not None
    assert [worker.terminate() for worker in workers] == [0] * WORKERS


def _baseline(bench: Bench, request: pytest.FixtureRequest) -> float | None:
    if not os.environ.get(PATH):
        return None
    server = request.getfixturevalue("postgres")
    name = server.create_database()
    try:
        with Bench(bench.folder / "undisturbed", server.url(name)) as other:
            other.start_workers(WORKERS)
            other.submit(JOBS, work_ms=WORK_MS)
            other.wait_ended()
            return other.rate()
    finally:
        server.drop_database(name)


def test_fault_05_database_restarts_at_once(postgres_bench, workers, postgres, request):
    """Fault 5: workers stay, running jobs finish, and all jobs complete, after a restart and after a kill."""
    for restart in (lambda: postgres.restart(immediate=True), lambda: (postgres.kill(), postgres.start())):
        numbers = postgres_bench.submit(JOBS // 2, work_ms=WORK_MS)
        _wait_partly_done(postgres_bench, numbers)
        restart()
        postgres_bench.fault_happens()
        postgres_bench.wait_ended(numbers)
    _check_recovered(postgres_bench, workers, request)


def test_fault_05_database_is_away_for_longer_than_leases_and_timeouts(
    postgres_bench, workers, postgres, request
):
    """Fault 5: after the outage, workers send heartbeats before their expired leases are taken back."""
    numbers = postgres_bench.submit(JOBS, work_ms=WORK_MS)
    held = postgres_bench.submit(2, action="wait_once")
    _wait_partly_done(postgres_bench, numbers)
    warnings = [worker.warnings() for worker in workers]
    postgres.kill()
    # The database's clock is this machine's.
    leases_until_s = time.time() + SHORT_LEASE_S

    def outlasted() -> bool:
        reports = [w.warnings() - before for w, before in zip(workers, warnings, strict=True)]
        return time.time() > leases_until_s + SHORT_LEASE_S and min(reports) >= OUTAGE_REPORTS

    wait_until(outlasted, "an outage longer than leases that all workers have reported")
    assert all(worker.running for worker in workers)
    postgres.start()
    postgres_bench.fault_happens()
    postgres_bench.release()
    postgres_bench.wait_ended([*held, *numbers])
    _check_recovered(postgres_bench, workers, request)


def test_fault_05_database_ends_all_sessions_again_and_again(postgres_bench, workers, postgres, request):
    """Fault 5: sessions are ended five times a second while there are jobs, and all jobs complete."""
    name = postgres_bench.ledger_url.rpartition("/")[2]
    numbers = postgres_bench.submit(JOBS, work_ms=WORK_MS)
    _wait_partly_done(postgres_bench, numbers)
    over, ended = threading.Event(), []

    def end_sessions() -> None:
        for _ in range(TERMINATIONS):
            ended.append(postgres.terminate_backends(name))
            if over.wait(TERMINATION_INTERVAL_S):
                return

    thread = threading.Thread(target=end_sessions)
    thread.start()
    postgres_bench.fault_happens()
    try:
        postgres_bench.wait_ended(timeout_s=120)
    finally:
        over.set()
        thread.join()
    assert sum(ended) >= 3, "the jobs ended before their sessions did"
    _check_recovered(postgres_bench, workers, request)
