"""An HTTP server on loopback in a thread: the beginning and the end of the HTTP servers of the tests."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Self


class QuietHttpServer(ThreadingHTTPServer):
    """A server that prints no errors: clients that hang up are part of the tests."""

    def handle_error(self, request, client_address) -> None:
        """Do nothing."""


class HttpServerThread:
    """A server that accepts connections from its construction on, and serves them inside `with`.

    A subclass returns the class of its handlers from `_handler`. Handlers that hang wait for `closing`.
    """

    server_class: ClassVar[type[QuietHttpServer]] = QuietHttpServer

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.closing = threading.Event()
        self._scheme = "http" if tls is None else "https"
        self._server = self.server_class((host, port), self._handler())
        if tls is not None:
            # Each request's thread makes its own handshake: a bad client must not block the others.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        raise NotImplementedError
