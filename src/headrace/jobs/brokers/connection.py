"""A session with a message broker that is reopened forever, with counted and logged outages."""

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headrace.core.clock import Clock
from headrace.core.retry import RetryPolicy
from headrace.jobs.brokers.counters import BrokerCounters
from headrace.jobs.brokers.session import BrokerSession, MessageBroker

RETRY_POLICY: Final = RetryPolicy(retry_s=math.inf, first_delay_s=0.1, delay_max_s=5.0)
"""The delays between attempts to connect. There is no limit: long outages are handled like short
ones.
"""

_log = logging.getLogger("headrace.jobs.wakeup_broker")
_Result = TypeVar("_Result")


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

    @property
    def opened(self) -> int:
        """The number of sessions opened so far."""
        return self._opened

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

    def close(self) -> None:
        """Close the session; the next `use` opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def end(self) -> None:
        """Close the session for good."""
        self.close()
        if self._failures:
            self._counters.outage_ended()
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
            self._counters.outage_ended()
            self._failures = 0
