"""Routes of queues: look, pause, resume, drain, bound, and how many workers they want."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from headrace.jobs.access import Scope
from headrace.jobs.desk import QueueLook
from headrace.jobs.documents import queue_document
from headrace.server.jobs.api import Api, answer, problems
from headrace.server.jobs.models import QueueChangeModel, QueueModel, QueuesModel, ScaleModel

QueueName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


def queue_routes(api: Api) -> APIRouter:
    """All of them, for one API."""
    router = APIRouter(prefix="/v1/queues", tags=["queues"])
    desk, run = api.desk, api.workroom.run

    async def changed(request: Request, queue: str, **changes: Any) -> Response:
        caller = api.caller(request, Scope.OPERATE)
        return _answer(await run(desk.change_queue, caller, queue, changes))

    @router.get("", response_model=QueuesModel, responses=problems())
    async def queues(request: Request) -> Response:
        """All queues that there ever was a job for, by name."""
        caller = api.caller(request, Scope.READ)
        looks = await run(desk.queues, caller)
        return answer({"queues": [queue_document(look.settings, look.counts) for look in looks]})

    @router.get("/{queue}", response_model=QueueModel, responses=problems())
    async def queue_look(request: Request, queue: QueueName) -> Response:
        """One queue; an empty one where there never was a job for it."""
        caller = api.caller(request, Scope.READ)
        return _answer(await run(desk.queue, caller, queue))

    @router.patch("/{queue}", response_model=QueueModel, responses=problems())
    async def change(request: Request, queue: QueueName, change: QueueChangeModel) -> Response:
        """Bound the jobs that may wait in a queue: beyond that, submissions are answered with 429."""
        return await changed(request, queue, pending_max=change.pending_max)

    @router.post("/{queue}/pause", response_model=QueueModel, responses=problems())
    async def pause(request: Request, queue: QueueName) -> Response:
        """Give out none of its jobs. What runs goes on, and submissions are taken."""
        return await changed(request, queue, paused=True)

    @router.post("/{queue}/drain", response_model=QueueModel, responses=problems())
    async def drain(request: Request, queue: QueueName) -> Response:
        """Take no submissions. What is in it is worked on."""
        return await changed(request, queue, draining=True)

    @router.post("/{queue}/resume", response_model=QueueModel, responses=problems())
    async def resume(request: Request, queue: QueueName) -> Response:
        """Give out jobs and take submissions again."""
        return await changed(request, queue, paused=False, draining=False)

    @router.get("/{queue}/scale", response_model=ScaleModel, responses=problems())
    async def scale(
        request: Request,
        queue: QueueName,
        slots_per_worker: Annotated[
            int | None, Query(ge=1, le=10_000, description="Jobs that a worker runs at once.")
        ] = None,
    ) -> Response:
        """How many workers the queue wants. Where that is not known it is an error, never 0."""
        caller = api.caller(request, Scope.READ)
        return answer(asdict(await run(desk.scale, caller, queue, slots_per_worker)))

    return router


def _answer(look: QueueLook) -> Response:
    return answer(queue_document(look.settings, look.counts))
