"""The contract between gRPC transports and the methods that they call."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

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
