"""How long a call may go on that nobody wants any more."""

import threading
from collections.abc import Callable

from headrace.core.clock import Clock


class Grace:
    """Calls `expired` after `grace_s`, once, in a thread of its own, unless `end` was called before.

    `expired` must be short, and must not wait for whoever calls `end`.
    """

    def __init__(self, clock: Clock, grace_s: float, name: str, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._expired = expired
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The call has ended. Returns when the thread has, so that `expired` is not called from here on."""
        self._over.set()
        self._thread.join()

    def _wait(self) -> None:
        if not self._clock.sleep(self._grace_s, self._over) and not self._over.is_set():
            self._expired()
