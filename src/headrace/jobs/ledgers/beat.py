"""Signs of life of running attempts, and what they tell; and what is told of a result after the end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.jobs.cause import Cause
from headrace.jobs.job import Job, JobFailure
from headrace.jobs.ledger import Beat, BeatReply
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK, known_by_id
from headrace.jobs.ledgers.reading import read_jobs
from headrace.jobs.ledgers.rows import clean, dump_failure, dump_mapping, dump_progress
from headrace.jobs.state import JobState

_BEATS: Final = {"beat_id": "text", "beat_lease": "bigint", "new_progress": "text", "new_cursor": "text"}

# Ordered by something that no index has, or all jobs would be walked through for the sake of their order.
_BEAT = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_BEATS)}, alive AS MATERIALIZED (
    SELECT job.id AS alive_id, new_progress, new_cursor
    FROM given JOIN headrace_job AS job ON job.id = beat_id AND job.lease = beat_lease
    WHERE {known_by_id("job", JobState.RUNNING)} ORDER BY beat_id || '' {dialect.lock}
)
UPDATE headrace_job SET lease_until_ms = now_ms + :lease_ms,
    progress = coalesce(new_progress, headrace_job.progress), cursor = coalesce(new_cursor, headrace_job.cursor)
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


def beat(transaction: Transaction, beats: Sequence[Beat], lease_ms: int) -> BeatReply:
    """See `JobLedger.beat`."""
    if not beats:
        return BeatReply(frozenset(), frozenset(), frozenset())
    given = [
        {
            "beat_id": told.job_id,
            "beat_lease": told.lease,
            "new_progress": dump_progress(told.progress),
            "new_cursor": dump_mapping(told.cursor),
        }
        for told in beats
    ]
    rows = transaction.run(_BEAT, given, lease_ms=lease_ms)
    alive = {(row[0], row[1]) for row in rows}
    _tell(transaction, [told for told in beats if told.tell and (told.job_id, told.lease) in alive])
    transaction.news.changed = any(told.progress is not None for told in beats)
    return BeatReply(
        lost=frozenset(told.job_id for told in beats if (told.job_id, told.lease) not in alive),
        cancel=frozenset(row[0] for row in rows if row[2]),
        expired=frozenset(row[0] for row in rows if row[3]),
    )


def _tell(transaction: Transaction, beats: Sequence[Beat]) -> None:
    if not beats or not transaction.outbox:
        return
    jobs = read_jobs(transaction, [told.job_id for told in beats])
    for job in jobs.values():
        if job.progress is not None:
            transaction.outbox.progressed(transaction, job, job.progress)


def published(transaction: Transaction, job_id: str, lease: int, uri: str) -> bool:
    """See `JobLedger.published`."""
    job = read_jobs(transaction, [job_id], lock=True).get(job_id)
    if job is None or not job.state.ended or job.lease != lease:
        return False
    completed = job.state is JobState.COMPLETED
    transaction.run(
        _PUBLISHED,
        id=job_id,
        published_uri=clean(uri) if completed else "",
        failure=dump_failure(job.failure if completed else _told_where(job, uri)),
    )
    if transaction.outbox:
        transaction.outbox.published(transaction, job, uri)
    transaction.news.changed = True
    return True


def _told_where(job: Job, uri: str) -> JobFailure:
    """Why it has ended without a result, and the object that tells more."""
    failure = job.failure or JobFailure(Cause(job.state.value), f"the job was {job.state.value}")
    return replace(failure, uri=clean(uri))
