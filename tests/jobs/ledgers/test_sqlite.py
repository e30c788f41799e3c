"""The SQLite ledger: its file, several processes, and waiting without a server."""

import sqlite3
import subprocess
import sys
import threading

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import database, sql, sqlite
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import check_service

CLAIM = ClaimRequest("w", ("default",), 10, 60_000)
SUBMITTER = """
import sys
from headrace.jobs.job import NewJob
from headrace.jobs.ledgers.sqlite import SqliteJobLedger

ledger = SqliteJobLedger(sys.argv[1])
ledger.start()
for _ in range(int(sys.argv[2])):
    ledger.submit([NewJob(model="m")])
ledger.stop()
"""
CLAIMER = """
import sys
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers.sqlite import SqliteJobLedger

ledger = SqliteJobLedger(sys.argv[1])
ledger.start()
while jobs := ledger.settle_and_claim([], ClaimRequest(sys.argv[2], ("default",), 3, 60_000)).claimed:
    print(*(job.id for job in jobs), sep="\\n")
ledger.stop()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def ledger(path):
    ledger = SqliteJobLedger(path)
    ledger.start()
    yield ledger
    ledger.stop()


def python(code, *arguments) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def output_of(process) -> str:
    """Wait until the process succeeds, and return its output."""
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return printed


def test_files_of_an_existing_database_are_closed_to_other_users(tmp_path):
    files = [tmp_path / f"jobs.db{suffix}" for suffix in ("", "-wal", "-shm")]
    first, second = (SqliteJobLedger(files[0]) for _ in range(2))
    first.start()
    first.submit([NewJob(model="m")])
    for file in files:
        file.chmod(0o644)
    second.start()
    assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 3
    second.stop()
    first.stop()


def test_start_and_stop(tmp_path):
    numbers = iter(range(1000))
    check_service(lambda: SqliteJobLedger(tmp_path / f"{next(numbers)}.db"))


def test_operations_wait_for_no_migration(path, monkeypatch):
    """Probes of a server come while its ledger starts."""
    migrating, continued = threading.Event(), threading.Event()
    migrate = sql.migrate

    def slow_migrate(*args, **named):
        migrating.set()
        assert continued.wait(10)
        migrate(*args, **named)

    monkeypatch.setattr(sql, "migrate", slow_migrate)
    ledger = SqliteJobLedger(path)
    starting = threading.Thread(target=ledger.start)
    starting.start()
    try:
        assert migrating.wait(10)
        with pytest.raises(JobLedgerUnavailableError, match="not started"):
            ledger.queues()
    finally:
        continued.set()
        starting.join(10)
    assert ledger.queues() == []
    ledger.stop()


def test_commits_are_durable(ledger):
    # A write-ahead log that each commit forces to the disk.

    def pragmas(transaction):
        execute = transaction.connection.exec_driver_sql
        return execute("PRAGMA journal_mode").scalar(), execute("PRAGMA synchronous").scalar()

    assert ledger._database.run(pragmas) == ("wal", 2)


@pytest.mark.slow
def test_processes_divide_the_jobs(ledger, path):
    submitters = [python(SUBMITTER, path, 20) for _ in range(3)]
    for process in submitters:
        output_of(process)
    claimers = [python(CLAIMER, path, f"w{n}") for n in range(3)]
    claimed = [line for process in claimers for line in output_of(process).split()]
    assert len(claimed) == len(set(claimed)) == 60


@pytest.mark.slow
def test_commit_of_another_process_wakes_the_waiter(ledger, path):
    wakeup = ledger.wakeup(["default"])
    assert not wakeup.wait(0.02)
    process = python(SUBMITTER, path, 1)
    assert wakeup.wait(30)
    output_of(process)
    wakeup.close()
    wakeup.close()


def test_commit_of_another_connection_wakes_soon(ledger, path):
    other = SqliteJobLedger(path)
    other.start()
    wakeup = ledger.wakeup(["default"])
    for _ in range(3):
        while wakeup.wait(0.03):
            pass
        thread = threading.Thread(target=other.submit, args=([NewJob()],))
        thread.start()
        assert wakeup.wait(10)
        thread.join()
    assert sqlite.POLL_S <= 0.02
    wakeup.close()
    other.stop()


def test_commit_of_another_queue_does_not_wake(ledger):
    wakeup = ledger.wakeup(["a"])
    waiter = wakeup._waiter
    ledger.submit([NewJob(queue="b")])
    assert not waiter.wait(0)
    ledger.submit([NewJob(queue="a")])
    assert waiter.wait(0)
    wakeup.close()


def test_locked_file_blocks_writers_only(ledger, path, monkeypatch):
    # Writes wait and then fail, until the file is free.
    monkeypatch.setattr(sqlite, "BUSY_S", 0.02)
    monkeypatch.setattr(database, "_PAUSES_S", (0.0, 0.0, 0.0))
    ledger_of_short_waits = SqliteJobLedger(path)
    ledger_of_short_waits.start()
    (submitted,) = ledger_of_short_waits.submit([NewJob()])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert ledger_of_short_waits.get(submitted.job.id) == submitted.job
    with pytest.raises(JobLedgerUnavailableError, match="locked"):
        ledger_of_short_waits.submit([NewJob()])
    other.execute("ROLLBACK")
    other.close()
    assert len(ledger_of_short_waits.settle_and_claim([], CLAIM).claimed) == 1
    ledger_of_short_waits.stop()


def test_invalid_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        SqliteJobLedger(tmp_path / "nowhere" / "jobs.db").start()
    (tmp_path / "text.db").write_text("this is no database, and much longer than a header would be\n" * 50)
    with pytest.raises(JobLedgerUnavailableError, match="not a database"):
        SqliteJobLedger(tmp_path / "text.db").start()


@pytest.mark.slow
def test_many_processes_start_at_once(path):
    processes = [python(SUBMITTER, path, 1) for _ in range(6)]
    for process in processes:
        output_of(process)
    ledger = SqliteJobLedger(path)
    ledger.start()
    assert ledger.counts("default").due == 6
    ledger.stop()


def test_full_disk_fails_the_write_only(ledger, path):
    # Earlier jobs stay, and the file is not damaged.
    (submitted,) = ledger.submit([NewJob()])

    def limit_pages(transaction):
        connection = transaction.connection
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")

    ledger._database.run(limit_pages)
    with pytest.raises(JobLedgerUnavailableError, match="full"):
        ledger.submit([NewJob(options={"filler": "x" * 100_000})])
    assert ledger.get(submitted.job.id) == submitted.job
    assert len(ledger.settle_and_claim([], CLAIM).claimed) == 1
    checking = sqlite3.connect(path)
    assert checking.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checking.close()
