"""A job ledger in memory, for tests of workers and servers. It is the reference implementation.

It consists of plain dicts behind one lock. Jobs are lost with the process. Operations scan all jobs
instead of using an index.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from typing_extensions import override

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
    REPORTED_MODELS_KEPT_DAYS,
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
from headrace.jobs.state import JobEvent, JobState
from headrace.testing.clock import ManualWallClock
from headrace.testing.job_rules import (
    apply_event,
    claim_job,
    create_job,
    is_overdue,
    lose_lease,
    matches_filter,
    matches_region,
    needs_publication,
    past_deadline,
    requeue_job,
    set_published_uri,
    settle_job,
)

_RETRY_AFTER_S: Final = 1.0
_LOST_DELAY_MAX_MS: Final = 60_000


class _Listener(Wakeup):
    """A `Wakeup` over an event. `queues` is None for a listener to all changes."""

    def __init__(self, queues: frozenset[str] | None, close: Callable[["_Listener"], None]) -> None:
        self.queues = queues
        self._close = close
        self._event = threading.Event()

    @override
    def wait(self, timeout_s: float) -> bool:
        if not self._event.wait(timeout_s):
            return False
        self._event.clear()
        return True

    @override
    def wake(self) -> None:
        self._event.set()

    @override
    def close(self) -> None:
        self._close(self)


@dataclass(slots=True)
class _Table:
    """The state shared by all ledgers over the same jobs."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    histories: dict[str, list[HistoryEntry]] = field(default_factory=dict[str, list[HistoryEntry]])
    queues: dict[str, QueueSettings] = field(default_factory=dict[str, QueueSettings])
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    asleep: set[str] = field(default_factory=set[str])
    published: set[str] = field(default_factory=set[str])
    listeners: list[_Listener] = field(default_factory=list[_Listener])
    reported: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The time of the last report of each queue and model."""


def lost_delay_ms(job: Job) -> int:
    """Return the delay before the next attempt of a job with an expired lease, in milliseconds."""
    return min(1000 * 2 ** min(job.attempt - 1, 10), _LOST_DELAY_MAX_MS)


class MemoryJobLedger(JobLedger):
    """A `JobLedger` in memory, for tests.

    Args:
        clock: The ledger's time.
        beside: A ledger that shares its jobs with this one, as two workers share a database.
        lost_delay_ms: Returns the delay before the next attempt of a job with an expired lease, in
            milliseconds. Its argument is the job as it ran.
    """

    def __init__(
        self,
        clock: ManualWallClock,
        *,
        beside: "MemoryJobLedger | None" = None,
        lost_delay_ms: Callable[[Job], int] = lost_delay_ms,
    ) -> None:
        self._clock = clock
        self._table: _Table = beside._table if beside else _Table()  # noqa: SLF001 - the same class
        self._lost_delay_ms = lost_delay_ms
        self._started = False
        self._errors = 0
        self.unavailable = False
        """While True, every operation raises JobLedgerUnavailableError and does nothing."""

    @override
    def start(self) -> None:
        with self._table.lock:
            self._started = True

    @override
    def stop(self, *, drain: bool = True) -> None:
        del drain
        with self._table.lock:
            self._started = False

    @contextmanager
    def _locked(self) -> Generator[_Table]:
        """Hold the lock for one operation.

        Raise JobLedgerUnavailableError unless the ledger is running.
        """
        with self._table.lock:
            if self.unavailable or not self._started:
                self._errors += 1
                why = "is unavailable" if self.unavailable else "is not started, or has been stopped"
                raise JobLedgerUnavailableError(f"the job ledger in memory {why}")
            yield self._table

    # Submission

    @override
    def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply | Exception]:
        with self._locked():
            return [self._submit(new) for new in jobs]

    def _submit(self, new: NewJob) -> SubmitReply | Exception:
        table = self._table
        known = table.keys.get((new.tenant, new.idempotency_key)) if new.idempotency_key else new.id
        if known and (job := table.jobs.get(known)):
            if (job.spec.body_digest, job.spec.tenant) != (new.body_digest, new.tenant):
                return IdempotencyError(new.idempotency_key or new.id, job.id)
            return SubmitReply(job, created=False)
        queue = self._queue(new.queue)
        if queue.draining:
            return QueueClosedError(f"queue {queue.name} is being drained: submit to another, or later")
        waiting = sum(job.state is JobState.PENDING for job in self._queue_jobs(queue.name))
        if queue.pending_max is not None and waiting >= queue.pending_max:
            why = f"queue {queue.name} has {waiting} jobs waiting, as many as may: submit again later"
            return QueueFullError(why, retry_after_s=_RETRY_AFTER_S)
        table.queues.setdefault(queue.name, queue)
        job = create_job(new, new.id or new_job_id(self.now_ms()), self.now_ms())
        table.histories[job.id] = []
        if new.idempotency_key:
            table.keys[new.tenant, new.idempotency_key] = job.id
        self._store(job)
        return SubmitReply(job, created=True)

    # Workers

    @override
    def settle_and_claim(
        self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        with self._locked():
            accepted = tuple(self._settle(settlement) for settlement in settlements)
            if claim is None:
                return SettleAndClaimReply(accepted, ())
            taken = self._claim(claim)
            has_capacity = len(taken) < claim.jobs_max
            return SettleAndClaimReply(accepted, taken, self._due_in_ms(claim) if has_capacity else None)

    def _settle(self, settlement: Settlement) -> bool:
        job = self._running(settlement.job_id, settlement.lease)
        if job is None:
            return False
        if settlement.progress is not None:
            job = replace(job, progress=settlement.progress)
        after, event = settle_job(job, settlement.outcome, self.now_ms())
        self._store(after)
        if event is HistoryEvent.ATTEMPT_FAILED and after.failure:
            self._record(job, event, cause=after.failure.cause.value, message=after.failure.message)
        elif event:
            self._record(job, event)
        return True

    def _claim(self, claim: ClaimRequest) -> tuple[Job, ...]:
        taken: list[Job] = []
        for job in self._claimable(claim):
            # A job that must run alone is first or waits: no later job overtakes it.
            if len(taken) >= claim.jobs_max or (job.alone and taken):
                break
            taken.append(claim_job(job, claim, self.now_ms()))
            self._store(taken[-1])
            if job.alone:
                break
        return tuple(taken)

    def _claimable(self, claim: ClaimRequest) -> list[Job]:
        now_ms, waiting = self.now_ms(), self._pending(claim.queues)
        due = [job for job in waiting if job.due_at_ms <= now_ms and not is_overdue(job, now_ms)]
        matching = [job for job in due if matches_region(job, claim)]
        return matching or due if claim.other_regions else matching

    def _pending(self, queues: Iterable[str]) -> list[Job]:
        """Return the pending jobs of queues that are not paused, in claiming order."""
        found: list[Job] = []
        for name in dict.fromkeys(queues):
            if not self._queue(name).paused:
                pending = [job for job in self._queue_jobs(name) if job.state is JobState.PENDING]
                found += sorted(pending, key=lambda job: (job.spec.priority, job.due_at_ms, job.id))
        return found

    def _due_in_ms(self, claim: ClaimRequest) -> int | None:
        now_ms = self.now_ms()
        waiting = [j for j in self._pending(claim.queues) if claim.other_regions or matches_region(j, claim)]
        dues = [job.due_at_ms for job in waiting if not is_overdue(job, now_ms)]
        return max(0, min(dues) - now_ms) if dues else None

    @override
    def heartbeat(self, worker: str, heartbeats: Sequence[Heartbeat], lease_ms: int) -> HeartbeatReply:
        del worker
        lost: set[str] = set()
        cancel: set[str] = set()
        expired: set[str] = set()
        with self._locked():
            for heartbeat in heartbeats:
                job = self._running(heartbeat.job_id, heartbeat.lease)
                if job is None:
                    lost.add(heartbeat.job_id)
                    continue
                self._heartbeat(job, heartbeat, lease_ms)
                if job.cancel_requested:
                    cancel.add(job.id)
                if past_deadline(job, self.now_ms()):
                    expired.add(job.id)
        return HeartbeatReply(frozenset(lost), frozenset(cancel), frozenset(expired))

    def _heartbeat(self, job: Job, heartbeat: Heartbeat, lease_ms: int) -> None:
        updated = replace(
            job,
            lease_until_ms=self.now_ms() + lease_ms,
            progress=job.progress if heartbeat.progress is None else heartbeat.progress,
            cursor=job.cursor if heartbeat.cursor is None else heartbeat.cursor,
        )
        self._table.jobs[job.id] = updated
        if heartbeat.progress is not None:
            self._notify(None)

    @override
    def mark_published(self, job_id: str, lease: int, uri: str) -> bool:
        with self._locked() as table:
            job = table.jobs.get(job_id)
            if job is None or not job.state.ended or job.lease != lease:
                return False
            table.jobs[job_id] = set_published_uri(job, uri)
            table.published.add(job_id)
            self._notify(None)
            return True

    @override
    def cancel_requests(self, worker: str) -> frozenset[str]:
        return frozenset(job.id for job in self.list_running(worker) if job.cancel_requested)

    @override
    def list_running(self, worker: str) -> list[Job]:
        with self._locked() as table:
            jobs = table.jobs.values()
            return [job for job in jobs if job.state is JobState.RUNNING and job.worker == worker]

    @override
    def list_unpublished(self, *, ended_before_ms: int, limit: int) -> list[Job]:
        with self._locked() as table:
            found = [
                job
                for job in table.jobs.values()
                if job.id not in table.published and job.spec.output_uri and needs_publication(job)
                if job.ended_at_ms is not None and job.ended_at_ms < ended_before_ms
            ]
        return sorted(found, key=lambda job: (job.ended_at_ms, job.id))[:limit]

    @override
    def maintain(self, limit: int) -> MaintenanceCounts:
        with self._locked():
            states = [self._lose(job) for job in self._expired_leases()[:limit]]
            over = self._overdue()[:limit]
            for job in over:
                self._store(apply_event(job, JobEvent.EXPIRE, self.now_ms()))
            return MaintenanceCounts(
                returned=states.count(JobState.PENDING),
                failed=states.count(JobState.FAILED),
                cancelled=states.count(JobState.CANCELLED),
                expired=len(over),
                woken=self._wake_due(limit),
            )

    def _expired_leases(self) -> list[Job]:
        now_ms, jobs = self.now_ms(), self._table.jobs.values()
        return [job for job in jobs if job.lease_until_ms is not None and job.lease_until_ms <= now_ms]

    def _lose(self, job: Job) -> JobState:
        after = lose_lease(job, self.now_ms(), self._lost_delay_ms(job))
        self._store(after)
        cause = after.failure.cause.value if after.failure else ""
        self._record(job, HistoryEvent.LEASE_LOST, cause=cause)
        return after.state

    def _overdue(self) -> list[Job]:
        now_ms, jobs = self.now_ms(), self._table.jobs.values()
        return [job for job in jobs if job.state is JobState.PENDING and is_overdue(job, now_ms)]

    def _wake_due(self, limit: int) -> int:
        table, now_ms = self._table, self.now_ms()
        woken = [job_id for job_id in sorted(table.asleep) if table.jobs[job_id].due_at_ms <= now_ms][:limit]
        table.asleep.difference_update(woken)
        for queue in {table.jobs[job_id].spec.queue for job_id in woken}:
            self._notify(queue)
        return len(woken)

    # Queries and manual changes

    @override
    def get(self, job_id: str, *, tenant: str | None = None) -> Job:
        with self._locked() as table:
            job = table.jobs.get(job_id)
            if job is None or tenant not in (None, job.spec.tenant):
                raise JobNotFoundError(job_id)
            return job

    @override
    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        with self._locked() as table:
            return {job_id: table.jobs[job_id] for job_id in job_ids if job_id in table.jobs}

    @override
    def get_by_key(self, tenant: str, idempotency_key: str) -> Job | None:
        with self._locked() as table:
            return table.jobs.get(table.keys.get((tenant, idempotency_key), ""))

    @override
    def history(self, job_id: str) -> list[HistoryEntry]:
        with self._locked() as table:
            return list(table.histories.get(job_id, ()))

    @override
    def find(self, job_filter: JobFilter, *, after: str = "", limit: int = 100) -> Page:
        with self._locked() as table:
            found = sorted(
                (job for job in table.jobs.values() if matches_filter(job, job_filter)),
                key=_sort_key,
                reverse=True,
            )
            left = [job for job in found if not after or _sort_key(job) < after]
            more = len(left) > limit > 0
            return Page(tuple(left[:limit]), _sort_key(left[limit - 1]) if more else "")

    @override
    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        with self._locked() as table:
            job = self.get(job_id, tenant=tenant)
            if job.state is JobState.CANCELLED or (job.cancel_requested and not job.state.ended):
                return job
            if job.state.ended:
                raise JobStateError(job_id, job.state.value, "it has ended, so it cannot be cancelled")
            self._record(job, HistoryEvent.CANCEL_REQUESTED, by=by)
            if job.state is JobState.PENDING:
                self._store(apply_event(job, JobEvent.CANCEL, self.now_ms()))
            else:
                table.jobs[job_id] = replace(job, cancel_requested=True)
                self._notify(job.spec.queue)
            return table.jobs[job_id]

    @override
    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        with self._locked() as table:
            job = self._ended(job_id, tenant, "only a job that has ended can be put back")
            self._store(requeue_job(job, self.now_ms()))
            table.published.discard(job_id)
            self._record(job, HistoryEvent.REQUEUED, by=by)
            return table.jobs[job_id]

    @override
    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        with self._locked():
            job = self._ended(job_id, tenant, "only a job that has ended can be deleted; cancel it first")
            self._remove(job)
            return job

    @override
    def queues(self) -> list[QueueSettings]:
        with self._locked() as table:
            return [table.queues[name] for name in sorted(table.queues)]

    @override
    def queue(self, name: str) -> QueueSettings:
        with self._locked():
            return self._queue(name)

    @override
    def set_queue(self, settings: QueueSettings) -> None:
        with self._locked() as table:
            table.queues[settings.name] = settings
            self._notify(settings.name)

    @override
    def report_models(self, queues: Sequence[str], models: Sequence[str]) -> None:
        with self._locked() as table:
            table.reported |= dict.fromkeys(product(queues, models), self.now_ms())

    @override
    def reported_models(self) -> Mapping[str, frozenset[str]]:
        with self._locked() as table:
            first_ms = self.now_ms() - REPORTED_MODELS_KEPT_DAYS * 86_400_000
            kept = [pair for pair, at_ms in table.reported.items() if at_ms >= first_ms]
            return {queue: frozenset(m for q, m in kept if q == queue) for queue, _ in kept}

    @override
    def counts(self, queue: str) -> QueueCounts:
        with self._locked():
            now_ms, jobs = self.now_ms(), list(self._queue_jobs(queue))
            dues = [job.due_at_ms for job in jobs if job.state is JobState.PENDING]
            waits = [now_ms - due_at_ms for due_at_ms in dues if due_at_ms <= now_ms]
            running = sum(job.state is JobState.RUNNING for job in jobs)
            due = [job for job in jobs if job.state is JobState.PENDING and job.due_at_ms <= now_ms]
            regions = Counter(job.spec.region for job in due if job.spec.region)
            return QueueCounts(
                len(due), len(dues) - len(due), running, max(waits, default=None), dict(regions)
            )

    @override
    def count_pending(self, tenant: str, *, limit: int) -> int:
        with self._locked() as table:
            pending = sum(
                job.state is JobState.PENDING and job.spec.tenant == tenant for job in table.jobs.values()
            )
            return min(pending, limit)

    # Retention

    @override
    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        with self._locked() as table:
            ended = [(job.ended_at_ms, job) for job in table.jobs.values() if job.ended_at_ms is not None]
            old = [(ended_at_ms, job) for ended_at_ms, job in ended if ended_at_ms < at_ms]
            return [job for _, job in sorted(old, key=lambda pair: (pair[0], pair[1].id))[:limit]]

    @override
    def forget(self, job_ids: Sequence[str]) -> int:
        with self._locked() as table:
            known = [table.jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in table.jobs]
            ended = [job for job in known if job.state.ended]
            for job in ended:
                self._remove(job)
            return len(ended)

    # Waiting

    @override
    def now_ms(self) -> int:
        return self._clock.now_ms()

    @override
    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        return self._add_listener(frozenset(queues))

    @override
    def watch(self) -> Wakeup:
        return self._add_listener(None)

    @override
    def statistics(self) -> Mapping[str, Any]:
        return {"pool_size": 0, "pool_in_use": 0, "errors": self._errors}

    # Helpers

    def _store(self, job: Job) -> None:
        """Store a job after a change of state, and wake its listeners."""
        table = self._table
        table.jobs[job.id] = job
        pending = job.state is JobState.PENDING
        if pending and job.due_at_ms > self.now_ms():
            table.asleep.add(job.id)
        else:
            table.asleep.discard(job.id)
        self._notify(job.spec.queue if pending and job.id not in table.asleep else None)

    def _notify(self, queue: str | None) -> None:
        """Wake the listeners to `queue`, and every listener to all changes."""
        for listener in self._table.listeners:
            if listener.queues is None or queue in listener.queues:
                listener.wake()

    def _add_listener(self, queues: frozenset[str] | None) -> _Listener:
        with self._locked() as table:
            listener = _Listener(queues, self._remove_listener)
            table.listeners.append(listener)
            return listener

    def _remove_listener(self, listener: _Listener) -> None:
        with self._table.lock:
            if listener in self._table.listeners:
                self._table.listeners.remove(listener)

    def _running(self, job_id: str, lease: int) -> Job | None:
        """Return the running job if `lease` is its lease.

        Every write of an attempt passes this check.
        """
        job = self._table.jobs.get(job_id)
        return job if job and job.state is JobState.RUNNING and job.lease == lease else None

    def _ended(self, job_id: str, tenant: str | None, why: str) -> Job:
        job = self.get(job_id, tenant=tenant)
        if not job.state.ended:
            raise JobStateError(job_id, job.state.value, why)
        return job

    def _queue_jobs(self, name: str) -> Iterator[Job]:
        return (job for job in self._table.jobs.values() if job.spec.queue == name)

    def _queue(self, name: str) -> QueueSettings:
        return self._table.queues.get(name) or QueueSettings(name)

    def _record(
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


def _sort_key(job: Job) -> str:
    """Return the key of a job in the list of all jobs. Newer jobs have greater keys."""
    return f"{job.created_at_ms:015d}/{job.id}"
