"""What is PostgreSQL's own: connections that go away, news over the network, and the database's clock."""

import threading
import time

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.cause import Cause
from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, Progress, ResultRef, Settlement
from headrace.jobs.ledger import Beat, ClaimRequest, JobFilter
from headrace.jobs.ledgers.postgres import PostgresJobLedger, _payload
from headrace.testing import ManualWallClock, check_service
from jobs.ledgers_under_test import follow_clock

CLAIM = ClaimRequest("w", ("default",), 10, 60_000)


@pytest.fixture
def ledger(postgres_url):
    ledger = PostgresJobLedger(postgres_url)
    ledger.start()
    yield ledger
    ledger.stop()


def until_it_answers(act):
    """What `act` answers, once it does."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return act()
        except JobLedgerUnavailableError:
            assert time.monotonic() < until_s


def test_its_life(postgres_url):
    check_service(lambda: PostgresJobLedger(postgres_url))


def test_connections_that_are_lost_are_made_again(ledger, postgres, postgres_url):
    """A verb that meets one is done again by itself."""
    (made,) = ledger.submit([NewJob()])
    database = postgres_url.rpartition("/")[2]
    for _ in range(5):
        assert postgres.terminate_backends(database) > 0
        assert ledger.get(made.job.id) == made.job
        postgres.terminate_backends(database)
        ledger.submit([NewJob()])
    assert ledger.counts("default").due == 6
    assert ledger.statistics()["errors"] > 0


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_server_that_goes_away_and_comes_back(ledger, postgres, how):
    """Verbs say so meanwhile, and go on afterwards; what they did is there; who waits is woken."""
    (made,) = ledger.submit([NewJob()])
    wakeup = ledger.wakeup(["default"])
    wakeup.wait(5)
    (job,) = ledger.turn([], CLAIM).claimed
    if how == "kill":
        postgres.kill()
    else:
        postgres.stop(immediate=True)
    with pytest.raises(JobLedgerUnavailableError, match="nothing was written"):
        ledger.beat("w", [Beat(job.id, job.lease)], 60_000)
    while wakeup.wait(0.05):  # what had been told before; then it waits, without an error
        pass
    postgres.start()
    assert wakeup.wait(30)
    reply = until_it_answers(lambda: ledger.beat("w", [Beat(job.id, job.lease)], 60_000))
    assert reply.lost == frozenset()
    assert ledger.turn([Settlement(job.id, job.lease, Completed(ResultRef("memory://a")))]).accepted == (
        True,
    )
    while wakeup.wait(0.2):
        pass
    ledger.submit([NewJob()])
    assert wakeup.wait(30)
    assert ledger.get(made.job.id).result == ResultRef("memory://a")
    wakeup.close()


def test_no_database_at_all(postgres):
    missing = PostgresJobLedger(postgres.url("no_such_database"))
    with pytest.raises(JobLedgerUnavailableError, match="no_such_database"):
        missing.start()
    missing.stop()


def test_a_password_is_in_no_message(postgres):
    url = postgres.url("no_such_database").replace("postgres@", "postgres:secret@")
    with pytest.raises(JobLedgerUnavailableError) as raised:
        PostgresJobLedger(url).start()
    assert "secret" not in str(raised.value)


def test_threads_divide_the_jobs_without_waiting(ledger):
    ledger.submit([NewJob() for _ in range(200)])
    claimed = []

    def work(name):
        while jobs := ledger.turn([], ClaimRequest(name, ("default",), 3, 60_000)).claimed:
            claimed.extend(job.id for job in jobs)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(claimed) == len(set(claimed)) == 200


def test_a_row_that_somebody_keeps_locked_is_passed_over(ledger, postgres, postgres_url):
    first, second = (answer.job for answer in ledger.submit([NewJob(priority=0), NewJob(priority=1)]))
    with postgres.connect(postgres_url.rpartition("/")[2]) as other, other.transaction():
        other.execute("SELECT 1 FROM headrace_job WHERE id = %s FOR UPDATE", (first.id,))
        assert [job.id for job in ledger.turn([], CLAIM).claimed] == [second.id]
    assert [job.id for job in ledger.turn([], CLAIM).claimed] == [first.id]


def test_beats_and_turns_of_the_same_jobs_never_wait_in_a_circle(ledger):
    """They lock rows in one order, whatever the order in which they are told of them."""
    ledger.submit([NewJob(attempts_max=1000) for _ in range(10)])
    jobs = {job.id: job.lease for job in ledger.turn([], CLAIM).claimed}
    stop = threading.Event()
    beats = [Beat(job_id, lease, Progress(1)) for job_id, lease in jobs.items()]

    def beat(ordered):
        while not stop.is_set():
            ledger.beat("w", ordered, 60_000)

    threads = [threading.Thread(target=beat, args=(told,)) for told in (beats, beats[::-1])]
    for thread in threads:
        thread.start()
    for _ in range(30):
        again = Failed(JobFailure(Cause.MODEL, "again"), retry_ms=0)
        settlements = [Settlement(job_id, lease, again) for job_id, lease in jobs.items()]
        told = ledger.turn(settlements[::-1], CLAIM)
        assert all(told.accepted)
        jobs = {job.id: job.lease for job in told.claimed}
        assert len(jobs) == 10
    stop.set()
    for thread in threads:
        thread.join(30)
    assert ledger.statistics()["errors"] == 0


def test_only_the_databases_clock_counts(ledger, postgres, postgres_url, monkeypatch):
    """A submitter whose own clock is an hour wrong gets the same times."""
    clock = ManualWallClock()
    follow_clock(postgres, postgres_url.rpartition("/")[2], clock)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    (made,) = ledger.submit([NewJob(delay_ms=5_000, deadline_s=60)])
    now_ms = clock.now_ms()
    assert (made.job.created_at_ms, made.job.due_at_ms) == (now_ms, now_ms + 5_000)
    assert ledger.turn([], CLAIM).due_in_ms == 5_000
    clock.advance(-3_600_000)
    assert ledger.turn([], CLAIM).claimed == ()


def test_settings_of_connections(ledger, postgres, postgres_url):
    """Durable also where the server's default is not; plans without scans and sorts; everything has its time."""
    name = postgres_url.rpartition("/")[2]
    with postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    ledger.stop()
    ledger.start()

    def ask(transaction):
        names = ("synchronous_commit", "enable_seqscan", "enable_sort", "statement_timeout", "lock_timeout")
        return [transaction.connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert ledger._database.write(ask) == ["on", "off", "off", "30s", "10s"]


def test_texts_that_postgresql_does_not_take_are_mended(ledger):
    """An attempt that fails with such a message must not keep its worker from settling."""
    ledger.submit(
        [NewJob(model="a\0b", options={"text": "\0 \ud800"}, tags={"t": "\0"}, correlation_id="c\0")]
    )
    (job,) = ledger.turn([], CLAIM).claimed
    failure = JobFailure(Cause.MODEL, "it said \0 and \ud800")
    assert ledger.turn([Settlement(job.id, job.lease, Failed(failure))]).accepted == (True,)
    assert "it said" in ledger.get(job.id).failure.message
    assert "it said \N{REPLACEMENT CHARACTER}" in ledger.history(job.id)[0].message
    assert [found.id for found in ledger.find(JobFilter(model="a\N{REPLACEMENT CHARACTER}b")).jobs] == [
        job.id
    ]


def test_news_of_too_many_queues_are_news_for_all():
    assert _payload({"b", "a"}) == '["a","b"]'
    assert _payload({f"queue-{n:05d}" for n in range(2_000)}) == "*"


def test_a_wakeup_hears_its_own_queues_alone(ledger):
    wakeup = ledger.wakeup(["a"])
    watch = ledger.watch()
    assert wakeup.wait(5)  # it begins to listen
    assert watch.wait(5)
    ledger.submit([NewJob(queue="b")])
    assert watch.wait(10)
    assert not wakeup.wait(0.05)
    ledger.submit([NewJob(queue="a")])
    assert wakeup.wait(10)
    wakeup.close()
    watch.close()
    assert not wakeup.wait(5)
