"""Work that is ready to be called, for one or more instances, in batches that a pure rule closes.

Passive: guarded by the lock of the `RequestQueue`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, WaitCondition, WaitingRequest
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.request_queue import QueueConsumer, ReadyBatch, Schedule

T = TypeVar("T", bound=WaitingRequest)


class ReadyQueue(Generic[T]):
    """Ready work and the instances that take it.

    With `shared`, several instances take from it, and the requests that others run count as likely
    to return soon. Without `merge`, each batch has one item.
    """

    def __init__(self, *, merge: bool = True, shared: bool = False) -> None:
        self._batcher = AdaptiveBatcher[T](rows_max=1, delay_s=0.0, merge=merge)
        self._shared = shared
        self._rows_max = 1
        self._flush_next = False
        """True if work waits that must not wait for co-batching."""
        self._idle: dict[QueueConsumer, float] = {}
        """Idle consumers and since when they are idle, the latest last."""
        self._sleeping: list[QueueConsumer] = []
        """Idle consumers that were not woken since."""
        self._timed_consumer: QueueConsumer | None = None
        """The consumer that waits with a timeout for co-batching."""
        self._wait_condition = WaitCondition()
        """The condition on which the timed consumer is woken."""
        self.running = 0
        """Number of items that were taken and have not ended."""
        self._running_rows = 0

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return len(self._batcher)

    @property
    def rows(self) -> int:
        """Number of waiting rows."""
        return self._batcher.rows

    @property
    def fills_call(self) -> bool:
        """True if the waiting rows fill a call. May be read without the lock."""
        return self._batcher.rows >= self._rows_max

    @property
    def is_asleep(self) -> bool:
        """True while every consumer waits to be woken."""
        return bool(self._sleeping) and len(self._sleeping) == len(self._idle)

    @property
    def oldest_s(self) -> float | None:
        """Arrival time of the oldest waiting item; None if none waits."""
        return self._batcher.oldest_arrival_s()

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limit of rows per call and the co-batching delay."""
        self._rows_max = rows_max
        self._batcher.resize(rows_max=rows_max, delay_s=delay_s)

    # Work

    def add(self, item: T, *, first: bool = False, flush: bool = False) -> None:
        """Add an item, and wake an instance if the item completes its condition.

        With `first`, add a returning item ahead of its equals. With `flush`, the next batch does
        not wait for co-batching.
        """
        self._batcher.add(item, first=first)
        self._flush_next = self._flush_next or flush
        timed = self._timed_consumer
        if timed is not None:
            condition = self._wait_condition
            if (
                self._flush_next
                or self._batcher.rows >= condition.rows
                or len(self._batcher) >= condition.requests
            ):
                self._timed_consumer = None
                self._wake(timed)
        elif len(self._sleeping) == len(self._idle):
            # No consumer that was woken is still on its way to ask.
            self.wake_one()

    def remove(self, item: T) -> bool:
        """Remove an item. Return True if it was waiting."""
        return self._batcher.remove(item)

    def drain(self) -> list[T]:
        """Remove and return all waiting items."""
        return self._batcher.drain()

    # Consumers

    def next(self, consumer: QueueConsumer, now: float, *, flush: bool) -> AdaptiveBatch[T] | WaitCondition:
        """Return the next batch for an idle instance, or the condition to `sleep` for."""
        idle_since_s = self._idle.setdefault(consumer, now)
        if self._timed_consumer is consumer:
            self._timed_consumer = None
        found = self._batcher.next(
            running_rows=self._running_rows if self._shared else 0,
            running=self.running if self._shared else 0,
            idle_since_s=idle_since_s,
            now=now,
            flush=flush or self._flush_next,
        )
        if isinstance(found, AdaptiveBatch):
            self.mark_awake(consumer)
            self._begin(found)
            self.wake_one()
        return found

    def next_full(self, now: float) -> AdaptiveBatch[T] | None:
        """Return the next batch if it fills a call already."""
        if not self.fills_call:
            return None
        found = self._batcher.next(running_rows=0, running=0, idle_since_s=now, now=now, flush=True)
        if not isinstance(found, AdaptiveBatch):
            return None
        self._begin(found)
        return found

    def _begin(self, batch: AdaptiveBatch[T]) -> None:
        self.running += len(batch.items)
        self._running_rows += batch.rows
        self._flush_next = self._flush_next and bool(len(self._batcher))

    def end(self, count: int, rows: int, now: float) -> None:
        """Record the end of items that were taken."""
        self.running -= count
        self._running_rows -= rows
        self._batcher.batch_ended(now)

    def forget_running(self) -> None:
        """Forget the items that were taken: their instance has died."""
        self.running = self._running_rows = 0

    def sleep(self, consumer: QueueConsumer, condition: WaitCondition) -> WaitCondition:
        """Record that a consumer sleeps until the condition holds. Return its own condition.

        One consumer at a time waits for co-batching; the others are woken when one batch is not
        enough.
        """
        if consumer not in self._sleeping:
            self._sleeping.append(consumer)
        if condition.at_s is not None and self._timed_consumer is None:
            self._timed_consumer, self._wait_condition = consumer, condition
            return condition
        return WaitCondition()

    def mark_awake(self, consumer: QueueConsumer) -> None:
        """Record that a consumer is busy, or takes nothing for now."""
        self._idle.pop(consumer, None)
        if consumer in self._sleeping:
            self._sleeping.remove(consumer)
        if self._timed_consumer is consumer:
            self._timed_consumer = None

    def wake_one(self) -> None:
        """Wake a consumer if work waits."""
        if len(self._batcher) and self._sleeping:
            self._wake(self._sleeping[-1])

    def wake_all(self) -> None:
        """Wake all consumers."""
        self._timed_consumer = None
        sleeping, self._sleeping = self._sleeping, []
        for consumer in sleeping:
            consumer.wake()

    def _wake(self, consumer: QueueConsumer) -> None:
        if consumer in self._sleeping:
            self._sleeping.remove(consumer)
        consumer.wake()


class IndependentRequests(ReadyQueue[PendingRequest], Schedule):
    """The schedule of requests without states: each can be called at once, by any instance."""

    def __init__(self, *, merge: bool) -> None:
        super().__init__(merge=merge, shared=True)

    @property
    @override
    def has_ended(self) -> bool:
        return False

    @override
    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits, or nothing else waits."""
        waiting = len(self)
        return not waiting or (self.rows + entry.rows <= rows_max and waiting < rows_max)

    @override
    def add(
        self, item: PendingRequest, details: Any = None, *, first: bool = False, flush: bool = False
    ) -> None:
        super().add(item, first=first, flush=flush)

    @override
    def forget(self, entries: Iterable[PendingRequest]) -> None:
        pass

    @override
    def waiting(self, now: float) -> tuple[int, int, float, int]:
        oldest_s = self.oldest_s
        age_s = 0.0 if oldest_s is None else max(0.0, now - oldest_s)
        return len(self), self.rows, age_s, self.running

    @override
    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> ReadyBatch | WaitCondition | None:
        found = self.next(consumer, now, flush=closed)
        if isinstance(found, AdaptiveBatch):
            return _batch(found)
        if closed:
            self.mark_awake(consumer)
            return None
        return self.sleep(consumer, found)

    @override
    def take_full(self, instance: int, now: float) -> ReadyBatch | None:
        found = self.next_full(now)
        return None if found is None else _batch(found)

    def requeue(self, entries: Sequence[PendingRequest]) -> None:
        """Queue requests again that lost their instance, ahead of their equals, also while closing.

        Cancelled requests are skipped.
        """
        for entry in reversed(entries):
            if not entry.cancelled:
                super().add(entry, first=True)
        self.wake_one()

    @override
    def is_full(self, instance: int) -> bool:
        return self.fills_call

    @override
    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        self.mark_awake(consumer)
        # It may have been woken for work that it does not take.
        self.wake_one()

    @override
    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        return list


def _batch(closed: AdaptiveBatch[PendingRequest]) -> ReadyBatch:
    return ReadyBatch(closed.items, closed.rows, closed.reason)
