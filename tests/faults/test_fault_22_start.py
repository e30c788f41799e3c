"""Fault 22: many workers start at the same moment, over the expired leases of dead ones."""

import itertools
import threading
from collections import Counter

import pytest

import levels
from faults.bench import Bench
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.maintenance import Maintenance, MaintenanceTask, Reaper

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKERS = 20
DEAD = levels.by_level(200, 200, 2000)
PROCESSES = levels.by_level(3, 3, WORKERS)


def _expire_leases(bench: Bench, jobs: int) -> None:
    """Queue jobs and claim them for a worker that dies at once."""
    for submitted in bench.ledger.submit([NewJob("m", attempts_max=20) for _ in range(jobs)]):
        bench.add_job(submitted.job.id)
    claimed = bench.ledger.settle_and_claim([], ClaimRequest("dead", ("default",), jobs, 1)).claimed
    assert len(claimed) == jobs


def test_fault_22_start_of_20_reapers_at_once(bench: Bench):
    """Fault 22: each expired lease is taken back once, although all reapers run at the same moment."""
    _expire_leases(bench, DEAD)
    ledgers = [open_ledger(bench.ledger_url) for _ in range(WORKERS)]
    barrier = threading.Barrier(WORKERS)

    def reap(ledger) -> None:
        ledger.start()
        barrier.wait()
        Reaper(ledger).tick()

    threads = [threading.Thread(target=reap, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while any(job.state.value == "running" for job in bench.jobs().values()):
        Reaper(ledgers[0]).tick()
    for ledger in ledgers:
        ledger.stop()
    assert Counter(c.job_id for c in bench.changes() if c.lease_lost) == Counter(bench.ids.values())
    assert {job.crashes for job in bench.jobs().values()} == {1}


class _FirstSleepClock:
    """A clock that stands still, records the first sleep and ends the sleeping thread."""

    def __init__(self) -> None:
        self.sleeps_s: list[float] = []

    def now(self) -> float:
        return 0.0

    def sleep(self, seconds: float, wake: threading.Event) -> bool:
        self.sleeps_s.append(seconds)
        return True


def test_fault_22_start_of_20_workers_spreads_their_first_rounds():
    """Fault 22: workers that start together do not maintain the ledger together."""
    sleeps_s: list[float] = []
    for seed in range(WORKERS):
        clock = _FirstSleepClock()
        task = MaintenanceTask("reaper", 5.0, lambda: 0)
        maintenance = Maintenance([task], hold_off_s=60.0, clock=clock, seed=seed)
        maintenance.start()
        maintenance.stop()
        sleeps_s += clock.sleeps_s
    assert len(sleeps_s) == WORKERS
    spread = sorted(sleeps_s)
    assert spread[-1] - spread[0] > 2.0
    assert max(b - a for a, b in itertools.pairwise(spread)) < 2.0


def test_fault_22_start_of_many_worker_processes_over_expired_leases(postgres_bench):
    """Fault 22: real workers run each job once."""
    numbers = postgres_bench.submit(60, work_ms=20)
    dead = postgres_bench.ledger.settle_and_claim([], ClaimRequest("dead", ("default",), 30, 1)).claimed
    workers = [postgres_bench.worker(isolation="thread") for _ in range(PROCESSES)]
    for worker in workers:
        worker.wait_ready()
    postgres_bench.wait_ended(numbers, timeout_s=300)
    leases = [job.lease for job in postgres_bench.jobs().values()]
    assert (leases.count(2), leases.count(1)) == (len(dead), len(numbers) - len(dead))
    assert all(worker.running for worker in workers)
    postgres_bench.check_single_executions()
