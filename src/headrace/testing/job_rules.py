"""What a job becomes, decided without I/O: the rules of `headrace.jobs.ledger`, written once more as plainly as can be.

The reference ledger in memory stands on them. They are kept apart from every other ledger on purpose, so that two
readings of the contract can be held against each other.
"""

from dataclasses import replace
from typing import Any

from headrace.jobs.cause import Cause
from headrace.jobs.job import (
    CRASHES_TOGETHER_MAX,
    Cancelled,
    Completed,
    Expired,
    Failed,
    HistoryEvent,
    Job,
    JobFailure,
    NewJob,
    Outcome,
    Released,
)
from headrace.jobs.ledger import ClaimRequest, JobFilter
from headrace.jobs.state import JobEvent, JobState, after


def moved(job: Job, event: JobEvent, at_ms: int, **changes: Any) -> Job:
    """The job after `event`, as the transition table has it; an ended one has its end's time, and no lease."""
    state = after(job.state, event)
    if state is None:
        raise AssertionError(f"job {job.id}: {event.value} cannot happen to what is {job.state.value}")
    if state is not JobState.RUNNING:
        changes["lease_until_ms"] = None
    changes["ended_at_ms"] = at_ms if state.ended else None
    return replace(job, state=state, **changes)


def fresh(new: NewJob, job_id: str, at_ms: int) -> Job:
    """A job as it stands when it has just been submitted."""
    spec = replace(new, id=job_id)
    return begun_anew(Job(job_id, JobState.PENDING, spec, created_at_ms=at_ms), at_ms, due_in_ms=new.delay_ms)


def begun_anew(job: Job, at_ms: int, *, due_in_ms: int = 0) -> Job:
    """The job with its due time, time to live and deadline counted from now."""
    return replace(
        job,
        due_at_ms=at_ms + due_in_ms,
        expires_at_ms=_later(at_ms, job.spec.time_to_live_s),
        deadline_at_ms=_later(at_ms, job.spec.deadline_s),
    )


def is_over(job: Job, at_ms: int) -> bool:
    """Whether a pending job's deadline has passed, or its time to live before any worker began it."""
    if job.deadline_at_ms is not None and job.deadline_at_ms <= at_ms:
        return True
    return job.started_at_ms is None and job.expires_at_ms is not None and job.expires_at_ms <= at_ms


def past_deadline(job: Job, at_ms: int) -> bool:
    """Whether a job should have ended by now, whatever it does."""
    return job.deadline_at_ms is not None and job.deadline_at_ms <= at_ms


def is_near(job: Job, claim: ClaimRequest) -> bool:
    """Whether the job is of the region that the claim names, or of none; where it names none, every job is."""
    return not claim.region or job.spec.region in {"", claim.region}


def claimed(job: Job, claim: ClaimRequest, at_ms: int) -> Job:
    """The job under a new lease, its attempt counted; what the attempt before told of its progress is forgotten."""
    return moved(
        job,
        JobEvent.CLAIM,
        at_ms,
        attempt=job.attempt + 1,
        lease=job.lease + 1,
        worker=claim.worker,
        worker_region=claim.region,
        started_at_ms=at_ms,
        lease_until_ms=at_ms + claim.lease_ms,
        progress=None,
    )


def settled(job: Job, outcome: Outcome, at_ms: int) -> tuple[Job, HistoryEvent | None]:
    """The running job after its attempt came to `outcome`, and what its history tells of that."""
    match outcome:
        case Completed():
            return moved(job, JobEvent.COMPLETE, at_ms, result=outcome.result, failure=None), None
        case Cancelled():
            return moved(job, JobEvent.CANCEL, at_ms), None
        case Expired():
            return moved(job, JobEvent.EXPIRE, at_ms), None
        case Released():
            return _released(job, outcome, at_ms), HistoryEvent.RELEASED
        case Failed():
            return _failed(job, outcome, at_ms), HistoryEvent.ATTEMPT_FAILED


def _released(job: Job, outcome: Released, at_ms: int) -> Job:
    cursor = job.cursor if outcome.cursor is None else outcome.cursor
    if job.cancel_requested:
        return moved(job, JobEvent.CANCEL, at_ms, cursor=cursor)
    due_at_ms = at_ms + outcome.delay_ms
    return moved(job, JobEvent.RELEASE, at_ms, attempt=job.attempt - 1, cursor=cursor, due_at_ms=due_at_ms)


def _failed(job: Job, outcome: Failed, at_ms: int) -> Job:
    crashes = job.crashes + outcome.crashed
    if outcome.retry_ms is None:
        return moved(job, JobEvent.FAIL, at_ms, failure=outcome.failure, crashes=crashes)
    if job.cancel_requested:
        return moved(job, JobEvent.CANCEL, at_ms, failure=outcome.failure, crashes=crashes)
    if outcome.counted and job.attempt >= job.spec.attempts_max:
        return moved(job, JobEvent.FAIL, at_ms, failure=outcome.failure, crashes=crashes)
    due_at_ms = at_ms + outcome.retry_ms
    attempt = job.attempt - (not outcome.counted)
    return moved(
        job,
        JobEvent.RETRY,
        at_ms,
        failure=outcome.failure,
        crashes=crashes,
        due_at_ms=due_at_ms,
        attempt=attempt,
    )


def lost(job: Job, at_ms: int, delay_ms: int) -> Job:
    """The running job after its lease ran out: its worker is taken for dead."""
    crashes = job.crashes + 1
    if job.cancel_requested:
        return moved(job, JobEvent.CANCEL, at_ms, crashes=crashes)
    failure = JobFailure(
        Cause.WORKER_LOST,
        f"the worker {job.worker} gave no sign of life while it worked on attempt {job.attempt}",
    )
    if job.attempt >= job.spec.attempts_max:
        if job.crashes >= CRASHES_TOGETHER_MAX:
            why = f"it cost {crashes} workers, the last one while nothing else was worked on there"
            failure = JobFailure(Cause.POISON, why)
        return moved(job, JobEvent.FAIL, at_ms, failure=failure, crashes=crashes)
    return moved(job, JobEvent.LOSE, at_ms, failure=failure, crashes=crashes, due_at_ms=at_ms + delay_ms)


def requeued(job: Job, at_ms: int) -> Job:
    """The ended job put back: its lease's number, crashes and cursor stay, its end is forgotten."""
    back = moved(
        job,
        JobEvent.REQUEUE,
        at_ms,
        attempt=0,
        started_at_ms=None,
        cancel_requested=False,
        progress=None,
        result=None,
        failure=None,
    )
    return begun_anew(back, at_ms)


def fits(job: Job, wanted: JobFilter) -> bool:
    """Whether a job is among those that are asked for."""
    spec = job.spec
    named = (
        (wanted.queue, spec.queue),
        (wanted.model, spec.model),
        (wanted.kind, spec.kind),
        (wanted.correlation_id, spec.correlation_id),
    )
    return (
        all(asked in ("", value) for asked, value in named)
        and wanted.tenant in (None, spec.tenant)
        and (not wanted.states or job.state in wanted.states)
        and wanted.tags.items() <= spec.tags.items()
        and (wanted.created_from_ms is None or wanted.created_from_ms <= job.created_at_ms)
        and (wanted.created_before_ms is None or job.created_at_ms < wanted.created_before_ms)
    )


def _later(at_ms: int, seconds: float | None) -> int | None:
    return None if seconds is None else at_ms + round(seconds * 1000)


def wants_publishing(job: Job) -> bool:
    """Whether the end of a job is put where it was asked for by somebody else than whoever did it."""
    return job.state.ended and (job.spec.kind == "infer" or job.state is not JobState.COMPLETED)


def told_where(job: Job, uri: str) -> Job:
    """The ended job whose end was put at `uri`."""
    if job.result is not None and job.state is JobState.COMPLETED:
        return replace(job, result=replace(job.result, published_uri=uri))
    failure = job.failure or JobFailure(Cause(job.state.value), f"the job was {job.state.value}")
    return replace(job, failure=replace(failure, uri=uri))
