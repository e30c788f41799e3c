"""The job ledger in SQL. Subclasses add the parts of one database."""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from headrace.jobs.ledger import (
    REPORTED_MODELS_KEPT_DAYS,
    QueueCounts,
    QueueSettings,
    Wakeup,
)
from headrace.jobs.ledgers.database import Database, Transaction, read_statement, reading, writing
from headrace.jobs.ledgers.outbox import SqlOutbox
from headrace.jobs.ledgers.rows import clean
from headrace.jobs.ledgers.stored_jobs import JobOperations
from headrace.jobs.ledgers.submissions import SubmitOperations, queue_of, read_queues
from headrace.jobs.ledgers.work import WorkOperations

_QUEUE: Final = read_statement("queue")
_SET_QUEUE: Final = read_statement("set_queue")
_COUNTS: Final = read_statement("queue_counts")
_DUE_BY_REGION: Final = read_statement("due_by_region")
_REPORT_MODELS: Final = read_statement("report_models")
_REPORTED_MODELS: Final = read_statement("reported_models")
_DELETE_OLD_REPORTS: Final = read_statement("delete_old_reports")
_REPORTS_KEPT_MS: Final = REPORTED_MODELS_KEPT_DAYS * 86_400_000


class SqlJobLedger(SubmitOperations, WorkOperations, JobOperations, ABC):
    """A job ledger over a `Database`: its lifecycle, and the operations on queues and reports."""

    def __init__(self, database: Database) -> None:
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

    @abstractmethod
    def _begin(self) -> None:
        """Connect, and migrate the schema."""

    @abstractmethod
    def _end(self) -> None:
        """Close all connections and threads, also after a `_begin` that failed."""

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
        )
        transaction.notice.queues.add(settings.name)

    @override
    @reading
    def counts(self, transaction: Transaction, queue: str) -> QueueCounts:
        awake, woken, later, running, *dues, now_ms = transaction.run(_COUNTS, name=queue)[0]
        waits = [now_ms - due_at_ms for due_at_ms in dues if due_at_ms is not None and due_at_ms <= now_ms]
        due = awake + woken
        by_region: Counter[str] = Counter()
        for region, jobs in transaction.run(_DUE_BY_REGION, name=queue):
            by_region[region] += jobs
        return QueueCounts(due, later, running, max(waits, default=0 if due else None), dict(by_region))

    @override
    @writing
    def report_models(self, transaction: Transaction, queues: Sequence[str], models: Sequence[str]) -> None:
        pairs = {(clean(queue), clean(model)) for queue in queues for model in models}
        records = [{"worker_queue": queue, "worker_model": model} for queue, model in sorted(pairs)]
        transaction.run(_REPORT_MODELS, records)
        transaction.run(_DELETE_OLD_REPORTS, kept_ms=_REPORTS_KEPT_MS)

    @override
    @reading
    def reported_models(self, transaction: Transaction) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for queue, model in transaction.run(_REPORTED_MODELS, kept_ms=_REPORTS_KEPT_MS):
            found.setdefault(queue, set()).add(model)
        return {queue: frozenset(models) for queue, models in found.items()}

    @override
    def statistics(self) -> Mapping[str, Any]:
        pools = self._database.pools
        return {
            "pool_size": sum(pool.size() for pool in pools),
            "pool_in_use": sum(pool.checkedout() for pool in pools),
            "errors": self._database.errors,
        }
