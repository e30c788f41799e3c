"""The rules of `headrace.jobs.ledger` as pure functions: the state of a job after each event.

The reference ledger in memory uses them. They share no code with any other ledger on purpose: two
independent implementations of the contract can be compared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.core.errors import JobNotFoundError, JobStateError, OutputTakenError
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import (
    CRASHES_TOGETHER_MAX,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Job,
    JobFailure,
    NewJob,
    Outcome,
    Released,
)
from headrace.jobs.ledger import ClaimRequest, JobFilter
from headrace.jobs.state import TRANSITIONS, Cause, JobEvent, JobState


def apply_event(job: Job, event: JobEvent, at_ms: int, **changes: Any) -> Job:
    """Return the job after `event`, as the transition table has it.

    An ended job has the time of its end and no lease. Raise AssertionError for an impossible
    transition.
    """
    state = TRANSITIONS.get((job.state, event))
    if state is None:
        raise AssertionError(f"job {job.id}: {event.value} is impossible in state {job.state.value}")
    if state is not JobState.RUNNING:
        changes["lease_until_ms"] = None
    changes["ended_at_ms"] = at_ms if state.ended else None
    changes["publish_tries"] = 0
    return replace(job, state=state, **changes)


def create_job(new: NewJob, job_id: str, at_ms: int, *, blocked: bool = False) -> Job:
    """Return the job of a new submission."""
    spec = replace(new, id=job_id)
    state = JobState.BLOCKED if blocked else JobState.PENDING
    return restart_timers(Job(job_id, state, spec, created_at_ms=at_ms), at_ms, due_in_ms=new.delay_ms)


def blocked_by(new: NewJob, jobs: Mapping[str, Job]) -> set[str]:
    """Return the unfinished jobs that a new job comes after.

    Raise JobNotFoundError or JobStateError for one that it cannot come after.
    """
    waits: set[str] = set()
    for job_id in new.after:
        job = jobs.get(job_id)
        if job is None or job.spec.tenant != new.tenant:
            raise JobNotFoundError(job_id)
        if not job.state.ended:
            waits.add(job_id)
        elif job.state is not JobState.COMPLETED:
            raise JobStateError(job_id, job.state.value, "it ended without completing")
    return waits


def blocked_again(job: Job, jobs: Mapping[str, Job]) -> set[str]:
    """Return the unfinished jobs that a requeued job comes after. Raise JobStateError as `blocked_by`."""
    own = {job_id: each for job_id, each in jobs.items() if each.spec.tenant == job.spec.tenant}
    left = tuple(job_id for job_id in job.spec.after if job_id in own)
    return blocked_by(replace(job.spec, after=left), own)


def unblock_job(job: Job, at_ms: int) -> Job:
    """Return the blocked job as pending, due after its delay."""
    return apply_event(job, JobEvent.UNBLOCK, at_ms, due_at_ms=at_ms + job.spec.delay_ms)


def fail_blocked_job(job: Job, before: Job, at_ms: int) -> Job:
    """Return the blocked job as failed, because one that it comes after ended without completing."""
    failure = JobFailure(Cause.PREREQUISITE, f"it comes after job {before.id}, which is {before.state.value}")
    return apply_event(job, JobEvent.FAIL, at_ms, failure=failure)


def restart_timers(job: Job, at_ms: int, *, due_in_ms: int = 0) -> Job:
    """Return the job with its due time, time to live and deadline counted from `at_ms`."""
    return replace(
        job,
        due_at_ms=at_ms + due_in_ms,
        expires_at_ms=_later(at_ms, job.spec.time_to_live_s),
        deadline_at_ms=_later(at_ms, job.spec.deadline_s),
    )


def is_overdue(job: Job, at_ms: int) -> bool:
    """Return True if a waiting job may not be claimed any more.

    Its deadline has passed, or its time to live before its first attempt.
    """
    if job.deadline_at_ms is not None and job.deadline_at_ms <= at_ms:
        return True
    return job.started_at_ms is None and job.expires_at_ms is not None and job.expires_at_ms <= at_ms


def past_deadline(job: Job, at_ms: int) -> bool:
    """Return True if the job's deadline has passed, in any state."""
    return job.deadline_at_ms is not None and job.deadline_at_ms <= at_ms


def permits_claim(job: Job, claim: ClaimRequest, at_ms: int) -> bool:
    """Return True if the claim may take the job now or later, in its region or in another."""
    return job.spec.model not in claim.without_models and not is_overdue(job, at_ms)


def matches_region(job: Job, claim: ClaimRequest) -> bool:
    """Return True if the job has no region or the region of the claim.

    A claim without a region matches any job.
    """
    return not claim.region or job.spec.region in {"", claim.region}


def claim_job(job: Job, claim: ClaimRequest, at_ms: int) -> Job:
    """Return the job under a new lease, with its attempt counted.

    The previous attempt's progress is cleared.
    """
    return apply_event(
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


def settle_job(job: Job, outcome: Outcome, at_ms: int) -> tuple[Job, HistoryEvent | None]:
    """Return the running job after `outcome` of its attempt, and the event for its history."""
    match outcome:
        case Completed():
            publishes = job.spec.kind == "infer" and bool(job.spec.output_uri)
            event = JobEvent.PUBLISH if publishes else JobEvent.COMPLETE
            return apply_event(job, event, at_ms, result=outcome.result, failure=None), None
        case Cancelled():
            return apply_event(job, JobEvent.CANCEL, at_ms), None
        case Expired():
            return apply_event(job, JobEvent.EXPIRE, at_ms), None
        case Released():
            return _released(job, outcome, at_ms), HistoryEvent.RELEASED
        case Failed():
            return _failed(job, outcome, at_ms), HistoryEvent.ATTEMPT_FAILED


def _released(job: Job, outcome: Released, at_ms: int) -> Job:
    cursor = job.cursor if outcome.cursor is None else outcome.cursor
    if job.cancel_requested:
        return apply_event(job, JobEvent.CANCEL, at_ms, cursor=cursor)
    due_at_ms = at_ms + outcome.delay_ms
    return apply_event(
        job, JobEvent.RELEASE, at_ms, attempt=job.attempt - 1, cursor=cursor, due_at_ms=due_at_ms
    )


def _failed(job: Job, outcome: Failed, at_ms: int) -> Job:
    crashes = job.crashes + outcome.crashed
    if outcome.retry_ms is None:
        return apply_event(job, JobEvent.FAIL, at_ms, failure=outcome.failure, crashes=crashes)
    if job.cancel_requested:
        return apply_event(job, JobEvent.CANCEL, at_ms, failure=outcome.failure, crashes=crashes)
    if outcome.counted and job.attempt >= job.spec.attempts_max:
        return apply_event(job, JobEvent.FAIL, at_ms, failure=outcome.failure, crashes=crashes)
    due_at_ms = at_ms + outcome.retry_ms
    attempt = job.attempt - (not outcome.counted)
    return apply_event(
        job,
        JobEvent.RETRY,
        at_ms,
        failure=outcome.failure,
        crashes=crashes,
        due_at_ms=due_at_ms,
        attempt=attempt,
    )


def lose_lease(job: Job, at_ms: int, delay_ms: int) -> Job:
    """Return the running job after its lease expired: its worker counts as dead."""
    crashes = job.crashes + 1
    if job.cancel_requested:
        return apply_event(job, JobEvent.CANCEL, at_ms, crashes=crashes)
    failure = JobFailure(
        Cause.WORKER_LOST,
        f"the worker {job.worker} gave no sign of life while it worked on attempt {job.attempt}",
    )
    if job.attempt >= job.spec.attempts_max:
        if job.crashes >= CRASHES_TOGETHER_MAX:
            why = f"it cost {crashes} workers, the last one while nothing else was worked on there"
            failure = JobFailure(Cause.POISON, why)
        return apply_event(job, JobEvent.FAIL, at_ms, failure=failure, crashes=crashes)
    return apply_event(
        job, JobEvent.LOSE, at_ms, failure=failure, crashes=crashes, due_at_ms=at_ms + delay_ms
    )


def requeue_job(job: Job, at_ms: int, *, blocked: bool = False) -> Job:
    """Return the ended job as pending or blocked again.

    It keeps its lease number, crashes and cursor. Its end is cleared.
    """
    back = apply_event(
        job,
        JobEvent.BLOCK if blocked else JobEvent.REQUEUE,
        at_ms,
        attempt=0,
        started_at_ms=None,
        cancel_requested=False,
        progress=None,
        result=None,
        failure=None,
    )
    return restart_timers(back, at_ms)


def matches_filter(job: Job, job_filter: JobFilter) -> bool:
    """Return True if the job matches all conditions of the filter."""
    spec = job.spec
    named = (
        (job_filter.queue, spec.queue),
        (job_filter.model, spec.model),
        (job_filter.kind, spec.kind),
        (job_filter.correlation_id, spec.correlation_id),
        (job_filter.fingerprint, job.fingerprint),
    )
    return (
        all(expected in ("", value) for expected, value in named)
        and job_filter.tenant in (None, spec.tenant)
        and (not job_filter.states or job.state in job_filter.states)
        and job_filter.tags.items() <= spec.tags.items()
        and (job_filter.created_from_ms is None or job_filter.created_from_ms <= job.created_at_ms)
        and (job_filter.created_before_ms is None or job.created_at_ms < job_filter.created_before_ms)
    )


def settle_name(
    job: Job, owner: Job | None, key: str, tenant: str, if_exists: str
) -> OutputTakenError | str | None:
    """Return the result of a job's claim of a name that belongs to a key of a tenant.

    None: the job takes the name over. A text: the job gets another name, with this suffix.
    """
    if if_exists == "rename":
        return job.id
    if key != job.spec.key:
        return hashlib.sha256(job.spec.key.encode()).hexdigest()[:16]
    if tenant != job.spec.tenant:
        return OutputTakenError(job.spec.key, "", "it belongs to another tenant")
    without_result = (JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
    if owner is None or if_exists == "replace" or owner.state in without_result:
        return None
    if if_exists == "version":
        return job.id
    return OutputTakenError(job.spec.key, owner.id, f"it belongs to job {owner.id}")


def _later(at_ms: int, seconds: float | None) -> int | None:
    return None if seconds is None else at_ms + round(seconds * 1000)


def needs_publication(job: Job) -> bool:
    """Return True if the job's result, or the reason of its end, is to be published.

    Completed transforms and streams publish their output themselves.
    """
    without_result = {JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    return bool(job.spec.output_uri) and (job.state is JobState.PUBLISHING or job.state in without_result)


def publish_job(job: Job, uri: str, digest: str, at_ms: int) -> Job:
    """Return the job with `uri` as the location of its published result or failure."""
    if job.result is not None and job.state is JobState.PUBLISHING:
        result = replace(job.result, published_uri=uri, digest=digest)
        return apply_event(job, JobEvent.COMPLETE, at_ms, result=result, failure=None)
    failure = job.failure or JobFailure(Cause(job.state.value), f"the job was {job.state.value}")
    return replace(job, failure=replace(failure, uri=uri or failure.uri))
