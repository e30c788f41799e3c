"""Routes of jobs: submit, look, list, wait, cancel, retry, delete."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from headrace.core.errors import DataError
from headrace.jobs.access import Scope
from headrace.jobs.desk import DECIDE, PAGE_MAX
from headrace.jobs.documents import history_document, job_document
from headrace.jobs.intake import JSON, Envelope, Submission, read_document, read_raw
from headrace.jobs.ledger import JobFilter
from headrace.jobs.state import JobState
from headrace.server.jobs.api import DOCUMENT_BYTES, WAIT_S_MAX, Api, answer, job_answer, job_id_of, problems
from headrace.server.jobs.models import HistoryModel, JobModel, PageModel, SubmissionModel
from headrace.server.jobs.submitted import submitted
from headrace.transforms.media_types import bare_type

Wait = Annotated[
    float, Query(ge=0, le=WAIT_S_MAX, description="Answer when the job has ended, or after so many seconds.")
]
Moment = Annotated[int | None, Query(ge=0, le=2**53)]
_SUBMISSION: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": (
            "A submission as JSON; or, where the query names a `model`, the payload itself, of any content type: then all "
            "else of a submission stands in the query (`tag=NAME=VALUE` for each tag, `options` and `notify` as JSON)."
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
            "description": "The same key and the same submission are the same job, however often they are sent.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        },
        {
            "name": "model",
            "in": "query",
            "required": False,
            "description": "Makes the body the payload.",
            "schema": {"type": "string"},
        },
    ],
}
SCHEMAS: Final = (SubmissionModel,)
"""Models that no route names in its signature."""


def job_routes(api: Api) -> APIRouter:
    """All of them, for one API."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    desk, run = api.desk, api.workroom.run

    @router.post(
        "",
        status_code=202,
        response_model=JobModel,
        openapi_extra=_SUBMISSION,
        responses={
            200: {"model": JobModel, "description": "The job that the idempotency key stands for."},
            **problems(408, 413, 422),
        },
    )
    async def submit(request: Request) -> Response:
        """Submit a job. `Location` is where it is looked at; 200 instead of 202 where an earlier submission had made it."""
        caller = api.caller(request, Scope.SUBMIT)
        body = await api.body(request, desk.settings.intake.inline_bytes_max + DOCUMENT_BYTES)
        submission = await run(_read, request, body, desk.settings.intake)
        made = await submitted(api, caller, submission)
        location = {"location": f"/v1/jobs/{made.job.id}"}
        return job_answer(made.job, 202 if made.created else 200, location)

    @router.get("", response_model=PageModel, responses=problems(413))
    async def find(
        request: Request,
        *,
        queue: str = "",
        state: Annotated[list[JobState] | None, Query()] = None,
        model: str = "",
        kind: str = "",
        correlation_id: str = "",
        tag: Annotated[list[str] | None, Query(description="NAME=VALUE; all must be so.")] = None,
        tenant: Annotated[str | None, Query(description="For keys that see everybody's jobs.")] = None,
        created_from_ms: Moment = None,
        created_before_ms: Moment = None,
        after: Annotated[str, Query(max_length=512, description="`next_after` of the page before.")] = "",
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    ) -> Response:
        """List jobs, newest first, a page at a time."""
        caller = api.caller(request, Scope.READ)
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
        page = await run(desk.find, caller, wanted, after=after, limit=limit)
        return answer({"jobs": list(map(job_document, page.jobs)), "next_after": page.next_after})

    @router.get("/{job_id}", response_model=JobModel, responses=problems(404))
    async def get(request: Request, job_id: str, wait: Wait = 0) -> Response:
        """Look at a job; with `wait`, once it has ended."""
        caller = api.caller(request, Scope.READ)
        return job_answer(await api.waited(caller, job_id_of(job_id), wait))

    @router.get("/{job_id}/history", response_model=HistoryModel, responses=problems(404))
    async def history(request: Request, job_id: str) -> Response:
        """What went wrong with a job, and what was done to it by hand, oldest first."""
        caller = api.caller(request, Scope.READ)
        entries = await run(desk.history, caller, job_id_of(job_id))
        return answer({"history": list(map(history_document, entries))})

    @router.post("/{job_id}/cancel", response_model=JobModel, responses=problems(404, 409))
    async def cancel(request: Request, job_id: str) -> Response:
        """Cancel a job: a pending one at once; a running one is stopped, and then cancelled. Twice does nothing."""
        caller = api.caller(request, *DECIDE)
        return job_answer(await run(desk.cancel, caller, job_id_of(job_id)))

    @router.post("/{job_id}/retry", response_model=JobModel, responses=problems(404, 409))
    async def retry(request: Request, job_id: str) -> Response:
        """Put a job back that ended without a result: due now, with all its attempts before it."""
        caller = api.caller(request, *DECIDE)
        return job_answer(await run(desk.retry, caller, job_id_of(job_id)))

    @router.delete("/{job_id}", response_model=JobModel, responses=problems(404, 409))
    async def delete(request: Request, job_id: str) -> Response:
        """Remove an ended job, with what was stored for it alone. Answers with the job as it was.

        Its own tenant may, with the scope `submit`; another's needs `admin`.
        """
        caller = api.caller(request, Scope.SUBMIT)
        return job_answer(await run(desk.delete, caller, job_id_of(job_id)))

    return router


def _read(request: Request, body: bytes, limits: Any) -> Submission:
    headers = request.headers
    envelope = Envelope(
        content_type=headers.get("content-type", ""),
        idempotency_key=headers.get("idempotency-key", ""),
        trace=headers.get("traceparent", ""),
    )
    query = request.query_params.multi_items()
    if any(name == "model" for name, _ in query):
        return read_raw(body, query, envelope, limits)
    if query:
        raise DataError(f"{query[0][0]}: a query is for payloads, which need their model in it too")
    bare = bare_type(envelope.content_type)
    if bare and bare != JSON:
        raise DataError(
            f"content type {ascii(bare)[:80]}: a submission is {JSON}; for a payload by itself, name its model in the query"
        )
    return read_document(body, envelope, limits)


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise DataError(f"tag: must be NAME=VALUE, not {ascii(text)[:80]}")
    return name, value
