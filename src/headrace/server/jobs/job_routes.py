"""The routes of jobs: submit, get, list, wait, cancel, retry, delete."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from headrace.core.errors import DataError
from headrace.jobs.access import Scope
from headrace.jobs.documents import history_document, job_document
from headrace.jobs.ledger import JobFilter
from headrace.jobs.service import CHANGE_SCOPES, PAGE_MAX
from headrace.jobs.state import JobState
from headrace.jobs.submission import JSON, Submission, SubmissionHeaders, read_document, read_raw
from headrace.runs.media_types import bare_type
from headrace.server.jobs.api import (
    DOCUMENT_BYTES_MAX,
    WAIT_S_MAX,
    Api,
    error_responses,
    job_response,
    json_response,
    parse_job_id,
)
from headrace.server.jobs.models import HistoryModel, JobModel, PageModel, SubmissionModel
from headrace.server.jobs.submission import submit_job

Wait = Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the end of the job.")]
Moment = Annotated[int | None, Query(ge=0, le=2**53)]
_SUBMISSION: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": (
            "A submission as JSON; or, if the query has a `model`, the payload itself with any content type. "
            "The query then has the other fields of the submission (`tag=NAME=VALUE` for each tag, `options` "
            "and `notify` as JSON)."
        ),
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/SubmissionModel"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Repeated submissions with the same key and content make one job.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        },
        {
            "name": "model",
            "in": "query",
            "required": False,
            "description": "The name of the model; the body is then the payload.",
            "schema": {"type": "string"},
        },
    ],
}
SCHEMAS: Final = (SubmissionModel,)
"""Models that the signature of no route names."""


def job_routes(api: Api) -> APIRouter:
    """Return the routes for one API."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    service, run = api.service, api.thread_pool.run

    @router.post(
        "",
        summary="Submit a job",
        status_code=202,
        response_model=JobModel,
        openapi_extra=_SUBMISSION,
        responses={
            200: {
                "model": JobModel,
                "description": "The job of an earlier submission with the same idempotency key.",
            },
            **error_responses(404, 408, 413, 422),
        },
    )
    async def submit(request: Request) -> Response:
        """Submit a job.

        `Location` is the URL of the job. The status is 200 instead of 202 if an earlier submission
        with the same idempotency key made the job. `warnings` of the job say why it may wait: no
        worker serves its queue. A model that no worker of the queue has is refused with 404.
        """
        key = api.authorize(request, Scope.SUBMIT)
        body = await api.body(
            request, service.settings.submission_limits.inline_bytes_max + DOCUMENT_BYTES_MAX
        )
        submission = await run(_read, request, body, service.settings.submission_limits)
        reply = await submit_job(api, key, submission)
        location = {"location": f"/v1/jobs/{reply.job.id}"}
        return job_response(reply.job, 202 if reply.created else 200, location)

    @router.get("", summary="List jobs", response_model=PageModel, responses=error_responses(413))
    async def find(
        request: Request,
        *,
        queue: str = "",
        state: Annotated[list[JobState] | None, Query()] = None,
        model: str = "",
        kind: str = "",
        correlation_id: str = "",
        tag: Annotated[
            list[str] | None, Query(description="NAME=VALUE; a job must have all given tags.")
        ] = None,
        tenant: Annotated[
            str | None, Query(description="Tenant of the jobs; only for keys that see all tenants.")
        ] = None,
        created_from_ms: Moment = None,
        created_before_ms: Moment = None,
        after: Annotated[str, Query(max_length=512, description="`next_after` of the previous page.")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> Response:
        """List jobs, newest first, one page at a time."""
        key = api.authorize(request, Scope.READ)
        wanted = JobFilter(
            queue=queue,
            states=frozenset(state or ()),
            model=model,
            kind=kind,
            correlation_id=correlation_id,
            tags=dict(map(_tag, tag or ())),
            tenant=tenant,
            created_from_ms=created_from_ms,
            created_before_ms=created_before_ms,
        )
        page = await run(service.find, key, wanted, after=after, limit=limit)
        return json_response({"jobs": list(map(job_document, page.jobs)), "next_after": page.next_after})

    @router.get("/{job_id}", summary="Get a job", response_model=JobModel, responses=error_responses(404))
    async def get(request: Request, job_id: str, wait: Wait = 0) -> Response:
        """Return a job. With `wait`, respond when the job has ended or the time has passed."""
        key = api.authorize(request, Scope.READ)
        return job_response(await api.wait_for_job(key, parse_job_id(job_id), wait))

    @router.get(
        "/{job_id}/history",
        summary="Get a job's history",
        response_model=HistoryModel,
        responses=error_responses(404),
    )
    async def history(request: Request, job_id: str) -> Response:
        """List the failures and the manual changes of a job, oldest first."""
        key = api.authorize(request, Scope.READ)
        entries = await run(service.history, key, parse_job_id(job_id))
        return json_response({"history": list(map(history_document, entries))})

    @router.post(
        "/{job_id}/cancel",
        summary="Cancel a job",
        response_model=JobModel,
        responses=error_responses(404, 409),
    )
    async def cancel(request: Request, job_id: str) -> Response:
        """Cancel a job: a pending job at once, a running job as soon as its worker has stopped it.

        Repeating the request has no further effect.
        """
        key = api.authorize(request, *CHANGE_SCOPES)
        return job_response(await run(service.cancel, key, parse_job_id(job_id)))

    @router.post(
        "/{job_id}/retry", summary="Retry a job", response_model=JobModel, responses=error_responses(404, 409)
    )
    async def retry(request: Request, job_id: str) -> Response:
        """Return a job that ended without a result to its queue.

        It is due now, with a new count of attempts.
        """
        key = api.authorize(request, *CHANGE_SCOPES)
        return job_response(await run(service.retry, key, parse_job_id(job_id)))

    @router.delete(
        "/{job_id}", summary="Delete a job", response_model=JobModel, responses=error_responses(404, 409)
    )
    async def delete(request: Request, job_id: str) -> Response:
        """Delete an ended job and the objects that are stored only for it.

        The response is the job as it was. A key of the job's tenant needs the scope `submit`. Any
        other key needs `admin`.
        """
        key = api.authorize(request, Scope.SUBMIT)
        return job_response(await run(service.delete, key, parse_job_id(job_id)))

    return router


def _read(request: Request, body: bytes, limits: Any) -> Submission:
    headers = request.headers
    envelope = SubmissionHeaders(
        content_type=headers.get("content-type", ""),
        idempotency_key=headers.get("idempotency-key", ""),
        trace=headers.get("traceparent", ""),
    )
    query = request.query_params.multi_items()
    if any(name == "model" for name, _ in query):
        return read_raw(body, query, envelope, limits)
    if query:
        raise DataError(
            f"{query[0][0]}: a submission as JSON takes no query; to send a payload, add model to the query"
        )
    bare = bare_type(envelope.content_type)
    if bare and bare != JSON:
        raise DataError(
            f"content type {ascii(bare)[:80]}: must be {JSON}; to send a payload, add model to the query"
        )
    return read_document(body, envelope, limits)


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise DataError(f"tag: must be NAME=VALUE, not {ascii(text)[:80]}")
    return name, value
