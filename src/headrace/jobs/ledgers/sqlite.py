"""The job ledger in an SQLite file: durable, without a server, for all processes of one machine."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.core.errors import ConfigError, JobLedgerUnavailableError
from headrace.jobs.ledger import Wakeup
from headrace.jobs.ledgers.database import Database, Engines, Told, event, exc, pool, sa
from headrace.jobs.ledgers.dialect import SQLITE
from headrace.jobs.ledgers.migrations import migrate
from headrace.jobs.ledgers.outbox import NotificationRows
from headrace.jobs.ledgers.sql import SqlJobLedger, wall_ms
from headrace.jobs.ledgers.wakeups import Bell, Bells

BUSY_S: Final = 15.0
"""The longest that one waits until other processes have written."""
BUSY_STEP_S: Final = (0.0005, 0.003)
READERS: Final = 4
READER_WAIT_S: Final = 15.0
LOOK_S: Final = 0.01
"""How often whoever waits looks whether another process has written."""
_VERSION_MIN: Final = (3, 35)
"""The first that has RETURNING, and common table expressions that are computed once."""

_T = TypeVar("_T")


class SqliteJobLedger(SqlJobLedger):
    """A `JobLedger` in the file at `path`, which is made where there is none; its folder must exist.

    One transaction writes at a time, the others wait for up to `BUSY_S`; whoever reads never waits for them.

    Args:
        path: The file. It must be on a disk of this machine, not on one shared over the network.
        wall_ms: The time, in milliseconds since the epoch; that of the machine, on which all processes of one file run.
        outbox: What is written with ends of jobs.
    """

    def __init__(
        self, path: str | Path, *, wall_ms: Callable[[], int] = wall_ms, outbox: Told | None = None
    ) -> None:
        self.path = Path(path)
        self._wall_ms = wall_ms
        self._bells = Bells()
        database = Database(
            SQLITE,
            self._engines,
            where=f"in {self.path}",
            told=self._bells.tell,
            outbox=outbox or NotificationRows(),
        )
        super().__init__(database)

    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        """See `JobLedger.wakeup`."""
        return SqliteWakeup(self.path, self._bells, queues)

    def watch(self) -> Wakeup:
        """See `JobLedger.watch`."""
        return SqliteWakeup(self.path, self._bells, None)

    def _id_time_ms(self) -> int:
        return self._wall_ms()

    def _begin(self) -> None:
        if sqlite3.sqlite_version_info < _VERSION_MIN:
            raise ConfigError(
                f"a job ledger in SQLite needs its version 3.35, and this is {sqlite3.sqlite_version}"
            )
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"{self.path.parent} is no folder: make it, so that the job ledger can be kept there"
            )
        engine = self._database.open()
        try:
            migrate(lambda work: self._guarded(engine, work), where=self._database.where)
        except exc.DBAPIError as error:
            raise JobLedgerUnavailableError(
                f"the job ledger {self._database.where} cannot be opened ({error.orig}): is it an SQLite file, and may "
                "it be written?"
            ) from error

    def _end(self) -> None:
        self._database.close()

    @staticmethod
    def _guarded(engine: sa.Engine, work: Callable[[sa.Connection], _T]) -> _T:
        with engine.begin() as connection:  # BEGIN IMMEDIATE: one process at a time
            return work(connection)

    def _engines(self) -> Engines:
        # One connection writes: within a process, turns are taken at the pool, without asking the file again and again.
        writing = self._engine(pool.QueuePool, pool_size=1, max_overflow=0, pool_timeout=BUSY_S)
        reading = self._engine(pool.QueuePool, pool_size=READERS, max_overflow=0, pool_timeout=READER_WAIT_S)
        event.listen(writing, "connect", _never_wait)
        event.listen(writing, "begin", _begin_writing)
        event.listen(reading, "begin", _begin_reading)
        return Engines(writing, reading)

    def _engine(self, kind: type[pool.Pool], **options: Any) -> sa.Engine:
        return sa.create_engine("sqlite://", creator=self._connect, poolclass=kind, **options)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.create_function("headrace_now", 0, self._wall_ms)
        _prepare(connection)
        return connection


def _never_wait(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA busy_timeout = 0")


def _begin_writing(connection: sa.Connection) -> None:
    """Wait for the file in short, uneven steps: SQLite's own grow to 100 ms, in which others take it many times."""
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


def _begin_reading(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _prepare(connection: sqlite3.Connection) -> None:
    """Write ahead, durably. To change the journal's mode nobody may be writing, and SQLite does not wait for that."""
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                connection.close()
                raise
            time.sleep(LOOK_S)
        else:
            break
    connection.execute("PRAGMA synchronous = FULL")


class SqliteWakeup:
    """A `Wakeup`: rung within the process, and a look at the file's change counter every `LOOK_S` for other processes."""

    def __init__(self, path: Path, bells: Bells, queues: Sequence[str] | None) -> None:
        self._path = path
        self._bells = bells
        self._bell: Bell = bells.hang(queues)
        self._lock = threading.Lock()
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._seen = self._version()

    def wait(self, timeout_s: float) -> bool:
        """See `Wakeup.wait`."""
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = until_s - time.monotonic()
            if self._bell.wait(max(0.0, min(LOOK_S, left_s))):
                return True
            if self._changed():
                return True
            if left_s <= 0:
                return False

    def wake(self) -> None:
        """See `Wakeup.wake`."""
        self._bell.ring()

    def close(self) -> None:
        """See `Wakeup.close`."""
        self._bells.take_down(self._bell)
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
        self._bell.ring()

    def _changed(self) -> bool:
        version = self._version()
        if version is None or version == self._seen:
            return False
        self._seen = version
        return True

    def _version(self) -> int | None:
        """A number that changes with every commit by others; None where the file cannot be asked just now."""
        with self._lock:
            if self._closed:
                return None
            try:
                if self._connection is None:
                    uri = f"{self._path.absolute().as_uri()}?mode=ro"
                    self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=LOOK_S)
                return self._connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:
                return None
