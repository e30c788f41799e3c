"""One HTTP/1.1 connection: uvicorn's protocol with bounds on heads, errors in our form, and a short way for hot requests.

The door to uvicorn's protocol; `listen` is the one to its server.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from headrace.core.errors import MissingExtraError
from headrace.protocols.oip_json import encode_error
from headrace.server.direct import Direct, Later, Reply
from headrace.server.overdue import Overdue

try:
    import httptools as _httptools
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE as _STATUS_LINES
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _HttpToolsProtocol
except ImportError as _error:
    raise MissingExtraError("serve", "headrace serve") from _error

_PARSER: Final = _httptools.__name__
"""What the protocol below parses with."""
HEAD_BYTES_MAX: Final = 64 << 10
"""Of the request line and the headers."""
HEAD_S_MAX: Final = 30.0
"""How long they may take to arrive."""
HELD_S_MAX: Final = 0.5
"""How long a body that may be answered directly has to come: most clients send it right behind its head."""
HELD_BYTES_MAX: Final = 1 << 20
"""And how large it may be: the long way reads no faster than a request is taken."""
KEEP_ALIVE_S: Final = 75.0
"""How long an idle connection is kept, or a little longer: longer than load balancers keep theirs, so that they are the ones to
close."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a listener have in common."""

    direct: Direct | None = None
    idle: Overdue = field(default_factory=lambda: Overdue(KEEP_ALIVE_S))
    held: Overdue = field(default_factory=lambda: Overdue(HELD_S_MAX))


class Connection(_HttpToolsProtocol):
    """What uvicorn makes for each connection; `shared` is the listener's.

    A ``POST`` that is soon whole, and not large, with nothing before it unanswered, is offered to `Shared.direct` first.
    Everything else, and what is refused there, is an ASGI exchange: its begin is held back until that is known.
    """

    def __init__(self, *, shared: Shared, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._direct = shared.direct
        self._idle = shared.idle
        self._waiting = shared.held
        self._in_head = True
        self._head_bytes = 0
        self._late: asyncio.TimerHandle | None = None
        self._held: list[bytes] | None = None
        """The body so far of a request that may be answered directly."""
        self._held_bytes = 0
        self._held_long: _HeldLong | None = None
        """There while the rest of it is waited for."""
        self._route: Any = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The head of a request must come soon."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_S_MAX, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """What is being answered is answered no longer."""
        self._on_time()
        if self._answering is not None:
            self._answering.cancel()
        self._release()
        super().connection_lost(exc)
        # Of a connection that was reset the timer would keep everything for as long as an idle one is kept.
        self._unset_keepalive_if_required()

    # Reading

    def data_received(self, data: bytes) -> None:
        """Bytes, whatever they are."""
        began_in_head = self._in_head
        super().data_received(data)
        if self._held is not None and self._held_long is None:
            self._held_long = _HeldLong(self)
            self._waiting.watch(self._held_long, self.loop)
        if not self._in_head or self.transport.is_closing():
            return
        # What came with the end of a body before is not counted, so that the bound is this and one read more.
        self._head_bytes += len(data) if began_in_head else 0
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, f"the head of the request is larger than {HEAD_BYTES_MAX} bytes")
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S_MAX, self.transport.close)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        self._head_bytes = 0
        if self._direct is None:
            super().on_message_begin()
            return
        # What the base class makes here is made when it is needed.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """The head is there: the way is chosen."""
        self._in_head = False
        self._on_time()
        if self._direct is None:
            super().on_headers_complete()
        elif self._may_be_direct() and (route := self._direct.route(self.url)) is not None:
            self._route = route
            self._held = []
            self._held_bytes = 0
        else:
            self.take_the_long_way()

    def _may_be_direct(self) -> bool:
        parser: Any = self.parser
        cycle: Any = self.cycle
        return (
            parser.get_method() == b"POST"
            and (cycle is None or cycle.response_complete)
            and not self.expect_100_continue
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.flow.write_paused
        )

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._held is None:
            super().on_body(body)
            return
        self._held.append(body)
        self._held_bytes += len(body)
        if self._held_bytes > HELD_BYTES_MAX:
            self.take_the_long_way()

    def on_message_complete(self) -> None:
        """The request is whole."""
        held = self._held
        if held is None:
            super().on_message_complete()
            return
        assert self._direct is not None
        body = held[0] if len(held) == 1 else b"".join(held)
        answer = self._direct.answer(self._route, self.headers, body)
        if answer is None:
            self.take_the_long_way()
            super().on_message_complete()
            return
        self._release()
        if isinstance(answer, Reply):
            self._send(answer, keep=True)
        else:
            self._answer_later(answer)

    def _release(self) -> Sequence[bytes]:
        """What is held, which is held no longer."""
        held, self._held = self._held or (), None
        if self._held_long is not None:
            self._waiting.done(self._held_long)
            self._held_long = None
        return held

    def take_the_long_way(self) -> None:
        """Tell the base class what it was not told so far."""
        held = self._release()
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = expects
        super().on_headers_complete()
        for part in held:
            super().on_body(part)

    # Answering directly

    def _answer_later(self, later: Later) -> None:
        cycle = _Answering()
        # The base class looks there whether the next request must wait.
        self.cycle = cycle  # pyright: ignore[reportAttributeAccessIssue]
        self._answering = task = self.loop.create_task(self._answered(later, cycle))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answered(self, later: Later, cycle: "_Answering") -> None:
        try:
            reply = await later()
            if self.flow.write_paused:
                await self.flow.drain()
        except BaseException:
            # The caller has gone, or the server goes: there is nothing that could be said.
            self.transport.close()
            raise
        finally:
            self._answering = None
            cycle.response_complete = True
        self._send(reply, keep=cycle.keep_alive)

    def _send(self, reply: Reply, *, keep: bool) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        status, head, body = reply
        told = [_STATUS_LINES[status]]
        for name, value in self.server_state.default_headers:
            told += (name, b": ", value, b"\r\n")
        if not keep:
            told.append(b"connection: close\r\n")
        told += (head, b"content-length: %d\r\n\r\n" % len(body), body)
        transport.write(b"".join(told))
        if not keep:
            transport.close()
        self.on_response_complete()

    # Idle connections

    def on_response_complete(self) -> None:
        """The connection is free for the next request."""
        # As the base class does, but for the timer: one for all connections, where it makes one for every request.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle.watch(self, self.loop)

    def shutdown(self) -> None:
        """The server stops: what has begun is finished."""
        if self._held is not None:
            # It has begun, so it is finished.
            self.take_the_long_way()
        super().shutdown()

    def _unset_keepalive_if_required(self) -> None:
        self._idle.done(self)

    def late(self) -> None:
        """It has been idle for too long."""
        self.timeout_keep_alive_handler()

    # Errors

    def _on_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._release()
        self._refuse(400, f"this is no HTTP that is understood here: {msg}")

    def _refuse(self, status: int, why: str) -> None:
        body = encode_error(why)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._on_time()
        self.transport.write(head.encode() + body)
        self.transport.close()


class _HeldLong:
    """A connection whose request does not become whole."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def late(self) -> None:
        self._connection.take_the_long_way()


class _Answering:
    """Stands where uvicorn keeps an exchange, while one request is answered directly."""

    def __init__(self) -> None:
        self.response_complete = False
        self.keep_alive = True
        """Taken away by uvicorn when the server stops."""
        self.disconnected = False
        self.message_event = asyncio.Event()
