"""A job's events, as server-sent events: what it is now, and then whenever that changes, until it has ended.

There is no log behind it: a reader that was away is told what the job is, not everything that it was meanwhile. The id of an event
is a mark of what was told, so that whoever comes again with ``Last-Event-ID`` is told nothing twice.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from headrace.core.errors import JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.access import Scope
from headrace.jobs.documents import job_document, mark_of, same_state
from headrace.jobs.job import Job
from headrace.protocols.sse import CONTENT_TYPE
from headrace.server.jobs.api import Api, job_id_of, problems

_HEARTBEAT: Final = b": still here\n\n"
_NO_CONTENT: Final = 204


def event_routes(api: Api) -> APIRouter:
    """The one route, for one API."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @router.get(
        "/{job_id}/events",
        response_class=Response,
        responses={
            200: {
                "description": "Events named `state` or `progress`, each with the whole job as its data; then `gone`, if it is deleted.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            204: {"description": "`Last-Event-ID` is that of the last event: the job has ended."},
            **problems(404),
        },
    )
    async def events(request: Request, job_id: str) -> Response:
        """Follow a job: its states and its progress, as they change. Ends when the job has ended."""
        caller = api.caller(request, Scope.READ)
        job = await api.workroom.run(api.desk.get, caller, job_id_of(job_id))
        seen = request.headers.get("last-event-id", "")
        if job.state.ended and seen == mark_of(job):
            return Response(status_code=_NO_CONTENT)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_events(api, job, seen), media_type=CONTENT_TYPE, headers=headers)

    return router


async def _events(api: Api, job: Job, seen: str) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + api.settings.stream_s_max
    while True:
        mark = mark_of(job)
        if mark != seen:
            yield _event(job, mark, seen)
            seen = mark
        if job.state.ended or loop.time() >= ends_s:
            return
        try:
            found = await _next(api, job.id, seen)
        except JobNotFoundError:
            yield b"event: gone\ndata: {}\n\n"
            return
        except (StoppedError, OverloadedError):
            # The reader comes again, and finds another server or a better time.
            return
        if found is None:
            yield _HEARTBEAT
        else:
            job = found


async def _next(api: Api, job_id: str, seen: str) -> Job | None:
    """The job as soon as there is news of it; None where there is none for a while."""
    waiting = api.desk.follow_on(job_id, lambda job: mark_of(job) != seen)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(waiting.job), api.settings.heartbeat_s)
    except TimeoutError:
        return None
    finally:
        api.desk.leave(waiting)


def _event(job: Job, mark: str, seen: str) -> bytes:
    name = b"progress" if same_state(mark, seen) else b"state"
    data = orjson.dumps(job_document(job))
    return b"".join((b"id: ", mark.encode(), b"\nevent: ", name, b"\ndata: ", data, b"\n\n"))
