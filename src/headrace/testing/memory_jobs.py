"""Jobs in plain dicts behind one lock: the queries and the state of the ledger in memory.

Jobs are lost with the process. Operations scan all jobs instead of using an index.
"""

import threading
from abc import ABC
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import (
    JobLedgerUnavailableError,
    JobNotFoundError,
    JobStateError,
    OutputTakenError,
    QueueInUseError,
)
from headrace.jobs.access.endpoints import VERSIONS_MAX, Endpoint, EndpointSettings
from headrace.jobs.actions import ActionReply, JobAction, SkipReason
from headrace.jobs.audit import AUDIT_KEPT_DAYS, AuditEntry, AuditPage
from headrace.jobs.counters import CountedEvent, JobCount, JobCounters, JobGroup, JobGroups
from headrace.jobs.history import HistoryEntry, HistoryEvent, end_of
from headrace.jobs.job import Job
from headrace.jobs.lanes import AGEING_MS_MAX, ClaimLimit, LimitKind, QueueShares
from headrace.jobs.ledger import (
    DAY_MS,
    FAILURES_READ_MAX,
    OUTPUT_NAMES_KEPT_DAYS,
    PUBLISH_FIRST_MS,
    FailureGroup,
    JobFilter,
    JobLedger,
    Page,
    QueueCounts,
    QueueSettings,
    UsageReply,
    Wakeup,
)
from headrace.jobs.log_position import number_before
from headrace.jobs.paths import output_location, output_name
from headrace.jobs.pools import Pool, ScalingDecision
from headrace.jobs.schedules import JobSchedule
from headrace.jobs.state import JobEvent, JobState
from headrace.jobs.worker_registry import WorkerRecord
from headrace.testing.doubles import ManualWallClock
from headrace.testing.job_rules import (
    apply_event,
    blocked_again,
    fail_blocked_job,
    matches_filter,
    needs_publication,
    requeue_job,
    settle_name,
    unblock_job,
)

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


@dataclass(frozen=True, slots=True)
class _OutputName:
    """The owner of an output name. Its job may be deleted, at `freed_at_ms`."""

    key: str
    tenant: str
    job_id: str
    freed_at_ms: int | None = None


@dataclass(slots=True)
class _Table:
    """The state shared by all ledgers over the same jobs."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    histories: dict[str, list[HistoryEntry]] = field(default_factory=dict[str, list[HistoryEntry]])
    queues: dict[str, QueueSettings] = field(default_factory=dict[str, QueueSettings])
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    asleep: set[str] = field(default_factory=set[str])
    waits: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The jobs that each blocked job waits for."""
    publish_at_ms: dict[str, int] = field(default_factory=dict[str, int])
    """The times at which ends are due to be published, by job."""
    names: dict[str, "_OutputName"] = field(default_factory=dict[str, "_OutputName"])
    """The owners of output names, by location."""
    listeners: list[_Listener] = field(default_factory=list[_Listener])
    ranks_ms: dict[str, float] = field(default_factory=dict[str, float])
    """The ranks of pending jobs, by the ageing of their queue when they became pending."""
    endpoints: dict[str, list[Endpoint]] = field(default_factory=dict[str, list[Endpoint]])
    """The versions of endpoints, newest first."""
    limits: dict[tuple[str, str], ClaimLimit] = field(default_factory=dict[tuple[str, str], ClaimLimit])
    reported: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The time at which each queue and model was last registered."""
    workers: dict[str, WorkerRecord] = field(default_factory=dict[str, WorkerRecord])
    counters: JobCounters = field(default_factory=JobCounters)
    groups: JobGroups = field(default_factory=JobGroups)
    audit: list[AuditEntry] = field(default_factory=list[AuditEntry])
    """The audit log, oldest first."""
    schedules: dict[tuple[str, str], JobSchedule] = field(default_factory=dict[tuple[str, str], JobSchedule])
    """The schedules by tenant and name."""
    claimed_until_ms: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The ends of unrecorded claims of schedules."""
    pools: dict[str, Pool] = field(default_factory=dict[str, Pool])
    decisions: list[ScalingDecision] = field(default_factory=list[ScalingDecision])
    """The decisions about pools, oldest first."""
    usage: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The last day of each API key, and its bytes."""

    def copy(self) -> dict[str, Any]:
        """Return a copy of the contents, for a change that adds jobs."""
        names = {each.name for each in fields(self)} - {"lock", "listeners", "counters"}
        return {name: copy(getattr(self, name)) for name in names} | {"counters": deepcopy(self.counters)}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Return to the contents of an earlier `copy`."""
        for name, value in contents.items():
            setattr(self, name, value)


def lost_delay_ms(job: Job) -> int:
    """Return the delay before the next attempt of a job with an expired lease, in milliseconds."""
    return min(1000 * 2 ** min(job.attempt - 1, 10), _LOST_DELAY_MAX_MS)


class MemoryJobs(JobLedger, ABC):
    """The jobs of a ledger in memory: life cycle, queries, changes by people, queues, waiting.

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
        beside: "MemoryJobs | None" = None,
        lost_delay_ms: Callable[[Job], int] = lost_delay_ms,
    ) -> None:
        self._clock = clock
        self._table: _Table = beside._table if beside else _Table()  # noqa: SLF001 - the same contract
        self._lost_delay_ms = lost_delay_ms
        self._shares: dict[str, QueueShares] = {}
        """The shares of tenants, by queue."""
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
    def failure_groups(self, *, tenant: str | None = None, limit: int = 100) -> list[FailureGroup]:
        with self._locked() as table:
            failed = [
                job
                for job in table.jobs.values()
                if job.state in {JobState.FAILED, JobState.PUBLISH_FAILED}
                and tenant in (None, job.spec.tenant)
            ]
            failed.sort(key=lambda job: (job.ended_at_ms or 0, job.id), reverse=True)
            by_fingerprint: dict[str, list[Job]] = {}
            for job in failed[:FAILURES_READ_MAX]:
                by_fingerprint.setdefault(job.fingerprint, []).append(job)
            found = [
                FailureGroup(
                    fingerprint,
                    len(jobs),
                    jobs[-1].ended_at_ms or 0,
                    jobs[0].ended_at_ms or 0,
                    max(jobs, key=lambda job: job.id),
                )
                for fingerprint, jobs in by_fingerprint.items()
            ]
            return sorted(found, key=lambda each: (-each.jobs, -each.last_at_ms, each.fingerprint))[:limit]

    @override
    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        with self._locked() as table:
            job = self.get(job_id, tenant=tenant)
            if job.state is JobState.CANCELLED or (job.cancel_requested and not job.state.ended):
                return job
            if job.state not in {JobState.BLOCKED, JobState.PENDING, JobState.RUNNING}:
                raise JobStateError(job_id, job.state.value, "its work is done, so it cannot be cancelled")
            self._record(job, HistoryEvent.CANCEL_REQUESTED, by=by)
            if job.state is not JobState.RUNNING:
                self._store(apply_event(job, JobEvent.CANCEL, self.now_ms()))
            else:
                table.jobs[job_id] = replace(job, cancel_requested=True)
                self._notify(job.spec.queue)
            return table.jobs[job_id]

    @override
    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        with self._locked() as table:
            job = self._ended(job_id, tenant, "only a job that has ended can be put back")
            waits = blocked_again(job, table.jobs)
            self._store(requeue_job(self._claim_name(job, "fail"), self.now_ms(), blocked=bool(waits)))
            self._block(job_id, waits)
            table.queues.setdefault(job.spec.queue, QueueSettings(job.spec.queue))
            table.histories[job_id].append(end_of(job))
            self._record(job, HistoryEvent.REQUEUED, by=by)
            return table.jobs[job_id]

    @override
    def republish(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        with self._locked() as table:
            job = self.get(job_id, tenant=tenant)
            if job.state is not JobState.PUBLISH_FAILED:
                raise JobStateError(job_id, job.state.value, "only a failed publication can be repeated")
            self._claim_name(job, "fail")
            table.queues.setdefault(job.spec.queue, QueueSettings(job.spec.queue))
            self._store(apply_event(job, JobEvent.REPUBLISH, self.now_ms()))
            table.publish_at_ms[job_id] = self.now_ms()
            table.histories[job_id].append(end_of(job))
            self._record(job, HistoryEvent.REPUBLISHED, by=by)
            return table.jobs[job_id]

    @override
    def output_owner(self, job: Job) -> Job | None:
        with self._locked() as table:
            has_name = job.spec.output_uri and job.spec.key
            name = table.names.get(output_location(job.spec)) if has_name else None
            return table.jobs.get(name.job_id if name else job.id)

    @override
    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        with self._locked():
            job = self._ended(job_id, tenant, "only a job that has ended can be deleted; cancel it first")
            self._remove(job)
            return job

    @override
    def apply_action(
        self,
        action: JobAction,
        job_ids: Sequence[str],
        *,
        tenant: str | None = None,
        by: str = "",
        audit: AuditEntry | None = None,
    ) -> ActionReply:
        with self._locked():
            changed: dict[str, Job] = {}
            skipped: Counter[SkipReason] = Counter()
            order = self._prerequisites_first(job_ids)
            for job_id in order[::-1] if action is JobAction.CANCEL else order:
                found = self._apply(action, job_id, tenant, by)
                if isinstance(found, Job):
                    changed[job_id] = found
                else:
                    skipped[found] += 1
            if audit is not None and changed:
                self.record_audit(replace(audit, jobs=len(changed)))
            in_order = [changed[job_id] for job_id in dict.fromkeys(job_ids) if job_id in changed]
            return ActionReply(tuple(in_order), skipped)

    def _prerequisites_first(self, job_ids: Sequence[str]) -> list[str]:
        """Return the ids, each behind those that its job comes after."""
        left: list[str] = list(dict.fromkeys(job_ids))
        ordered: list[str] = []
        while left:
            jobs, others = self._table.jobs, set(left)
            ready = [each for each in left if each not in jobs or not others & set(jobs[each].spec.after)]
            ordered += ready
            left = [each for each in left if each not in ready]
        return ordered

    def _apply(self, action: JobAction, job_id: str, tenant: str | None, by: str) -> Job | SkipReason:
        try:
            job = self.get(job_id, tenant=tenant)
            if action is JobAction.CANCEL:
                if job.cancel_requested and not job.state.ended:
                    return SkipReason.REQUESTED
                return SkipReason.STATE if job.state.ended else self.cancel(job_id, by=by)
            if action is JobAction.DELETE:
                return self.delete(job_id)
            if action is JobAction.RETRY and job.state is JobState.PUBLISH_FAILED:
                return self.republish(job_id, by=by)
            if action is JobAction.RETRY and job.state is JobState.COMPLETED:
                return SkipReason.STATE
            return self.requeue(job_id, by=by)
        except JobNotFoundError:
            return SkipReason.GONE
        except JobStateError as error:
            return SkipReason.STATE if error.job_id == job_id else SkipReason.PREREQUISITE
        except OutputTakenError:
            return SkipReason.OUTPUT_TAKEN

    @override
    def record_audit(self, entry: AuditEntry) -> None:
        with self._locked() as table:
            table.audit.append(replace(entry, number=len(table.audit) + 1, at_ms=self.now_ms()))

    @override
    def audit(self, *, done_by: str = "", action: str = "", after: str = "", limit: int = 100) -> AuditPage:
        with self._locked() as table:
            before = number_before(after)
            first_ms = self.now_ms() - AUDIT_KEPT_DAYS * DAY_MS
            found = [
                entry
                for entry in reversed(table.audit)
                if entry.at_ms >= first_ms
                and done_by in ("", entry.done_by)
                and action in ("", entry.action)
                and entry.number < before
            ]
            more = len(found) > limit > 0
            return AuditPage(tuple(found[:limit]), str(found[limit - 1].number) if more else "")

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
    def set_limits(self, kind: LimitKind, limits: Sequence[ClaimLimit]) -> None:
        with self._locked() as table:
            others = {key: limit for key, limit in table.limits.items() if limit.kind != kind}
            table.limits = others | {(kind, limit.name): limit for limit in limits}

    @override
    def endpoints(self) -> list[Endpoint]:
        with self._locked() as table:
            current = [table.endpoints[name][0] for name in sorted(table.endpoints)]
            return [endpoint for endpoint in current if not endpoint.deleted]

    @override
    def endpoint_versions(self, name: str) -> list[Endpoint]:
        with self._locked() as table:
            return list(table.endpoints.get(name, ()))

    @override
    def set_endpoint(self, name: str, settings: EndpointSettings, *, by: str = "") -> Endpoint:
        with self._locked() as table:
            table.limits.pop(("endpoint", name), None)
            if settings.running_max is not None:
                table.limits["endpoint", name] = ClaimLimit("endpoint", name, settings.running_max)
            versions = table.endpoints.get(name, [])
            if versions and not versions[0].deleted and versions[0].settings == settings:
                return versions[0]
            return self._add_version(name, settings, by, deleted=False)

    @override
    def delete_endpoint(self, name: str, *, by: str = "") -> bool:
        with self._locked() as table:
            table.limits.pop(("endpoint", name), None)
            versions = table.endpoints.get(name, [])
            if not versions or versions[0].deleted:
                return False
            self._add_version(name, versions[0].settings, by, deleted=True)
            return True

    def _add_version(self, name: str, settings: EndpointSettings, by: str, *, deleted: bool) -> Endpoint:
        versions = self._table.endpoints.get(name, [])
        number = versions[0].version + 1 if versions else 1
        endpoint = Endpoint(name, number, settings, self.now_ms(), by, deleted)
        self._table.endpoints[name] = [endpoint, *versions][:VERSIONS_MAX]
        return endpoint

    @override
    def delete_queue(self, name: str) -> bool:
        with self._locked() as table:
            if not all(job.state.ended for job in self._queue_jobs(name)):
                raise QueueInUseError(f"queue {name} has unfinished jobs, so it cannot be removed")
            return table.queues.pop(name, None) is not None

    @override
    def counts(self, queue: str, *, tenant: str | None = None) -> QueueCounts:
        with self._locked():
            jobs = [job for job in self._queue_jobs(queue) if tenant in (None, job.spec.tenant)]
            now_ms = self.now_ms()
            dues = [job.due_at_ms for job in jobs if job.state is JobState.PENDING]
            waits = [now_ms - due_at_ms for due_at_ms in dues if due_at_ms <= now_ms]
            running = sum(job.state is JobState.RUNNING for job in jobs)
            due = [job for job in jobs if job.state is JobState.PENDING and job.due_at_ms <= now_ms]
            regions = Counter(job.spec.region for job in due if job.spec.region)
            blocked = sum(job.state is JobState.BLOCKED for job in jobs)
            return QueueCounts(
                len(due), len(dues) - len(due), running, max(waits, default=None), dict(regions), blocked
            )

    @override
    def tenant_counts(self, tenant: str) -> Mapping[str, QueueCounts]:
        with self._locked() as table:
            unfinished = [job.spec for job in table.jobs.values() if not job.state.ended]
            queues = {spec.queue for spec in unfinished if spec.tenant == tenant}
            return {queue: self.counts(queue, tenant=tenant) for queue in queues}

    @override
    def count_pending(self, tenant: str, *, limit: int) -> int:
        with self._locked() as table:
            waiting = (JobState.PENDING, JobState.BLOCKED)
            pending = sum(job.state in waiting and job.spec.tenant == tenant for job in table.jobs.values())
            return min(pending, limit)

    @override
    def use_bytes(self, key_name: str, nbytes: int, *, limit: int) -> UsageReply:
        with self._locked() as table:
            today, passed_ms = divmod(self.now_ms(), DAY_MS)
            day, used = table.usage.get(key_name, (today, 0))
            if day < today:
                day, used = today, 0
            granted = used + nbytes <= limit
            if granted:
                used += nbytes
                table.usage[key_name] = (day, used)
            return UsageReply(granted, max(0, limit - used), day, DAY_MS - passed_ms)

    @override
    def return_bytes(self, key_name: str, nbytes: int, *, day: int) -> None:
        with self._locked() as table:
            counted_day, used = table.usage.get(key_name, (day, 0))
            if counted_day == day and used >= nbytes:
                table.usage[key_name] = (day, used - nbytes)

    @override
    def counters(self) -> list[JobCount]:
        with self._locked() as table:
            return table.counters.counts()

    # Retention

    @override
    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        with self._locked() as table:
            ended = [(job.ended_at_ms, job) for job in table.jobs.values() if job.ended_at_ms is not None]
            now_ms = self.now_ms()
            old = [
                (ended_at_ms, job)
                for ended_at_ms, job in ended
                if (
                    ended_at_ms < at_ms
                    if job.spec.keep_s is None
                    else ended_at_ms + job.spec.keep_s * 1000 < now_ms
                )
            ]
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

    def _store(self, job: Job, *, cause: str = "") -> None:
        """Store a job after a change of state, count the change, and wake its listeners.

        `cause` is the cause of a retry, if it is not that of the job's failure. The end of a job changes
        those that come after it.
        """
        self._put(job, cause)
        if job.state.ended:
            self._end_dependents(job)

    def _put(self, job: Job, cause: str) -> None:
        table, earlier = self._table, self._table.jobs.get(job.id)
        self._count(earlier, job, cause or (job.failure.cause.value if job.failure else ""))
        pending = job.state is JobState.PENDING
        if pending and (earlier is None or earlier.state is not JobState.PENDING):
            table.ranks_ms[job.id] = self._rank_ms(job)
        table.jobs[job.id] = job
        table.waits.pop(job.id, None)
        if needs_publication(job):
            table.publish_at_ms[job.id] = self.now_ms() + PUBLISH_FIRST_MS
        else:
            table.publish_at_ms.pop(job.id, None)
        if pending and job.due_at_ms > self.now_ms():
            table.asleep.add(job.id)
        else:
            table.asleep.discard(job.id)
        self._notify(job.spec.queue if pending and job.id not in table.asleep else None)

    def _count(self, earlier: Job | None, job: Job, cause: str) -> None:
        counters, state, now_ms = self._table.counters, job.state, self.now_ms()
        group = self._table.groups.counted_as(JobGroup(job.spec.queue, job.spec.model, job.spec.tenant))
        spec = replace(job.spec, queue=group.queue, model=group.model, tenant=group.tenant)
        if earlier is None:
            counters.add(CountedEvent.SUBMITTED, spec)
        elif earlier.state is JobState.RUNNING:
            run_ms = now_ms - (earlier.started_at_ms or now_ms)
            if state is JobState.PENDING:
                counters.add(CountedEvent.RETRIED, spec, cause=cause, duration_ms=run_ms)
            else:
                counters.add(CountedEvent.FINISHED, spec, duration_ms=run_ms)
        elif earlier.state.ended:
            republished = state is JobState.PUBLISHING
            returned = CountedEvent.REPUBLISHED if republished else CountedEvent.REQUEUED
            counters.add(returned, spec)
        if state is JobState.RUNNING:
            counters.add(CountedEvent.STARTED, spec, duration_ms=now_ms - job.due_at_ms)
        elif state.ended:
            counters.add(CountedEvent(state.value), spec, cause=cause if "failed" in state.value else "")

    def _block(self, job_id: str, waits: set[str]) -> None:
        if waits:
            self._table.waits[job_id] = waits

    def _end_dependents(self, job: Job) -> None:
        """Unblock or fail the jobs that come after an ended one, then those after the failed ones."""
        table, ended = self._table, [job]
        while ended:
            before = ended.pop()
            for job_id in [each for each, waits in table.waits.items() if before.id in waits]:
                after = self._end_dependency(table.jobs[job_id], before)
                if after is not None:
                    self._put(after, "" if after.failure is None else after.failure.cause.value)
                    ended += [after] if after.state.ended else []

    def _end_dependency(self, job: Job, before: Job) -> Job | None:
        if before.state is not JobState.COMPLETED:
            return fail_blocked_job(job, before, self.now_ms())
        waits = self._table.waits[job.id]
        waits.discard(before.id)
        if waits:
            return None
        self._record(job, HistoryEvent.UNBLOCKED)
        return unblock_job(job, self.now_ms())

    def _rank_ms(self, job: Job) -> float:
        ageing_ms = min(self._queue(job.spec.queue).ageing_s * 1000, AGEING_MS_MAX)
        return job.due_at_ms + job.spec.priority * ageing_ms

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
        values = (job.attempt, job.lease, worker, cause, message, by, job.started_at_ms)
        self._table.histories[job.id].append(HistoryEntry(self.now_ms(), event, *values))

    def _claim_name(self, job: Job, if_exists: str) -> Job:
        """Return the job as the owner of its output name, or of another one; raise OutputTakenError."""
        table = self._table
        if not (job.spec.output_uri and job.spec.key):
            return job
        while (name := self._name(output_location(job.spec))) is not None and name.job_id != job.id:
            settled = settle_name(job, table.jobs.get(name.job_id), name.key, name.tenant, if_exists)
            if isinstance(settled, Exception):
                raise settled
            if settled is None:
                break
            spec = replace(job.spec, output_name=f"{output_name(job.spec)}~{settled}")
            job = replace(job, spec=spec)
        table.names[output_location(job.spec)] = _OutputName(job.spec.key, job.spec.tenant, job.id)
        return job

    def _name(self, location: str) -> _OutputName | None:
        name = self._table.names.get(location)
        kept_ms = OUTPUT_NAMES_KEPT_DAYS * 86_400_000
        if name and name.freed_at_ms is not None and name.freed_at_ms < self.now_ms() - kept_ms:
            return None
        return name

    def _remove(self, job: Job) -> None:
        table = self._table
        del table.jobs[job.id], table.histories[job.id]
        table.publish_at_ms.pop(job.id, None)
        for location, name in table.names.items():
            if name.job_id == job.id:
                table.names[location] = replace(name, freed_at_ms=self.now_ms())
        if job.spec.idempotency_key:
            del table.keys[job.spec.tenant, job.spec.idempotency_key]


def _sort_key(job: Job) -> str:
    """Return the key of a job in the list of all jobs. Newer jobs have greater keys."""
    return f"{job.created_at_ms:015d}/{job.id}"
