"""Repeated transactions, and notices of commits."""

import sqlite3

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.ledgers import database as database_module
from headrace.jobs.ledgers.database import Database, Engines, Statement, exc, sa
from headrace.jobs.ledgers.outbox import NotificationRows

ONE = Statement("SELECT 1", "SELECT 1")


def lost_connection():
    return sqlite3.OperationalError("server closed the connection")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(database_module, "_PAUSES_S", (0.0, 0.001, 0.001))


@pytest.fixture
def notices():
    return []


@pytest.fixture
def database(tmp_path, notices):
    def connect():
        engine = sa.create_engine(f"sqlite:///{tmp_path}/x.db")
        return Engines(engine, engine)

    database = Database(connect, where="in a test", on_commit=notices.append, outbox=NotificationRows())
    database.open()
    yield database
    database.close()


def test_transaction_is_repeated_after_a_lost_connection(database):
    calls = []

    def operation(transaction):
        calls.append(1)
        if len(calls) < 3:
            raise lost_connection()
        return transaction.run(ONE)[0][0]

    assert database.run(operation) == 1
    assert (len(calls), database.errors) == (3, 2)


def test_transaction_is_given_up_after_a_few_tries(database):
    def operation(transaction):
        raise lost_connection()

    with pytest.raises(JobLedgerUnavailableError, match=r"server closed the connection.*nothing was written"):
        database.run(operation)
    assert database.errors == 4


def lost_while_committing():
    cause = sqlite3.InternalError("terminating connection")
    return exc.InternalError("COMMIT", {}, cause, connection_invalidated=True)


@pytest.mark.parametrize("error", [lost_connection(), lost_while_committing()])
@pytest.mark.parametrize("repeatable", [True, False])
def test_commit_without_a_response_is_repeated_only_if_safe(database, repeatable, error):
    # The commit may have happened.
    calls = []
    commits = []

    def commit(connection):
        commits.append(1)
        if len(commits) == 1:
            raise error

    sa.event.listen(database.open(), "commit", commit)

    def operation(transaction):
        calls.append(1)
        return transaction.run(ONE)[0][0]

    if repeatable:
        assert database.run(operation, repeatable=True) == 1
        assert len(calls) == 2
        return
    with pytest.raises(JobLedgerUnavailableError, match="it is unknown"):
        database.run(operation, repeatable=False)
    assert len(calls) == 1


def test_own_errors_are_not_hidden(database):
    calls = []

    def operation(transaction):
        calls.append(1)
        transaction.run(Statement(*["SELECT * FROM nothing_of_that_name WHERE"] * 2))

    with pytest.raises(JobLedgerUnavailableError):  # SQLite raises OperationalError for it
        database.run(operation)

    def refused(transaction):
        raise sqlite3.ProgrammingError("permission denied")

    with pytest.raises(sqlite3.ProgrammingError, match="permission denied"):
        database.run(refused)


def test_notice_follows_the_commit(database, notices):
    def operation(transaction):
        transaction.notice.queues.add("a")
        assert notices == []

    database.run(operation)
    assert [notice.queues for notice in notices] == [{"a"}]

    def failing(transaction):
        transaction.notice.queues.add("b")
        raise KeyError("b")

    with pytest.raises(KeyError):
        database.run(failing)
    database.run(lambda transaction: None)
    assert len(notices) == 1


def test_closed_database_raises(database):
    database.close()
    database.close()
    with pytest.raises(JobLedgerUnavailableError, match="not started"):
        database.run(lambda transaction: None, read_only=True)
