"""What is SQLite's own: the file, its processes, and waiting without a server."""

import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import sqlite
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
while jobs := ledger.turn([], ClaimRequest(sys.argv[2], ("default",), 3, 60_000)).claimed:
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


def done(process) -> str:
    """What it has printed, once it has ended well."""
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return printed


def test_its_life(tmp_path):
    numbers = iter(range(1000))
    check_service(lambda: SqliteJobLedger(tmp_path / f"{next(numbers)}.db"))


def test_commits_are_durable(ledger):
    """Written ahead, and forced to the disk with each commit."""

    def ask(transaction):
        ask = transaction.connection.exec_driver_sql
        return ask("PRAGMA journal_mode").scalar(), ask("PRAGMA synchronous").scalar()

    assert ledger._database.write(ask) == ("wal", 2)


def test_processes_divide_the_jobs(ledger, path):
    submitters = [python(SUBMITTER, path, 20) for _ in range(3)]
    for process in submitters:
        done(process)
    claimers = [python(CLAIMER, path, f"w{n}") for n in range(3)]
    claimed = [line for process in claimers for line in done(process).split()]
    assert len(claimed) == len(set(claimed)) == 60


def test_another_process_wakes_who_waits(ledger, path):
    wakeup = ledger.wakeup(["default"])
    assert not wakeup.wait(0.02)
    process = python(SUBMITTER, path, 1)
    assert wakeup.wait(30)
    done(process)
    wakeup.close()
    wakeup.close()


def test_news_of_another_connection_come_soon(ledger, path):
    other = SqliteJobLedger(path)
    other.start()
    wakeup = ledger.wakeup(["default"])
    took = []
    for _ in range(20):
        while wakeup.wait(0.03):
            pass
        began = []

        def submit(began=began):
            began.append(time.perf_counter())
            other.submit([NewJob()])

        thread = threading.Thread(target=submit)
        thread.start()
        assert wakeup.wait(10)
        took.append(time.perf_counter() - began[0])
        thread.join()
    assert sorted(took)[2] < 0.1  # milliseconds, on a machine with nothing else to do
    wakeup.close()
    other.stop()


def test_within_the_process_other_queues_news_ring_no_bell(ledger):
    wakeup = ledger.wakeup(["a"])
    bell = wakeup._bell
    ledger.submit([NewJob(queue="b")])
    assert not bell.wait(0)
    ledger.submit([NewJob(queue="a")])
    assert bell.wait(0)
    wakeup.close()


def test_a_file_that_somebody_else_keeps_locked(ledger, path, monkeypatch):
    """Reading goes on; writing waits, then says so, and goes on when the file is free."""
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    impatient = SqliteJobLedger(path)
    impatient.start()
    (made,) = impatient.submit([NewJob()])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert impatient.get(made.job.id) == made.job
    with pytest.raises(JobLedgerUnavailableError, match="locked"):
        impatient.submit([NewJob()])
    other.execute("ROLLBACK")
    other.close()
    assert len(impatient.turn([], CLAIM).claimed) == 1
    impatient.stop()


def test_what_cannot_be_a_ledger(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        SqliteJobLedger(tmp_path / "nowhere" / "jobs.db").start()
    (tmp_path / "text.db").write_text("this is no database, and much longer than a header would be\n" * 50)
    with pytest.raises(JobLedgerUnavailableError, match="not a database"):
        SqliteJobLedger(tmp_path / "text.db").start()


def test_many_processes_start_at_once(path):
    processes = [python(SUBMITTER, path, 1) for _ in range(6)]
    for process in processes:
        done(process)
    ledger = SqliteJobLedger(path)
    ledger.start()
    assert ledger.counts("default").due == 6
    ledger.stop()


def test_a_full_disk_costs_nothing_but_the_write(ledger, path):
    """The verb says so; what was there stays, and the file is whole."""
    (made,) = ledger.submit([NewJob()])

    def bound(transaction):
        connection = transaction.connection
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")

    ledger._database.write(bound)
    with pytest.raises(JobLedgerUnavailableError, match="full"):
        ledger.submit([NewJob(options={"filler": "x" * 100_000})])
    assert ledger.get(made.job.id) == made.job
    assert len(ledger.turn([], CLAIM).claimed) == 1
    checking = sqlite3.connect(path)
    assert checking.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checking.close()
