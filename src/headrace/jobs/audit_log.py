"""Writes and reads of the audit log, with the rights of API keys."""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.core.errors import HeadraceError, LimitError
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.audit import AUDIT_PAGE_MAX, AuditPage, audit_entry
from headrace.jobs.ledger import JobLedger

_log = logging.getLogger("headrace.jobs.audit")


class AuditLog:
    """The audit log of a ledger."""

    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger

    def record(
        self,
        key: ApiKey,
        action: str,
        subject: str = "",
        details: Mapping[str, Any] = MappingProxyType({}),
        *,
        jobs: int | None = None,
    ) -> None:
        """Record an action that a key has done. `details` is JSON without secrets.

        The action is done: if the ledger is unavailable now, the entry is logged as an error instead
        of raising one.
        """
        entry = audit_entry(key, action, subject, details, jobs=jobs)
        fields = {"by": entry.done_by, "action": action, "subject": subject, "details": dict(entry.details)}
        try:
            self._ledger.record_audit(entry)
        except HeadraceError as error:
            _log.error("an action is missing in the audit log: %s", error, extra=fields)
        else:
            _log.info("an action was recorded", extra=fields)

    def find(
        self, key: ApiKey, *, done_by: str = "", action: str = "", after: str = "", limit: int = 100
    ) -> AuditPage:
        """Return a page of the log, as `JobLedger.audit` does.

        Raise LimitError for more than AUDIT_PAGE_MAX at once.
        """
        key.require(Scope.OPERATE)
        if not 0 < limit <= AUDIT_PAGE_MAX:
            raise LimitError(f"limit: must be from 1 to {AUDIT_PAGE_MAX}, not {limit}")
        return self._ledger.audit(done_by=done_by, action=action, after=after, limit=limit)
