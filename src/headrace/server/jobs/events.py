"""The route that streams a job as server-sent events: its state now and after every change.

The stream has no log behind it. A client that was away receives the current state, not all earlier
ones. The id of an event identifies the state that it reports, so a client that reconnects with
``Last-Event-ID`` receives no state twice.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from headrace.core.errors import JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.access import Scope
from headrace.jobs.documents import change_tag, job_document, same_state
from headrace.jobs.job import Job
from headrace.protocols.sse import CONTENT_TYPE
from headrace.server.jobs.api import Api, error_responses, parse_job_id

_HEARTBEAT: Final = b": still here\n\n"
_NO_CONTENT: Final = 204


def event_routes(api: Api) -> APIRouter:
    """Return the route for one API."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @router.get(
        "/{job_id}/events",
        summary="Stream a job's events",
        response_class=Response,
        responses={
            200: {
                "description": (
                    "Events `state` and `progress` with the whole job as data; `gone` if the job is deleted."
                ),
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            204: {"description": "The job has ended, and `Last-Event-ID` is the id of its last event."},
            **error_responses(404),
        },
    )
    async def events(request: Request, job_id: str) -> Response:
        """Stream the states and the progress of a job. The stream ends when the job has ended."""
        key = api.authorize(request, Scope.READ)
        job = await api.thread_pool.run(api.service.get, key, parse_job_id(job_id))
        last_tag = request.headers.get("last-event-id", "")
        if job.state.ended and last_tag == change_tag(job):
            return Response(status_code=_NO_CONTENT)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_event_stream(api, job, last_tag), media_type=CONTENT_TYPE, headers=headers)

    return router


async def _event_stream(api: Api, job: Job, last_tag: str) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + api.settings.stream_s_max
    while True:
        tag = change_tag(job)
        if tag != last_tag:
            yield _event(job, tag, last_tag)
            last_tag = tag
        if job.state.ended or loop.time() >= ends_s:
            return
        try:
            changed = await _next_change(api, job.id, last_tag)
        except JobNotFoundError:
            yield b"event: gone\ndata: {}\n\n"
            return
        except (StoppedError, OverloadedError):
            # The client reconnects, later or to another server.
            return
        if changed is None:
            yield _HEARTBEAT
        else:
            job = changed


async def _next_change(api: Api, job_id: str, last_tag: str) -> Job | None:
    """Return the job after its next change, or None after the heartbeat interval."""
    waiter = api.service.follow_again(job_id, lambda job: change_tag(job) != last_tag)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(waiter.job), api.settings.heartbeat_s)
    except TimeoutError:
        return None
    finally:
        api.service.leave(waiter)


def _event(job: Job, tag: str, last_tag: str) -> bytes:
    name = b"progress" if same_state(tag, last_tag) else b"state"
    data = orjson.dumps(job_document(job))
    return b"".join((b"id: ", tag.encode(), b"\nevent: ", name, b"\ndata: ", data, b"\n\n"))
