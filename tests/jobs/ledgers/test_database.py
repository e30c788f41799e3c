"""What is done again, what is not, and what is said."""

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.ledgers.database import Database, Engines, Statement, exc, sa
from headrace.jobs.ledgers.dialect import SQLITE

ONE = Statement(lambda _: "SELECT 1")


class AwayError(Exception):
    pass


def lost() -> exc.OperationalError:
    return exc.OperationalError("SELECT 1", {}, AwayError("server closed the connection"))


@pytest.fixture
def told():
    return []


@pytest.fixture
def database(tmp_path, told):
    def connect():
        engine = sa.create_engine(f"sqlite:///{tmp_path}/x.db")
        return Engines(engine, engine)

    database = Database(SQLITE, connect, where="in a test", told=told.append)
    database.open()
    yield database
    database.close()


def test_a_transaction_that_met_a_lost_connection_is_done_again(database):
    calls = []

    def verb(transaction):
        calls.append(1)
        if len(calls) < 3:
            raise lost()
        return transaction.run(ONE)[0][0]

    assert database.write(verb) == 1
    assert (len(calls), database.errors) == (3, 2)


def test_it_is_given_up_after_a_few_times(database):
    def verb(transaction):
        raise lost()

    with pytest.raises(JobLedgerUnavailableError, match=r"server closed the connection.*nothing was written"):
        database.write(verb)
    assert database.errors == 4


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_commit_that_was_not_answered(database, repeatable):
    """Only what may be done twice is done again: it may have happened."""
    calls = []
    commits = []

    def commit(connection):
        commits.append(1)
        if len(commits) == 1:
            raise lost()

    sa.event.listen(database.open(), "commit", commit)

    def verb(transaction):
        calls.append(1)
        return transaction.run(ONE)[0][0]

    if repeatable:
        assert database.write(verb, repeatable=True) == 1
        assert len(calls) == 2
        return
    with pytest.raises(JobLedgerUnavailableError, match="not known"):
        database.write(verb, repeatable=False)
    assert len(calls) == 1


def test_errors_of_our_own_are_not_hidden(database):
    calls = []

    def verb(transaction):
        calls.append(1)
        transaction.run(Statement(lambda _: "SELECT * FROM nothing_of_that_name WHERE"))

    with pytest.raises(JobLedgerUnavailableError):  # SQLite has one class for both
        database.write(verb)

    def refused(transaction):
        raise exc.ProgrammingError("SELECT", {}, AwayError("permission denied"))

    with pytest.raises(exc.ProgrammingError):
        database.write(refused)


def test_news_is_told_after_the_commit_and_only_then(database, told):
    def verb(transaction):
        transaction.news.queues.add("a")
        assert told == []

    database.write(verb)
    assert [news.queues for news in told] == [{"a"}]

    def failing(transaction):
        transaction.news.queues.add("b")
        raise KeyError("b")

    with pytest.raises(KeyError):
        database.write(failing)
    database.write(lambda transaction: None)
    assert len(told) == 1


def test_closed_it_says_so(database):
    database.close()
    database.close()
    with pytest.raises(JobLedgerUnavailableError, match="not started"):
        database.read(lambda transaction: None)
