"""What a dispatcher counts, from all its threads."""

import threading
from typing import Final

from headrace.jobs.dispatcher import DispatcherStatistics

_COUNTS: Final = ("announced", "sent", "dropped", "taken", "redelivered", "wakes", "outages", "away")


class Tally:
    """Counts; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        self._last_error = ""

    def add(self, **counts: int) -> None:
        """Add to counts, by the names that `DispatcherStatistics` has for them."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def gone(self, why: str) -> None:
        """A connection's outage has begun."""
        self.add(outages=1, away=1)
        self.error(why)

    def back(self) -> None:
        """A connection's outage is over."""
        self.add(away=-1)

    def error(self, why: str) -> None:
        """Keep what went wrong last."""
        with self._lock:
            self._last_error = why

    def snapshot(self, *, unsent: int) -> DispatcherStatistics:
        """All of it."""
        with self._lock:
            return DispatcherStatistics(unsent=unsent, last_error=self._last_error, **self._counts)
