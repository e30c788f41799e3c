"""The contracts between listeners and the rest of the server.

A server opens and stops each socket through a `Listener`. A listener answers by an ASGI application
or by a table of `GrpcMethod`; a `DirectHandler` answers whole HTTP requests without ASGI.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol


class Listener(Protocol):
    """A listening socket and its protocol.

    The event loop of the server runs both `start` and `stop`.
    """

    @property
    def address(self) -> str:
        """The address as a URL. It is known before `start`, except for a port that the system chooses."""
        ...

    async def start(self) -> None:
        """Accept requests from now on.

        Raises:
            ConfigError: The listener cannot be opened.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Accept no more requests, finish the running ones, and cancel them after `grace_s` seconds.

        A second call meanwhile cancels them at once.
        """
        ...


class DirectResponse(NamedTuple):
    """A complete response."""

    status: int
    head: bytes
    """Header lines, each with its line end, without content-length."""
    body: bytes


DeferredResponse = Callable[[], Coroutine[Any, Any, DirectResponse]]
"""A response that takes time. The coroutine is cancelled when the client disconnects."""


class DirectHandler(Protocol):
    """A handler of ``POST`` requests that arrived whole, without an ASGI exchange.

    An exchange costs a task, four messages and a dozen objects, which is more than a fast model costs.
    A request that the handler declines becomes an ASGI exchange. The event loop calls the handler,
    which must be quick and must not raise.
    """

    def route(self, target: bytes) -> Any:
        """Return a value for `respond`, or None if this handler does not serve the target.

        `target` is the request target as sent.
        """
        ...

    def respond(
        self, route: Any, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> DirectResponse | DeferredResponse | None:
        """Return the response, a deferred response, or None to decline the request.

        The names of the headers are in lower case.
        """
        ...


StreamDialect = Literal["mlserver", "triton"]
"""The response formats of gRPC streams."""


class GrpcCall(Protocol):
    """One call, as its transport sees it."""

    __slots__ = ()

    def metadata(self, key: str) -> str | None:
        """Return the first value of a lower-case key, or None."""
        ...

    def remaining_s(self) -> float | None:
        """Return the seconds until the deadline of the call, or None without a deadline."""
        ...


UnaryHandler = Callable[[GrpcCall, bytes], bytes | Awaitable[bytes]]
"""A handler that returns a response, or an awaitable only if it has to wait: a coroutine costs as
much as a fast model.
"""
StreamHandler = Callable[[GrpcCall, AsyncIterator[bytes]], AsyncGenerator[Sequence[bytes], None]]
"""A handler that yields batches of messages. A batch has all messages that are ready."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """The handler of a path: exactly one of `unary` and `stream`.

    Both take and return encoded messages. The transport closes the stream that it iterates.
    Exceptions become statuses; see `errors`.
    """

    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
