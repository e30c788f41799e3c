"""Concurrent submissions. The conformance suite tests single ones."""

import threading

import pytest

from headrace.core.errors import QueueFullError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter, QueueSettings, SubmitReply
from headrace.testing import ManualWallClock
from headrace.testing.job_checks.bench import run_concurrently
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS


@pytest.fixture(params=SQL_LEDGERS)
def ledgers(request):
    opened = LEDGERS[request.param](ManualWallClock(), request.getfixturevalue)
    pair = [opened(), opened()]
    for ledger in pair:
        ledger.start()
    yield pair
    for ledger in pair:
        ledger.stop()


def test_ten_thousand_submissions_of_one_key_make_one_job(ledgers):
    jobs = [NewJob(model="m", idempotency_key="k", body_digest="d")] * 100

    def submit(number):
        return [reply for _ in range(10) for reply in ledgers[number % 2].submit(jobs)]

    results = run_concurrently([lambda n=n: submit(n) for n in range(10)])
    replies = [reply for result in results for reply in result]
    assert len(replies) == 10_000
    assert {reply.job.id for reply in replies} == {replies[0].job.id}
    assert sum(reply.created for reply in replies) == 1
    assert len(ledgers[0].find(JobFilter()).jobs) == 1


def test_one_call_fills_a_queue_to_its_limit(ledgers):
    # Repeated submissions do not count again.
    ledger = ledgers[0]
    ledger.set_queue(QueueSettings("default", pending_max=5))
    ledger.submit([NewJob(idempotency_key=f"k{n}") for n in range(3)])
    replies = ledger.submit([NewJob(idempotency_key=f"k{n}") for n in range(7)])
    created = [isinstance(reply, SubmitReply) and reply.created for reply in replies]
    assert created == [False] * 3 + [True] * 2 + [False] * 2
    assert [type(reply) for reply in replies[5:]] == [QueueFullError] * 2
    assert ledger.counts("default").due == 5


def test_queue_limit_holds_for_concurrent_submissions(ledgers):
    ledgers[0].set_queue(QueueSettings("default", pending_max=10))
    barrier = threading.Barrier(8)

    def submit(number):
        barrier.wait(30)
        return [reply for _ in range(5) for reply in ledgers[number % 2].submit([NewJob()])]

    results = run_concurrently([lambda n=n: submit(n) for n in range(8)])
    replies = [reply for result in results for reply in result]
    queued = sum(isinstance(reply, SubmitReply) for reply in replies)
    assert queued == ledgers[0].counts("default").due
    # Concurrent PostgreSQL transactions do not see each other, so each other thread may add one
    # job too many.
    queued_max = 10 if ledgers[0]._database.open().dialect.name == "sqlite" else 10 + 7
    assert 10 <= queued <= queued_max


def test_existing_id_returns_its_job(ledgers):
    (first,) = ledgers[0].submit([NewJob(id="a", body_digest="d")])
    (second,) = ledgers[1].submit([NewJob(id="a", body_digest="d")])
    assert (first.created, second.created, second.job) == (True, False, first.job)
