"""The queue between clients and instances: one bounded queue whose batches close by a pure rule.

Takes pending requests from any thread; gives batches of them to idle instances.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, WaitCondition
from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.engine.pending_request import PendingRequest
from headrace.engine.request_queue import RequestQueue

RequestBatch = AdaptiveBatch[PendingRequest]


class QueueConsumer(Protocol):
    """An instance that takes batches.

    Any thread calls `wake` when the instance should `poll` again.
    """

    def wake(self) -> None:
        """Make the consumer poll soon."""
        ...


class BlockingConsumer(QueueConsumer):
    """A consumer that blocks its own thread."""

    def __init__(self) -> None:
        # A plain lock, as threading.Event uses one, without the layers around it.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._guard = threading.Lock()
        self._set = False

    @override
    def wake(self) -> None:
        """Wake the waiting thread. Several calls before one `wait` count once."""
        with self._guard:
            if not self._set:
                self._set = True
                self._asleep.release()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until woken or until the timeout."""
        self._asleep.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        with self._guard:
            if self._set:
                self._set = False
                # Woken between the timeout and here: the lock was released once too often.
                self._asleep.acquire(blocking=False)


class BatchQueue(RequestQueue):
    """A bounded queue of pending requests that gives adaptive batches.

    `offer` returns False while `queue_rows_max` rows wait, or as many requests without rows. A
    withdrawn request leaves the queue at once. See `RequestQueue` for the bound of `put`.
    """

    def __init__(
        self,
        batcher: AdaptiveBatcher[PendingRequest],
        clock: Clock,
        *,
        in_flight_max: int,
        queue_rows_max: int,
    ) -> None:
        super().__init__(clock, in_flight_max=in_flight_max)
        self._batcher = batcher
        self._queue_rows_max = queue_rows_max
        self._running_rows = 0
        self._running = 0
        self._idle: dict[QueueConsumer, float] = {}
        """Idle consumers and since when they are idle, the latest last."""
        self._sleeping: list[QueueConsumer] = []
        """Idle consumers that were not woken since."""
        self._timed_consumer: QueueConsumer | None = None
        """The consumer that waits with a timeout for co-batching."""
        self._wait_condition = WaitCondition()
        """The condition on which the timed consumer is woken."""

    @override
    def resize(self, *, rows_max: int, delay_s: float) -> None:
        with self._lock:
            self._batcher.resize(rows_max=rows_max, delay_s=delay_s)

    # Client side

    @override
    def offer(self, entry: PendingRequest) -> bool:
        """Queue a request. Return False if the queue is full. Raises StoppedError once closed.

        A request with more rows than the queue's limit is accepted when nothing else waits.
        """
        with self._lock:
            if self._closed:
                raise StoppedError("it is stopping")
            limit, waiting = self._queue_rows_max, len(self._batcher)
            if waiting and (self._batcher.rows + entry.rows > limit or waiting >= limit):
                return False
            self._add(entry)
            return True

    def requeue(self, entries: list[PendingRequest]) -> None:
        """Queue requests again that lost their instance, ahead of their equals, also while closing.

        Cancelled requests are skipped.
        """
        with self._lock:
            for entry in reversed(entries):
                if not entry.cancelled:
                    self._batcher.add(entry, first=True)
            self._wake_one()

    # Instance side

    def take(
        self, consumer: BlockingConsumer, unavailable: Callable[[], bool] = lambda: False
    ) -> RequestBatch | WaitCondition | None:
        """Wait for the next batch. Return None when the queue is closed and empty.

        `unavailable` is evaluated whenever the consumer wakes. Once it returns True, the consumer
        leaves the idle consumers and `take` returns a WaitCondition.
        """
        try:
            while not unavailable():
                found = self.poll(consumer)
                if not isinstance(found, WaitCondition):
                    return found
                consumer.wait(None if found.at_s is None else found.at_s - self._clock.now())
        except BaseException:
            self._pass_turn(consumer)
            raise
        self._pass_turn(consumer)
        return WaitCondition()

    def _pass_turn(self, consumer: QueueConsumer) -> None:
        """Remove a consumer that takes nothing for now, and wake another one."""
        with self._lock:
            self._remove_idle(consumer)
            if self._timed_consumer is consumer:
                self._timed_consumer = None
            # It may have been woken for work that it does not take.
            self._wake_one()

    def poll(self, consumer: QueueConsumer) -> RequestBatch | WaitCondition | None:
        """Return the next batch, or the condition to wait for.

        Return None when the queue is closed and empty.
        """
        with self._lock:
            now = self._clock.now()
            idle_since_s = self._idle.setdefault(consumer, now)
            if self._timed_consumer is consumer:
                self._timed_consumer = None
            found = self._batcher.next(
                running_rows=self._running_rows,
                running=self._running,
                idle_since_s=idle_since_s,
                now=now,
                flush=self._closed,
            )
            if isinstance(found, AdaptiveBatch):
                self._remove_idle(consumer)
                self._running_rows += found.rows
                self._running += len(found.items)
                self._wake_one()
                return found
            if self._closed:
                self._remove_idle(consumer)
                return None
            if consumer not in self._sleeping:
                self._sleeping.append(consumer)
            if found.at_s is not None and self._timed_consumer is None:
                self._timed_consumer, self._wait_condition = consumer, found
                return found
            # Another consumer waits with a timeout; this one is woken when one batch is not enough.
            return WaitCondition()

    def _remove_idle(self, consumer: QueueConsumer) -> None:
        self._idle.pop(consumer, None)
        if consumer in self._sleeping:
            self._sleeping.remove(consumer)

    def batch_ended(self, batch: RequestBatch) -> None:
        """Record the end of a batch that was taken."""
        with self._lock:
            self._running_rows -= batch.rows
            self._running -= len(batch.items)
            self._batcher.batch_ended(self._clock.now())

    @override
    def waiting(self) -> tuple[int, int, float, int]:
        """Return waiting requests and rows, the oldest's waiting time in seconds, and requests in calls."""
        with self._lock:
            oldest_s = self._batcher.oldest_arrival_s()
            age_s = 0.0 if oldest_s is None else max(0.0, self._clock.now() - oldest_s)
            return len(self._batcher), self._batcher.rows, age_s, self._running

    # Under the lock

    @override
    def _wake_all(self) -> None:
        self._timed_consumer = None
        sleeping, self._sleeping = self._sleeping, []
        for consumer in sleeping:
            consumer.wake()

    @override
    def _remove(self, entry: PendingRequest) -> bool:
        return self._batcher.remove(entry)

    @override
    def _drain(self) -> list[PendingRequest]:
        return self._batcher.drain()

    @override
    def _add(self, entry: PendingRequest) -> None:
        self._batcher.add(entry)
        if self._timed_consumer is not None:
            if (
                self._batcher.rows >= self._wait_condition.rows
                or len(self._batcher) >= self._wait_condition.requests
            ):
                self._wake(self._timed_consumer)
                self._timed_consumer = None
        elif len(self._sleeping) == len(self._idle):
            # No consumer that was woken is still on its way to poll.
            self._wake_one()

    def _wake_one(self) -> None:
        if len(self._batcher) and self._sleeping:
            self._wake(self._sleeping[-1])

    def _wake(self, consumer: QueueConsumer) -> None:
        if consumer in self._sleeping:
            self._sleeping.remove(consumer)
        consumer.wake()
