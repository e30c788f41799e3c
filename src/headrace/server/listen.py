"""An ASGI application on a socket. The door to uvicorn and uvloop; `connection` is the one to uvicorn's protocol."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.server.connection import KEEP_ALIVE_S, Connection, Shared
from headrace.server.direct import Direct
from headrace.server.http import Receive, Scope, Send

try:
    import uvicorn as _uvicorn
    import uvloop as _uvloop
except ImportError as _error:
    raise MissingExtraError("serve", "headrace serve") from _error

new_event_loop = _uvloop.new_event_loop
"""What a server's event loop is made by."""

_log = logging.getLogger("headrace.server")
BACKLOG: Final = 2048
_STARTED_POLL_S: Final = 0.005

AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Listener(Protocol):
    """A door of a server, open from `start` to `stop`, both in the server's event loop."""

    @property
    def address(self) -> str:
        """Where it listens, as people write it; known before `start`."""
        ...

    async def start(self) -> None:
        """Take requests from now on. Raises ConfigError when it cannot."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Take none any more, and finish those that are under way; after `grace_s` cancel them.

        Called a second time meanwhile it cancels them at once.
        """
        ...


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca` callers need a certificate that it has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class HttpListener:
    """Implements `Listener` over HTTP/1.1, and HTTP/2 where asked for. The socket is bound at once; ConfigError when it cannot be.

    What `direct` answers, over HTTP/1.1 alone, does not come to `app`.
    """

    def __init__(
        self,
        app: AsgiApp,
        host: str,
        port: int,
        tls: TlsFiles | None = None,
        *,
        direct: Direct | None = None,
        http2: bool = False,
    ) -> None:
        if http2 and find_spec("zttp") is None:
            raise MissingExtraError("http2", "gRPC carried by an ASGI server")
        self._socket = bound_socket(host, port)
        self._scheme = "http" if tls is None else "https"
        connection: Any = partial(Connection, shared=Shared(direct))
        config: Any = _uvicorn.Config(
            _without_lifespan(app),
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
    def address(self) -> str:
        """See `Listener`."""
        host, port = self._socket.getsockname()[:2]
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def port(self) -> int:
        """The port that it is bound to, also where it was asked for port 0."""
        return self._socket.getsockname()[1]

    async def start(self) -> None:
        """See `Listener`."""
        # Not `serve`, which would take the signals too.
        self._serving = serving = asyncio.ensure_future(self._server._serve([self._socket]))  # noqa: SLF001
        while not self._server.started:
            if serving.done():
                serving.result()
                raise ConfigError(f"{self.address} could not be served")
            await asyncio.sleep(_STARTED_POLL_S)

    def hurry_when_idle(self) -> None:
        """Once it is stopping: leave connections on which nothing is under way."""
        if self._server.should_exit and not self._server.server_state.tasks:
            self._server.force_exit = True

    async def stop(self, grace_s: float) -> None:
        """See `Listener`."""
        serving = self._serving
        if serving is None:
            self._socket.close()
            return
        self._config.timeout_graceful_shutdown = max(grace_s, 0.01)
        if self._server.should_exit:
            # The second time: what is under way is not waited for any more.
            self._server.force_exit = True
            for task in self._server.server_state.tasks:
                task.cancel()
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await asyncio.shield(serving)


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket bound to an address. ConfigError says why it cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{host} is no address of this machine: {error.strerror or error}") from error
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
    except OSError as error:
        made.close()
        raise ConfigError(
            f"port {port} of {host} cannot be had: {error.strerror or error}; give another port"
        ) from error
    made.set_inheritable(False)
    return made


def _without_lifespan(app: AsgiApp) -> AsgiApp:
    """A coroutine function, which uvicorn tells from a class by its kind."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)

    return served
