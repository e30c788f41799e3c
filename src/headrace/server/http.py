"""One HTTP exchange of an ASGI server: bounded request bodies, whole or streamed response bodies.

`OverdueWatch` holds the time limits of exchanges and of their connections.
"""

import asyncio
import gzip
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from headrace.core.errors import DataError, LimitError
from headrace.jobs.access import ApiKey
from headrace.server.errors import CLIENT_DISCONNECTED
from headrace.server.listener import BODY_S_MAX
from headrace.server.observation import UNKNOWN, RequestObservation, safe_id

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
X_REQUEST_ID: Final = b"x-request-id"
DISCONNECT_WATCH_AFTER_S: Final = 0.02
"""The seconds after which the connection of a running request is watched. Watching costs a task."""
CHECKS_PER_PERIOD: Final = 4
"""The number of checks within the time limit. An overdue item is noticed a quarter of the limit later."""
INLINE_BYTES_MAX: Final = 64 << 10
"""The maximum size of a compressed body that is decompressed in the event loop; larger ones go to a
thread.
"""

_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_REFUSES_GZIP = re.compile(rb"(?:gzip|\*)\s*;\s*q=0(?:\.0*)?\s*(?:,|$)")


class DisconnectedError(Exception):
    """The client disconnected; no response can be sent."""


class SlowBodyError(Exception):
    """The request body did not arrive in time."""


class OverdueWatch:
    """One timer for many waiting items, where one timer for each would cost more than the work.

    It calls back for every item that is not `done` after `after_s` seconds. A call may be late by a
    quarter of that time. A watch belongs to one event loop.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        # The items are in order of their time limits, because all limits are equally long.
        self._due: dict[Hashable, tuple[float, Callable[[], object]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, item: Hashable) -> bool:
        return item in self._due

    def watch(
        self, item: Hashable, on_overdue: Callable[[], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start the time of an item, anew if it is watched already."""
        self._due.pop(item, None)
        self._due[item] = (loop.time() + self._after_s, on_overdue)
        if self._timer is None:
            self._timer = loop.call_later(self._after_s / CHECKS_PER_PERIOD, self._check, loop)

    def done(self, item: Hashable) -> None:
        """Forget an item. Do nothing if it is unknown."""
        self._due.pop(item, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        overdue = list(takewhile(lambda entry: entry[1][0] <= now, self._due.items()))
        for item, _ in overdue:
            del self._due[item]
        if self._due:
            self._timer = loop.call_later(self._after_s / CHECKS_PER_PERIOD, self._check, loop)
        for _, (_, on_overdue) in overdue:
            on_overdue()


class HttpTimeouts:
    """The timers of one application: for request bodies, and before clients are watched."""

    def __init__(self, body_s_max: float = BODY_S_MAX) -> None:
        self.bodies = OverdueWatch(body_s_max)
        self.responses = OverdueWatch(DISCONNECT_WATCH_AFTER_S)


def echoed_request_id(sent: bytes) -> bytes | None:
    """Return the client's ``X-Request-Id`` if it is a safe header value, else None."""
    return safe_id(sent.decode("latin-1")).encode() or None


class Exchange:
    """One request and its response."""

    def __init__(
        self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend, timeouts: HttpTimeouts
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self._scope = scope
        self.receive = receive
        """Returns the next message of the client, for handlers that read the body in parts."""
        self._send = send
        self._timeouts = timeouts
        self.started = False
        """True once the start of the response was sent."""
        self.status = CLIENT_DISCONNECTED
        """The status of the response."""
        self.broken: int | None = None
        """The status that a stream would have had if its failure had come before its first byte."""
        self.action = UNKNOWN
        self.arguments: Mapping[str, str] = {}
        """The parameters of the path."""
        self.key: ApiKey | None = None
        """The key of the client; None for routes without a key."""
        self.observation: RequestObservation | None = None
        """The data for traces and logs, or None without observers."""
        self.request_id = self.headers.get(X_REQUEST_ID)
        """The ``X-Request-Id`` of the response."""
        if self.request_id is not None:
            self.request_id = echoed_request_id(self.request_id)
        self._read: bytes | None = None

    @property
    def client(self) -> ApiKey:
        """The key of the client, in the handler of a route with a scope."""
        assert self.key is not None, "the route has no scope"
        return self.key

    def header(self, name: bytes) -> str | None:
        """Return a header by its lower-case name, or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def traceparent(self) -> str:
        """The trace context for work that the request causes: that of its span, else the client's."""
        own = "" if self.observation is None else self.observation.traceparent
        return own or self.header(b"traceparent") or ""

    @property
    def origin(self) -> str:
        """The scheme, host and port under which the client sent the request.

        The client chooses the ``Host`` header. A header that is no host and port is replaced by the
        address of the socket.
        """
        host = self.header(b"host") or ""
        if not _HOST.fullmatch(host):
            name, port = self._scope.get("server") or ("localhost", None)
            name = f"[{name}]" if ":" in name else name
            host = name if port is None else f"{name}:{port}"
        return f"{self._scope.get('scheme', 'http')}://{host}"

    # Request

    async def body(self, bytes_max: int) -> bytes:
        """Return the whole request body, decompressed if it was compressed.

        Raises:
            LimitError: The body is larger than `bytes_max`.
            DataError: The body is malformed.
            SlowBodyError: The body did not arrive in time.
            DisconnectedError: The client disconnected.
        """
        if self._read is not None:
            return self._read
        declared = self.headers.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        body = await self._read_body(bytes_max)
        if self.observation is not None:
            self.observation.bytes_in = len(body)
        encoding = self.headers.get(b"content-encoding")
        if encoding is None:
            return body
        if len(body) <= INLINE_BYTES_MAX:
            return decompress_body(body, encoding, bytes_max)
        return await asyncio.to_thread(decompress_body, body, encoding, bytes_max)

    def put_back(self, body: bytes) -> None:
        """Make the next call of `body` return these bytes."""
        self._read = body

    async def _read_body(self, bytes_max: int) -> bytes:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        limit = _BodyTimeout(task)
        bodies = self._timeouts.bodies
        bodies.watch(limit, limit.on_overdue, loop)
        try:
            message = await self.receive()
            body: bytes = message.get("body", b"")
            if message.get("more_body"):
                # A body may consist of millions of tiny chunks, so the parts are not kept in a list.
                whole = bytearray(body)
                while message.get("more_body") and len(whole) <= bytes_max:
                    message = await self.receive()
                    whole += message.get("body", b"")
                body = bytes(whole)
        except asyncio.CancelledError:
            if limit.passed and task.uncancel() == 0:
                raise SlowBodyError from None
            raise
        finally:
            bodies.done(limit)
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body

    async def while_connected(self, awaitable: Awaitable[Any], *, at_once: bool = False) -> Any:
        """Await and return the result. Cancel the awaitable if the client disconnects first.

        The connection is watched only after `DISCONNECT_WATCH_AFTER_S` seconds, unless `at_once` is true.

        Raises:
            DisconnectedError: The client disconnected.
        """
        task = asyncio.current_task()
        assert task is not None
        watch = _DisconnectWatch(self.receive, task)
        responses = self._timeouts.responses
        if at_once:
            watch.start()
        else:
            responses.watch(watch, watch.start, asyncio.get_running_loop())
        try:
            return await awaitable
        except asyncio.CancelledError:
            if watch.disconnected and task.uncancel() == 0:
                raise DisconnectedError from None
            raise
        finally:
            responses.done(watch)
            if watch.watching is not None:
                watch.watching.cancel()

    # Response

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        extra: Headers = (),
        *,
        gzip_bytes_min: int | None = None,
    ) -> None:
        """Send a whole response.

        With `gzip_bytes_min`, a body of that size is gzipped if the client accepts gzip.
        """
        if gzip_bytes_min is not None and len(body) >= gzip_bytes_min:
            body, encoding = await compress_body(body, self.headers.get(b"accept-encoding", b""))
            extra = [*extra, *encoding]
        self.started = True
        self.status = status
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *extra]
        if status in (204, 304):
            headers = [*extra]
        if self.request_id is not None:
            headers.append((X_REQUEST_ID, self.request_id))
        if self.observation is not None:
            self.observation.bytes_out = len(body)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_streaming(
        self,
        content_type: bytes,
        parts: AsyncIterator[bytes],
        extra: Headers = (),
        *,
        status: int = 200,
        on_cancel: bytes | None = None,
    ) -> None:
        """Send a body in parts, each as soon as it is available.

        `on_cancel` is the last part if the server stops before the end of `parts`. Without it, the
        connection is closed then, so that the body does not look complete.

        Raises:
            DisconnectedError: The client disconnected. `parts` is closed.
        """
        self.started = True
        self.status = status
        headers = [(b"content-type", content_type), *extra]
        if self.request_id is not None:
            headers.append((X_REQUEST_ID, self.request_id))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        try:
            await self.while_connected(self._send_parts(parts), at_once=True)
        except asyncio.CancelledError:
            if on_cancel is not None:
                await self._send({"type": "http.response.body", "body": on_cancel})
            raise
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_parts(self, parts: AsyncIterator[bytes]) -> None:
        async for part in parts:
            if self.observation is not None:
                self.observation.bytes_out += len(part)
            await self._send({"type": "http.response.body", "body": part, "more_body": True})


@dataclass(eq=False, slots=True)
class _BodyTimeout:
    """Cancels a task that waits too long for a body."""

    task: asyncio.Task[Any]
    passed: bool = False

    def on_overdue(self) -> None:
        self.passed = True
        self.task.cancel()


@dataclass(eq=False, slots=True)
class _DisconnectWatch:
    """Cancels a task when the client disconnects."""

    receive: AsgiReceive
    task: asyncio.Task[Any]
    watching: asyncio.Task[None] | None = None
    disconnected: bool = False

    def start(self) -> None:
        self.watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        self.task.cancel()


def _too_large(bytes_max: int) -> LimitError:
    return LimitError(f"the body is larger than the limit of {bytes_max} bytes")


async def compress_body(body: bytes, accept_encoding: bytes) -> tuple[bytes, Headers]:
    """Return a body, gzipped if the client accepts gzip, and the headers that describe it."""
    vary = (b"vary", b"accept-encoding")
    if not accepts_gzip(accept_encoding):
        return body, (vary,)
    # Without a time, equal bodies have equal bytes.
    packed = await asyncio.to_thread(gzip.compress, body, 1, mtime=0)
    return packed, ((b"content-encoding", b"gzip"), vary)


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Return True if an ``Accept-Encoding`` header names gzip with a quality above 0."""
    accepted = accept_encoding.lower()
    return b"gzip" in accepted and _REFUSES_GZIP.search(accepted) is None


def decompress_body(body: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """Return a body without its content encoding: gzip (one member), deflate or identity.

    Never decompress more than `bytes_max` bytes.

    Raises:
        LimitError: The body is larger than `bytes_max`.
        DataError: The encoding is unknown, or the stream is incomplete or followed by other bytes.
    """
    name = encoding.decode("latin-1").strip().lower()
    if name in ("identity", ""):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise DataError(f"unsupported content encoding {name[:40]!r}: use gzip or deflate")
    # 47 accepts both gzip and zlib headers.
    inflate = zlib.decompressobj(wbits=47)
    try:
        plain = inflate.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise DataError(f"the body is not a complete {name} stream: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not inflate.eof:
        raise DataError("the compressed body ends early")
    if inflate.unused_data:
        raise DataError(f"{len(inflate.unused_data)} bytes follow the compressed body")
    return plain
