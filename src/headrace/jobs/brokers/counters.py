"""The counters of a wakeup broker."""

import threading
from typing import Final

from headrace.jobs.wakeup_broker import WakeupBrokerStatistics

_COUNTS: Final = ("announced", "sent", "dropped", "taken", "redelivered", "wakes", "outages", "away")


class BrokerCounters:
    """Counters for all threads of a wakeup broker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        self._last_error = ""

    def add(self, **counts: int) -> None:
        """Add to counters, by their names in `WakeupBrokerStatistics`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def outage_began(self, why: str) -> None:
        """Count the start of a connection's outage."""
        self.add(outages=1, away=1)
        self.error(why)

    def outage_ended(self) -> None:
        """Count the end of a connection's outage."""
        self.add(away=-1)

    def error(self, why: str) -> None:
        """Keep the last error."""
        with self._lock:
            self._last_error = why

    def snapshot(self, *, unsent: int) -> WakeupBrokerStatistics:
        """Return a snapshot of the counters."""
        with self._lock:
            return WakeupBrokerStatistics(unsent=unsent, last_error=self._last_error, **self._counts)
