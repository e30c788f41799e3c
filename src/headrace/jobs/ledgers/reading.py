"""Reads whole jobs, by id or by key, with or without a lock."""

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
# Ordered by something that no index has, or all jobs would be walked through for the sake of their order.
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


def read_running_of(transaction: Transaction, worker: str) -> list[Job]:
    """See `JobLedger.running_of`."""
    return list(map(job_of, transaction.run(_RUNNING_OF, worker=clean(worker))))


def read_cancels_of(transaction: Transaction, worker: str) -> frozenset[str]:
    """See `JobLedger.cancel_requests`."""
    return frozenset(row[0] for row in transaction.run(_CANCELS_OF, worker=clean(worker)))


def read_unpublished(transaction: Transaction, before_ms: int, limit: int) -> list[Job]:
    """See `JobLedger.unpublished`."""
    return list(map(job_of, transaction.run(_UNPUBLISHED, before_ms=before_ms, most=limit)))


def read_keyed(transaction: Transaction, tenant: str, idempotency_key: str) -> Job | None:
    """See `JobLedger.keyed`."""
    rows = transaction.run(_KEYED, tenant=tenant, key=idempotency_key)
    return job_of(rows[0]) if rows else None


def read_jobs(transaction: Transaction, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, Job]:
    """Those of them that exist, by id; locked always in the order of their ids, so that nobody waits in a circle."""
    if not job_ids:
        return {}
    statement = _MANY_LOCKED if lock else _MANY
    rows = transaction.run(statement, [{"wanted_id": job_id} for job_id in dict.fromkeys(job_ids)])
    return {job.id: job for job in map(job_of, rows)}


def read_job(transaction: Transaction, job_id: str, tenant: str | None, *, lock: bool = False) -> Job:
    """One job. JobNotFoundError, also where it is another tenant's."""
    job = read_jobs(transaction, [job_id], lock=lock).get(job_id)
    if job is None or tenant not in (None, job.spec.tenant):
        raise JobNotFoundError(job_id)
    return job
