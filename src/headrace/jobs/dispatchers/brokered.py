"""The one dispatcher over all brokers: a publisher, and listeners, each with threads and links of its own."""

import logging
import threading
from collections.abc import Sequence
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, StoppedError
from headrace.jobs.dispatcher import QUEUES_PER_LISTENER_MAX, DispatcherStatistics, Listener
from headrace.jobs.dispatchers.link import Announcement, Broker
from headrace.jobs.dispatchers.listening import BrokerListener
from headrace.jobs.dispatchers.publisher import Publisher
from headrace.jobs.dispatchers.tally import Tally

UNSENT_MAX: Final = 10_000
"""Announcements that wait to be sent, such as in an outage; what is beyond is found by polling."""
_NAMES_TOLD_MAX = 100

_log = logging.getLogger("headrace.jobs.dispatcher")


class BrokeredDispatcher:
    """A `Dispatcher` over any `Broker`.

    Args:
        broker: Makes the links.
        unsent_max: How many announcements may wait.
        clock: What everything here waits on.
    """

    def __init__(self, broker: Broker, *, unsent_max: int = UNSENT_MAX, clock: Clock | None = None) -> None:
        self._broker = broker
        self._unsent_max = unsent_max
        self._clock = clock or SystemClock()
        self._tally = Tally()
        self._life = threading.Lock()
        self._publisher: Publisher | None = None
        self._listeners: list[BrokerListener] = []
        self._refused: set[str] = set()

    def __repr__(self) -> str:
        return f"<Dispatcher {self._broker.name}>"

    def start(self) -> None:
        """See `Dispatcher`."""
        with self._life:
            if self._publisher is None:
                self._publisher = Publisher(
                    self._broker, self._tally, self._clock, unsent_max=self._unsent_max
                )

    def stop(self, *, drain: bool = True) -> None:
        """See `Dispatcher`."""
        with self._life:
            publisher, self._publisher = self._publisher, None
            if publisher is None:
                return
            publisher.stop(drain=drain)
            for listener in self._listeners:
                listener.close()
            self._listeners = []

    def announce(self, queue: str, job_ids: Sequence[str]) -> None:
        """See `Dispatcher`."""
        self._tally.add(announced=len(job_ids))
        publisher = self._publisher
        if publisher is None or not self._can_name(queue):
            self._tally.add(dropped=len(job_ids))
            return
        publisher.announce([Announcement(queue, job_id) for job_id in job_ids])

    def listener(self, queues: Sequence[str]) -> Listener:
        """See `Dispatcher`."""
        if isinstance(queues, str) or not 0 < len(queues) <= QUEUES_PER_LISTENER_MAX:
            raise ConfigError(
                f"a listener takes a list of 1 to {QUEUES_PER_LISTENER_MAX} queues, not {queues!r}"
            )
        if len(set(queues)) < len(queues):
            raise ConfigError(f"a listener is told each queue once, not {list(queues)!r}")
        for queue in queues:
            self._broker.require_queue(queue)
        with self._life:
            if self._publisher is None:
                raise StoppedError(f"{self._broker.name}: the dispatcher does not run; start it first")
            self._listeners = [each for each in self._listeners if not each.closed]
            listener = BrokerListener(self._broker, queues, self._tally, self._clock)
            self._listeners.append(listener)
            return listener

    def statistics(self) -> DispatcherStatistics:
        """See `Dispatcher`."""
        publisher = self._publisher
        return self._tally.snapshot(unsent=publisher.unsent if publisher else 0)

    def _can_name(self, queue: str) -> bool:
        try:
            self._broker.require_queue(queue)
        except ConfigError as error:
            self._tally.error(str(error))
            if queue not in self._refused and len(self._refused) < _NAMES_TOLD_MAX:
                self._refused.add(queue)
                _log.warning("jobs of this queue are not announced, only polled for: %s", error)
            return False
        return True
