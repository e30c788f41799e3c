"""Heartbeats of running attempts, and the record of a published end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.jobs.cause import Cause
from headrace.jobs.job import Job, JobFailure
from headrace.jobs.ledger import Heartbeat, HeartbeatReply
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK, known_by_id
from headrace.jobs.ledgers.lookup import read_jobs
from headrace.jobs.ledgers.rows import clean, dump_failure, dump_mapping, dump_progress
from headrace.jobs.state import JobState

_HEARTBEATS: Final = {"beat_id": "text", "beat_lease": "bigint", "new_progress": "text", "new_cursor": "text"}

# Ordered by an expression without an index: otherwise planners would scan all jobs for their order.
_HEARTBEAT = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_HEARTBEATS)}, alive AS MATERIALIZED (
    SELECT job.id AS alive_id, new_progress, new_cursor
    FROM given JOIN headrace_job AS job ON job.id = beat_id AND job.lease = beat_lease
    WHERE {known_by_id("job", JobState.RUNNING)} ORDER BY beat_id || '' {dialect.lock}
)
UPDATE headrace_job SET lease_until_ms = now_ms + :lease_ms,
    progress = coalesce(new_progress, headrace_job.progress),
    cursor = coalesce(new_cursor, headrace_job.cursor)
FROM alive, clock
WHERE headrace_job.id = alive_id AND {known_by_id("headrace_job", JobState.RUNNING)}
RETURNING headrace_job.id, headrace_job.lease, headrace_job.cancel_requested,
    coalesce(headrace_job.deadline_at_ms <= headrace_now(), FALSE)
"""
    )
)

_PUBLISHED = Statement(
    lambda _: (
        """
UPDATE headrace_job SET unpublished = FALSE, published_uri = :published_uri, failure = :failure WHERE id = :id
"""
    )
)


def heartbeat(transaction: Transaction, heartbeats: Sequence[Heartbeat], lease_ms: int) -> HeartbeatReply:
    """Implement `JobLedger.heartbeat`."""
    if not heartbeats:
        return HeartbeatReply(frozenset(), frozenset(), frozenset())
    records = [
        {
            "beat_id": item.job_id,
            "beat_lease": item.lease,
            "new_progress": dump_progress(item.progress),
            "new_cursor": dump_mapping(item.cursor),
        }
        for item in heartbeats
    ]
    rows = transaction.run(_HEARTBEAT, records, lease_ms=lease_ms)
    alive = {(row[0], row[1]) for row in rows}
    _notify_progress(
        transaction,
        [item for item in heartbeats if item.notify_progress and (item.job_id, item.lease) in alive],
    )
    transaction.notice.changed = any(item.progress is not None for item in heartbeats)
    return HeartbeatReply(
        lost=frozenset(item.job_id for item in heartbeats if (item.job_id, item.lease) not in alive),
        cancel=frozenset(row[0] for row in rows if row[2]),
        expired=frozenset(row[0] for row in rows if row[3]),
    )


def _notify_progress(transaction: Transaction, heartbeats: Sequence[Heartbeat]) -> None:
    if not heartbeats or not transaction.outbox:
        return
    jobs = read_jobs(transaction, [item.job_id for item in heartbeats])
    for job in jobs.values():
        if job.progress is not None:
            transaction.outbox.job_progressed(transaction, job, job.progress)


def mark_published(transaction: Transaction, job_id: str, lease: int, uri: str) -> bool:
    """Implement `JobLedger.mark_published`."""
    job = read_jobs(transaction, [job_id], lock=True).get(job_id)
    if job is None or not job.state.ended or job.lease != lease:
        return False
    completed = job.state is JobState.COMPLETED
    transaction.run(
        _PUBLISHED,
        id=job_id,
        published_uri=clean(uri) if completed else "",
        failure=dump_failure(job.failure if completed else _failure_with_uri(job, uri)),
    )
    if transaction.outbox:
        transaction.outbox.job_published(transaction, job, uri)
    transaction.notice.changed = True
    return True


def _failure_with_uri(job: Job, uri: str) -> JobFailure:
    """Return the reason of an end without a result, with the URI of the object that explains it."""
    failure = job.failure or JobFailure(Cause(job.state.value), f"the job was {job.state.value}")
    return replace(failure, uri=clean(uri))
