"""Fault 25: workers are killed while jobs replace each other's published results."""

import json
import random
from pathlib import Path

import pytest

import levels
from faults.bench import SHORT_LEASE_S, Bench, one_ledger
from headrace.jobs.paths import output_name
from headrace.jobs.state import JobState
from servers.polling import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = levels.by_level(60, 60, 600)
KILLS = levels.by_level(4, 4, 40)
KEYS = ("a", "day 0.csv", "x/y", "x-y")
SEEDS = range(1, levels.by_level(1, 1, 3) + 1)


@pytest.mark.parametrize("seed", SEEDS)
@one_ledger()
def test_fault_25_kill_9_of_workers_that_publish(bench: Bench, seed: int):
    """Fault 25: the object of each name is its owner's; a replaced job has its result, and says so."""
    choice = random.Random(seed)
    published = bench.folder / "published"
    bench.start_workers(3, lease_s=SHORT_LEASE_S)
    begun = 0
    for kill in range(KILLS + 1):
        for _ in range(JOBS // (KILLS + 1)):
            policy = choice.choice(("replace", "replace", "version"))
            key = choice.choice(KEYS)
            bench.submit(1, work_ms=20, output_uri=str(published), key=key, if_exists=policy)
        if kill < KILLS:
            begun += choice.randint(1, JOBS // (KILLS + 1))
            wait_until(lambda n=begun: len(bench.executions()) >= n, f"the execution of {begun} jobs")
            worker = choice.choice([worker for worker in bench.workers if worker.running])
            bench.fault_happens(worker.name)
            worker.kill()
            bench.worker(lease_s=SHORT_LEASE_S)
    bench.wait_ended(timeout_s=2 * TIMEOUT_S)
    jobs = bench.jobs()
    owners = {
        output_name(job.spec): number for number, job in jobs.items() if bench.ledger.output_owner(job) == job
    }
    # A publisher that was late repairs its object after the last job has ended.
    wait_until(
        lambda: _values(published) == {name: 2 * n + 1 for name, n in owners.items()}, "the owners' objects"
    )
    replaced = {n: JobState.PUBLISH_FAILED for n, job in jobs.items() if job.state is JobState.PUBLISH_FAILED}
    assert not set(replaced) & set(owners.values())
    assert {jobs[number].failure.error for number in replaced} <= {"OutputTakenError"}
    assert all(bench._result_error(number, jobs[number]) == "" for number in replaced)
    bench.costs(replaced)


def _values(folder: Path) -> dict[str, float]:
    """Return the prediction in each published object, by its name."""
    objects = [path for path in folder.iterdir() if not path.name.startswith(".headrace-")]
    return {
        path.name.removesuffix(".out"): json.loads(path.read_bytes())["outputs"][0]["data"][0]
        for path in objects
    }
