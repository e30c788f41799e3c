"""The small server of a worker process: metrics, and probes of liveness and readiness."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import JobLedgerUnavailableError, StoppedError
from headrace.server.application import Guard, WebApp
from headrace.server.http import AsgiReceive, AsgiScope, AsgiSend, Exchange
from headrace.server.jobs.api import respond_json
from headrace.server.jobs.documents import HealthDocument
from headrace.server.listen import AsgiApp
from headrace.server.routes import route, routes_of


@dataclass(slots=True, eq=False)
class WorkerHealth:
    """The health of a worker process. Its owner changes `phase`."""

    models_ready: Callable[[], bool]
    ledger_ready: Callable[[], bool]
    """Returns True if the ledger responded lately. It may block for some seconds."""
    phase: Literal["starting", "running", "stopping"] = "starting"

    def check(self) -> None:
        """Raise StoppedError or JobLedgerUnavailableError unless the worker can run jobs."""
        if self.phase != "running":
            raise StoppedError(f"the worker is {self.phase}")
        if not self.models_ready():
            raise StoppedError("a model of the worker has lost its instances: see the worker's log")
        if not self.ledger_ready():
            raise JobLedgerUnavailableError(
                "the job ledger has not responded for the time of a lease: check its database"
            )


class HealthHandlers:
    """The handlers of probes. The job API has the same routes."""

    def __init__(self, health: WorkerHealth) -> None:
        self._health = health

    @route("GET", "/v1/health/live", (), HealthDocument)
    async def worker_live(self, exchange: Exchange) -> None:
        """Report that the process responds."""
        await respond_json(exchange, {"status": "ok"})

    @route("GET", "/v1/health/ready", (), HealthDocument)
    async def worker_ready(self, exchange: Exchange) -> None:
        """Report that the models are loaded, the ledger responds, and the worker does not stop."""
        await asyncio.to_thread(self._health.check)
        await respond_json(exchange, {"status": "ok"})


def worker_app(metrics: AsgiApp, health: WorkerHealth, guard: Guard) -> AsgiApp:
    """Return an application with ``/metrics`` and the probes, for one event loop."""
    probes = WebApp(routes_of(HealthHandlers(health)), guard)

    async def app(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        chosen = metrics if scope.get("path") == "/metrics" else probes
        await chosen(scope, receive, send)

    return app
