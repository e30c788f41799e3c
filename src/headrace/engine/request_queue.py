"""The client side of the queues: accepted requests, withdrawals, closing."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.engine.pending_request import PendingRequest


class RequestQueue(ABC):
    """A queue of pending requests from any thread. Subclasses define its order, under `_lock`.

    `put` blocks while `in_flight_max` of its requests are unanswered: back-pressure for clients
    that produce requests. `offer` never blocks and returns False when the queue is full: for
    clients that can be refused.
    """

    def __init__(self, clock: Clock, *, in_flight_max: int) -> None:
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._lock = threading.Lock()
        self._space_freed = threading.Condition(self._lock)
        # Not referenced by the callback, so that a client that keeps its future does not keep the
        # request's arrays.
        self._entries_by_future: dict[Future[Any], PendingRequest] = {}
        self._cancelled = 0
        self._closed = False
        self._dropped = False
        self._successor: RequestQueue | None = None

    @property
    def dropped(self) -> bool:
        """True once `drop` was called: no further request is begun."""
        return self._dropped

    @property
    def cancelled(self) -> int:
        """Number of `put` requests that were cancelled before they began."""
        return self._cancelled

    # Client side

    def put(self, entry: PendingRequest, future: Future[Any]) -> None:
        """Queue a request with its future; block while the queue is full.

        Raises StoppedError once closed.
        """
        with self._lock:
            while len(self._entries_by_future) >= self._in_flight_max and not self._closed:
                self._space_freed.wait()
            if self._closed:
                raise StoppedError("it was stopped while this request waited")
            self._add(entry)
            self._entries_by_future[future] = entry
        future.add_done_callback(self._on_future_done)

    @abstractmethod
    def offer(self, entry: PendingRequest) -> bool:
        """Queue a request. Return False if the queue is full. Raises StoppedError once closed."""

    def withdraw(self, entry: PendingRequest) -> bool:
        """Cancel a request whose client has left, unless it has ended.

        Return True if it was still waiting.
        """
        with self._lock:
            if entry.ended:
                return False
            entry.cancelled = True
            return self._remove(entry)

    def abandon(self, future: Future[Any]) -> PendingRequest | None:
        """Cancel the request of this future. Return None if it had ended or was cancelled before."""
        with self._lock:
            entry = self._entries_by_future.get(future)
            if entry is None or entry.ended or entry.cancelled:
                return None
            entry.cancelled = True
            self._remove(entry)
            return entry

    def mark_ended(self, entries: Iterable[PendingRequest]) -> None:
        """Mark requests that have their results as ended, except cancelled ones.

        They cannot be withdrawn.
        """
        with self._lock:
            for entry in entries:
                entry.ended = not entry.cancelled

    # Closing

    def close(self) -> None:
        """Accept no more requests. Waiting requests can still be taken."""
        with self._lock:
            self._close()
            successor = self._successor
        if successor is not None:
            successor.close()

    def drop(self) -> list[PendingRequest]:
        """Close, and return the waiting requests for the caller to fail."""
        with self._lock:
            self._dropped = True
            self._close()
            waiting, successor = self._drain(), self._successor
        return waiting if successor is None else waiting + successor.drop()

    def delegate_to(self, successor: "RequestQueue") -> None:
        """Replace this queue by `successor` before its first request.

        The successor is closed and dropped with this queue, also if that has happened already.
        """
        with self._lock:
            self._successor = successor
            closed, dropped = self._closed, self._dropped
        if dropped:
            successor.drop()
        elif closed:
            successor.close()

    @abstractmethod
    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call, once the model is loaded: its rows and its co-batching delay."""

    @abstractmethod
    def waiting(self) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests."""

    # Under the lock

    @abstractmethod
    def _add(self, entry: PendingRequest) -> None:
        """Add a request."""

    @abstractmethod
    def _remove(self, entry: PendingRequest) -> bool:
        """Remove a request. Return True if it had not begun."""

    @abstractmethod
    def _drain(self) -> list[PendingRequest]:
        """Remove and return all requests."""

    @abstractmethod
    def _wake_all(self) -> None:
        """Wake all consumers, after a change of the queue's state."""

    def _close(self) -> None:
        self._closed = True
        self._space_freed.notify_all()
        self._wake_all()

    def _on_future_done(self, future: Future[Any]) -> None:
        """Handle the end or the cancellation of a future. Called once per future, from any thread."""
        removed = False
        with self._lock:
            entry = self._entries_by_future.pop(future, None)
            self._space_freed.notify()
            if entry is not None and future.cancelled():
                entry.cancelled = True
                self._cancelled += 1
                removed = self._remove(entry)
        if removed:
            # Without this call, a wait for several futures would not see the cancellation.
            future.set_running_or_notify_cancel()
