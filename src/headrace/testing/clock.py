"""Manual clocks, for tests of code that waits or reads the time of day."""

import threading
from collections.abc import Callable

from typing_extensions import override

from headrace.core.clock import Clock

_POLL_S = 0.002
"""Interval in real seconds at which a sleep reads its event; no result depends on it."""


class ManualClock(Clock):
    """A `Clock` whose time passes only by `advance` or, with `auto`, by `sleep`. Thread-safe.

    With ``auto=True`` a sleep advances the clock and returns at once, for loops with back-off.
    Without it, a sleep blocks its thread until another thread advances the clock far enough or sets
    `wake`.
    """

    def __init__(self, start_s: float = 0.0, *, auto: bool = False) -> None:
        self._now_s = start_s
        self._auto = auto
        self._changed = threading.Condition()
        self._sleepers = 0
        self._slept: list[float] = []

    @override
    def now(self) -> float:
        with self._changed:
            return self._now_s

    @override
    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        with self._changed:
            self._slept.append(seconds)
            if self._auto and not (wake and wake.is_set()):
                self._now_s += seconds
                self._changed.notify_all()
                return False
            until_s = self._now_s + seconds
            self._sleepers += 1
            self._changed.notify_all()
            try:
                while self._now_s < until_s and not (wake and wake.is_set()):
                    self._changed.wait(_POLL_S if wake else None)
            finally:
                self._sleepers -= 1
            return bool(wake and wake.is_set())

    def advance(self, seconds: float) -> None:
        """Advance the clock and end the sleeps whose time has passed."""
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    def wait_for_sleepers(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Block until `count` threads sleep on this clock.

        Prevents an `advance` that comes too early. Raise TimeoutError after `timeout_s` of real
        time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._sleepers >= count, timeout_s):
                raise TimeoutError(
                    f"{self._sleepers} threads sleep on the clock after {timeout_s} s, expected {count}"
                )

    @property
    def slept_s(self) -> tuple[float, ...]:
        """Every requested sleep in seconds, in order."""
        with self._changed:
            return tuple(self._slept)


class ManualWallClock:
    """The time of day in milliseconds since the epoch. Moves only by `advance`. Thread-safe."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = start_ms
        self._callbacks: list[Callable[[int], None]] = []
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        with self._lock:
            return self._now_ms

    def advance(self, ms: int) -> int:
        """Move the clock by `ms`, backwards if negative. Return the new time."""
        with self._lock:
            self._now_ms += ms
            for callback in self._callbacks:
                callback(self._now_ms)
            return self._now_ms

    def subscribe(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the time, now and after each move.

        For clocks elsewhere, such as in a database.
        """
        with self._lock:
            self._callbacks.append(callback)
            callback(self._now_ms)
