"""Reads of whole jobs by id, key or worker, with or without a lock."""

from collections.abc import Sequence
from typing import Final

from headrace.core.errors import JobNotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.rows import JOB, clean, job_of
from headrace.jobs.state import JobState

_IDS: Final = {"wanted_id": "text"}

_MANY = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records(_IDS)}
SELECT {JOB} FROM given JOIN headrace_job AS job ON job.id = wanted_id
"""
    )
)
# Ordered by an expression without an index: otherwise planners would scan all jobs for their order.
_MANY_LOCKED = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records(_IDS)}
SELECT {JOB} FROM given JOIN headrace_job AS job ON job.id = wanted_id
ORDER BY wanted_id || '' {dialect.lock}
"""
    )
)

_RUNNING_OF = Statement(
    lambda _: (
        f"""
SELECT {JOB} FROM headrace_job AS job WHERE job.worker = :worker AND job.state = '{JobState.RUNNING.value}'
"""
    )
)
_CANCELS_OF = Statement(
    lambda _: (
        f"""
SELECT job.id FROM headrace_job AS job
WHERE job.worker = :worker AND job.state = '{JobState.RUNNING.value}' AND job.cancel_requested
"""
    )
)
_KEYED = Statement(
    lambda _: (
        f"SELECT {JOB} FROM headrace_job AS job WHERE job.tenant = :tenant AND job.idempotency_key = :key"
    )
)
_UNPUBLISHED = Statement(
    lambda _: (
        f"""
SELECT {JOB} FROM headrace_job AS job WHERE job.unpublished AND job.ended_at_ms < :before_ms
ORDER BY job.ended_at_ms, job.id LIMIT :most
"""
    )
)


def read_running(transaction: Transaction, worker: str) -> list[Job]:
    """Implement `JobLedger.list_running`."""
    return list(map(job_of, transaction.run(_RUNNING_OF, worker=clean(worker))))


def read_cancel_requests(transaction: Transaction, worker: str) -> frozenset[str]:
    """Implement `JobLedger.cancel_requests`."""
    return frozenset(row[0] for row in transaction.run(_CANCELS_OF, worker=clean(worker)))


def read_unpublished(transaction: Transaction, before_ms: int, limit: int) -> list[Job]:
    """Implement `JobLedger.list_unpublished`."""
    return list(map(job_of, transaction.run(_UNPUBLISHED, before_ms=before_ms, most=limit)))


def read_by_key(transaction: Transaction, tenant: str, idempotency_key: str) -> Job | None:
    """Implement `JobLedger.get_by_key`."""
    rows = transaction.run(_KEYED, tenant=tenant, key=idempotency_key)
    return job_of(rows[0]) if rows else None


def read_jobs(transaction: Transaction, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, Job]:
    """Return the existing jobs among these ids, by id; lock in the order of ids to avoid deadlocks."""
    if not job_ids:
        return {}
    statement = _MANY_LOCKED if lock else _MANY
    rows = transaction.run(statement, [{"wanted_id": job_id} for job_id in dict.fromkeys(job_ids)])
    return {job.id: job for job in map(job_of, rows)}


def read_job(transaction: Transaction, job_id: str, tenant: str | None, *, lock: bool = False) -> Job:
    """Return a job. Raise JobNotFoundError, also for another tenant's."""
    job = read_jobs(transaction, [job_id], lock=lock).get(job_id)
    if job is None or tenant not in (None, job.spec.tenant):
        raise JobNotFoundError(job_id)
    return job
