"""Followers: told as soon as there is news, by one thread for all, and never for nothing."""

import threading

import pytest

from headrace.core.errors import JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.following import Follower
from headrace.jobs.job import NewJob, Progress
from headrace.jobs.ledger import Beat, ClaimRequest
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


def test_it_lives_as_every_service_does(ledger):
    check_service(lambda: Follower(ledger))


def test_what_is_so_already_is_told(ledger, follower):
    job = submitted(ledger)
    assert follower.follow(job.id, lambda _: True).job.result(WAIT_S) == job
    assert follower.followers == 0


def test_news_is_told_to_whom_it_is_news(ledger, follower):
    job, other = submitted(ledger), submitted(ledger)
    ends = [follower.follow(job.id, ended) for _ in range(200)]
    begins = follower.follow(other.id, lambda job: job.state is JobState.RUNNING)
    ledger.cancel(job.id)
    assert {waiting.job.result(WAIT_S).state for waiting in ends} == {JobState.CANCELLED}
    assert not begins.job.done()
    (run,) = ledger.turn((), CLAIM).claimed
    assert begins.job.result(WAIT_S) == run
    assert sum(t.name == "headrace-follow" for t in threading.enumerate()) == 1


def test_progress_is_news(ledger, follower):
    submitted(ledger)
    (run,) = ledger.turn((), CLAIM).claimed
    waiting = follower.follow(run.id, lambda job: job.progress is not None)
    ledger.beat("w", [Beat(run.id, run.lease, Progress(1, 2))], 1000)
    assert waiting.job.result(WAIT_S).progress == Progress(1, 2)


def test_a_deleted_job_is_told(ledger, follower):
    job = submitted(ledger)
    waiting = follower.follow(job.id, lambda _: False)
    ledger.cancel(job.id)
    ledger.delete(job.id)
    with pytest.raises(JobNotFoundError):
        waiting.job.result(WAIT_S)


def test_whoever_leaves_is_told_nothing(ledger, follower):
    job = submitted(ledger)
    waiting = follower.follow(job.id, ended)
    follower.leave(waiting)
    follower.leave(waiting)
    ledger.cancel(job.id)
    follower.look()
    assert waiting.job.cancelled()
    assert follower.followers == 0


def test_an_outage_is_waited_for(ledger, follower):
    job = submitted(ledger)
    ledger.away = True
    waiting = follower.follow(job.id, ended)
    ledger.away = False
    ledger.cancel(job.id)
    assert waiting.job.result(WAIT_S).state is JobState.CANCELLED


def test_too_many_are_refused(ledger, follower):
    job = submitted(ledger)
    all_waiting = [follower.follow(job.id, ended) for _ in range(300)]
    with pytest.raises(OverloadedError):
        follower.follow(job.id, ended)
    follower.leave(all_waiting[0])
    follower.follow(job.id, ended)


def test_stopping_tells_all(ledger):
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


def test_a_question_that_raises_harms_nobody_else(ledger, follower):
    job = submitted(ledger)

    def broken(job):
        raise ValueError("broken")

    bad = follower.follow(job.id, broken)
    good = follower.follow(job.id, ended)
    with pytest.raises(ValueError, match="broken"):
        bad.job.result(WAIT_S)
    ledger.cancel(job.id)
    assert good.job.result(WAIT_S).state is JobState.CANCELLED
