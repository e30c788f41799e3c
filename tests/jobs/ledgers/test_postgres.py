"""The PostgreSQL ledger: lost connections, wakeups over the network, the database's clock."""

import itertools
import threading
import time
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.jobs.job import Completed, Failed, JobFailure, JobProgress, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest, Heartbeat, JobFilter, QueueSettings
from headrace.jobs.ledgers import postgres as postgres_ledger
from headrace.jobs.ledgers.database import Statement
from headrace.jobs.ledgers.postgres import PostgresJobLedger, TimedConnection, _payload
from headrace.jobs.state import Cause
from headrace.testing import ManualWallClock, check_service
from jobs.copied_jobs import copy_jobs
from jobs.ledger_fixtures import follow_clock
from servers.polling import reached
from servers.tcp_proxy import TcpProxy

CLAIM = ClaimRequest("w", ("default",), 10, 60_000)
ROWS_READ = Statement(
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables", sqlite=""
)


@pytest.fixture
def ledger(postgres_url):
    ledger = PostgresJobLedger(postgres_url)
    ledger.start()
    yield ledger
    ledger.stop()


def retry_until_available(act):
    """Call `act` until the ledger is available, and return its result."""
    results = []

    def succeeds():
        with suppress(JobLedgerUnavailableError):
            results.append(act())
        return results

    assert reached(succeeds, timeout_s=60)
    return results[0]


def test_start_and_stop(postgres_url):
    check_service(lambda: PostgresJobLedger(postgres_url))


def test_lost_connections_are_reopened(ledger, postgres, postgres_url):
    # Calls that meet a lost connection are repeated.
    (submitted,) = ledger.submit([NewJob()])
    database = postgres_url.rpartition("/")[2]
    for _ in range(5):
        assert postgres.terminate_backends(database) > 0
        assert ledger.get(submitted.job.id) == submitted.job
        postgres.terminate_backends(database)
        ledger.submit([NewJob()])
    assert ledger.counts("default").due == 6
    assert ledger.statistics()["errors"] > 0


def test_lost_connection_makes_the_pool_open_all_connections_again(ledger, postgres, postgres_url):
    engine = ledger._database.open()
    for connection in [engine.connect() for _ in range(4)]:
        connection.close()
    postgres.terminate_backends(postgres_url.rpartition("/")[2])
    for _ in range(4):
        ledger.now_ms()
    assert ledger.statistics()["errors"] == 1


def test_error_of_a_lost_connection_is_the_first_one(ledger):
    ends = Statement("SELECT pg_terminate_backend(pg_backend_pid())", "")
    with pytest.raises(JobLedgerUnavailableError, match="terminating connection due to administrator"):
        ledger._database.run(lambda transaction: transaction.run(ends))


def rows_read(transaction):
    return int(transaction.run(ROWS_READ)[0][0])


@pytest.mark.parametrize("analyzed", [False, True])
def test_plans_from_a_small_table_read_few_rows_of_a_large_one(ledger, postgres_url, analyzed):
    """A connection plans the statements of claims once, possibly while there are no jobs."""
    claiming = PostgresJobLedger(postgres_url, connections_max=1)

    def settle_and_claim(held, queue):
        """Return the claimed jobs and the number of rows that were read for them."""
        outcomes = itertools.cycle([Completed(ResultRef("memory://a")), Failed(JobFailure(Cause.MODEL, "x"))])
        settlements = [
            Settlement(job.id, job.lease, outcome) for job, outcome in zip(held, outcomes, strict=False)
        ]

        def run(transaction):
            before = rows_read(transaction)
            reply = PostgresJobLedger.settle_and_claim.__wrapped__(
                claiming, transaction, settlements, replace(CLAIM, queues=(queue,))
            )
            return reply.claimed, rows_read(transaction) - before

        return claiming._database.run(run)

    new = [
        NewJob(model="m"),
        *(NewJob(queue="shared", model="m", tenant=name) for name in "ab"),
        NewJob(queue="later", model="m", delay_ms=3_600_000),
    ]
    claiming.start()
    try:
        if analyzed:
            ledger.submit(new)
            ledger._database.run(lambda transaction: transaction.run(Statement("ANALYZE", "")))
        for queue in ("default", "shared", "later"):
            held = ()
            for _ in range(10):
                ledger.submit(new)
                held, _ = settle_and_claim(held, queue)
        for submitted in ledger.submit(new):
            copy_jobs(ledger, submitted.job.id, 3_000, id=f"'{submitted.job.id}-' || n")
        for queue, jobs in (("default", 10), ("shared", 10), ("later", 0)):
            held = ()
            for _ in range(3):
                held, rows = settle_and_claim(held, queue)
                assert len(held) == jobs
                assert rows < 200, (queue, rows)
    finally:
        claiming.stop()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_ledger_survives_a_server_restart(ledger, postgres, how):
    # Calls fail during the outage; afterwards nothing is lost and waiters are woken.
    (submitted,) = ledger.submit([NewJob()])
    wakeup = ledger.wakeup(["default"])
    wakeup.wait(5)
    (job,) = ledger.settle_and_claim([], CLAIM).claimed
    if how == "kill":
        postgres.kill()
    else:
        postgres.stop(immediate=True)
    with pytest.raises(JobLedgerUnavailableError, match="nothing was written"):
        ledger.heartbeat("w", [Heartbeat(job.id, job.lease)], 60_000)
    while wakeup.wait(0.05):  # wakeups from before the outage
        pass
    postgres.start()
    assert wakeup.wait(30)
    reply = retry_until_available(lambda: ledger.heartbeat("w", [Heartbeat(job.id, job.lease)], 60_000))
    assert reply.lost == frozenset()
    assert ledger.settle_and_claim(
        [Settlement(job.id, job.lease, Completed(ResultRef("memory://a")))]
    ).accepted == (True,)
    while wakeup.wait(0.2):
        pass
    ledger.submit([NewJob()])
    assert wakeup.wait(30)
    assert ledger.get(submitted.job.id).result == ResultRef("memory://a")
    wakeup.close()


def test_missing_server_is_unavailable(postgres):
    missing = PostgresJobLedger(postgres.url("no_such_database"))
    with pytest.raises(JobLedgerUnavailableError, match="no_such_database"):
        missing.start()
    missing.stop()


def test_server_that_never_answers_is_unavailable(postgres, postgres_url, monkeypatch):
    """Regression: a call on an acknowledged connection without an answer never returned."""
    monkeypatch.setattr(TimedConnection, "response_s", 0.3)
    with TcpProxy(postgres.port) as proxy:
        address = urlsplit(postgres_url)
        through = address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}").geturl()
        ledger = PostgresJobLedger(f"{through}?connect_timeout=2")
        ledger.start()
        notifier = ledger.watch()
        assert notifier.wait(20), "the first wait connects"
        ledger.set_queue(QueueSettings("q"))
        proxy.hold()
        with pytest.raises(JobLedgerUnavailableError, match="unavailable"):
            ledger.queue("q")
        proxy.heal()
        assert retry_until_available(lambda: ledger.queue("q")) == QueueSettings("q")
        notifier.close()
        proxy.hold()
        ledger.stop()


def test_messages_do_not_contain_the_password(postgres):
    url = postgres.url("no_such_database").replace("postgres@", "postgres:secret@")
    with pytest.raises(JobLedgerUnavailableError) as raised:
        PostgresJobLedger(url).start()
    assert "secret" not in str(raised.value)


def test_threads_divide_the_jobs_without_waiting(ledger):
    ledger.submit([NewJob() for _ in range(200)])
    claimed = []

    def work(name):
        while jobs := ledger.settle_and_claim([], ClaimRequest(name, ("default",), 3, 60_000)).claimed:
            claimed.extend(job.id for job in jobs)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(claimed) == len(set(claimed)) == 200


def test_locked_row_is_skipped(ledger, postgres, postgres_url):
    first, second = (reply.job for reply in ledger.submit([NewJob(priority=0), NewJob(priority=1)]))
    with postgres.connect(postgres_url.rpartition("/")[2]) as other, other.transaction():
        other.execute("SELECT 1 FROM headrace_job WHERE id = %s FOR UPDATE", (first.id,))
        assert [job.id for job in ledger.settle_and_claim([], CLAIM).claimed] == [second.id]
    assert [job.id for job in ledger.settle_and_claim([], CLAIM).claimed] == [first.id]


def test_heartbeats_and_settlements_do_not_deadlock(ledger):
    # Rows are locked in one order.
    ledger.submit([NewJob(attempts_max=1000) for _ in range(10)])
    jobs = {job.id: job.lease for job in ledger.settle_and_claim([], CLAIM).claimed}
    stop = threading.Event()
    heartbeats = [Heartbeat(job_id, lease, JobProgress(1)) for job_id, lease in jobs.items()]

    def heartbeat(ordered):
        while not stop.is_set():
            ledger.heartbeat("w", ordered, 60_000)

    threads = [
        threading.Thread(target=heartbeat, args=(ordered,)) for ordered in (heartbeats, heartbeats[::-1])
    ]
    for thread in threads:
        thread.start()
    for _ in range(30):
        failed = Failed(JobFailure(Cause.MODEL, "failed"), retry_ms=0)
        settlements = [Settlement(job_id, lease, failed) for job_id, lease in jobs.items()]
        reply = ledger.settle_and_claim(settlements[::-1], CLAIM)
        assert all(reply.accepted)
        jobs = {job.id: job.lease for job in reply.claimed}
        assert len(jobs) == 10
    stop.set()
    for thread in threads:
        thread.join(30)
    assert ledger.statistics()["errors"] == 0


def test_only_the_database_clock_counts(ledger, postgres, postgres_url, monkeypatch):
    # The submitter's own clock is wrong.
    clock = ManualWallClock()
    follow_clock(postgres, postgres_url.rpartition("/")[2], clock)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    (submitted,) = ledger.submit([NewJob(delay_ms=5_000, deadline_s=60)])
    now_ms = clock.now_ms()
    assert (submitted.job.created_at_ms, submitted.job.due_at_ms) == (now_ms, now_ms + 5_000)
    assert ledger.settle_and_claim([], CLAIM).due_in_ms == 5_000
    clock.advance(-3_600_000)
    assert ledger.settle_and_claim([], CLAIM).claimed == ()


def test_connections_have_their_settings(ledger, postgres, postgres_url):
    # Commits are durable also on servers with another default.
    name = postgres_url.rpartition("/")[2]
    with postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    ledger.stop()
    ledger.start()

    def show(transaction):
        names = ("synchronous_commit", "enable_seqscan", "enable_sort", "statement_timeout", "lock_timeout")
        return [transaction.connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert ledger._database.run(show) == ["on", "off", "off", "30s", "10s"]


def test_unsupported_characters_are_replaced(ledger):
    # A failure message must not prevent its settlement.
    ledger.submit(
        [NewJob(model="a\0b", options={"text": "\0 \ud800"}, tags={"t": "\0"}, correlation_id="c\0")]
    )
    (job,) = ledger.settle_and_claim([], CLAIM).claimed
    failure = JobFailure(Cause.MODEL, "it said \0 and \ud800")
    assert ledger.settle_and_claim([Settlement(job.id, job.lease, Failed(failure))]).accepted == (True,)
    assert "it said" in ledger.get(job.id).failure.message
    assert "it said \N{REPLACEMENT CHARACTER}" in ledger.history(job.id)[0].message
    listed = ledger.find(JobFilter(model="a\N{REPLACEMENT CHARACTER}b")).jobs
    assert [each.id for each in listed] == [job.id]


def test_notification_of_too_many_queues_wakes_all():
    assert _payload({"b", "a"}) == '["a","b"]'
    assert _payload({f"queue-{n:05d}" for n in range(2_000)}) == "*"


def test_waiter_is_woken_for_its_queues_only(ledger):
    wakeup = ledger.wakeup(["a"])
    watch = ledger.watch()
    assert wakeup.wait(5)  # the first wait begins to listen
    assert watch.wait(5)
    ledger.submit([NewJob(queue="b")])
    assert watch.wait(10)
    assert not wakeup.wait(0.05)
    ledger.submit([NewJob(queue="a")])
    assert wakeup.wait(10)
    wakeup.close()
    watch.close()
    assert not wakeup.wait(5)


def test_notices_of_all_changes_go_to_watching_processes_only(ledger, postgres_url, monkeypatch):
    """Each of 1,000 workers would otherwise receive the notices of every commit of the others."""
    worker = PostgresJobLedger(postgres_url, connections_max=1)
    channels, deliver = [], worker._channel._deliver
    monkeypatch.setattr(
        worker._channel, "_deliver", lambda *notice: channels.append(notice[0]) or deliver(*notice)
    )
    worker.start()
    wakeup = worker.wakeup(["a"])
    assert wakeup.wait(10)
    for queue in ("b", "a"):
        ledger.submit([NewJob(queue=queue)])
    assert wakeup.wait(10)
    assert set(channels) == {"headrace_work"}
    watch = worker.watch()
    assert reached(lambda: worker._channel._receives_changes)
    ledger.submit([NewJob(queue="b")])
    assert reached(lambda: "headrace_news" in channels)
    assert watch.wait(10)
    worker.stop()


def test_scarce_connections_are_left_to_transactions(postgres_url, monkeypatch, caplog):
    monkeypatch.setattr(postgres_ledger, "CONNECTIONS_PERCENT_MAX", 0)
    ledger = PostgresJobLedger(postgres_url)
    connect, connected = ledger._connect_for_notices, []
    monkeypatch.setattr(ledger._channel, "_connect", lambda: connected.append(1) or connect())
    ledger.start()
    wakeup = ledger.wakeup(["default"])
    for _ in range(20):
        ledger.submit([NewJob()])
        assert wakeup.wait(10), "commits of the own process wake it"
    assert reached(lambda: ledger._channel._crowded)
    ledger.submit([NewJob()])
    assert len(connected) == 1
    assert not ledger._channel.is_listening
    assert caplog.text.count("of the database's connections are used") == 1
    wakeup.close()
    ledger.stop()


WORKERS = 50


def test_50_workers_share_the_default_connections(postgres, postgres_url):
    """Each worker keeps one connection for its transactions. Notices take what is left, and not all of it."""
    with postgres.connect() as connection:
        assert connection.execute("SHOW max_connections").fetchone() == ("100",)
    api = PostgresJobLedger(postgres_url)
    api.start()
    ledgers = [PostgresJobLedger(postgres_url, connections_max=1) for _ in range(WORKERS)]
    done, errors, over = [], [], threading.Event()
    ready = threading.Barrier(WORKERS + 1)

    def work(number, ledger):
        try:
            ledger.start()
            wakeup = ledger.wakeup(["default"])
            ready.wait(120)
            claim, held = ClaimRequest(f"w{number}", ("default",), 2, 60_000), ()
            while not over.is_set():
                settled = [Settlement(job.id, job.lease, Completed(ResultRef("memory://x"))) for job in held]
                held = ledger.settle_and_claim(settled, claim).claimed
                done.extend(job.id for job in held)
                if not held:
                    wakeup.wait(0.5)
            wakeup.close()
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=each) for each in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    ready.wait(120)
    for _ in range(10):
        api.submit([NewJob() for _ in range(100)])
    assert reached(lambda: len(done) >= 1_000 or errors, timeout_s=120)
    with postgres.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        used = connection.execute(query).fetchone()[0]
    over.set()
    for thread in threads:
        thread.join(60)
    for ledger in (*ledgers, api):
        ledger.stop()
    assert errors == []
    assert len(done) == len(set(done)) == 1_000
    assert sum(ledger.statistics()["errors"] for ledger in ledgers) == 0
    assert used < 97, "the server keeps three connections for its owner"
