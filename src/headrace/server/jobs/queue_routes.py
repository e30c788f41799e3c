"""The routes of queues: list, pause, resume, drain, limit, and the number of workers they need."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from headrace.jobs.access import Scope
from headrace.jobs.documents import queue_document
from headrace.jobs.service import QueueStatus
from headrace.server.jobs.api import Api, error_responses, json_response
from headrace.server.jobs.models import QueueChangeModel, QueueModel, QueuesModel, ScaleModel

QueueName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


def queue_routes(api: Api) -> APIRouter:
    """Return the routes for one API."""
    router = APIRouter(prefix="/v1/queues", tags=["queues"])
    service, run = api.service, api.thread_pool.run

    async def changed(request: Request, queue: str, **changes: Any) -> Response:
        key = api.authorize(request, Scope.OPERATE)
        return _queue_response(await run(service.change_queue, key, queue, changes))

    @router.get("", summary="List queues", response_model=QueuesModel, responses=error_responses())
    async def list_queues(request: Request) -> Response:
        """List all queues that have ever had a job, sorted by name."""
        key = api.authorize(request, Scope.READ)
        statuses = await run(service.queues, key)
        return json_response(
            {"queues": [queue_document(status.settings, status.counts) for status in statuses]}
        )

    @router.get("/{queue}", summary="Get a queue", response_model=QueueModel, responses=error_responses())
    async def get_queue(request: Request, queue: QueueName) -> Response:
        """Return a queue. A queue that never had a job is empty."""
        key = api.authorize(request, Scope.READ)
        return _queue_response(await run(service.queue, key, queue))

    @router.patch("/{queue}", summary="Limit a queue", response_model=QueueModel, responses=error_responses())
    async def change(request: Request, queue: QueueName, change: QueueChangeModel) -> Response:
        """Limit the waiting jobs of a queue. Submissions beyond the limit get the status 429."""
        return await changed(request, queue, pending_max=change.pending_max)

    @router.post(
        "/{queue}/pause", summary="Pause a queue", response_model=QueueModel, responses=error_responses()
    )
    async def pause(request: Request, queue: QueueName) -> Response:
        """Stop handing out jobs of a queue. Running jobs continue, and submissions are accepted."""
        return await changed(request, queue, paused=True)

    @router.post(
        "/{queue}/drain", summary="Drain a queue", response_model=QueueModel, responses=error_responses()
    )
    async def drain(request: Request, queue: QueueName) -> Response:
        """Refuse submissions to a queue. Its jobs are still processed."""
        return await changed(request, queue, draining=True)

    @router.post(
        "/{queue}/resume", summary="Resume a queue", response_model=QueueModel, responses=error_responses()
    )
    async def resume(request: Request, queue: QueueName) -> Response:
        """Hand out jobs of a queue and accept submissions again."""
        return await changed(request, queue, paused=False, draining=False)

    @router.get(
        "/{queue}/scale",
        summary="Get the workers that a queue needs",
        response_model=ScaleModel,
        responses=error_responses(),
    )
    async def scale(
        request: Request,
        queue: QueueName,
        slots_per_worker: Annotated[
            int | None,
            Query(
                ge=1, le=10_000, description="Concurrent jobs of one worker; by default the server's setting."
            ),
        ] = None,
    ) -> Response:
        """Return the number of workers that a queue needs.

        If the number is unknown, the response is an error, never 0.
        """
        key = api.authorize(request, Scope.READ)
        return json_response(asdict(await run(service.scale, key, queue, slots_per_worker)))

    return router


def _queue_response(status: QueueStatus) -> Response:
    return json_response(queue_document(status.settings, status.counts))
