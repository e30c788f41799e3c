"""Transactions on either database, with retries and error conversion. Adapter module of SQLAlchemy."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import orjson

from headrace.core.errors import JobLedgerUnavailableError, MissingExtraError
from headrace.jobs.job import Job, JobProgress
from headrace.jobs.ledgers.dialect import SqlDialect

try:
    import sqlalchemy as sa
    from sqlalchemy import event, exc, pool
except ImportError as _error:
    raise MissingExtraError("jobs", "a job ledger") from _error

__all__ = ["Database", "Engines", "JobEventWriter", "Statement", "Transaction", "event", "exc", "pool", "sa"]

_PAUSES_S: Final = (0.02, 0.1, 0.4)
"""Delays between attempts of a transaction after a lost connection, a deadlock or a lock timeout.
"""

_T = TypeVar("_T")
Row = Sequence[Any]


class Statement:
    """A constant statement. Its text is created once per dialect, and SQLAlchemy compiles it once."""

    def __init__(self, write: Callable[[SqlDialect], str]) -> None:
        self._write = write
        self._texts: dict[str, sa.TextClause] = {}

    def on(self, dialect: SqlDialect) -> sa.TextClause:
        """Return the statement for one database."""
        text = self._texts.get(dialect.name)
        if text is None:
            text = self._texts[dialect.name] = sa.text(self._write(dialect))
        return text


@dataclass(slots=True)
class CommitNotice:
    """The changes of a transaction that waiters are notified of after its commit."""

    queues: set[str] = field(default_factory=set[str])
    """Queues in which jobs became due or running jobs were cancelled."""
    changed: bool = False
    """True if a job's state or progress changed."""


class JobEventWriter(Protocol):
    """A writer of notifications inside the transaction that changes the jobs."""

    def jobs_ended(self, transaction: "Transaction", jobs: Sequence[Job]) -> None:
        """Write the notifications of jobs that have just ended."""
        ...

    def job_published(self, transaction: "Transaction", job: Job, uri: str) -> None:
        """Release the notifications of a job whose end was published at `uri` ("": never)."""
        ...

    def job_progressed(self, transaction: "Transaction", job: Job, progress: JobProgress) -> None:
        """Write the notifications of a running job's progress."""
        ...

    def jobs_deleted(self, transaction: "Transaction", job_ids: Sequence[str]) -> None:
        """Delete the notifications of jobs that are being deleted."""
        ...


class Transaction:
    """An open transaction: runs statements and collects the notice for its commit."""

    def __init__(
        self, connection: sa.Connection, dialect: SqlDialect, outbox: JobEventWriter | None = None
    ) -> None:
        self.connection = connection
        self.dialect = dialect
        self.outbox = outbox
        self.notice = CommitNotice()

    def run(
        self, statement: Statement, records: Sequence[dict[str, Any]] | None = None, **values: Any
    ) -> Sequence[Row]:
        """Run a statement and return its rows. `records` are its records (see `SqlDialect.records`)."""
        if records is not None:
            values["given"] = orjson.dumps(records).decode()
        result: Any = self.connection.execute(statement.on(self.dialect), values)
        return result.all() if result.returns_rows else ()


@dataclass(frozen=True, slots=True)
class Engines:
    """The connection pools of writing and of reading transactions; one pool may serve both."""

    writing: sa.Engine
    reading: sa.Engine

    def dispose(self) -> None:
        """Close all connections."""
        self.writing.dispose()
        self.reading.dispose()


class Database:
    """Runs transactions, repeats them if safe, and converts outages.

    An outage raises `JobLedgerUnavailableError`.

    Args:
        dialect: The SQL dialect.
        connect: Creates the engines; called by `open`.
        where: The database's location without secrets, for messages.
        on_commit: Called after each commit with changes.
        outbox: The writer of notifications.
    """

    def __init__(
        self,
        dialect: SqlDialect,
        connect: Callable[[], Engines],
        *,
        where: str,
        on_commit: Callable[[CommitNotice], None],
        outbox: JobEventWriter | None = None,
    ) -> None:
        self.dialect = dialect
        self.where = where
        self.errors = 0
        self._connect = connect
        self._on_commit = on_commit
        self._outbox = outbox
        self._engines: Engines | None = None
        self._retry_pause = threading.Event()

    def open(self) -> sa.Engine:
        """Create the engines. Return the writing one. A second call does nothing."""
        if self._engines is None:
            self._engines = self._connect()
        return self._engines.writing

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        engines, self._engines = self._engines, None
        if engines is not None:
            engines.dispose()

    @property
    def pools(self) -> list[Any]:
        """The current connection pools."""
        engines = self._engines
        return [] if engines is None else list({engines.writing.pool, engines.reading.pool})

    def write(self, verb: Callable[[Transaction], _T], *, repeatable: bool = True) -> _T:
        """Run `verb` in one transaction and commit it; `verb` may be called again.

        `repeatable`: the transaction may be repeated if its commit had no response and may have
        succeeded.
        """
        return self._run(self._opened().writing, verb, repeatable=repeatable)

    def read(self, verb: Callable[[Transaction], _T]) -> _T:
        """Run `verb` in one transaction that changes nothing."""
        return self._run(self._opened().reading, verb, repeatable=True)

    def _opened(self) -> Engines:
        if self._engines is None:
            raise JobLedgerUnavailableError(
                f"the job ledger {self.where} is not started, or has been stopped"
            )
        return self._engines

    def _run(self, engine: sa.Engine, verb: Callable[[Transaction], _T], *, repeatable: bool) -> _T:
        for pause_s in (*_PAUSES_S, None):
            committing = False
            try:
                with engine.connect() as connection, connection.begin() as begun:
                    transaction = Transaction(connection, self.dialect, self._outbox)
                    result = verb(transaction)
                    committing = True
                    begun.commit()
            except (exc.DBAPIError, exc.TimeoutError) as error:
                if not _is_away(error):
                    raise
                self.errors += 1
                if pause_s is None or isinstance(error, exc.TimeoutError) or (committing and not repeatable):
                    raise self._unavailable(error, committing=committing) from error
                self._retry_pause.wait(pause_s)
                continue
            if transaction.notice.changed or transaction.notice.queues:
                self._on_commit(transaction.notice)
            return result
        raise AssertionError("the last attempt returns or raises")

    def _unavailable(self, error: Exception, *, committing: bool) -> JobLedgerUnavailableError:
        lines = str(getattr(error, "orig", None) or error).strip().splitlines()
        why = lines[0] if lines else type(error).__name__
        taken = "it is unknown if the last write was committed" if committing else "nothing was written"
        return JobLedgerUnavailableError(
            f"the job ledger {self.where} is unavailable ({why}); {taken}: retry, or check its database"
        )


def _is_away(error: Exception) -> bool:
    """Return True for an outage: connection lost, disk full, locked, timed out, shutting down."""
    if isinstance(error, exc.TimeoutError):
        return True
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    # A server that became a standby reports an internal error: 25006, read_only_sql_transaction.
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, exc.OperationalError | exc.InterfaceError) or state == "25006"
