"""The state and helpers that all routes of the job API share: service, access check, responses."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import Request, Response

from headrace.core.errors import JobNotFoundError
from headrace.jobs.access import JobAccess, JobKey, Scope
from headrace.jobs.documents import job_document
from headrace.jobs.job import Job
from headrace.jobs.service import JobService
from headrace.server.http import Exchange, HttpTimeouts
from headrace.server.jobs.models import ProblemModel
from headrace.server.jobs.thread_pool import BoundedThreadPool

WAIT_S_MAX: Final = 60.0
DOCUMENT_BYTES_MAX: Final = 1 << 20
"""The maximum size of a submission in addition to its payload."""
_JOB_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ERROR_DESCRIPTIONS: Final = {
    400: "The request is malformed; `error` names the field.",
    401: "The key is missing or unknown.",
    403: "The key lacks the permission.",
    404: "No job has this id, or it belongs to another tenant; or no worker of the queue has the model.",
    408: "The body did not arrive in time.",
    409: "The state of the job does not allow the operation.",
    410: "The result was moved or deleted.",
    413: "The body exceeds the size limit.",
    422: "The idempotency key belongs to another submission.",
    429: "Too many jobs or requests wait: retry after `Retry-After` seconds.",
    503: (
        "The database or the object store does not respond, or the queue is draining: retry after "
        "`Retry-After` seconds."
    ),
}


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The settings of the HTTP API of jobs."""

    body_s_max: float = 300.0
    """The maximum seconds for a submission to arrive."""
    upload_idle_s: float = 60.0
    """The maximum seconds between two parts of an upload."""
    upload_s_max: float = 6 * 3600.0
    uploads_max: int = 64
    """The maximum number of concurrent uploads through the API."""
    heartbeat_s: float = 15.0
    """The interval in seconds of the heartbeats of an event stream without events."""
    stream_s_max: float = 3600.0
    """The maximum seconds of an event stream. Its client reconnects and continues."""


class Api:
    """The job service behind HTTP. Each application has one."""

    def __init__(
        self, service: JobService, access: JobAccess, settings: ApiSettings, thread_pool: BoundedThreadPool
    ) -> None:
        self.service = service
        self.settings = settings
        self.thread_pool = thread_pool
        self.uploads = asyncio.Semaphore(settings.uploads_max)
        self._access = access
        self._timeouts = HttpTimeouts(settings.body_s_max)

    def authorize(self, request: Request, *scopes: Scope) -> JobKey:
        """Return the key of the client, which needs one of the scopes.

        Raises:
            UnauthenticatedError: The key is missing or unknown.
            ForbiddenError: The key has none of the scopes.
        """
        return self._access.check(request.headers.get("authorization"), *scopes)

    async def body(self, request: Request, bytes_max: int) -> bytes:
        """Return the whole body, decompressed, within limits of size and time."""
        exchange = Exchange(request.scope, request.receive, _discard, self._timeouts)
        return await exchange.body(bytes_max)

    async def wait_for_job(self, key: JobKey, job_id: str, wait_s: float) -> Job:
        """Return the job once it has ended, or its state after `wait_s` seconds. No thread waits."""
        if wait_s <= 0:
            return await self.thread_pool.run(self.service.get, key, job_id)
        waiter = await self.thread_pool.run(self.service.follow, key, job_id, _has_ended)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waiter.job), wait_s)
        except TimeoutError:
            return await self.thread_pool.run(self.service.get, key, job_id)
        finally:
            self.service.leave(waiter)


def parse_job_id(text: str) -> str:
    """Return the job id of a path.

    Raises:
        JobNotFoundError: No job can have this id. The database is not asked.
    """
    if not _JOB_ID.fullmatch(text):
        raise JobNotFoundError(ascii(text[:80])[1:-1])
    return text.lower()


def json_response(
    document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(document), status, headers, media_type="application/json")


def job_response(job: Job, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a job as a response."""
    return json_response(job_document(job), status, headers)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of a route's errors: the given statuses and those of every route."""
    every = sorted({400, 401, 403, 429, 503, *statuses})
    return {status: {"model": ProblemModel, "description": _ERROR_DESCRIPTIONS[status]} for status in every}


def _has_ended(job: Job) -> bool:
    return job.state.ended


async def _discard(message: Any) -> None:
    """Do nothing: an exchange that only reads has nothing to send."""
