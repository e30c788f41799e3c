"""What every route is handed: the desk, who may stand before it, and the little that routes have in common."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import Request, Response

from headrace.core.errors import JobNotFoundError
from headrace.jobs.access import JobAccess, JobKey, Scope
from headrace.jobs.desk import JobDesk
from headrace.jobs.documents import job_document
from headrace.jobs.job import Job
from headrace.server.http import Exchange, Patience
from headrace.server.jobs.models import ProblemModel
from headrace.server.jobs.workroom import Workroom

WAIT_S_MAX: Final = 60.0
DOCUMENT_BYTES: Final = 1 << 20
"""What a submission may be larger than its payload."""
_JOB_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WHY: Final = {
    400: "What was sent is wrong; `error` names the field.",
    401: "No key, or an unknown one.",
    403: "The key may not do this.",
    404: "No such job, or none of yours.",
    408: "The body did not arrive in time.",
    409: "The job's state does not allow this.",
    410: "The result is no longer there.",
    413: "Larger than is taken here.",
    422: "The idempotency key stands for another submission.",
    429: "Too many wait: again after `Retry-After` seconds.",
    503: "The database or the store does not answer, or the queue takes nothing now: again after `Retry-After` seconds.",
}


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Of the HTTP API."""

    body_s_max: float = 300.0
    """How long a submission may take to arrive."""
    upload_idle_s: float = 60.0
    """How long an upload may be silent."""
    upload_s_max: float = 6 * 3600.0
    uploads_max: int = 64
    """Uploads through the API at one time."""
    heartbeat_s: float = 15.0
    """How often an event stream without events says that it is there."""
    stream_s_max: float = 3600.0
    """How long an event stream lasts; its reader comes again, and goes on where it was."""


class Api:
    """The desk behind HTTP. One for each application."""

    def __init__(self, desk: JobDesk, access: JobAccess, settings: ApiSettings, workroom: Workroom) -> None:
        self.desk = desk
        self.settings = settings
        self.workroom = workroom
        self.uploads = asyncio.Semaphore(settings.uploads_max)
        self._access = access
        self._patience = Patience(settings.body_s_max)

    def caller(self, request: Request, *scopes: Scope) -> JobKey:
        """Who asks, with one of these scopes at least. UnauthenticatedError, ForbiddenError."""
        return self._access.check(request.headers.get("authorization"), *scopes)

    async def body(self, request: Request, bytes_max: int) -> bytes:
        """The whole body, decompressed, bounded in bytes and time."""
        exchange = Exchange(request.scope, request.receive, _nothing, self._patience)
        return await exchange.body(bytes_max)

    async def waited(self, caller: JobKey, job_id: str, wait_s: float) -> Job:
        """The job once it has ended, or as it is after `wait_s`. No thread waits."""
        if wait_s <= 0:
            return await self.workroom.run(self.desk.get, caller, job_id)
        waiting = await self.workroom.run(self.desk.follow, caller, job_id, _ended)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waiting.job), wait_s)
        except TimeoutError:
            return await self.workroom.run(self.desk.get, caller, job_id)
        finally:
            self.desk.leave(waiting)


def job_id_of(text: str) -> str:
    """A job's id from a path. JobNotFoundError for what none can have, so that no database is asked for it."""
    if not _JOB_ID.fullmatch(text):
        raise JobNotFoundError(ascii(text[:80])[1:-1])
    return text.lower()


def answer(
    document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(document), status, headers, media_type="application/json")


def job_answer(job: Job, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A job as a response."""
    return answer(job_document(job), status, headers)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of a route's errors, beside those that all have."""
    every = sorted({400, 401, 403, 429, 503, *statuses})
    return {status: {"model": ProblemModel, "description": _WHY[status]} for status in every}


def _ended(job: Job) -> bool:
    return job.state.ended


async def _nothing(message: Any) -> None:
    """An exchange that only reads has nothing to send."""
