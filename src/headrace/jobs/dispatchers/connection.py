"""A broker's link that is made anew for ever: what an outage is, how it is told of, and how long to wait in it."""

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headrace.core.clock import Clock
from headrace.core.retry import RetryPolicy
from headrace.jobs.dispatchers.link import Broker, Link
from headrace.jobs.dispatchers.tally import Tally

AGAIN: Final = RetryPolicy(retry_s=math.inf, first_delay_s=0.1, delay_max_s=5.0)
"""Between attempts to connect, for ever: an outage longer than any timeout is waited for like a short one."""

_log = logging.getLogger("headrace.jobs.dispatcher")
_Answer = TypeVar("_Answer")


class Connection:
    """One thread's way to the broker. `use` belongs to that thread; `interrupt` may be called by any.

    `stop` is set when the thread shall end; it cuts short what is waited here. `renewed` is called for every link but the
    first: what the one before was about to bring may be lost.
    """

    def __init__(
        self,
        broker: Broker,
        queues: Sequence[str],
        tally: Tally,
        clock: Clock,
        stop: threading.Event,
        *,
        renewed: Callable[[], None] | None = None,
    ) -> None:
        self._broker = broker
        self._queues = tuple(queues)
        self._tally = tally
        self._clock = clock
        self._stop = stop
        self._renewed = renewed
        self._link: Link | None = None
        self._failures = 0
        self._made = 0
        self._random = random.Random()  # noqa: S311 - jitter, not a secret

    @property
    def made(self) -> int:
        """How many links there have been."""
        return self._made

    def use(self, act: Callable[[Link], _Answer]) -> _Answer | None:
        """What `act` answers; None when the broker is away: then call `wait_again` before the next `use`.

        A link that breaks is replaced, and asked once more, at once: brokers and balancers end idle connections, and
        restarts are short. `act` may so be done twice.
        """
        while True:
            was_there = self._link is not None
            try:
                answer = act(self._link or self._connect())
            except Exception as error:  # noqa: BLE001 - also what nobody foresaw must not end the thread
                self.close()
                if was_there and not self._failures:
                    continue
                self._failed(error)
                return None
            self._works()
            return answer

    def wait_again(self) -> None:
        """Wait after a failure; the longer, the more there were in a row."""
        delay_s = AGAIN.delay_s(self._failures, math.inf, self._random.random())
        assert delay_s is not None
        self._clock.sleep(delay_s, self._stop)

    def interrupt(self) -> None:
        """End what the thread waits for at the broker, as far as that can be."""
        link = self._link
        if link is not None:
            link.interrupt()

    def close(self) -> None:
        """Let go of the link; the next `use` makes another."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def end(self) -> None:
        """Let go of it for good."""
        self.close()
        if self._failures:
            self._tally.back()
            self._failures = 0

    def _connect(self) -> Link:
        self._link = self._broker.connect(self._queues)
        self._made += 1
        if self._made > 1 and self._renewed is not None:
            self._renewed()
        return self._link

    def _failed(self, error: Exception) -> None:
        foreseen = isinstance(error, ConnectionError)
        why = str(error) if foreseen else f"{type(error).__name__}: {error}"
        self._failures += 1
        if self._failures == 1:
            self._tally.gone(why)
            _log.warning(
                "%s is away (%s): jobs are found by polling until it is back; trying again for ever",
                self._broker.name,
                why,
                exc_info=None if foreseen else error,
            )
        else:
            self._tally.error(why)

    def _works(self) -> None:
        if self._failures:
            _log.warning("%s is back after %d attempts", self._broker.name, self._failures + 1)
            self._tally.back()
            self._failures = 0
