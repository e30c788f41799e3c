"""The waiters on commits in one process, by queue."""

import threading
from collections.abc import Sequence

from headrace.jobs.ledgers.database import CommitNotice


class QueueWaiter(threading.Event):
    """An event that commits set if they affect its queues; `queues` None: that all commits set."""

    def __init__(self, queues: Sequence[str] | None) -> None:
        super().__init__()
        self.queues = None if queues is None else frozenset(queues)


class QueueNotifier:
    """All waiters of a ledger in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[QueueWaiter] = []

    def add_waiter(self, queues: Sequence[str] | None) -> QueueWaiter:
        """Create and register a waiter."""
        waiter = QueueWaiter(queues)
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def remove_waiter(self, waiter: QueueWaiter) -> None:
        """Remove a waiter. A second call does nothing."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def notify(self, notice: CommitNotice) -> None:
        """Wake the waiters that the notice concerns."""
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            if waiter.queues is None or not waiter.queues.isdisjoint(notice.queues):
                waiter.set()

    def wake_all(self) -> None:
        """Wake all waiters: commits may have been missed."""
        with self._lock:
            for waiter in self._waiters:
                waiter.set()

    @property
    def has_waiters(self) -> bool:
        """True if anyone waits for commits, or may soon."""
        with self._lock:
            return bool(self._waiters)

    @property
    def has_watchers(self) -> bool:
        """True if anyone waits for all commits."""
        with self._lock:
            return any(waiter.queues is None for waiter in self._waiters)
