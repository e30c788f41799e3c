"""Adaptive batching for online requests: forms the next batch, or waits for more requests.

A lone request never waits. An idle instance waits for co-batching only if more requests, and more
rows, were in flight a moment ago than are waiting now. Without the wait, concurrent clients settle
into two alternating half-full batches; the wait fills the batches and costs a lone client nothing.
Measured with a 5 ms model and 32 clients: 3,506 requests/s with the wait, 2,187 without.

The batcher is pure: the caller passes `now` and receives the closed batch. `DynamicBatcher` serves
streams, whose batches must depend on the source alone; here, batches depend on arrival times.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from headrace.core.errors import ConfigError

RECENT_DELAYS: Final = 5
"""Length, in delays, of the moment for which rows in flight count as likely to return."""


class AdaptiveReason(StrEnum):
    """The reason for which a batch closed."""

    ROWS = "rows"
    """The batch has `rows_max` rows, or the next request would exceed them."""
    EXPECTED_ARRIVED = "expected_arrived"
    """Every expected request has arrived. A lone request's batch closes for this reason."""
    DELAY = "delay"
    """An expected request did not arrive within the delay."""
    FLUSH = "flush"
    """The queue is flushed: no further request is expected."""


class WaitingRequest(Protocol):
    """A request that waits in an `AdaptiveBatcher`.

    Requests with an equal `key` can share a batch. Requests with a lower `priority` go first.
    `arrived_s` is the arrival time in seconds on the caller's clock.
    """

    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> Hashable: ...  # noqa: D102
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def arrived_s(self) -> float: ...  # noqa: D102


T = TypeVar("T", bound=WaitingRequest)


@dataclass(frozen=True, slots=True)
class AdaptiveBatch(Generic[T]):
    """Requests for one model call, never empty.

    The most urgent requests come first, in order of arrival within a priority.
    """

    items: tuple[T, ...]
    rows: int
    reason: AdaptiveReason


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """A condition to wait for before the next call of `AdaptiveBatcher.next`.

    Wait until the time `at_s`, or until `rows` rows or `requests` requests wait, whichever comes
    first. With the defaults, wait for the first request.
    """

    at_s: float | None = None
    rows: int = 1
    requests: int = 1


_NOTHING_WAITS: Final = WaitCondition()


class AdaptiveBatcher(Generic[T]):
    """A queue of requests, by urgency and arrival, that closes batches of requests with one key.

    A batch has up to `rows_max` rows; a larger request forms a batch of its own. With `merge`
    false, every request does. Requests with equal priority and key are never reordered. The caller
    bounds the queue.

    Raises:
        ConfigError: `rows_max` is below 1, or `delay_s` below 0.
    """

    def __init__(self, *, rows_max: int, delay_s: float, merge: bool = True) -> None:
        self.resize(rows_max=rows_max, delay_s=delay_s)
        self._merge = merge
        # A lane holds requests of equal priority and key. Lanes are never empty.
        self._lanes: dict[tuple[int, Hashable], deque[T]] = {}
        self._rows = 0
        self._requests = 0
        self._recent_rows = 0
        self._recent_requests = 0
        self._recent_s = float("-inf")

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the row limit of a batch and its maximum delay, for all later batches."""
        if rows_max < 1 or delay_s < 0:
            raise ConfigError(
                f"rows_max must be 1 or more and delay_s 0 or more, not {rows_max} and {delay_s}"
            )
        self._rows_max = rows_max
        self._delay_s = delay_s

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return self._requests

    @property
    def rows(self) -> int:
        """Number of waiting rows."""
        return self._rows

    def oldest_arrival_s(self) -> float | None:
        """Return the arrival time of the request that has waited longest, or None if none waits."""
        return min((lane[0].arrived_s for lane in self._lanes.values()), default=None)

    def add(self, item: T, *, first: bool = False) -> None:
        """Queue a request.

        With `first`, queue a returning request before those of equal priority and key.
        """
        lane_key = (item.priority, item.key)
        lane = self._lanes.get(lane_key)
        if lane is None:
            lane = self._lanes[lane_key] = deque[T]()
        if first:
            lane.appendleft(item)
        else:
            lane.append(item)
        self._rows += item.rows
        self._requests += 1

    def remove(self, item: T) -> bool:
        """Remove a request from any position. Return True if the request was waiting."""
        lane_key = (item.priority, item.key)
        lane = self._lanes.get(lane_key)
        if lane is None:
            return False
        for index, waiting in enumerate(lane):
            if waiting is item:
                del lane[index]
                self._removed(lane_key, lane, item)
                return True
        return False

    def drain(self) -> list[T]:
        """Remove and return all waiting requests."""
        items = [item for lane in self._lanes.values() for item in lane]
        self._lanes.clear()
        self._rows = self._requests = 0
        return items

    def next(
        self, *, running_rows: int, running: int, idle_since_s: float, now: float, flush: bool = False
    ) -> AdaptiveBatch[T] | WaitCondition:
        """Return the batch for an idle instance, or the condition to wait for.

        The instance is idle since `idle_since_s`. Other instances run `running` requests with
        `running_rows` rows. With `flush`, expect no further requests: close a batch now.
        """
        if not self._requests:
            return _NOTHING_WAITS
        rows, requests = self._expected(running_rows, running, now)
        reason = AdaptiveReason.EXPECTED_ARRIVED
        if flush:
            reason = AdaptiveReason.FLUSH
        elif self._rows < rows and self._requests < requests:
            # The delay runs from the oldest request: more urgent arrivals must not make that
            # request wait longer.
            due = max(idle_since_s, min(lane[0].arrived_s for lane in self._lanes.values())) + self._delay_s
            if now < due:
                return WaitCondition(due, rows, requests)
            reason = AdaptiveReason.DELAY
        self._recent_rows, self._recent_requests = self._rows + running_rows, self._requests + running
        self._recent_s = now
        return self._close(reason)

    def batch_ended(self, now: float) -> None:
        """Record the end of a batch: its clients may send their next requests within a moment."""
        self._recent_s = now

    def _expected(self, running_rows: int, running: int, now: float) -> tuple[int, int]:
        """Return the number of rows and of requests to wait for.

        The arrival of either completes the expected co-batch.
        """
        if not self._merge or now - self._recent_s > RECENT_DELAYS * self._delay_s:
            return 1, 1
        return min(self._rows_max, self._recent_rows - running_rows), self._recent_requests - running

    def _head(self) -> tuple[int, Hashable]:
        """Return the lane of the most urgent request; among equally urgent requests, of the oldest."""
        if len(self._lanes) == 1:
            return next(iter(self._lanes))
        return min(self._lanes, key=lambda lane_key: (lane_key[0], self._lanes[lane_key][0].arrived_s))

    def _close(self, reason: AdaptiveReason) -> AdaptiveBatch[T]:
        head = self._head()
        first = self._pop(head)
        taken, rows = [first], first.rows
        if not self._merge:
            return AdaptiveBatch((first,), rows, reason)
        key = head[1]
        lane_keys = sorted(p for p in self._lanes if p[1] == key)
        for lane_key in lane_keys:
            while (lane := self._lanes.get(lane_key)) and rows + lane[0].rows <= self._rows_max:
                rows += lane[0].rows
                taken.append(self._pop(lane_key))
            if lane:
                # In order of urgency: a request that does not fit closes the batch, and later ones
                # cannot overtake.
                return AdaptiveBatch(tuple(taken), rows, AdaptiveReason.ROWS)
        return AdaptiveBatch(tuple(taken), rows, AdaptiveReason.ROWS if rows >= self._rows_max else reason)

    def _pop(self, lane_key: tuple[int, Hashable]) -> T:
        lane = self._lanes[lane_key]
        item = lane.popleft()
        self._removed(lane_key, lane, item)
        return item

    def _removed(self, lane_key: tuple[int, Hashable], lane: deque[T], item: T) -> None:
        self._rows -= item.rows
        self._requests -= 1
        if not lane:
            del self._lanes[lane_key]
