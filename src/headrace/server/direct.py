"""The contract between a connection and the fast path that answers requests without ASGI.

An ASGI exchange costs a task, four messages and a dozen objects, which is more than a fast model
costs. A request that arrived whole can be answered by one call instead. A request that the fast
path declines becomes an ASGI exchange.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol


class DirectResponse(NamedTuple):
    """A complete response."""

    status: int
    head: bytes
    """Header lines, each with its line end, without content-length."""
    body: bytes


DeferredResponse = Callable[[], Coroutine[Any, Any, DirectResponse]]
"""A response that takes time. The coroutine is cancelled when the client disconnects."""


class DirectHandler(Protocol):
    """A handler of ``POST`` requests that arrived whole.

    The event loop calls it. It must be quick and must not raise.
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
