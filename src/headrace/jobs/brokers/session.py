"""Sessions with a message broker: the contract of an adapter, and reopening forever.

An adapter only connects, sends and receives. Everything else is here and in
`message_wakeup_broker`: outages, counters, pace and threads.
"""

import logging
import math
import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import orjson

from headrace.core.clock import Clock, RetryPolicy
from headrace.jobs.brokers import WakeupBrokerStatistics

KEEP_ALIVE_S = 10.0
"""Seconds between the calls in which an idle connection responds to the broker's heartbeats."""
_JOIN_S: Final = 0.2
_COUNTS: Final = ("announced", "sent", "dropped", "taken", "redelivered", "wakes", "outages", "away")
RETRY_POLICY: Final = RetryPolicy(retry_s=math.inf, first_delay_s=0.1, delay_max_s=5.0)
"""The delays between attempts to connect. There is no limit: long outages are handled like short
ones.
"""
_Result = TypeVar("_Result")

_log = logging.getLogger("headrace.jobs.wakeup_broker")


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


@contextmanager
def connection_errors(*kinds: type[Exception]) -> Generator[None]:
    """Convert a client library's errors, and those of the network, to ConnectionError."""
    try:
        yield
    except (*kinds, OSError) as error:
        # Some errors of libraries are only a list of attempts without a text.
        message = str(error) or ", ".join(map(repr, error.args))
        raise ConnectionError(f"{type(error).__name__}: {message}".rstrip(": ")) from error


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


class BrokerCounters:
    """Counters for all threads of a wakeup broker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        self._last_error = ""

    def add(self, **counts: int) -> None:
        """Add to counters, by their names in `WakeupBrokerStatistics`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def outage_began(self, why: str) -> None:
        """Count the start of a connection's outage."""
        self.add(outages=1, away=1)
        self.error(why)

    def error(self, why: str) -> None:
        """Keep the last error."""
        with self._lock:
            self._last_error = why

    def snapshot(self, *, unsent: int) -> WakeupBrokerStatistics:
        """Return a snapshot of the counters."""
        with self._lock:
            return WakeupBrokerStatistics(unsent=unsent, last_error=self._last_error, **self._counts)


class BrokerConnection:
    """One thread's connection to the message broker.

    Only that thread calls `use`; any may call `interrupt`.

    `stop` is set when the thread shall end, and ends waits. `renewed` is called for every session
    but the first, because messages of the previous one may be lost.
    """

    def __init__(
        self,
        broker: MessageBroker,
        queues: Sequence[str],
        counters: BrokerCounters,
        clock: Clock,
        stop: threading.Event,
        *,
        renewed: Callable[[], None] | None = None,
    ) -> None:
        self._broker = broker
        self._queues = tuple(queues)
        self._counters = counters
        self._clock = clock
        self._stop = stop
        self._renewed = renewed
        self._session: BrokerSession | None = None
        self._failures = 0
        self._opened = 0
        self._random = random.Random()  # noqa: S311 - jitter, not a secret

    def use(self, act: Callable[[BrokerSession], _Result]) -> _Result | None:
        """Return the result of `act`; None during an outage.

        After None, call `wait_after_failure` before the next `use`.

        A broken session is replaced and `act` repeated once, at once: brokers and load balancers
        close idle connections, and restarts are short. `act` may therefore be applied twice.
        """
        while True:
            was_there = self._session is not None
            try:
                result = act(self._session or self._connect())
            except Exception as error:  # noqa: BLE001 - unforeseen errors must not end the thread
                self.close()
                if was_there and not self._failures:
                    continue
                self._failed(error)
                return None
            self._works()
            return result

    def wait_after_failure(self) -> None:
        """Wait after a failure; longer after several in a row."""
        delay_s = RETRY_POLICY.delay_s(self._failures, math.inf, self._random.random())
        assert delay_s is not None
        self._clock.sleep(delay_s, self._stop)

    def interrupt(self) -> None:
        """End the thread's wait at the broker, as far as possible."""
        session = self._session
        if session is not None:
            session.interrupt()

    def interrupt_until_end(self, thread: threading.Thread) -> None:
        """Wait for the end of the connection's thread, which was told to stop.

        It is interrupted again and again, because it may have been about to wait.
        """
        while thread.is_alive():
            self.interrupt()
            thread.join(_JOIN_S)

    def keep_alive(self) -> None:
        """Respond to the broker's heartbeats if a session was ever opened."""
        if self._opened:
            self.use(lambda session: session.keep_alive())

    def close(self) -> None:
        """Close the session; the next `use` opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def end(self) -> None:
        """Close the session for good."""
        self.close()
        if self._failures:
            self._counters.add(away=-1)
            self._failures = 0

    def _connect(self) -> BrokerSession:
        self._session = self._broker.connect(self._queues)
        self._opened += 1
        if self._opened > 1 and self._renewed is not None:
            self._renewed()
        return self._session

    def _failed(self, error: Exception) -> None:
        foreseen = isinstance(error, ConnectionError)
        why = str(error) if foreseen else f"{type(error).__name__}: {error}"
        self._failures += 1
        if self._failures == 1:
            self._counters.outage_began(why)
            _log.warning(
                "%s is unavailable (%s): workers poll until it is back; retrying forever",
                self._broker.name,
                why,
                exc_info=None if foreseen else error,
            )
        else:
            self._counters.error(why)

    def _works(self) -> None:
        if self._failures:
            _log.warning("%s is available again after %d attempts", self._broker.name, self._failures + 1)
            self._counters.add(away=-1)
            self._failures = 0
