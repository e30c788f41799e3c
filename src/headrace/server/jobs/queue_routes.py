"""The routes of queues: list, pause, resume, drain, limit, and the number of workers they need."""

from dataclasses import asdict
from typing import Any, Final

from headrace.jobs.access import Scope
from headrace.jobs.service import queue_document
from headrace.server.http import Exchange
from headrace.server.jobs.api import DOCUMENT_BYTES_MAX, ERRORS, Api, client_key, queue_of, respond_json
from headrace.server.jobs.documents import (
    QueueChangeDocument,
    QueueDocument,
    QueuesDocument,
    ScaleDocument,
    ScaleQuery,
)
from headrace.server.routes import read_json, read_query, route

_READ: Final = (Scope.READ,)
_OPERATE: Final = (Scope.OPERATE,)
_PATH: Final = "/v1/queues/{queue}"


class QueueHandlers:
    """The handlers of the routes of queues. Their docstrings are the descriptions for clients."""

    def __init__(self, api: Api) -> None:
        self._service = api.service
        self._run = api.thread_pool.run

    @route("GET", "/v1/queues", _READ, QueuesDocument, errors=ERRORS)
    async def list_queues(self, exchange: Exchange) -> None:
        """List all queues that have ever had a job, sorted by name."""
        statuses = await self._run(self._service.queues, client_key(exchange))
        queues = [queue_document(status.settings, status.counts) for status in statuses]
        await respond_json(exchange, {"queues": queues})

    @route("GET", _PATH, _READ, QueueDocument, errors=ERRORS)
    async def get_queue(self, exchange: Exchange) -> None:
        """Return a queue. A queue that never had a job is empty."""
        status = await self._run(self._service.queue, client_key(exchange), queue_of(exchange))
        await respond_json(exchange, queue_document(status.settings, status.counts))

    @route(
        "PATCH", _PATH, _OPERATE, QueueDocument, request=(QueueChangeDocument,), errors=(*ERRORS, 408, 413)
    )
    async def limit_queue(self, exchange: Exchange) -> None:
        """Limit the waiting jobs of a queue. Submissions beyond the limit get the status 429."""
        change = read_json(QueueChangeDocument, await exchange.body(DOCUMENT_BYTES_MAX))
        await self._change(exchange, pending_max=change.pending_max)

    @route("POST", f"{_PATH}/pause", _OPERATE, QueueDocument, errors=ERRORS)
    async def pause_queue(self, exchange: Exchange) -> None:
        """Stop handing out jobs of a queue. Running jobs continue, and submissions are accepted."""
        await self._change(exchange, paused=True)

    @route("POST", f"{_PATH}/drain", _OPERATE, QueueDocument, errors=ERRORS)
    async def drain_queue(self, exchange: Exchange) -> None:
        """Refuse submissions to a queue. Its jobs are still processed."""
        await self._change(exchange, draining=True)

    @route("POST", f"{_PATH}/resume", _OPERATE, QueueDocument, errors=ERRORS)
    async def resume_queue(self, exchange: Exchange) -> None:
        """Hand out jobs of a queue and accept submissions again."""
        await self._change(exchange, paused=False, draining=False)

    @route("GET", f"{_PATH}/scale", _READ, ScaleDocument, query=ScaleQuery, errors=ERRORS)
    async def scale(self, exchange: Exchange) -> None:
        """Return the number of workers that a queue needs.

        If the number is unknown, the response is an error, never 0.
        """
        slots = read_query(ScaleQuery, exchange.query).slots_per_worker
        key, queue = client_key(exchange), queue_of(exchange)
        await respond_json(exchange, asdict(await self._run(self._service.scale, key, queue, slots)))

    async def _change(self, exchange: Exchange, **changes: Any) -> None:
        key, queue = client_key(exchange), queue_of(exchange)
        status = await self._run(self._service.change_queue, key, queue, changes)
        await respond_json(exchange, queue_document(status.settings, status.counts))
