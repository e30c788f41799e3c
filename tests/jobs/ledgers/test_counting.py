"""The statement that writes the counts of a transaction: when it runs, and repeated transactions."""

import sqlite3

import pytest

from headrace.jobs.counters import CountedEvent
from headrace.jobs.job import Completed, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import database as database_module
from headrace.jobs.ledgers.database import Transaction, sa
from headrace.jobs.ledgers.sqlite import SqliteJobLedger

CLAIM = ClaimRequest("w", ("default",), 8, 60_000)
COUNTING = "INSERT INTO headrace_counter"


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(database_module, "_PAUSES_S", (0.0,))
    ledger = SqliteJobLedger(tmp_path / "jobs.db")
    ledger.start()
    yield ledger
    ledger.stop()


def jobs_of(ledger, event):
    return sum(count.jobs for count in ledger.counters() if count.event is event)


def test_counts_of_a_transaction_are_its_last_statement(ledger, statements):
    ledger.submit([NewJob("m"), NewJob("n")])
    (job, _) = ledger.settle_and_claim([], CLAIM).claimed
    ledger.submit([NewJob("m")])
    statements.clear()
    ledger.settle_and_claim([Settlement(job.id, job.lease, Completed(ResultRef("memory://x")))], CLAIM)
    assert [COUNTING in statement for statement in statements] == [*[False] * (len(statements) - 1), True]


def test_transaction_without_an_event_counts_nothing(ledger, statements):
    ledger.submit([NewJob("m", delay_ms=60_000)])
    statements.clear()
    ledger.settle_and_claim([], CLAIM)
    ledger.maintain(10)
    assert statements
    assert not any(COUNTING in statement for statement in statements)


def outage():
    return sqlite3.OperationalError("disk I/O error")


def test_repeated_transaction_counts_once(ledger, monkeypatch):
    failures = [outage()]
    run = Transaction.run

    def fail(transaction, statement, *records, **values):
        rows = run(transaction, statement, *records, **values)
        if COUNTING in statement.sqlite and failures:
            raise failures.pop()
        return rows

    monkeypatch.setattr(Transaction, "run", fail)
    ledger.submit([NewJob("m")])
    assert not failures
    assert jobs_of(ledger, CountedEvent.SUBMITTED) == 1


def test_submission_repeated_after_a_commit_without_a_response_counts_once(ledger):
    failures = [outage()]

    class Begun:
        """A transaction whose first commit succeeds without a response."""

        def __init__(self, begun):
            self._begun = begun

        def __enter__(self):
            self._begun.__enter__()
            return self

        def __exit__(self, *error):
            return self._begun.__exit__(*error)

        def commit(self):
            self._begun.commit()
            if failures:
                raise failures.pop()

    begin = sa.Connection.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa.Connection, "begin", lambda connection: Begun(begin(connection)))
        (reply,) = ledger.submit([NewJob("m")])
    assert not failures
    assert reply.created
    assert jobs_of(ledger, CountedEvent.SUBMITTED) == 1
