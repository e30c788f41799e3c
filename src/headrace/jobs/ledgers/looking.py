"""Looking at jobs: histories, and lists by what is asked for."""

from typing import Any, Final

from headrace.core.errors import DataError
from headrace.jobs.job import HistoryEntry
from headrace.jobs.ledger import JobFilter, Page
from headrace.jobs.ledgers.database import Statement, Transaction, sa
from headrace.jobs.ledgers.rows import JOB_COLUMNS, entry_of, job_of
from headrace.jobs.ledgers.schema import JOB_TABLE, TAG_TABLE

HISTORY_MAX: Final = 1000
"""Of a longer history, so many of its last lines are told."""

_HISTORY = Statement(
    lambda _: (
        """
SELECT at_ms, event, attempt, lease, worker, cause, message, done_by FROM headrace_history
WHERE job_id = :id ORDER BY number DESC LIMIT :room
"""
    )
)
_LISTED: Final = [JOB_TABLE.c[name] for name in JOB_COLUMNS]


def history(transaction: Transaction, job_id: str) -> list[HistoryEntry]:
    """See `JobLedger.history`; empty for a job that there is not."""
    rows = transaction.run(_HISTORY, id=job_id, room=HISTORY_MAX)
    return [entry_of(row) for row in rows][::-1]


def find(transaction: Transaction, wanted: JobFilter, after: str, limit: int) -> Page:
    """See `JobLedger.find`."""
    place = sa.tuple_(JOB_TABLE.c.created_at_ms, JOB_TABLE.c.id)
    query = sa.select(*_LISTED).where(*_conditions(wanted))
    if after:
        query = query.where(place < sa.tuple_(*_place_of(after)))
    query = query.order_by(JOB_TABLE.c.created_at_ms.desc(), JOB_TABLE.c.id.desc()).limit(max(limit, 0) + 1)
    result: Any = transaction.connection.execute(query)
    jobs = [job_of(row) for row in result]
    more = len(jobs) > limit > 0
    last = jobs[limit - 1] if more else None
    return Page(tuple(jobs[: max(limit, 0)]), f"{last.created_at_ms}/{last.id}" if last else "")


def _conditions(wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    columns = JOB_TABLE.c
    found: list[sa.ColumnElement[bool]] = []
    for column, value in (
        (columns.queue, wanted.queue),
        (columns.model, wanted.model),
        (columns.kind, wanted.kind),
        (columns.correlation_id, wanted.correlation_id),
    ):
        if value:
            found.append(column == value)
    if wanted.correlation_id:
        found.append(columns.correlation_id != sa.literal_column("''"))
    if wanted.tenant is not None:
        found.append(columns.tenant == wanted.tenant)
    if wanted.states:
        # Written out, so that the partial index of a state can be used.
        found.append(
            sa.or_(*(columns.state == sa.literal_column(f"'{s.value}'") for s in sorted(wanted.states)))
        )
    if wanted.created_from_ms is not None:
        found.append(columns.created_at_ms >= wanted.created_from_ms)
    if wanted.created_before_ms is not None:
        found.append(columns.created_at_ms < wanted.created_before_ms)
    found += [_tagged(name, value) for name, value in wanted.tags.items()]
    return found


def _tagged(name: str, value: str) -> sa.ColumnElement[bool]:
    tag = TAG_TABLE.c
    return JOB_TABLE.c.id.in_(sa.select(tag.job_id).where(tag.name == name, tag.value == value))


def _place_of(after: str) -> tuple[int, str]:
    created, _, job_id = after.partition("/")
    if not created.isdecimal() or not job_id:
        raise DataError(
            f"{after!r} is no place in a list of jobs: give what the page before said, or begin anew"
        )
    return int(created), job_id
