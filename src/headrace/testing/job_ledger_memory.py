"""A job ledger in memory: the reference that real ones are held against, and what tests of workers and servers stand on.

Plain dicts behind one lock. It keeps nothing after the process, and looks at every job where a database has an index.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.core.errors import (
    IdempotencyError,
    JobLedgerUnavailableError,
    JobNotFoundError,
    JobStateError,
    QueueClosedError,
    QueueFullError,
)
from headrace.jobs.job import HistoryEntry, HistoryEvent, Job, NewJob, Settlement, new_job_id
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
from headrace.jobs.state import JobEvent, JobState
from headrace.testing.clock import ManualWallClock
from headrace.testing.job_rules import (
    claimed,
    fits,
    fresh,
    is_near,
    is_over,
    lost,
    moved,
    past_deadline,
    requeued,
    settled,
    told_where,
    wants_publishing,
)

_RETRY_AFTER_S: Final = 1.0
_LOST_DELAY_MAX_MS: Final = 60_000


class _Listener:
    """A `Wakeup` over an event; `queues` is None for one that hears all."""

    def __init__(self, queues: frozenset[str] | None, close: Callable[["_Listener"], None]) -> None:
        self.queues = queues
        self._close = close
        self._news = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """See `Wakeup.wait`."""
        if not self._news.wait(timeout_s):
            return False
        self._news.clear()
        return True

    def wake(self) -> None:
        """See `Wakeup.wake`."""
        self._news.set()

    def close(self) -> None:
        """See `Wakeup.close`."""
        self._close(self)


@dataclass(slots=True)
class _Table:
    """What all ledgers over the same jobs share."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    histories: dict[str, list[HistoryEntry]] = field(default_factory=dict[str, list[HistoryEntry]])
    queues: dict[str, QueueSettings] = field(default_factory=dict[str, QueueSettings])
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    asleep: set[str] = field(default_factory=set[str])
    published: set[str] = field(default_factory=set[str])
    listeners: list[_Listener] = field(default_factory=list[_Listener])


def lost_delay_ms(job: Job) -> int:
    """How long a job whose lease ran out waits for its next attempt."""
    return min(1000 * 2 ** min(job.attempt - 1, 10), _LOST_DELAY_MAX_MS)


class MemoryJobLedger:
    """A `JobLedger` in memory, for tests; see there for what each verb promises.

    Args:
        clock: The ledger's time.
        beside: A ledger whose jobs this one shares, as two workers share a database.
        lost_delay_ms: How long a job whose lease ran out waits for its next attempt, by the job as it ran.
    """

    def __init__(
        self,
        clock: ManualWallClock,
        *,
        beside: "MemoryJobLedger | None" = None,
        lost_delay_ms: Callable[[Job], int] = lost_delay_ms,
    ) -> None:
        self._clock = clock
        self._table: _Table = beside._table if beside else _Table()  # noqa: SLF001 - of its own class
        self._lost_delay_ms = lost_delay_ms
        self._started = False
        self._errors = 0
        self.away = False
        """While a test sets this, every verb raises JobLedgerUnavailableError and does nothing."""

    def start(self) -> None:
        """See `JobLedger`; starting again after a stop finds all jobs."""
        with self._table.lock:
            self._started = True

    def stop(self, *, drain: bool = True) -> None:
        """See `JobLedger`; verbs raise JobLedgerUnavailableError from then on."""
        del drain
        with self._table.lock:
            self._started = False

    @contextmanager
    def _open(self) -> Generator[_Table]:
        """One verb at a time, on a ledger that answers."""
        with self._table.lock:
            if self.away or not self._started:
                self._errors += 1
                why = "is away" if self.away else "is not started, or has been stopped"
                raise JobLedgerUnavailableError(f"the job ledger in memory {why}")
            yield self._table

    # Submitting

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | Exception]:
        """See `JobLedger.submit`."""
        with self._open():
            return [self._submit(new) for new in jobs]

    def _submit(self, new: NewJob) -> Submitted | Exception:
        table = self._table
        known = table.keys.get((new.tenant, new.idempotency_key)) if new.idempotency_key else new.id
        if known and (job := table.jobs.get(known)):
            if (job.spec.body_digest, job.spec.tenant) != (new.body_digest, new.tenant):
                return IdempotencyError(new.idempotency_key or new.id, job.id)
            return Submitted(job, created=False)
        queue = self._queue(new.queue)
        if queue.draining:
            return QueueClosedError(f"queue {queue.name} is being drained: submit to another, or later")
        waiting = sum(job.state is JobState.PENDING for job in self._of_queue(queue.name))
        if queue.pending_max is not None and waiting >= queue.pending_max:
            why = f"queue {queue.name} has {waiting} jobs waiting, as many as may: submit again later"
            return QueueFullError(why, retry_after_s=_RETRY_AFTER_S)
        table.queues.setdefault(queue.name, queue)
        job = fresh(new, new.id or new_job_id(self.now_ms()), self.now_ms())
        table.histories[job.id] = []
        if new.idempotency_key:
            table.keys[new.tenant, new.idempotency_key] = job.id
        self._put(job)
        return Submitted(job, created=True)

    # Working

    def turn(self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None) -> Turn:
        """See `JobLedger.turn`."""
        with self._open():
            accepted = tuple(self._settle(settlement) for settlement in settlements)
            if claim is None:
                return Turn(accepted, ())
            taken = self._claim(claim)
            room = len(taken) < claim.jobs_max
            return Turn(accepted, taken, self._due_in_ms(claim) if room else None)

    def _settle(self, settlement: Settlement) -> bool:
        job = self._running(settlement.job_id, settlement.lease)
        if job is None:
            return False
        if settlement.progress is not None:
            job = replace(job, progress=settlement.progress)
        after, event = settled(job, settlement.outcome, self.now_ms())
        self._put(after)
        if event is HistoryEvent.ATTEMPT_FAILED and after.failure:
            self._note(job, event, cause=after.failure.cause.value, message=after.failure.message)
        elif event:
            self._note(job, event)
        return True

    def _claim(self, claim: ClaimRequest) -> tuple[Job, ...]:
        taken: list[Job] = []
        for job in self._claimable(claim):
            # What must be alone comes first or waits: nothing behind it goes ahead of it.
            if len(taken) >= claim.jobs_max or (job.alone and taken):
                break
            taken.append(claimed(job, claim, self.now_ms()))
            self._put(taken[-1])
            if job.alone:
                break
        return tuple(taken)

    def _claimable(self, claim: ClaimRequest) -> list[Job]:
        now_ms, waiting = self.now_ms(), self._waiting(claim.queues)
        due = [job for job in waiting if job.due_at_ms <= now_ms and not is_over(job, now_ms)]
        near = [job for job in due if is_near(job, claim)]
        return near or due if claim.other_regions else near

    def _waiting(self, queues: Iterable[str]) -> list[Job]:
        """Pending jobs of queues that are not paused, in the order in which they are taken."""
        found: list[Job] = []
        for name in dict.fromkeys(queues):
            if not self._queue(name).paused:
                pending = [job for job in self._of_queue(name) if job.state is JobState.PENDING]
                found += sorted(pending, key=lambda job: (job.spec.priority, job.due_at_ms, job.id))
        return found

    def _due_in_ms(self, claim: ClaimRequest) -> int | None:
        now_ms = self.now_ms()
        waiting = [j for j in self._waiting(claim.queues) if claim.other_regions or is_near(j, claim)]
        dues = [job.due_at_ms for job in waiting if not is_over(job, now_ms)]
        return max(0, min(dues) - now_ms) if dues else None

    def beat(self, worker: str, beats: Sequence[Beat], lease_ms: int) -> BeatReply:
        """See `JobLedger.beat`."""
        del worker
        gone: set[str] = set()
        cancel: set[str] = set()
        expired: set[str] = set()
        with self._open():
            for beat in beats:
                job = self._running(beat.job_id, beat.lease)
                if job is None:
                    gone.add(beat.job_id)
                    continue
                self._beat(job, beat, lease_ms)
                if job.cancel_requested:
                    cancel.add(job.id)
                if past_deadline(job, self.now_ms()):
                    expired.add(job.id)
        return BeatReply(frozenset(gone), frozenset(cancel), frozenset(expired))

    def _beat(self, job: Job, beat: Beat, lease_ms: int) -> None:
        told = replace(
            job,
            lease_until_ms=self.now_ms() + lease_ms,
            progress=job.progress if beat.progress is None else beat.progress,
            cursor=job.cursor if beat.cursor is None else beat.cursor,
        )
        self._table.jobs[job.id] = told
        if beat.progress is not None:
            self._tell(None)

    def published(self, job_id: str, lease: int, uri: str) -> bool:
        """See `JobLedger.published`."""
        with self._open() as table:
            job = table.jobs.get(job_id)
            if job is None or not job.state.ended or job.lease != lease:
                return False
            table.jobs[job_id] = told_where(job, uri)
            table.published.add(job_id)
            self._tell(None)
            return True

    def cancel_requests(self, worker: str) -> frozenset[str]:
        """See `JobLedger.cancel_requests`."""
        return frozenset(job.id for job in self.running_of(worker) if job.cancel_requested)

    def running_of(self, worker: str) -> list[Job]:
        """See `JobLedger.running_of`."""
        with self._open() as table:
            jobs = table.jobs.values()
            return [job for job in jobs if job.state is JobState.RUNNING and job.worker == worker]

    def unpublished(self, *, ended_before_ms: int, limit: int) -> list[Job]:
        """See `JobLedger.unpublished`."""
        with self._open() as table:
            found = [
                job
                for job in table.jobs.values()
                if job.id not in table.published and job.spec.output_uri and wants_publishing(job)
                if job.ended_at_ms is not None and job.ended_at_ms < ended_before_ms
            ]
        return sorted(found, key=lambda job: (job.ended_at_ms, job.id))[:limit]

    def maintain(self, limit: int) -> Upkeep:
        """See `JobLedger.maintain`."""
        with self._open():
            states = [self._lose(job) for job in self._lease_ran_out()[:limit]]
            over = self._over()[:limit]
            for job in over:
                self._put(moved(job, JobEvent.EXPIRE, self.now_ms()))
            return Upkeep(
                returned=states.count(JobState.PENDING),
                failed=states.count(JobState.FAILED),
                cancelled=states.count(JobState.CANCELLED),
                expired=len(over),
                woken=self._wake_due(limit),
            )

    def _lease_ran_out(self) -> list[Job]:
        now_ms, jobs = self.now_ms(), self._table.jobs.values()
        return [job for job in jobs if job.lease_until_ms is not None and job.lease_until_ms <= now_ms]

    def _lose(self, job: Job) -> JobState:
        after = lost(job, self.now_ms(), self._lost_delay_ms(job))
        self._put(after)
        cause = after.failure.cause.value if after.failure else ""
        self._note(job, HistoryEvent.LEASE_LOST, cause=cause)
        return after.state

    def _over(self) -> list[Job]:
        now_ms, jobs = self.now_ms(), self._table.jobs.values()
        return [job for job in jobs if job.state is JobState.PENDING and is_over(job, now_ms)]

    def _wake_due(self, limit: int) -> int:
        table, now_ms = self._table, self.now_ms()
        woken = [job_id for job_id in sorted(table.asleep) if table.jobs[job_id].due_at_ms <= now_ms][:limit]
        table.asleep.difference_update(woken)
        for queue in {table.jobs[job_id].spec.queue for job_id in woken}:
            self._tell(queue)
        return len(woken)

    # Looking, and deciding by hand

    def get(self, job_id: str, *, tenant: str | None = None) -> Job:
        """See `JobLedger.get`."""
        with self._open() as table:
            job = table.jobs.get(job_id)
            if job is None or tenant not in (None, job.spec.tenant):
                raise JobNotFoundError(job_id)
            return job

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """See `JobLedger.get_many`."""
        with self._open() as table:
            return {job_id: table.jobs[job_id] for job_id in job_ids if job_id in table.jobs}

    def keyed(self, tenant: str, idempotency_key: str) -> Job | None:
        """See `JobLedger.keyed`."""
        with self._open() as table:
            return table.jobs.get(table.keys.get((tenant, idempotency_key), ""))

    def history(self, job_id: str) -> list[HistoryEntry]:
        """See `JobLedger.history`; empty for a job that there is not."""
        with self._open() as table:
            return list(table.histories.get(job_id, ()))

    def find(self, wanted: JobFilter, *, after: str = "", limit: int = 100) -> Page:
        """See `JobLedger.find`."""
        with self._open() as table:
            found = sorted(
                (job for job in table.jobs.values() if fits(job, wanted)), key=_place, reverse=True
            )
            left = [job for job in found if not after or _place(job) < after]
            more = len(left) > limit > 0
            return Page(tuple(left[:limit]), _place(left[limit - 1]) if more else "")

    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """See `JobLedger.cancel`."""
        with self._open() as table:
            job = self.get(job_id, tenant=tenant)
            if job.state is JobState.CANCELLED or (job.cancel_requested and not job.state.ended):
                return job
            if job.state.ended:
                raise JobStateError(job_id, job.state.value, "it has ended, so it cannot be cancelled")
            self._note(job, HistoryEvent.CANCEL_REQUESTED, by=by)
            if job.state is JobState.PENDING:
                self._put(moved(job, JobEvent.CANCEL, self.now_ms()))
            else:
                table.jobs[job_id] = replace(job, cancel_requested=True)
                self._tell(job.spec.queue)
            return table.jobs[job_id]

    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """See `JobLedger.requeue`."""
        with self._open() as table:
            job = self._ended(job_id, tenant, "only a job that has ended can be put back")
            self._put(requeued(job, self.now_ms()))
            table.published.discard(job_id)
            self._note(job, HistoryEvent.REQUEUED, by=by)
            return table.jobs[job_id]

    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        """See `JobLedger.delete`."""
        with self._open():
            job = self._ended(job_id, tenant, "only a job that has ended can be deleted; cancel it first")
            self._remove(job)
            return job

    def queues(self) -> list[QueueSettings]:
        """See `JobLedger.queues`."""
        with self._open() as table:
            return [table.queues[name] for name in sorted(table.queues)]

    def queue(self, name: str) -> QueueSettings:
        """See `JobLedger.queue`."""
        with self._open():
            return self._queue(name)

    def set_queue(self, settings: QueueSettings) -> None:
        """See `JobLedger.set_queue`."""
        with self._open() as table:
            table.queues[settings.name] = settings
            self._tell(settings.name)

    def counts(self, queue: str) -> QueueCounts:
        """See `JobLedger.counts`."""
        with self._open():
            now_ms, jobs = self.now_ms(), list(self._of_queue(queue))
            dues = [job.due_at_ms for job in jobs if job.state is JobState.PENDING]
            waits = [now_ms - due_at_ms for due_at_ms in dues if due_at_ms <= now_ms]
            running = sum(job.state is JobState.RUNNING for job in jobs)
            due = [job for job in jobs if job.state is JobState.PENDING and job.due_at_ms <= now_ms]
            regions = Counter(job.spec.region for job in due if job.spec.region)
            return QueueCounts(
                len(due), len(dues) - len(due), running, max(waits, default=None), dict(regions)
            )

    def pending_of(self, tenant: str, *, at_most: int) -> int:
        """See `JobLedger.pending_of`."""
        with self._open() as table:
            pending = sum(
                job.state is JobState.PENDING and job.spec.tenant == tenant for job in table.jobs.values()
            )
            return min(pending, at_most)

    # Retention

    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        """See `JobLedger.ended_before`."""
        with self._open() as table:
            ended = [(job.ended_at_ms, job) for job in table.jobs.values() if job.ended_at_ms is not None]
            old = [(ended_at_ms, job) for ended_at_ms, job in ended if ended_at_ms < at_ms]
            return [job for _, job in sorted(old, key=lambda pair: (pair[0], pair[1].id))[:limit]]

    def forget(self, job_ids: Sequence[str]) -> int:
        """See `JobLedger.forget`."""
        with self._open() as table:
            known = [table.jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in table.jobs]
            ended = [job for job in known if job.state.ended]
            for job in ended:
                self._remove(job)
            return len(ended)

    # Waiting

    def now_ms(self) -> int:
        """See `JobLedger.now_ms`."""
        return self._clock.now_ms()

    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        """See `JobLedger.wakeup`."""
        return self._listen(frozenset(queues))

    def watch(self) -> Wakeup:
        """See `JobLedger.watch`."""
        return self._listen(None)

    def statistics(self) -> Mapping[str, Any]:
        """See `JobLedger.statistics`; there are no connections."""
        return {"pool_size": 0, "pool_in_use": 0, "errors": self._errors}

    # What the verbs share

    def _put(self, job: Job) -> None:
        """Keep a job whose state changed, and tell whoever may wait for it."""
        table = self._table
        table.jobs[job.id] = job
        pending = job.state is JobState.PENDING
        if pending and job.due_at_ms > self.now_ms():
            table.asleep.add(job.id)
        else:
            table.asleep.discard(job.id)
        self._tell(job.spec.queue if pending and job.id not in table.asleep else None)

    def _tell(self, queue: str | None) -> None:
        """Wake who waits for work of `queue`, and always who follows jobs."""
        for listener in self._table.listeners:
            if listener.queues is None or queue in listener.queues:
                listener.wake()

    def _listen(self, queues: frozenset[str] | None) -> _Listener:
        with self._open() as table:
            listener = _Listener(queues, self._deaf)
            table.listeners.append(listener)
            return listener

    def _deaf(self, listener: _Listener) -> None:
        with self._table.lock:
            if listener in self._table.listeners:
                self._table.listeners.remove(listener)

    def _running(self, job_id: str, lease: int) -> Job | None:
        """The job, where this is its lease and it runs: the fence of all that an attempt writes."""
        job = self._table.jobs.get(job_id)
        return job if job and job.state is JobState.RUNNING and job.lease == lease else None

    def _ended(self, job_id: str, tenant: str | None, why: str) -> Job:
        job = self.get(job_id, tenant=tenant)
        if not job.state.ended:
            raise JobStateError(job_id, job.state.value, why)
        return job

    def _of_queue(self, name: str) -> Iterator[Job]:
        return (job for job in self._table.jobs.values() if job.spec.queue == name)

    def _queue(self, name: str) -> QueueSettings:
        return self._table.queues.get(name) or QueueSettings(name)

    def _note(
        self, job: Job, event: HistoryEvent, *, cause: str = "", message: str = "", by: str = ""
    ) -> None:
        worker = job.worker if job.state is JobState.RUNNING else ""
        entry = HistoryEntry(self.now_ms(), event, job.attempt, job.lease, worker, cause, message, by)
        self._table.histories[job.id].append(entry)

    def _remove(self, job: Job) -> None:
        table = self._table
        del table.jobs[job.id], table.histories[job.id]
        table.published.discard(job.id)
        if job.spec.idempotency_key:
            del table.keys[job.spec.tenant, job.spec.idempotency_key]


def _place(job: Job) -> str:
    """Where a job stands among all: newer is greater."""
    return f"{job.created_at_ms:015d}/{job.id}"
