"""Background requests of an engine that wait for their share of its time.

Requests of `Engine.submit` carry rows of jobs and runs: no client waits for them. They begin after all
waiting live requests. While live requests on the machine have a latency limit, they also keep to the
share of time that this limit leaves (`headrace.batching.background`).
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from headrace.batching.background import BackgroundBudget
from headrace.core.predictor import RequestTimes
from headrace.engine.pending_request import PendingRequest

_log = logging.getLogger("headrace.engine")
_POLL_S: Final = 0.25
"""The longest wait in seconds before the share is read again; other processes change it."""


class _Unit:
    """Requests that began together, since they can share a call."""

    __slots__ = ("calls", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        """Number of requests that have not ended."""
        self.calls: set[tuple[float, float]] = set()
        """The begin and the end of their calls in seconds."""


class BackgroundRequests:
    """Background requests in order of arrival: those that wait, and those that may be called.

    Guarded by the lock of the request queue. `share` returns the share of time, and `instances` the
    number of instances.
    """

    def __init__(self, share: Callable[[], float], instances: Callable[[], int]) -> None:
        self._share = share
        self._instances = instances
        self._budget = BackgroundBudget()
        self._waiting: deque[PendingRequest] = deque()
        self._units: dict[PendingRequest, _Unit] = {}
        self._has_yielded = False

    def __len__(self) -> int:
        """Return the number of requests that wait. Needs no lock."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """True if nothing holds a request back, so that it need not be added."""
        return not self._waiting and self._share() >= 1.0

    @property
    def has_work(self) -> bool:
        """True while an added request has not ended."""
        return bool(self._waiting or self._units)

    @property
    def rows(self) -> int:
        """The rows of the requests that wait."""
        return sum([entry.rows for entry in self._waiting])

    def add(self, entry: PendingRequest) -> None:
        """Add a request that waits."""
        entry.times = entry.times or RequestTimes()
        self._waiting.append(entry)

    def remove(self, entry: PendingRequest) -> bool:
        """Remove a request. Return True if it waited."""
        if entry not in self._waiting:
            return False
        self._waiting.remove(entry)
        return True

    def drain(self) -> list[PendingRequest]:
        """Remove and return all requests that wait."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def next(self, rows_max: int, now: float, *, ignore_share: bool) -> Sequence[PendingRequest]:
        """Return the requests of the next call that may begin; none if they have to wait.

        They have one key and up to `rows_max` rows, or are one larger request.
        """
        if not self._waiting:
            return ()
        share = 1.0 if ignore_share else self._share()
        if not self._budget.begin(share, self._instances(), now):
            self._log_once(share)
            return ()
        first = self._waiting.popleft()
        found, rows = [first], first.rows
        while self._waiting and self._waiting[0].key == first.key and first.key is not None:
            rows += self._waiting[0].rows
            if rows > rows_max:
                break
            found.append(self._waiting.popleft())
        unit = _Unit(len(found))
        for entry in found:
            self._units[entry] = unit
        return found

    def _log_once(self, share: float) -> None:
        if not self._has_yielded:
            self._has_yielded = True
            # A run may take many times as long, so its user must see why.
            _log.warning("jobs and runs yield to live requests with a latency limit", extra={"share": share})

    def end(self, entry: PendingRequest, now: float) -> None:
        """Record the end of a request. One that did not begin costs nothing."""
        unit = self._units.pop(entry, None)
        if unit is None:
            return
        times = entry.times
        if times is not None and times.began_s is not None and times.ended_s is not None:
            unit.calls.add((times.began_s, times.ended_s))
        unit.left -= 1
        if not unit.left:
            self._budget.end(sum(ended_s - began_s for began_s, ended_s in unit.calls), now)

    def next_s(self, now: float) -> float | None:
        """Return the time at which to call `next` again; None if no request waits."""
        if not self._waiting:
            return None
        due_s = self._budget.next_s(self._share(), self._instances(), now)
        return now + _POLL_S if due_s is None else min(due_s, now + _POLL_S)
