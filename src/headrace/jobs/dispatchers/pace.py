"""How many messages one wait takes: what there is room for, and more where messages come faster than work. Pure.

A worker waits only when the ledger has nothing for it. So messages that end one wait after the other at once are about
jobs that are claimed already; there may be thousands, after a time in which every worker was busy. Each run of them is
taken in steps that double, so that it costs a dozen looks into the ledger and not thousands.
"""

from typing import Final

MESSAGES_MAX: Final = 256
"""The most that one wait takes."""
AT_ONCE_S: Final = 0.1
"""Messages that come sooner after the last ones belong to the same run."""
_DOUBLINGS_MAX = 8


class Pace:
    """One listener's; `now_s` is monotonic."""

    def __init__(self) -> None:
        self._run = 0
        self._last_s: float | None = None

    def count(self, jobs_max: int, now_s: float) -> int:
        """How many messages to take at most, with room for `jobs_max` jobs."""
        if not self._at_once(now_s):
            self._run = 0
        return min(MESSAGES_MAX, max(1, jobs_max) << self._run)

    def took(self, now_s: float) -> None:
        """Messages were taken."""
        self._run = min(self._run + 1, _DOUBLINGS_MAX) if self._at_once(now_s) else 0
        self._last_s = now_s

    def _at_once(self, now_s: float) -> bool:
        return self._last_s is not None and now_s - self._last_s < AT_ONCE_S
