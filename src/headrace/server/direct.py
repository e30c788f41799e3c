"""The seam between a connection and what answers it without an ASGI exchange.

An exchange costs a task, four messages and a dozen objects: more than a fast model. A request that came whole, in one piece,
can be answered in one call instead. What is not answered so goes the long way, as if nothing had happened.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol


class Reply(NamedTuple):
    """A whole response."""

    status: int
    head: bytes
    """Header lines, each with its line end, without the one that tells the length."""
    body: bytes


Later = Callable[[], Coroutine[Any, Any, Reply]]
"""A response that takes a while. The coroutine is cancelled when the caller goes."""


class Direct(Protocol):
    """Answers ``POST`` requests that came whole. Called in the event loop; must be quick, and raises nothing."""

    def route(self, target: bytes) -> Any:
        """What `answer` needs to know of a request's target, as it was sent; None: it is not answered here."""
        ...

    def answer(self, route: Any, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Reply | Later | None:
        """The response, now or later; None: this request is not for here. Names of headers are in lower case."""
        ...
