"""The current endpoints of a ledger, for servers that submit to them."""

import threading
from collections.abc import Mapping
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.jobs.access.endpoints import Endpoint
from headrace.jobs.ledger import JobLedger

CACHED_S: Final = 1.0
"""Seconds for which endpoints are cached: a change through another server counts after them."""


class CurrentEndpoints:
    """The current endpoints of a ledger, cached for at most `CACHED_S`.

    Thread-safe; the methods block while the ledger is read.
    """

    def __init__(self, ledger: JobLedger, *, clock: Clock | None = None) -> None:
        self._ledger = ledger
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._cached: tuple[float, Mapping[str, Endpoint]] = (float("-inf"), {})

    def find(self, name: str) -> Endpoint | None:
        """Return the current version of an endpoint, or None without one.

        Raise JobLedgerUnavailableError if the ledger does not respond.
        """
        # Under the lock, so that many submissions read the ledger once.
        with self._lock:
            read_s, endpoints = self._cached
            now_s = self._clock.now()
            if now_s - read_s > CACHED_S:
                endpoints = {endpoint.name: endpoint for endpoint in self._ledger.endpoints()}
                self._cached = (now_s, endpoints)
            return endpoints.get(name)

    def drop(self) -> None:
        """Read the ledger again at the next `find`."""
        with self._lock:
            self._cached = (float("-inf"), {})
