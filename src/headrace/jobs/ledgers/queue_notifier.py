"""Waiting for commits within one process."""

import threading
from collections.abc import Sequence

from headrace.jobs.ledgers.database import CommitNotice


class QueueWaiter:
    """A waiter for commits that affect its queues; `queues` None: for all commits."""

    def __init__(self, queues: Sequence[str] | None) -> None:
        self.queues = None if queues is None else frozenset(queues)
        self._woken = threading.Event()

    def matches(self, notice: CommitNotice) -> bool:
        """Return True if the notice concerns this waiter."""
        return self.queues is None or not self.queues.isdisjoint(notice.queues)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._woken.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until woken; return False after `timeout_s`. The waiter is then reset."""
        if not self._woken.wait(timeout_s):
            return False
        self._woken.clear()
        return True


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
            if waiter.matches(notice):
                waiter.wake()
