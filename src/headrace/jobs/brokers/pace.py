"""The number of messages that one wait receives: the free slots, and more if messages outpace work.

Pure.

A worker waits only if the ledger has no job for it. Messages that end one wait directly after
another are therefore about jobs that are claimed already. Thousands may be left after a time in
which every worker was busy. Each such run is received in steps that double, so that it costs a
dozen reads of the ledger instead of thousands.
"""

from typing import Final

MESSAGES_MAX: Final = 256
"""The largest number of messages that one wait receives."""
AT_ONCE_S: Final = 0.1
"""Messages that arrive within this time after the last ones belong to the same run."""
_DOUBLINGS_MAX = 8


class Pace:
    """The receive size of one listener; `now_s` is monotonic."""

    def __init__(self) -> None:
        self._run = 0
        self._last_s: float | None = None

    def count(self, jobs_max: int, now_s: float) -> int:
        """Return the largest number of messages to receive, with free slots for `jobs_max` jobs."""
        if not self._at_once(now_s):
            self._run = 0
        return min(MESSAGES_MAX, max(1, jobs_max) << self._run)

    def record(self, now_s: float) -> None:
        """Note that messages were received."""
        self._run = min(self._run + 1, _DOUBLINGS_MAX) if self._at_once(now_s) else 0
        self._last_s = now_s

    def _at_once(self, now_s: float) -> bool:
        return self._last_s is not None and now_s - self._last_s < AT_ONCE_S
