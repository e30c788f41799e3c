"""Actions on all jobs that match a filter, in transactions of bounded size."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.core.errors import DataError, ForbiddenError, HeadraceError, LimitError
from headrace.jobs.access import CHANGE_SCOPES, ApiKey, Scope
from headrace.jobs.actions import ACTION_STATES, ActionReply, JobAction
from headrace.jobs.audit import audit_entry
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobFilter, JobLedger

__all__ = ["BULK_JOBS_DEFAULT", "BULK_JOBS_MAX", "BulkReply", "BulkRequest", "run_bulk"]

BULK_JOBS_DEFAULT: Final = 1_000
BULK_JOBS_MAX: Final = 10_000
"""The limit of jobs of one request."""
BULK_S_MAX: Final = 20.0
"""Seconds after which a request ends with the transaction that runs."""
_TRANSACTION_JOBS: Final = 500
_DELETED_JOBS: Final = 100
"""The jobs of a transaction that deletes them: their objects are deleted one by one afterwards."""

_log = logging.getLogger("headrace.jobs")


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """An action on jobs that match a filter, newest first, at most `limit`.

    A filter without conditions needs `all_jobs`. `after` is the `next_after` of the previous request.
    With `dry_run`, the jobs are counted only.
    """

    action: JobAction
    job_filter: JobFilter
    dry_run: bool = False
    limit: int = BULK_JOBS_DEFAULT
    after: str = ""
    all_jobs: bool = False


@dataclass(frozen=True, slots=True)
class BulkReply:
    """The numbers of jobs that matched, that were changed, and that were skipped, by reason.

    `next_after` continues; "" if no job is left.
    """

    action: JobAction
    dry_run: bool
    matched: int
    changed: int
    skipped: Mapping[str, int]
    next_after: str = ""


def run_bulk(
    ledger: JobLedger,
    key: ApiKey,
    request: BulkRequest,
    *,
    delete_objects: Callable[[Job], None],
    now_s: Callable[[], float] = time.monotonic,
) -> BulkReply:
    """Apply an action to the jobs that match a filter and that the key may change.

    The filter is narrowed to the states to which the action applies. Each transaction is complete or
    without effect, and is in the audit log. The request ends early after `BULK_S_MAX`.

    Raises:
        DataError: The filter is empty, or names only states to which the action does not apply.
        ForbiddenError: The key lacks the scope, or the filter names another tenant.
        LimitError: `limit` is greater than `BULK_JOBS_MAX`.
    """
    tenant = _tenant_of(key, request)
    wanted = _narrowed(request, tenant)
    until_s = now_s() + BULK_S_MAX
    jobs_max = _DELETED_JOBS if request.action is JobAction.DELETE else _TRANSACTION_JOBS
    matched, changed, after = 0, 0, request.after
    skipped: Counter[str] = Counter()
    while True:
        page = ledger.find(wanted, after=after, limit=min(jobs_max, request.limit - matched))
        matched += len(page.jobs)
        after = page.next_after
        if page.jobs and not request.dry_run:
            reply = _apply(ledger, key, request, tenant, [job.id for job in page.jobs])
            changed += len(reply.changed)
            skipped.update({reason.value: number for reason, number in reply.skipped.items()})
            if request.action is JobAction.DELETE:
                _delete_objects(reply.changed, delete_objects)
        if not after or matched >= request.limit or now_s() >= until_s:
            return BulkReply(request.action, request.dry_run, matched, changed, dict(skipped), after)


def filter_document(job_filter: JobFilter) -> dict[str, Any]:
    """Return the conditions of a filter as JSON, with the names of the API."""
    names = ("queue", "model", "kind", "correlation_id", "fingerprint", "tenant")
    found = {name: getattr(job_filter, name) for name in (*names, "created_from_ms", "created_before_ms")}
    document = {name: value for name, value in found.items() if value not in ("", None)}
    if job_filter.tenant == "":
        document["tenant"] = ""
    if job_filter.states:
        document["state"] = sorted(state.value for state in job_filter.states)
    if job_filter.tags:
        document["tag"] = [f"{name}={value}" for name, value in job_filter.tags.items()]
    return document


def _apply(
    ledger: JobLedger, key: ApiKey, request: BulkRequest, tenant: str | None, job_ids: list[str]
) -> ActionReply:
    details = {"filter": filter_document(request.job_filter)}
    entry = audit_entry(key, f"jobs.{request.action.value}", details=details)
    return ledger.apply_action(request.action, job_ids, tenant=tenant, by=key.name, audit=entry)


def _tenant_of(key: ApiKey, request: BulkRequest) -> str | None:
    """Return the only tenant whose jobs the key may change; None for all. The rights are checked."""
    if request.action is JobAction.DELETE:
        key.require(Scope.SUBMIT)
        tenant = key.deletable_tenant
    else:
        key.require(*CHANGE_SCOPES)
        tenant = key.visible_tenant
    if tenant is not None and request.job_filter.tenant not in (None, tenant):
        raise ForbiddenError(
            f"the API key {key.name!r} may {request.action.value} jobs of its own tenant only: "
            "leave tenant out of the filter"
        )
    return tenant


def _narrowed(request: BulkRequest, tenant: str | None) -> JobFilter:
    """Return the filter of the jobs to change. Raise DataError and LimitError for invalid requests."""
    job_filter, states = request.job_filter, ACTION_STATES[request.action]
    if not 0 < request.limit <= BULK_JOBS_MAX:
        raise LimitError(f"limit: must be from 1 to {BULK_JOBS_MAX}, not {request.limit}")
    if job_filter == JobFilter() and not request.all_jobs:
        raise DataError("filter: it has no condition; name one, or state all=true to change all jobs")
    if job_filter.states:
        states = job_filter.states & states
        if not states:
            possible = ", ".join(sorted(state.value for state in ACTION_STATES[request.action]))
            raise DataError(f"filter: {request.action.value} applies to jobs that are {possible}")
    return replace(job_filter, states=states, tenant=job_filter.tenant if tenant is None else tenant)


def _delete_objects(jobs: tuple[Job, ...], delete: Callable[[Job], None]) -> None:
    for job in jobs:
        try:
            delete(job)
        except HeadraceError as error:
            _log.warning("a job's objects are left as orphans: %s", error, extra={"job": job.id})
