"""The life of a job in tables: states and transitions, and causes and retry rules of failures. Pure.

Every change of a state is defined here::

                submit                   ┌── RETRY, RELEASE, LOSE ──┐
                  │                      ▼                          │
                  └──────────────▶   PENDING  ───── CLAIM ─────▶ RUNNING
                                     │  │  ▲                    │  │  │ │
                             CANCEL ─┘  │  └─── REQUEUE ───┐    │  │  │ ├─ COMPLETE ─▶ COMPLETED
                                 EXPIRE ┘                  │    │  │  │ └─ PUBLISH ──▶ PUBLISHING
                                                        (ended) │  │  └─── FAIL ─────▶ FAILED
                                                                │  └────── EXPIRE ───▶ EXPIRED
                                                                └───────── CANCEL ───▶ CANCELLED

    PUBLISHING ─── COMPLETE ─────▶ COMPLETED
     │    ▲
     │    └─────── REPUBLISH ───┐
     └──────────── GIVE_UP ────▶ PUBLISH_FAILED

    submit with unfinished `after`
     │
     ▼
    BLOCKED ─┬──── UNBLOCK ──────▶ PENDING
     ▲       ├──── FAIL ─────────▶ FAILED
     │       ├──── CANCEL ───────▶ CANCELLED
     │       └──── EXPIRE ───────▶ EXPIRED
     └──────────── BLOCK ───────── (ended)

An ended job stays ended, unless it is requeued manually. The history records each requeue.

The retry rule of a failed attempt follows from its cause; the ledger waits on its own clock:

=============================  ==================================================================
cause                          rule
=============================  ==================================================================
input, cancelled, expired,     no retry: it would fail again
poison, prerequisite
worker_lost, crash, oom,       retry after a delay that doubles, while attempts are left: the job
timeout, model, storage,       may be the reason
defect
unavailable, overloaded,       retry without counting the attempt: the job is not the reason, and
drained                        the outage may be long; the deadline or a cancellation ends it
no_model                       the same, soon and for another worker, but ten times in a row at most
=============================  ==================================================================
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import ceil
from typing import Final

from headrace.core import errors as e
from headrace.core.clock import RetryPolicy

RETRY_AFTER_MAX_S: Final = 3600.0
"""The longest delay, whatever a server requests."""
NO_MODEL_TIMES_MAX: Final = 10
"""The number of workers in a row without a job's model after which the job fails."""


class JobState(StrEnum):
    """The state of a job. A job is in exactly one state."""

    BLOCKED = "blocked"
    """Waits until the jobs of `NewJob.after` have completed."""
    PENDING = "pending"
    """In its queue, due now or later. A job that will be retried is pending too."""
    RUNNING = "running"
    """Claimed by a worker under a valid lease."""
    PUBLISHING = "publishing"
    """The last attempt completed. Its result is not yet at the requested place."""
    COMPLETED = "completed"
    """The job has a result, and the ledger has its URI. It is also at the requested place, if any."""
    PUBLISH_FAILED = "publish_failed"
    """The job has a result, which could not be written to the requested place."""
    FAILED = "failed"
    """The job failed: no attempt is left, or a retry would be pointless."""
    CANCELLED = "cancelled"
    """The job was cancelled. Its output does not count."""
    EXPIRED = "expired"
    """The job's time to live passed before it began, or its deadline before it ended."""

    @cached_property
    def ended(self) -> bool:
        """True if the job does not change any more by itself."""
        return self in ENDED


class JobEvent(StrEnum):
    """An event that changes a job's state."""

    UNBLOCK = "unblock"
    """The last job of `NewJob.after` has completed."""
    CLAIM = "claim"
    """A worker claims the job: an attempt begins, and the lease number grows."""
    COMPLETE = "complete"
    """The result is where the client requested it."""
    PUBLISH = "publish"
    """The attempt completed, and its result is to be written to the requested place."""
    GIVE_UP = "give_up"
    """The result could not be written to the requested place."""
    REPUBLISH = "republish"
    """The publication is tried again manually."""
    RETRY = "retry"
    """The attempt failed, and another one follows at a later due time."""
    FAIL = "fail"
    """No attempt is left, or a retry would be pointless; or a job of `NewJob.after` did not complete."""
    RELEASE = "release"
    """The worker returns the job, for example when it drains: the attempt is not counted."""
    LOSE = "lose"
    """The lease expired, and attempts are left."""
    CANCEL = "cancel"
    EXPIRE = "expire"
    REQUEUE = "requeue"
    """An ended job is requeued manually."""
    BLOCK = "block"
    """An ended job is requeued manually, while jobs of `NewJob.after` are unfinished again."""


ENDED: Final = frozenset(
    {
        JobState.COMPLETED,
        JobState.PUBLISH_FAILED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.EXPIRED,
    }
)
WITH_RESULT: Final = frozenset({JobState.COMPLETED, JobState.PUBLISH_FAILED})
"""The ended states of a job whose result can be read."""
WITH_FINGERPRINT: Final = frozenset({JobState.FAILED, JobState.PUBLISH_FAILED})
"""The ended states that `JobLedger.failure_groups` lists."""

TRANSITIONS: Final[Mapping[tuple[JobState, JobEvent], JobState]] = {
    (JobState.BLOCKED, JobEvent.UNBLOCK): JobState.PENDING,
    (JobState.BLOCKED, JobEvent.FAIL): JobState.FAILED,
    (JobState.BLOCKED, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.BLOCKED, JobEvent.EXPIRE): JobState.EXPIRED,
    (JobState.PENDING, JobEvent.CLAIM): JobState.RUNNING,
    (JobState.PENDING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.PENDING, JobEvent.EXPIRE): JobState.EXPIRED,
    (JobState.RUNNING, JobEvent.COMPLETE): JobState.COMPLETED,
    (JobState.RUNNING, JobEvent.PUBLISH): JobState.PUBLISHING,
    (JobState.RUNNING, JobEvent.RETRY): JobState.PENDING,
    (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobEvent.RELEASE): JobState.PENDING,
    (JobState.RUNNING, JobEvent.LOSE): JobState.PENDING,
    (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobEvent.EXPIRE): JobState.EXPIRED,
    (JobState.PUBLISHING, JobEvent.COMPLETE): JobState.COMPLETED,
    (JobState.PUBLISHING, JobEvent.GIVE_UP): JobState.PUBLISH_FAILED,
    (JobState.PUBLISH_FAILED, JobEvent.REPUBLISH): JobState.PUBLISHING,
} | {
    (state, event): then
    for state in sorted(ENDED)
    for event, then in ((JobEvent.REQUEUE, JobState.PENDING), (JobEvent.BLOCK, JobState.BLOCKED))
}
"""The state after each event that is possible in a state."""


def source_states(event: JobEvent) -> frozenset[JobState]:
    """Return the states in which an event is possible."""
    return frozenset(state for state, known in TRANSITIONS if known is event)


class Cause(StrEnum):
    """The cause of a failed attempt.

    It is reported to the client and counted, and it selects the retry rule.
    """

    INPUT = "input"
    """The submission is invalid: its payload, its settings, or a URI that it names."""
    MODEL = "model"
    """The model raised, or returned an invalid output."""
    WORKER_LOST = "worker_lost"
    """The lease expired: the worker died or was unreachable."""
    CRASH = "crash"
    """The model's process died."""
    OOM = "oom"
    """The memory was exhausted."""
    TIMEOUT = "timeout"
    """The attempt, or a call of the model, exceeded its time limit."""
    UNAVAILABLE = "unavailable"
    """A required store or endpoint is unavailable."""
    NO_MODEL = "no_model"
    """The worker does not have the job's model, or cannot load it; another worker may."""
    OVERLOADED = "overloaded"
    """A required service is overloaded."""
    STORAGE = "storage"
    """A store failed otherwise, or an object changed while it was read."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISON = "poison"
    """The job crashed too many processes, also while it ran alone."""
    PREREQUISITE = "prerequisite"
    """A job of `NewJob.after` ended without completing."""
    DRAINED = "drained"
    """The worker is stopping."""
    DEFECT = "defect"
    """headrace itself failed, or lacks a dependency; the data is not the reason."""


_CAUSES: Final[Mapping[type[BaseException], Cause]] = {
    e.HeadraceError: Cause.DEFECT,
    e.ConfigError: Cause.INPUT,
    e.MissingExtraError: Cause.DEFECT,
    e.OutputExistsError: Cause.INPUT,
    e.RefusedAddressError: Cause.INPUT,
    e.DataError: Cause.INPUT,
    e.EmptySourceError: Cause.INPUT,
    e.TooManyFailuresError: Cause.INPUT,
    e.CorruptError: Cause.INPUT,
    e.TruncatedError: Cause.INPUT,
    e.StorageError: Cause.STORAGE,
    e.NotFoundError: Cause.INPUT,
    e.AccessDeniedError: Cause.INPUT,
    e.AlreadyExistsError: Cause.STORAGE,
    e.ChangedError: Cause.STORAGE,
    e.UnavailableError: Cause.UNAVAILABLE,
    e.LimitError: Cause.INPUT,
    e.UnsupportedError: Cause.INPUT,
    e.AccessError: Cause.INPUT,
    e.UnauthenticatedError: Cause.INPUT,
    e.ForbiddenError: Cause.INPUT,
    e.ModelError: Cause.MODEL,
    e.ModelNotFoundError: Cause.NO_MODEL,
    e.ModelNotReadyError: Cause.NO_MODEL,
    e.InstanceLostError: Cause.CRASH,
    e.ModelLoadError: Cause.NO_MODEL,
    e.ModelInputError: Cause.INPUT,
    e.RefusedRowsError: Cause.INPUT,
    e.ModelContractError: Cause.MODEL,
    e.PredictError: Cause.MODEL,
    e.BrokenModelError: Cause.MODEL,
    e.PredictorError: Cause.UNAVAILABLE,
    e.DeadlineError: Cause.TIMEOUT,
    e.OverloadedError: Cause.OVERLOADED,
    e.CancelledRequestError: Cause.CANCELLED,
    e.StoppedError: Cause.DRAINED,
    e.SequenceError: Cause.MODEL,
    e.SequenceGoneError: Cause.INPUT,
    e.SequenceLostError: Cause.CRASH,
    e.SequenceFullError: Cause.OVERLOADED,
    e.TooManySequencesError: Cause.OVERLOADED,
    e.EndpointError: Cause.UNAVAILABLE,
    e.EndpointRefusedError: Cause.INPUT,
    e.EndpointUnavailableError: Cause.UNAVAILABLE,
    e.RunnerError: Cause.UNAVAILABLE,
    e.ActuatorError: Cause.UNAVAILABLE,
    e.LedgerError: Cause.DEFECT,
    e.ResumeRefusedError: Cause.INPUT,
    e.CountMismatchError: Cause.DEFECT,
    e.JobError: Cause.DEFECT,
    e.JobNotFoundError: Cause.DEFECT,
    e.EndpointNotFoundError: Cause.DEFECT,
    e.ResourceNotFoundError: Cause.DEFECT,
    e.JobStateError: Cause.DEFECT,
    e.OutputTakenError: Cause.INPUT,
    e.ResultGoneError: Cause.INPUT,
    e.IdempotencyError: Cause.INPUT,
    e.QueueFullError: Cause.OVERLOADED,
    e.QueueClosedError: Cause.UNAVAILABLE,
    e.QueueInUseError: Cause.DEFECT,
    e.UncontrolledPoolError: Cause.DEFECT,
    e.JobLedgerUnavailableError: Cause.UNAVAILABLE,
    MemoryError: Cause.OOM,
}
_DEATHS: Final[Mapping[str, Cause]] = {"oom": Cause.OOM, "timeout": Cause.TIMEOUT}
"""The causes of a model process's death other than a crash."""


def cause_of(error: BaseException) -> Cause:
    """Return the cause for an error; `Cause.DEFECT` for errors outside headrace's hierarchy.

    A ModelError chained to a MemoryError has the cause `Cause.OOM`.
    """
    if isinstance(error, e.InstanceLostError):
        return _DEATHS.get(getattr(error, "cause", None) or "", Cause.CRASH)
    cause = next((_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES), Cause.DEFECT)
    if cause is Cause.MODEL and any(isinstance(link, MemoryError) for link in _chain(error)):
        return Cause.OOM
    return cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of `__cause__`s, each error once, because a chain may be circular."""
    seen: set[int] = set()
    link = error.__cause__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The delays between attempts that failed of one cause. `counts`: a failed attempt is used up.

    After `times_max` failures in a row of this cause, the job fails.
    """

    counts: bool
    first_delay_s: float
    delay_max_s: float
    times_max: int | None = None

    def delay_ms(self, nth: int, share: float = 1.0, retry_after_s: float | None = None) -> int:
        """Return the delay after the n-th failure; `RetryPolicy.delay_s` defines it."""
        policy = RetryPolicy(RETRY_AFTER_MAX_S, self.first_delay_s, self.delay_max_s)
        delay_s = policy.delay_s(nth, RETRY_AFTER_MAX_S, share, retry_after_s=retry_after_s)
        return ceil((delay_s or 0.0) * 1000)


WORKER_LOST_RULE: Final = RetryRule(counts=True, first_delay_s=1.0, delay_max_s=60.0)
"""The rule after an expired lease, which has taken its time already."""
_CRASHED: Final = RetryRule(counts=True, first_delay_s=5.0, delay_max_s=300.0)
_FAILED: Final = RetryRule(counts=True, first_delay_s=10.0, delay_max_s=600.0)

RULES: Final[Mapping[Cause, RetryRule | None]] = {
    Cause.INPUT: None,
    Cause.CANCELLED: None,
    Cause.EXPIRED: None,
    Cause.POISON: None,
    Cause.PREREQUISITE: None,
    Cause.WORKER_LOST: WORKER_LOST_RULE,
    Cause.CRASH: _CRASHED,
    Cause.OOM: _CRASHED,
    Cause.TIMEOUT: _FAILED,
    Cause.MODEL: _FAILED,
    Cause.STORAGE: _FAILED,
    Cause.DEFECT: _FAILED,
    Cause.UNAVAILABLE: RetryRule(counts=False, first_delay_s=60.0, delay_max_s=60.0),
    Cause.NO_MODEL: RetryRule(
        counts=False, first_delay_s=1.0, delay_max_s=60.0, times_max=NO_MODEL_TIMES_MAX
    ),
    Cause.OVERLOADED: RetryRule(counts=False, first_delay_s=10.0, delay_max_s=10.0),
    Cause.DRAINED: RetryRule(counts=False, first_delay_s=0.0, delay_max_s=0.0),
}
"""The rule of each cause; None: never retry."""


@dataclass(frozen=True, slots=True)
class RetryAttempt:
    """Another attempt in `delay_ms`.

    `counts`: the failed attempt is used up; otherwise it is returned.
    """

    delay_ms: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt. `reason` is worded for the client that submitted the job."""

    reason: str


def decide(
    cause: Cause,
    attempt: int,
    attempts_max: int,
    share: float,
    retry_after_s: float | None = None,
    *,
    times: int = 1,
) -> RetryAttempt | GiveUp:
    """Return whether and when a failed attempt is followed by another.

    Args:
        cause: The cause of the failure.
        attempt: Attempts begun so far, including this one, from 1.
        attempts_max: The job's limit of attempts.
        share: The jitter's position from 0 to 1, drawn by the caller: half to all of the delay.
        retry_after_s: A server's requested delay, observed up to `RETRY_AFTER_MAX_S`.
        times: Failures of this cause in a row, including this one, from 1.
    """
    rule = RULES[cause]
    if rule is None:
        return GiveUp(f"a retry would be pointless ({cause.value})")
    if rule.counts and attempt >= attempts_max:
        return GiveUp(f"attempt {attempt} of {attempts_max} failed ({cause.value})")
    if rule.times_max is not None and times >= rule.times_max:
        return GiveUp(f"attempts failed {times} times in a row ({cause.value})")
    nth = attempt if rule.counts else times
    return RetryAttempt(rule.delay_ms(nth, share, retry_after_s), rule.counts)
