"""Maintenance of jobs: expired leases, expired jobs, and jobs that become due.

Any number of workers may run it at once.
"""

from headrace.jobs.job import Job
from headrace.jobs.ledger import MaintenanceCounts
from headrace.jobs.ledgers.changes import write_changes
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import NOW_MS, known_by_id
from headrace.jobs.ledgers.rows import JOB, job_of
from headrace.jobs.ledgers.transitions import change, lost_lease_change
from headrace.jobs.state import JobEvent, JobState

# Concurrent workers divide the rows: each skips the rows that others have locked.
_LOST = Statement(
    lambda dialect: (
        f"""
SELECT {JOB} FROM headrace_job AS job WHERE job.state = 'running' AND job.lease_until_ms <= {NOW_MS}
ORDER BY job.queue, job.id LIMIT :row_limit {dialect.lock_free}
"""
    )
)
_PAST_TIME_TO_LIVE = Statement(
    lambda dialect: (
        f"""
SELECT {JOB} FROM headrace_job AS job
WHERE job.state = 'pending' AND job.started_at_ms IS NULL AND job.expires_at_ms IS NOT NULL
    AND job.expires_at_ms <= {NOW_MS}
ORDER BY job.expires_at_ms LIMIT :row_limit {dialect.lock_free}
"""
    )
)
_PAST_DEADLINE = Statement(
    lambda dialect: (
        f"""
SELECT {JOB} FROM headrace_job AS job
WHERE job.state = 'pending' AND job.deadline_at_ms IS NOT NULL AND job.deadline_at_ms <= {NOW_MS}
ORDER BY job.deadline_at_ms LIMIT :row_limit {dialect.lock_free}
"""
    )
)

# SQLite reads a cross join as: queues first.
_WAKE = Statement(
    lambda dialect: (
        f"""
WITH candidate AS MATERIALIZED (
    SELECT job.id AS candidate_id FROM headrace_queue CROSS JOIN headrace_job AS job
    WHERE job.queue = headrace_queue.name AND job.state = 'pending' AND job.asleep
        AND job.due_at_ms <= {NOW_MS}
    LIMIT :row_limit {dialect.lock_free}
)
UPDATE headrace_job SET asleep = FALSE FROM candidate
WHERE headrace_job.id = candidate_id AND {known_by_id("headrace_job", JobState.PENDING)}
RETURNING headrace_job.queue
"""
    )
)


def maintain(transaction: Transaction, limit: int) -> MaintenanceCounts:
    """Implement `JobLedger.maintain`."""
    changed = write_changes(transaction, [lost_lease_change(job) for job in _read(transaction, _LOST, limit)])
    states = [job.state for job in changed.values()]
    over = _read(transaction, _PAST_DEADLINE, limit)
    expired = write_changes(transaction, [change(job, JobEvent.EXPIRE) for job in over])
    over = _read(transaction, _PAST_TIME_TO_LIVE, limit - len(expired))
    expired |= write_changes(transaction, [change(job, JobEvent.EXPIRE) for job in over])
    return MaintenanceCounts(
        returned=states.count(JobState.PENDING),
        failed=states.count(JobState.FAILED),
        cancelled=states.count(JobState.CANCELLED),
        expired=len(expired),
        woken=_wake(transaction, limit),
    )


def _wake(transaction: Transaction, limit: int) -> int:
    """Make pending jobs that became due claimable. Return their number."""
    queues = [row[0] for row in transaction.run(_WAKE, row_limit=max(limit, 0))]
    transaction.notice.queues.update(queues)
    return len(queues)


def _read(transaction: Transaction, statement: Statement, limit: int) -> list[Job]:
    return [job_of(row) for row in transaction.run(statement, row_limit=max(limit, 0))]
