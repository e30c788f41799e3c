"""One HTTP exchange of an ASGI server: bounded bodies in, whole or streamed bodies out."""

import asyncio
import gzip
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from headrace.core.errors import DataError, LimitError
from headrace.server.answers import UNKNOWN
from headrace.server.errors import CLIENT_GONE
from headrace.server.observation import Observation, safe_id
from headrace.server.overdue import Overdue

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
X_REQUEST_ID: Final = b"x-request-id"
WATCH_AFTER_S: Final = 0.02
"""How long an answer may take before it is watched whether its caller is still there: watching costs a task."""
BODY_S_MAX: Final = 300.0
"""How long a body may take to arrive: whoever sends slower holds a connection for nothing."""
INLINE_BYTES_MAX: Final = 64 << 10
"""Compressed bodies beyond this are decompressed in a thread: others wait for the event loop meanwhile."""

_REFUSES_GZIP = re.compile(rb"(?:gzip|\*)\s*;\s*q=0(?:\.0*)?\s*(?:,|$)")


class DisconnectedError(Exception):
    """The caller has gone; there is nobody to answer."""


class SlowBodyError(Exception):
    """The body did not arrive in time."""


class Patience:
    """How long exchanges of one application wait: for a body, and before their callers are watched."""

    def __init__(self, body_s_max: float = BODY_S_MAX) -> None:
        self.bodies = Overdue(body_s_max)
        self.answers = Overdue(WATCH_AFTER_S)


def echoed_id(sent: bytes) -> bytes | None:
    """What is echoed of the caller's ``X-Request-Id``; None for what may not stand in a header."""
    return safe_id(sent.decode("latin-1")).encode() or None


class Exchange:
    """A request and its response. Made for each request, so it is kept small."""

    __slots__ = (
        "_patience",
        "_read",
        "_receive",
        "_send",
        "action",
        "headers",
        "method",
        "observation",
        "path",
        "query",
        "request_id",
        "started",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, patience: Patience) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._patience = patience
        self.started = False
        """Whether the response was begun."""
        self.status = CLIENT_GONE
        """What was sent."""
        self.action = UNKNOWN
        self.observation: Observation | None = None
        """What is gathered for traces and logs; None: nobody asks."""
        self.request_id = self.headers.get(X_REQUEST_ID)
        """What responses carry as their ``X-Request-Id``."""
        if self.request_id is not None:
            self.request_id = echoed_id(self.request_id)
        self._read: bytes | None = None

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    # In

    async def body(self, bytes_max: int) -> bytes:
        """The whole body, decompressed where it is compressed.

        Raises LimitError beyond `bytes_max`, DataError for a broken one, SlowBodyError, DisconnectedError.
        """
        if self._read is not None:
            return self._read
        declared = self.headers.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        body = await self._in_time(bytes_max)
        if self.observation is not None:
            self.observation.bytes_in = len(body)
        encoding = self.headers.get(b"content-encoding")
        if encoding is None:
            return body
        if len(body) <= INLINE_BYTES_MAX:
            return decompressed(body, encoding, bytes_max)
        return await asyncio.to_thread(decompressed, body, encoding, bytes_max)

    def unread(self, body: bytes) -> None:
        """Let `body` give this, once more."""
        self._read = body

    async def _in_time(self, bytes_max: int) -> bytes:
        loop = asyncio.get_running_loop()
        limit = _Limit(asyncio.current_task(loop))
        bodies = self._patience.bodies
        bodies.watch(limit, loop)
        try:
            return await self._arriving(bytes_max)
        except asyncio.CancelledError:
            if limit.passed and limit.task.uncancel() == 0:
                raise SlowBodyError from None
            raise
        finally:
            bodies.done(limit)

    async def _arriving(self, bytes_max: int) -> bytes:
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            # Not a list of parts: of tiny chunks there may be millions.
            whole = bytearray(body)
            while message.get("more_body") and len(whole) <= bytes_max:
                message = await self._receive()
                whole += message.get("body", b"")
            body = bytes(whole)
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body

    async def while_connected(self, answering: Awaitable[Any]) -> Any:
        """What `answering` comes to; when the caller goes before, it is cancelled and DisconnectedError raised.

        Only what takes longer than `WATCH_AFTER_S` is watched.
        """
        task = asyncio.current_task()
        assert task is not None
        watch = _Watch(self._receive, task)
        answers = self._patience.answers
        answers.watch(watch, asyncio.get_running_loop())
        try:
            return await answering
        except asyncio.CancelledError:
            if watch.gone and task.uncancel() == 0:
                raise DisconnectedError from None
            raise
        finally:
            answers.done(watch)
            watch.end()

    # Out

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, extra: Headers = ()
    ) -> None:
        """A whole response."""
        self.started = True
        self.status = status
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *extra]
        if self.request_id is not None:
            headers.append((X_REQUEST_ID, self.request_id))
        if self.observation is not None:
            self.observation.bytes_out = len(body)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_nothing(self) -> None:
        """A response without a body: it is done (204)."""
        self.started = True
        self.status = 204
        headers = [] if self.request_id is None else [(X_REQUEST_ID, self.request_id)]
        await self._send({"type": "http.response.start", "status": 204, "headers": headers})
        await self._send({"type": "http.response.body", "body": b""})

    async def respond_compressed(
        self, status: int, body: bytes, content_type: bytes, bytes_min: int | None, extra: Headers = ()
    ) -> None:
        """A whole response, gzipped where it is long and the caller takes that."""
        if bytes_min is not None and len(body) >= bytes_min:
            body, encoding = await packed(body, self.headers.get(b"accept-encoding", b""))
            extra = [*extra, *encoding]
        await self.respond(status, body, content_type, extra)

    async def respond_streaming(
        self, content_type: bytes, parts: AsyncIterator[bytes], extra: Headers = ()
    ) -> None:
        """A body in parts, each sent when it comes. DisconnectedError when the caller goes, `parts` is closed then."""
        self.started = True
        self.status = 200
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache"), *extra]
        if self.request_id is not None:
            headers.append((X_REQUEST_ID, self.request_id))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        task = asyncio.current_task()
        assert task is not None
        watch = _Watch(self._receive, task)
        watch.late()
        try:
            async for part in parts:
                if self.observation is not None:
                    self.observation.bytes_out += len(part)
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        except asyncio.CancelledError:
            if watch.gone and task.uncancel() == 0:
                raise DisconnectedError from None
            raise
        finally:
            watch.end()
        await self._send({"type": "http.response.body", "body": b""})


class _Limit:
    """Cancels a task that waits too long."""

    __slots__ = ("passed", "task")

    def __init__(self, task: "asyncio.Task[Any] | None") -> None:
        assert task is not None
        self.task = task
        self.passed = False

    def late(self) -> None:
        self.passed = True
        self.task.cancel()


class _Watch:
    """Cancels a task when the caller goes."""

    __slots__ = ("_receive", "_task", "_watching", "gone")

    def __init__(self, receive: Receive, task: "asyncio.Task[Any]") -> None:
        self._receive = receive
        self._task = task
        self._watching: asyncio.Task[None] | None = None
        self.gone = False

    def late(self) -> None:
        """The answer takes long enough to be worth it."""
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._task.cancel()

    def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


def _too_large(bytes_max: int) -> LimitError:
    return LimitError(f"the body is larger than {bytes_max} bytes, which is the most that is taken here")


async def packed(body: bytes, accept_encoding: bytes) -> tuple[bytes, Headers]:
    """A body gzipped where the caller takes that, and the headers that say so."""
    vary = (b"vary", b"accept-encoding")
    if not takes_gzip(accept_encoding):
        return body, (vary,)
    return await asyncio.to_thread(gzip.compress, body, 1), ((b"content-encoding", b"gzip"), vary)


def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether an ``Accept-Encoding`` header names gzip, and does not name it to refuse it."""
    accepted = accept_encoding.lower()
    return b"gzip" in accepted and _REFUSES_GZIP.search(accepted) is None


def decompressed(body: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """A body without its content encoding, gzip (of one member), deflate or identity.

    Nothing beyond `bytes_max` is ever decompressed. Raises LimitError for more than that, and DataError for another encoding,
    for what is no whole stream, and for bytes that follow it.
    """
    name = encoding.decode("latin-1").strip().lower()
    if name in ("identity", ""):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise DataError(f"content encoding {name[:40]!r} is not taken here: use gzip or deflate")
    # 32: gzip or zlib, by what stands in the header.
    inflate = zlib.decompressobj(wbits=47)
    try:
        plain = inflate.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise DataError(f"the body is no whole {name} stream: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not inflate.eof:
        raise DataError("the compressed body ends early")
    if inflate.unused_data:
        raise DataError(f"{len(inflate.unused_data)} bytes follow the compressed body")
    return plain
