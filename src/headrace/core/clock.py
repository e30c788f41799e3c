"""Access to time. Code that waits takes a `Clock`, so that tests can pass a manual one."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time, with an interruptible sleep."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock. Only differences are meaningful."""
        ...

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        """Wait `seconds`, or until `wake` is set. Return True if `wake` is set."""
        ...


class SystemClock:
    """The monotonic clock of this machine."""

    # A static method saves a call: every request reads the clock several times.
    now = staticmethod(time.monotonic)

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        """Block this thread. Return True if `wake` ended the wait."""
        if wake is None:
            time.sleep(seconds)
            return False
        return wake.wait(seconds)
