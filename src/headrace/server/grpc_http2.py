"""gRPC on a port of its own, carried by an ASGI server over HTTP/2: the other carrier, which `docs/adr/0010` compares."""

import asyncio
from typing import Final

from headrace.server.grpc_asgi import GrpcAsgi
from headrace.server.grpc_service import GrpcService
from headrace.server.listen import HttpListener

_LOOK_S: Final = 0.05


class GrpcHttp2Server(HttpListener):
    """Implements `Listener`. Without TLS: what that does to HTTP/2 here was never tried. MissingExtraError without zttp."""

    def __init__(self, service: GrpcService, host: str, port: int, *, message_bytes_max: int) -> None:
        super().__init__(GrpcAsgi(service, message_bytes_max=message_bytes_max), host, port, http2=True)
        self._service = service

    @property
    def address(self) -> str:
        """See `Listener`."""
        return super().address.replace("http://", "grpc://", 1)

    async def stop(self, grace_s: float) -> None:
        """See `Listener`."""
        self._service.drain()
        stopping = asyncio.ensure_future(super().stop(grace_s))
        while not stopping.done():
            # Channels keep their connections open for ever: what is waited for is calls.
            await asyncio.wait({stopping}, timeout=_LOOK_S)
            self.hurry_when_idle()
        await stopping
