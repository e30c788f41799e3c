"""The job ledger in an SQLite file: durable, without a server, for all processes of one host."""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.jobs.job import wall_ms
from headrace.jobs.ledger import Wakeup
from headrace.jobs.ledgers.database import (
    Engines,
    event,
    exc,
    pool,
    sa,
)
from headrace.jobs.ledgers.queue_notifier import QueueNotifier, QueueWaiter
from headrace.jobs.ledgers.sql import SqlJobLedger

BUSY_S: Final = 15.0
"""The longest wait in seconds for the writers of other processes."""
BUSY_STEP_S: Final = (0.0005, 0.003)
READERS: Final = 4
READER_WAIT_S: Final = 15.0
_PRIVATE: Final = 0o600
POLL_S: Final = 0.01
"""Seconds between reads of the file's change counter by a waiter."""
_VERSION_MIN: Final = (3, 35)
"""The first version with RETURNING and materialized common table expressions."""


class SqliteJobLedger(SqlJobLedger):
    """A job ledger in the file at `path`, created if missing; its folder must exist.

    One transaction writes at a time; others wait up to `BUSY_S`. Readers never wait.

    Args:
        path: The file, on a local disk, not on a network share.
        wall_ms: Returns the host's time in milliseconds since the epoch, for all processes of the
            file.
    """

    _advice = "is it a writable SQLite file?"

    def __init__(self, path: str | Path, *, wall_ms: Callable[[], int] = wall_ms) -> None:
        self.path = Path(path)
        self._wall_ms = wall_ms
        self._notifier = QueueNotifier()
        super().__init__(self._engines, where=f"in {self.path}", on_commit=self._notifier.notify)

    @override
    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        return SqliteWakeup(self.path, self._notifier, queues)

    @override
    def watch(self) -> Wakeup:
        return SqliteWakeup(self.path, self._notifier, None)

    @override
    def _begin(self) -> None:
        if sqlite3.sqlite_version_info < _VERSION_MIN:
            raise ConfigError(
                f"a job ledger in SQLite needs SQLite 3.35, not {sqlite3.sqlite_version}: install a newer one"
            )
        if not self.path.parent.is_dir():
            raise ConfigError(f"{self.path.parent} is no folder: create it for the job ledger")
        self._close_to_others()
        super()._begin()

    def _close_to_others(self) -> None:
        """Create the file for its owner alone; SQLite gives its other files the same permissions.

        An existing file is closed to other users, unless it belongs to one of them.
        """
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _PRIVATE))
        with suppress(PermissionError, FileNotFoundError):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").chmod(_PRIVATE)

    @override
    def _run_exclusively(self, engine: sa.Engine, work: Callable[[sa.Connection], bool]) -> bool:
        with engine.begin() as connection:  # BEGIN IMMEDIATE: one process at a time
            return work(connection)

    def _engines(self) -> Engines:
        # One connection writes: threads of a process queue at the pool instead of retrying on the
        # file.
        make = partial(
            sa.create_engine, "sqlite://", paramstyle="named", poolclass=pool.QueuePool, max_overflow=0
        )
        writing = make(creator=partial(self._connect, waits=False), pool_size=1, pool_timeout=BUSY_S)
        reading = make(creator=self._connect, pool_size=READERS, pool_timeout=READER_WAIT_S)
        event.listen(writing, "begin", _begin_writing)
        event.listen(reading, "begin", _begin_reading)
        return Engines(writing, reading)

    def _connect(self, *, waits: bool = True) -> sqlite3.Connection:
        """Return a connection; unless it `waits`, SQLite itself does not wait for other writers."""
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.create_function("headrace_now", 0, self._wall_ms)
        _prepare(connection)
        if not waits:
            connection.execute("PRAGMA busy_timeout = 0")
        return connection


def _begin_reading(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_writing(connection: sa.Connection) -> None:
    """Wait for the file in short, irregular steps.

    SQLite's own steps grow to 100 ms, and others go first.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except exc.OperationalError as error:
            code = getattr(error.orig, "sqlite_errorcode", None)
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(random.uniform(*BUSY_STEP_S))  # noqa: S311 - no secret
        else:
            return


def _prepare(connection: sqlite3.Connection) -> None:
    """Enable durable write-ahead logging.

    SQLite does not wait for the writers that block this change.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                connection.close()
                raise
            time.sleep(POLL_S)
        else:
            break
    connection.execute("PRAGMA synchronous = FULL")


class SqliteWakeup(Wakeup):
    """A waiter on commits: of this process directly, of others by the file's change counter.

    The counter is read every `POLL_S`.
    """

    def __init__(self, path: Path, notifier: QueueNotifier, queues: Sequence[str] | None) -> None:
        self._path = path
        self._notifier = notifier
        self._waiter: QueueWaiter = notifier.add_waiter(queues)
        self._lock = threading.Lock()
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._seen = self._version()

    @override
    def wait(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = until_s - time.monotonic()
            if self._waiter.wait(max(0.0, min(POLL_S, left_s))):
                self._waiter.clear()
                return True
            version = self._version()
            if version is not None and version != self._seen:
                self._seen = version
                return True
            if left_s <= 0:
                return False

    @override
    def wake(self) -> None:
        self._waiter.set()

    @override
    def close(self) -> None:
        self._notifier.remove_waiter(self._waiter)
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
        self._waiter.set()

    def _version(self) -> int | None:
        """Return a number that changes with every commit by others; None if it is unreadable."""
        with self._lock:
            if self._closed:
                return None
            try:
                if self._connection is None:
                    uri = f"{self._path.absolute().as_uri()}?mode=ro"
                    self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=POLL_S)
                return self._connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                return None
