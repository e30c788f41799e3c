"""Transactions on either database, and what becomes of their errors. The one door to SQLAlchemy."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import orjson

from headrace.core.errors import JobLedgerUnavailableError, MissingExtraError
from headrace.jobs.job import Job, Progress
from headrace.jobs.ledgers.dialect import Dialect

try:
    import sqlalchemy as sa
    from sqlalchemy import event, exc, pool
except ImportError as _error:
    raise MissingExtraError("jobs", "a job ledger") from _error

__all__ = ["Database", "Engines", "Statement", "Told", "Transaction", "event", "exc", "pool", "sa"]

_PAUSES_S: Final = (0.02, 0.1, 0.4)
"""Between attempts of a transaction that met a lost connection, a deadlock, or a lock held too long."""

_T = TypeVar("_T")
Row = Sequence[Any]


class Statement:
    """A constant statement; its text is made once for each dialect, and SQLAlchemy compiles that once."""

    def __init__(self, write: Callable[[Dialect], str]) -> None:
        self._write = write
        self._made: dict[str, sa.TextClause] = {}

    def on(self, dialect: Dialect) -> sa.TextClause:
        """The statement for one database."""
        made = self._made.get(dialect.name)
        if made is None:
            made = self._made[dialect.name] = sa.text(self._write(dialect))
        return made


@dataclass(slots=True)
class News:
    """What a transaction has to tell once it is committed."""

    queues: set[str] = field(default_factory=set[str])
    """Where jobs became due, or somebody cancelled what runs."""
    changed: bool = False
    """Whether any job's state or progress changed."""


class Told(Protocol):
    """What is told, inside the transaction, of what becomes of jobs: notifications are rows written with it."""

    def ended(self, transaction: "Transaction", jobs: Sequence[Job]) -> None:
        """These have just come to their end."""
        ...

    def published(self, transaction: "Transaction", job: Job, uri: str) -> None:
        """The end of this one has just been put where it was asked for, or never will be ("")."""
        ...

    def progressed(self, transaction: "Transaction", job: Job, progress: Progress) -> None:
        """This one runs, and its progress is to be told."""
        ...

    def forgotten(self, transaction: "Transaction", job_ids: Sequence[str]) -> None:
        """These are being removed."""
        ...


class Transaction:
    """One transaction under way: runs statements, and gathers what is to be told when it is committed."""

    def __init__(self, connection: sa.Connection, dialect: Dialect, outbox: Told | None = None) -> None:
        self.connection = connection
        self.dialect = dialect
        self.outbox = outbox
        self.news = News()

    def run(
        self, statement: Statement, given: Sequence[dict[str, Any]] | None = None, **values: Any
    ) -> Sequence[Row]:
        """Run a statement; its rows. `given` are its records (see `Dialect.records`)."""
        if given is not None:
            values["given"] = orjson.dumps(given).decode()
        result: Any = self.connection.execute(statement.on(self.dialect), values)
        return result.all() if result.returns_rows else ()


@dataclass(frozen=True, slots=True)
class Engines:
    """Where transactions that write, and those that read, get their connections; the same for both where that is no matter."""

    writing: sa.Engine
    reading: sa.Engine

    def dispose(self) -> None:
        """Close all connections."""
        self.writing.dispose()
        self.reading.dispose()


class Database:
    """Runs transactions, again where that is safe, and turns what a database says into `JobLedgerUnavailableError`.

    Args:
        dialect: Its SQL.
        connect: Makes the engines; called by `start`.
        where: The database in words without secrets, for messages.
        told: Called after each commit that has news.
        outbox: See `Told`.
    """

    def __init__(
        self,
        dialect: Dialect,
        connect: Callable[[], Engines],
        *,
        where: str,
        told: Callable[[News], None],
        outbox: Told | None = None,
    ) -> None:
        self.dialect = dialect
        self.where = where
        self.errors = 0
        self._connect = connect
        self._told = told
        self._outbox = outbox
        self._engines: Engines | None = None
        self._again = threading.Event()

    def open(self) -> sa.Engine:
        """Make the engines; the one that writes. Twice does nothing."""
        if self._engines is None:
            self._engines = self._connect()
        return self._engines.writing

    def close(self) -> None:
        """Close all connections. Twice does nothing."""
        engines, self._engines = self._engines, None
        if engines is not None:
            engines.dispose()

    @property
    def pools(self) -> list[Any]:
        """The pools of connections there are now."""
        engines = self._engines
        return [] if engines is None else list({engines.writing.pool, engines.reading.pool})

    def write(self, verb: Callable[[Transaction], _T], *, repeatable: bool = True) -> _T:
        """Run `verb` in one transaction and commit it; `verb` may be called again.

        `repeatable`: whether a transaction may be done again whose commit was not answered, so that it may have happened.
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
                    answer = verb(transaction)
                    committing = True
                    begun.commit()
            except (exc.DBAPIError, exc.TimeoutError) as error:
                if not _is_away(error):
                    raise
                self.errors += 1
                if pause_s is None or isinstance(error, exc.TimeoutError) or (committing and not repeatable):
                    raise self._unavailable(error, committing=committing) from error
                self._again.wait(pause_s)
                continue
            if transaction.news.changed or transaction.news.queues:
                self._told(transaction.news)
            return answer
        raise AssertionError("the last attempt returns or raises")

    def _unavailable(self, error: Exception, *, committing: bool) -> JobLedgerUnavailableError:
        said = str(getattr(error, "orig", None) or error).strip().splitlines()
        why = said[0] if said else type(error).__name__
        taken = "whether the last write was taken is not known" if committing else "nothing was written"
        return JobLedgerUnavailableError(
            f"the job ledger {self.where} does not answer ({why}); {taken}: try again, or look after its database"
        )


def _is_away(error: Exception) -> bool:
    """Whether a database could not, rather than would not: lost, full, locked, out of time, shutting down."""
    if isinstance(error, exc.TimeoutError):
        return True
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    # A server that has become a standby says so as an internal error: 25006, read_only_sql_transaction.
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, exc.OperationalError | exc.InterfaceError) or state == "25006"
