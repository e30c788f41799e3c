"""Statements and transactions on either database, with retries. Adapter module of SQLAlchemy.

A statement is a file in ``queries/``, with named parameters, written for PostgreSQL. The text for a
database follows from four substitutions:

1. ``{job_columns}`` becomes `JOB_COLUMNS`; ``{claimable}`` and ``{claimed}``, which several statements of
   claims share, become the texts below.
2. SQLite: the lines ``FOR NO KEY UPDATE …`` are left out. It has one writer at a time, so that no
   row locks are needed.
3. SQLite: ``jsonb_to_recordset``, which reads the JSON objects in ``:given`` as rows, becomes a
   query over ``json_each``. The text is the same for any number of rows.
4. SQLite: ``= ANY (ARRAY[name])`` becomes ``= name``. PostgreSQL has one plan for a join by it: an index
   finds the rows for each name.

PostgreSQL plans a statement anew each time, as the best plan depends on values and on sizes of tables
that change fast. Some frequent statements take longer to plan than to run, and have one good plan:
`read_statement(name, keeps_plan=True)` has them planned once in a connection.

Comments are not sent. ``scripts/print_statements.py`` prints the texts of one database.

A method of `DatabaseOperations` opens its own transaction by a decorator: `reading`, `writing`, or
`writing_once` if a repetition after a commit without a response would do harm. The decorator passes
the open `Transaction` as the first argument, commits after the method has returned, and may call
the method again: a lost connection, a deadlock or a busy file costs the whole transaction.
"""

import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import orjson

from headrace.core.errors import JobLedgerUnavailableError, MissingExtraError
from headrace.jobs.counters import GROUPS_MAX, JobCounters, JobGroup, JobGroups
from headrace.jobs.job import Job, JobProgress

try:
    import sqlalchemy as sa
    from sqlalchemy import event, exc, pool
except ImportError as _error:
    raise MissingExtraError("jobs", "a job ledger") from _error

__all__ = ["Database", "Engines", "JobEventWriter", "Transaction", "event", "exc", "pool", "sa"]

SPEC_COLUMNS: Final = (
    "queue",
    "model",
    "kind",
    "tenant",
    "priority",
    "attempts_max",
    "body_digest",
    "correlation_id",
    "region",
)
"""Fields of NewJob with a column of the same name. `id` and `idempotency_key` have one too."""

JOB_COLUMNS: Final = (
    "id",
    "state",
    *SPEC_COLUMNS,
    "idempotency_key",
    "spec",
    "attempt",
    "lease",
    "crashes",
    "worker",
    "worker_region",
    "created_at_ms",
    "due_at_ms",
    "started_at_ms",
    "ended_at_ms",
    "expires_at_ms",
    "deadline_at_ms",
    "lease_until_ms",
    "cancel_requested",
    "has_dependents",
    "progress",
    "cursor",
    "result",
    "published_uri",
    "failure",
    "publish_tries",
)
"""The columns of a job, in the order in which `rows.job_of` reads them."""

QUERIES: Final = Path(__file__).parent / "queries"
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_LOCK: Final = re.compile(r"^ *FOR NO KEY UPDATE .*\n", re.MULTILINE)
_RECORDS: Final = re.compile(r"jsonb_to_recordset\(CAST\(:given AS jsonb\)\) AS record\(([^)]*)\)")
_ANY: Final = re.compile(r"= ANY \(ARRAY\[(\w+)\]\)")
_PLAN_MODES: Final = {
    False: "SET LOCAL plan_cache_mode = force_custom_plan",
    True: "SET LOCAL plan_cache_mode = force_generic_plan",
}
_CLAIMABLE: Final = """(job.deadline_at_ms IS NULL OR job.deadline_at_ms > (SELECT headrace_now()))
        AND (job.expires_at_ms IS NULL OR job.started_at_ms IS NOT NULL
            OR job.expires_at_ms > (SELECT headrace_now()))"""
"""The condition of a pending job that a claim may take, besides its due time."""
_CLAIMED: Final = """state = 'running',
    attempt = headrace_job.attempt + 1,
    lease = headrace_job.lease + 1,
    worker = :worker,
    worker_region = :region,
    started_at_ms = now_ms,
    lease_until_ms = now_ms + :lease_ms,
    progress = NULL"""
"""The new values of claimed jobs."""
_PAUSES_S: Final = (0.02, 0.1, 0.4)
"""Delays between attempts of a transaction after a lost connection, a deadlock or a lock timeout.
"""

COUNTER_SHARDS: Final = 16
"""The number of rows of each counter in PostgreSQL. A transaction adds to one of them at random, so
that two workers seldom wait for each other.
"""

_P = ParamSpec("_P")
_T = TypeVar("_T")
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, as text for each database. The fields have SQLAlchemy's names of the dialects."""

    postgresql: str
    sqlite: str
    keeps_plan: bool | None = False
    """True if PostgreSQL plans the statement once in a connection, for any values; None if either will do."""

    def filled(self, word: str, text: str) -> "Statement":
        """Return the statement with `text` in place of a word in braces."""
        texts = (each.replace(f"{{{word}}}", text) for each in (self.postgresql, self.sqlite))
        return Statement(*texts, keeps_plan=self.keeps_plan)


def read_statement(name: str, *, keeps_plan: bool | None = False) -> Statement:
    """Return the statement in ``queries/<name>.sql``."""
    text = _COMMENT.sub("", (QUERIES / f"{name}.sql").read_text())
    text = text.replace("{claimable}", _CLAIMABLE).replace("{claimed}", _CLAIMED)
    text = text.replace("{job_columns}", ", ".join(JOB_COLUMNS))
    sqlite = _ANY.sub(r"= \1", _RECORDS.sub(_json_rows, _LOCK.sub("", text)))
    return Statement(text, sqlite.replace("strpos(", "instr("), keeps_plan)


def _json_rows(match: re.Match[str]) -> str:
    """Return SQLite's query for the rows of one ``jsonb_to_recordset``."""
    names = [column.split()[0] for column in match[1].split(",")]
    columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {columns} FROM json_each(:given)) AS record"  # noqa: S608 - names of our files


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
        """Write the notifications of jobs that have just ended; each job has notification targets."""
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


@dataclass(slots=True, eq=False)
class Transaction:
    """An open transaction: runs statements, and collects its counts and the notice for its commit."""

    connection: sa.Connection
    outbox: JobEventWriter
    notice: CommitNotice = field(default_factory=CommitNotice)
    counters: JobCounters = field(default_factory=JobCounters)
    _keeps_plans: bool = False

    def run(
        self, statement: Statement, records: Sequence[dict[str, Any]] | None = None, **values: Any
    ) -> Sequence[Row]:
        """Run a statement and return its rows. `records` are the rows that it reads from ``:given``.

        Raise the driver's errors. The driver runs the statement, since SQLAlchemy's statements and
        results would cost as much time again.
        """
        if records is not None:
            values["given"] = orjson.dumps(records).decode()
        dialect = self.connection.dialect
        text = _driver_text(getattr(statement, dialect.name), dialect)
        cursor: Any = self.connection.connection.cursor()
        keeps_plan = statement.keeps_plan
        if dialect.name == "postgresql" and keeps_plan not in (None, self._keeps_plans):
            cursor.execute(_PLAN_MODES[keeps_plan])
            self._keeps_plans = keeps_plan
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description else ()


@lru_cache(512)
def _driver_text(text: str, dialect: sa.Dialect) -> str:
    """Return a statement with its parameters as the driver reads them."""
    return str(sa.text(text).compile(dialect=dialect))


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
        connect: Creates the engines; called by `open`.
        where: The database's location without secrets, for messages.
        on_commit: Called after each commit with changes.
        outbox: The writer of notifications.
    """

    def __init__(
        self,
        connect: Callable[[], Engines],
        *,
        where: str,
        on_commit: Callable[[CommitNotice], None],
        outbox: JobEventWriter,
    ) -> None:
        self.where = where
        self.errors = 0
        self._connect = connect
        self._on_commit = on_commit
        self._outbox = outbox
        self._engines: Engines | None = None
        self._groups: JobGroups | None = None
        self._retry_pause = threading.Event()

    def open(self, prepare: Callable[[sa.Engine], object] = lambda _: None) -> sa.Engine:
        """Create the engines, and let `prepare` use the writing one before transactions can run.

        Return the writing engine. A second call does nothing else.
        """
        if self._engines is None:
            engines = self._connect()
            try:
                prepare(engines.writing)
            except BaseException:
                engines.dispose()
                raise
            self._engines = engines
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

    def run(self, do: Callable[[Transaction], _T], *, read_only: bool = False, repeatable: bool = True) -> _T:
        """Run `do` in one transaction and commit it; `do` may be called again.

        `read_only`: the transaction changes nothing. `repeatable`: the transaction may be repeated
        if its commit had no response and may have succeeded.
        """
        engines = self._engines
        if engines is None:
            raise JobLedgerUnavailableError(
                f"the job ledger {self.where} is not started, or has been stopped"
            )
        engine = engines.reading if read_only else engines.writing
        driver: Any = engine.dialect.loaded_dbapi
        for pause_s in (*_PAUSES_S, None):
            committing = False
            try:
                with engine.connect() as connection, connection.begin() as begun:
                    transaction = Transaction(connection, self._outbox)
                    result = do(transaction)
                    if transaction.counters:
                        self._write_counts(transaction)
                    committing = True
                    begun.commit()
            except (exc.DBAPIError, exc.TimeoutError, driver.Error) as error:
                if not _is_away(error, driver):
                    raise
                self.errors += 1
                if pause_s is None or isinstance(error, exc.TimeoutError) or (committing and not repeatable):
                    why = first_line(_first_error(error, driver))
                    raise self._unavailable(why, committing=committing) from error
                self._retry_pause.wait(pause_s)
                continue
            if transaction.notice.changed or transaction.notice.queues:
                self._on_commit(transaction.notice)
            return result
        raise AssertionError("the last attempt returns or raises")

    def _write_counts(self, transaction: Transaction) -> None:
        if self._groups is None:
            rows = transaction.run(_COUNTED_GROUPS, row_limit=GROUPS_MAX)
            self._groups = JobGroups(JobGroup(*row) for row in rows)
        # SQLite has one writer at a time.
        is_shared = transaction.connection.dialect.name == "postgresql"
        records = [
            {
                "counted_event": count.event.value,
                "counted_cause": count.cause,
                "counted_queue": count.group.queue,
                "counted_model": count.group.model,
                "counted_tenant": count.group.tenant,
                "counted_bucket": count.bucket,
                "more_jobs": count.jobs,
                "more_ms": count.total_ms,
            }
            for count in transaction.counters.counts(self._groups)
        ]
        shard = random.randrange(COUNTER_SHARDS) if is_shared else 0  # noqa: S311 - no secret
        transaction.run(_ADD_COUNTS, records, shard=shard)

    def _unavailable(self, why: str, *, committing: bool) -> JobLedgerUnavailableError:
        taken = "it is unknown if the last write was committed" if committing else "nothing was written"
        return JobLedgerUnavailableError(
            f"the job ledger {self.where} is unavailable ({why}); {taken}: retry, or check its database"
        )


_ADD_COUNTS: Final = read_statement("add_counts", keeps_plan=None)
_COUNTED_GROUPS: Final = read_statement("counted_groups")

_Self = TypeVar("_Self", bound="DatabaseOperations")
_Method = Callable[Concatenate[_Self, Transaction, _P], _T]
_Operation = Callable[Concatenate[_Self, _P], _T]


def reading(method: _Method[_Self, _P, _T]) -> _Operation[_Self, _P, _T]:
    """Run a method in a transaction that changes nothing."""
    return _operation(method, read_only=True)


def writing(method: _Method[_Self, _P, _T]) -> _Operation[_Self, _P, _T]:
    """Run a method in a transaction that may be repeated, even if it may have been committed."""
    return _operation(method)


def writing_once(method: _Method[_Self, _P, _T]) -> _Operation[_Self, _P, _T]:
    """Run a method in a transaction that is not repeated once it may have been committed."""
    return _operation(method, repeatable=False)


def _operation(
    method: _Method[_Self, _P, _T], *, read_only: bool = False, repeatable: bool = True
) -> _Operation[_Self, _P, _T]:
    @wraps(method)
    def operation(self: _Self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        database = self._database  # pyright: ignore[reportPrivateUsage] - a method of the same object
        return database.run(
            lambda transaction: method(self, transaction, *args, **kwargs),
            read_only=read_only,
            repeatable=repeatable,
        )

    return operation


_NOW: Final = read_statement("now")


class DatabaseOperations:
    """An object whose methods run in transactions of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @reading
    def now_ms(self, transaction: Transaction) -> int:
        """Return the database's time, in milliseconds since the epoch."""
        return read_now_ms(transaction)


def read_now_ms(transaction: Transaction) -> int:
    """Return the database's time in a transaction, in milliseconds since the epoch."""
    return transaction.run(_NOW)[0][0]


def first_line(error: BaseException) -> str:
    """Return the first line of a driver's message, or the error's class name without one."""
    cause = getattr(error, "orig", None) or error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def _first_error(error: BaseException, driver: Any) -> BaseException:
    """Return the driver's error that came first: the rollback on a lost connection fails, too."""
    before = error.__context__
    if before is None or not isinstance(before, driver.Error):
        return error
    return _first_error(before, driver)


def _is_away(error: Exception, driver: Any) -> bool:
    """Return True for an outage: connection lost, disk full, locked, timed out, shutting down.

    SQLAlchemy's errors are those of connecting, beginning, committing and rolling back.
    """
    if isinstance(error, exc.TimeoutError):
        return True
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    # A server that became a standby reports an internal error: 25006, read_only_sql_transaction.
    error = getattr(error, "orig", None) or error
    state = getattr(error, "sqlstate", None)
    return isinstance(error, driver.OperationalError | driver.InterfaceError) or state == "25006"
