"""Checkpoints in an SQLite file: durable, without a server, for all processes of one machine."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headrace.checkpoints.store import Checkpoint
from headrace.core.errors import ConfigError, UnavailableError

SCHEMA_VERSION: Final = 1
BUSY_S: Final = 5.0
"""The longest that one waits until other processes, or threads, have written: whoever has asked the model waits, too."""
BUSY_STEP_S: Final = (0.0005, 0.003)
PURGE_MAX: Final = 10_000
"""The most that one transaction drops, so that others can save in between."""

_BEGIN: Final = "BEGIN IMMEDIATE"
_MAKE: Final = (
    """CREATE TABLE checkpoints (
        model TEXT NOT NULL, id TEXT NOT NULL, steps INTEGER NOT NULL, saved_ms INTEGER NOT NULL, state BLOB NOT NULL,
        PRIMARY KEY (model, id))""",
    "CREATE INDEX checkpoints_saved ON checkpoints (model, saved_ms)",
    "CREATE TABLE checkpoints_schema (version INTEGER NOT NULL)",
)
_REPLACE: Final = """INSERT INTO checkpoints (model, id, steps, saved_ms, state) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (model, id) DO UPDATE SET steps = excluded.steps, saved_ms = excluded.saved_ms, state = excluded.state"""
_FOLLOW: Final = """UPDATE checkpoints SET steps = ?1, saved_ms = ?2, state = ?3
    WHERE model = ?4 AND id = ?5 AND (steps = ?6 OR (steps = ?1 AND state = ?3))"""
_LOAD: Final = "SELECT steps, state FROM checkpoints WHERE model = ? AND id = ? AND saved_ms >= ?"
_DELETE: Final = "DELETE FROM checkpoints WHERE model = ? AND id = ?"
_DELETE_OF: Final = "DELETE FROM checkpoints WHERE model = ? AND id = ? AND steps = ?"
_PURGE: Final = """DELETE FROM checkpoints WHERE rowid IN
    (SELECT rowid FROM checkpoints WHERE model = ? AND saved_ms < ? ORDER BY saved_ms LIMIT ?)"""


def wall_ms() -> int:
    """The time of this machine, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SqliteCheckpointStore:
    """A `CheckpointStore` in the file at `path`, which is made where there is none; its folder must exist.

    Each call is one transaction, of all threads and processes one at a time; the others wait for up to `BUSY_S`. What was
    saved is on the disk, and outlives a loss of power. The file may be shared by several models, and with a job ledger.

    Raises ConfigError for a file that cannot be opened, is no SQLite file, or was made by a later headrace.

    Args:
        path: The file. It must be on a disk of this machine, not on one shared over the network.
        model: Whose checkpoints.
        wall_ms: The time, in milliseconds since the epoch; all processes that share the file must agree on it.
        busy_s: The longest that a call waits for its turn.
        synced: Whether each call waits until it is on the disk. Without, it takes a fraction of the time, and what was saved
            outlives processes that are killed, but not a loss of power: a sequence could go on from an earlier step then.
    """

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

    def save(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        """See `CheckpointStore.save`."""
        model = self.model
        with self._writing() as run:
            now_ms = self._wall_ms()
            kept: list[bool] = []
            for id, steps, state, before in checkpoints:
                if before:
                    done = run(_FOLLOW, (steps, now_ms, state, model, id, before))
                else:
                    done = run(_REPLACE, (model, id, steps, now_ms, state))
                kept.append(done.rowcount > 0)
            return kept

    def load(self, ids: Sequence[str], *, idle_ms_max: float) -> list[tuple[int, bytes] | None]:
        """See `CheckpointStore.load`."""
        with self._connected() as (connection, until_s):
            oldest_ms = self._wall_ms() - idle_ms_max
            found = (_patiently(connection, until_s, _LOAD, (self.model, id, oldest_ms)) for id in ids)
            return [each.fetchone() for each in found]

    def delete(self, ids: Sequence[str], steps: Sequence[int] | None = None) -> None:
        """See `CheckpointStore.delete`."""
        with self._writing() as run:
            for number, id in enumerate(ids):
                if steps is None:
                    run(_DELETE, (self.model, id))
                else:
                    run(_DELETE_OF, (self.model, id, steps[number]))

    def purge(self, *, idle_ms_max: float, count_max: int) -> int:
        """See `CheckpointStore.purge`; at most `PURGE_MAX` go at a time."""
        with self._writing() as run:
            oldest_ms = self._wall_ms() - idle_ms_max
            return run(_PURGE, (self.model, oldest_ms, min(count_max, PURGE_MAX))).rowcount

    def close(self) -> None:
        """See `CheckpointStore.close`."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextmanager
    def _writing(self) -> Generator[Callable[..., sqlite3.Cursor]]:
        """One transaction, of all that is run in it."""
        with self._connected() as (connection, until_s):
            _patiently(connection, until_s, _BEGIN)
            try:
                yield connection.execute
                connection.execute("COMMIT")
            except BaseException:
                # The commit itself may have ended it.
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self) -> Generator[tuple[sqlite3.Connection, float]]:
        """The connection, for one thread, and until when it may wait for others."""
        until_s = time.monotonic() + self._busy_s
        if not self._lock.acquire(timeout=self._busy_s):
            raise UnavailableError(
                str(self.path), f"other threads write checkpoints for over {self._busy_s:g} s"
            )
        try:
            if self._connection is None:
                raise UnavailableError(str(self.path), f"the checkpoints of model {self.model} are closed")
            yield self._connection, until_s
        except sqlite3.Error as error:
            raise UnavailableError(
                str(self.path), f"the file of checkpoints cannot be read or written: {error}"
            ) from error
        finally:
            self._lock.release()

    def _connect(self) -> sqlite3.Connection:
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"{self.path.parent} is no folder: make it, so that checkpoints can be kept there"
            )
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise ConfigError(f"{self.path} cannot be opened for checkpoints: {error}") from error
        try:
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            if _is_busy(error):
                raise UnavailableError(
                    str(self.path), f"others write there for over {self._busy_s:g} s: {error}"
                ) from error
            raise ConfigError(
                f"{self.path} cannot be used for checkpoints ({error}): is it an SQLite file, and may it be written?"
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Write ahead, durably; make the tables where there are none."""
        until_s = time.monotonic() + self._busy_s
        (mode,) = _patiently(connection, until_s, "PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigError(
                f"{self.path} cannot be written ahead (journal mode {mode}): is it on a disk of this machine?"
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._synced else 'NORMAL'}")
        _patiently(connection, until_s, _BEGIN)
        named = connection.execute("SELECT name FROM sqlite_master WHERE name = 'checkpoints_schema'")
        if named.fetchone() is None:
            for statement in _MAKE:
                connection.execute(statement)
            connection.execute("INSERT INTO checkpoints_schema VALUES (?)", (SCHEMA_VERSION,))
        (version,) = connection.execute("SELECT version FROM checkpoints_schema").fetchone()
        connection.execute("COMMIT")
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{self.path} holds checkpoints of schema {version}, and this headrace knows {SCHEMA_VERSION}: "
                "use the headrace that wrote it, or another file"
            )


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether others write; what SQLite says is more exact."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _patiently(
    connection: sqlite3.Connection, until_s: float, statement: str, values: Sequence[object] = ()
) -> sqlite3.Cursor:
    """Wait for the file in short, uneven steps: SQLite's own grow to 100 ms, in which others take it many times."""
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > until_s:
                raise
        time.sleep(random.uniform(*BUSY_STEP_S))  # noqa: S311 - no secret
