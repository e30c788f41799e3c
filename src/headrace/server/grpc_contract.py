"""What a carrier of gRPC calls and the methods that answer them know of each other."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Call(Protocol):
    """One call, as its carrier knows it."""

    def metadata(self, key: str) -> str | None:
        """The first value of a lower-case key; None where there is none."""
        ...

    def remaining_s(self) -> float | None:
        """Seconds until the caller stops waiting; None when it waits for ever."""
        ...


Unary = Callable[[Call, bytes], bytes | Awaitable[bytes]]
"""Gives the answer at once where nothing has to be waited for: a coroutine costs as much as a fast model."""
Stream = Callable[[Call, AsyncIterator[bytes]], AsyncGenerator[Sequence[bytes], None]]
"""Gives the messages that are there at once together: what passes them on does so once for many."""


@dataclass(frozen=True, slots=True)
class Method:
    """What answers a path: exactly one of `unary` and `stream`. Both take and give the bytes of messages.

    Whoever iterates a stream closes it. What is raised becomes a status through `errors`.
    """

    unary: Unary | None = None
    stream: Stream | None = None
