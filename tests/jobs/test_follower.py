"""Followers: one thread completes every waiter as soon as its condition holds."""

import threading

import pytest

from headrace.core.errors import JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.job import JobProgress, NewJob
from headrace.jobs.ledger import ClaimRequest, Heartbeat
from headrace.jobs.shared_calls import Follower
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock, MemoryJobLedger, check_service

WAIT_S = 20.0
CLAIM = ClaimRequest("w", ("default",), 10, 1000)


@pytest.fixture
def ledger():
    made = MemoryJobLedger(ManualWallClock())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def follower(ledger):
    made = Follower(ledger, followers_max=300)
    made.start()
    yield made
    made.stop()


def submitted(ledger):
    return ledger.submit([NewJob(model="m")])[0].job


def ended(job):
    return job.state.ended


def test_follower_is_a_service(ledger):
    check_service(lambda: Follower(ledger))


def test_fulfilled_condition_completes_at_once(ledger, follower):
    job = submitted(ledger)
    assert follower.follow(job.id, lambda _: True).job.result(WAIT_S) == job
    assert follower.followers == 0


def test_change_completes_the_waiters_it_concerns(ledger, follower):
    job, other = submitted(ledger), submitted(ledger)
    ends = [follower.follow(job.id, ended) for _ in range(200)]
    begins = follower.follow(other.id, lambda job: job.state is JobState.RUNNING)
    ledger.cancel(job.id)
    assert {waiting.job.result(WAIT_S).state for waiting in ends} == {JobState.CANCELLED}
    assert not begins.job.done()
    (run,) = ledger.settle_and_claim((), CLAIM).claimed
    assert begins.job.result(WAIT_S) == run
    assert sum(t.name == "headrace-follow" for t in threading.enumerate()) == 1


def test_progress_completes_a_waiter(ledger, follower):
    submitted(ledger)
    (run,) = ledger.settle_and_claim((), CLAIM).claimed
    waiting = follower.follow(run.id, lambda job: job.progress is not None)
    ledger.heartbeat("w", [Heartbeat(run.id, run.lease, JobProgress(1, 2))], 1000)
    assert waiting.job.result(WAIT_S).progress == JobProgress(1, 2)


def test_deleted_job_fails_the_waiter(ledger, follower):
    job = submitted(ledger)
    waiting = follower.follow(job.id, lambda _: False)
    ledger.cancel(job.id)
    ledger.delete(job.id)
    with pytest.raises(JobNotFoundError):
        waiting.job.result(WAIT_S)


def test_removed_waiter_is_cancelled(ledger, follower):
    job = submitted(ledger)
    waiting = follower.follow(job.id, ended)
    follower.leave(waiting)
    follower.leave(waiting)
    ledger.cancel(job.id)
    follower.poll()
    assert waiting.job.cancelled()
    assert follower.followers == 0


def test_waiters_survive_an_outage(ledger, follower):
    job = submitted(ledger)
    ledger.unavailable = True
    waiting = follower.follow(job.id, ended)
    ledger.unavailable = False
    ledger.cancel(job.id)
    assert waiting.job.result(WAIT_S).state is JobState.CANCELLED


def test_too_many_waiters_are_refused(ledger, follower):
    job = submitted(ledger)
    all_waiting = [follower.follow(job.id, ended) for _ in range(300)]
    with pytest.raises(OverloadedError):
        follower.follow(job.id, ended)
    follower.leave(all_waiting[0])
    follower.follow(job.id, ended)


def test_stop_fails_all_waiters(ledger):
    follower = Follower(ledger)
    with pytest.raises(StoppedError):
        follower.follow("x", ended)
    follower.start()
    waiting = follower.follow(submitted(ledger).id, ended)
    follower.stop()
    with pytest.raises(StoppedError):
        waiting.job.result(0)
    with pytest.raises(StoppedError):
        follower.follow("x", ended)


def test_raising_condition_fails_its_waiter_only(ledger, follower):
    job = submitted(ledger)

    def broken(job):
        raise ValueError("broken")

    bad = follower.follow(job.id, broken)
    good = follower.follow(job.id, ended)
    with pytest.raises(ValueError, match="broken"):
        bad.job.result(WAIT_S)
    ledger.cancel(job.id)
    assert good.job.result(WAIT_S).state is JobState.CANCELLED
