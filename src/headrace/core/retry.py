"""How long to wait before something that failed is tried again: by our own count, and by the server's word."""

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, bounded in total by `retry_s`. Pure: the caller waits, on its clock."""

    retry_s: float = 120.0
    first_delay_s: float = 0.1
    delay_max_s: float = 5.0

    def delay_s(
        self, attempt: int, left_s: float, share: float, *, retry_after_s: float | None = None
    ) -> float | None:
        """Seconds to wait before the next attempt, or None when the budget is spent.

        Args:
            attempt: Failures so far, from 1.
            left_s: What is left of the budget; the last attempt is made at its end.
            share: Where in the jitter's range (half to all of the delay), 0 to 1; the caller draws it.
            retry_after_s: What the server asked for; waited at least, within the budget.
        """
        if left_s <= 0:
            return None
        # The exponent is bounded, so that a long outage does not compute 2 ** 1000.
        longest_s = min(self.delay_max_s, self.first_delay_s * 2 ** min(attempt - 1, 30))
        return min(max(longest_s * (0.5 + share / 2), retry_after_s or 0.0), left_s)


def retry_after_s(value: str | None, wall_s: float) -> float | None:
    """The Retry-After header, seconds or a date; `wall_s` is now, since the epoch. None when absent or senseless."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d*)?", value.strip(), re.ASCII):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - wall_s)
    except (ValueError, OverflowError):
        return None
