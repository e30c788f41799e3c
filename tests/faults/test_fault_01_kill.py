"""Fault 1: workers and their models are killed at random."""

import os
import random
import signal

import pytest

import levels
from faults.bench import SHORT_LEASE_S, Bench
from faults.report import PATH
from servers.polling import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = levels.by_level(60, 60, 600)
KILLS = levels.by_level(4, 4, 60)
SEEDS = range(1, levels.by_level(1, 1, 3) + 1)
WORK_MS = 50
WORKERS = 3


def _kill_one(bench: Bench, choice: random.Random) -> None:
    """Kill a model, or a worker that another replaces as a supervisor would see to it."""
    worker = choice.choice([w for w in bench.workers if w.running])
    models = worker.models
    if models and bench.faults and choice.random() < 0.3:
        os.kill(choice.choice(models), signal.SIGKILL)
        return
    bench.fault_happens(worker.name)
    worker.kill()
    bench.worker(lease_s=SHORT_LEASE_S)


def _undisturbed_rate(bench: Bench, ledger_url: str) -> float | None:
    """Return the rate of the same workers and jobs without a fault; None unless a report is written."""
    if not os.environ.get(PATH):
        return None
    with Bench(bench.folder / "undisturbed", ledger_url) as other:
        other.start_workers(WORKERS)
        other.submit(JOBS, work_ms=WORK_MS)
        other.wait_ended()
        return other.rate()


@pytest.mark.parametrize("seed", SEEDS)
def test_fault_01_kill_9_of_workers_and_their_models(bench, seed, request):
    """Fault 1: no job is lost, and each has exactly one accepted result."""
    choice = random.Random(seed)
    bench.start_workers(WORKERS, lease_s=SHORT_LEASE_S)
    numbers = bench.submit(JOBS, work_ms=WORK_MS)
    begun = 0
    for _ in range(KILLS):
        begun += choice.randint(1, JOBS // KILLS)
        wait_until(lambda begun=begun: len(bench.executions()) >= begun, f"the execution of {begun} jobs")
        _kill_one(bench, choice)
    bench.wait_ended(numbers, timeout_s=2 * TIMEOUT_S)
    baseline = None
    if bench.ledger_url.startswith("sqlite"):
        baseline = _undisturbed_rate(bench, f"sqlite:///{bench.folder / 'undisturbed.db'}")
    elif os.environ.get(PATH):
        server = request.getfixturevalue("postgres")
        name = server.create_database()
        try:
            baseline = _undisturbed_rate(bench, server.url(name))
        finally:
            server.drop_database(name)
    costs = bench.costs(baseline_rate=baseline)
    assert bench.faults, "no worker was killed"
    assert costs.recovery_seconds is not None, "the killed workers had no jobs"
