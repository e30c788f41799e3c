"""A bounded queue between the threads of two stages: ordered, and limited by weight (bytes)."""

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ChannelClosedError(Exception):
    """The receiver closed the channel; the sender should stop. It never leaves the flow."""


class EndOfChannelError(Exception):
    """The sender finished, and every item was received. It never leaves the flow."""


class Channel(Generic[T]):
    """A queue with one sender and one receiver.

    `send` blocks while the waiting items weigh `weight_max` or more, so the channel holds at most
    that weight and one item. An item may wait for a future, and the items after it with it: the
    receiver's thread wakes only when the head is ready. The receiver gets items sent before `finish`
    or `fail` first. After `close` by the receiver, `send` raises ChannelClosedError.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._items: deque[tuple[T, int, Future[Any] | None]] = deque()
        self._weight = 0
        self._lock = threading.Lock()
        self._not_full = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None

    def send(self, item: T, weight: int, future: Future[Any] | None = None) -> None:
        """Add an item, which is ready when `future` is done. Block while the channel is full."""
        with self._lock:
            while self._weight >= self._weight_max and not self._closed:
                self._not_full.wait()
            if self._closed:
                raise ChannelClosedError
            self._items.append((item, weight, future))
            self._weight += weight
            if future is None:
                self._ready.notify()
        if future is not None:
            future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[Any]) -> None:
        with self._lock:
            if self._items and self._items[0][2] is future:
                self._ready.notify()

    def finish(self) -> None:
        """Mark the end of the items."""
        with self._lock:
            self._finished = True
            self._ready.notify()

    def fail(self, error: BaseException) -> None:
        """Mark the end of the items with an error. The receiver gets it after all items."""
        with self._lock:
            self._error = error
            self._finished = True
            self._ready.notify()

    def close(self) -> None:
        """Stop receiving, and drop the waiting items."""
        with self._lock:
            self._closed = True
            self._items.clear()
            self._not_full.notify()
            self._ready.notify()

    def receive(self, timeout_s: float | None = None) -> T | None:
        """Return the next item, or None if none was ready within `timeout_s`.

        Raises:
            EndOfChannelError: The sender finished. If it failed, its error is raised instead.
        """
        with self._lock:
            while not self._head_is_ready():
                if self._closed or (self._finished and not self._items):
                    raise self._error or EndOfChannelError
                if not self._ready.wait(timeout_s):
                    return None
            item, weight, _ = self._items.popleft()
            self._weight -= weight
            self._not_full.notify()
            return item

    def _head_is_ready(self) -> bool:
        if not self._items:
            return False
        future = self._items[0][2]
        return future is None or future.done()
