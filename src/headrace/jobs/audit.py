"""The audit log: who changed what through the job API, kept in the ledger for `AUDIT_KEPT_DAYS`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import orjson

from headrace.jobs.access import ApiKey

AUDIT_KEPT_DAYS: Final = 365
AUDIT_PAGE_MAX: Final = 500
DETAILS_CHARS_MAX: Final = 4_000
"""The length of the details of an entry as JSON. Of longer ones, the beginning is kept."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action in the audit log.

    `done_by` is the name of the API key, and `tenant` its tenant. `subject` is the name or the id of
    the changed thing. `jobs` is the number of changed jobs, None for other actions. The ledger sets
    `number` and `at_ms`; greater numbers are later ones.
    """

    done_by: str
    tenant: str
    action: str
    subject: str = ""
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    jobs: int | None = None
    number: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of the audit log, newest first. `next_after` starts the next page; "" on the last one."""

    entries: tuple[AuditEntry, ...]
    next_after: str = ""


def audit_entry(
    key: ApiKey,
    action: str,
    subject: str = "",
    details: Mapping[str, Any] = MappingProxyType({}),
    *,
    jobs: int | None = None,
) -> AuditEntry:
    """Return the entry of an action by a key. `details` is JSON without secrets."""
    text = orjson.dumps(dict(details)).decode()
    if len(text) > DETAILS_CHARS_MAX:
        details = {"truncated": text[:DETAILS_CHARS_MAX]}
    return AuditEntry(key.name, key.tenant, action, subject, details, jobs)


def audit_document(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry as JSON."""
    return {
        "number": entry.number,
        "at_ms": entry.at_ms,
        "by": entry.done_by,
        "tenant": entry.tenant,
        "action": entry.action,
        "subject": entry.subject,
        "details": dict(entry.details),
        "jobs": entry.jobs,
    }
