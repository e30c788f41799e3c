"""What a dispatcher needs of a broker: one connection, used by one thread, that sends and takes messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

KEEP_ALIVE_S = 10.0
"""How often a connection that nobody uses is given the chance to answer the broker's heartbeats."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a message carries."""

    queue: str
    job_id: str

    def encoded(self) -> bytes:
        """As JSON, for brokers whose messages are bytes or text."""
        return orjson.dumps({"queue": self.queue, "job_id": self.job_id})


@dataclass(frozen=True, slots=True)
class Taken:
    """How many messages were taken, and of how many the broker says that it had handed them out before."""

    messages: int = 0
    redelivered: int = 0


class Link(Protocol):
    """A connection to a broker, made when the object is. One thread at a time uses it; `interrupt` may be called by any.

    Every method raises ConnectionError, in words fit for a log (no credentials), when the broker cannot be asked or
    refuses; the link is of no use any more then, and is closed and made anew. No call outlasts its own time by more than
    the link's timeout, also when the broker does not answer at all.
    """

    def send(self, announcements: Sequence[Announcement]) -> None:
        """Send a message for each; returns when the broker has them all."""
        ...

    def take(self, count: int, timeout_s: float) -> Taken:
        """Take up to `count` messages of the link's queues, waiting up to `timeout_s` for the first.

        May take some more, where there are several queues, and may return earlier, also with none. What is taken is
        acknowledged and gone.
        """
        ...

    def keep_alive(self) -> None:
        """Answer what the broker asks of idle connections; does not wait."""
        ...

    def interrupt(self) -> None:
        """Make a `take` that waits return soon, where the broker allows that. Never raises."""
        ...

    def close(self) -> None:
        """Disconnect. Never raises; twice does nothing."""
        ...


class Broker(Protocol):
    """Makes links to one broker."""

    @property
    def name(self) -> str:
        """For logs and messages: kind and address, without credentials."""
        ...

    @property
    def queues_per_link(self) -> int:
        """How many queues one link can take from at once."""
        ...

    @property
    def take_s_max(self) -> float:
        """The longest that one `take` should wait: what cannot be interrupted is kept short."""
        ...

    def require_queue(self, queue: str) -> None:
        """Raise ConfigError when no queue of this broker can have that name."""
        ...

    def connect(self, queues: Sequence[str]) -> Link:
        """A new link, which takes from these queues (none for one that only sends). Raises ConnectionError."""
        ...
