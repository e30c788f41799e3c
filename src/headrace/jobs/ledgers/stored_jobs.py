"""Jobs in the database: reads, lists, changes of their states, and the operations on single jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import DataError, JobNotFoundError, JobStateError
from headrace.jobs.job import HistoryEntry, HistoryEvent, Job
from headrace.jobs.ledger import JobFilter, JobLedger, Page
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Statement,
    Transaction,
    read_statement,
    reading,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.rows import (
    clean,
    dump,
    dump_mapping,
    dump_result,
    entry_of,
    job_of,
)
from headrace.jobs.ledgers.transitions import Change, Note, after_ms, change, requeue_change
from headrace.jobs.state import JobEvent, JobState, source_states

HISTORY_MAX: Final = 1000
"""The number of last entries that are returned of a longer history."""

_BY_ID: Final = read_statement("jobs_by_id")
_BY_ID_LOCKED: Final = read_statement("jobs_by_id_locked")
_BY_KEY: Final = read_statement("jobs_by_key")
_OF_WORKER: Final = read_statement("jobs_of_worker")
_CANCEL_REQUESTS: Final = read_statement("cancel_requests")
_UNPUBLISHED: Final = read_statement("unpublished_jobs")
_ENDED: Final = read_statement("ended_jobs")
_FIND: Final = read_statement("find_jobs")
_HISTORY: Final = read_statement("history")
_INSERT_HISTORY: Final = read_statement("insert_history")
_CHANGE: Final = read_statement("change_jobs")
_REQUEST_CANCEL: Final = read_statement("request_cancel")
_DELETES: Final = tuple(map(read_statement, ("delete_jobs", "delete_history", "delete_tags")))

_FILTERS: Final[Mapping[str, str]] = {
    "queue": "job.queue = :queue",
    "model": "job.model = :model",
    "kind": "job.kind = :kind",
    # With the condition of the partial index.
    "correlation_id": "job.correlation_id = :correlation_id AND job.correlation_id <> ''",
}
"""The conditions of a filter's text fields; empty ones match every job."""


def read_jobs(transaction: Transaction, statement: Statement, **values: Any) -> list[Job]:
    """Return the jobs of a statement's rows."""
    return [job_of(row) for row in transaction.run(statement, **values)]


def read_by_id(transaction: Transaction, job_ids: Sequence[str], *, lock: bool = False) -> dict[str, Job]:
    """Return the existing jobs among these ids, by id. With `lock`, no other transaction changes them."""
    if not job_ids:
        return {}
    records = [{"wanted_id": job_id} for job_id in dict.fromkeys(job_ids)]
    jobs = read_jobs(transaction, _BY_ID_LOCKED if lock else _BY_ID, records=records)
    return {job.id: job for job in jobs}


def read_by_keys(transaction: Transaction, keys: Sequence[tuple[str, str]]) -> list[Job]:
    """Return the existing jobs among these pairs of a tenant and an idempotency key."""
    records = [{"key_tenant": tenant, "key": key} for tenant, key in keys]
    return read_jobs(transaction, _BY_KEY, records=records) if records else []


def write_changes(transaction: Transaction, changes: Sequence[Change]) -> dict[str, Job]:
    """Write changes of locked jobs, with notes and notifications. Return the changed jobs by id."""
    if not changes:
        return {}
    jobs = {job.id: job for job in read_jobs(transaction, _CHANGE, records=list(map(_record, changes)))}
    write_notes(transaction, [(c.before, c.note) for c in changes if c.note and c.before.id in jobs])
    ended = [job for job in jobs.values() if job.state.ended]
    if ended and transaction.outbox:
        transaction.outbox.jobs_ended(transaction, ended)
    transaction.notice.changed = True
    for each in changes:
        if each.then.state is JobState.PENDING and each.due_in_ms == 0:
            transaction.notice.queues.add(each.before.spec.queue)
    return jobs


def write_notes(transaction: Transaction, notes: Sequence[tuple[Job, Note]]) -> None:
    """Append notes to histories; each note comes with the job before its change."""
    if notes:
        transaction.run(_INSERT_HISTORY, [_history_record(job, note) for job, note in notes])


class JobOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger that read, list, cancel, requeue and delete jobs."""

    @override
    @reading
    def get(self, transaction: Transaction, job_id: str, *, tenant: str | None = None) -> Job:
        return _read_visible(transaction, job_id, tenant)

    @override
    @reading
    def get_many(self, transaction: Transaction, job_ids: Sequence[str]) -> dict[str, Job]:
        return read_by_id(transaction, job_ids)

    @override
    @reading
    def get_by_key(self, transaction: Transaction, tenant: str, idempotency_key: str) -> Job | None:
        jobs = read_by_keys(transaction, [(tenant, idempotency_key)] if idempotency_key else [])
        return jobs[0] if jobs else None

    @override
    @reading
    def list_running(self, transaction: Transaction, worker: str) -> list[Job]:
        return read_jobs(transaction, _OF_WORKER, worker=clean(worker))

    @override
    @reading
    def cancel_requests(self, transaction: Transaction, worker: str) -> frozenset[str]:
        return frozenset(row[0] for row in transaction.run(_CANCEL_REQUESTS, worker=clean(worker)))

    @override
    @reading
    def list_unpublished(self, transaction: Transaction, *, ended_before_ms: int, limit: int) -> list[Job]:
        return read_jobs(transaction, _UNPUBLISHED, before_ms=ended_before_ms, row_limit=limit)

    @override
    @reading
    def ended_before(self, transaction: Transaction, at_ms: int, *, limit: int) -> list[Job]:
        return read_jobs(transaction, _ENDED, before_ms=at_ms, row_limit=max(limit, 0))

    @override
    @reading
    def history(self, transaction: Transaction, job_id: str) -> list[HistoryEntry]:
        """Return the last 1000 entries of the history, oldest first; none for an unknown job."""
        rows = transaction.run(_HISTORY, job_id=job_id, row_limit=HISTORY_MAX)
        return [entry_of(row) for row in rows][::-1]

    @override
    @reading
    def find(
        self, transaction: Transaction, job_filter: JobFilter, *, after: str = "", limit: int = 100
    ) -> Page:
        """Return a page of jobs. Raise DataError for an invalid `after`."""
        limit = max(limit, 0)
        conditions = _conditions(job_filter) | _conditions_after(after)
        statement = _FIND.filled("conditions", " AND ".join(conditions) or "TRUE")
        values = {name: value for each in conditions.values() for name, value in each.items()}
        jobs = read_jobs(transaction, statement, row_limit=limit + 1, **values)
        last = jobs[limit - 1] if len(jobs) > limit > 0 else None
        return Page(tuple(jobs[:limit]), f"{last.created_at_ms}/{last.id}" if last else "")

    @override
    @writing
    def cancel(
        self, transaction: Transaction, job_id: str, *, tenant: str | None = None, by: str = ""
    ) -> Job:
        job = _read_visible(transaction, job_id, tenant, lock=True)
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

    @override
    @writing_once
    def requeue(
        self, transaction: Transaction, job_id: str, *, tenant: str | None = None, by: str = ""
    ) -> Job:
        job = _read_ended(transaction, job_id, tenant, "only an ended job can be requeued")
        return write_changes(transaction, [requeue_change(job, by)])[job_id]

    @override
    @writing_once
    def delete(self, transaction: Transaction, job_id: str, *, tenant: str | None = None) -> Job:
        job = _read_ended(transaction, job_id, tenant, "only an ended job can be deleted; cancel it first")
        _delete(transaction, [job_id])
        return job

    @override
    @writing
    def forget(self, transaction: Transaction, job_ids: Sequence[str]) -> int:
        jobs = read_by_id(transaction, job_ids, lock=True)
        ended = [job.id for job in jobs.values() if job.state.ended]
        _delete(transaction, ended)
        return len(ended)


def _read_visible(transaction: Transaction, job_id: str, tenant: str | None, *, lock: bool = False) -> Job:
    """Return a job. Raise JobNotFoundError, also for another tenant's."""
    job = read_by_id(transaction, [job_id], lock=lock).get(job_id)
    if job is None or tenant not in (None, job.spec.tenant):
        raise JobNotFoundError(job_id)
    return job


def _read_ended(transaction: Transaction, job_id: str, tenant: str | None, why: str) -> Job:
    job = _read_visible(transaction, job_id, tenant, lock=True)
    if not job.state.ended:
        raise JobStateError(job_id, job.state.value, why)
    return job


def _delete(transaction: Transaction, job_ids: Sequence[str]) -> None:
    if not job_ids:
        return
    for statement in _DELETES:
        transaction.run(statement, [{"deleted_id": job_id} for job_id in job_ids])
    if transaction.outbox:
        transaction.outbox.jobs_deleted(transaction, job_ids)


def _conditions(job_filter: JobFilter) -> dict[str, dict[str, Any]]:
    """Return the conditions of a filter, each with the values of its parameters."""
    found: dict[str, dict[str, Any]] = {}
    for name, condition in _FILTERS.items():
        if value := getattr(job_filter, name):
            found[condition] = {name: value}
    if job_filter.tenant is not None:
        found["job.tenant = :tenant"] = {"tenant": job_filter.tenant}
    if job_filter.states:
        # Literals, so that the partial index of a state can be used.
        states = " OR ".join(f"job.state = '{state.value}'" for state in sorted(job_filter.states))
        found[f"({states})"] = {}
    if job_filter.created_from_ms is not None:
        found["job.created_at_ms >= :from_ms"] = {"from_ms": job_filter.created_from_ms}
    if job_filter.created_before_ms is not None:
        found["job.created_at_ms < :before_ms"] = {"before_ms": job_filter.created_before_ms}
    for number, (name, value) in enumerate(job_filter.tags.items()):
        named = f"name = :tag{number} AND value = :value{number}"
        condition = f"job.id IN (SELECT job_id FROM headrace_tag WHERE {named})"  # noqa: S608
        found[condition] = {f"tag{number}": name, f"value{number}": value}
    return found


def _conditions_after(after: str) -> dict[str, dict[str, Any]]:
    """Return the condition of the pages after a position; none for the first page."""
    if not after:
        return {}
    created, _, job_id = after.partition("/")
    if not created.isdecimal() or not job_id:
        raise DataError(
            f"after: invalid page position {after!r}: use next_after of the previous page, or begin again"
        )
    values = {"after_ms": int(created), "after_id": job_id}
    return {"(job.created_at_ms, job.id) < (:after_ms, :after_id)": values}


def _record(each: Change) -> dict[str, Any]:
    before, then = each.before, each.then
    return {
        "new_id": then.id,
        "old_lease": before.lease,
        "old_state": before.state.value,
        "new_state": then.state.value,
        "has_ended": then.state.ended,
        "due_in_ms": each.due_in_ms,
        "restart_times": each.restart_times,
        "expires_in_ms": after_ms(then.spec.time_to_live_s),
        "deadline_in_ms": after_ms(then.spec.deadline_s),
        "new_attempt": then.attempt,
        "new_crashes": then.crashes,
        "new_started_at_ms": then.started_at_ms,
        "new_cancel_requested": then.cancel_requested,
        "new_progress": dump(then.progress),
        "new_cursor": dump_mapping(then.cursor),
        "new_result": dump_result(then.result),
        "new_published_uri": clean(then.result.published_uri) if then.result else "",
        "new_unpublished": then.needs_publication,
        "new_failure": dump(then.failure),
    }


def _history_record(job: Job, note: Note) -> dict[str, Any]:
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
