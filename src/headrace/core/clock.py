"""Time: clocks, and the delays between retries.

Code that waits takes a `Clock`, so that tests can pass a manual one. Delays are exponential, with jitter,
and respect the server's ``Retry-After``.
"""

import re
import threading
import time
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, limited to `retry_s` seconds in total.

    The caller waits, on its own clock.
    """

    retry_s: float = 120.0
    first_delay_s: float = 0.1
    delay_max_s: float = 5.0

    def delay_s(
        self, attempt: int, left_s: float, share: float, *, retry_after_s: float | None = None
    ) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the budget is spent.

        Args:
            attempt: Number of failures so far, from 1.
            left_s: Remaining budget in seconds. The last attempt starts at its end.
            share: Position in the jitter range (half to all of the delay), 0 to 1; drawn by the caller.
            retry_after_s: Minimum delay requested by the server, within the budget.
        """
        if left_s <= 0:
            return None
        # The bound on the exponent keeps a long outage from computing 2 ** 1000.
        longest_s = min(self.delay_max_s, self.first_delay_s * 2 ** min(attempt - 1, 30))
        return min(max(longest_s * (0.5 + share / 2), retry_after_s or 0.0), left_s)


def retry_after_s(value: str | None, wall_s: float) -> float | None:
    """Return the delay of a Retry-After header, given in seconds or as a date.

    `wall_s` is the current time since the epoch in seconds. Return None if the header is absent or
    malformed.
    """
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d*)?", value.strip(), re.ASCII):
        return float(value)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - slow to import, and dates are rare

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - wall_s)
    except (ValueError, OverflowError):
        return None


class TransientFault(Exception):  # noqa: N818 - packages catch it themselves and raise an error instead
    """A failed attempt that may succeed when repeated.

    Args:
        why: The reason, for messages.
        retry_after_s: Delay that the server requested, in seconds, or None.
        alive: True if the server responded properly. A circuit breaker ignores such a failure.
    """

    def __init__(self, why: str, *, retry_after_s: float | None = None, alive: bool = False) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s
        self.alive = alive
