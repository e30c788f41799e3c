"""One HTTP/1.1 connection: uvicorn's protocol with limits on request heads and a fast path.

This module adapts uvicorn's protocol class; `headrace.server.listen` adapts its server. Protocol
errors are responses in the JSON error format of headrace.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import MissingExtraError
from headrace.protocols.oip_documents import encode_error
from headrace.server.http import OverdueWatch
from headrace.server.listener import DeferredResponse, DirectHandler, DirectResponse

try:
    import httptools as _httptools
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE as _STATUS_LINES
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _HttpToolsProtocol
except ImportError as _error:
    raise MissingExtraError("serve", "headrace serve") from _error

_PARSER: Final = _httptools.__name__
"""The library that parses requests for uvicorn's protocol class."""
HEAD_BYTES_MAX: Final = 64 << 10
"""The maximum size of the request line and headers."""
HEAD_S_MAX: Final = 30.0
"""The maximum seconds for the head of a request to arrive, or a little more."""
BODY_IDLE_S_MAX: Final = 60.0
"""The maximum seconds between two parts of a request body, or a little more."""
DIRECT_WAIT_S_MAX: Final = 0.5
"""The seconds to wait for the body of a direct request. Most clients send it right after the head."""
DIRECT_BODY_BYTES_MAX: Final = 1 << 20
"""The maximum body size of a direct request. Larger bodies need the flow control of ASGI."""
KEEP_ALIVE_S: Final = 75.0
"""The seconds after which an idle connection is closed, or a little later. Load balancers keep
theirs for a shorter time, so that they close first.
"""


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The state that all connections of one listener share."""

    direct: DirectHandler | None = None
    heads: OverdueWatch = field(default_factory=lambda: OverdueWatch(HEAD_S_MAX))
    idle: OverdueWatch = field(default_factory=lambda: OverdueWatch(KEEP_ALIVE_S))
    incomplete: OverdueWatch = field(default_factory=lambda: OverdueWatch(DIRECT_WAIT_S_MAX))
    silent: OverdueWatch = field(default_factory=lambda: OverdueWatch(BODY_IDLE_S_MAX))


class HttpConnection(_HttpToolsProtocol):
    """The protocol object of one connection. uvicorn creates one for each accepted socket.

    A ``POST`` request goes to `ConnectionContext.direct` first if its body arrives soon and is
    small, and if no earlier request of the connection is unanswered. All other requests, and
    requests that the direct handler declines, are ASGI exchanges. The start of such an exchange is
    delayed until the path of the request is decided.

    A client that sends nothing for `BODY_IDLE_S_MAX` seconds in the middle of a body is refused (408).

    `shared` is the context of the listener.
    """

    def __init__(self, *, shared: ConnectionContext, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._direct = shared.direct
        self._heads = shared.heads
        self._idle = shared.idle
        self._incomplete_watch = shared.incomplete
        self._silent_watch = shared.silent
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._body_parts: list[bytes] | None = None
        """The parts of the body so far, of a request that may be answered directly; else None."""
        self._body_bytes = 0
        self._is_incomplete = False
        """True while the watch for incomplete requests has this connection."""
        self._route: Any = None
        self._response_task: asyncio.Task[None] | None = None

    @override
    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._heads.watch(self, transport.close, self.loop)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._heads.done(self)
        if self._response_task is not None:
            self._response_task.cancel()
        self._release()
        self._silent_watch.done(self)
        super().connection_lost(exc)
        # A timer would keep the objects of a reset connection in memory for the whole idle time.
        self._unset_keepalive_if_required()

    # Reading

    @override
    def data_received(self, data: bytes) -> None:
        began_in_head, began_in_body = self._in_head, self._in_body
        super().data_received(data)
        if self._body_parts is not None and not self._is_incomplete:
            self._is_incomplete = True
            self._incomplete_watch.watch(self, self._begin_asgi_exchange, self.loop)
        if self._in_body and not self.transport.is_closing():
            self._silent_watch.watch(self, self._on_body_silence, self.loop)
        elif began_in_body:
            self._silent_watch.done(self)
        if not self._in_head or self.transport.is_closing():
            return
        # Bytes of the head that arrived with the end of the previous body are not counted, so that
        # the limit is HEAD_BYTES_MAX plus one read.
        self._head_bytes += len(data) if began_in_head else 0
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES_MAX} bytes")
        elif self not in self._heads:
            self._heads.watch(self, self.transport.close, self.loop)

    @override
    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._direct is None:
            super().on_message_begin()
            return
        # The objects that the base class creates here are created later, if they are needed.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    @override
    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        self._heads.done(self)
        if self._direct is None:
            super().on_headers_complete()
        elif self._may_be_direct() and (route := self._direct.route(self.url)) is not None:
            self._route = route
            self._body_parts = []
            self._body_bytes = 0
        else:
            self._begin_asgi_exchange()

    def _may_be_direct(self) -> bool:
        parser: Any = self.parser
        exchange: Any = self.cycle
        return (
            parser.get_method() == b"POST"
            and (exchange is None or exchange.response_complete)
            and not self.expect_100_continue
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.flow.write_paused
        )

    @override
    def on_body(self, body: bytes) -> None:
        if self._body_parts is None:
            super().on_body(body)
            return
        self._body_parts.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > DIRECT_BODY_BYTES_MAX:
            self._begin_asgi_exchange()

    @override
    def on_message_complete(self) -> None:
        self._in_body = False
        parts = self._body_parts
        if parts is None:
            super().on_message_complete()
            return
        assert self._direct is not None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        response = self._direct.respond(self._route, self.headers, body)
        if response is None:
            self._begin_asgi_exchange()
            super().on_message_complete()
            return
        self._release()
        if isinstance(response, DirectResponse):
            self._send(response, keep=True)
        else:
            self._respond_later(response)

    def _release(self) -> Sequence[bytes]:
        """Stop buffering the body and return the parts that arrived so far."""
        parts, self._body_parts = self._body_parts or (), None
        if self._is_incomplete:
            self._is_incomplete = False
            self._incomplete_watch.done(self)
        return parts

    def _begin_asgi_exchange(self) -> None:
        """Report the buffered request to the base class, and handle it as an ASGI exchange."""
        parts = self._release()
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = expects
        super().on_headers_complete()
        for part in parts:
            super().on_body(part)

    def _on_body_silence(self) -> None:
        """Refuse the request, or close the connection if the request is answered already."""
        if self._body_parts is None:
            exchange: Any = self.cycle
            if exchange.response_complete:
                self.transport.close()
                return
            # The client waits for the server: to read, to ask for the body, or to end its response.
            if self.flow.read_paused or exchange.waiting_for_100_continue or exchange.response_started:
                self._silent_watch.watch(self, self._on_body_silence, self.loop)
                return
        self._release()
        self._refuse(408, "the body did not arrive in time")

    # Direct responses

    def _respond_later(self, deferred: DeferredResponse) -> None:
        exchange = _DirectExchange()
        # The base class reads this attribute to decide whether the next request must wait.
        self.cycle = exchange  # pyright: ignore[reportAttributeAccessIssue]
        self._response_task = task = self.loop.create_task(self._respond_deferred(deferred, exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _respond_deferred(self, deferred: DeferredResponse, exchange: "_DirectExchange") -> None:
        try:
            response = await deferred()
            if self.flow.write_paused:
                await self.flow.drain()
        except BaseException:
            # The client disconnected, or the server stops: no response can be sent.
            self.transport.close()
            raise
        finally:
            self._response_task = None
            exchange.response_complete = True
        self._send(response, keep=exchange.keep_alive)

    def _send(self, response: DirectResponse, *, keep: bool) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        status, head, body = response
        lines = [_STATUS_LINES[status]]
        for name, value in self.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
        if not keep:
            lines.append(b"connection: close\r\n")
        lines += (head, b"content-length: %d\r\n\r\n" % len(body), body)
        transport.write(b"".join(lines))
        if not keep:
            transport.close()
        self.on_response_complete()

    # Idle connections

    @override
    def on_response_complete(self) -> None:
        # This does the work of the base class with one timer for all connections instead of one per
        # request.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle.watch(self, self.timeout_keep_alive_handler, self.loop)

    @override
    def shutdown(self) -> None:
        if self._body_parts is not None:
            # A request that has begun is finished.
            self._begin_asgi_exchange()
        super().shutdown()

    def _unset_keepalive_if_required(self) -> None:
        self._idle.done(self)

    # Errors

    @override
    def send_400_response(self, msg: str) -> None:
        self._release()
        self._refuse(400, f"malformed HTTP request: {msg}")

    def _refuse(self, status: int, why: str) -> None:
        body = encode_error(why)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._heads.done(self)
        self.transport.write(head.encode() + body)
        self.transport.close()


class _DirectExchange:
    """A stand-in for uvicorn's exchange object while the direct handler answers a request."""

    def __init__(self) -> None:
        self.response_complete = False
        self.keep_alive = True
        """uvicorn sets this to False when the server stops."""
        self.disconnected = False
        self.message_event = asyncio.Event()
