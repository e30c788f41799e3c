"""Numbers of job events since a ledger exists, by queue, model and tenant. Pure.

A ledger adds to its counters in the transactions that change the jobs, so that no number is ever
missing or counted twice. Two equations follow, for the jobs that the counters know from the start:

- submitted + requeued + republished = unfinished jobs + completed + publish_failed + failed +
  cancelled + expired
- started = running jobs + retried + finished
"""

from bisect import bisect_left
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.core.statistics import Histogram
from headrace.jobs.job import NewJob

BOUNDS_S: Final = (0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
"""Upper bounds of the buckets of wait and run times. Ledgers store the buckets' indexes: never change
the bounds without a new event for the new ones.
"""
GROUPS_MAX: Final = 1_000
"""The limit of groups with counters of their own. Clients choose the names of models and queues, so
that their number would be unbounded.
"""
TENANT_GROUPS_MAX: Final = 800
"""The number of groups from which on new ones are counted without their tenant."""
OTHER: Final = "(other)"
"""The name of everything beyond these limits."""
RELEASED: Final = "released"
"""The cause of a retried attempt that a worker returned, for example because it drained."""


class CountedEvent(StrEnum):
    """An event of a job or attempt that ledgers count. The ends of jobs have the names of their states."""

    SUBMITTED = "submitted"
    REQUEUED = "requeued"
    REPUBLISHED = "republished"
    STARTED = "started"
    """A claim; its duration is the wait, from the due time to the claim."""
    RETRIED = "retried"
    """The end of an attempt after which the job is pending again; its duration is the run time."""
    FINISHED = "finished"
    """The end of a job's last attempt; its duration is the run time."""
    COMPLETED = "completed"
    PUBLISH_FAILED = "publish_failed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


ARRIVALS: Final = (CountedEvent.SUBMITTED, CountedEvent.REQUEUED, CountedEvent.REPUBLISHED)
ENDS: Final = (
    CountedEvent.COMPLETED,
    CountedEvent.PUBLISH_FAILED,
    CountedEvent.FAILED,
    CountedEvent.CANCELLED,
    CountedEvent.EXPIRED,
)


class JobGroup(NamedTuple):
    """The jobs that are counted together."""

    queue: str
    model: str
    """As jobs name it, with its version if they do."""
    tenant: str


class JobCount(NamedTuple):
    """The number of one event in one group.

    `cause` is that of a failure, for `retried`, `failed` and `publish_failed`. `bucket` is the index
    of the bucket of the events' durations, by `BOUNDS_S`; 0 for events without one.
    """

    event: CountedEvent
    cause: str
    group: JobGroup
    bucket: int
    jobs: int
    total_ms: int
    """The sum of the durations."""


_Key = tuple[CountedEvent, str, JobGroup, int]


class JobGroups:
    """The groups that a ledger counts, up to `GROUPS_MAX`."""

    def __init__(self, known: Iterable[JobGroup] = ()) -> None:
        self._known = set(known)

    def counted_as(self, group: JobGroup) -> JobGroup:
        """Return the group under which the jobs of `group` are counted."""
        for candidate, limit in ((group, TENANT_GROUPS_MAX), (group._replace(tenant=OTHER), GROUPS_MAX)):
            if candidate in self._known:
                return candidate
            if len(self._known) < limit:
                self._known.add(candidate)
                return candidate
        return JobGroup(OTHER, OTHER, OTHER)


class JobCounters:
    """Numbers of events, to which more are added. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[_Key, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def add(
        self, event: CountedEvent, spec: NewJob, *, cause: str = "", duration_ms: int | None = None
    ) -> None:
        """Count an event of a job."""
        group = JobGroup(spec.queue, spec.model, spec.tenant)
        # The clock of a database may be set back.
        passed_ms = max(0, duration_ms or 0)
        bucket = 0 if duration_ms is None else bucket_of(passed_ms)
        self._add((event, cause, group, bucket), 1, passed_ms)

    def counts(self, groups: JobGroups | None = None) -> list[JobCount]:
        """Return the numbers, sorted; `groups` limits their groups."""
        if groups is None:
            return [JobCount(*key, *numbers) for key, numbers in sorted(self._numbers.items())]
        limited = JobCounters()
        for (event, cause, group, bucket), numbers in self._numbers.items():
            limited._add((event, cause, groups.counted_as(group), bucket), *numbers)
        return limited.counts()

    def _add(self, key: _Key, jobs: int, total_ms: int) -> None:
        known_jobs, known_ms = self._numbers.get(key, (0, 0))
        self._numbers[key] = (known_jobs + jobs, known_ms + total_ms)


def bucket_of(duration_ms: int) -> int:
    """Return the index of a duration's bucket: the first whose bound is not below it."""
    return bisect_left(BOUNDS_S, duration_ms / 1000)


def histogram_of(counts: Iterable[JobCount]) -> Histogram:
    """Return the histogram of the durations of some counts, in seconds."""
    jobs = [0] * (len(BOUNDS_S) + 1)
    total_ms = 0
    for count in counts:
        jobs[min(count.bucket, len(BOUNDS_S))] += count.jobs
        total_ms += count.total_ms
    return Histogram(BOUNDS_S, tuple(jobs), total_ms / 1000)
