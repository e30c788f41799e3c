"""Fault 5: the database goes away: restarted, killed, its sessions thrown out, and for longer than anybody waits."""

import os
import threading
import time

import pytest

from faults.bench import Bench, WorkerProcess, full, until
from faults.report import PATH

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(300)]

JOBS = 300 if full() else 60
WORK_MS = 100
OUTAGE_S = 8.0
"""Longer than the workers' leases (2 s), than they wait for a connection (here 1 s), and than a verb is tried again (0.5 s)."""


@pytest.fixture
def workers(postgres_bench: Bench) -> list[WorkerProcess]:
    """Two, with jobs for longer than the fault."""
    url = f"{postgres_bench.ledger_url}?connect_timeout=1&tcp_user_timeout=1000"
    return postgres_bench.fleet(2, ledger_url=url)


def _half_done(bench: Bench, numbers: list[int]) -> None:
    until(lambda: sum(job.state.ended for job in bench.jobs(numbers).values()) > len(numbers) // 5)


def _account(bench: Bench, workers: list[WorkerProcess], request: pytest.FixtureRequest) -> None:
    """All is done, by those who were there all the time."""
    bench.wait_ended()
    assert all(worker.running for worker in workers)
    tally = bench.tally(baseline_rate=_baseline(bench, request))
    assert tally.recovery_seconds is not None
    assert [worker.end() for worker in workers] == [0, 0]


def _baseline(bench: Bench, request: pytest.FixtureRequest) -> float | None:
    if not os.environ.get(PATH):
        return None
    server = request.getfixturevalue("postgres")
    name = server.create_database()
    try:
        with Bench(bench.folder / "undisturbed", server.url(name)) as other:
            other.fleet(2)
            other.submit(JOBS, work_ms=WORK_MS)
            other.wait_ended()
            return other.rate()
    finally:
        server.drop_database(name)


@pytest.mark.parametrize("how", ["immediate", "kill"])
def test_fault_05_database_restarts_at_once(postgres_bench, workers, postgres, request, how):
    """Fault 5: workers stay, what runs is finished, all jobs complete."""
    numbers = postgres_bench.submit(JOBS, work_ms=WORK_MS)
    _half_done(postgres_bench, numbers)
    if how == "immediate":
        postgres.restart(immediate=True)
    else:
        postgres.kill()
        postgres.start()
    postgres_bench.wreck()
    _account(postgres_bench, workers, request)


def test_fault_05_database_is_away_for_longer_than_anybody_waits(postgres_bench, workers, postgres, request):
    """Fault 5: leases have run out meanwhile; the living are heard before they are taken for dead."""
    numbers = postgres_bench.submit(JOBS, work_ms=WORK_MS)
    held = postgres_bench.submit(2, deed="wait_once")
    _half_done(postgres_bench, numbers)
    postgres.kill()
    time.sleep(OUTAGE_S)
    assert all(worker.running for worker in workers)
    postgres.start()
    postgres_bench.wreck()
    postgres_bench.go()
    postgres_bench.wait_ended()
    assert set(held) <= set(numbers + held)
    _account(postgres_bench, workers, request)


def test_fault_05_database_throws_all_sessions_out_again_and_again(
    postgres_bench, workers, postgres, request
):
    """Fault 5: five times a second, for as long as there are jobs."""
    name = postgres_bench.ledger_url.rpartition("/")[2]
    numbers = postgres_bench.submit(JOBS, work_ms=WORK_MS)
    _half_done(postgres_bench, numbers)
    over, thrown_out = threading.Event(), []

    def throw_out() -> None:
        end = time.monotonic() + (60 if full() else 8)
        while not over.wait(0.2) and time.monotonic() < end:
            thrown_out.append(postgres.terminate_backends(name))

    thread = threading.Thread(target=throw_out)
    thread.start()
    postgres_bench.wreck()
    try:
        postgres_bench.wait_ended(within_s=120)
    finally:
        over.set()
        thread.join()
    assert sum(thrown_out) >= 3, "it was quick, but not so quick"
    _account(postgres_bench, workers, request)
