"""Jobs as rows and back. What has no column of its own is JSON in a text column, so that old rows stay readable."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import orjson

from headrace.core.errors import DataError
from headrace.jobs.cause import Cause
from headrace.jobs.job import HistoryEntry, HistoryEvent, Job, JobFailure, NewJob, Progress, ResultRef
from headrace.jobs.ledgers.dialect import NOW_MS
from headrace.jobs.state import JobState

SPEC_COLUMNS: Final = (
    "queue",
    "model",
    "kind",
    "tenant",
    "priority",
    "attempts_max",
    "body_digest",
    "correlation_id",
    "region",
)
"""Fields of NewJob with a column of the same name. `id` and `idempotency_key` have one too."""

JOB_COLUMNS: Final = (
    "id",
    "state",
    *SPEC_COLUMNS,
    "idempotency_key",
    "spec",
    "attempt",
    "lease",
    "crashes",
    "worker",
    "worker_region",
    "created_at_ms",
    "due_at_ms",
    "started_at_ms",
    "ended_at_ms",
    "expires_at_ms",
    "deadline_at_ms",
    "lease_until_ms",
    "cancel_requested",
    "progress",
    "cursor",
    "result",
    "published_uri",
    "failure",
)
JOB: Final = ", ".join(f"job.{name}" for name in JOB_COLUMNS)
"""What a SELECT from ``headrace_job AS job`` lists, for `job_of`."""
RETURNED: Final = ", ".join(f"headrace_job.{name}" for name in JOB_COLUMNS)
"""The same for what changes ``headrace_job``."""
NOT_OVER: Final = (
    f"(job.deadline_at_ms IS NULL OR job.deadline_at_ms > {NOW_MS}) "
    f"AND (job.expires_at_ms IS NULL OR job.started_at_ms IS NOT NULL OR job.expires_at_ms > {NOW_MS})"
)
"""That a pending job's deadline has not passed, nor its time to live before any worker began it."""

_AT: Final = {name: place for place, name in enumerate(JOB_COLUMNS)}
_SPEC_AT: Final = tuple((name, _AT[name]) for name in SPEC_COLUMNS)
_IN_SPEC: Final = frozenset(f.name for f in fields(NewJob)) - {"id", "idempotency_key", *SPEC_COLUMNS}
_DEFAULTS: Final = asdict(NewJob(options={}, tags={}))
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """The text as every database takes it: no NUL, no lone surrogates."""
    if text.isprintable():
        return text
    return text.replace("\0", _REPLACEMENT).encode("utf-8", "replace").decode()


def dump(value: Any) -> str | None:
    """JSON, None for None. DataError for what JSON cannot say."""
    if value is None:
        return None
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        try:
            return orjson.dumps(_cleaned(value), option=orjson.OPT_SERIALIZE_NUMPY).decode()
        except TypeError as error:
            raise DataError(
                f"a job's options, cursors and whom to notify are JSON, and this is not: {error}"
            ) from error


def dump_mapping(value: Mapping[str, Any] | None) -> str | None:
    """JSON of an object that may be a proxy."""
    return None if value is None else dump(dict(value))


def dump_progress(progress: Progress | None) -> str | None:
    """JSON of a progress."""
    return dump(progress)


def dump_failure(failure: JobFailure | None) -> str | None:
    """JSON of a failure."""
    return dump(failure)


def dump_result(result: ResultRef | None) -> str | None:
    """JSON of a result, without where it was published, which has its column."""
    if result is None:
        return None
    return dump({"uri": result.uri, "size_bytes": result.size_bytes, "content_type": result.content_type})


def dump_spec(new: NewJob) -> str:
    """JSON of what has no column, as far as it is not the default."""
    told: dict[str, Any] = {}
    for name in _IN_SPEC:
        value = getattr(new, name)
        if isinstance(value, Mapping):
            value = dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif name == "notify":
            value = tuple(dict(whom) for whom in new.notify)
        if value != _DEFAULTS[name]:
            told[name] = value
    return dump(told) or "{}"


def job_of(row: Sequence[Any]) -> Job:
    """A job, of a row of JOB_COLUMNS."""
    result = row[_AT["result"]]
    progress = row[_AT["progress"]]
    cursor = row[_AT["cursor"]]
    failure = row[_AT["failure"]]
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
        progress=None if progress is None else Progress(**_known(Progress, progress)),
        cursor=None if cursor is None else orjson.loads(cursor),
        result=None if result is None else _result_of(result, row[_AT["published_uri"]]),
        failure=None if failure is None else _failure_of(failure),
    )


def entry_of(row: Sequence[Any]) -> HistoryEntry:
    """A line of a history, of at_ms, event, attempt, lease, worker, cause, message, by."""
    at_ms, name, attempt, lease, worker, cause, message, by = row
    return HistoryEntry(at_ms, HistoryEvent(name), attempt, lease, worker, cause, message, by)


def _spec_of(row: Sequence[Any]) -> NewJob:
    told: dict[str, Any] = {name: row[place] for name, place in _SPEC_AT}
    for name, value in orjson.loads(row[_AT["spec"]]).items():
        if name == "notify":
            told[name] = tuple(value)
        elif name in _IN_SPEC:
            told[name] = value
    return NewJob(id=row[0], idempotency_key=row[_AT["idempotency_key"]] or "", **told)


def _known(kind: type, text: str) -> dict[str, Any]:
    """The fields of a value; what a newer program wrote beside them is passed over."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in orjson.loads(text).items() if name in names}


def _result_of(text: str, published_uri: str) -> ResultRef:
    told: dict[str, Any] = _known(ResultRef, text) | {"published_uri": published_uri}
    return ResultRef(**told)


def _failure_of(text: str) -> JobFailure:
    told = _known(JobFailure, text)
    return JobFailure(**told | {"cause": Cause(told["cause"])})


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        pairs: Any = value.items()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return {clean(str(name)): _cleaned(held) for name, held in pairs}
    if isinstance(value, list | tuple):
        return [_cleaned(held) for held in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Progress | JobFailure):
        return _cleaned(asdict(value))
    return value
