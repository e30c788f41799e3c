"""The routes of the registry of workers."""

from typing import Any, Final

from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.worker_registry import WorkerRecord, worker_document
from headrace.server.http import Exchange
from headrace.server.jobs.api import ERRORS, ApiHandlers, respond_json
from headrace.server.jobs.documents import WorkerDocument, WorkersDocument
from headrace.server.routes import route

_MONITOR: Final = (Scope.MONITOR,)
_OPERATE: Final = (Scope.OPERATE,)
_WORKER: Final = "/v1/workers/{worker}"


class WorkerHandlers(ApiHandlers):
    """The handlers of the routes of workers. Their docstrings are the descriptions for clients."""

    @route("GET", "/v1/workers", _MONITOR, WorkersDocument, errors=ERRORS)
    async def list_workers(self, exchange: Exchange) -> None:
        """List the workers, sorted by name, with those that stopped or were lost in the last 24 hours.

        At most 1000 are listed: those with the latest heartbeats.
        """
        records = await self._run(self._service.workers, exchange.client)
        await respond_json(exchange, {"workers": [_document(exchange.client, each) for each in records]})

    @route("GET", _WORKER, _MONITOR, WorkerDocument, errors=(*ERRORS, 404))
    async def get_worker(self, exchange: Exchange) -> None:
        """Return a worker. Keys with `operate` also see the ids of its running jobs."""
        key, name = exchange.client, exchange.arguments["worker"]
        await respond_json(exchange, _document(key, await self._run(self._service.worker, key, name)))

    @route("POST", f"{_WORKER}/drain", _OPERATE, WorkerDocument, errors=(*ERRORS, 404))
    async def drain_worker(self, exchange: Exchange) -> None:
        """Let a worker claim no more jobs. Its running jobs continue.

        Its state is `draining`, and `drained` once it has confirmed that and none of its jobs runs.
        """
        await self._set_draining(exchange, draining=True)

    @route("POST", f"{_WORKER}/undrain", _OPERATE, WorkerDocument, errors=(*ERRORS, 404))
    async def undrain_worker(self, exchange: Exchange) -> None:
        """Let a worker claim jobs again. A new start of the worker does the same."""
        await self._set_draining(exchange, draining=False)

    async def _set_draining(self, exchange: Exchange, *, draining: bool) -> None:
        key, name = exchange.client, exchange.arguments["worker"]
        record = await self._run(self._service.set_worker_draining, key, name, draining=draining)
        await respond_json(exchange, _document(key, record))


def _document(key: ApiKey, record: WorkerRecord) -> dict[str, Any]:
    return worker_document(record, for_operators=Scope.OPERATE in key.granted)
