"""The job ledger in SQL: its life cycle with the migrations of its schema, its queues and counts.

Subclasses add the parts of one database.

The migrations are applied in order. A released migration is never changed: add a new one. Each is a
file in ``schema/``, written for PostgreSQL; a few substitutions make it SQLite's.

Each migration is one transaction. Any number of processes may start at once: one applies it; the
others wait and find it applied. `min_reader` says which older programs still work on the schema
after it. A migration that adds what older programs never read keeps the number; one that changes
what they rely on raises it to its own. A program refuses to start on a schema with a `min_reader`
greater than the last migration that it knows.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from typing_extensions import override

from headrace.core.errors import ConfigError, JobLedgerUnavailableError, QueueInUseError
from headrace.jobs.counters import CountedEvent, JobCount, JobGroup
from headrace.jobs.lanes import AGEING_MS_MAX, ClaimLimit, LimitKind, parse_lane
from headrace.jobs.ledger import (
    DAY_MS,
    QueueCounts,
    QueueSettings,
    UsageReply,
    Wakeup,
)
from headrace.jobs.ledgers.audit_operations import AuditOperations
from headrace.jobs.ledgers.claims import write_limits
from headrace.jobs.ledgers.client_operations import ClientOperations, queue_of, read_queues
from headrace.jobs.ledgers.database import (
    CommitNotice,
    Database,
    Engines,
    Row,
    Transaction,
    exc,
    first_line,
    read_now_ms,
    read_statement,
    reading,
    sa,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.endpoint_operations import EndpointOperations
from headrace.jobs.ledgers.job_actions import ActionOperations
from headrace.jobs.ledgers.outbox import NotificationRows, SqlOutbox
from headrace.jobs.ledgers.pool_operations import PoolOperations
from headrace.jobs.ledgers.schedule_operations import ScheduleOperations
from headrace.jobs.ledgers.work import WorkOperations
from headrace.jobs.ledgers.worker_operations import WorkerOperations

_QUEUE: Final = read_statement("queue")
_SET_QUEUE: Final = read_statement("set_queue")
_DELETE_QUEUE: Final = read_statement("delete_queue")
_QUEUE_IN_USE: Final = read_statement("queue_in_use")
_COUNTS: Final = read_statement("queue_counts")
_DUE_LANES: Final = read_statement("due_lanes")
_DELETE_LIMITS: Final = read_statement("delete_limits")
_COUNTERS: Final = read_statement("counters")
_TENANT_COUNTS: Final = read_statement("tenant_counts")
_USE_BYTES: Final = read_statement("use_bytes")
_USED_BYTES: Final = read_statement("used_bytes")
_RETURN_BYTES: Final = read_statement("return_bytes")


class SqlJobLedger(
    ClientOperations,
    ActionOperations,
    AuditOperations,
    WorkOperations,
    EndpointOperations,
    PoolOperations,
    ScheduleOperations,
    WorkerOperations,
    ABC,
):
    """A job ledger over a `Database`: its lifecycle, and the operations on queues and usage.

    The parameters are those of `Database`.
    """

    _advice: ClassVar[str]
    """Ends the error message of a ledger that cannot be opened."""

    def __init__(
        self, connect: Callable[[], Engines], *, where: str, on_commit: Callable[[CommitNotice], None]
    ) -> None:
        database = Database(connect, where=where, on_commit=on_commit, outbox=NotificationRows())
        super().__init__(database)
        self.outbox: Final = SqlOutbox(database)
        """The outbox in the same database."""
        self._life = threading.Lock()
        self._started = False

    @override
    def start(self) -> None:
        """Start.

        Raise ConfigError for a schema that is too new, and JobLedgerUnavailableError for an outage.
        """
        with self._life:
            if self._started:
                return
            try:
                self._begin()
            except BaseException:
                self._end()
                raise
            self._started = True

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop. Operations raise JobLedgerUnavailableError from then on."""
        del drain  # every operation has finished when it returns
        with self._life:
            self._started = False
            self._end()

    def _begin(self) -> None:
        """Connect, and migrate the schema before other transactions run."""
        try:
            self._database.open(
                lambda engine: migrate(partial(self._run_exclusively, engine), where=self._database.where)
            )
        except exc.DBAPIError as error:
            why = first_line(error)
            raise JobLedgerUnavailableError(
                f"the job ledger {self._database.where} cannot be opened ({why}): {self._advice}"
            ) from error

    def _end(self) -> None:
        """Close all connections and threads, also after a `_begin` that failed."""
        self._database.close()

    @abstractmethod
    def _run_exclusively(self, engine: sa.Engine, work: Callable[[sa.Connection], bool]) -> bool:
        """Run and commit transactions one at a time across all processes. Return the result of `work`."""

    @abstractmethod
    @override
    def wakeup(self, queues: Sequence[str]) -> Wakeup: ...

    @abstractmethod
    @override
    def watch(self) -> Wakeup: ...

    @override
    @reading
    def queues(self, transaction: Transaction) -> list[QueueSettings]:
        return read_queues(transaction)

    @override
    @reading
    def queue(self, transaction: Transaction, name: str) -> QueueSettings:
        rows = transaction.run(_QUEUE, name=name)
        return queue_of(rows[0]) if rows else QueueSettings(name)

    @override
    @writing
    def set_queue(self, transaction: Transaction, settings: QueueSettings) -> None:
        transaction.run(
            _SET_QUEUE,
            name=settings.name,
            paused=settings.paused,
            draining=settings.draining,
            pending_max=settings.pending_max,
            ageing_ms=round(min(settings.ageing_s * 1000, AGEING_MS_MAX)),
        )
        transaction.notice.queues.add(settings.name)

    @override
    @writing
    def delete_queue(self, transaction: Transaction, name: str) -> bool:
        if transaction.run(_QUEUE_IN_USE, name=name)[0][0]:
            raise QueueInUseError(
                f"queue {name} has unfinished jobs: cancel them or wait for their end, then remove it"
            )
        return bool(transaction.run(_DELETE_QUEUE, name=name))

    @override
    def counts(self, queue: str, *, tenant: str | None = None) -> QueueCounts:
        if tenant is None:
            return self._counts(queue)
        return self.tenant_counts(tenant).get(queue, QueueCounts())

    @reading
    def _counts(self, transaction: Transaction, queue: str) -> QueueCounts:
        later, running, blocked, now_ms = transaction.run(_COUNTS, name=queue)[0]
        lanes = transaction.run(_DUE_LANES, name=queue)
        waits_ms = [max(0, now_ms - first_ms) for _, _, first_ms in lanes]
        by_region: Counter[str] = Counter()
        for text, jobs, _ in lanes:
            if region := parse_lane(text).region:
                by_region[region] += jobs
        due = sum(jobs for _, jobs, _ in lanes)
        return QueueCounts(due, later, running, max(waits_ms, default=None), dict(by_region), blocked)

    @override
    @writing
    def set_limits(self, transaction: Transaction, kind: LimitKind, limits: Sequence[ClaimLimit]) -> None:
        transaction.run(_DELETE_LIMITS, kind=kind)
        write_limits(transaction, limits)

    @override
    @writing_once
    def use_bytes(self, transaction: Transaction, key_name: str, nbytes: int, *, limit: int) -> UsageReply:
        today, passed_ms = divmod(read_now_ms(transaction), DAY_MS)
        granted = transaction.run(
            _USE_BYTES, key_name=key_name, today=today, more_bytes=nbytes, bytes_max=limit
        )
        rows = granted or transaction.run(_USED_BYTES, key_name=key_name)
        day, used = rows[0] if rows and rows[0][0] >= today else (today, 0)
        return UsageReply(bool(granted), max(0, limit - used), day, DAY_MS - passed_ms)

    @override
    @writing_once
    def return_bytes(self, transaction: Transaction, key_name: str, nbytes: int, *, day: int) -> None:
        transaction.run(_RETURN_BYTES, key_name=key_name, less_bytes=nbytes, counted_day=day)

    @override
    @reading
    def tenant_counts(self, transaction: Transaction, tenant: str) -> Mapping[str, QueueCounts]:
        found: dict[str, list[Row]] = {}
        for queue, *numbers in transaction.run(_TENANT_COUNTS, tenant=tenant):
            found.setdefault(queue, []).append(numbers)
        return {queue: _total(rows) for queue, rows in found.items()}

    @override
    @reading
    def counters(self, transaction: Transaction) -> list[JobCount]:
        return [
            JobCount(CountedEvent(event), cause, JobGroup(*group), bucket, jobs, total_ms)
            for event, cause, *group, bucket, jobs, total_ms in transaction.run(_COUNTERS)
        ]

    @override
    def statistics(self) -> Mapping[str, Any]:
        pools = self._database.pools
        return {
            "pool_size": sum(pool.size() for pool in pools),
            "pool_in_use": sum(pool.checkedout() for pool in pools),
            "errors": self._database.errors,
        }


def _total(rows: Sequence[Row]) -> QueueCounts:
    """Return the counts of a queue from its rows: region, due, later, running, blocked, oldest wait."""
    return QueueCounts(
        due=sum(due for _, due, *_ in rows),
        later=sum(later for _, _, later, *_ in rows),
        running=sum(running for _, _, _, running, _, _ in rows),
        oldest_due_ms=max((max(0, oldest_ms) for _, due, *_, oldest_ms in rows if due), default=None),
        due_by_region={region: due for region, due, *_ in rows if region and due},
        blocked=sum(blocked for *_, blocked, _ in rows),
    )


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A migration: its number and its statements for SQLite and for PostgreSQL."""

    number: int
    min_reader: int
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]

    def statements(self, dialect: str) -> tuple[str, ...]:
        """Return the statements for one database, by its name."""
        return self.postgres if dialect == "postgresql" else self.sqlite


SCHEMA: Final = Path(__file__).parent / "schema"
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_FOR_SQLITE: Final = (
    (re.compile(r"CREATE FUNCTION .*?;\n", re.DOTALL), ""),
    (re.compile(r' COLLATE "C"'), ""),
    (
        re.compile("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
        "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
    ),
    (re.compile(r"\) WITH \([^)]*\)"), ")"),
    (re.compile(r"WHERE state <> 'running' AND"), "WHERE"),
)
"""The substitutions that make a migration's text SQLite's: no collation, no storage options, indexes of
lists with all jobs, and ``headrace_now`` is a function of the connection.
"""


def read_step(number: int, min_reader: int) -> MigrationStep:
    """Return the migration in ``schema/<number>.sql``."""
    postgres = sqlite = _COMMENT.sub("", (SCHEMA / f"{number}.sql").read_text())
    for pattern, text in _FOR_SQLITE:
        sqlite = pattern.sub(text, sqlite)
    return MigrationStep(number, min_reader, _statements(sqlite), _statements(postgres))


def _statements(script: str) -> tuple[str, ...]:
    return tuple(statement.strip() for statement in script.split(";\n") if statement.strip())


STEPS: Final = (
    read_step(1, min_reader=1),
    read_step(2, min_reader=1),
    read_step(3, min_reader=1),
    read_step(4, min_reader=4),
    read_step(5, min_reader=5),
    read_step(6, min_reader=5),
    read_step(7, min_reader=7),
    read_step(8, min_reader=7),
    read_step(9, min_reader=7),
)

_SCHEMA: Final = """
CREATE TABLE headrace_schema (
    number INTEGER NOT NULL PRIMARY KEY,
    min_reader INTEGER NOT NULL,
    applied_at_ms BIGINT NOT NULL
)
"""


def migrate(
    guarded: Callable[[Callable[[sa.Connection], bool]], bool],
    *,
    where: str,
    steps: tuple[MigrationStep, ...] = STEPS,
) -> int:
    """Apply the missing migrations. Return their number.

    Raise ConfigError, and change nothing, for the schema of a newer program that this one cannot
    work on.
    """
    taken = 0
    while guarded(lambda connection: _take_next(connection, where, steps)):
        taken += 1
    return taken


def _take_next(connection: sa.Connection, where: str, steps: tuple[MigrationStep, ...]) -> bool:
    """Apply the first missing migration. Return False if there is none."""
    if not sa.inspect(connection).has_table("headrace_schema"):
        connection.exec_driver_sql(_SCHEMA)
    found = connection.execute(sa.text("SELECT max(number), max(min_reader) FROM headrace_schema")).one()
    done, min_reader = found[0] or 0, found[1] or 0
    known = steps[-1].number
    if min_reader > known:
        raise ConfigError(
            f"the job ledger {where} has schema {done}, which this headrace (schema {known}) is too old for: "
            f"install a newer one"
        )
    missing = [step for step in steps if step.number > done]
    if not missing:
        return False
    step = missing[0]
    for statement in step.statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    connection.execute(
        sa.text(
            "INSERT INTO headrace_schema (number, min_reader, applied_at_ms) "
            "VALUES (:number, :min_reader, headrace_now())"
        ),
        {"number": step.number, "min_reader": step.min_reader},
    )
    return True
