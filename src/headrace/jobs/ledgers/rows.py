"""Jobs as database rows.

Fields without a column are JSON in a text column, so that old rows stay readable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import orjson

from headrace.core.errors import DataError
from headrace.jobs.cause import Cause
from headrace.jobs.job import (
    HistoryEntry,
    HistoryEvent,
    Job,
    JobFailure,
    JobProgress,
    JobState,
    NewJob,
    ResultRef,
)

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
"""The columns that `job_of` reads, in this order."""

_AT: Final = {name: index for index, name in enumerate(JOB_COLUMNS)}
_SPEC_AT: Final = tuple((name, _AT[name]) for name in SPEC_COLUMNS)
_IN_SPEC: Final = frozenset(f.name for f in fields(NewJob)) - {"id", "idempotency_key", *SPEC_COLUMNS}
_DEFAULTS: Final = asdict(NewJob(options={}, tags={}))
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


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


def dump_mapping(value: Mapping[str, Any] | None) -> str | None:
    """Return a mapping, possibly a proxy, as JSON."""
    return None if value is None else dump(dict(value))


def dump_result(result: ResultRef | None) -> str | None:
    """Return a result as JSON, without its published URI, which has a column."""
    if result is None:
        return None
    return dump({"uri": result.uri, "size_bytes": result.size_bytes, "content_type": result.content_type})


def dump_spec(new: NewJob) -> str:
    """Return the fields without columns as JSON, except defaults."""
    values: dict[str, Any] = {}
    for name in _IN_SPEC:
        value = getattr(new, name)
        if isinstance(value, Mapping):
            value = dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif name == "notify":
            value = tuple(dict(target) for target in new.notify)
        if value != _DEFAULTS[name]:
            values[name] = value
    return dump(values) or "{}"


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row of JOB_COLUMNS."""
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
        progress=None if progress is None else JobProgress(**_known(JobProgress, progress)),
        cursor=None if cursor is None else orjson.loads(cursor),
        result=None if result is None else _result_of(result, row[_AT["published_uri"]]),
        failure=None if failure is None else _failure_of(failure),
    )


def entry_of(row: Sequence[Any]) -> HistoryEntry:
    """Return the history entry of a row: at_ms, event, attempt, lease, worker, cause, message, by."""
    at_ms, name, attempt, lease, worker, cause, message, by = row
    return HistoryEntry(at_ms, HistoryEvent(name), attempt, lease, worker, cause, message, by)


def _spec_of(row: Sequence[Any]) -> NewJob:
    values: dict[str, Any] = {name: row[index] for name, index in _SPEC_AT}
    for name, value in orjson.loads(row[_AT["spec"]]).items():
        if name == "notify":
            values[name] = tuple(value)
        elif name in _IN_SPEC:
            values[name] = value
    return NewJob(id=row[0], idempotency_key=row[_AT["idempotency_key"]] or "", **values)


def _known(kind: type, text: str) -> dict[str, Any]:
    """Return the known fields of a JSON value; fields of newer programs are dropped."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in orjson.loads(text).items() if name in names}


def _result_of(text: str, published_uri: str) -> ResultRef:
    values: dict[str, Any] = _known(ResultRef, text) | {"published_uri": published_uri}
    return ResultRef(**values)


def _failure_of(text: str) -> JobFailure:
    values = _known(JobFailure, text)
    return JobFailure(**values | {"cause": Cause(values["cause"])})


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
