"""`grpc.health.v1.Health` over a dataplane.

The server and each service of it serves while the server is ready; a model can be asked for by its name, too.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress

from headrace.core.errors import ModelNotFoundError
from headrace.protocols.oip_grpc.health import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    HealthCheckRequest,
    encode_health,
    encode_health_list,
)
from headrace.protocols.oip_grpc.messages import parsed
from headrace.server.grpc_contract import Call
from headrace.server.grpc_inference import Inference


class Health:
    """Check, List and Watch.

    Args:
        inference: Whose dataplane and gate are asked.
        services: Full names that are known beside "", which is the server as a whole.
        poll_s: How soon a watch notices a change.
    """

    def __init__(self, inference: Inference, services: Sequence[str], *, poll_s: float = 1.0) -> None:
        self._inference = inference
        self._services = ("", *services)
        self._poll_s = poll_s
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """From now on nothing is serving; watches say so, and end."""
        self._draining.set()

    def _status(self, service: str) -> int:
        dataplane = self._inference.dataplane
        try:
            ready = dataplane.ready() if service in self._services else dataplane.model_ready(service, "")
        except ModelNotFoundError:
            return SERVICE_UNKNOWN
        return SERVING if ready and not self._draining.is_set() else NOT_SERVING

    async def check(self, _: Call, data: bytes) -> bytes:
        """Health.Check; needs no key, since probes have none."""
        service: str = parsed(HealthCheckRequest, data).service
        status = self._status(service)
        if status == SERVICE_UNKNOWN:
            raise ModelNotFoundError(service[:200], "there is no service and no model of that name")
        return encode_health(status)

    async def list(self, call: Call, _: bytes) -> bytes:
        """Health.List."""
        self._inference.check(call)
        return encode_health_list({service: self._status(service) for service in self._services})

    async def watch(self, _: Call, messages: AsyncIterator[bytes]) -> AsyncGenerator[Sequence[bytes], None]:
        """Health.Watch: the status now, and whenever it changes, until the caller goes or the server stops."""
        service: str = parsed(HealthCheckRequest, await anext(messages, b"")).service
        told: int | None = None
        while True:
            draining = self._draining.is_set()
            status = self._status(service)
            if status != told:
                yield (encode_health(status),)
                told = status
            if draining:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._draining.wait()
