"""The operations on the audit log."""

from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.jobs.audit import AUDIT_KEPT_DAYS, AuditEntry, AuditPage
from headrace.jobs.ledger import DAY_MS, JobLedger
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Row,
    Transaction,
    read_statement,
    reading,
    writing_once,
)
from headrace.jobs.ledgers.rows import clean, dump
from headrace.jobs.log_position import number_before

ENTRIES_READ_MAX: Final = 5_000
"""The number of entries that are compared with the conditions for one page."""
_DELETED_MAX: Final = 100
"""The number of old entries that each new one deletes."""
_KEPT_MS: Final = AUDIT_KEPT_DAYS * DAY_MS

_INSERT: Final = read_statement("insert_audit")
_DELETE_OLD: Final = read_statement("delete_old_audit")
_FIND: Final = read_statement("find_audit")
_END: Final = read_statement("audit_end")


class AuditOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger on its audit log."""

    @override
    @writing_once
    def record_audit(self, transaction: Transaction, entry: AuditEntry) -> None:
        write_audit(transaction, entry)

    @override
    @reading
    def audit(
        self,
        transaction: Transaction,
        *,
        done_by: str = "",
        action: str = "",
        after: str = "",
        limit: int = 100,
    ) -> AuditPage:
        """Return a page of the log. Raise DataError for an invalid `after`."""
        read: dict[str, Any] = {
            "before_number": number_before(after),
            "kept_ms": _KEPT_MS,
            "read_limit": ENTRIES_READ_MAX,
        }
        rows = transaction.run(
            _FIND, done_by=clean(done_by), action=clean(action), row_limit=max(limit, 0) + 1, **read
        )
        entries = tuple(map(_entry_of, rows[: max(limit, 0)]))
        if len(rows) > len(entries):
            return AuditPage(entries, str(entries[-1].number) if entries else "")
        count, last = transaction.run(_END, **read)[0]
        return AuditPage(entries, str(last) if count == ENTRIES_READ_MAX else "")


def write_audit(transaction: Transaction, entry: AuditEntry) -> None:
    """Write an entry with the database's time, and delete some that are too old."""
    transaction.run(
        _INSERT,
        done_by=clean(entry.done_by),
        tenant=clean(entry.tenant),
        action=clean(entry.action),
        subject=clean(entry.subject),
        details=dump(dict(entry.details)),
        jobs=entry.jobs,
    )
    transaction.run(_DELETE_OLD, kept_ms=_KEPT_MS, row_limit=_DELETED_MAX)


def _entry_of(row: Row) -> AuditEntry:
    number, at_ms, done_by, tenant, action, subject, details, jobs = row
    return AuditEntry(done_by, tenant, action, subject, orjson.loads(details), jobs, number, at_ms)
