"""Properties of the ledger in memory that other tests rely on, beyond the conformance suite."""

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest, JobLedger
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock, MemoryJobLedger
from headrace.testing.memory_jobs import lost_delay_ms

CLAIM = ClaimRequest("w", ("default",), 5, 1_000)


def started(clock=None, **named):
    ledger: JobLedger = MemoryJobLedger(clock or ManualWallClock(), **named)
    ledger.start()
    return ledger


def test_unavailable_ledger_does_nothing_and_counts_errors():
    ledger = started()
    ledger.unavailable = True
    for _ in range(2):
        with pytest.raises(JobLedgerUnavailableError, match="is unavailable"):
            ledger.submit([NewJob()])
    ledger.unavailable = False
    assert ledger.counts("default").due == 0
    assert ledger.statistics()["errors"] == 2


def test_ledgers_share_jobs_but_not_their_lifecycle():
    first = started()
    second = MemoryJobLedger(ManualWallClock(), beside=first)
    with pytest.raises(JobLedgerUnavailableError, match="not started"):
        second.queues()
    second.start()
    first.submit([NewJob()])
    assert second.counts("default").due == 1
    second.stop()
    assert first.counts("default").due == 1


def test_delay_after_a_lost_lease_can_be_set():
    clock = ManualWallClock()
    ledger = started(clock, lost_delay_ms=lambda job: 7_000 * job.attempt)
    ledger.submit([NewJob()])
    (job,) = ledger.settle_and_claim([], CLAIM).claimed
    now_ms = clock.advance(2_000)
    ledger.maintain(10)
    assert ledger.get(job.id).due_at_ms == now_ms + 7_000


def test_delay_after_a_lost_lease_is_limited():
    ledger = started()
    ledger.submit([NewJob()])
    (job,) = ledger.settle_and_claim([], CLAIM).claimed
    delays = [lost_delay_ms(type(job)(job.id, JobState.RUNNING, job.spec, attempt=n)) for n in (1, 2, 5, 99)]
    assert delays == [1_000, 2_000, 16_000, 60_000]
