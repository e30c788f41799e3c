"""Clocks that stand still until a test moves them."""

import threading
from collections.abc import Callable

_POLL_S = 0.002
"""How often a sleeper with an event of its own looks whether that is set; real time, and nothing depends on it."""


class ManualClock:
    """A `Clock` whose time passes only by `advance`, or, with `auto`, by sleeping itself.

    With ``auto=True`` a sleep moves the clock and returns at once: for loops that back off. Without, it blocks its
    thread until another thread advances far enough or sets `wake`. Safe from any thread.
    """

    def __init__(self, start_s: float = 0.0, *, auto: bool = False) -> None:
        self._now_s = start_s
        self._auto = auto
        self._changed = threading.Condition()
        self._sleepers = 0
        self._slept: list[float] = []

    def now(self) -> float:
        """Seconds since whatever `start_s` meant."""
        with self._changed:
            return self._now_s

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        """Let `seconds` of this clock pass; whether `wake` is set."""
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
        """Move the clock; sleepers whose time has come go on."""
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    def wait_for_sleepers(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Block until `count` threads sleep on this clock, so that advancing it cannot come too early.

        Raises TimeoutError after `timeout_s` of real time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._sleepers >= count, timeout_s):
                raise TimeoutError(
                    f"{self._sleepers} threads sleep on the clock after {timeout_s} s, not {count}"
                )

    @property
    def slept_s(self) -> tuple[float, ...]:
        """Every sleep that was asked for, in order."""
        with self._changed:
            return tuple(self._slept)


class ManualWallClock:
    """The time of day, in milliseconds since the epoch, that moves only when a test moves it. Safe from any thread."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = start_ms
        self._followers: list[Callable[[int], None]] = []
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        with self._lock:
            return self._now_ms

    def advance(self, ms: int) -> int:
        """Move it by `ms`, back where that is negative; the time it is then."""
        with self._lock:
            self._now_ms += ms
            for follow in self._followers:
                follow(self._now_ms)
            return self._now_ms

    def follow(self, follower: Callable[[int], None]) -> None:
        """Tell `follower` the time: now, and whenever it moves. For clocks that live elsewhere, such as in a database."""
        with self._lock:
            self._followers.append(follower)
            follower(self._now_ms)
