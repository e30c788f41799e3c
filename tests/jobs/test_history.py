"""The history of a job, as clients see it: stored entries, claims and ends in the order of time."""

import pytest

from headrace.jobs.history import HistoryEvent, timeline
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Failed,
    JobFailure,
    NewJob,
    Released,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.state import Cause
from headrace.testing.doubles import ManualWallClock
from headrace.testing.job_ledger_memory import MemoryJobLedger

DONE = Completed(ResultRef("memory://result"))
BROKEN = JobFailure(Cause.MODEL, "it raised", "ValueError")


class Bench:
    def __init__(self):
        self.clock = ManualWallClock()
        self.ledger = MemoryJobLedger(self.clock)
        self.ledger.start()

    def submit(self, **values):
        (reply,) = self.ledger.submit([NewJob(**values)])
        return reply.job.id

    def claim(self, worker="w"):
        self.clock.advance(1)
        (job,) = self.ledger.settle_and_claim([], ClaimRequest(worker, ("default",), 1, 60_000)).claimed
        return job

    def settle(self, job, outcome):
        self.clock.advance(1)
        assert self.ledger.settle_and_claim([Settlement(job.id, job.lease, outcome)]).accepted == (True,)

    def entries(self, job_id):
        return timeline(self.ledger.get(job_id), self.ledger.history(job_id))

    def events(self, job_id):
        return [f"{entry.event.value} {entry.worker}".strip() for entry in self.entries(job_id)]


@pytest.fixture
def bench():
    return Bench()


def test_new_job_has_no_history(bench):
    assert bench.entries(bench.submit()) == []


def test_success_is_a_claim_and_an_end_without_stored_entries(bench):
    job_id = bench.submit()
    job = bench.claim("w-1")
    assert bench.events(job_id) == ["claimed w-1"]
    bench.settle(job, DONE)
    assert bench.ledger.history(job_id) == []
    claimed, completed = bench.entries(job_id)
    assert (claimed.event, claimed.worker, claimed.attempt) == (HistoryEvent.CLAIMED, "w-1", 1)
    assert claimed.at_ms == job.started_at_ms
    assert (completed.event, completed.lease) == (HistoryEvent.COMPLETED, job.lease)
    assert completed.at_ms == bench.ledger.get(job_id).ended_at_ms


def test_unblocked_job_shows_when_it_could_begin(bench):
    first = bench.submit()
    job_id = bench.submit(after=(first,))
    assert bench.entries(job_id) == []
    bench.settle(bench.claim(), DONE)
    bench.claim("w-1")
    assert bench.events(job_id) == ["unblocked", "claimed w-1"]
    assert bench.entries(job_id)[0].at_ms == bench.ledger.get(first).ended_at_ms


def test_every_claim_retry_and_end_is_listed_in_order(bench):
    job_id = bench.submit(attempts_max=2)
    bench.settle(bench.claim("w-1"), Failed(BROKEN, retry_ms=0))
    bench.settle(bench.claim("w-2"), Released())
    bench.settle(bench.claim("w-3"), Failed(BROKEN, retry_ms=0))
    assert bench.events(job_id) == [
        "claimed w-1",
        "attempt_failed w-1",
        "claimed w-2",
        "released w-2",
        "claimed w-3",
        "attempt_failed w-3",
        "failed",
    ]
    failed = bench.entries(job_id)[-1]
    assert (failed.cause, failed.message) == ("model", "it raised")
    assert [entry.lease for entry in bench.entries(job_id)] == [1, 1, 2, 2, 3, 3, 3]


def test_requeued_job_keeps_the_claims_and_ends_before(bench):
    job_id = bench.submit()
    bench.settle(bench.claim("w-1"), DONE)
    bench.clock.advance(1)
    bench.ledger.requeue(job_id, by="anna")
    bench.settle(bench.claim("w-2"), Released())
    assert bench.events(job_id) == [
        "claimed w-1",
        "completed",
        "requeued",
        "claimed w-2",
        "released w-2",
    ]


def test_cancellation_during_an_attempt_follows_its_claim(bench):
    job_id = bench.submit()
    job = bench.claim("w-1")
    bench.clock.advance(1)
    bench.ledger.cancel(job_id, by="anna")
    bench.settle(job, Cancelled())
    assert bench.events(job_id) == ["claimed w-1", "cancel_requested w-1", "cancelled"]


def test_job_cancelled_while_it_waits_again_has_one_claim(bench):
    job_id = bench.submit()
    bench.settle(bench.claim("w-1"), Failed(BROKEN, retry_ms=1_000))
    bench.clock.advance(1)
    bench.ledger.cancel(job_id)
    assert bench.events(job_id) == ["claimed w-1", "attempt_failed w-1", "cancel_requested", "cancelled"]


def test_claim_is_before_an_end_at_the_same_time(bench):
    job_id = bench.submit()
    job = bench.claim("w-1")
    assert bench.ledger.settle_and_claim([Settlement(job.id, job.lease, DONE)]).accepted == (True,)
    assert bench.events(job_id) == ["claimed w-1", "completed"]
