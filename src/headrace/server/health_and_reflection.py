"""The services that any gRPC listener offers: health checks and reflection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress

from headrace.core.errors import ModelNotFoundError
from headrace.protocols.health_and_reflection import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    HealthCheckRequest,
    Reflection,
    encode_health_list,
)
from headrace.protocols.protobuf import HEALTH, REFLECTIONS, encode_message, parse_message
from headrace.server.listener import GrpcCall, GrpcMethod, StreamHandler

CheckCall = Callable[[GrpcCall], object]
"""A check of the client's key. It raises the errors of `GrpcInference.check`."""


def _check_nothing(_: GrpcCall) -> None:
    pass


class GrpcHealth:
    """The service `grpc.health.v1.Health`: Check, List and Watch.

    Args:
        status: The status of a service by its name: SERVING, NOT_SERVING or SERVICE_UNKNOWN. The event
            loop calls it often, so it must not wait.
        services: The names of the services that List returns; "" is the whole server.
        check: The check of a List. Probes have no key, so Check and Watch need none.
        poll_s: The interval in seconds at which a watch looks for a change.
    """

    def __init__(
        self,
        status: Callable[[str], int],
        services: Sequence[str],
        *,
        check: CheckCall = _check_nothing,
        poll_s: float = 1.0,
    ) -> None:
        self._status_of = status
        self._services = services
        self._check = check
        self._poll_s = poll_s
        self._draining = asyncio.Event()

    def methods(self) -> dict[str, GrpcMethod]:
        """Return every method by its path."""
        return {
            f"/{HEALTH}.Health/Check": GrpcMethod(unary=self.check),
            f"/{HEALTH}.Health/List": GrpcMethod(unary=self.list),
            f"/{HEALTH}.Health/Watch": GrpcMethod(stream=self.watch),
        }

    def drain(self) -> None:
        """Report NOT_SERVING from now on. Watches report it and end."""
        self._draining.set()

    def _status(self, service: str) -> int:
        status = self._status_of(service)
        return NOT_SERVING if status == SERVING and self._draining.is_set() else status

    async def check(self, _: GrpcCall, data: bytes) -> bytes:
        """Handle Health.Check. It needs no key, because probes have none."""
        service: str = parse_message(HealthCheckRequest, data).service
        status = self._status(service)
        if status == SERVICE_UNKNOWN:
            raise ModelNotFoundError(service[:200], "no service or model has this name")
        return encode_message("HealthCheckResponse", package=HEALTH, status=status)

    async def list(self, call: GrpcCall, _: bytes) -> bytes:
        """Handle Health.List."""
        self._check(call)
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
                yield (encode_message("HealthCheckResponse", package=HEALTH, status=status),)
                sent_status = status
            if draining:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._draining.wait()


def reflection_methods(
    paths: Iterable[str], *, check: CheckCall = _check_nothing, wrapped_streams: bool = False
) -> dict[str, GrpcMethod]:
    """Return the methods of both versions of reflection, by their paths.

    Args:
        paths: The paths of the other methods of the server. Only their packages are described.
        check: The check of a call.
        wrapped_streams: Describe streams of inference in Triton's form.
    """
    served = {path[1:].partition("/")[0].rpartition(".")[0] for path in paths} | {*REFLECTIONS}
    return {
        f"/{package}.ServerReflection/ServerReflectionInfo": GrpcMethod(
            stream=_respond_with(Reflection(package, served, wrapped_streams=wrapped_streams), check)
        )
        for package in REFLECTIONS
    }


def _respond_with(reflection: Reflection, check: CheckCall) -> StreamHandler:
    async def responses(
        call: GrpcCall, messages: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        check(call)
        async for message in messages:
            yield (reflection.respond(message),)

    return responses
