"""The queue between clients and instances: bounded, with withdrawals, for every kind of call.

Takes pending requests from any thread; gives batches of them to idle instances, in the order of its
schedule.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from typing_extensions import override

from headrace.batching.adaptive import WaitCondition
from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.core.tensor import statically_frozen
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.stepper import SequenceEnding


class QueueConsumer(Protocol):
    """An instance that takes batches.

    Any thread calls `wake` when the instance should ask again.
    """

    def wake(self) -> None:
        """Make the consumer ask soon."""
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


@statically_frozen
class ReadyBatch:
    """The work of one call."""

    taken: Sequence[Any] = ()
    """Pending requests, or sequences with their row requests: what the schedule keeps."""
    rows: int = 0
    reason: str = ""
    """The reason for which the batch closed."""
    endings: Sequence[SequenceEnding] = ()
    """Ended sequences to report to the model before the call."""


class Schedule(Protocol):
    """The order of the calls. The lock of the request queue is held in all methods."""

    @property
    def has_ended(self) -> bool:
        """True if requests may have ended without a call. Needs no lock."""
        ...

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call, once the model is loaded: its rows and its co-batching delay."""
        ...

    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits below the limit of queued rows."""
        ...

    def add(self, entry: PendingRequest, details: Any, /) -> None:
        """Add a request. `details` are those of `RequestQueue.offer`. Raises the error that refuses it."""
        ...

    def remove(self, entry: PendingRequest, /) -> bool:
        """Remove a request. Return True if it had not begun."""
        ...

    def drain(self) -> list[PendingRequest]:
        """Remove and return all waiting requests."""
        ...

    def forget(self, entries: Iterable[PendingRequest]) -> None:
        """Forget requests that have ended."""
        ...

    def waiting(self, now: float) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests."""
        ...

    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> ReadyBatch | WaitCondition | None:
        """Return the next batch of an instance, or the condition to wait for; None if nothing is left."""
        ...

    def take_full(self, instance: int, now: float) -> ReadyBatch | None:
        """Return the next batch of an instance if it fills a call."""
        ...

    def is_full(self, instance: int) -> bool:
        """Return True if the waiting work of an instance fills a call. Needs no lock."""
        ...

    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        """Record that an instance takes nothing for now."""
        ...

    def wake_all(self) -> None:
        """Wake all instances, after a change of the queue's state."""
        ...

    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        """Return a function that finishes the requests that ended without a call.

        Call it without the lock; it returns the results to deliver.
        """
        ...


DeliverResults = Callable[[list[tuple[PendingRequest, RequestResult]]], None]
"""Marks, counts and delivers results that do not come from a call. Any thread, without a lock."""


class RequestQueue:
    """A bounded queue of pending requests.

    `put` blocks while `in_flight_max` of its requests are unanswered: back-pressure for clients
    that produce requests. `offer` never blocks and returns False while `queue_rows_max` rows are
    queued: for clients that can be refused. A withdrawn request leaves the queue at once.
    """

    def __init__(
        self,
        clock: Clock,
        schedule: Schedule,
        *,
        in_flight_max: int,
        queue_rows_max: int,
        deliver_results: DeliverResults,
    ) -> None:
        self.lock = threading.Lock()
        """Guards the schedule, and the changes of pending requests."""
        self.schedule = schedule
        """The order of the calls. Replaced before the first request by a model with a `step`."""
        self._clock = clock
        self._in_flight_max = in_flight_max
        self.queue_rows_max = queue_rows_max
        self._deliver_results = deliver_results
        self._space_freed = threading.Condition(self.lock)
        # Not referenced by the callback, so that a client that keeps its future does not keep the
        # request's arrays.
        self._entries_by_future: dict[Future[Any], PendingRequest] = {}
        self.cancelled = 0
        """Number of `put` requests that were cancelled before they began."""
        self.closed = False
        self.dropped = False
        """True once `drop` was called: no further request is begun."""

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call, once the model is loaded: its rows and its co-batching delay."""
        with self.lock:
            self.schedule.resize(rows_max=rows_max, delay_s=delay_s)

    # Clients

    def put(self, entry: PendingRequest, future: Future[Any]) -> None:
        """Queue a request with its future; block while the queue is full.

        Raises StoppedError once closed, and the error of a schedule that refuses the request.
        """
        try:
            with self.lock:
                while len(self._entries_by_future) >= self._in_flight_max and not self.closed:
                    self._space_freed.wait()
                if self.closed:
                    raise StoppedError("it was stopped while this request waited")
                self.schedule.add(entry, None)
                self._entries_by_future[future] = entry
        finally:
            self.deliver_ended()
        future.add_done_callback(self._on_future_done)

    def offer(self, entry: PendingRequest, details: Any = None) -> bool:
        """Queue a request. Return False if the queue is full.

        `details` are passed to the schedule. Raises StoppedError once closed, and the error of a
        schedule that refuses the request.
        """
        try:
            with self.lock:
                if self.closed:
                    raise StoppedError("it is stopping")
                if not self.schedule.has_room(entry, self.queue_rows_max):
                    return False
                self.schedule.add(entry, details)
                return True
        finally:
            self.deliver_ended()

    def withdraw(self, entry: PendingRequest) -> bool:
        """Cancel a request whose client has left, unless it has ended. Steps that are done stay done.

        Return True if it was still waiting.
        """
        with self.lock:
            if entry.ended:
                return False
            entry.cancelled = True
            waited = self.schedule.remove(entry)
        self.deliver_ended()
        return waited

    def abandon(self, future: Future[Any]) -> PendingRequest | None:
        """Cancel the request of this future. Return None if it had ended or was cancelled before."""
        with self.lock:
            entry = self._entries_by_future.get(future)
            if entry is None or entry.ended or entry.cancelled:
                return None
            entry.cancelled = True
            self.schedule.remove(entry)
        self.deliver_ended()
        return entry

    def _on_future_done(self, future: Future[Any]) -> None:
        """Handle the end or the cancellation of a future. Called once per future, from any thread."""
        removed = False
        with self.lock:
            entry = self._entries_by_future.pop(future, None)
            self._space_freed.notify()
            if entry is not None and future.cancelled():
                entry.cancelled = True
                self.cancelled += 1
                removed = self.schedule.remove(entry)
        if removed:
            # Without this call, a wait for several futures would not see the cancellation.
            future.set_running_or_notify_cancel()
        # The cancelled request may have been the last one before an end.
        self.deliver_ended()

    def waiting(self) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests."""
        with self.lock:
            return self.schedule.waiting(self._clock.now())

    # Instances

    def take(
        self, consumer: BlockingConsumer, instance: int = 0, unavailable: Callable[[], bool] = lambda: False
    ) -> ReadyBatch | WaitCondition | None:
        """Wait for the next batch. Return None when the queue is closed and empty.

        `unavailable` is evaluated whenever the consumer wakes. Once it returns True, the consumer
        leaves the idle consumers and `take` returns a WaitCondition.
        """
        try:
            while not unavailable():
                # Ends of the last batch are delivered before the next take: no client may want the
                # work then.
                self.deliver_ended()
                with self.lock:
                    found = self.schedule.take(consumer, instance, self._clock.now(), closed=self.closed)
                self.deliver_ended()
                if not isinstance(found, WaitCondition):
                    return found
                consumer.wait(None if found.at_s is None else found.at_s - self._clock.now())
        except BaseException:
            self._leave(consumer, instance)
            raise
        self._leave(consumer, instance)
        return WaitCondition()

    def _leave(self, consumer: BlockingConsumer, instance: int) -> None:
        with self.lock:
            self.schedule.leave(consumer, instance)

    def take_full(self, instance: int) -> ReadyBatch | None:
        """Return the next batch of an instance if it fills a call, unless closed; else None."""
        with self.lock:
            batch = None if self.closed else self.schedule.take_full(instance, self._clock.now())
        self.deliver_ended()
        return batch

    def mark_ended(self, entries: Iterable[PendingRequest]) -> None:
        """Mark requests that have their results as ended, except cancelled ones.

        They cannot be withdrawn.
        """
        with self.lock:
            self.mark_ended_locked(entries)

    def mark_ended_locked(self, entries: Iterable[PendingRequest]) -> None:
        """Mark requests as `mark_ended` does, while the lock is held."""
        for entry in entries:
            entry.ended = not entry.cancelled
        self.schedule.forget(entries)

    def deliver_ended(self) -> None:
        """Deliver the results of requests that ended without a call.

        Any thread, without the lock, wherever a request may have ended.
        """
        if not self.schedule.has_ended:
            return
        with self.lock:
            finish = self.schedule.take_ended()
        if results := finish():
            self._deliver_results(results)

    # Closing

    def close(self) -> None:
        """Accept no more requests. Waiting requests can still be taken."""
        with self.lock:
            self._close()

    def drop(self) -> list[PendingRequest]:
        """Close, and return the waiting requests for the caller to fail."""
        with self.lock:
            self.dropped = True
            self._close()
            waiting = self.schedule.drain()
        self.deliver_ended()
        return waiting

    def _close(self) -> None:
        self.closed = True
        self._space_freed.notify_all()
        self.schedule.wake_all()
