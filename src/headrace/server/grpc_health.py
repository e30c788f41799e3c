"""The service `grpc.health.v1.Health` over a dataplane.

The server and its services are serving while the server is ready. A client can also check a model
by its name.
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
from headrace.protocols.oip_grpc.messages import parse_message
from headrace.server.grpc_contract import GrpcCall
from headrace.server.grpc_inference import GrpcInference


class GrpcHealth:
    """The methods Check, List and Watch.

    Args:
        inference: The dataplane and the access check.
        services: The full names of known services, besides "" for the whole server.
        poll_s: The interval in seconds at which a watch looks for a change.
    """

    def __init__(self, inference: GrpcInference, services: Sequence[str], *, poll_s: float = 1.0) -> None:
        self._inference = inference
        self._services = ("", *services)
        self._poll_s = poll_s
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Report NOT_SERVING from now on. Watches report it and end."""
        self._draining.set()

    def _status(self, service: str) -> int:
        dataplane = self._inference.dataplane
        try:
            ready = dataplane.ready() if service in self._services else dataplane.model_ready(service, "")
        except ModelNotFoundError:
            return SERVICE_UNKNOWN
        return SERVING if ready and not self._draining.is_set() else NOT_SERVING

    async def check(self, _: GrpcCall, data: bytes) -> bytes:
        """Handle Health.Check. It needs no key, because probes have none."""
        service: str = parse_message(HealthCheckRequest, data).service
        status = self._status(service)
        if status == SERVICE_UNKNOWN:
            raise ModelNotFoundError(service[:200], "no service or model has this name")
        return encode_health(status)

    async def list(self, call: GrpcCall, _: bytes) -> bytes:
        """Handle Health.List."""
        self._inference.check(call)
        return encode_health_list({service: self._status(service) for service in self._services})

    async def watch(
        self, _: GrpcCall, messages: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Handle Health.Watch: yield the status now and after every change.

        The stream ends when the client disconnects or the server stops.
        """
        service: str = parse_message(HealthCheckRequest, await anext(messages, b"")).service
        sent_status: int | None = None
        while True:
            draining = self._draining.is_set()
            status = self._status(service)
            if status != sent_status:
                yield (encode_health(status),)
                sent_status = status
            if draining:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._draining.wait()
