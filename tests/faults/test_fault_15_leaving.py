"""Fault 15: workers that are told to leave while they have much to do."""

import contextlib
import signal
import subprocess

import pytest

from faults.bench import one_ledger
from headrace.jobs.job import HistoryEvent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]


def test_fault_15_leaving_lets_short_jobs_end_and_gives_long_ones_back(bench):
    """Fault 15: exit status 0, in time; what was given back has lost no attempt, and is done by another."""
    leaver = bench.worker(drain_grace_s=2.0, serving={"instances": 2}).wait_ready()
    (long,) = bench.submit(1, deed="wait_once", priority=0)
    bench.wait_executing([long])
    short = bench.submit(30, work_ms=100)
    bench.wait_any_executing(short)
    bench.wreck(leaver.name)
    assert leaver.end() == 0

    given_back = bench.job(long)
    assert (given_back.state.value, given_back.attempt) == ("pending", 0)
    assert [entry.event for entry in bench.ledger.history(bench.ids[long])] == [HistoryEvent.RELEASED]
    done = [n for n in short if bench.job(n).state.ended]
    assert done
    assert {bench.job(n).state.value for n in short} <= {"pending", "completed"}, "nothing is left running"
    bench.worker().wait_ready()
    bench.wait_ended()
    assert bench.tally().duplicate_executions <= 5
    assert all(bench.job(n).attempt == 1 for n in short)


def test_fault_15_leaving_at_once_when_it_is_said_twice(bench):
    """Fault 15: the second SIGTERM ends the grace; all goes back, nothing is lost, exit status 0."""
    leaver = bench.worker(drain_grace_s=100.0).wait_ready()
    numbers = bench.submit(4, deed="wait_once")
    bench.wait_any_executing(numbers)
    bench.wreck(leaver.name)
    leaver.signal(signal.SIGTERM)
    leaver.signal(signal.SIGTERM)
    # One signal may arrive as two do, where the second comes before the first was looked at.
    while leaver.running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            leaver.process.wait(1)
            break
        if any(job.state.value == "running" for job in bench.jobs(numbers).values()):
            leaver.signal(signal.SIGTERM)
    assert leaver.process.returncode == 0
    assert {bench.job(n).state.value for n in numbers} == {"pending"}
    assert {bench.job(n).attempt for n in numbers} == {0}
    bench.go()
    bench.worker().wait_ready()
    bench.wait_ended()
    bench.tally()
