"""Fault 16: jobs that do harm."""

import pytest

from faults.bench import SHORT_LEASE_S, Bench, one_ledger
from headrace.engine.process.process_limits import own_groups
from headrace.jobs.history import HistoryEvent
from headrace.jobs.state import Cause, JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 2**20
HARMLESS = 20
_grouped = pytest.mark.skipif(
    "memory" not in own_groups() or "pids" not in own_groups(), reason="no control group can be made here"
)


@pytest.mark.parametrize(
    ("poison", "serving"),
    [
        pytest.param({"segfault": (Cause.CRASH, 2), "leave": (Cause.MODEL, 2)}, {}, id="exits"),
        pytest.param(
            {"loop": (Cause.TIMEOUT, 1), "hold": (Cause.TIMEOUT, 1)}, {"call_timeout_s": 1.0}, id="hangs"
        ),
        pytest.param(
            {"hog": (Cause.OOM, 1), "fork": (Cause.MODEL, 1)},
            {"memory_bytes_max": 256 * MIB, "processes_max": 64},
            id="resources",
            marks=_grouped,
        ),
    ],
)
def test_fault_16_poison_among_harmless_jobs(sqlite_bench, poison, serving):
    """Fault 16: poison fails with its cause after its attempts; other jobs complete in their first."""
    bench = sqlite_bench
    harmless = bench.submit(HARMLESS, work_ms=10)
    harmful = {}
    for action, (_, attempts) in poison.items():
        (harmful[action],) = bench.submit(1, action=action, attempts_max=attempts)
        harmless += bench.submit(HARMLESS, work_ms=10)
    worker = bench.worker(serving=serving).wait_ready()
    bench.wait_ended()
    for action, (cause, _) in poison.items():
        _check(bench, harmful[action], cause)
    assert {bench.job(number).attempt for number in harmless} == {1}
    assert worker.running
    assert worker.terminate() == 0
    bench.costs(dict.fromkeys(harmful.values(), JobState.FAILED))


@one_ledger()
def test_fault_16_poison_is_stopped_by_the_time_limit_of_its_job(bench):
    """Fault 16: a call without an end costs its own job alone, although calls have no limit."""
    (poison,) = bench.submit(1, action="loop", attempts_max=1, time_limit_s=1.5)
    worker = bench.worker(serving={"instances": 2}).wait_ready()
    bench.wait_executing([poison])
    bench.submit(HARMLESS, work_ms=10)
    bench.wait_ended()
    _check(bench, poison, Cause.TIMEOUT)
    assert "time limit of 1.5 s" in bench.job(poison).failure.message
    assert worker.terminate() == 0
    bench.costs({poison: JobState.FAILED})


def test_fault_16_poison_that_kills_the_worker_itself(sqlite_bench):
    """Fault 16: a job whose workers die again and again fails, and runs alone before that."""
    bench = sqlite_bench
    (poison,) = bench.submit(1, action="wait", attempts_max=3)
    for attempt in (1, 2, 3):
        worker = bench.worker(lease_s=SHORT_LEASE_S).wait_ready()
        bench.wait_executing([poison], times=attempt)
        bench.fault_happens(worker.name)
        worker.kill()
    bench.worker().wait_ready()
    others = bench.submit(HARMLESS, work_ms=5)
    bench.wait_ended()
    job = bench.job(poison)
    assert (job.failure.cause, job.attempt, job.crashes) == (Cause.POISON, 3, 3)
    assert [e.event for e in bench.ledger.history(job.id)] == [HistoryEvent.LEASE_LOST] * 3
    assert {bench.job(number).attempt for number in others} == {1}
    bench.costs({poison: JobState.FAILED})


def _check(bench: Bench, poison: int, cause: Cause) -> None:
    job = bench.job(poison)
    assert job.state is JobState.FAILED
    assert job.failure.cause is cause, job.failure
    assert str(bench.folder) not in job.failure.message
    assert job.attempt == job.spec.attempts_max
