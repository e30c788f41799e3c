"""The default gRPC transport: grpc.aio. In the server, only this module imports grpcio."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.server.errors import grpc_status, trailing_metadata
from headrace.server.listener import (
    GrpcCall,
    GrpcMethod,
    GrpcMethods,
    Listener,
    StreamHandler,
    TlsFiles,
    UnaryHandler,
)

try:
    import grpc as _grpc
    from grpc import aio as _aio
except ImportError as _error:
    raise MissingExtraError("grpc", "serving over gRPC") from _error

grpc: Any = _grpc  # grpcio has no type annotations
aio: Any = _aio

_CODES: Final[dict[int, Any]] = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class GrpcAioSettings:
    """The settings of a gRPC listener.

    Attributes:
        host: The address to listen on; ``0.0.0.0`` and ``::`` mean all addresses.
        port: The port; 0 takes a free one.
        tls: The TLS files; None means plain HTTP/2.
        message_bytes_max: The maximum size of a message, in both directions.
        calls_max: The maximum number of concurrent calls. Further calls fail with RESOURCE_EXHAUSTED.
        streams_max: The maximum number of concurrent calls of one connection. The client holds further
            calls back. Under load, grpc's core keeps as many cancelled calls, about 14 KB each.
        keepalive_s: The seconds of silence after which a client is pinged.
        keepalive_timeout_s: The seconds that a pinged client has to respond.
        ping_interval_min_s: The minimum seconds between pings of a client; a faster client is
            disconnected.
    """

    host: str = "127.0.0.1"
    port: int = 8081
    tls: TlsFiles | None = None
    message_bytes_max: int = 64 << 20
    calls_max: int = 4096
    streams_max: int = 1024
    keepalive_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    ping_interval_min_s: float = 5.0

    def __post_init__(self) -> None:
        for name in (
            "message_bytes_max",
            "calls_max",
            "streams_max",
            "keepalive_s",
            "keepalive_timeout_s",
            "ping_interval_min_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} of the gRPC listener must be more than 0")


class GrpcAioServer(Listener):
    """A gRPC listener. Start and stop it in one event loop.

    A second `stop`, or a `stop` before `start`, does nothing.

    Args:
        service: The methods.
        settings: The address and the limits.
    """

    def __init__(self, service: GrpcMethods, settings: GrpcAioSettings | None = None) -> None:
        self._service = service
        self._settings = settings or GrpcAioSettings()
        self._server: Any = None
        self.port = 0
        """The port of the open listener; 0 before the start."""

    @property
    @override
    def address(self) -> str:
        host = self._settings.host
        scheme = "grpc" if self._settings.tls is None else "grpcs"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port or self._settings.port}"

    @override
    async def start(self) -> None:
        settings = self._settings
        server = aio.server(options=_options(settings), maximum_concurrent_rpcs=settings.calls_max)
        server.add_generic_rpc_handlers((_Handlers(self._service.methods()),))
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(settings.tls))
        except RuntimeError as error:
            raise ConfigError(
                f"gRPC cannot listen on {address}: {error}; if the port is in use, choose another"
            ) from error
        await server.start()
        self._server, self.port = server, port

    @override
    async def stop(self, grace_s: float = 0.0) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        self._service.drain()
        await server.stop(grace_s)
        self.port = 0


def _options(settings: GrpcAioSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.max_concurrent_streams", settings.streams_max),
        # Nothing here reads channelz records, and they cost a twentieth of a call.
        ("grpc.enable_channelz", 0),
        # Without this, a second server on the same port would silently get half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", round(settings.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(settings.ping_interval_min_s * 1000)),
    ]


def _credentials(tls: TlsFiles) -> Any:
    files = (tls.key, tls.certificate, tls.client_ca)
    try:
        key, certificate, authority = (file and file.read_bytes() for file in files)
    except OSError as error:
        raise ConfigError(f"a TLS file of the gRPC listener cannot be read: {error}") from error
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authority, require_client_auth=authority is not None
    )


class _Handlers(grpc.GenericRpcHandler):
    """The lookup of methods by path."""

    def __init__(self, methods: dict[str, GrpcMethod]) -> None:
        self._handlers = {path: _handler(method) for path, method in methods.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


class _AioCall(GrpcCall):
    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def metadata(self, key: str) -> str | None:
        for name, value in self._context.invocation_metadata() or ():
            if name == key:
                return value if isinstance(value, str) else value.decode("latin-1")
        return None

    def remaining_s(self) -> float | None:
        return self._context.time_remaining()


def _handler(method: GrpcMethod) -> Any:
    # There are no serializers: messages stay bytes until the service parses them.
    if method.unary is not None:
        return grpc.unary_unary_rpc_method_handler(_unary(method.unary))
    assert method.stream is not None
    return grpc.stream_stream_rpc_method_handler(_stream(method.stream))


def _unary(handler: UnaryHandler) -> Callable[[bytes, Any], Any]:
    async def handle(request: bytes, context: Any) -> bytes | None:
        try:
            response = handler(_AioCall(context), request)
            return response if isinstance(response, bytes) else await response
        except Exception as error:  # noqa: BLE001 - every error has a status
            await _abort(context, error)

    return handle


def _stream(handler: StreamHandler) -> Callable[[AsyncIterator[bytes], Any], Any]:
    # A coroutine that writes is faster than a generator, from which grpcio takes messages one by
    # one.
    async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
        write = context.write
        try:
            # The next messages are requested after these are written.
            async with aclosing(handler(_AioCall(context), requests)) as batches:
                async for batch in batches:
                    for message in batch:
                        await write(message)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - every error has a status
            await _abort(context, error)

    return handle


async def _abort(context: Any, error: Exception) -> None:
    code, why = grpc_status(error)
    await context.abort(_CODES[code], why, trailing_metadata(error))
