"""The contract of a job ledger: queue, job states and result index in one table.

Every implementation guarantees the following; `headrace.testing.check_job_ledger` verifies it:

- An operation is one transaction: it is applied completely or not at all. Once it has returned, its
  effects survive a power cut.
- At most one lease of a job is valid at any moment. Each write of an attempt (progress, cursor,
  outcome) carries the lease number. The ledger refuses it without side effects if the lease is not
  the job's last one or the job is not running.
- A job's lease number only grows, also across retries, releases and requeues. Attempts are counted
  when they begin, so that a job that kills its worker also ends.
- Time is the database's own: the clocks of two hosts are never compared.
- The end of a job and the notifications about it are written in the same transaction.
- The bytes of an API key on one day never exceed the limit that each `use_bytes` states.
- A name below an output prefix has at most one owner: a job, or, once that job is deleted, its tenant
  for `OUTPUT_NAMES_KEPT_DAYS`.
- States change only along the transitions of `headrace.jobs.job`.

All operations block and may be called from any thread. They raise `JobLedgerUnavailableError` if
the database does not respond. An operation that raised it may be repeated: repetition is harmless,
except that `use_bytes` may count twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Annotated, Any, Final, Protocol

from headrace.core.predictor import Service
from headrace.core.settings import Setting
from headrace.jobs.access.endpoints import Endpoint, EndpointSettings
from headrace.jobs.actions import ActionReply, JobAction
from headrace.jobs.audit import AuditEntry, AuditPage
from headrace.jobs.counters import JobCount
from headrace.jobs.history import HistoryEntry
from headrace.jobs.job import Job, JobFailure, JobProgress, NewJob, Settlement
from headrace.jobs.lanes import AGEING_S_DEFAULT, ClaimLimit, LimitKind
from headrace.jobs.pools import DecisionPage, Pool, ScalingDecision
from headrace.jobs.schedules import JobSchedule, ScheduleClaim, ScheduleSettings
from headrace.jobs.state import JobState
from headrace.jobs.worker_registry import WorkerInfo, WorkerOrders, WorkerRecord, WorkerReport

REPORTED_MODELS_KEPT_DAYS: Final = 30
"""Days for which a ledger keeps the models of a worker after it last registered."""

OUTPUT_NAMES_KEPT_DAYS: Final = 365
"""Days for which a ledger keeps an output name for the tenant of its deleted owner."""
PUBLISH_FIRST_MS: Final = 10_000
"""The time in which a worker publishes the ends of its own jobs, before `claim_publications`."""
PUBLISH_DELAY_MS: Final = 30_000
"""The first delay between two tries of `claim_publications`; each further one is twice as long."""
PUBLISH_DELAY_MAX_MS: Final = 3_600_000
FAILURES_READ_MAX: Final = 10_000
"""The number of last failed jobs that `failure_groups` reads."""
DAY_MS: Final = 86_400_000
"""The length of a day of `use_bytes`."""
NO_REPORT: Final = WorkerReport()


@dataclass(frozen=True, slots=True)
class SubmitReply:
    """The ledger's reply to one submission.

    `created` is True if this submission created the job, and False if its idempotency key (or id)
    already stood for `job`.
    """

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker's request for jobs: at most `jobs_max`, from `queues` in this order.

    A job that must run alone (`Job.alone`) is returned as the only job of a reply. The worker runs
    it while it has no other job.

    A worker without a `region` receives jobs of all regions. A worker with a region receives the
    jobs of this region and those without one, in the order of the queue. With `other_regions` it
    also receives jobs of other regions, if no queue has a job of the first two sorts.

    Jobs of the models in `without_models`, as jobs name them, stay in their queues for other workers.
    """

    worker: str
    queues: tuple[str, ...]
    jobs_max: int
    lease_ms: int
    region: str = ""
    other_regions: bool = False
    without_models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SettleAndClaimReply:
    """The reply to `settle_and_claim`.

    `accepted` tells for each settlement, in order, whether the ledger recorded it. `claimed` are
    the claimed jobs. `due_in_ms` is the time until the next pending job becomes due that this claim
    could receive. `due_in_ms` is None if there is no such job, if the time is unknown, or if
    `jobs_max` jobs were claimed.
    """

    accepted: tuple[bool, ...]
    claimed: tuple[Job, ...]
    due_in_ms: int | None = None
    limited: bool = False
    """True if jobs wait for the end of others, by a `ClaimLimit`: claim again with the next settlement."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat of one lease, with the progress and the cursor of its attempt (None: unchanged)."""

    job_id: str
    lease: int
    progress: JobProgress | None = None
    cursor: Mapping[str, Any] | None = None
    notify_progress: bool = False
    """True if subscribers of progress are to be notified."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The reply to a heartbeat: the ids of jobs whose attempts must stop, and the order to drain.

    `lost`: the lease is no longer valid; the worker stops the attempt and writes nothing more.
    `cancel`: a cancellation was requested. `expired`: the deadline has passed.
    """

    lost: frozenset[str]
    cancel: frozenset[str]
    expired: frozenset[str]
    draining: bool = False
    """True if the worker is to claim no more jobs."""
    registered: bool = False
    """False if the registry has no living worker of this name: register again."""


@dataclass(frozen=True, slots=True)
class MaintenanceCounts:
    """Numbers of jobs that one round of `maintain` changed."""

    returned: int = 0
    """Jobs with an expired lease that are pending again."""
    failed: int = 0
    """Jobs with an expired lease and no attempt left."""
    cancelled: int = 0
    """Jobs with an expired lease and a requested cancellation."""
    expired: int = 0
    woken: int = 0
    """Pending jobs that became due."""

    @property
    def total(self) -> int:
        """The number of all changed jobs; 0 if nothing was due."""
        return self.returned + self.failed + self.cancelled + self.expired + self.woken


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue.

    A `paused` queue gives out no jobs; a `draining` queue accepts none. `pending_max` limits the
    pending jobs of each tenant (None: unlimited), so that no tenant can take the places of others. A
    job is claimed as if it were due `ageing_s` later for each step of its priority, so that a job of a
    low priority waits for others that much longer at most.
    """

    name: Annotated[str, Setting("Name of the queue.", python_only=True)]
    paused: Annotated[bool, Setting("Give out no jobs.")] = False
    draining: Annotated[bool, Setting("Accept no jobs.")] = False
    pending_max: Annotated[
        int | None, Setting("Limit of pending jobs of each tenant.", least=0, default="no limit")
    ] = None
    ageing_s: Annotated[
        float,
        Setting(
            "Seconds of waiting that make up for a step of priority, for new jobs; inf for none.",
            above=0,
            most=inf,
        ),
    ] = AGEING_S_DEFAULT


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Numbers of unfinished jobs of a queue by state, and the waiting time of the oldest due job."""

    due: int = 0
    later: int = 0
    running: int = 0
    oldest_due_ms: int | None = None
    due_by_region: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The due jobs of each region; jobs without a region are left out."""
    blocked: int = 0
    """Jobs that wait for those of their `after`."""

    @property
    def backlog(self) -> int:
        """The number of due and running jobs: the load to scale workers by.

        The queue's length alone would remove workers that are still busy.
        """
        return self.due + self.running

    @property
    def oldest_seconds(self) -> float:
        """The waiting time of the oldest due job in seconds; 0 without due jobs."""
        return round((self.oldest_due_ms or 0) / 1000, 3)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions on listed jobs. Empty fields match every job; all others must match."""

    queue: str = ""
    states: frozenset[JobState] = frozenset()
    model: str = ""
    kind: str = ""
    correlation_id: str = ""
    fingerprint: str = ""
    """The fingerprint of a failure, as `failure_groups` returns it."""
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tenant: str | None = None
    """None matches all tenants."""
    created_from_ms: int | None = None
    created_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list of jobs, newest first.

    `next_after` starts the next page; "" on the last one. A page may be short, or empty, without being
    the last one.
    """

    jobs: tuple[Job, ...]
    next_after: str = ""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed jobs with one fingerprint: their number, the times of the first and last end, and a job.

    `last` is the job that was submitted last.
    """

    fingerprint: str
    jobs: int
    first_at_ms: int
    last_at_ms: int
    last: Job


@dataclass(frozen=True, slots=True)
class UsageReply:
    """The reply to `use_bytes`.

    `granted` is False if the bytes exceed the limit; none are counted then. `left_bytes` are left of
    the limit afterwards. `day` is the number of the ledger's day since the epoch (UTC), which ends in
    `day_ends_in_ms`.
    """

    granted: bool
    left_bytes: int
    day: int
    day_ends_in_ms: int


class Wakeup(Protocol):
    """A waiter for changes of a ledger.

    One thread waits at a time; any thread may call `wake` and `close`.
    """

    def wait(self, timeout_s: float) -> bool:
        """Block until a change is possible or `timeout_s` has passed.

        Return True if a change is possible.

        A change is reported at the latest after `timeout_s`; reports may be late or spurious, so
        read the ledger to know. A lost database connection is restored while waiting, without an
        error.
        """
        ...

    def wake(self) -> None:
        """End the current `wait`, or the next one."""
        ...

    def close(self) -> None:
        """Release the connections. A second call does nothing."""
        ...


class JobLedger(Service, Protocol):
    """A durable job queue. The module docstring lists its guarantees.

    `start` connects and migrates the schema; `stop` closes the connections.
    """

    # Submission

    def submit(
        self, jobs: Sequence[NewJob], *, all_or_nothing: bool = False
    ) -> list[SubmitReply | Exception]:
        """Queue jobs in one transaction. Return one reply for each, in order.

        A refused job has an error in place of its reply; the others are queued all the same. With
        `all_or_nothing`, an error in the replies means that nothing was queued, and that the other
        replies do not count.
        IdempotencyError: the key stands for another digest. QueueClosedError: the queue is
        draining. QueueFullError: the queue already has `pending_max` pending jobs of the tenant.
        OutputTakenError: another job owns the name of the output, and `NewJob.if_exists` does not permit
        another way.
        Two jobs of one call may share a key; the second is refused like the first if the name of that
        one's output is taken. Unknown queues are created.

        A job that comes `after` others is blocked while one of them is unfinished; then it takes no
        place of `pending_max`. They may be earlier jobs of the same call, also by an id for which the
        reply has another job. JobNotFoundError: such a job does not exist or belongs to another tenant.
        JobStateError: it ended without completing. Both name it.

        The operation that completes the last of these jobs makes the blocked job pending, due after its
        delay. One that ends such a job otherwise makes the blocked job fail with the cause
        `prerequisite`, and then those that come after it.

        A job with an `output_uri` owns the name ``output_uri/NAME`` from then on. NAME is the file
        name of its key. If the owner of that name has another key, or `if_exists` requires it,
        NAME gets a suffix (`NewJob.output_name`). An owner that ended without a result gives way
        to jobs of its tenant.
        """
        ...

    # Workers

    def settle_and_claim(
        self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        """Settle attempts and claim jobs, in one transaction.

        Claimed jobs are pending, due, and of queues that are not paused. Jobs of one tenant are
        claimed in the order of their due time, plus `QueueSettings.ageing_s` for each step of
        priority, then id, each under a new lease; `ClaimRequest` says of which regions. Tenants
        that wait in one queue share it: `headrace.jobs.lanes` describes how. No `ClaimLimit` is
        exceeded. Jobs past their time to live or deadline are not claimed. Two concurrent workers
        never wait for each other and never receive the same job.
        """
        ...

    def heartbeat(
        self, worker: str, heartbeats: Sequence[Heartbeat], lease_ms: int, report: WorkerReport = NO_REPORT
    ) -> HeartbeatReply:
        """Extend leases to `lease_ms` from now, and record their progress and cursors.

        The same transaction replaces the report of the worker in the registry.
        """
        ...

    def mark_published(self, job_id: str, lease: int, uri: str, digest: str = "") -> bool:
        """Record that a job's result, or its failure, was written to `uri` with `digest`.

        A publishing job is completed by this. The notifications of another end are released.

        Return False, and record nothing, unless `lease` is the job's last lease, its end is to be
        published or was, and no other job owns the name of its output.
        """
        ...

    def mark_publish_failed(self, job_id: str, lease: int, failure: JobFailure, *, final: bool) -> bool:
        """Record that a job's result, or its failure, could not be published.

        A publishing job has this `failure` from now on. With `final` it ends as `publish_failed`,
        and the notifications of another end are released. Return False, and record nothing, unless
        `lease` is the job's last lease and its end is still to be published.
        """
        ...

    def claim_publications(self, limit: int) -> list[Job]:
        """Return jobs whose end is to be published and due for it: those that are due the longest.

        An end is due `PUBLISH_FIRST_MS` after the last attempt. Each return counts as a try and
        makes the end due again after a delay, which begins with `PUBLISH_DELAY_MS` and doubles up to
        `PUBLISH_DELAY_MAX_MS`. Two concurrent calls never return the same job.
        """
        ...

    def output_owner(self, job: Job) -> Job | None:
        """Return the job that owns the name of this job's output: usually itself. None if it is deleted."""
        ...

    def worker_orders(self, worker: str) -> WorkerOrders:
        """Return the worker's running jobs with a requested cancellation, and if it is to drain.

        The query is cheap.
        """
        ...

    def list_running(self, worker: str) -> list[Job]:
        """Return the jobs that run under this worker's leases.

        A worker uses it after an error of `settle_and_claim`, to find out whether the transaction
        was committed.
        """
        ...

    def maintain(self, limit: int) -> MaintenanceCounts:
        """Take back expired leases, expire overdue jobs and wake due jobs; `limit` of each.

        Any number of workers may call it concurrently. A job with an expired lease is cancelled if
        a cancellation was requested. Otherwise it is pending again while attempts are left, after a
        delay that grows with its attempts. Without attempts left it fails with the cause
        `worker_lost`, or `poison` if it ran alone. Its crash count grows by one. Pending and blocked
        jobs expire.
        """
        ...

    # Queries and manual changes

    def get(self, job_id: str, *, tenant: str | None = None) -> Job:
        """Return a job.

        Raise JobNotFoundError if it does not exist or belongs to another tenant (None: any).
        """
        ...

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return the existing jobs among these ids, by id."""
        ...

    def get_by_key(self, tenant: str, idempotency_key: str) -> Job | None:
        """Return the tenant's job with this idempotency key; None for an unknown key and for ""."""
        ...

    def history(self, job_id: str) -> list[HistoryEntry]:
        """Return the stored entries of a job's history, oldest first.

        These are the ends of attempts that did not end the job, manual changes, and the ends that
        `requeue` and `republish` took back. `headrace.jobs.history.timeline` adds the rest.
        """
        ...

    def find(self, job_filter: JobFilter, *, after: str = "", limit: int = 100) -> Page:
        """Return a page of at most `limit` matching jobs, newest first.

        `after` is the `next_after` of the previous page. A page reads a bounded number of rows,
        whatever its filter: if few of them match, it has fewer jobs than `limit`, perhaps none, and a
        `next_after` behind the rows that it read. Only an empty `next_after` ends the list.
        """
        ...

    def failure_groups(self, *, tenant: str | None = None, limit: int = 100) -> list[FailureGroup]:
        """Return the failed jobs by the fingerprints of their failures, the largest group first.

        The last `FAILURES_READ_MAX` failed jobs are grouped, of one tenant or of all (None). Jobs
        that failed before schema 6 of the ledger are left out.
        """
        ...

    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """Cancel a pending or blocked job, or request the cancellation of a running one.

        Return the job afterwards.

        Cancelling a cancelled job does nothing. Raise JobStateError for a job that ended otherwise,
        and JobNotFoundError.
        """
        ...

    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """Make an ended job pending again: due now, with all its attempts.

        Its result and failure are deleted.

        Its time to live and deadline start anew. It is blocked if a job of its `after` is unfinished
        again; those that were deleted count as completed. Raise JobStateError for a job that has not
        ended, and for one of its `after` that ended without completing, which the error names;
        JobNotFoundError; and OutputTakenError if another job owns the name of its output by now.
        """
        ...

    def republish(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """Publish the result of a job that is `publish_failed` again: due now, with all its tries.

        Raise JobStateError for another state, JobNotFoundError, and OutputTakenError if another job
        owns the name of its output by now.
        """
        ...

    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        """Delete an ended job and its history. Return the deleted job.

        Raise JobStateError for a job that has not ended.
        """
        ...

    def apply_action(
        self,
        action: JobAction,
        job_ids: Sequence[str],
        *,
        tenant: str | None = None,
        by: str = "",
        audit: AuditEntry | None = None,
    ) -> ActionReply:
        """Apply a manual action to several jobs in one transaction, each as the operation of its name.

        `RETRY` republishes a job that is `publish_failed`, and requeues others. A job that comes `after`
        others of the call is requeued after them, and cancelled before them. Jobs that the action
        cannot change stay as they are, and are counted in the reply by reason. If any job was changed,
        `audit` is recorded with their number.
        """
        ...

    # Audit log

    def record_audit(self, entry: AuditEntry) -> None:
        """Append an entry to the audit log, with the ledger's time. It is kept for `AUDIT_KEPT_DAYS`."""
        ...

    def audit(self, *, done_by: str = "", action: str = "", after: str = "", limit: int = 100) -> AuditPage:
        """Return a page of the audit log, newest first: entries of a key and of an action; "" for all.

        `after` is the `next_after` of the previous page. Pages are as those of `find`.
        """
        ...

    # Queues

    def queues(self) -> list[QueueSettings]:
        """Return all queues that had a job or settings since they were last deleted, by name."""
        ...

    def queue(self, name: str) -> QueueSettings:
        """Return a queue's settings; default settings for an unknown queue."""
        ...

    def set_queue(self, settings: QueueSettings) -> None:
        """Replace a queue's settings."""
        ...

    def set_limits(self, kind: LimitKind, limits: Sequence[ClaimLimit]) -> None:
        """Replace all limits, or shares, of one kind. Running jobs above a new limit continue."""
        ...

    def delete_queue(self, name: str) -> bool:
        """Delete a queue with its settings. Ended jobs keep its name.

        Return False if it is unknown. Raise QueueInUseError, and delete nothing, if it has a job that
        has not ended. The next job of that name creates the queue again; so does a requeued one.
        """
        ...

    def counts(self, queue: str, *, tenant: str | None = None) -> QueueCounts:
        """Return the numbers of unfinished jobs of a queue, or those of one tenant in it."""
        ...

    def tenant_counts(self, tenant: str) -> Mapping[str, QueueCounts]:
        """Return the numbers of a tenant's unfinished jobs, by queue.

        A queue in which the tenant has only jobs that are being published is in it, with zeros. Jobs
        of other tenants do not slow it down.
        """
        ...

    def count_pending(self, tenant: str, *, limit: int) -> int:
        """Return the number of a tenant's pending and blocked jobs, counted up to `limit`."""
        ...

    def counters(self) -> list[JobCount]:
        """Return the numbers of all job events since the ledger exists, sorted.

        Each operation counts its events in its own transaction: a refused or failed one counts nothing,
        and a repeated one counts once. Numbers only grow; those of deleted jobs and queues stay. At
        most about `GROUPS_MAX` groups of jobs have numbers of their own, the rest counts as `OTHER`.
        """
        ...

    # Endpoints

    def endpoints(self) -> list[Endpoint]:
        """Return the current version of all endpoints, by name."""
        ...

    def endpoint_versions(self, name: str) -> list[Endpoint]:
        """Return the last `VERSIONS_MAX` versions of an endpoint, newest first; none for an unknown name."""
        ...

    def set_endpoint(self, name: str, settings: EndpointSettings, *, by: str = "") -> Endpoint:
        """Create or change an endpoint. Return its new version, or the current one if nothing changes.

        Its `running_max` replaces the `ClaimLimit` of this endpoint. Jobs keep the settings with which
        they were submitted.
        """
        ...

    def delete_endpoint(self, name: str, *, by: str = "") -> bool:
        """End an endpoint, by a version that is `deleted`. Return False if there is none."""
        ...

    # Schedules

    def schedules(self, tenant: str | None = None) -> list[JobSchedule]:
        """Return the schedules of a tenant, or of all (None), by tenant and name."""
        ...

    def schedule(self, tenant: str, name: str) -> JobSchedule:
        """Return a schedule. Raise ResourceNotFoundError if there is none."""
        ...

    def set_schedule(
        self, tenant: str, name: str, settings: ScheduleSettings, *, by: str = ""
    ) -> JobSchedule:
        """Create a schedule, or replace its settings. Return it.

        It is due at its first time after now; a paused schedule stays paused. Its version grows, unless
        the settings and `by` are those that it has. Raise DataError, and store nothing, for an invalid
        cron expression or time zone.
        """
        ...

    def set_schedule_paused(self, tenant: str, name: str, *, paused: bool) -> JobSchedule:
        """Pause a schedule, or resume it: it is due at its first time after now. Return it afterwards.

        Raise ResourceNotFoundError if there is none.
        """
        ...

    def delete_schedule(self, tenant: str, name: str) -> bool:
        """Delete a schedule; its jobs stay. Return False if there is none."""
        ...

    def claim_schedules(self, limit: int, lease_ms: int) -> list[ScheduleClaim]:
        """Claim due schedules for `lease_ms`, those that are due the longest.

        Each is claimed at its last time up to now, with the number of the times that it missed before.
        A schedule whose earlier claim has passed unrecorded is claimed at the same time again. Two
        concurrent calls never claim the same schedule.
        """
        ...

    def record_run(self, claimed: JobSchedule, *, job_id: str = "", error: str = "") -> bool:
        """Record the run of a claimed schedule at its `next_at_ms`, and make its next time due.

        The next time is the first one after that of the run, also if it has passed. `last_job_id` stays
        if `job_id` is "". A schedule without a next time on this host is paused. Return False, and
        record nothing, if the schedule was replaced or deleted since, or if the run is recorded. The
        next time of a schedule that was paused or resumed since stays.
        """
        ...

    # Usage of API keys

    def use_bytes(self, key_name: str, nbytes: int, *, limit: int) -> UsageReply:
        """Count bytes of an API key on the ledger's day, unless its count would exceed `limit`.

        Concurrent calls never exceed the limit together. The count begins anew with each day. An
        operation that raised an error may have counted its bytes; its repetition counts them again.
        """
        ...

    def return_bytes(self, key_name: str, nbytes: int, *, day: int) -> None:
        """Take bytes that were not used off the key's count of a day, which `use_bytes` named.

        The call does nothing if the count is of another day by now.
        """
        ...

    # Registry of workers

    def register_worker(self, info: WorkerInfo, report: WorkerReport = NO_REPORT) -> None:
        """Add a worker to the registry, or replace the entry of this name.

        A worker registers at its start, and again every hour. Another `start_id` makes it a
        new start: the worker does not drain any more. The models of its queues, for `reported_models`,
        are kept for `REPORTED_MODELS_KEPT_DAYS` after they were last registered.
        """
        ...

    def end_worker(self, name: str) -> None:
        """Record that a worker has stopped. Do nothing for an unknown or stopped one."""
        ...

    def workers(self) -> list[WorkerRecord]:
        """Return the living workers, and those that stopped or were lost since `WORKERS_KEPT_MS`.

        They are ordered by name. The query is cheap: it reads an index of running jobs, no jobs.
        """
        ...

    def worker(self, name: str) -> WorkerRecord:
        """Return a worker that `workers` lists, with the ids of its running jobs.

        Raise ResourceNotFoundError for another name.
        """
        ...

    def set_worker_draining(self, name: str, *, draining: bool, by: str = "") -> WorkerRecord:
        """Order a worker to claim no more jobs, or to claim again. Return it afterwards.

        Its running jobs continue. The waiters for its queues are woken, so that it learns of the order
        soon. Raise ResourceNotFoundError for a worker that `workers` does not list.
        """
        ...

    def reported_models(self) -> Mapping[str, frozenset[str]]:
        """Return the models that workers of each queue have registered, by queue."""
        ...

    # Pools of workers

    def control_pool(self, pool: str, controller: str, lease_ms: int) -> bool:
        """Take the lease of a pool for a controller, or extend it to `lease_ms` from now.

        Return False, and change nothing, while another controller holds it. Unknown pools are created.
        """
        ...

    def release_pool(self, pool: str, controller: str) -> None:
        """End the lease of a pool at once, if this controller holds it."""
        ...

    def record_decision(self, decision: ScalingDecision) -> bool:
        """Append a decision to the log, with the ledger's time. It is kept for `DECISIONS_KEPT_DAYS`.

        Return False, and record nothing, unless its controller holds the lease of its pool.
        """
        ...

    def pools(self) -> list[Pool]:
        """Return the pools, each with its last decision, by name.

        A pool is forgotten `DECISIONS_KEPT_DAYS` after the end of its last lease.
        """
        ...

    def decisions(self, *, pool: str = "", after: str = "", limit: int = 100) -> DecisionPage:
        """Return a page of decisions, newest first: those of a pool; "" for all.

        `after` is the `next_after` of the previous page. Pages are as those of `find`. Raise DataError
        for an `after` that no page returned.
        """
        ...

    # Retention

    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        """Return jobs that ended before `at_ms`, oldest first.

        Jobs with a `keep_s` of their own are returned when that has passed instead.
        """
        ...

    def forget(self, job_ids: Sequence[str]) -> int:
        """Delete ended jobs with their histories and notifications.

        Return the number of deleted jobs.
        """
        ...

    # Waiting

    def now_ms(self) -> int:
        """Return the ledger's time, in milliseconds since the epoch."""
        ...

    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        """Return a waiter for a worker: jobs that become due in these queues, cancellations and drains."""
        ...

    def watch(self) -> Wakeup:
        """Return a waiter for any change of a job's state or progress."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """Return connection statistics for gauges: ``pool_size``, ``pool_in_use``, ``errors``."""
        ...
