"""An ASGI application on a socket, served by uvicorn and uvloop.

This module adapts uvicorn's server; `headrace.server.connection` adapts its protocol class.
"""

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.core.predictor import Service
from headrace.server.connection import KEEP_ALIVE_S, ConnectionContext, HttpConnection
from headrace.server.http import AsgiReceive, AsgiScope, AsgiSend
from headrace.server.listener import DirectHandler, Listener, TlsFiles

try:
    import uvicorn as _uvicorn
    import uvloop as _uvloop
except ImportError as _error:
    raise MissingExtraError("serve", "headrace serve") from _error

new_event_loop = _uvloop.new_event_loop
"""The factory of a server's event loop."""

_log = logging.getLogger("headrace.server")
BACKLOG: Final = 2048
_STARTED_POLL_S: Final = 0.005
_THREAD_STOP_S: Final = 1.0

AsgiApp = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]


class HttpListener(Listener):
    """A listener for HTTP/1.1, and for HTTP/2 with `http2`. The constructor binds the socket.

    `direct` sees HTTP/1.1 requests first; `app` receives the requests that it declines.

    Raises:
        ConfigError: The address is in use, or a TLS file is unusable.
    """

    def __init__(
        self,
        app: AsgiApp,
        host: str,
        port: int,
        tls: TlsFiles | None = None,
        *,
        direct: DirectHandler | None = None,
        http2: bool = False,
    ) -> None:
        if http2 and find_spec("zttp") is None:
            raise MissingExtraError("http2", "gRPC over an ASGI server")
        self._socket = bind_socket(host, port)
        self._scheme = "http" if tls is None else "https"
        connection: Any = partial(HttpConnection, shared=ConnectionContext(direct))
        config: Any = _uvicorn.Config(
            app,
            interface="asgi3",
            http="zttp" if http2 else connection,
            http2=http2,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(KEEP_ALIVE_S),
            backlog=BACKLOG,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
            ssl_ca_certs=None if tls is None or tls.client_ca is None else str(tls.client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if tls is None or tls.client_ca is None else ssl.CERT_REQUIRED,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            self._socket.close()
            raise ConfigError(f"TLS cannot be set up with {tls}: {error}") from error
        self._config = config
        self._server: Any = _uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    @override
    def address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def port(self) -> int:
        """The port of the bound socket, also for a requested port of 0."""
        return self._socket.getsockname()[1]

    @override
    async def start(self) -> None:
        # `serve` would also install signal handlers.
        self._serving = serving = asyncio.ensure_future(self._server._serve([self._socket]))  # noqa: SLF001
        while not self._server.started:
            if serving.done():
                serving.result()
                raise ConfigError(f"the server on {self.address} did not start")
            await asyncio.sleep(_STARTED_POLL_S)

    def exit_when_idle(self) -> None:
        """If the listener is stopping and no request is running, close the idle connections."""
        if self._server.should_exit and not self._server.server_state.tasks:
            self._server.force_exit = True

    @override
    async def stop(self, grace_s: float) -> None:
        serving = self._serving
        if serving is None:
            self._socket.close()
            return
        self._config.timeout_graceful_shutdown = max(grace_s, 0.01)
        if self._server.should_exit:
            # On the second call, running requests are not waited for.
            self._server.force_exit = True
            for task in self._server.server_state.tasks:
                task.cancel()
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await asyncio.shield(serving)
        # A TLS connection is left if its client does not answer the end of TLS. uvloop's event loop may
        # never close while one is open.
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()


class ListenerThread(Service):
    """A listener in an event loop of its own thread, for a process without one. Use it once."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-listener", daemon=True)
        self._ended = False

    @property
    def address(self) -> str:
        """The address of the listener."""
        return self._listener.address

    @override
    def start(self) -> None:
        """Accept requests from now on. Raise ConfigError if the listener cannot be opened."""
        self._thread.start()
        self._run(self._listener.start())

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Close the listener. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        if not self._thread.is_alive():
            self._loop.run_until_complete(self._listener.stop(0))
        else:
            self._run(self._listener.stop(_THREAD_STOP_S if drain else 0))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to the address.

    Raises:
        ConfigError: The address is invalid or in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{host} is not an address of this machine: {error.strerror or error}") from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot bind port {port} of {host}: {error.strerror or error}; choose another port"
        ) from error
    bound.set_inheritable(False)
    return bound
