"""A message broker in this process with faults that the test controls."""

import threading
from collections import defaultdict, deque

from headrace.core.errors import ConfigError
from headrace.jobs.brokers.session import ReceivedMessages


class MemoryBroker:
    name = "memory"
    queues_per_session = 2
    take_s_max = 10.0

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queues = defaultdict(deque)
        self.sessions = []
        self.away = False
        self.defect: Exception | None = None
        """An unforeseen error that the next call raises."""
        self.attempts = 0

    def require_queue(self, queue: str) -> None:
        if not queue:
            raise ConfigError("a queue needs a name")

    def connect(self, queues):
        self.attempts += 1
        if self.away:
            raise ConnectionError("connection refused")
        session = MemorySession(self, queues)
        with self.changed:
            self.sessions.append(session)
            self.changed.notify_all()
        return session

    def go_away(self) -> None:
        """Begin an outage: break every session and lose every message."""
        with self.changed:
            self.away = True
            self.queues.clear()
            for session in self.sessions:
                session.broken = True
            self.changed.notify_all()

    def come_back(self) -> None:
        self.away = False

    def cut(self) -> None:
        """Break every session and keep the messages."""
        with self.changed:
            for session in self.sessions:
                session.broken = True
            self.changed.notify_all()


class MemorySession:
    def __init__(self, broker: MemoryBroker, queues) -> None:
        self.broker = broker
        self.queues = queues
        self.broken = False
        self.interrupted = False
        self.closed = False
        self.kept_alive = 0

    def send(self, announcements) -> None:
        with self.broker.changed:
            self._check()
            for each in announcements:
                self.broker.queues[each.queue].append(each.encoded())
            self.broker.changed.notify_all()

    def take(self, count: int, timeout_s: float) -> ReceivedMessages:
        with self.broker.changed:
            self._check()
            self.broker.changed.wait_for(
                lambda: self.broken or self.interrupted or any(map(self.broker.queues.get, self.queues)),
                timeout_s,
            )
            self.interrupted = False
            self._check()
            received = 0
            for queue in self.queues:
                while received < count and self.broker.queues.get(queue):
                    self.broker.queues[queue].popleft()
                    received += 1
            return ReceivedMessages(messages=received)

    def keep_alive(self) -> None:
        self._check()
        self.kept_alive += 1

    def interrupt(self) -> None:
        with self.broker.changed:
            self.interrupted = True
            self.broker.changed.notify_all()

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        defect, self.broker.defect = self.broker.defect, None
        if defect is not None:
            raise defect
        if self.broken:
            raise ConnectionError("cut")
