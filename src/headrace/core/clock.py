"""The one seam to time: whoever waits is handed a `Clock`, so that a test can hand a manual one."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Tells monotonic seconds, and sleeps until told to stop."""

    def now(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        """Wait `seconds`, or less when `wake` is set meanwhile; whether `wake` is set."""
        ...


class SystemClock:
    """The machine's own monotonic clock."""

    # The function itself: it is asked several times for every request.
    now = staticmethod(time.monotonic)

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        """Block this thread; whether `wake` cut it short."""
        if wake is None:
            time.sleep(seconds)
            return False
        return wake.wait(seconds)
