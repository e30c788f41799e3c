"""The job ledger in SQL: each operation is one transaction.

Subclasses add the parts of one database.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from headrace.jobs.job import HistoryEntry, Job, NewJob, Settlement, new_job_id
from headrace.jobs.ledger import (
    ClaimRequest,
    Heartbeat,
    HeartbeatReply,
    JobFilter,
    JobLedger,
    MaintenanceCounts,
    Page,
    QueueCounts,
    QueueSettings,
    SettleAndClaimReply,
    SubmitReply,
    Wakeup,
)
from headrace.jobs.ledgers import job_actions, listing, queues
from headrace.jobs.ledgers.database import Database, Statement
from headrace.jobs.ledgers.heartbeat import heartbeat, mark_published
from headrace.jobs.ledgers.lookup import (
    read_by_key,
    read_cancel_requests,
    read_job,
    read_jobs,
    read_running,
    read_unpublished,
)
from headrace.jobs.ledgers.maintain import maintain
from headrace.jobs.ledgers.outbox import SqlOutbox
from headrace.jobs.ledgers.reported_models import read_reported_models, report_models
from headrace.jobs.ledgers.rows import clean
from headrace.jobs.ledgers.settle_and_claim import settle_and_claim
from headrace.jobs.ledgers.submit import submit

_NOW = Statement(lambda _: "SELECT headrace_now()")
_TEXTS: Final = ("queue", "model", "tenant", "body_digest", "correlation_id", "idempotency_key", "region")
"""Fields of NewJob that are stored unchanged in text columns."""


def wall_ms() -> int:
    """Return this host's time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SqlJobLedger(JobLedger, ABC):
    """A job ledger over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database
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

    # Submission

    @override
    def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply | Exception]:
        if not jobs:
            return []
        at_ms = self._id_time_ms()
        new_ids: set[str] = set()
        named: list[NewJob] = []
        for new in jobs:
            job_id = new.id or new_job_id(at_ms)
            if not new.id:
                new_ids.add(job_id)
            named.append(_taken(new, job_id))
        return self._database.write(lambda transaction: submit(transaction, named, new_ids))

    def _id_time_ms(self) -> int:
        """Return the time that new ids begin with. Ids sort by it; nothing else depends on it."""
        return wall_ms()

    # Workers

    @override
    def settle_and_claim(
        self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        if not settlements and claim is None:
            return SettleAndClaimReply((), ())
        return self._database.write(
            lambda transaction: settle_and_claim(transaction, settlements, claim), repeatable=False
        )

    @override
    def heartbeat(self, worker: str, heartbeats: Sequence[Heartbeat], lease_ms: int) -> HeartbeatReply:
        del worker  # a lease number identifies its worker
        return self._database.write(lambda transaction: heartbeat(transaction, heartbeats, lease_ms))

    @override
    def mark_published(self, job_id: str, lease: int, uri: str) -> bool:
        return self._database.write(lambda transaction: mark_published(transaction, job_id, lease, uri))

    @override
    def cancel_requests(self, worker: str) -> frozenset[str]:
        return self._database.read(lambda transaction: read_cancel_requests(transaction, worker))

    @override
    def list_running(self, worker: str) -> list[Job]:
        return self._database.read(lambda transaction: read_running(transaction, worker))

    @override
    def list_unpublished(self, *, ended_before_ms: int, limit: int) -> list[Job]:
        return self._database.read(lambda transaction: read_unpublished(transaction, ended_before_ms, limit))

    @override
    def maintain(self, limit: int) -> MaintenanceCounts:
        return self._database.write(lambda transaction: maintain(transaction, limit))

    # Queries and manual changes

    @override
    def get(self, job_id: str, *, tenant: str | None = None) -> Job:
        return self._database.read(lambda transaction: read_job(transaction, job_id, tenant))

    @override
    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return self._database.read(lambda transaction: read_jobs(transaction, job_ids))

    @override
    def get_by_key(self, tenant: str, idempotency_key: str) -> Job | None:
        if not idempotency_key:
            return None
        return self._database.read(lambda transaction: read_by_key(transaction, tenant, idempotency_key))

    @override
    def history(self, job_id: str) -> list[HistoryEntry]:
        """Return the last 1000 entries of the history, oldest first."""
        return self._database.read(lambda transaction: listing.history(transaction, job_id))

    @override
    def find(self, job_filter: JobFilter, *, after: str = "", limit: int = 100) -> Page:
        """Return a page of jobs. Raise DataError for an invalid `after`."""
        return self._database.read(lambda transaction: listing.find(transaction, job_filter, after, limit))

    @override
    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        return self._database.write(lambda transaction: job_actions.cancel(transaction, job_id, tenant, by))

    @override
    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        return self._database.write(
            lambda transaction: job_actions.requeue(transaction, job_id, tenant, by), repeatable=False
        )

    @override
    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        return self._database.write(
            lambda transaction: job_actions.delete(transaction, job_id, tenant), repeatable=False
        )

    @override
    def queues(self) -> list[QueueSettings]:
        return self._database.read(queues.read_queues)

    @override
    def queue(self, name: str) -> QueueSettings:
        return self._database.read(lambda transaction: queues.read_queue(transaction, name))

    @override
    def set_queue(self, settings: QueueSettings) -> None:
        self._database.write(lambda transaction: queues.set_queue(transaction, settings))

    @override
    def counts(self, queue: str) -> QueueCounts:
        return self._database.read(lambda transaction: queues.count(transaction, queue))

    @override
    def count_pending(self, tenant: str, *, limit: int) -> int:
        return self._database.read(lambda transaction: queues.count_pending(transaction, tenant, limit))

    # Models of workers

    @override
    def report_models(self, queues: Sequence[str], models: Sequence[str]) -> None:
        self._database.write(lambda transaction: report_models(transaction, queues, models))

    @override
    def reported_models(self) -> Mapping[str, frozenset[str]]:
        return self._database.read(read_reported_models)

    # Retention

    @override
    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        return self._database.read(lambda transaction: job_actions.ended_before(transaction, at_ms, limit))

    @override
    def forget(self, job_ids: Sequence[str]) -> int:
        return self._database.write(lambda transaction: job_actions.forget(transaction, job_ids))

    @property
    def outbox(self) -> SqlOutbox:
        """The outbox in the same database."""
        return SqlOutbox(self._database)

    # Waiting

    @override
    def now_ms(self) -> int:
        return self._database.read(lambda transaction: transaction.run(_NOW)[0][0])

    @override
    def statistics(self) -> Mapping[str, Any]:
        pools = self._database.pools
        return {
            "pool_size": sum(pool.size() for pool in pools),
            "pool_in_use": sum(pool.checkedout() for pool in pools),
            "errors": self._database.errors,
        }


def _taken(new: NewJob, job_id: str) -> NewJob:
    """Return the job with texts that every database accepts."""
    values: dict[str, str] = {}
    for name in _TEXTS:
        text: str = getattr(new, name)
        cleaned = clean(text)
        if cleaned is not text:
            values[name] = cleaned
    cleaned_id = clean(job_id)
    if cleaned_id != new.id:
        values["id"] = cleaned_id
    # Copying a value with many fields costs more than these comparisons. Most jobs have an id and
    # need no change.
    return replace(new, **values) if values else new  # pyright: ignore[reportArgumentType]
