"""gRPC over an ASGI server that supports HTTP/2 trailers, such as uvicorn with zttp.

gRPC and REST can share a port. It is an alternative to `grpc_aio` over the same methods. It needs
the ASGI extension ``http.response.trailers``.
"""

import asyncio
import re
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

from typing_extensions import override

from headrace.core.errors import DataError, DeadlineError, LimitError, StoppedError, UnsupportedError
from headrace.server.errors import STOPPING, GrpcCode, grpc_status, trailing_metadata
from headrace.server.http import AsgiReceive, AsgiSend
from headrace.server.listen import HttpListener
from headrace.server.listener import GrpcCall, GrpcMethod, GrpcMethods

MESSAGE_BYTES_MAX: Final = 64 << 20
CONTENT_TYPE: Final = b"application/grpc"
BUFFER_BYTES_MAX: Final = 64 << 10
"""The maximum size of the read-ahead buffer of a stream."""

_TRAILERS: Final = "http.response.trailers"
_PREFIX: Final = struct.Struct(">?I")
_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
# A status message is printable ASCII, except for the percent sign; other bytes are quoted.
_UNQUOTED: Final = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")
_POLL_S: Final = 0.05
_OK_TRAILERS: Final = ((b"grpc-status", str(GrpcCode.OK.value).encode()),)
_HEADERS: Final = (
    (b"content-type", b"application/grpc+proto"),
    (b"grpc-accept-encoding", b"identity,gzip,deflate"),
)


class GrpcAsgi:
    """An ASGI application for gRPC calls.

    Args:
        service: The methods.
        fallback: The application for requests that are not gRPC, such as REST; None refuses them (415).
        message_bytes_max: The maximum size of a received message, compressed and decompressed.
    """

    def __init__(
        self,
        service: GrpcMethods,
        *,
        fallback: Callable[[Any, AsgiReceive, AsgiSend], Awaitable[None]] | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._methods = service.methods()
        self._fallback = fallback
        self._message_bytes_max = message_bytes_max

    async def __call__(self, scope: Any, receive: AsgiReceive, send: AsgiSend) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            headers = dict(reversed(scope["headers"]))
            if headers.get(b"content-type", b"").startswith(CONTENT_TYPE):
                await self._respond(scope, headers, receive, send)
                return
        if self._fallback is not None:
            await self._fallback(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 415, "headers": []})
            await send({"type": "http.response.body", "body": b"this port serves only gRPC"})

    async def _respond(
        self, scope: Any, headers: dict[bytes, bytes], receive: AsgiReceive, send: AsgiSend
    ) -> None:
        if _TRAILERS not in scope.get("extensions", {}):
            await send({"type": "http.response.start", "status": 505, "headers": []})
            await send({"type": "http.response.body", "body": b"gRPC needs HTTP/2 with trailers"})
            return
        await send(
            {"type": "http.response.start", "status": 200, "headers": _HEADERS, "trailers": True},
        )
        messages = _Messages(receive, headers.get(b"grpc-encoding", b"identity"), self._message_bytes_max)
        error: BaseException | None = None
        deadline = asyncio.timeout(None)
        try:
            call = _AsgiCall(headers)
            async with deadline:
                deadline.reschedule(call.until)
                await self._run(self._methods.get(scope["path"]), call, messages, send)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not messages.client_disconnected or task is None or task.uncancel() > 0:
                await _end(send, StoppedError(STOPPING))
                raise
            return
        except Exception as caught:  # noqa: BLE001 - every error has a status
            error = DeadlineError("the deadline of the call has passed") if deadline.expired() else caught
        finally:
            messages.close()
        await _end(send, error)

    async def _run(
        self, method: GrpcMethod | None, call: "_AsgiCall", messages: "_Messages", send: AsgiSend
    ) -> None:
        if method is None:
            raise UnsupportedError("unknown gRPC method")
        if method.unary is not None:
            request = await anext(messages, None)
            if request is None:
                raise DataError("the call has no request message")
            messages.watch()
            response = method.unary(call, request)
            if not isinstance(response, bytes):
                response = await response
            await send({"type": "http.response.body", "body": _framed(response), "more_body": True})
            return
        assert method.stream is not None
        messages.watch()
        async with aclosing(method.stream(call, messages)) as batches:
            async for batch in batches:
                body = b"".join(map(_framed, batch))
                await send({"type": "http.response.body", "body": body, "more_body": True})


class _AsgiCall(GrpcCall):
    __slots__ = ("_headers", "_loop", "until")

    def __init__(self, headers: dict[bytes, bytes]) -> None:
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        limit_s = timeout_s(headers.get(b"grpc-timeout"))
        self.until = None if limit_s is None else self._loop.time() + limit_s
        """The deadline on the clock of the event loop, or None."""

    def metadata(self, key: str) -> str | None:
        value = self._headers.get(key.encode())
        return None if value is None else value.decode("latin-1")

    def remaining_s(self) -> float | None:
        return None if self.until is None else max(self.until - self._loop.time(), 0.0)


def timeout_s(value: bytes | None) -> float | None:
    """Return the seconds of a ``grpc-timeout`` header.

    Raises:
        DataError: The value is not a number of up to eight digits with a unit.
    """
    if value is None:
        return None
    found = _TIMEOUT.fullmatch(value.decode("latin-1"))
    if found is None:
        raise DataError(f"grpc-timeout must be a number and a unit, not {value[:40]!r}")
    return int(found[1]) * _UNITS_S[found[2]]


class _Messages:
    """The received messages of one call.

    A disconnect of the client cancels the task that created the object. A unary call reads its
    message itself and then watches the connection. A stream watches from the start: it reads ahead
    at most one message, or BUFFER_BYTES_MAX. While the buffer is full, nothing reads the
    connection, so a disconnect is noticed late.
    """

    def __init__(self, receive: AsgiReceive, encoding: bytes, message_bytes_max: int) -> None:
        self._receive = receive
        self._encoding = encoding
        self._bytes_max = message_bytes_max
        self._buffer = bytearray()
        self._more = True
        self._owner = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.client_disconnected = False

    def watch(self) -> None:
        """Read in a separate task from now on."""
        self._watching = asyncio.create_task(self._watch())

    def close(self) -> None:
        """Stop the reading task."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while not self.client_disconnected:
            while len(self._buffer) > BUFFER_BYTES_MAX and self._has_message_or_error():
                self._changed.clear()
                await self._changed.wait()
            await self._read()
            self._changed.set()
        if self._owner is not None:
            self._owner.cancel()

    async def _read(self) -> None:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            self._more, self.client_disconnected = False, True
            return
        self._buffer += event.get("body", b"")
        self._more = event.get("more_body", False)

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> bytes:
        while not self._has_message():
            if not self._more:
                if self._buffer:
                    raise DataError("the request ends inside a message")
                raise StopAsyncIteration
            if self._watching is None:
                await self._read()
            else:
                self._changed.clear()
                await self._changed.wait()
        compressed, size = _PREFIX.unpack_from(self._buffer)
        end = _PREFIX.size + size
        message = bytes(memoryview(self._buffer)[_PREFIX.size : end])
        del self._buffer[:end]
        self._changed.set()
        return _uncompressed(message, self._encoding, self._bytes_max) if compressed else message

    def _has_message_or_error(self) -> bool:
        try:
            return self._has_message()
        except LimitError:  # `__anext__` raises this error
            return True

    def _has_message(self) -> bool:
        """Return True if the next message is complete.

        Raises:
            LimitError: The next message is too large, as soon as its size is known.
        """
        if len(self._buffer) < _PREFIX.size:
            return False
        size: int = _PREFIX.unpack_from(self._buffer)[1]
        if size > self._bytes_max:
            raise _too_large(size, self._bytes_max)
        return len(self._buffer) >= _PREFIX.size + size


def _uncompressed(data: bytes, encoding: bytes, bytes_max: int) -> bytes:
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise UnsupportedError(f"messages may be compressed with gzip or deflate, not {encoding[:40]!r}")
    stream = zlib.decompressobj(bits)
    try:
        message = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise DataError(f"a compressed message cannot be read: {error}") from None
    if len(message) > bytes_max:
        raise _too_large(len(message), bytes_max)
    if not stream.eof:
        raise DataError("a compressed message ends early")
    return message


def _too_large(size: int, bytes_max: int) -> LimitError:
    return LimitError(f"a message has {size} bytes or more; the limit is {bytes_max}")


def _framed(message: bytes) -> bytes:
    return _PREFIX.pack(False, len(message)) + message


async def _end(send: AsgiSend, error: BaseException | None) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    await send({"type": "http.response.trailers", "headers": _trailers(error)})


def _trailers(error: BaseException | None) -> Iterable[tuple[bytes, bytes]]:
    if error is None:
        return _OK_TRAILERS
    code, why = grpc_status(error)
    return [
        (b"grpc-status", str(code.value).encode()),
        (b"grpc-message", quote(why, safe=_UNQUOTED).encode()),
        *((key.encode(), value.encode()) for key, value in trailing_metadata(error)),
    ]


class GrpcHttp2Server(HttpListener):
    """A gRPC listener without TLS, whose effect on HTTP/2 is untested here.

    Raises:
        MissingExtraError: The package zttp is missing.
    """

    def __init__(self, service: GrpcMethods, host: str, port: int, *, message_bytes_max: int) -> None:
        super().__init__(GrpcAsgi(service, message_bytes_max=message_bytes_max), host, port, http2=True)
        self._service = service

    @property
    @override
    def address(self) -> str:
        return super().address.replace("http://", "grpc://", 1)

    @override
    async def stop(self, grace_s: float) -> None:
        self._service.drain()
        stopping = asyncio.ensure_future(super().stop(grace_s))
        while not stopping.done():
            # gRPC clients keep idle connections open for ever, so only running calls are waited
            # for.
            await asyncio.wait({stopping}, timeout=_POLL_S)
            self.exit_when_idle()
        await stopping
