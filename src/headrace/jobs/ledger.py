"""The contract of a job ledger: queue, status and result index in one table.

What every implementation guarantees, and `headrace.testing.check_job_ledger` proves of each:

- A verb is one transaction: it happened whole, or not at all. When it returns, what it did survives a power cut.
- At any moment at most one lease of a job counts. Whatever an attempt writes (progress, cursor, outcome) carries the
  lease's number, and is refused, without harm, once the lease is not the job's last or the job does not run.
- The number of a lease only grows, also over retries, releases and requeuing. Attempts are counted when they begin,
  so that a job that kills its worker comes to an end too.
- Time is the database's own: no two hosts' clocks are compared.
- What ends a job and what tells the world about it (notifications) are written in the same transaction.
- A state changes only as `headrace.jobs.state` has it.

All verbs block, may be called from any thread, and raise `JobLedgerUnavailableError` where the database does not answer.
A verb that raises it may be called again: none does harm by being done twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from headrace.core.service import Service
from headrace.jobs.job import HistoryEntry, Job, NewJob, Progress, Settlement
from headrace.jobs.state import JobState


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that is in the ledger, and whether this submission made it (or an idempotency key had done so before)."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker has room for. Queues are asked in this order; a job counts as one, whatever its size.

    A job that must be alone (`Job.alone`) comes as the only one of an answer: the worker runs it when it has nothing else.

    A worker without a `region` takes the jobs of all. One that declares its own takes that region's jobs and those that have
    none, among them in the order of the queue; with `other_regions` all others', where no queue has one of those for it.
    """

    worker: str
    queues: tuple[str, ...]
    jobs_max: int
    lease_ms: int
    region: str = ""
    other_regions: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """The answer to `turn`: which settlements counted, in their order, and the jobs that were claimed.

    `due_in_ms` is when the next pending job of those queues that this claim may take becomes due, None where there is none
    or it is not known: asked for only where fewer jobs were claimed than there was room for.
    """

    accepted: tuple[bool, ...]
    claimed: tuple[Job, ...]
    due_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life for one lease, with what its attempt has to tell."""

    job_id: str
    lease: int
    progress: Progress | None = None
    cursor: Mapping[str, Any] | None = None
    tell: bool = False
    """Whether those who asked to be told of progress are to be told of this."""


@dataclass(frozen=True, slots=True)
class BeatReply:
    """Of the leases that were beaten for: those that are lost, to be cancelled, or over their deadline, by job id.

    What is `lost` is somebody else's now, or nobody's: its worker stops it, and writes nothing more.
    """

    lost: frozenset[str]
    cancel: frozenset[str]
    expired: frozenset[str]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What one round of `maintain` did, in jobs."""

    returned: int = 0
    """Their leases had run out; attempts are left."""
    failed: int = 0
    """Their leases had run out for the last time."""
    cancelled: int = 0
    """Their leases had run out after somebody cancelled them."""
    expired: int = 0
    woken: int = 0
    """Pending jobs that became due."""

    @property
    def total(self) -> int:
        """All of them; 0 where there was nothing to do."""
        return self.returned + self.failed + self.cancelled + self.expired + self.woken


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue: `paused` gives out no jobs; `draining` takes none. `pending_max` bounds those that wait (None: no bound)."""

    name: str
    paused: bool = False
    draining: bool = False
    pending_max: int | None = None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs of a queue are in which state, of those that have not ended; and how long the oldest due one waits."""

    due: int = 0
    later: int = 0
    running: int = 0
    oldest_due_ms: int | None = None
    due_by_region: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Of those that are due: how many each region has; those without a region are left out."""

    @property
    def backlog(self) -> int:
        """What workers are needed for: due and running. Never the queue's length alone, or busy workers are sent away."""
        return self.due + self.running


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; what is empty is not asked for. All given must hold."""

    queue: str = ""
    states: frozenset[JobState] = frozenset()
    model: str = ""
    kind: str = ""
    correlation_id: str = ""
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tenant: str | None = None
    """None lists everybody's."""
    created_from_ms: int | None = None
    created_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs, newest first, and where the next page begins ("" at the end)."""

    jobs: tuple[Job, ...]
    next_after: str = ""


class Wakeup(Protocol):
    """Waits for news of a ledger. One thread waits at a time; `close` and `wake` may be called by any."""

    def wait(self, timeout_s: float) -> bool:
        """Block until there may be news, or `timeout_s` has passed; whether there may be.

        News is never missed for longer than `timeout_s`, but may be told late or for nothing: what counts is what the
        ledger's verbs then say. A database that went away is waited for here, without an error.
        """
        ...

    def wake(self) -> None:
        """End a `wait` that is under way, or the next one."""
        ...

    def close(self) -> None:
        """Let go of connections. Twice does nothing."""
        ...


class JobLedger(Service, Protocol):
    """See the module. `start` connects and brings the schema up to date; `stop` lets go of connections."""

    # Submitting

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | Exception]:
        """Queue them, all in one transaction; an answer for each, in order.

        In place of an answer stands IdempotencyError for a key with another digest, QueueClosedError for a queue that
        is being drained, QueueFullError for one with `pending_max` jobs waiting: the others are queued all the same.
        Two of one call may share a key. An unknown queue comes into being.
        """
        ...

    # Working

    def turn(self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None) -> Turn:
        """Settle attempts and claim jobs, in one transaction.

        Claimed are pending jobs that are due, of queues that are not paused, in the order of (priority, due time, id),
        each under a new lease; of which regions, `ClaimRequest` says. Jobs whose time to live or deadline is over are not given out. Two workers never wait for
        each other, and never get the same job.
        """
        ...

    def beat(self, worker: str, beats: Sequence[Beat], lease_ms: int) -> BeatReply:
        """Prolong leases to `lease_ms` from now, and write what their attempts tell."""
        ...

    def published(self, job_id: str, lease: int, uri: str) -> bool:
        """Note that a completed job's result, or another ended job's failure, was put at `uri` where it was asked for.

        Those who are to be told of the end are told from then on. "" says that it cannot be put there, ever. Whether `lease`
        is still the job's last, and it has ended.
        """
        ...

    def cancel_requests(self, worker: str) -> frozenset[str]:
        """Ids of the worker's running jobs that somebody has cancelled. Cheap: asked at every news."""
        ...

    def running_of(self, worker: str) -> list[Job]:
        """The jobs that run under this worker's leases: for a worker that does not know whether its last `turn` counted."""
        ...

    def unpublished(self, *, ended_before_ms: int, limit: int) -> list[Job]:
        """Jobs that ended before then, have an `output_uri`, and whose end nobody has `published` there; oldest first.

        Without completed ones of kind `transform` and `stream`, which write where they were asked to themselves.
        """
        ...

    def maintain(self, limit: int) -> Upkeep:
        """Take back leases that ran out, expire and wake jobs; at most `limit` of each. Any number of workers may.

        A lease that ran out: the job is cancelled where that was asked for, pending again (after a delay that grows with
        its attempts) where attempts are left, else failed with the cause `worker_lost`, or `poison` where it was worked on by
        itself. Its crashes grow.
        """
        ...

    # Looking, and deciding by hand

    def get(self, job_id: str, *, tenant: str | None = None) -> Job:
        """One job. JobNotFoundError; also where it is another tenant's (None may see all)."""
        ...

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Those of them that exist, by id."""
        ...

    def keyed(self, tenant: str, idempotency_key: str) -> Job | None:
        """The tenant's job that this key stands for; None for an unknown key, and for ""."""
        ...

    def history(self, job_id: str) -> list[HistoryEntry]:
        """What went wrong with it and what was done to it, oldest first."""
        ...

    def find(self, wanted: JobFilter, *, after: str = "", limit: int = 100) -> Page:
        """Jobs that fit, newest first; `after` is the last page's `next_after`."""
        ...

    def cancel(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """End a pending job; ask a running one's worker to stop it. The job as it is then.

        Does nothing to a cancelled one. JobStateError for one that has ended otherwise, JobNotFoundError.
        """
        ...

    def requeue(self, job_id: str, *, tenant: str | None = None, by: str = "") -> Job:
        """Put an ended job back: due now, with all its attempts before it, its result and failure forgotten.

        JobStateError for one that has not ended, JobNotFoundError. Its time to live and deadline begin anew.
        """
        ...

    def delete(self, job_id: str, *, tenant: str | None = None) -> Job:
        """Remove an ended job's row and history; the job as it was. JobStateError for one that has not ended."""
        ...

    def queues(self) -> list[QueueSettings]:
        """All that there ever was a job for, or settings of, by name."""
        ...

    def queue(self, name: str) -> QueueSettings:
        """One queue's settings; those of a new one where it is not known."""
        ...

    def set_queue(self, settings: QueueSettings) -> None:
        """Replace a queue's settings."""
        ...

    def counts(self, queue: str) -> QueueCounts:
        """How many jobs of a queue wait and run."""
        ...

    def pending_of(self, tenant: str, *, at_most: int) -> int:
        """How many jobs of a tenant are pending, counted up to `at_most`."""
        ...

    # Retention

    def ended_before(self, at_ms: int, *, limit: int) -> list[Job]:
        """Ended jobs whose end lies before `at_ms`, oldest first."""
        ...

    def forget(self, job_ids: Sequence[str]) -> int:
        """Remove ended jobs' rows, histories and notifications; how many there were."""
        ...

    # Waiting

    def now_ms(self) -> int:
        """The ledger's time."""
        ...

    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        """For a worker: news of jobs that became due in these queues, and of cancellations."""
        ...

    def watch(self) -> Wakeup:
        """For whoever follows jobs: news of any change of state or progress."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """What there is to say of connections, for gauges: ``pool_size``, ``pool_in_use``, ``errors``."""
        ...
