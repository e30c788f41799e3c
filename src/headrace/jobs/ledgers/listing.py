"""Histories, and lists of jobs by filter."""

from typing import Any, Final

from headrace.core.errors import DataError
from headrace.jobs.job import HistoryEntry
from headrace.jobs.ledger import JobFilter, Page
from headrace.jobs.ledgers.database import Statement, Transaction, sa
from headrace.jobs.ledgers.rows import JOB_COLUMNS, entry_of, job_of
from headrace.jobs.ledgers.schema import JOB_TABLE, TAG_TABLE

HISTORY_MAX: Final = 1000
"""The number of last entries that are returned of a longer history."""

_HISTORY = Statement(
    lambda _: (
        """
SELECT at_ms, event, attempt, lease, worker, cause, message, done_by FROM headrace_history
WHERE job_id = :id ORDER BY number DESC LIMIT :row_limit
"""
    )
)
_LISTED: Final = [JOB_TABLE.c[name] for name in JOB_COLUMNS]


def history(transaction: Transaction, job_id: str) -> list[HistoryEntry]:
    """Implement `JobLedger.history`; return an empty list for an unknown job."""
    rows = transaction.run(_HISTORY, id=job_id, row_limit=HISTORY_MAX)
    return [entry_of(row) for row in rows][::-1]


def find(transaction: Transaction, job_filter: JobFilter, after: str, limit: int) -> Page:
    """Implement `JobLedger.find`."""
    position = sa.tuple_(JOB_TABLE.c.created_at_ms, JOB_TABLE.c.id)
    query = sa.select(*_LISTED).where(*_conditions(job_filter))
    if after:
        query = query.where(position < sa.tuple_(*_parse_position(after)))
    query = query.order_by(JOB_TABLE.c.created_at_ms.desc(), JOB_TABLE.c.id.desc()).limit(max(limit, 0) + 1)
    result: Any = transaction.connection.execute(query)
    jobs = [job_of(row) for row in result]
    more = len(jobs) > limit > 0
    last = jobs[limit - 1] if more else None
    return Page(tuple(jobs[: max(limit, 0)]), f"{last.created_at_ms}/{last.id}" if last else "")


def _conditions(job_filter: JobFilter) -> list[sa.ColumnElement[bool]]:
    columns = JOB_TABLE.c
    found: list[sa.ColumnElement[bool]] = []
    for column, value in (
        (columns.queue, job_filter.queue),
        (columns.model, job_filter.model),
        (columns.kind, job_filter.kind),
        (columns.correlation_id, job_filter.correlation_id),
    ):
        if value:
            found.append(column == value)
    if job_filter.correlation_id:
        found.append(columns.correlation_id != sa.literal_column("''"))
    if job_filter.tenant is not None:
        found.append(columns.tenant == job_filter.tenant)
    if job_filter.states:
        # Literals, so that the partial index of a state can be used.
        found.append(
            sa.or_(*(columns.state == sa.literal_column(f"'{s.value}'") for s in sorted(job_filter.states)))
        )
    if job_filter.created_from_ms is not None:
        found.append(columns.created_at_ms >= job_filter.created_from_ms)
    if job_filter.created_before_ms is not None:
        found.append(columns.created_at_ms < job_filter.created_before_ms)
    found += [_tagged(name, value) for name, value in job_filter.tags.items()]
    return found


def _tagged(name: str, value: str) -> sa.ColumnElement[bool]:
    tag = TAG_TABLE.c
    return JOB_TABLE.c.id.in_(sa.select(tag.job_id).where(tag.name == name, tag.value == value))


def _parse_position(after: str) -> tuple[int, str]:
    created, _, job_id = after.partition("/")
    if not created.isdecimal() or not job_id:
        raise DataError(
            f"after: invalid page position {after!r}: use next_after of the previous page, or begin again"
        )
    return int(created), job_id
