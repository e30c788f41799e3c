"""Waiting for news within a process, and the part that both databases' wakeups share."""

import threading
from collections.abc import Sequence

from headrace.jobs.ledgers.database import News


class Bell:
    """One that waits: rung by news that it wants to hear. `queues` is None for one that hears all."""

    def __init__(self, queues: Sequence[str] | None) -> None:
        self.queues = None if queues is None else frozenset(queues)
        self._rung = threading.Event()

    def hears(self, news: News) -> bool:
        """Whether it is of interest here."""
        return self.queues is None or not self.queues.isdisjoint(news.queues)

    def ring(self) -> None:
        """End a wait, or the next one."""
        self._rung.set()

    def wait(self, timeout_s: float) -> bool:
        """Block until it rings; whether it did. It is quiet again then."""
        if not self._rung.wait(timeout_s):
            return False
        self._rung.clear()
        return True


class Bells:
    """All bells of a ledger's process. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: list[Bell] = []

    def hang(self, queues: Sequence[str] | None) -> Bell:
        """A new one."""
        bell = Bell(queues)
        with self._lock:
            self._bells.append(bell)
        return bell

    def take_down(self, bell: Bell) -> None:
        """It rings no more. Twice does nothing."""
        with self._lock:
            if bell in self._bells:
                self._bells.remove(bell)

    def tell(self, news: News) -> None:
        """Ring those that want to hear it."""
        with self._lock:
            bells = list(self._bells)
        for bell in bells:
            if bell.hears(news):
                bell.ring()
