"""The wakeup broker over any message broker: one publisher, and listeners with own sessions."""

import logging
import threading
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, StoppedError
from headrace.jobs.brokers.announcement_publisher import AnnouncementPublisher
from headrace.jobs.brokers.counters import BrokerCounters
from headrace.jobs.brokers.listener import BrokerListener
from headrace.jobs.brokers.session import Announcement, MessageBroker
from headrace.jobs.wakeup_broker import (
    QUEUES_PER_LISTENER_MAX,
    WakeupBroker,
    WakeupBrokerStatistics,
    WakeupListener,
)

UNSENT_MAX: Final = 10_000
"""The number of announcements that wait, for example in an outage. Polling finds the jobs of the
rest.
"""
_NAMES_LOGGED_MAX = 100

_log = logging.getLogger("headrace.jobs.wakeup_broker")


class MessageWakeupBroker(WakeupBroker):
    """A wakeup broker over any `MessageBroker`.

    Args:
        broker: Opens the sessions.
        unsent_max: The largest number of waiting announcements.
        clock: The clock of all waits.
    """

    def __init__(
        self, broker: MessageBroker, *, unsent_max: int = UNSENT_MAX, clock: Clock | None = None
    ) -> None:
        self._broker = broker
        self._unsent_max = unsent_max
        self._clock = clock or SystemClock()
        self._counters = BrokerCounters()
        self._life = threading.Lock()
        self._publisher: AnnouncementPublisher | None = None
        self._listeners: list[BrokerListener] = []
        self._refused: set[str] = set()

    def __repr__(self) -> str:
        return f"<WakeupBroker {self._broker.name}>"

    @override
    def start(self) -> None:
        with self._life:
            if self._publisher is None:
                self._publisher = AnnouncementPublisher(
                    self._broker, self._counters, self._clock, unsent_max=self._unsent_max
                )

    @override
    def stop(self, *, drain: bool = True) -> None:
        with self._life:
            publisher, self._publisher = self._publisher, None
            if publisher is None:
                return
            publisher.stop(drain=drain)
            for listener in self._listeners:
                listener.close()
            self._listeners = []

    @override
    def announce(self, queue: str, job_ids: Sequence[str]) -> None:
        self._counters.add(announced=len(job_ids))
        publisher = self._publisher
        if publisher is None or not self._can_name(queue):
            self._counters.add(dropped=len(job_ids))
            return
        publisher.announce([Announcement(queue, job_id) for job_id in job_ids])

    @override
    def listener(self, queues: Sequence[str]) -> WakeupListener:
        if isinstance(queues, str) or not 0 < len(queues) <= QUEUES_PER_LISTENER_MAX:
            raise ConfigError(
                f"a listener takes a list of 1 to {QUEUES_PER_LISTENER_MAX} queues, not {queues!r}"
            )
        if len(set(queues)) < len(queues):
            raise ConfigError(f"a listener takes each queue once, not {list(queues)!r}")
        for queue in queues:
            self._broker.require_queue(queue)
        with self._life:
            if self._publisher is None:
                raise StoppedError(f"{self._broker.name}: the wakeup broker is not running; start it first")
            self._listeners = [each for each in self._listeners if not each.closed]
            listener = BrokerListener(self._broker, queues, self._counters, self._clock)
            self._listeners.append(listener)
            return listener

    @override
    def statistics(self) -> WakeupBrokerStatistics:
        publisher = self._publisher
        return self._counters.snapshot(unsent=publisher.unsent if publisher else 0)

    def _can_name(self, queue: str) -> bool:
        try:
            self._broker.require_queue(queue)
        except ConfigError as error:
            self._counters.error(str(error))
            if queue not in self._refused and len(self._refused) < _NAMES_LOGGED_MAX:
                self._refused.add(queue)
                _log.warning("jobs of this queue are polled for, not announced: %s", error)
            return False
        return True
