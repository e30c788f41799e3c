"""The life of a job: its states, what may happen to it, and what then. Everything that changes a state is in this file.

::

                submit                   ┌── RETRY, RELEASE, LOSE ──┐
                  │                      ▼                          │
                  └──────────────▶   PENDING  ───── CLAIM ─────▶ RUNNING
                                     │  │  ▲                    │  │  │ │
                             CANCEL ─┘  │  └─── REQUEUE ───┐    │  │  │ └─ COMPLETE ─▶ COMPLETED
                                 EXPIRE ┘                  │    │  │  └─── FAIL ─────▶ FAILED
                                                        (ended) │  └────── EXPIRE ───▶ EXPIRED
                                                                └───────── CANCEL ───▶ CANCELLED

An ended job stays ended, unless somebody puts it back by hand (REQUEUE), which its history tells.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """What a job is. Every job is in exactly one state, and has ended in exactly one way at most."""

    PENDING = "pending"
    """In its queue: due now, or at its due time. What is tried again is pending too."""
    RUNNING = "running"
    """Claimed by a worker, whose lease has not been taken from it."""
    COMPLETED = "completed"
    """There is a result, and the ledger says where."""
    FAILED = "failed"
    """It failed for good: there is an error, and no attempt is left or another would be no use."""
    CANCELLED = "cancelled"
    """Somebody cancelled it. What it has written counts for nothing."""
    EXPIRED = "expired"
    """Its time was over before it was begun (time to live) or done (deadline)."""

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self in ENDED


class JobEvent(StrEnum):
    """What happens to a job."""

    CLAIM = "claim"
    """A worker takes it: an attempt begins, and the lease's number grows."""
    COMPLETE = "complete"
    RETRY = "retry"
    """The attempt failed, and another is to be made at a later due time."""
    FAIL = "fail"
    RELEASE = "release"
    """The worker gives it back unharmed, as when it drains: the attempt is not counted."""
    LOSE = "lose"
    """The lease ran out, so its worker is taken for dead, and attempts are left."""
    CANCEL = "cancel"
    EXPIRE = "expire"
    REQUEUE = "requeue"
    """An operator puts an ended job back."""


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


def after(state: JobState, event: JobEvent) -> JobState | None:
    """The state that follows, or None where the event cannot happen in this one."""
    return TRANSITIONS.get((state, event))


def sources(event: JobEvent) -> frozenset[JobState]:
    """The states in which an event can happen."""
    return frozenset(state for state, known in TRANSITIONS if known is event)
