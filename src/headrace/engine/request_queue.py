"""The queue between clients and instances: bounded, with withdrawals, for every kind of call.

Takes pending requests from any thread; gives batches of them to idle instances, in the order of its
schedule.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from typing_extensions import override

from headrace.batching.adaptive import QueueConsumer, WaitCondition
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, StoppedError
from headrace.engine.backend import Backend
from headrace.engine.background_requests import BackgroundRequests
from headrace.engine.pending_request import (
    PendingRequest,
    RequestResult,
    cancelled_error,
    deadline_error,
    stopped_error,
)
from headrace.engine.schedule import Schedule, TakenBatch


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


DeliverResults = Callable[[list[tuple[PendingRequest, RequestResult]]], None]
"""Marks, counts and delivers results that do not come from a call. Any thread, without a lock."""


class RequestQueue:
    """A bounded queue of pending requests.

    `put` blocks while `in_flight_max` of its requests are unanswered: back-pressure for clients
    that produce requests. `offer` never blocks and returns False while `queue_rows_max` rows are
    queued: for clients that can be refused. A withdrawn request leaves the queue at once.

    Requests of `put` are background requests. They go after those of `offer` and do not take their
    place. They also wait for their share of the time, if `background` limits it.
    """

    def __init__(
        self,
        clock: Clock,
        schedule: Schedule,
        *,
        model: str,
        in_flight_max: int,
        queue_rows_max: int,
        deliver_results: DeliverResults,
        background: BackgroundRequests | None = None,
    ) -> None:
        self.lock = threading.Lock()
        """Guards the schedule, and the changes of pending requests."""
        self.schedule = schedule
        """The order of the calls. Replaced before the first request by a model with a `step`."""
        self._model = model
        self._clock = clock
        self._in_flight_max = in_flight_max
        self.queue_rows_max = queue_rows_max
        self._deliver_results = deliver_results
        self._background = BackgroundRequests(lambda: 1.0, lambda: 1) if background is None else background
        self._rows_max = 1
        self._refused: list[tuple[PendingRequest, RequestResult]] = []
        """Background requests that the schedule refused."""
        self._space_freed = threading.Condition(self.lock)
        # Not referenced by the callback, so that a client that keeps its future does not keep the
        # request's arrays.
        self._entries_by_future: dict[Future[Any], PendingRequest] = {}
        self._draining: dict[int, bool] = {}
        """The removed instances; True once they have taken their last batch."""
        self.cancelled = 0
        """Number of `put` requests that were cancelled before they began."""
        self.closed = False
        self.dropped = False
        """True once `drop` was called: no further request is begun."""

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call, once the model is loaded: its rows and its co-batching delay."""
        with self.lock:
            self._rows_max = rows_max
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
                if self._background.is_open:
                    self.schedule.add(entry)
                else:
                    self._hold(entry)
                self._entries_by_future[future] = entry
        finally:
            self.deliver_ended()
        future.add_done_callback(self._on_future_done)

    def offer(self, entry: PendingRequest) -> bool:
        """Queue a request. Return False if the queue is full.

        Raises StoppedError once closed, and the error of a schedule that refuses the request.
        """
        try:
            with self.lock:
                if self.closed:
                    raise StoppedError("it is stopping")
                if not self._has_room(entry):
                    return False
                self.schedule.add(entry)
                return True
        finally:
            self.deliver_ended()

    def _has_room(self, entry: PendingRequest) -> bool:
        if self.schedule.has_room(entry, self.queue_rows_max):
            return True
        # Rows of background requests do not count. They are only looked at here, since it takes time.
        counts_running = self.schedule.room_counts_running
        background_rows = -self._background.rows + sum(
            [
                each.rows
                for future, each in self._entries_by_future.items()
                if counts_running or not future.running()
            ]
        )
        return self.schedule.has_room(entry, max(self.queue_rows_max, entry.rows) + background_rows)

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
            self._remove(entry)
        self.deliver_ended()
        return entry

    def _remove(self, entry: PendingRequest) -> bool:
        """Remove a background request. Return True if it had not begun."""
        return self._background.remove(entry) or self.schedule.remove(entry)

    def _on_future_done(self, future: Future[Any]) -> None:
        """Handle the end or the cancellation of a future. Called once per future, from any thread."""
        removed = False
        with self.lock:
            entry = self._entries_by_future.pop(future, None)
            self._space_freed.notify()
            if entry is not None and future.cancelled():
                entry.cancelled = True
                self.cancelled += 1
                removed = self._remove(entry)
            if entry is not None and self._background.has_work:
                self._background.end(entry, self._clock.now())
                self._begin_background()
        if removed:
            # Without this call, a wait for several futures would not see the cancellation.
            future.set_running_or_notify_cancel()
        # The cancelled request may have been the last one before an end.
        self.deliver_ended()

    def waiting(self) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests.

        Without those that `held_requests` counts.
        """
        with self.lock:
            return self.schedule.waiting(self._clock.now())

    # Background requests

    @property
    def held_requests(self) -> int:
        """The number of background requests that wait for their share of the time."""
        return len(self._background)

    def _hold(self, entry: PendingRequest) -> None:
        self._background.add(entry)
        self._begin_background()
        if len(self._background):
            # Idle instances look for it later.
            self.schedule.wake_all()

    def _begin_background(self) -> None:
        """Pass background requests to the schedule, as far as their share permits; all once closed."""
        now = self._clock.now()
        while entries := self._background.next(self._rows_max, now, ignore_share=self.closed):
            for entry in entries:
                try:
                    self.schedule.add(entry)
                except Exception as error:  # noqa: BLE001 - the request must end, and the others begin
                    self._refused.append((entry, error))

    # Instances

    def take(
        self, consumer: BlockingConsumer, instance: int = 0, backend: Backend | None = None
    ) -> TakenBatch | WaitCondition | None:
        """Wait for the next batch.

        Return None when the queue is closed and empty, or when a draining instance has no work left.

        Whenever the consumer wakes, and its `backend` is lost, it leaves the idle consumers, and
        `take` returns a WaitCondition.
        """
        try:
            while backend is None or not backend.lost:
                # Ends of the last batch are delivered before the next take: no client may want the
                # work then.
                self.deliver_ended()
                with self.lock:
                    found = self._take(consumer, instance, self._clock.now())
                self.deliver_ended()
                if not isinstance(found, WaitCondition):
                    return found
                consumer.wait(None if found.at_s is None else found.at_s - self._clock.now())
        except BaseException:
            self._leave(consumer, instance)
            raise
        self._leave(consumer, instance)
        return WaitCondition()

    def _take(
        self, consumer: BlockingConsumer, instance: int, now: float
    ) -> TakenBatch | WaitCondition | None:
        if instance in self._draining and self.schedule.drain_instance(instance, now):
            self._draining[instance] = True
            self.schedule.leave(consumer, instance)
            return None
        if not self._background.has_work:
            return self.schedule.take(consumer, instance, now, closed=self.closed)
        self._begin_background()
        found = self.schedule.take(consumer, instance, now, closed=self.closed)
        due_s = self._background.next_s(now)
        if due_s is None or not isinstance(found, WaitCondition):
            return found
        return WaitCondition(due_s if found.at_s is None else min(found.at_s, due_s))

    def end_error(self, entry: PendingRequest) -> HeadraceError | None:
        """Return the error that ends a request whose result is no longer wanted, else None."""
        if self.dropped:
            return stopped_error(self._model, "while this request ran")
        if entry.cancelled:
            return cancelled_error(entry.request)
        deadline = entry.request.deadline
        if deadline is not None and self._clock.now() >= deadline:
            return deadline_error(self._model, entry.request)
        return None

    def _leave(self, consumer: BlockingConsumer, instance: int) -> None:
        with self.lock:
            self.schedule.leave(consumer, instance)

    def take_full(self, instance: int) -> TakenBatch | None:
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
            for entry in entries:
                entry.ended = not entry.cancelled
            self.schedule.forget(entries)

    def deliver_ended(self) -> None:
        """Deliver the results of requests that ended without a call.

        Any thread, without the lock, wherever a request may have ended.
        """
        if not (self.schedule.has_ended or self._refused):
            return
        with self.lock:
            finish = self.schedule.take_ended()
            refused, self._refused = self._refused, []
        if results := finish() + refused:
            self._deliver_results(results)

    # The number of instances

    def add_instance(self, instance: int) -> None:
        """Prepare for the first batch of an instance."""
        with self.lock:
            self._draining.pop(instance, None)
            self.schedule.add_instance(instance)

    def drain_instance(self, instance: int) -> None:
        """Let an instance take only the work that the others cannot do; then its `take` returns None."""
        with self.lock:
            self._draining[instance] = False
            # At once, since the instance may be in a call.
            self.schedule.drain_instance(instance, self._clock.now())
            self.schedule.wake_all()
        self.deliver_ended()

    def keep_instance(self, instance: int) -> bool:
        """Undo `drain_instance`. Return False if the instance has taken its last batch."""
        with self.lock:
            if self._draining[instance]:
                return False
            del self._draining[instance]
            self.schedule.add_instance(instance)
            return True

    def end_drain(self, instance: int) -> bool:
        """Return True if an instance is removed. It takes no further batch then, and cannot be kept."""
        with self.lock:
            is_removed = instance in self._draining
            if is_removed:
                self._draining[instance] = True
            return is_removed

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
            waiting = self.schedule.drain() + self._background.drain()
        self.deliver_ended()
        return waiting

    def _close(self) -> None:
        self.closed = True
        self._space_freed.notify_all()
        self.schedule.wake_all()
