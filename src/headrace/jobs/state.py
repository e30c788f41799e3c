"""The states of a job and the transitions between them. Every change of a state is defined here.

::

                submit                   ┌── RETRY, RELEASE, LOSE ──┐
                  │                      ▼                          │
                  └──────────────▶   PENDING  ───── CLAIM ─────▶ RUNNING
                                     │  │  ▲                    │  │  │ │
                             CANCEL ─┘  │  └─── REQUEUE ───┐    │  │  │ └─ COMPLETE ─▶ COMPLETED
                                 EXPIRE ┘                  │    │  │  └─── FAIL ─────▶ FAILED
                                                        (ended) │  └────── EXPIRE ───▶ EXPIRED
                                                                └───────── CANCEL ───▶ CANCELLED

An ended job stays ended, unless it is requeued manually. The history records each requeue.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """The state of a job. A job is in exactly one state."""

    PENDING = "pending"
    """In its queue, due now or later. A job that will be retried is pending too."""
    RUNNING = "running"
    """Claimed by a worker under a valid lease."""
    COMPLETED = "completed"
    """The job has a result, and the ledger has its URI."""
    FAILED = "failed"
    """The job failed: no attempt is left, or a retry would be pointless."""
    CANCELLED = "cancelled"
    """The job was cancelled. Its output does not count."""
    EXPIRED = "expired"
    """The job's time to live passed before it began, or its deadline before it ended."""

    @property
    def ended(self) -> bool:
        """True if the job does not change any more by itself."""
        return self in ENDED


class JobEvent(StrEnum):
    """An event that changes a job's state."""

    CLAIM = "claim"
    """A worker claims the job: an attempt begins, and the lease number grows."""
    COMPLETE = "complete"
    RETRY = "retry"
    """The attempt failed, and another one follows at a later due time."""
    FAIL = "fail"
    RELEASE = "release"
    """The worker returns the job, for example when it drains: the attempt is not counted."""
    LOSE = "lose"
    """The lease expired, and attempts are left."""
    CANCEL = "cancel"
    EXPIRE = "expire"
    REQUEUE = "requeue"
    """An ended job is requeued manually."""


ENDED: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})

TRANSITIONS: Final[Mapping[tuple[JobState, JobEvent], JobState]] = {
    (JobState.PENDING, JobEvent.CLAIM): JobState.RUNNING,
    (JobState.PENDING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.PENDING, JobEvent.EXPIRE): JobState.EXPIRED,
    (JobState.RUNNING, JobEvent.COMPLETE): JobState.COMPLETED,
    (JobState.RUNNING, JobEvent.RETRY): JobState.PENDING,
    (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobEvent.RELEASE): JobState.PENDING,
    (JobState.RUNNING, JobEvent.LOSE): JobState.PENDING,
    (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobEvent.EXPIRE): JobState.EXPIRED,
} | {(state, JobEvent.REQUEUE): JobState.PENDING for state in sorted(ENDED)}


def next_state(state: JobState, event: JobEvent) -> JobState | None:
    """Return the state after an event, or None if the event is impossible in this state."""
    return TRANSITIONS.get((state, event))


def source_states(event: JobEvent) -> frozenset[JobState]:
    """Return the states in which an event is possible."""
    return frozenset(state for state, known in TRANSITIONS if known is event)
