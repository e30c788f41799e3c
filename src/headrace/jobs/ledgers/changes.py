"""Writes changes of jobs: every change of state except a claim goes through `write_changes`."""

from collections.abc import Sequence
from typing import Any, Final

from headrace.jobs.job import Job
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK
from headrace.jobs.ledgers.rows import (
    RETURNED,
    clean,
    dump_failure,
    dump_mapping,
    dump_progress,
    dump_result,
    job_of,
)
from headrace.jobs.ledgers.transitions import Change, Note, after_ms
from headrace.jobs.state import JobState

_CHANGED: Final = {
    "new_id": "text",
    "old_lease": "bigint",
    "old_state": "text",
    "new_state": "text",
    "has_ended": "boolean",
    "due_in_ms": "bigint",
    "restart_times": "boolean",
    "expires_in_ms": "bigint",
    "deadline_in_ms": "bigint",
    "new_attempt": "bigint",
    "new_crashes": "bigint",
    "new_started_at_ms": "bigint",
    "new_cancel_requested": "boolean",
    "new_progress": "text",
    "new_cursor": "text",
    "new_result": "text",
    "new_published_uri": "text",
    "new_unpublished": "boolean",
    "new_failure": "text",
}

# The rows are locked. Comparing lease and state all the same costs nothing and keeps the guarantee
# in one place.
_CHANGE = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_CHANGED)}
UPDATE headrace_job SET
    state = new_state, attempt = new_attempt, crashes = new_crashes, started_at_ms = new_started_at_ms,
    cancel_requested = new_cancel_requested, lease_until_ms = NULL,
    ended_at_ms = CASE WHEN has_ended THEN now_ms END,
    due_at_ms = CASE WHEN due_in_ms IS NULL THEN headrace_job.due_at_ms ELSE now_ms + due_in_ms END,
    asleep = coalesce(due_in_ms, 0) > 0,
    expires_at_ms =
        CASE WHEN restart_times THEN now_ms + expires_in_ms ELSE headrace_job.expires_at_ms END,
    deadline_at_ms =
        CASE WHEN restart_times THEN now_ms + deadline_in_ms ELSE headrace_job.deadline_at_ms END,
    progress = new_progress, cursor = new_cursor, result = new_result, published_uri = new_published_uri,
    unpublished = new_unpublished,
    failure = new_failure
FROM given, clock
WHERE headrace_job.id = new_id AND headrace_job.lease = old_lease AND headrace_job.state = old_state
RETURNING {RETURNED}
"""
    )
)

_NOTED: Final = {
    "job_id": "text",
    "event": "text",
    "attempt": "bigint",
    "lease": "bigint",
    "worker": "text",
    "cause": "text",
    "message": "text",
    "done_by": "text",
}
_NOTE = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_NOTED)}
INSERT INTO headrace_history (job_id, at_ms, event, attempt, lease, worker, cause, message, done_by)
SELECT job_id, now_ms, event, attempt, lease, worker, cause, message, done_by FROM given, clock
"""
    )
)


def write_changes(transaction: Transaction, changes: Sequence[Change]) -> dict[str, Job]:
    """Write changes of locked rows, with notes and notifications. Return the changed jobs by id."""
    if not changes:
        return {}
    rows = transaction.run(_CHANGE, [_changed(change) for change in changes])
    jobs = {job.id: job for job in map(job_of, rows)}
    write_notes(transaction, [(c.before, c.note) for c in changes if c.note and c.before.id in jobs])
    ended = [job for job in jobs.values() if job.state.ended]
    if ended and transaction.outbox:
        transaction.outbox.jobs_ended(transaction, ended)
    transaction.notice.changed = True
    for change in changes:
        if change.then.state is JobState.PENDING and change.due_in_ms == 0:
            transaction.notice.queues.add(change.before.spec.queue)
    return jobs


def write_notes(transaction: Transaction, notes: Sequence[tuple[Job, Note]]) -> None:
    """Append notes to histories; each note comes with the job before its change."""
    if notes:
        transaction.run(_NOTE, [_noted(job, note) for job, note in notes])


def _changed(change: Change) -> dict[str, Any]:
    before, then = change.before, change.then
    return {
        "new_id": then.id,
        "old_lease": before.lease,
        "old_state": before.state.value,
        "new_state": then.state.value,
        "has_ended": then.state.ended,
        "due_in_ms": change.due_in_ms,
        "restart_times": change.restart_times,
        "expires_in_ms": after_ms(then.spec.time_to_live_s),
        "deadline_in_ms": after_ms(then.spec.deadline_s),
        "new_attempt": then.attempt,
        "new_crashes": then.crashes,
        "new_started_at_ms": then.started_at_ms,
        "new_cancel_requested": then.cancel_requested,
        "new_progress": dump_progress(then.progress),
        "new_cursor": dump_mapping(then.cursor),
        "new_result": dump_result(then.result),
        "new_published_uri": clean(then.result.published_uri) if then.result else "",
        "new_unpublished": then.needs_publication,
        "new_failure": dump_failure(then.failure),
    }


def _noted(job: Job, note: Note) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "event": note.event.value,
        "attempt": job.attempt,
        "lease": job.lease,
        "worker": job.worker if job.state is JobState.RUNNING else "",
        "cause": note.cause,
        "message": clean(note.message),
        "done_by": clean(note.by),
    }
