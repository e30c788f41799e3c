"""What becomes of a job by what happens to it. Pure: rows are read and locked before, and written after."""

from dataclasses import dataclass, replace
from typing import Any

from headrace.jobs.cause import Cause
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    HistoryEvent,
    Job,
    JobFailure,
    Released,
    Settlement,
)
from headrace.jobs.retry import LOST
from headrace.jobs.state import JobEvent, after


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the job's history."""

    event: HistoryEvent
    cause: str = ""
    message: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a job: `before` is the row that was read, `then` the job after it, but for its times.

    `due_in_ms` is when it is due again, None where that stays. `anew`: its time to live and deadline are counted from now.
    """

    before: Job
    event: JobEvent
    then: Job
    due_in_ms: int | None = None
    anew: bool = False
    note: Note | None = None


def change(
    job: Job, event: JobEvent, *, due_in_ms: int | None = None, note: Note | None = None, **values: Any
) -> Change:
    """The job after `event`, with other values too. AssertionError where the transition table does not have it."""
    state = after(job.state, event)
    if state is None:
        raise AssertionError(f"job {job.id}: {event.value} cannot happen to what is {job.state.value}")
    return Change(job, event, replace(job, state=state, **values), due_in_ms=due_in_ms, note=note)


def settled(job: Job, settlement: Settlement) -> Change:
    """What an attempt's outcome makes of its running job.

    What is done is done, also where a cancellation was asked for meanwhile: of the two the first that is recorded counts.
    What would be tried again is cancelled then.
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
    """How long a job whose lease ran out waits for its next attempt: all of what the rule has, without jitter."""
    return LOST.delay_ms(max(job.attempt, 1))


def lost(job: Job) -> Change:
    """What a lease that ran out makes of its job: its worker is taken for dead."""
    crashes = job.crashes + 1
    if job.cancel_requested:
        cause = job.failure.cause.value if job.failure else ""
        return change(job, JobEvent.CANCEL, note=Note(HistoryEvent.LEASE_LOST, cause), crashes=crashes)
    failure = JobFailure(
        Cause.WORKER_LOST,
        f"the worker {job.worker} gave no sign of life while it worked on attempt {job.attempt}",
    )
    note = Note(HistoryEvent.LEASE_LOST, failure.cause.value)
    if job.attempt >= job.spec.attempts_max:
        if job.alone:
            failure = poison(crashes)
        return change(job, JobEvent.FAIL, note=note, failure=failure, crashes=crashes)
    return change(
        job, JobEvent.LOSE, due_in_ms=lost_delay_ms(job), note=note, failure=failure, crashes=crashes
    )


def poison(crashes: int) -> JobFailure:
    """Why a job failed that was worked on by itself in the end, and cost its worker all the same."""
    why = f"it cost {crashes} workers, the last one while nothing else was worked on there"
    return JobFailure(Cause.POISON, why)


def requeued(job: Job, by: str) -> Change:
    """The ended job put back: its lease's number, crashes and cursor stay, its end is forgotten."""
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
    return replace(back, anew=True)


def after_ms(seconds: float | None) -> int | None:
    """A span in milliseconds; None for none."""
    return None if seconds is None else round(seconds * 1000)
