"""Fault 15: workers are told to leave while they have many jobs."""

import signal

import pytest

from faults.bench import one_ledger
from headrace.jobs.history import HistoryEvent
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]


def test_fault_15_leaving_worker_ends_short_jobs_and_gives_long_ones_back(bench):
    """Fault 15: the exit status is 0; returned jobs lose no attempt, and another worker runs them."""
    leaver = bench.worker(drain_grace_s=2.0, serving={"instances": 2}).wait_ready()
    (long,) = bench.submit(1, action="wait_once", priority=0)
    bench.wait_executing([long])
    short = bench.submit(30, work_ms=100)
    bench.wait_any_executing(short)
    bench.fault_happens(leaver.name)
    assert leaver.terminate() == 0

    returned = bench.job(long)
    assert (returned.state.value, returned.attempt) == ("pending", 0)
    assert [entry.event for entry in bench.ledger.history(bench.ids[long])] == [HistoryEvent.RELEASED]
    assert bench.ended(short)
    assert {bench.job(n).state.value for n in short} <= {"pending", "completed"}, "a job is left running"
    bench.worker().wait_ready()
    bench.wait_ended()
    assert bench.costs().duplicate_executions <= 5
    assert all(bench.job(n).attempt == 1 for n in short)


def test_fault_15_leaving_worker_gives_all_back_after_a_second_signal(bench):
    """Fault 15: the second SIGTERM ends the grace period; all jobs go back; the exit status is 0."""
    leaver = bench.worker(drain_grace_s=100.0).wait_ready()
    numbers = bench.submit(4, action="wait_once")
    bench.wait_any_executing(numbers)
    bench.fault_happens(leaver.name)
    leaver.signal(signal.SIGTERM)

    # Two signals may arrive as one, so the second is repeated while jobs run.
    def left() -> bool:
        if any(job.state.value == "running" for job in bench.jobs(numbers).values()):
            leaver.signal(signal.SIGTERM)
        return not leaver.running

    wait_until(left, "the worker's exit")
    assert leaver.process.returncode == 0
    assert {bench.job(n).state.value for n in numbers} == {"pending"}
    assert {bench.job(n).attempt for n in numbers} == {0}
    bench.release()
    bench.worker().wait_ready()
    bench.wait_ended()
    bench.costs()
