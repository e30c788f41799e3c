"""A receiver of webhooks on loopback, over HTTP or HTTPS, with scripted good and bad responses."""

import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from servers.http_server import HttpServerThread

WAIT_S = 20.0


@dataclass(frozen=True)
class Request:
    """A received request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """The response to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    never: bool = False
    """Send no response until the receiver is closed."""
    drip_s: float = 0.0
    """Send one byte of an endless body per `drip_s` seconds."""
    drip_head_s: float = 0.0
    """The same with the head of the response."""
    endless: bool = False
    """Repeat the body until the client closes the connection."""
    cut: bool = False
    """Close the connection without a response."""


class Receiver(HttpServerThread):
    """Each request uses up one of `replies`, then gets `reply`; `answer` overrides both."""

    def __init__(self, *, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.replies: list[Reply] = []
        self.reply = Reply()
        self.answer: Callable[[Request], Reply] | None = None
        self.requests: list[Request] = []
        self.sent_bytes = 0
        """Bytes sent of endless bodies."""
        self._changed = threading.Condition()
        super().__init__(host=host, port=port, tls=tls)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def wait_for(self, count: int, nudge: Callable[[], None] | None = None) -> list[Request]:
        """Wait for `count` requests and return them. `nudge` is called now and then meanwhile."""
        with self._changed:
            for _ in range(int(WAIT_S / 0.02)):
                if self._changed.wait_for(lambda: len(self.requests) >= count, 0.02):
                    return self.requests[:count]
                if nudge is not None:
                    nudge()
        raise AssertionError(f"{len(self.requests)} requests arrived, not {count}")

    def _next(self, request: Request) -> Reply:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            if self.answer is not None:
                return self.answer(request)
            return self.replies.pop(0) if self.replies else self.reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(length)
                reply = receiver._next(Request(self.command, self.path, headers, body))
                self.close_connection = True
                if reply.never:
                    receiver.closing.wait(WAIT_S)
                elif reply.drip_head_s:
                    self.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000, reply.drip_head_s)
                elif not reply.cut:
                    self.reply(reply)

            do_GET = do_HEAD = do_POST  # noqa: N815

            def reply(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                unbounded = reply.drip_s or reply.endless
                self.send_header("Content-Length", str(10 << 30 if unbounded else len(reply.body)))
                self.end_headers()
                if reply.drip_s:
                    self.drip(b"x" * 10_000, reply.drip_s)
                while reply.endless:
                    receiver.sent_bytes += self.connection.send(reply.body)
                if not unbounded:
                    self.wfile.write(reply.body)

            def drip(self, data: bytes, every_s: float) -> None:
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    if receiver.closing.wait(every_s):
                        return

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that no process listens on."""
    with socket.create_server((host, 0)) as held:
        return held.getsockname()[1]
