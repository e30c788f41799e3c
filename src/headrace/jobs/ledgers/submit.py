"""Queueing jobs, idempotently, in bulk, as far as their queues take them."""

from collections.abc import Sequence
from typing import Any, Final

from headrace.core.errors import IdempotencyError, JobLedgerUnavailableError, QueueClosedError, QueueFullError
from headrace.jobs.job import Job, NewJob
from headrace.jobs.ledger import QueueSettings, Submitted
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK
from headrace.jobs.ledgers.queues import make_queues, read_queues
from headrace.jobs.ledgers.reading import read_jobs
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

# Bounded queues are counted, once a statement; those without a bound cost nothing. On PostgreSQL two submissions at the
# same moment do not see each other's jobs, so that the bound may be passed by what is being submitted at that moment.
_INSERT = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_NEW)}, open_queue AS MATERIALIZED (
    SELECT name, CASE WHEN pending_max IS NOT NULL THEN pending_max
        - (SELECT count(*) FROM headrace_job AS job WHERE job.queue = name AND job.state = 'pending' AND NOT job.asleep)
        - (SELECT count(*) FROM headrace_job AS job WHERE job.queue = name AND job.state = 'pending' AND job.asleep)
    END AS room
    FROM headrace_queue WHERE name IN (SELECT new_queue FROM given) AND NOT draining
)
INSERT INTO headrace_job (
    id, state, queue, model, kind, tenant, priority, attempts_max, body_digest, correlation_id, idempotency_key, spec,
    region, created_at_ms, due_at_ms, asleep, expires_at_ms, deadline_at_ms
)
SELECT new_id, '{JobState.PENDING.value}', new_queue, new_model, new_kind, new_tenant, new_priority, new_attempts_max,
    new_body_digest, new_correlation_id, new_key, new_spec,
    new_region, now_ms, now_ms + delay_ms, delay_ms > 0, now_ms + expires_in_ms, now_ms + deadline_in_ms
FROM given JOIN open_queue ON open_queue.name = new_queue CROSS JOIN clock
WHERE open_queue.room IS NULL OR place <= open_queue.room
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


def submit(transaction: Transaction, jobs: Sequence[NewJob], made: set[str]) -> list[Submitted | Exception]:
    """See `JobLedger.submit`. All have their ids; `made` are those that this call gave them."""
    answers: dict[int, Submitted | Exception] = {}
    for _ in range(_ROUNDS_MAX):
        waiting = [place for place in range(len(jobs)) if place not in answers]
        if not waiting:
            return [answers[place] for place in range(len(jobs))]
        _round(transaction, jobs, waiting, made, answers)
    raise JobLedgerUnavailableError(
        "jobs of these ids or keys come and go as fast as they are submitted, nothing was queued: try again"
    )


def _round(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    waiting: Sequence[int],
    made: set[str],
    answers: dict[int, Submitted | Exception],
) -> None:
    """Answer as many as one pass can: of those that stand for the same job the first goes ahead."""
    first: dict[tuple[str, str, str], int] = {}
    for place in waiting:
        first.setdefault(_identity(jobs[place]), place)
    ahead = {place: jobs[place] for place in first.values()}
    inserted = _insert(transaction, list(ahead.values()))
    missing = {place: new for place, new in ahead.items() if new.id not in inserted}
    answers |= {
        place: Submitted(inserted[new.id], True) for place, new in ahead.items() if new.id in inserted
    }
    found = _find(transaction, list(missing.values())) if missing else {}
    refused: dict[int, NewJob] = {}
    for place, new in missing.items():
        job = found.get(_identity(new)) or found.get(("", "", new.id))
        if job is None:
            refused[place] = new
        else:
            answers[place] = _again(new, job, made)
    for place in waiting:
        leader = first[_identity(jobs[place])]
        told = answers.get(leader)
        if place != leader and isinstance(told, Submitted):
            answers[place] = _again(jobs[place], told.job, set())
    # Whoever stands before others in a queue that has become full may have been in the ledger all the time: only where
    # nothing came of a whole pass do the queues say why.
    if (
        refused
        and not make_queues(transaction, {new.queue for new in refused.values()})
        and len(refused) == len(ahead)
    ):
        _refuse(transaction, jobs, waiting, answers)


def _refuse(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    waiting: Sequence[int],
    answers: dict[int, Submitted | Exception],
) -> None:
    queues = {settings.name: settings for settings in read_queues(transaction)}
    for place in waiting:
        error = _refusal(queues.get(jobs[place].queue))
        if place not in answers and error is not None:
            answers[place] = error


def _refusal(queue: QueueSettings | None) -> Exception | None:
    if queue is None:
        return None
    if queue.draining:
        return QueueClosedError(f"queue {queue.name} is being drained: submit to another, or later")
    if queue.pending_max is None:
        return None
    return QueueFullError(
        f"queue {queue.name} has {queue.pending_max} jobs waiting, as many as may: submit again later",
        retry_after_s=RETRY_AFTER_S,
    )


def _identity(new: NewJob) -> tuple[str, str, str]:
    """What a job is known by: its tenant and key, or else its id."""
    return (new.tenant, new.idempotency_key, "") if new.idempotency_key else ("", "", new.id)


def _again(new: NewJob, job: Job, made: set[str]) -> Submitted | Exception:
    """The answer to a job that is in the ledger already; an id in `made` is there by this very call, done again."""
    if job.id == new.id and job.id in made:
        return Submitted(job, created=True)
    if (job.spec.body_digest, job.spec.tenant) != (new.body_digest, new.tenant):
        return IdempotencyError(new.idempotency_key or new.id, job.id)
    return Submitted(job, created=False)


def _insert(transaction: Transaction, jobs: Sequence[NewJob]) -> dict[str, Job]:
    inserted: dict[str, Job] = {}
    for begin in range(0, len(jobs), _STATEMENT_JOBS):
        part = jobs[begin : begin + _STATEMENT_JOBS]
        places: dict[str, int] = {}
        rows = transaction.run(_INSERT, [_row(new, places) for new in part])
        inserted |= {job.id: job for job in map(job_of, rows)}
    tags = [
        {"tagged_id": job.id, "tag_name": clean(name), "tag_value": clean(value)}
        for job in inserted.values()
        for name, value in job.spec.tags.items()
    ]
    if tags:
        transaction.run(_TAG, tags)
    if inserted:
        transaction.news.changed = True
        transaction.news.queues.update(
            job.spec.queue for job in inserted.values() if job.due_at_ms <= job.created_at_ms
        )
    return inserted


def _find(transaction: Transaction, jobs: Sequence[NewJob]) -> dict[tuple[str, str, str], Job]:
    """Of these jobs, those that the ledger has already, by what they are known by."""
    keys = [{"key_tenant": new.tenant, "key": new.idempotency_key} for new in jobs if new.idempotency_key]
    found = [job_of(row) for row in transaction.run(_BY_KEY, keys)] if keys else []
    by_id = read_jobs(transaction, [new.id for new in jobs])
    return {("", "", job_id): job for job_id, job in by_id.items()} | {
        _identity(job.spec): job for job in found
    }


def _row(new: NewJob, places: dict[str, int]) -> dict[str, Any]:
    places[new.queue] = places.get(new.queue, 0) + 1
    return {
        "new_id": new.id,
        "place": places[new.queue],
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
