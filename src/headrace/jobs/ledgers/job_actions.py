"""Manual changes of jobs (cancel, requeue, delete), and deletion by retention."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.core.errors import JobStateError
from headrace.jobs.job import HistoryEvent, Job
from headrace.jobs.ledgers.changes import write_changes, write_notes
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.lookup import read_job, read_jobs
from headrace.jobs.ledgers.rows import JOB, job_of
from headrace.jobs.ledgers.transitions import Note, change, requeue_change
from headrace.jobs.state import JobEvent, JobState, source_states

_REQUEST_CANCEL = Statement(lambda _: "UPDATE headrace_job SET cancel_requested = TRUE WHERE id = :id")

_IDS: Final = {"gone_id": "text"}
_FORGET = tuple(
    Statement(
        lambda dialect, table=table, column=column: (
            f"""
WITH {dialect.records(_IDS)}
DELETE FROM {table} WHERE {column} IN (SELECT gone_id FROM given)
"""
        )
    )
    for table, column in (("headrace_job", "id"), ("headrace_history", "job_id"), ("headrace_tag", "job_id"))
)
_ENDED_BEFORE = Statement(
    lambda _: (
        f"""
SELECT {JOB} FROM headrace_job AS job WHERE job.ended_at_ms IS NOT NULL AND job.ended_at_ms < :at_ms
ORDER BY job.ended_at_ms, job.id LIMIT :row_limit
"""
    )
)


def cancel(transaction: Transaction, job_id: str, tenant: str | None, by: str) -> Job:
    """Implement `JobLedger.cancel`."""
    job = read_job(transaction, job_id, tenant, lock=True)
    if job.state is JobState.CANCELLED or (job.cancel_requested and not job.state.ended):
        return job
    if job.state not in source_states(JobEvent.CANCEL):
        raise JobStateError(job_id, job.state.value, "an ended job cannot be cancelled")
    note = Note(HistoryEvent.CANCEL_REQUESTED, by=by)
    if job.state is JobState.PENDING:
        return write_changes(transaction, [change(job, JobEvent.CANCEL, note=note)])[job_id]
    transaction.run(_REQUEST_CANCEL, id=job_id)
    write_notes(transaction, [(job, note)])
    transaction.notice.queues.add(job.spec.queue)
    transaction.notice.changed = True
    return replace(job, cancel_requested=True)


def requeue(transaction: Transaction, job_id: str, tenant: str | None, by: str) -> Job:
    """Implement `JobLedger.requeue`."""
    job = _ended(transaction, job_id, tenant, "only an ended job can be requeued")
    return write_changes(transaction, [requeue_change(job, by)])[job_id]


def delete(transaction: Transaction, job_id: str, tenant: str | None) -> Job:
    """Implement `JobLedger.delete`."""
    job = _ended(transaction, job_id, tenant, "only an ended job can be deleted; cancel it first")
    _remove(transaction, [job_id])
    return job


def ended_before(transaction: Transaction, at_ms: int, limit: int) -> list[Job]:
    """Implement `JobLedger.ended_before`."""
    return [job_of(row) for row in transaction.run(_ENDED_BEFORE, at_ms=at_ms, row_limit=max(limit, 0))]


def forget(transaction: Transaction, job_ids: Sequence[str]) -> int:
    """Implement `JobLedger.forget`."""
    jobs = read_jobs(transaction, job_ids, lock=True)
    ended = [job.id for job in jobs.values() if job.state.ended]
    _remove(transaction, ended)
    return len(ended)


def _remove(transaction: Transaction, job_ids: Sequence[str]) -> None:
    if not job_ids:
        return
    for statement in _FORGET:
        transaction.run(statement, [{"gone_id": job_id} for job_id in job_ids])
    if transaction.outbox:
        transaction.outbox.jobs_deleted(transaction, job_ids)


def _ended(transaction: Transaction, job_id: str, tenant: str | None, why: str) -> Job:
    job = read_job(transaction, job_id, tenant, lock=True)
    if not job.state.ended:
        raise JobStateError(job_id, job.state.value, why)
    return job
