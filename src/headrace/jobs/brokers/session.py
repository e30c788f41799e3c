"""The contract of a message broker: sessions that send and receive messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

KEEP_ALIVE_S = 10.0
"""Seconds between the calls in which an idle connection responds to the broker's heartbeats."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The content of a message."""

    queue: str
    job_id: str

    def encoded(self) -> bytes:
        """Return the announcement as JSON, for brokers with byte or text messages."""
        return orjson.dumps({"queue": self.queue, "job_id": self.job_id})


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """The number of received messages, and of those that the broker had delivered before."""

    messages: int = 0
    redelivered: int = 0


class BrokerSession(Protocol):
    """A connection to a message broker. One thread at a time uses it; any may call `interrupt`.

    Every method raises ConnectionError, without credentials, if the broker is unavailable or
    refuses. The session is then closed and replaced. No call exceeds its own time by more than the
    session's timeout, even if the broker does not respond.
    """

    def send(self, announcements: Sequence[Announcement]) -> None:
        """Send a message for each announcement; return when the broker has them all."""
        ...

    def take(self, count: int, timeout_s: float) -> ReceivedMessages:
        """Receive at most `count` messages, waiting up to `timeout_s` for the first.

        It may receive a few more if there are several queues, and may return early, also without
        any. Received messages are acknowledged.
        """
        ...

    def keep_alive(self) -> None:
        """Respond to the broker's heartbeats on an idle connection; do not wait."""
        ...

    def interrupt(self) -> None:
        """Make a waiting `take` return soon, if the broker supports it. Never raise."""
        ...

    def close(self) -> None:
        """Disconnect. Never raise. A second call does nothing."""
        ...


class MessageBroker(Protocol):
    """A factory of sessions with one message broker."""

    queues_per_session: int
    """The number of queues that one session can receive from at once."""
    take_s_max: float
    """The longest wait of one `take` in seconds; short if a wait cannot be interrupted."""

    @property
    def name(self) -> str:
        """The broker's kind and address for logs, without credentials."""
        ...

    def require_queue(self, queue: str) -> None:
        """Raise ConfigError if no queue of this broker can have that name."""
        ...

    def connect(self, queues: Sequence[str]) -> BrokerSession:
        """Open a session that receives from these queues (none: only sends). Raise ConnectionError."""
        ...
