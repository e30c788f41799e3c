"""Fault 1: workers and their models are killed, at random."""

import os
import random
import signal
import time

import pytest

from faults.bench import PATIENCE_S, Bench, full
from faults.report import PATH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = 200
WORK_MS = 50
WORKERS = 3


def _kill_one(bench: Bench, choice: random.Random) -> None:
    """A worker, whose place another takes, as a supervisor sees to it; or one of its models."""
    worker = choice.choice([w for w in bench.workers if w.running])
    models = worker.models
    if models and choice.random() < 0.3:
        os.kill(choice.choice(models), signal.SIGKILL)
        return
    bench.wreck(worker.name)
    worker.kill()
    bench.worker()


def _undisturbed_rate(bench: Bench, ledger_url: str) -> float | None:
    """What the same workers do of the same jobs without a fault; only where a report is written."""
    if not os.environ.get(PATH):
        return None
    with Bench(bench.folder / "undisturbed", ledger_url) as other:
        other.fleet(WORKERS)
        other.submit(JOBS, work_ms=WORK_MS)
        other.wait_ended()
        return other.rate()


@pytest.mark.parametrize("seed", [1, *([2, 3] if full() else [])])
def test_fault_01_kill_9_of_workers_and_their_models(bench, seed, request):
    """Fault 1: none of 200 jobs is lost, each has exactly one accepted result, whoever was killed."""
    choice = random.Random(seed)
    bench.fleet(WORKERS)
    numbers = bench.submit(JOBS, work_ms=WORK_MS)
    for _ in range(30 if full() else 6):
        time.sleep(choice.uniform(0.1, 0.9))
        if all(job.state.ended for job in bench.jobs(numbers).values()):
            break
        _kill_one(bench, choice)
    bench.wait_ended(within_s=2 * PATIENCE_S)
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
    tally = bench.tally(baseline_rate=baseline)
    assert bench.wrecks, "nobody was killed"
    assert tally.recovery_seconds is not None, "no job was in the hands of those that were killed"
