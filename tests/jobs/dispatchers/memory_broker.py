"""A broker in this process, whose faults the test decides. It goes through the conformance suite like the real ones."""

import threading
from collections import defaultdict, deque

from headrace.core.errors import ConfigError
from headrace.jobs.dispatchers.link import Taken


class MemoryBroker:
    name = "memory"
    queues_per_link = 2
    take_s_max = 10.0

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queues = defaultdict(deque)
        self.links = []
        self.away = False
        self.defect: Exception | None = None
        """What the next call raises, though no link should."""
        self.attempts = 0

    def require_queue(self, queue: str) -> None:
        if not queue:
            raise ConfigError("a queue needs a name")

    def connect(self, queues):
        self.attempts += 1
        if self.away:
            raise ConnectionError("nobody listens")
        link = MemoryLink(self, queues)
        self.links.append(link)
        return link

    def go_away(self) -> None:
        """Everything is lost, and every connection."""
        with self.changed:
            self.away = True
            self.queues.clear()
            for link in self.links:
                link.broken = True
            self.changed.notify_all()

    def come_back(self) -> None:
        self.away = False

    def cut(self) -> None:
        """Every connection, and nothing else."""
        with self.changed:
            for link in self.links:
                link.broken = True
            self.changed.notify_all()


class MemoryLink:
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

    def take(self, count: int, timeout_s: float) -> Taken:
        with self.broker.changed:
            self._check()
            self.broker.changed.wait_for(
                lambda: self.broken or self.interrupted or any(map(self.broker.queues.get, self.queues)),
                timeout_s,
            )
            self.interrupted = False
            self._check()
            taken = 0
            for queue in self.queues:
                while taken < count and self.broker.queues.get(queue):
                    self.broker.queues[queue].popleft()
                    taken += 1
            return Taken(messages=taken)

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
