"""A checkpoint store in an SQLite file: durable, and shared by all processes of a machine."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from typing_extensions import override

from headrace.checkpoints.store import CheckpointStore, SequenceCheckpoint, closed_error, store_failure
from headrace.core.errors import ConfigError, UnavailableError

SCHEMA_VERSION: Final = 1
BUSY_S: Final = 5.0
"""Limit, in seconds, of the wait for other writers. The client of the model waits as well."""
BUSY_STEP_S: Final = (0.0005, 0.003)
PURGE_MAX: Final = 10_000
"""Limit of deletions in one transaction, so that others can save in between."""

_BEGIN: Final = "BEGIN IMMEDIATE"
_CREATE: Final = (
    """CREATE TABLE checkpoints (
        model TEXT NOT NULL, id TEXT NOT NULL,
        steps INTEGER NOT NULL, saved_ms INTEGER NOT NULL, state BLOB NOT NULL,
        PRIMARY KEY (model, id))""",
    "CREATE INDEX checkpoints_saved ON checkpoints (model, saved_ms)",
    "CREATE TABLE checkpoints_schema (version INTEGER NOT NULL)",
)
_REPLACE: Final = """INSERT INTO checkpoints (model, id, steps, saved_ms, state) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (model, id) DO UPDATE
    SET steps = excluded.steps, saved_ms = excluded.saved_ms, state = excluded.state"""
_UPDATE_IF_CURRENT: Final = """UPDATE checkpoints SET steps = ?1, saved_ms = ?2, state = ?3
    WHERE model = ?4 AND id = ?5 AND (steps = ?6 OR (steps = ?1 AND state = ?3))"""
_LOAD: Final = "SELECT steps, state FROM checkpoints WHERE model = ? AND id = ? AND saved_ms >= ?"
_DELETE: Final = "DELETE FROM checkpoints WHERE model = ? AND id = ?"
_DELETE_IF_CURRENT: Final = "DELETE FROM checkpoints WHERE model = ? AND id = ? AND steps = ?"
_PURGE: Final = """DELETE FROM checkpoints WHERE rowid IN
    (SELECT rowid FROM checkpoints WHERE model = ? AND saved_ms < ? ORDER BY saved_ms LIMIT ?)"""


def wall_ms() -> int:
    """Return the time of this machine, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SqliteCheckpointStore(CheckpointStore):
    """A checkpoint store in the file at `path`, created if missing in an existing folder.

    Each call is one transaction. Threads and processes take turns; a call waits up to `busy_s` for
    others. A saved checkpoint is on the disk and survives a loss of power. Several models, and a
    job ledger, may share the file.

    Args:
        path: The file, on a disk of this machine, not on a network file system.
        model: Name of the model of the checkpoints.
        wall_ms: Clock in milliseconds since the epoch, equal in all processes that share the file.
        busy_s: Limit of the wait for other threads and processes, in seconds.
        synced: Whether each call waits for the disk. Without the wait, calls take a fraction of the
            time. Checkpoints then survive killed processes but not a loss of power, after which a
            sequence could continue from an earlier step.

    Raises:
        ConfigError: The file cannot be opened, is not an SQLite file, or comes from a later headrace.
    """

    is_remote = False

    def __init__(
        self,
        path: str | Path,
        model: str,
        *,
        wall_ms: Callable[[], int] = wall_ms,
        busy_s: float = BUSY_S,
        synced: bool = True,
    ) -> None:
        self.path = Path(path)
        self.model = model
        self._wall_ms = wall_ms
        self._busy_s = busy_s
        self._synced = synced
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = self._connect()

    @override
    def save(self, checkpoints: Sequence[SequenceCheckpoint]) -> list[bool]:
        model = self.model
        with self._transaction() as execute:
            now_ms = self._wall_ms()
            kept: list[bool] = []
            for id, steps, state, previous_steps in checkpoints:
                if previous_steps:
                    cursor = execute(_UPDATE_IF_CURRENT, (steps, now_ms, state, model, id, previous_steps))
                else:
                    cursor = execute(_REPLACE, (model, id, steps, now_ms, state))
                kept.append(cursor.rowcount > 0)
            return kept

    @override
    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        with self._locked_connection() as (connection, until_s):
            oldest_ms = self._wall_ms() - idle_ms_max
            found = (
                _execute_with_retry(connection, until_s, _LOAD, (self.model, id, oldest_ms)) for id in ids
            )
            return [each.fetchone() for each in found]

    @override
    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        with self._transaction() as execute:
            for number, id in enumerate(ids):
                if steps is None:
                    execute(_DELETE, (self.model, id))
                else:
                    execute(_DELETE_IF_CURRENT, (self.model, id, steps[number]))

    @override
    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """Delete up to `PURGE_MAX` old checkpoints in one call."""
        with self._transaction() as execute:
            oldest_ms = self._wall_ms() - idle_ms_max
            return execute(_PURGE, (self.model, oldest_ms, min(count_max, PURGE_MAX))).rowcount

    @override
    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextmanager
    def _transaction(self) -> Generator[Callable[..., sqlite3.Cursor]]:
        """Run the statements of the block in one transaction."""
        with self._locked_connection() as (connection, until_s):
            _execute_with_retry(connection, until_s, _BEGIN)
            try:
                yield connection.execute
                connection.execute("COMMIT")
            except BaseException:
                # A failed COMMIT may have ended the transaction already.
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _locked_connection(self) -> Generator[tuple[sqlite3.Connection, float]]:
        """Give the connection to one thread, with the time at which its wait for others ends."""
        until_s = time.monotonic() + self._busy_s
        if not self._lock.acquire(timeout=self._busy_s):
            raise self._failure(f"other threads held the file for over {self._busy_s:g} s")
        try:
            if self._connection is None:
                raise closed_error(self.model)
            yield self._connection, until_s
        except sqlite3.Error as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        finally:
            self._lock.release()

    def _failure(self, why: str) -> UnavailableError:
        return store_failure(self.model, str(self.path), why)

    def _connect(self) -> sqlite3.Connection:
        if not self.path.parent.is_dir():
            raise ConfigError(f"{self.path.parent} is not a folder: create it for the checkpoint file")
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise ConfigError(f"{self.path} cannot be opened for checkpoints: {error}") from error
        try:
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            if _is_busy(error):
                why = f"other processes held the file for over {self._busy_s:g} s: {error}"
                raise self._failure(why) from error
            raise ConfigError(
                f"{self.path} cannot be used for checkpoints ({error}): "
                "check that it is an SQLite file and writable"
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Turn on write-ahead logging, and create missing tables."""
        until_s = time.monotonic() + self._busy_s
        (mode,) = _execute_with_retry(connection, until_s, "PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigError(
                f"{self.path} cannot use write-ahead logging (journal mode {mode}): put it on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._synced else 'NORMAL'}")
        _execute_with_retry(connection, until_s, _BEGIN)
        named = connection.execute("SELECT name FROM sqlite_master WHERE name = 'checkpoints_schema'")
        if named.fetchone() is None:
            for statement in _CREATE:
                connection.execute(statement)
            connection.execute("INSERT INTO checkpoints_schema VALUES (?)", (SCHEMA_VERSION,))
        (version,) = connection.execute("SELECT version FROM checkpoints_schema").fetchone()
        connection.execute("COMMIT")
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{self.path} has checkpoints of schema {version}, but this headrace uses {SCHEMA_VERSION}: "
                "use the headrace that wrote it, or another file"
            )


def _is_busy(error: sqlite3.Error) -> bool:
    """Return True if another connection holds the lock, by the primary part of SQLite's error code."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _execute_with_retry(
    connection: sqlite3.Connection, until_s: float, statement: str, values: Sequence[object] = ()
) -> sqlite3.Cursor:
    """Execute a statement, and retry while the file is locked, in short, uneven steps.

    SQLite's own steps grow to 100 ms; other processes would take the lock many times in between.
    """
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > until_s:
                raise
        time.sleep(random.uniform(*BUSY_STEP_S))  # noqa: S311 - no secret
