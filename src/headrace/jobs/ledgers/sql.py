"""The job ledger in SQL: each verb is one transaction of a module by its subject. What is one database's own, its subclass does."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.jobs.job import HistoryEntry, Job, NewJob, Settlement, new_job_id
from headrace.jobs.ledger import (
    Beat,
    BeatReply,
    ClaimRequest,
    JobFilter,
    Page,
    QueueCounts,
    QueueSettings,
    Submitted,
    Turn,
    Upkeep,
    Wakeup,
)
from headrace.jobs.ledgers import deciding, looking, queues
from headrace.jobs.ledgers.beat import beat, published
from headrace.jobs.ledgers.database import Database, Statement
from headrace.jobs.ledgers.outbox import SqlOutbox
from headrace.jobs.ledgers.reading import (
    read_cancels_of,
    read_job,
    read_jobs,
    read_keyed,
    read_running_of,
    read_unpublished,
)
from headrace.jobs.ledgers.rows import clean
from headrace.jobs.ledgers.submit import submit
from headrace.jobs.ledgers.turn import turn
from headrace.jobs.ledgers.upkeep import maintain

_NOW = Statement(lambda _: "SELECT headrace_now()")
_TEXTS: Final = ("queue", "model", "tenant", "body_digest", "correlation_id", "idempotency_key", "region")
"""Fields of NewJob that are columns of text as they are given."""


def wall_ms() -> int:
    """This machine's time of day, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SqlJobLedger(ABC):
    """A `JobLedger` over a `Database`; see there for what each verb promises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._life = threading.Lock()
        self._started = False

    def start(self) -> None:
        """See `JobLedger`. ConfigError where the schema is too new, JobLedgerUnavailableError without a database."""
        with self._life:
            if self._started:
                return
            try:
                self._begin()
            except BaseException:
                self._end()
                raise
            self._started = True

    def stop(self, *, drain: bool = True) -> None:
        """See `JobLedger`; verbs raise JobLedgerUnavailableError from then on."""
        del drain  # every verb has been finished when it returned
        with self._life:
            self._started = False
            self._end()

    @abstractmethod
    def _begin(self) -> None:
        """Connect, and bring the schema up to date."""

    @abstractmethod
    def _end(self) -> None:
        """Let go of all connections and threads; also of those of a `_begin` that failed half way."""

    @abstractmethod
    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        """See `JobLedger.wakeup`."""

    @abstractmethod
    def watch(self) -> Wakeup:
        """See `JobLedger.watch`."""

    # Submitting

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | Exception]:
        """See `JobLedger.submit`."""
        if not jobs:
            return []
        at_ms = self._id_time_ms()
        made: set[str] = set()
        named: list[NewJob] = []
        for new in jobs:
            job_id = new.id or new_job_id(at_ms)
            if not new.id:
                made.add(job_id)
            named.append(_taken(new, job_id))
        return self._database.write(lambda transaction: submit(transaction, named, made))

    def _id_time_ms(self) -> int:
        """The time that new ids begin with: they only sort by it, and nothing is decided by it."""
        return wall_ms()

    # Working

    def turn(self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None) -> Turn:
        """See `JobLedger.turn`."""
        if not settlements and claim is None:
            return Turn((), ())
        return self._database.write(
            lambda transaction: turn(transaction, settlements, claim), repeatable=False
        )

    def beat(self, worker: str, beats: Sequence[Beat], lease_ms: int) -> BeatReply:
        """See `JobLedger.beat`."""
        del worker  # a lease's number says whose it is
        return self._database.write(lambda transaction: beat(transaction, beats, lease_ms))

    def published(self, job_id: str, lease: int, uri: str) -> bool:
        """See `JobLedger.published`."""
        return self._database.write(lambda transaction: published(transaction, job_id, lease, uri))

    def cancel_requests(self, worker: str) -> frozenset[str]:
        """See `JobLedger.cancel_requests`."""
        return self._database.read(lambda transaction: read_cancels_of(transaction, worker))

    def running_of(self, worker: str) -> list[Job]:
        """See `JobLedger.running_of`."""
        return self._database.read(lambda transaction: read_running_of(transaction, worker))

    def unpublished(self, *, ended_before_ms: int, limit: int) -> list[Job]:
        """See `JobLedger.unpublished`."""
        return self._database.read(lambda transaction: read_unpublished(transaction, ended_before_ms, limit))

    def maintain(self, limit: int) -> Upkeep:
        """See `JobLedger.maintain`."""
        return self._database.write(lambda transaction: maintain(transaction, limit))

    # Looking, and deciding by hand

    def get(self, job_id: str, *, tenant: str | None = None) -> Job:
        """See `JobLedger.get`."""
        return self._database.read(lambda transaction: read_job(transaction, job_id, tenant))

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """See `JobLedger.get_many`."""
        return self._database.read(lambda transaction: read_jobs(transaction, job_ids))

    def keyed(self, tenant: str, idempotency_key: str) -> Job | None:
        """See `JobLedger.keyed`."""
        if not idempotency_key:
            return None
        return self._database.read(lambda transaction: read_keyed(transaction, tenant, idempotency_key))

    def history(self, job_id: str) -> list[HistoryEntry]:
        """See `JobLedger.history`; of a very long one, the last 1000 lines."""
        return self._database.read(lambda transaction: looking.history(transaction, job_id))

    def find(self, wanted: JobFilter, *, after: str = "", limit: int = 100) -> Page:
        """See `JobLedger.find`. DataError where `after` is no place in a list."""
        return self._database.read(lambda transaction: looking.find(transaction, wanted, after, limit))

    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """See `JobLedger.cancel`."""
        return self._database.write(lambda transaction: deciding.cancel(transaction, job_id, tenant, by))

    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """See `JobLedger.requeue`."""
        return self._database.write(
            lambda transaction: deciding.requeue(transaction, job_id, tenant, by), repeatable=False
        )

    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        """See `JobLedger.delete`."""
        return self._database.write(
            lambda transaction: deciding.delete(transaction, job_id, tenant), repeatable=False
        )

    def queues(self) -> list[QueueSettings]:
        """See `JobLedger.queues`."""
        return self._database.read(queues.read_queues)

    def queue(self, name: str) -> QueueSettings:
        """See `JobLedger.queue`."""
        return self._database.read(lambda transaction: queues.read_queue(transaction, name))

    def set_queue(self, settings: QueueSettings) -> None:
        """See `JobLedger.set_queue`."""
        self._database.write(lambda transaction: queues.set_queue(transaction, settings))

    def counts(self, queue: str) -> QueueCounts:
        """See `JobLedger.counts`."""
        return self._database.read(lambda transaction: queues.count(transaction, queue))

    def pending_of(self, tenant: str, *, at_most: int) -> int:
        """See `JobLedger.pending_of`."""
        return self._database.read(lambda transaction: queues.pending_of(transaction, tenant, at_most))

    # Retention

    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        """See `JobLedger.ended_before`."""
        return self._database.read(lambda transaction: deciding.ended_before(transaction, at_ms, limit))

    def forget(self, job_ids: Sequence[str]) -> int:
        """See `JobLedger.forget`."""
        return self._database.write(lambda transaction: deciding.forget(transaction, job_ids))

    @property
    def outbox(self) -> SqlOutbox:
        """What is to be told of jobs, in the same database."""
        return SqlOutbox(self._database)

    # Waiting

    def now_ms(self) -> int:
        """See `JobLedger.now_ms`."""
        return self._database.read(lambda transaction: transaction.run(_NOW)[0][0])

    def statistics(self) -> Mapping[str, Any]:
        """See `JobLedger.statistics`."""
        pools = self._database.pools
        return {
            "pool_size": sum(pool.size() for pool in pools),
            "pool_in_use": sum(pool.checkedout() for pool in pools),
            "errors": self._database.errors,
        }


def _taken(new: NewJob, job_id: str) -> NewJob:
    """The job as every database takes it."""
    values: dict[str, str] = {}
    for name in _TEXTS:
        text: str = getattr(new, name)
        cleaned = clean(text)
        if cleaned is not text:
            values[name] = cleaned
    cleaned_id = clean(job_id)
    if cleaned_id != new.id:
        values["id"] = cleaned_id
    # Copying a value of so many fields costs more than looking at these: most jobs come with an id, and nothing to change.
    return replace(new, **values) if values else new  # pyright: ignore[reportArgumentType]
