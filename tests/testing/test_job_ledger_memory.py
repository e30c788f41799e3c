"""The ledger in memory, beside what the conformance suite asks of it: what tests that stand on it may rely on."""

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest, JobLedger
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock, MemoryJobLedger
from headrace.testing.job_ledger_memory import lost_delay_ms

CLAIM = ClaimRequest("w", ("default",), 5, 1_000)


def started(clock=None, **named):
    ledger: JobLedger = MemoryJobLedger(clock or ManualWallClock(), **named)
    ledger.start()
    return ledger


def test_a_ledger_that_is_away_does_nothing_and_counts_it():
    ledger = started()
    ledger.away = True
    for _ in range(2):
        with pytest.raises(JobLedgerUnavailableError, match="is away"):
            ledger.submit([NewJob()])
    ledger.away = False
    assert ledger.counts("default").due == 0
    assert ledger.statistics()["errors"] == 2


def test_a_ledger_beside_another_shares_its_jobs_but_not_its_life():
    first = started()
    second = MemoryJobLedger(ManualWallClock(), beside=first)
    with pytest.raises(JobLedgerUnavailableError, match="not started"):
        second.queues()
    second.start()
    first.submit([NewJob()])
    assert second.counts("default").due == 1
    second.stop()
    assert first.counts("default").due == 1


def test_how_long_a_lost_job_waits_can_be_set():
    clock = ManualWallClock()
    ledger = started(clock, lost_delay_ms=lambda job: 7_000 * job.attempt)
    ledger.submit([NewJob()])
    (job,) = ledger.turn([], CLAIM).claimed
    now_ms = clock.advance(2_000)
    ledger.maintain(10)
    assert ledger.get(job.id).due_at_ms == now_ms + 7_000


def test_how_long_a_lost_job_waits_is_bounded():
    ledger = started()
    ledger.submit([NewJob()])
    (job,) = ledger.turn([], CLAIM).claimed
    delays = [lost_delay_ms(type(job)(job.id, JobState.RUNNING, job.spec, attempt=n)) for n in (1, 2, 5, 99)]
    assert delays == [1_000, 2_000, 16_000, 60_000]
