"""The wakeup broker over any message broker: a publisher, and listeners with own sessions.

Messages are sent by one thread, and received by others while a worker waits.
"""

import logging
import threading
from collections.abc import Sequence
from itertools import islice
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, StoppedError
from headrace.jobs.brokers import (
    QUEUES_PER_LISTENER_MAX,
    WakeupBroker,
    WakeupBrokerStatistics,
    WakeupListener,
)
from headrace.jobs.brokers.session import (
    KEEP_ALIVE_S,
    Announcement,
    BrokerConnection,
    BrokerCounters,
    BrokerSession,
    MessageBroker,
)

UNSENT_MAX: Final = 10_000
"""The number of announcements that wait, for example in an outage. Polling finds the jobs of the
rest.
"""
_NAMES_LOGGED_MAX: Final = 100
SEND_MAX: Final = 100
"""The number of messages in one send."""
DRAIN_S: Final = 5.0
"""Seconds for which a stop sends waiting announcements; polling finds the jobs of the rest."""
MESSAGES_MAX: Final = 256
"""The largest number of messages that one wait receives."""
AT_ONCE_S: Final = 0.1
"""Messages that arrive within this time after the last ones belong to the same run."""
_TAKE_S_MIN: Final = 0.05
_DOUBLINGS_MAX: Final = 8

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
            self._listeners = [each for each in self._listeners if not each.over.is_set()]
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


class AnnouncementPublisher:
    """A sender that runs from its creation to `stop`.

    Announcements wait in bounded memory for its thread. Any thread may call `announce`; it never
    waits.
    """

    def __init__(
        self, broker: MessageBroker, counters: BrokerCounters, clock: Clock, *, unsent_max: int
    ) -> None:
        self._counters = counters
        self._clock = clock
        self._unsent_max = unsent_max
        self._lock = threading.Lock()
        # A dict as an ordered set: jobs that the reconciler announces again in an outage wait once.
        self._unsent: dict[Announcement, None] = {}
        self._sending = 0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._drain_until_s: float | None = None
        self._connection = BrokerConnection(broker, (), counters, clock, self._stop)
        self._thread = threading.Thread(target=self._run, name="headrace-announce", daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """The number of announcements that wait or are being sent."""
        with self._lock:
            return len(self._unsent) + self._sending

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Queue announcements; if there are too many, drop the oldest."""
        with self._lock:
            if self._stop.is_set():
                self._counters.add(dropped=len(announcements))
                return
            self._unsent.update(dict.fromkeys(announcements))
            self._trim()
        self._wake.set()

    def stop(self, *, drain: bool) -> None:
        """End the thread. With `drain`, try for `DRAIN_S` to send the waiting announcements."""
        with self._lock:
            self._drain_until_s = self._clock.now() + DRAIN_S if drain else None
            self._stop.set()
        self._wake.set()
        self._connection.interrupt_until_end(self._thread)
        with self._lock:
            self._counters.add(dropped=len(self._unsent))
            self._unsent.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            if self._send_some() is None and not self._clock.sleep(KEEP_ALIVE_S, self._wake):
                # A failure shows at the next send.
                self._connection.keep_alive()
        until_s = self._drain_until_s
        while until_s is not None and self._clock.now() < until_s and self._send_some():
            """What is left goes out now, or never."""
        self._connection.end()

    def _send_some(self) -> bool | None:
        """Send the oldest announcements. Return True on success, None if none wait."""
        batch = self._pop()
        if not batch:
            return None

        def send(session: BrokerSession) -> bool:
            session.send(batch)
            return True

        sent = bool(self._connection.use(send))
        with self._lock:
            self._sending = 0
            if not sent:
                self._unsent = dict.fromkeys([*batch, *self._unsent])
                self._trim()
        if sent:
            self._counters.add(sent=len(batch))
        else:
            self._connection.wait_after_failure()
        return sent

    def _pop(self) -> list[Announcement]:
        with self._lock:
            batch = list(islice(self._unsent, SEND_MAX))
            for announcement in batch:
                del self._unsent[announcement]
            self._sending = len(batch)
            return batch

    def _trim(self) -> None:
        too_many = len(self._unsent) - self._unsent_max
        for announcement in list(islice(self._unsent, max(0, too_many))):
            del self._unsent[announcement]
        self._counters.add(dropped=max(0, too_many))


class BrokerListener(WakeupListener):
    """A listener over as many sessions as its queues need, each with a thread."""

    def __init__(
        self, broker: MessageBroker, queues: Sequence[str], counters: BrokerCounters, clock: Clock
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.waiting: Final = threading.Event()
        """Set while a thread waits, and after `close`."""
        self.over: Final = threading.Event()
        """Set by `close`."""
        self._ended = threading.Event()
        self._jobs_possible = False
        self._jobs_max = 1
        self._until_s = 0.0
        step = broker.queues_per_session
        groups = [queues[at : at + step] for at in range(0, len(queues), step)]
        self._receivers = [_Receiver(broker, group, self, counters, clock) for group in groups]

    @override
    def wait(self, timeout_s: float, *, jobs_max: int = 1) -> bool:
        with self._lock:
            self._jobs_max = jobs_max
            self._until_s = self._clock.now() + timeout_s
            if not self._ended.is_set():
                self.waiting.set()
        self._clock.sleep(timeout_s, self._ended)
        with self._lock:
            self._want_no_more()
            self._ended.clear()
            jobs_possible, self._jobs_possible = self._jobs_possible, False
            return jobs_possible

    @override
    def wake(self) -> None:
        with self._lock:
            self._jobs_possible = True
            self._ended.set()
            # Cleared here, not by the waiting thread: until that runs, more would be taken from
            # others.
            self._want_no_more()

    @override
    def close(self) -> None:
        if not self.over.is_set():
            self.over.set()
            self.waiting.set()
            self._ended.set()
        for receiver in self._receivers:
            receiver.connection.interrupt()
        for receiver in self._receivers:
            receiver.connection.interrupt_until_end(receiver.thread)

    def terms(self) -> tuple[int, float]:
        """Return the number of free slots, and the remaining seconds of the wait."""
        with self._lock:
            return self._jobs_max, max(_TAKE_S_MIN, self._until_s - self._clock.now())

    def _want_no_more(self) -> None:
        if not self.over.is_set():
            self.waiting.clear()


class _Receiver:
    """The session of one group of a listener's queues, and its thread."""

    def __init__(
        self,
        broker: MessageBroker,
        queues: Sequence[str],
        listener: BrokerListener,
        counters: BrokerCounters,
        clock: Clock,
    ) -> None:
        self._listener = listener
        self._take_s_max = broker.take_s_max
        self._counters = counters
        self._clock = clock
        self._pace = Pace()
        # Announcements during an outage may be lost, so the waiter must read the ledger.
        self.connection = BrokerConnection(
            broker, queues, counters, clock, listener.over, renewed=listener.wake
        )
        self.thread = threading.Thread(target=self._run, name=f"headrace-listen-{queues[0]}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._listener.over.is_set():
            if self._listener.waiting.is_set():
                self._take()
            elif not self._clock.sleep(KEEP_ALIVE_S, self._listener.waiting):
                self.connection.keep_alive()
        self.connection.end()

    def _take(self) -> None:
        jobs_max, left_s = self._listener.terms()
        count = self._pace.count(jobs_max, self._clock.now())
        timeout_s = min(left_s, self._take_s_max)
        received = self.connection.use(lambda session: session.take(count, timeout_s))
        if received is None:
            self.connection.wait_after_failure()
            return
        if not received.messages:
            return
        self._pace.record(self._clock.now())
        self._counters.add(taken=received.messages, redelivered=received.redelivered, wakes=1)
        self._listener.wake()


class Pace:
    """The receive size of one listener: the free slots, and more if messages outpace work. Pure.

    A worker waits only if the ledger has no job for it. Messages that end one wait directly after
    another are therefore about jobs that are claimed already. Thousands may be left after a time in
    which every worker was busy. Each such run is received in steps that double, so that it costs a
    dozen reads of the ledger instead of thousands. `now_s` is monotonic.
    """

    def __init__(self) -> None:
        self._run = 0
        self._last_s: float | None = None

    def count(self, jobs_max: int, now_s: float) -> int:
        """Return the largest number of messages to receive, with free slots for `jobs_max` jobs."""
        if not self._at_once(now_s):
            self._run = 0
        return min(MESSAGES_MAX, max(1, jobs_max) << self._run)

    def record(self, now_s: float) -> None:
        """Note that messages were received."""
        self._run = min(self._run + 1, _DOUBLINGS_MAX) if self._at_once(now_s) else 0
        self._last_s = now_s

    def _at_once(self, now_s: float) -> bool:
        return self._last_s is not None and now_s - self._last_s < AT_ONCE_S
