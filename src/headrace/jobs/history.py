"""The history of a job: its claims, failures, retries, manual changes and ends; and its JSON.

A ledger stores the ends of attempts that did not end the job, and manual changes. A job that
succeeds at once adds no row: its claim and its end are in the job itself, and `timeline` derives
them. A requeue, which clears them in the job, stores the end first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from headrace.jobs.job import Document, Job
from headrace.jobs.state import ENDED


class HistoryEvent(StrEnum):
    """An event in a job's history."""

    UNBLOCKED = "unblocked"
    CLAIMED = "claimed"
    ATTEMPT_FAILED = "attempt_failed"
    LEASE_LOST = "lease_lost"
    RELEASED = "released"
    CANCEL_REQUESTED = "cancel_requested"
    REQUEUED = "requeued"
    REPUBLISHED = "republished"
    COMPLETED = "completed"
    PUBLISH_FAILED = "publish_failed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


_ENDS: Final = frozenset(HistoryEvent(state.value) for state in ENDED)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of a job's history."""

    at_ms: int
    event: HistoryEvent
    attempt: int
    lease: int
    worker: str = ""
    cause: str = ""
    message: str = ""
    by: str = ""
    """The key that made a manual change."""
    started_at_ms: int | None = None
    """The start of the attempt under `lease`, if it is known."""


_FIELDS: Final = frozenset(f.name for f in fields(HistoryEntry))


def end_of(job: Job) -> HistoryEntry:
    """Return the entry of an ended job's end."""
    assert job.ended_at_ms is not None, "the job has ended"
    cause, message = (job.failure.cause.value, job.failure.message) if job.failure else ("", "")
    event = HistoryEvent(job.state.value)
    return HistoryEntry(
        job.ended_at_ms,
        event,
        job.attempt,
        job.lease,
        job.worker,
        cause,
        message,
        started_at_ms=job.started_at_ms,
    )


def timeline(job: Job, stored: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """Return the whole history of a job, oldest first: the stored entries, all claims, and the end.

    Attempts before schema 6 of the ledger, whose start was not stored, have no claim unless they are
    the job's last.
    """
    last = end_of(job) if job.state.ended else _claim(job.attempt, job.lease, job.worker, job.started_at_ms)
    found: list[HistoryEntry] = []
    leases: set[int] = set()
    for each in (*stored, last):
        if each.started_at_ms is not None and each.lease not in leases:
            leases.add(each.lease)
            found.append(_claim(each.attempt, each.lease, each.worker, each.started_at_ms))
        if each.event is not HistoryEvent.CLAIMED:
            found.append(replace(each, worker="") if each.event in _ENDS else each)
    return found


def _claim(attempt: int, lease: int, worker: str, started_at_ms: int | None) -> HistoryEntry:
    return HistoryEntry(
        started_at_ms or 0, HistoryEvent.CLAIMED, attempt, lease, worker, started_at_ms=started_at_ms
    )


def history_document(entry: HistoryEntry) -> Document:
    """Return a history entry as JSON."""
    document = asdict(entry)
    del document["started_at_ms"]  # clients see claims
    return document


def read_history(document: Mapping[str, Any]) -> HistoryEntry:
    """Return the history entry of a document. Members of newer servers are dropped."""
    values: dict[str, Any] = {name: value for name, value in document.items() if name in _FIELDS}
    values["event"] = HistoryEvent(document["event"])
    return HistoryEntry(**values)
