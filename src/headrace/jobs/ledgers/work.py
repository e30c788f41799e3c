"""The operations of workers: settle attempts, claim jobs, send heartbeats, and maintain the ledger.

The change that an outcome or an expired lease makes to its job is decided by pure functions, at the
end: its row is read and locked before, and written after.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Final

from typing_extensions import override

from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Cancelled, Completed, Expired, Failed, Job, JobFailure, Released, Settlement
from headrace.jobs.ledger import (
    NO_REPORT,
    PUBLISH_DELAY_MAX_MS,
    PUBLISH_DELAY_MS,
    ClaimRequest,
    Heartbeat,
    HeartbeatReply,
    JobLedger,
    MaintenanceCounts,
    SettleAndClaimReply,
)
from headrace.jobs.ledgers.claims import Claims
from headrace.jobs.ledgers.database import (
    Database,
    DatabaseOperations,
    Transaction,
    read_statement,
    reading,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.dependencies import write_changes
from headrace.jobs.ledgers.output_names import owns_name, read_owner
from headrace.jobs.ledgers.rows import (
    Change,
    Note,
    change,
    clean,
    delete_jobs,
    dump,
    read_by_id,
    read_jobs,
)
from headrace.jobs.ledgers.worker_operations import record_report
from headrace.jobs.state import WORKER_LOST_RULE, Cause, JobEvent, JobState
from headrace.jobs.worker_registry import WorkerReport

_HEARTBEAT: Final = read_statement("heartbeat")
_MARK_PUBLISHED: Final = read_statement("mark_published")
_LOST_LEASES: Final = read_statement("lost_leases")
_PAST_TIME_TO_LIVE: Final = read_statement("past_time_to_live")
_PAST_DEADLINE: Final = read_statement("past_deadline")
_WAKE: Final = read_statement("wake_jobs")
_OF_WORKER: Final = read_statement("jobs_of_worker")
_CLAIM_PUBLICATIONS: Final = read_statement("claim_publications")
_RECORD_PUBLISH_FAILURE: Final = read_statement("record_publish_failure")
_DOUBLINGS_MAX: Final = ceil(log2(PUBLISH_DELAY_MAX_MS / PUBLISH_DELAY_MS))
_ENDED: Final = read_statement("ended_jobs")


class WorkOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger that run jobs."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._claims = Claims()

    @override
    @writing_once
    def settle_and_claim(
        self, transaction: Transaction, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        accepted = _settle(transaction, settlements)
        if claim is None:
            return SettleAndClaimReply(accepted, ())
        return replace(self._claims.claim(transaction, claim), accepted=accepted)

    @override
    @writing
    def heartbeat(
        self,
        transaction: Transaction,
        worker: str,
        heartbeats: Sequence[Heartbeat],
        lease_ms: int,
        report: WorkerReport = NO_REPORT,
    ) -> HeartbeatReply:
        reply = _extend_leases(transaction, heartbeats, lease_ms)
        registered, draining = record_report(transaction, worker, report)
        return replace(reply, registered=registered, draining=draining)

    @override
    @writing
    def mark_published(
        self, transaction: Transaction, job_id: str, lease: int, uri: str, digest: str = ""
    ) -> bool:
        job = _read_published(transaction, job_id, lease)
        if job is None or job.state is JobState.PUBLISH_FAILED or not owns_name(transaction, job):
            return False
        if job.state is JobState.PUBLISHING and job.result is not None:
            result = replace(job.result, published_uri=uri, digest=digest)
            write_changes(transaction, [change(job, JobEvent.COMPLETE, result=result, failure=None)])
        elif job.needs_publication:
            _end_publication(transaction, job, uri)
        return True

    @override
    @writing
    def mark_publish_failed(
        self, transaction: Transaction, job_id: str, lease: int, failure: JobFailure, *, final: bool
    ) -> bool:
        job = _read_published(transaction, job_id, lease)
        if job is None or not job.needs_publication:
            return False
        if job.state is not JobState.PUBLISHING:
            if final:
                _end_publication(transaction, job, "")
        elif final:
            write_changes(transaction, [change(job, JobEvent.GIVE_UP, failure=failure)])
        else:
            transaction.run(_RECORD_PUBLISH_FAILURE, id=job_id, failure=dump(failure))
            transaction.notice.changed = True
        return True

    @override
    @writing
    def maintain(self, transaction: Transaction, limit: int) -> MaintenanceCounts:
        limit = max(limit, 0)
        lost = read_jobs(transaction, _LOST_LEASES, row_limit=limit)
        changed = write_changes(transaction, [lost_lease_change(job) for job in lost])
        states = [job.state for job in changed.values()]
        over = {job.id: job for job in read_jobs(transaction, _PAST_DEADLINE, row_limit=limit)}
        late = read_jobs(transaction, _PAST_TIME_TO_LIVE, row_limit=limit - len(over))
        over |= {job.id: job for job in late}
        expired = write_changes(transaction, [change(job, JobEvent.EXPIRE) for job in over.values()])
        woken = [row[0] for row in transaction.run(_WAKE, row_limit=limit)]
        transaction.notice.queues.update(woken)
        return MaintenanceCounts(
            returned=states.count(JobState.PENDING),
            failed=states.count(JobState.FAILED),
            cancelled=states.count(JobState.CANCELLED),
            expired=len(expired),
            woken=len(woken),
        )

    @override
    @reading
    def list_running(self, transaction: Transaction, worker: str) -> list[Job]:
        return read_jobs(transaction, _OF_WORKER, worker=clean(worker))

    @override
    @writing
    def claim_publications(self, transaction: Transaction, limit: int) -> list[Job]:
        return read_jobs(
            transaction,
            _CLAIM_PUBLICATIONS,
            row_limit=max(limit, 0),
            doublings_max=_DOUBLINGS_MAX,
            delay_ms=PUBLISH_DELAY_MS,
            delay_max_ms=PUBLISH_DELAY_MAX_MS,
        )

    @override
    @reading
    def output_owner(self, transaction: Transaction, job: Job) -> Job | None:
        return read_owner(transaction, job)

    @override
    @reading
    def ended_before(self, transaction: Transaction, at_ms: int, *, limit: int) -> list[Job]:
        limit = max(limit, 0)
        jobs = read_jobs(transaction, _ENDED, before_ms=at_ms, row_limit=limit)
        return sorted(jobs, key=lambda job: (job.ended_at_ms or 0, job.id))[:limit]

    @override
    @writing
    def forget(self, transaction: Transaction, job_ids: Sequence[str]) -> int:
        jobs = read_by_id(transaction, job_ids, lock=True)
        ended = [job.id for job in jobs.values() if job.state.ended]
        delete_jobs(transaction, ended)
        return len(ended)


def _extend_leases(
    transaction: Transaction, heartbeats: Sequence[Heartbeat], lease_ms: int
) -> HeartbeatReply:
    """Extend leases. A lease number identifies its worker."""
    if not heartbeats:
        return HeartbeatReply(frozenset(), frozenset(), frozenset())
    records = [
        {
            "beat_id": item.job_id,
            "beat_lease": item.lease,
            "new_progress": dump(item.progress),
            "new_cursor": dump(item.cursor),
        }
        for item in heartbeats
    ]
    rows = transaction.run(_HEARTBEAT, records, lease_ms=lease_ms)
    alive = {(row[0], row[1]) for row in rows}
    notified = [
        item.job_id for item in heartbeats if item.notify_progress and (item.job_id, item.lease) in alive
    ]
    for job in read_by_id(transaction, notified).values():
        if job.progress is not None:
            transaction.outbox.job_progressed(transaction, job, job.progress)
    transaction.notice.changed = any(item.progress is not None for item in heartbeats)
    return HeartbeatReply(
        lost=frozenset(item.job_id for item in heartbeats if (item.job_id, item.lease) not in alive),
        cancel=frozenset(row[0] for row in rows if row[2]),
        expired=frozenset(row[0] for row in rows if row[3]),
    )


def _settle(transaction: Transaction, settlements: Sequence[Settlement]) -> tuple[bool, ...]:
    jobs = read_by_id(transaction, [settlement.job_id for settlement in settlements], lock=True)
    changes: dict[str, Change] = {}
    accepted: list[bool] = []
    for settlement in settlements:
        job = jobs.get(settlement.job_id)
        counts = (
            job is not None
            and job.id not in changes
            and job.state is JobState.RUNNING
            and job.lease == settlement.lease
        )
        if counts and job is not None:
            changes[job.id] = settlement_change(job, settlement)
        accepted.append(counts)
    write_changes(transaction, list(changes.values()))
    return tuple(accepted)


def _read_published(transaction: Transaction, job_id: str, lease: int) -> Job | None:
    """Return the locked job if it has an output and `lease` is that of its last attempt, which is over."""
    job = read_by_id(transaction, [job_id], lock=True).get(job_id)
    if job is None or job.lease != lease or not job.spec.output_uri:
        return None
    return job if job.state.ended or job.state is JobState.PUBLISHING else None


def _end_publication(transaction: Transaction, job: Job, uri: str) -> None:
    """Record the URI of the object that explains an end without a result, and release notifications."""
    failure = job.failure or JobFailure(Cause(job.state.value), f"the job was {job.state.value}")
    # A later process may fail to write an object that an earlier one has written.
    uri = uri or failure.uri
    transaction.run(_MARK_PUBLISHED, id=job.id, failure=dump(replace(failure, uri=clean(uri))))
    transaction.outbox.job_published(transaction, job, uri)
    transaction.notice.changed = True


def settlement_change(job: Job, settlement: Settlement) -> Change:
    """Return the change that an outcome makes to its running job.

    The result of an `infer` job with an output is published before the job is completed. Other kinds
    write their output themselves. A completed job stays completed even if a cancellation was
    requested meanwhile: the first record counts. An attempt that would be retried is cancelled
    instead.
    """
    outcome = settlement.outcome
    if settlement.progress is not None:
        job = replace(job, progress=settlement.progress)
    match outcome:
        case Completed():
            event = JobEvent.PUBLISH if job.spec.publishes_result else JobEvent.COMPLETE
            return change(job, event, result=outcome.result, failure=None)
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
            why = f"it crashed {crashes} workers, the last one while it ran alone"
            failure = JobFailure(Cause.POISON, why)
        return change(job, JobEvent.FAIL, note=note, failure=failure, crashes=crashes)
    # The full delay of the rule, without jitter: the lease has taken its time already.
    due_in_ms = WORKER_LOST_RULE.delay_ms(max(job.attempt, 1))
    return change(job, JobEvent.LOSE, due_in_ms=due_in_ms, note=note, failure=failure, crashes=crashes)
