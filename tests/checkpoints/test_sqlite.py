"""What the store in an SQLite file does beside what every store must; the suite is in tests/conformance/."""

import os
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from headrace.checkpoints.sqlite import SCHEMA_VERSION, SqliteCheckpointStore
from headrace.checkpoints.store import Checkpoint
from headrace.core.errors import ConfigError, UnavailableError
from headrace.jobs.ledgers.sqlite import SqliteJobLedger

FIRST = Checkpoint("a", 1, b"one", 0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoints.db"


@pytest.fixture
def other(path):
    """Another process, as far as SQLite knows."""
    SqliteCheckpointStore(path, "m").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def test_it_is_written_ahead_and_synced(path):
    with closing(SqliteCheckpointStore(path, "m")) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_who_cannot_write_in_time_hears_so_and_nothing_was_saved(path, other):
    store = SqliteCheckpointStore(path, "m", busy_s=0.05)
    other.execute("BEGIN IMMEDIATE")
    for call in (
        lambda: store.save([FIRST]),
        lambda: store.delete(["a"]),
        lambda: store.purge(idle_ms_max=1, count_max=1),
    ):
        begun_s = time.monotonic()
        with pytest.raises(UnavailableError, match="locked"):
            call()
        assert 0.05 <= time.monotonic() - begun_s < 5
    other.execute("ROLLBACK")
    assert store.load(["a"], idle_ms_max=1e9) == [None]
    assert store.save([FIRST]) == [True]
    store.close()


def test_who_reads_waits_for_nobody(path, other):
    store = SqliteCheckpointStore(path, "m", busy_s=0)
    store.save([FIRST])
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE checkpoints SET steps = 99")
    assert store.load(["a"], idle_ms_max=1e9) == [(1, b"one")]
    other.execute("ROLLBACK")
    store.close()


def test_who_waits_goes_on_when_the_other_is_done(path, other):
    store = SqliteCheckpointStore(path, "m", busy_s=30)
    other.execute("BEGIN IMMEDIATE")
    told = []
    saving = threading.Thread(target=lambda: told.append(store.save([FIRST])))
    saving.start()
    saving.join(0.05)
    assert told == []
    other.execute("COMMIT")
    saving.join(30)
    assert told == [[True]]
    store.close()


def test_threads_of_a_store_wait_no_longer_than_for_others(path):
    store = SqliteCheckpointStore(path, "m", busy_s=0.05)
    with store._lock, pytest.raises(UnavailableError, match="other threads"):
        store.save([FIRST])
    store.close()


def test_a_batch_that_cannot_be_saved_leaves_nothing_behind(path):
    store = SqliteCheckpointStore(path, "m")
    with pytest.raises(OverflowError):
        store.save([FIRST, Checkpoint("b", 1 << 63, b"", 0)])
    assert store.load(["a", "b"], idle_ms_max=1e9) == [None, None]
    assert store.save([FIRST]) == [True]
    store.close()


def test_a_file_of_a_later_headrace_is_left_alone(path, other):
    other.execute("UPDATE checkpoints_schema SET version = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(
        ConfigError, match=f"schema {SCHEMA_VERSION + 1}, and this headrace knows {SCHEMA_VERSION}"
    ):
        SqliteCheckpointStore(path, "m")


def test_a_file_that_others_hold_when_it_is_opened(path, other):
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UnavailableError, match="others write there for over"):
        SqliteCheckpointStore(path, "m", busy_s=0.05)
    other.execute("ROLLBACK")


@pytest.mark.parametrize("what", ["no folder", "a folder", "no database", "read-only"])
def test_what_cannot_be_opened_is_refused(what, path):
    if what == "no folder":
        path = path / "below" / "it.db"
    elif what == "a folder":
        path.mkdir()
    elif what == "no database":
        path.write_bytes(b"something else, and longer than a header of SQLite" * 100)
    else:
        SqliteCheckpointStore(path, "m").close()
        path.chmod(0o444)
        path.parent.chmod(0o555)
        if os.access(path, os.W_OK):
            pytest.skip("whoever runs the tests may write everywhere")
    with pytest.raises(ConfigError, match=str(path.parent)):
        SqliteCheckpointStore(path, "m")


def test_a_file_that_is_damaged_is_told(path):
    ids = [f"s-{n}" for n in range(50)]
    with closing(SqliteCheckpointStore(path, "m")) as store:
        store.save([Checkpoint(id, 1, bytes(3000), 0) for id in ids])
    whole = path.read_bytes()
    pages = 8 * 4096
    path.write_bytes(whole[:pages] + b"\xff" * (len(whole) - pages))
    with closing(SqliteCheckpointStore(path, "m")) as store:
        with pytest.raises(UnavailableError, match=f"{path}.*malformed"):
            store.load(ids, idle_ms_max=1e9)
        with pytest.raises(UnavailableError, match="malformed"):
            store.save([Checkpoint(id, 2, b"", 1) for id in ids])


def test_what_waiting_does_not_help_is_told_at_once(path, other):
    store = SqliteCheckpointStore(path, "m", busy_s=60)
    other.execute("DROP TABLE checkpoints")
    begun_s = time.monotonic()
    with pytest.raises(UnavailableError, match="no such table"):
        store.load(["a"], idle_ms_max=1e9)
    assert time.monotonic() - begun_s < 30
    store.close()


def test_a_job_ledger_may_be_in_the_same_file(path):
    ledger = SqliteJobLedger(path)
    ledger.start()
    with closing(SqliteCheckpointStore(path, "m")) as store:
        assert store.save([FIRST]) == [True]
        ledger.stop()
        ledger.start()
        assert store.load(["a"], idle_ms_max=1e9) == [(1, b"one")]
    ledger.stop()


def test_purging_and_following_look_at_an_index_only(path, other):
    for sql in (
        "SELECT rowid FROM checkpoints WHERE model = 'm' AND saved_ms < 5 ORDER BY saved_ms LIMIT 3",
        "SELECT state FROM checkpoints WHERE model = 'm' AND id = 'a'",
    ):
        (plan,) = other.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
        assert "USING" in plan[3]
        assert "INDEX" in plan[3]
        assert "SCAN" not in plan[3]
