"""Reads whole jobs, by id or by key, with or without a lock."""

from collections.abc import Sequence
from typing import Final

from headrace.core.errors import JobNotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.rows import JOB, job_of

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
