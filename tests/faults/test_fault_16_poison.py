"""Fault 16: jobs that do harm."""

import pytest

from faults.bench import Bench, one_ledger
from headrace.engine.cgroup import own_groups
from headrace.jobs.cause import Cause
from headrace.jobs.job import HistoryEvent
from headrace.jobs.state import JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 2**20
HARMLESS = 40
_grouped = pytest.mark.skipif(
    "memory" not in own_groups() or "pids" not in own_groups(), reason="no control group can be made here"
)


@pytest.mark.parametrize(
    ("deed", "cause", "attempts", "serving"),
    [
        ("segfault", Cause.CRASH, 2, {}),
        pytest.param("hog", Cause.OOM, 1, {"memory_bytes_max": 256 * MIB}, marks=_grouped),
        ("loop", Cause.TIMEOUT, 1, {"call_timeout_s": 1.0}),
        ("hold", Cause.TIMEOUT, 1, {"call_timeout_s": 1.0}),
        ("leave", Cause.MODEL, 2, {}),
        pytest.param("fork", Cause.MODEL, 1, {"processes_max": 64}, marks=_grouped),
    ],
)
def test_fault_16_poison_among_harmless_jobs(sqlite_bench, deed, cause, attempts, serving):
    """Fault 16: it fails for good, of the right cause, after its attempts; all others complete, at their first."""
    bench = sqlite_bench
    before = bench.submit(HARMLESS // 2, work_ms=10)
    (poison,) = bench.submit(1, deed=deed, attempts_max=attempts)
    after = bench.submit(HARMLESS // 2, work_ms=10)
    worker = bench.worker(serving=serving).wait_ready()
    bench.wait_ended()
    _check(bench, poison, cause)
    assert {bench.job(number).attempt for number in before + after} == {1}
    assert worker.running
    assert worker.end() == 0
    bench.tally({poison: JobState.FAILED})


@one_ledger()
def test_fault_16_poison_that_is_stopped_by_the_job_s_own_time_limit(bench):
    """Fault 16: a call without end costs its own job alone, where no bound was set for calls."""
    (poison,) = bench.submit(1, deed="loop", attempts_max=1, time_limit_s=1.5)
    worker = bench.worker(serving={"instances": 2}).wait_ready()
    bench.wait_executing([poison])
    bench.submit(HARMLESS, work_ms=10)
    bench.wait_ended()
    _check(bench, poison, Cause.TIMEOUT)
    assert "time limit of 1.5 s" in bench.job(poison).failure.message
    assert worker.end() == 0
    bench.tally({poison: JobState.FAILED})


def test_fault_16_poison_that_kills_the_worker_itself(sqlite_bench):
    """Fault 16: a job under which its worker died, again and again, comes to an end, and is worked on alone before that."""
    bench = sqlite_bench
    (poison,) = bench.submit(1, deed="wait", attempts_max=3)
    for attempt in (1, 2, 3):
        worker = bench.worker().wait_ready()
        bench.wait_executing([poison], times=attempt)
        bench.wreck(worker.name)
        worker.kill()
    bench.worker().wait_ready()
    others = bench.submit(HARMLESS, work_ms=5)
    bench.wait_ended()
    job = bench.job(poison)
    assert (job.failure.cause, job.attempt, job.crashes) == (Cause.POISON, 3, 3)
    assert [e.event for e in bench.ledger.history(job.id)] == [HistoryEvent.LEASE_LOST] * 3
    assert {bench.job(number).attempt for number in others} == {1}
    bench.tally({poison: JobState.FAILED})


def _check(bench: Bench, poison: int, cause: Cause) -> None:
    job = bench.job(poison)
    assert job.state is JobState.FAILED
    assert job.failure.cause is cause, job.failure
    assert str(bench.folder) not in job.failure.message
    assert job.attempt == job.spec.attempts_max
