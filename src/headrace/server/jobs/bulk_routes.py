"""The routes of actions on many jobs, and of the audit log."""

from dataclasses import asdict
from typing import Final

from headrace.core.errors import DataError
from headrace.jobs.access import CHANGE_SCOPES, Scope
from headrace.jobs.actions import JobAction
from headrace.jobs.audit import audit_document
from headrace.jobs.bulk import BulkRequest
from headrace.jobs.ledger import JobFilter
from headrace.server.http import Exchange
from headrace.server.jobs.api import ERRORS, ApiHandlers, respond_json
from headrace.server.jobs.documents import (
    AuditPageDocument,
    AuditQuery,
    BulkDocument,
    BulkReplyDocument,
    JobConditions,
)
from headrace.server.routes import read_json, read_query, route

_BODY_BYTES_MAX: Final = 1 << 16


class BulkHandlers(ApiHandlers):
    """The handlers of these routes. Their docstrings are the descriptions for clients."""

    @route(
        "POST",
        "/v1/jobs/bulk",
        CHANGE_SCOPES,
        BulkReplyDocument,
        request=(BulkDocument,),
        errors=(*ERRORS, 408, 413),
    )
    async def bulk(self, exchange: Exchange) -> None:
        """Cancel, retry, requeue or delete all jobs that match a filter, newest first.

        `cancel` and `retry` change each job as the routes of one job do; `requeue` runs ended jobs again,
        also completed ones. Keys of a tenant change its jobs only. The response comes after `limit` jobs,
        after 20 seconds, or when no job is left. A request with its `next_after` as `after` continues.
        """
        body = read_json(BulkDocument, await exchange.body(_BODY_BYTES_MAX))
        request = BulkRequest(
            action=JobAction(body.action),
            job_filter=filter_of(body.filter),
            dry_run=body.dry_run,
            limit=body.limit,
            after=body.after,
            all_jobs=body.all,
        )
        async with self._api.bulk_requests.hold(exchange.client.tenant):
            reply = await self._run(self._service.bulk, exchange.client, request)
        await respond_json(exchange, asdict(reply))

    @route("GET", "/v1/audit", (Scope.OPERATE,), AuditPageDocument, query=AuditQuery, errors=(*ERRORS, 413))
    async def audit(self, exchange: Exchange) -> None:
        """List the actions of operators and all changes of many jobs, newest first, one page at a time.

        Entries are kept for 365 days.
        """
        query = read_query(AuditQuery, exchange.query)
        page = await self._run(
            self._service.audit.find,
            exchange.client,
            done_by=query.done_by,
            action=query.action,
            after=query.after,
            limit=query.limit,
        )
        document = {"entries": list(map(audit_document, page.entries)), "next_after": page.next_after}
        await respond_json(exchange, document)


def filter_of(conditions: JobConditions) -> JobFilter:
    """Return the filter of a query or a document. Raise DataError for a malformed tag."""
    return JobFilter(
        queue=conditions.queue,
        states=frozenset(conditions.state),
        model=conditions.model,
        kind=conditions.kind,
        correlation_id=conditions.correlation_id,
        fingerprint=conditions.fingerprint,
        tags=dict(map(_tag, conditions.tag)),
        tenant=conditions.tenant,
        created_from_ms=conditions.created_from_ms,
        created_before_ms=conditions.created_before_ms,
    )


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise DataError(f"tag: must be NAME=VALUE, not {ascii(text)[:80]}")
    return name, value
