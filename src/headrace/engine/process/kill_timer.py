"""A timer for calls that no client wants any more."""

import threading
from collections.abc import Callable

from headrace.core.clock import Clock


class KillTimer:
    """A timer thread that calls `expired` once after `grace_s`, unless it is cancelled before.

    `expired` must be short, and must not wait for the caller of `cancel`.
    """

    def __init__(self, clock: Clock, grace_s: float, name: str, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._expired = expired
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._wait, name=name, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop the timer.

        Returns when its thread has ended, so that `expired` is not called afterwards.
        """
        self._cancelled.set()
        self._thread.join()

    def _wait(self) -> None:
        if not self._clock.sleep(self._grace_s, self._cancelled) and not self._cancelled.is_set():
            self._expired()
