"""Manual actions on jobs, and the decision which jobs of many an action changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headrace.jobs.job import Job
from headrace.jobs.state import ENDED, JobEvent, JobState, source_states


class JobAction(StrEnum):
    """A manual change of jobs."""

    CANCEL = "cancel"
    """Cancel a pending or blocked job, or request the cancellation of a running one."""
    RETRY = "retry"
    """Requeue a job that ended without a result; publish again a result that is not published."""
    REQUEUE = "requeue"
    """Run an ended job again, also one with a result."""
    DELETE = "delete"
    """Delete an ended job with its history."""


class SkipReason(StrEnum):
    """The reason why an action does not change a job."""

    GONE = "gone"
    """The job does not exist, or belongs to another tenant."""
    STATE = "state"
    """The action does not apply to the job's state."""
    REQUESTED = "requested"
    """The cancellation is requested already."""
    OUTPUT_TAKEN = "output_taken"
    """Another job owns the name of the job's output by now."""
    PREREQUISITE = "prerequisite"
    """A job of its `after` did not complete, and is not retried together with it."""


ACTION_STATES: Final[Mapping[JobAction, frozenset[JobState]]] = MappingProxyType(
    {
        JobAction.CANCEL: source_states(JobEvent.CANCEL),
        JobAction.RETRY: ENDED - {JobState.COMPLETED},
        JobAction.REQUEUE: ENDED,
        JobAction.DELETE: ENDED,
    }
)
"""The states to which each action applies."""


@dataclass(frozen=True, slots=True)
class ActionReply:
    """The jobs that an action changed, as they are afterwards, and the numbers of others by reason.

    A deleted job is as it was.
    """

    changed: tuple[Job, ...] = ()
    skipped: Mapping[SkipReason, int] = field(default_factory=lambda: MappingProxyType({}))


def skip_reason(action: JobAction, job: Job | None, tenant: str | None) -> SkipReason | None:
    """Return the reason why a tenant's action does not change a job; None if it may. None is any tenant."""
    if job is None or tenant not in (None, job.spec.tenant):
        return SkipReason.GONE
    if job.state not in ACTION_STATES[action]:
        return SkipReason.STATE
    if action is JobAction.CANCEL and job.cancel_requested:
        return SkipReason.REQUESTED
    return None
