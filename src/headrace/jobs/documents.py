"""Jobs and queues as JSON documents, as the HTTP API writes and its clients read them. Pure.

Both directions are in this module, so that they agree. Fields that an older API does not send have
their defaults. Times are integers, milliseconds since the epoch. Unknown values are null or absent.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

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
from headrace.jobs.ledger import QueueCounts, QueueSettings

_SPEC: Final = (
    "model", "kind", "queue", "input_uri", "content_type", "accept", "output_uri", "key", "priority",
    "attempts_max", "time_limit_s", "time_to_live_s", "deadline_s", "correlation_id", "tenant",
)  # fmt: skip
_TIMES: Final = (
    "created_at_ms", "due_at_ms", "started_at_ms", "ended_at_ms", "expires_at_ms", "deadline_at_ms",
)  # fmt: skip

Document = dict[str, Any]


def job_document(job: Job) -> Document:
    """Return a job as JSON. Its notification targets are left out because they contain secrets."""
    spec = job.spec
    return {
        "id": job.id,
        "state": job.state.value,
        **{name: getattr(spec, name) for name in _SPEC},
        "region": spec.region,
        "options": dict(spec.options),
        "tags": dict(spec.tags),
        "attempt": job.attempt,
        "lease": job.lease,
        "crashes": job.crashes,
        "worker": job.worker,
        "worker_region": job.worker_region,
        **{name: getattr(job, name) for name in _TIMES},
        "cancel_requested": job.cancel_requested,
        "progress": None if job.progress is None else progress_document(job.progress),
        "result": None if job.result is None else _result_document(job.result),
        "failure": None if job.failure is None else _failure_document(job.failure),
        "warnings": list(job.warnings),
    }


def read_job(document: Mapping[str, Any]) -> Job:
    """Return the job of a document. Raise KeyError, TypeError or ValueError for an invalid one."""
    spec = NewJob(
        **{name: document[name] for name in _SPEC},
        id=document["id"],
        region=document.get("region", ""),
        options=document["options"],
        tags=document["tags"],
    )
    return Job(
        id=document["id"],
        state=JobState(document["state"]),
        spec=spec,
        attempt=document["attempt"],
        lease=document["lease"],
        crashes=document["crashes"],
        worker=document["worker"],
        worker_region=document.get("worker_region", ""),
        **{name: document[name] for name in _TIMES},
        cancel_requested=document["cancel_requested"],
        progress=_maybe(document["progress"], read_progress),
        result=_maybe(document["result"], _read_result),
        failure=_maybe(document["failure"], _read_failure),
        warnings=tuple(document.get("warnings", ())),
    )


def progress_document(progress: JobProgress) -> Document:
    """Return a progress as JSON."""
    return {
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "note": progress.note,
        "bytes_across_regions": progress.bytes_across_regions,
    }


def read_progress(document: Mapping[str, Any]) -> JobProgress:
    """Return the progress of a document."""
    return JobProgress(
        document["done"],
        document["total"],
        document["unit"],
        document["note"],
        document.get("bytes_across_regions", 0),
    )


def history_document(entry: HistoryEntry) -> Document:
    """Return a history entry as JSON."""
    return {
        "at_ms": entry.at_ms,
        "event": entry.event.value,
        "attempt": entry.attempt,
        "lease": entry.lease,
        "worker": entry.worker,
        "cause": entry.cause,
        "message": entry.message,
        "by": entry.by,
    }


def read_history(document: Mapping[str, Any]) -> HistoryEntry:
    """Return the history entry of a document."""
    values: dict[str, Any] = {**document, "event": HistoryEvent(document["event"])}
    return HistoryEntry(**values)


def queue_document(settings: QueueSettings, counts: QueueCounts) -> Document:
    """Return a queue's settings and counts as JSON."""
    return {
        "queue": settings.name,
        "paused": settings.paused,
        "draining": settings.draining,
        "pending_max": settings.pending_max,
        "queued": counts.due,
        "queued_by_region": dict(counts.due_by_region),
        "later": counts.later,
        "running": counts.running,
        "oldest_seconds": oldest_seconds(counts),
    }


def oldest_seconds(counts: QueueCounts) -> float:
    """Return how long the oldest due job has waited, in seconds; 0 without due jobs."""
    return round((counts.oldest_due_ms or 0) / 1000, 3)


def change_tag(job: Job) -> str:
    """Return a short tag of the followed parts of a job: equal tags mean that nothing changed."""
    parts = (job.lease, job.attempt, job.cancel_requested, job.due_at_ms, job.ended_at_ms, _failed(job))
    progress = None if job.progress is None else progress_document(job.progress)
    return f"{job.state.value}.{_sum(parts)}.{_sum(progress)}"


def same_state(mark: str, other: str) -> bool:
    """Return True if two tags differ by progress alone."""
    return mark.rpartition(".")[0] == other.rpartition(".")[0]


def _failed(job: Job) -> str:
    return "" if job.failure is None else job.failure.message


def _sum(value: Any) -> str:
    return f"{zlib.crc32(orjson.dumps(value)):08x}"


def _result_document(result: ResultRef) -> Document:
    return {
        "uri": result.uri,
        "size_bytes": result.size_bytes,
        "content_type": result.content_type,
        "published_uri": result.published_uri,
    }


def _read_result(document: Mapping[str, Any]) -> ResultRef:
    return ResultRef(**document)


def _failure_document(failure: JobFailure) -> Document:
    return {
        "cause": failure.cause.value,
        "message": failure.message,
        "error": failure.error,
        "uri": failure.uri,
    }


def _read_failure(document: Mapping[str, Any]) -> JobFailure:
    return JobFailure(Cause(document["cause"]), document["message"], document["error"], document["uri"])


def _maybe(document: Any, read: Any) -> Any:
    return None if document is None else read(cast("Mapping[str, Any]", document))
