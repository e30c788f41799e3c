"""gRPC on a port of its own, served by an ASGI server over HTTP/2; see `docs/adr/0010`."""

import asyncio
from typing import Final

from typing_extensions import override

from headrace.server.grpc_asgi import GrpcAsgi
from headrace.server.grpc_service import GrpcService
from headrace.server.listen import HttpListener

_POLL_S: Final = 0.05


class GrpcHttp2Server(HttpListener):
    """A gRPC listener without TLS, whose effect on HTTP/2 is untested here.

    Raises:
        MissingExtraError: The package zttp is missing.
    """

    def __init__(self, service: GrpcService, host: str, port: int, *, message_bytes_max: int) -> None:
        super().__init__(GrpcAsgi(service, message_bytes_max=message_bytes_max), host, port, http2=True)
        self._service = service

    @property
    @override
    def address(self) -> str:
        return super().address.replace("http://", "grpc://", 1)

    @override
    async def stop(self, grace_s: float) -> None:
        self._service.drain()
        stopping = asyncio.ensure_future(super().stop(grace_s))
        while not stopping.done():
            # gRPC clients keep idle connections open for ever, so only running calls are waited
            # for.
            await asyncio.wait({stopping}, timeout=_POLL_S)
            self.exit_when_idle()
        await stopping
