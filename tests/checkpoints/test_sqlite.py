"""The SQLite store, beyond the conformance suite in tests/conformance/."""

import os
import sqlite3
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from checkpoints.reported_failure import reported_failure
from headrace.checkpoints import sqlite
from headrace.checkpoints.sqlite import BUSY_STEP_S, SCHEMA_VERSION, SqliteCheckpointStore
from headrace.checkpoints.store import SequenceCheckpoint
from headrace.core.errors import ConfigError
from headrace.jobs.ledgers.sqlite import SqliteJobLedger

FIRST = SequenceCheckpoint("a", 1, b"one", 0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoints.db"


@pytest.fixture
def other(path):
    """A connection like that of another process."""
    SqliteCheckpointStore(path, "m").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


class ManualTime:
    """The `time` module as the store uses it: a sleep moves the clock."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def time_ns(self):
        return 0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def manual_time(monkeypatch):
    manual = ManualTime()
    monkeypatch.setattr(sqlite, "time", manual)
    return manual


def test_journal_mode_and_synchronous(path):
    with closing(SqliteCheckpointStore(path, "m")) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_write_fails_after_busy_s_without_effect(path, other, manual_time, caplog):
    store = SqliteCheckpointStore(path, "m", busy_s=5)
    other.execute("BEGIN IMMEDIATE")
    for call in (
        lambda: store.save([FIRST]),
        lambda: store.delete(["a"]),
        lambda: store.purge(idle_ms_max=1, count_max=1),
    ):
        manual_time.now = 100.0
        why, logged = reported_failure(caplog, call)
        assert why == "the checkpoint store of model m: it failed; try again later"
        assert logged == f"m {path}: OperationalError: database is locked"
        assert 105.0 < manual_time.now <= 105.0 + max(BUSY_STEP_S)
    other.execute("ROLLBACK")
    assert store.load(["a"], idle_ms_max=1e9) == [None]
    assert store.save([FIRST]) == [True]
    store.close()


def test_load_does_not_wait_for_writers(path, other):
    store = SqliteCheckpointStore(path, "m", busy_s=0)
    store.save([FIRST])
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE checkpoints SET steps = 99")
    assert store.load(["a"], idle_ms_max=1e9) == [(1, b"one")]
    other.execute("ROLLBACK")
    store.close()


def test_save_waits_for_another_writer(path, other, monkeypatch):
    store = SqliteCheckpointStore(path, "m", busy_s=30)
    waits = threading.Event()

    def sleep(seconds):
        waits.set()
        time.sleep(seconds)

    slow = SimpleNamespace(monotonic=time.monotonic, time_ns=time.time_ns, sleep=sleep)
    monkeypatch.setattr(sqlite, "time", slow)
    other.execute("BEGIN IMMEDIATE")
    results = []
    saving = threading.Thread(target=lambda: results.append(store.save([FIRST])))
    saving.start()
    assert waits.wait(30)
    assert results == []
    other.execute("COMMIT")
    saving.join(30)
    assert results == [[True]]
    store.close()


def test_threads_wait_up_to_busy_s(path, caplog):
    store = SqliteCheckpointStore(path, "m", busy_s=0.05)
    with store._lock:
        why, logged = reported_failure(caplog, lambda: store.save([FIRST]))
    assert why == "the checkpoint store of model m: it failed; try again later"
    assert logged == f"m {path}: other threads held the file for over 0.05 s"
    store.close()


def test_failed_batch_saves_nothing(path):
    store = SqliteCheckpointStore(path, "m")
    with pytest.raises(OverflowError):
        store.save([FIRST, SequenceCheckpoint("b", 1 << 63, b"", 0)])
    assert store.load(["a", "b"], idle_ms_max=1e9) == [None, None]
    assert store.save([FIRST]) == [True]
    store.close()


def test_later_schema_is_refused(path, other):
    other.execute("UPDATE checkpoints_schema SET version = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(
        ConfigError, match=f"schema {SCHEMA_VERSION + 1}, but this headrace uses {SCHEMA_VERSION}"
    ):
        SqliteCheckpointStore(path, "m")


def test_open_fails_after_busy_s(path, other, manual_time, caplog):
    other.execute("BEGIN EXCLUSIVE")
    why, logged = reported_failure(caplog, lambda: SqliteCheckpointStore(path, "m", busy_s=5))
    assert why == "the checkpoint store of model m: it failed; try again later"
    assert logged == f"m {path}: other processes held the file for over 5 s: database is locked"
    assert manual_time.now > 5
    other.execute("ROLLBACK")


@pytest.mark.parametrize("kind", ["no folder", "a folder", "no database", "read-only"])
def test_unusable_file_is_refused(kind, path):
    if kind == "no folder":
        path = path / "below" / "it.db"
    elif kind == "a folder":
        path.mkdir()
    elif kind == "no database":
        path.write_bytes(b"text that is longer than an SQLite header" * 100)
    else:
        SqliteCheckpointStore(path, "m").close()
        path.chmod(0o444)
        path.parent.chmod(0o555)
        if os.access(path, os.W_OK):
            pytest.skip("this user may write everywhere")
    with pytest.raises(ConfigError, match=str(path.parent)):
        SqliteCheckpointStore(path, "m")


def test_damaged_file_is_reported(path, caplog):
    """Only the log has the path and the words of SQLite."""
    ids = [f"s-{n}" for n in range(50)]
    with closing(SqliteCheckpointStore(path, "m")) as store:
        store.save([SequenceCheckpoint(id, 1, bytes(3000), 0) for id in ids])
    whole = path.read_bytes()
    pages = 8 * 4096
    path.write_bytes(whole[:pages] + b"\xff" * (len(whole) - pages))
    with closing(SqliteCheckpointStore(path, "m")) as store:
        for call in (
            lambda: store.load(ids, idle_ms_max=1e9),
            lambda: store.save([SequenceCheckpoint(id, 2, b"", 1) for id in ids]),
        ):
            why, logged = reported_failure(caplog, call)
            assert why == "the checkpoint store of model m: it failed; try again later"
            assert logged == f"m {path}: DatabaseError: database disk image is malformed"


def test_other_errors_are_not_retried(path, other, manual_time, caplog):
    store = SqliteCheckpointStore(path, "m", busy_s=60)
    other.execute("DROP TABLE checkpoints")
    _, logged = reported_failure(caplog, lambda: store.load(["a"], idle_ms_max=1e9))
    assert logged == f"m {path}: OperationalError: no such table: checkpoints"
    assert manual_time.now == 0
    store.close()


def test_file_shared_with_a_job_ledger(path):
    ledger = SqliteJobLedger(path)
    ledger.start()
    with closing(SqliteCheckpointStore(path, "m")) as store:
        assert store.save([FIRST]) == [True]
        ledger.stop()
        ledger.start()
        assert store.load(["a"], idle_ms_max=1e9) == [(1, b"one")]
    ledger.stop()


def test_queries_use_an_index(path, other):
    for sql in (
        "SELECT rowid FROM checkpoints WHERE model = 'm' AND saved_ms < 5 ORDER BY saved_ms LIMIT 3",
        "SELECT state FROM checkpoints WHERE model = 'm' AND id = 'a'",
    ):
        (plan,) = other.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
        assert "USING" in plan[3]
        assert "INDEX" in plan[3]
        assert "SCAN" not in plan[3]
