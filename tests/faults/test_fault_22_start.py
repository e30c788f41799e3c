"""Fault 22: many workers start at the same moment, and find the leases of many dead."""

import itertools
import threading
from collections import Counter

import pytest

from faults.bench import Bench, full, until
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers.open import open_ledger
from headrace.jobs.maintenance.reaper import Reaper
from headrace.jobs.maintenance.upkeep import Chore, Upkeep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKERS = 20
DEAD = 500


def _die(bench: Bench, jobs: int) -> None:
    """Jobs under leases that have run out."""
    told = bench.ledger.submit([NewJob("m", attempts_max=20) for _ in range(jobs)])
    for submitted in told:
        bench.ids[len(bench.ids)] = submitted.job.id
    claimed = bench.ledger.turn([], ClaimRequest("dead", ("default",), jobs, 1)).claimed
    assert len(claimed) == jobs


def test_fault_22_start_of_20_reapers_at_once(bench: Bench):
    """Fault 22: each job of the dead is given back once, also where all look at the same moment."""
    _die(bench, DEAD)
    ledgers = [open_ledger(bench.ledger_url) for _ in range(WORKERS)]
    gate = threading.Barrier(WORKERS)
    done: list[int] = []

    def reap(ledger) -> None:
        ledger.start()
        gate.wait()
        done.append(Reaper(ledger).tick())

    threads = [threading.Thread(target=reap, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while any(job.state.value == "running" for job in bench.jobs().values()):
        done.append(Reaper(ledgers[0]).tick())
    for ledger in ledgers:
        ledger.stop()
    back = Counter(step.job_id for step in bench.steps() if (step.was, step.then) == ("running", "pending"))
    assert back == Counter(bench.ids.values())
    assert {job.crashes for job in bench.jobs().values()} == {1}
    assert sum(done) == DEAD


class _FirstSleep:
    """A clock that stands still, takes down for how long the first sleep is, and ends whoever sleeps."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    def now(self) -> float:
        return 0.0

    def sleep(self, seconds: float, wake: threading.Event) -> bool:
        self.asked_s.append(seconds)
        return True


def test_fault_22_start_of_20_workers_spreads_their_first_rounds():
    """Fault 22: those who start together do not look together."""
    firsts: list[float] = []
    for seed in range(WORKERS):
        clock = _FirstSleep()
        upkeep = Upkeep([Chore("reaper", 5.0, lambda: 0)], hold_off_s=60.0, clock=clock, seed=seed)
        upkeep.start()
        upkeep.stop()
        firsts += clock.asked_s
    assert len(firsts) == WORKERS
    spread = sorted(firsts)
    assert spread[-1] - spread[0] > 2.0
    assert max(b - a for a, b in itertools.pairwise(spread)) < 2.0


def test_fault_22_start_of_many_workers_over_the_jobs_of_the_dead(postgres_bench):
    """Fault 22: real processes, over an empty database whose schema they find made, do each job once."""
    numbers = postgres_bench.submit(100, work_ms=20)
    dead = postgres_bench.ledger.turn([], ClaimRequest("dead", ("default",), 50, 1)).claimed
    started = [postgres_bench.worker(isolation="thread") for _ in range(WORKERS if full() else 4)]
    for worker in started:
        worker.wait_ready()
    postgres_bench.wait_ended(numbers, within_s=300)
    leases = [job.lease for job in postgres_bench.jobs().values()]
    assert (leases.count(2), leases.count(1)) == (len(dead), 50)
    until(lambda: all(worker.running for worker in started))
    assert postgres_bench.tally().duplicate_executions == 0
