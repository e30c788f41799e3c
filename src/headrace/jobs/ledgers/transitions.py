"""The changes of a job after an event. Pure: rows are read and locked before, and written after."""

from dataclasses import dataclass, replace
from typing import Any

from headrace.jobs.cause import WORKER_LOST_RULE, Cause
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    HistoryEvent,
    Job,
    JobEvent,
    JobFailure,
    Released,
    Settlement,
    next_state,
)


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the job's history."""

    event: HistoryEvent
    cause: str = ""
    message: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One transition of a job: `before` is the row as read, `then` the job without new times.

    `due_in_ms` is the delay until it is due again, None if unchanged. `restart_times`: its time to live and
    deadline start now.
    """

    before: Job
    event: JobEvent
    then: Job
    due_in_ms: int | None = None
    restart_times: bool = False
    note: Note | None = None


def change(
    job: Job, event: JobEvent, *, due_in_ms: int | None = None, note: Note | None = None, **values: Any
) -> Change:
    """Return the change for `event`, with other new values.

    Raise AssertionError for an impossible event.
    """
    state = next_state(job.state, event)
    if state is None:
        raise AssertionError(f"job {job.id}: {event.value} is impossible in state {job.state.value}")
    return Change(job, event, replace(job, state=state, **values), due_in_ms=due_in_ms, note=note)


def settlement_change(job: Job, settlement: Settlement) -> Change:
    """Return the change that an outcome makes to its running job.

    A completed job stays completed even if a cancellation was requested meanwhile: the first record
    counts. An attempt that would be retried is cancelled instead.
    """
    outcome = settlement.outcome
    if settlement.progress is not None:
        job = replace(job, progress=settlement.progress)
    match outcome:
        case Completed():
            return change(job, JobEvent.COMPLETE, result=outcome.result, failure=None)
        case Cancelled():
            return change(job, JobEvent.CANCEL)
        case Expired():
            return change(job, JobEvent.EXPIRE)
        case Released():
            return _released(job, outcome)
        case Failed():
            return _failed(job, outcome)


def _released(job: Job, outcome: Released) -> Change:
    cursor = job.cursor if outcome.cursor is None else outcome.cursor
    note = Note(HistoryEvent.RELEASED)
    if job.cancel_requested:
        return change(job, JobEvent.CANCEL, note=note, cursor=cursor)
    due_in_ms = max(0, outcome.delay_ms)
    return change(
        job, JobEvent.RELEASE, due_in_ms=due_in_ms, note=note, attempt=job.attempt - 1, cursor=cursor
    )


def _failed(job: Job, outcome: Failed) -> Change:
    failure = outcome.failure
    note = Note(HistoryEvent.ATTEMPT_FAILED, failure.cause.value, failure.message)
    crashes = job.crashes + outcome.crashed
    if outcome.retry_ms is None:
        return change(job, JobEvent.FAIL, note=note, failure=failure, crashes=crashes)
    if job.cancel_requested:
        return change(job, JobEvent.CANCEL, note=note, failure=failure, crashes=crashes)
    if outcome.counted and job.attempt >= job.spec.attempts_max:
        return change(job, JobEvent.FAIL, note=note, failure=failure, crashes=crashes)
    due_in_ms = max(0, outcome.retry_ms)
    attempt = job.attempt - (not outcome.counted)
    return change(
        job,
        JobEvent.RETRY,
        due_in_ms=due_in_ms,
        note=note,
        failure=failure,
        crashes=crashes,
        attempt=attempt,
    )


def lost_delay_ms(job: Job) -> int:
    """Return the retry delay of a job with an expired lease: the rule's full delay, without jitter."""
    return WORKER_LOST_RULE.delay_ms(max(job.attempt, 1))


def lost_lease_change(job: Job) -> Change:
    """Return the change that an expired lease makes to its job: the worker is taken for dead."""
    crashes = job.crashes + 1
    if job.cancel_requested:
        cause = job.failure.cause.value if job.failure else ""
        return change(job, JobEvent.CANCEL, note=Note(HistoryEvent.LEASE_LOST, cause), crashes=crashes)
    failure = JobFailure(
        Cause.WORKER_LOST,
        f"the worker {job.worker} sent no heartbeat during attempt {job.attempt}",
    )
    note = Note(HistoryEvent.LEASE_LOST, failure.cause.value)
    if job.attempt >= job.spec.attempts_max:
        if job.alone:
            failure = poison_failure(crashes)
        return change(job, JobEvent.FAIL, note=note, failure=failure, crashes=crashes)
    return change(
        job, JobEvent.LOSE, due_in_ms=lost_delay_ms(job), note=note, failure=failure, crashes=crashes
    )


def poison_failure(crashes: int) -> JobFailure:
    """Return the failure of a job that crashed its worker although it ran alone."""
    why = f"it crashed {crashes} workers, the last one while it ran alone"
    return JobFailure(Cause.POISON, why)


def requeue_change(job: Job, by: str) -> Change:
    """Return the change of an ended job that is requeued: lease number, crashes and cursor stay."""
    back = change(
        job,
        JobEvent.REQUEUE,
        due_in_ms=0,
        note=Note(HistoryEvent.REQUEUED, by=by),
        attempt=0,
        started_at_ms=None,
        cancel_requested=False,
        progress=None,
        result=None,
        failure=None,
    )
    return replace(back, restart_times=True)


def after_ms(seconds: float | None) -> int | None:
    """Return seconds in milliseconds; None for None."""
    return None if seconds is None else round(seconds * 1000)
