"""Idempotent bulk submission, as far as the queues accept jobs."""

from collections.abc import Sequence
from typing import Any, Final

from headrace.core.errors import IdempotencyError, JobLedgerUnavailableError, QueueClosedError, QueueFullError
from headrace.jobs.job import Job, NewJob
from headrace.jobs.ledger import QueueSettings, SubmitReply
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK
from headrace.jobs.ledgers.lookup import read_jobs
from headrace.jobs.ledgers.queues import make_queues, read_queues
from headrace.jobs.ledgers.rows import JOB, RETURNED, clean, dump_spec, job_of
from headrace.jobs.ledgers.transitions import after_ms
from headrace.jobs.state import JobState

RETRY_AFTER_S: Final = 1.0
_STATEMENT_JOBS: Final = 500
_ROUNDS_MAX: Final = 8

_NEW: Final = {
    "new_id": "text",
    "place": "bigint",
    "new_queue": "text",
    "new_model": "text",
    "new_kind": "text",
    "new_tenant": "text",
    "new_priority": "bigint",
    "new_attempts_max": "bigint",
    "new_body_digest": "text",
    "new_correlation_id": "text",
    "new_key": "text",
    "new_spec": "text",
    "new_region": "text",
    "delay_ms": "bigint",
    "expires_in_ms": "bigint",
    "deadline_in_ms": "bigint",
}

# Limited queues are counted once per statement; unlimited ones cost nothing. On PostgreSQL two
# concurrent submissions do not see each other's jobs, so that together they may exceed the limit.
_INSERT = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_NEW)}, open_queue AS MATERIALIZED (
    SELECT name, CASE WHEN pending_max IS NOT NULL THEN pending_max
        - (SELECT count(*) FROM headrace_job AS job
            WHERE job.queue = name AND job.state = 'pending' AND NOT job.asleep)
        - (SELECT count(*) FROM headrace_job AS job
            WHERE job.queue = name AND job.state = 'pending' AND job.asleep)
    END AS free_places
    FROM headrace_queue WHERE name IN (SELECT new_queue FROM given) AND NOT draining
)
INSERT INTO headrace_job (
    id, state, queue, model, kind, tenant, priority, attempts_max, body_digest, correlation_id,
    idempotency_key, spec, region, created_at_ms, due_at_ms, asleep, expires_at_ms, deadline_at_ms
)
SELECT new_id, '{JobState.PENDING.value}', new_queue, new_model, new_kind, new_tenant, new_priority,
    new_attempts_max, new_body_digest, new_correlation_id, new_key, new_spec,
    new_region, now_ms, now_ms + delay_ms, delay_ms > 0, now_ms + expires_in_ms, now_ms + deadline_in_ms
FROM given JOIN open_queue ON open_queue.name = new_queue CROSS JOIN clock
WHERE open_queue.free_places IS NULL OR place <= open_queue.free_places
ORDER BY place
ON CONFLICT DO NOTHING
RETURNING {RETURNED}
"""
    )
)

_TAGS: Final = {"tagged_id": "text", "tag_name": "text", "tag_value": "text"}
_TAG = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records(_TAGS)}
INSERT INTO headrace_tag (job_id, name, value) SELECT tagged_id, tag_name, tag_value FROM given
"""
    )
)

_KEYS: Final = {"key_tenant": "text", "key": "text"}
_BY_KEY = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records(_KEYS)}
SELECT {JOB} FROM given JOIN headrace_job AS job ON job.tenant = key_tenant AND job.idempotency_key = key
WHERE job.idempotency_key IS NOT NULL
"""
    )
)


def submit(
    transaction: Transaction, jobs: Sequence[NewJob], new_ids: set[str]
) -> list[SubmitReply | Exception]:
    """Implement `JobLedger.submit`. All jobs have ids; `new_ids` are the ids that this call assigned."""
    replies: dict[int, SubmitReply | Exception] = {}
    for _ in range(_ROUNDS_MAX):
        remaining = [index for index in range(len(jobs)) if index not in replies]
        if not remaining:
            return [replies[index] for index in range(len(jobs))]
        _round(transaction, jobs, remaining, new_ids, replies)
    raise JobLedgerUnavailableError(
        "jobs with these ids or keys changed during the submission, nothing was queued: try again"
    )


def _round(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    remaining: Sequence[int],
    new_ids: set[str],
    replies: dict[int, SubmitReply | Exception],
) -> None:
    """Answer as many submissions as one pass can; of several for one job the first goes ahead."""
    first: dict[tuple[str, str, str], int] = {}
    for index in remaining:
        first.setdefault(_identity(jobs[index]), index)
    ahead = {index: jobs[index] for index in first.values()}
    inserted = _insert(transaction, list(ahead.values()))
    missing = {index: new for index, new in ahead.items() if new.id not in inserted}
    replies |= {
        index: SubmitReply(inserted[new.id], True) for index, new in ahead.items() if new.id in inserted
    }
    found = _find(transaction, list(missing.values())) if missing else {}
    refused: dict[int, NewJob] = {}
    for index, new in missing.items():
        job = found.get(_identity(new)) or found.get(("", "", new.id))
        if job is None:
            refused[index] = new
        else:
            replies[index] = _existing_reply(new, job, new_ids)
    for index in remaining:
        leader = first[_identity(jobs[index])]
        leading = replies.get(leader)
        if index != leader and isinstance(leading, SubmitReply):
            replies[index] = _existing_reply(jobs[index], leading.job, set())
    # A submission that precedes others in a full queue may be in the ledger already. Only if a
    # whole pass yields nothing do the queues give the reason.
    if (
        refused
        and not make_queues(transaction, {new.queue for new in refused.values()})
        and len(refused) == len(ahead)
    ):
        _refuse(transaction, jobs, remaining, replies)


def _refuse(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    remaining: Sequence[int],
    replies: dict[int, SubmitReply | Exception],
) -> None:
    queues = {settings.name: settings for settings in read_queues(transaction)}
    for index in remaining:
        error = _refusal(queues.get(jobs[index].queue))
        if index not in replies and error is not None:
            replies[index] = error


def _refusal(queue: QueueSettings | None) -> Exception | None:
    if queue is None:
        return None
    if queue.draining:
        return QueueClosedError(f"queue {queue.name} is draining: submit to another one, or later")
    if queue.pending_max is None:
        return None
    return QueueFullError(
        f"queue {queue.name} has its limit of {queue.pending_max} pending jobs: submit again later",
        retry_after_s=RETRY_AFTER_S,
    )


def _identity(new: NewJob) -> tuple[str, str, str]:
    """Return a job's identity: its tenant and key, or else its id."""
    return (new.tenant, new.idempotency_key, "") if new.idempotency_key else ("", "", new.id)


def _existing_reply(new: NewJob, job: Job, new_ids: set[str]) -> SubmitReply | Exception:
    """Return the reply for a job in the ledger; an id in `new_ids` was inserted by this same call."""
    if job.id == new.id and job.id in new_ids:
        return SubmitReply(job, created=True)
    if (job.spec.body_digest, job.spec.tenant) != (new.body_digest, new.tenant):
        return IdempotencyError(new.idempotency_key or new.id, job.id)
    return SubmitReply(job, created=False)


def _insert(transaction: Transaction, jobs: Sequence[NewJob]) -> dict[str, Job]:
    inserted: dict[str, Job] = {}
    for begin in range(0, len(jobs), _STATEMENT_JOBS):
        part = jobs[begin : begin + _STATEMENT_JOBS]
        ranks: dict[str, int] = {}
        rows = transaction.run(_INSERT, [_row(new, ranks) for new in part])
        inserted |= {job.id: job for job in map(job_of, rows)}
    tags = [
        {"tagged_id": job.id, "tag_name": clean(name), "tag_value": clean(value)}
        for job in inserted.values()
        for name, value in job.spec.tags.items()
    ]
    if tags:
        transaction.run(_TAG, tags)
    if inserted:
        transaction.notice.changed = True
        transaction.notice.queues.update(
            job.spec.queue for job in inserted.values() if job.due_at_ms <= job.created_at_ms
        )
    return inserted


def _find(transaction: Transaction, jobs: Sequence[NewJob]) -> dict[tuple[str, str, str], Job]:
    """Return the jobs that are in the ledger already, by identity."""
    keys = [{"key_tenant": new.tenant, "key": new.idempotency_key} for new in jobs if new.idempotency_key]
    found = [job_of(row) for row in transaction.run(_BY_KEY, keys)] if keys else []
    by_id = read_jobs(transaction, [new.id for new in jobs])
    return {("", "", job_id): job for job_id, job in by_id.items()} | {
        _identity(job.spec): job for job in found
    }


def _row(new: NewJob, ranks: dict[str, int]) -> dict[str, Any]:
    ranks[new.queue] = ranks.get(new.queue, 0) + 1
    return {
        "new_id": new.id,
        "place": ranks[new.queue],
        "new_queue": new.queue,
        "new_model": new.model,
        "new_kind": new.kind,
        "new_tenant": new.tenant,
        "new_priority": new.priority,
        "new_attempts_max": new.attempts_max,
        "new_body_digest": new.body_digest,
        "new_correlation_id": new.correlation_id,
        "new_key": new.idempotency_key or None,
        "new_spec": dump_spec(new),
        "new_region": new.region,
        "delay_ms": max(0, new.delay_ms),
        "expires_in_ms": after_ms(new.time_to_live_s),
        "deadline_in_ms": after_ms(new.deadline_s),
    }
