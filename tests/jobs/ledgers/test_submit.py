"""Submitting from many threads at once. What one submission does is in the conformance suite."""

import threading

import pytest

from headrace.core.errors import QueueFullError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter, QueueSettings, Submitted
from headrace.testing import ManualWallClock
from headrace.testing.job_checks.bench import at_once
from jobs.ledgers_under_test import LEDGERS

SQL = [name for name in LEDGERS if name != "memory"]


@pytest.fixture(params=SQL)
def ledgers(request):
    opened = LEDGERS[request.param](ManualWallClock(), request.getfixturevalue)
    pair = [opened(), opened()]
    for ledger in pair:
        ledger.start()
    yield pair
    for ledger in pair:
        ledger.stop()


def test_ten_thousand_submissions_of_one_key_make_one_job(ledgers):
    news = [NewJob(model="m", idempotency_key="k", body_digest="d")] * 100

    def submit(number):
        return [answer for _ in range(10) for answer in ledgers[number % 2].submit(news)]

    answers = [a for told in at_once([lambda n=n: submit(n) for n in range(10)]) for a in told]
    assert len(answers) == 10_000
    assert {answer.job.id for answer in answers} == {answers[0].job.id}
    assert sum(answer.created for answer in answers) == 1
    assert len(ledgers[0].find(JobFilter()).jobs) == 1


def test_jobs_of_one_call_fill_a_queue_to_its_bound(ledgers):
    """Those that were there already take no place of those that come."""
    ledger = ledgers[0]
    ledger.set_queue(QueueSettings("default", pending_max=5))
    ledger.submit([NewJob(idempotency_key=f"k{n}") for n in range(3)])
    answers = ledger.submit([NewJob(idempotency_key=f"k{n}") for n in range(7)])
    assert [isinstance(a, Submitted) and a.created for a in answers] == [False] * 3 + [True] * 2 + [False] * 2
    assert [type(a) for a in answers[5:]] == [QueueFullError] * 2
    assert ledger.counts("default").due == 5


def test_a_bound_holds_for_one_file_also_under_concurrent_submissions(ledgers):
    ledgers[0].set_queue(QueueSettings("default", pending_max=10))
    line = threading.Barrier(8)

    def submit(number):
        line.wait(30)
        return [a for _ in range(5) for a in ledgers[number % 2].submit([NewJob()])]

    answers = [a for told in at_once([lambda n=n: submit(n) for n in range(8)]) for a in told]
    made = sum(isinstance(a, Submitted) for a in answers)
    assert made == ledgers[0].counts("default").due
    # PostgreSQL's transactions of one moment do not see each other: one for each that submits may come too many.
    most = 10 if ledgers[0]._database.dialect.name == "sqlite" else 10 + 7
    assert 10 <= made <= most


def test_an_id_that_is_there_stands_for_its_job(ledgers):
    (first,) = ledgers[0].submit([NewJob(id="a", body_digest="d")])
    (again,) = ledgers[1].submit([NewJob(id="a", body_digest="d")])
    assert (first.created, again.created, again.job) == (True, False, first.job)
