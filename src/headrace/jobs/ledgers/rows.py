"""Jobs as database rows: reads, and writes of changes.

Fields without a column are JSON in a text column, so that old rows stay readable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from operator import itemgetter
from typing import Any, Final

import orjson

from headrace.core.errors import DataError
from headrace.jobs.counters import RELEASED, CountedEvent, JobCounters
from headrace.jobs.history import HistoryEntry, HistoryEvent, end_of
from headrace.jobs.job import Job, JobFailure, JobProgress, NewJob, ResultRef
from headrace.jobs.lanes import lane_text
from headrace.jobs.ledger import OUTPUT_NAMES_KEPT_DAYS, PUBLISH_FIRST_MS
from headrace.jobs.ledgers.database import (
    JOB_COLUMNS,
    SPEC_COLUMNS,
    Row,
    Statement,
    Transaction,
    read_statement,
)
from headrace.jobs.state import TRANSITIONS, Cause, JobEvent, JobState

_BY_ID: Final = read_statement("jobs_by_id")
_BY_ID_LOCKED: Final = read_statement("jobs_by_id_locked", keeps_plan=True)
_BY_KEY: Final = read_statement("jobs_by_key")
_CHANGE: Final = read_statement("change_jobs", keeps_plan=True)
_INSERT_HISTORY: Final = read_statement("insert_history")
_DELETES: Final = tuple(map(read_statement, ("delete_jobs", "delete_history", "delete_tags")))

_FREE_OUTPUTS: Final = read_statement("free_outputs")
_DELETE_OUTPUTS: Final = read_statement("delete_outputs")
_OUTPUTS_KEPT_MS: Final = OUTPUT_NAMES_KEPT_DAYS * 86_400_000

_AT: Final = {name: index for index, name in enumerate(JOB_COLUMNS)}
_spec_values: Final = itemgetter(*(_AT[name] for name in SPEC_COLUMNS))
_json_values: Final = itemgetter(
    *(_AT[name] for name in ("progress", "cursor", "result", "published_uri", "failure"))
)
_IN_SPEC: Final = frozenset(f.name for f in fields(NewJob)) - {"id", "idempotency_key", *SPEC_COLUMNS}
_DEFAULTS: Final = asdict(NewJob(options={}, tags={}))
_KNOWN: Final = {
    kind: frozenset(f.name for f in fields(kind)) for kind in (JobProgress, ResultRef, JobFailure)
}
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the job's history."""

    event: HistoryEvent
    cause: str = ""
    message: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One transition of a job: `before` is the row as read, `then` the job without new times.

    `due_in_ms` is the delay until it is due again, None if unchanged. `restart_times`: its time to live and
    deadline start now.
    """

    before: Job
    event: JobEvent
    then: Job
    due_in_ms: int | None = None
    restart_times: bool = False
    note: Note | None = None
    publish_in_ms: int = PUBLISH_FIRST_MS
    """The time until maintenance publishes the job's end, if that is to be published."""


def change(
    job: Job,
    event: JobEvent,
    *,
    due_in_ms: int | None = None,
    restart_times: bool = False,
    note: Note | None = None,
    publish_in_ms: int = PUBLISH_FIRST_MS,
    **values: Any,
) -> Change:
    """Return the change for `event`, with other new values.

    Raise AssertionError for an impossible event.
    """
    state = TRANSITIONS.get((job.state, event))
    if state is None:
        raise AssertionError(f"job {job.id}: {event.value} is impossible in state {job.state.value}")
    then = replace(job, state=state, **values)
    return Change(job, event, then, due_in_ms, restart_times, note, publish_in_ms)


def read_jobs(transaction: Transaction, statement: Statement, **values: Any) -> list[Job]:
    """Return the jobs of a statement's rows."""
    return list(map(job_of, transaction.run(statement, **values)))


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


def write_rows(transaction: Transaction, changes: Sequence[Change]) -> dict[str, Job]:
    """Write changes of locked jobs, with notes and notifications. Return the changed jobs by id.

    Operations call `dependencies.write_changes`, which also changes the jobs that come after these.
    """
    if not changes:
        return {}
    records = list(map(_record, changes))
    rows = {row[0]: row for row in transaction.run(_CHANGE, records)}
    jobs: dict[str, Job] = {}
    for each, record in zip(changes, records, strict=True):
        if (row := rows.get(each.before.id)) is not None:
            jobs[row[0]] = job = _written(each.then, record, row)
            _count(transaction.counters, each, job, now_ms=row[-1])
    _write_history(
        transaction,
        [record for c in changes if c.before.id in jobs for record in _records(c, jobs[c.before.id])],
    )
    ended = [job for job in jobs.values() if job.state.ended and job.spec.notify]
    if ended:
        transaction.outbox.jobs_ended(transaction, ended)
    transaction.notice.changed = True
    for each in changes:
        if each.then.state is JobState.PENDING and each.due_in_ms == 0:
            transaction.notice.queues.add(each.before.spec.queue)
    return jobs


def _count(counters: JobCounters, each: Change, after: Job, *, now_ms: int) -> None:
    """Count the end of an attempt, the end of a job, and the return of an ended job."""
    before, spec = each.before, after.spec
    cause = after.failure.cause.value if after.failure else ""
    if before.state is JobState.RUNNING:
        run_ms = now_ms - (before.started_at_ms or now_ms)
        if after.state is JobState.PENDING:
            cause = RELEASED if each.event is JobEvent.RELEASE else cause
            counters.add(CountedEvent.RETRIED, spec, cause=cause, duration_ms=run_ms)
        else:
            counters.add(CountedEvent.FINISHED, spec, duration_ms=run_ms)
    if after.state.ended:
        has_cause = after.state in (JobState.FAILED, JobState.PUBLISH_FAILED)
        counters.add(CountedEvent(after.state.value), spec, cause=cause if has_cause else "")
    elif each.event in (JobEvent.REQUEUE, JobEvent.BLOCK):
        counters.add(CountedEvent.REQUEUED, spec)
    elif each.event is JobEvent.REPUBLISH:
        counters.add(CountedEvent.REPUBLISHED, spec)


def write_notes(transaction: Transaction, notes: Sequence[tuple[Job, Note]]) -> None:
    """Append notes to histories; each note comes with the job before its change."""
    _write_history(transaction, [_history_record(_entry(job, note), job.id) for job, note in notes])


def _write_history(transaction: Transaction, records: Sequence[dict[str, Any]]) -> None:
    if records:
        transaction.run(_INSERT_HISTORY, records)


def _records(each: Change, after: Job) -> list[dict[str, Any]]:
    """Return the history records of a change: its note, and before it the end that it takes back.

    The note of an end has the time of the end.
    """
    before = each.before
    entries = [end_of(before)] if before.state.ended else []
    entries += [replace(_entry(before, each.note), at_ms=after.ended_at_ms or 0)] if each.note else []
    return [_history_record(entry, before.id) for entry in entries]


def delete_jobs(transaction: Transaction, job_ids: Sequence[str]) -> None:
    """Delete jobs with their histories, tags and notifications. Their tenants keep the output names."""
    if not job_ids:
        return
    for statement in _DELETES:
        transaction.run(statement, [{"deleted_id": job_id} for job_id in job_ids])
    transaction.run(_FREE_OUTPUTS, [{"deleted_id": job_id} for job_id in job_ids])
    transaction.run(_DELETE_OUTPUTS, kept_ms=_OUTPUTS_KEPT_MS)
    transaction.outbox.jobs_deleted(transaction, job_ids)


def clean(text: str) -> str:
    """Return the text without NUL and lone surrogates, as every database accepts it."""
    if text.isprintable():
        return text
    return text.replace("\0", _REPLACEMENT).encode("utf-8", "replace").decode()


def dump(value: Any) -> str | None:
    """Return a value as JSON, None for None. Raise DataError for values that are not JSON."""
    if value is None:
        return None
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        try:
            return orjson.dumps(_cleaned(value), option=orjson.OPT_SERIALIZE_NUMPY).decode()
        except TypeError as error:
            raise DataError(f"options, notify and cursors of a job must be JSON: {error}") from error


def dump_result(result: ResultRef | None) -> str | None:
    """Return a result as JSON, without its published URI, which has a column."""
    if result is None:
        return None
    values = {"uri": result.uri, "size_bytes": result.size_bytes, "content_type": result.content_type}
    return dump({**values, "digest": result.digest} if result.digest else values)


def dump_spec(new: NewJob) -> str:
    """Return the fields without columns as JSON, except defaults."""
    values: dict[str, Any] = {}
    for name in _IN_SPEC:
        value = getattr(new, name)
        if isinstance(value, Mapping):
            value = dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif name == "notify":
            value = tuple(map(dict, new.notify))
        elif name == "after":
            value = tuple(map(clean, new.after))
        if value != _DEFAULTS[name]:
            values[name] = value
    return dump(values) or "{}"


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row of JOB_COLUMNS."""
    return Job(
        id=row[0],
        state=JobState(row[1]),
        spec=_spec_of(row),
        attempt=row[_AT["attempt"]],
        lease=row[_AT["lease"]],
        crashes=row[_AT["crashes"]],
        worker=row[_AT["worker"]],
        worker_region=row[_AT["worker_region"]],
        created_at_ms=row[_AT["created_at_ms"]],
        due_at_ms=row[_AT["due_at_ms"]],
        started_at_ms=row[_AT["started_at_ms"]],
        ended_at_ms=row[_AT["ended_at_ms"]],
        expires_at_ms=row[_AT["expires_at_ms"]],
        deadline_at_ms=row[_AT["deadline_at_ms"]],
        lease_until_ms=row[_AT["lease_until_ms"]],
        cancel_requested=bool(row[_AT["cancel_requested"]]),
        has_dependents=bool(row[_AT["has_dependents"]]),
        publish_tries=row[_AT["publish_tries"]],
        **_read_values(*_json_values(row)),
    )


def _read_values(
    progress: str | None, cursor: str | None, result: str | None, published_uri: str, failure: str | None
) -> dict[str, Any]:
    """Return the fields of a job whose columns have JSON."""
    return {
        "progress": None if progress is None else JobProgress(**_known(JobProgress, progress)),
        "cursor": None if cursor is None else orjson.loads(cursor),
        "result": None if result is None else _result_of(result, published_uri),
        "failure": None if failure is None else _failure_of(failure),
    }


def entry_of(row: Sequence[Any]) -> HistoryEntry:
    """Return the history entry of a row, whose columns are the fields of an entry."""
    at_ms, name, *values = row
    return HistoryEntry(at_ms, HistoryEvent(name), *values)


def after_ms(seconds: float | None) -> int | None:
    """Return seconds in milliseconds; None for None."""
    return None if seconds is None else round(seconds * 1000)


def _record(each: Change) -> dict[str, Any]:
    before, then = each.before, each.then
    return {
        "new_id": then.id,
        "old_lease": before.lease,
        "old_state": before.state.value,
        "new_state": then.state.value,
        "has_ended": then.state.ended,
        "due_in_ms": each.due_in_ms,
        "restart_lane": clean(lane_text(then.spec)) if each.restart_times else None,
        "restart_times": each.restart_times,
        "expires_in_ms": after_ms(then.spec.time_to_live_s),
        "deadline_in_ms": after_ms(then.spec.deadline_s),
        "new_attempt": then.attempt,
        "new_crashes": then.crashes,
        "new_started_at_ms": then.started_at_ms,
        "new_cancel_requested": then.cancel_requested,
        "new_progress": dump(then.progress),
        "new_cursor": dump(then.cursor),
        "new_result": dump_result(then.result),
        "new_published_uri": clean(then.result.published_uri) if then.result else "",
        "publish_in_ms": each.publish_in_ms if then.needs_publication else None,
        "new_failure": dump(then.failure),
        "new_fingerprint": then.fingerprint,
    }


def _written(job: Job, record: Mapping[str, Any], row: Row) -> Job:
    """Return a changed job as it would be read, from its record and the row of its new times.

    Reading the unchanged columns again, of which the spec is JSON, would cost more than the rest.
    """
    _, due_at_ms, ended_at_ms, expires_at_ms, deadline_at_ms, _ = row
    return replace(
        job,
        due_at_ms=due_at_ms,
        ended_at_ms=ended_at_ms,
        expires_at_ms=expires_at_ms,
        deadline_at_ms=deadline_at_ms,
        lease_until_ms=None,
        publish_tries=0,
        **_read_values(
            record["new_progress"],
            record["new_cursor"],
            record["new_result"],
            record["new_published_uri"],
            record["new_failure"],
        ),
    )


def _entry(job: Job, note: Note) -> HistoryEntry:
    """Return the entry of a note, at time 0: that of its transaction."""
    worker = job.worker if job.state is JobState.RUNNING else ""
    return HistoryEntry(
        0, note.event, job.attempt, job.lease, worker, note.cause, note.message, note.by, job.started_at_ms
    )


def _history_record(entry: HistoryEntry, job_id: str) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "entry_at_ms": entry.at_ms or None,
        "event": entry.event.value,
        "attempt": entry.attempt,
        "lease": entry.lease,
        "worker": clean(entry.worker),
        "cause": entry.cause,
        "message": clean(entry.message),
        "done_by": clean(entry.by),
        "started_at_ms": entry.started_at_ms,
    }


def _spec_of(row: Sequence[Any]) -> NewJob:
    values: dict[str, Any] = dict(zip(SPEC_COLUMNS, _spec_values(row), strict=True))
    for name, value in orjson.loads(row[_AT["spec"]]).items():
        if name in ("notify", "after"):
            values[name] = tuple(value)
        elif name in _IN_SPEC:
            values[name] = value
    return NewJob(id=row[0], idempotency_key=row[_AT["idempotency_key"]] or "", **values)


def _known(kind: type, text: str) -> dict[str, Any]:
    """Return the known fields of a JSON value; fields of newer programs are dropped."""
    names = _KNOWN[kind]
    return {name: value for name, value in orjson.loads(text).items() if name in names}


def _result_of(text: str, published_uri: str) -> ResultRef:
    values: dict[str, Any] = _known(ResultRef, text) | {"published_uri": published_uri}
    return ResultRef(**values)


def _failure_of(text: str) -> JobFailure:
    values: dict[str, Any] = _known(JobFailure, text)
    values["cause"] = Cause(values["cause"])
    return JobFailure(**values)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        pairs: Any = value.items()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return {clean(str(name)): _cleaned(held) for name, held in pairs}
    if isinstance(value, list | tuple):
        return [_cleaned(held) for held in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, JobProgress | JobFailure):
        return _cleaned(asdict(value))
    return value
