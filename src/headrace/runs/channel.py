"""A bounded queue between the threads of two stages: ordered, and limited by weight (bytes)."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosedError(Exception):
    """The receiver closed the channel; the sender should stop. It never leaves the pipeline."""


class EndOfChannelError(Exception):
    """The sender finished, and every item was received. It never leaves the pipeline."""


class Channel(Generic[T]):
    """A queue with one sender and one receiver.

    `send` blocks while the waiting items weigh `weight_max` or more, so the channel holds at most
    that weight and one item. The receiver gets items sent before `finish` or `fail` first. After
    `close` by the receiver, `send` raises ChannelClosedError.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._items: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._changed = threading.Condition()
        self._finished = False
        self._error: BaseException | None = None
        self._closed = False

    def send(self, item: T, weight: int) -> None:
        """Add an item. Block while the channel is full."""
        with self._changed:
            while self._weight >= self._weight_max and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ChannelClosedError
            self._items.append((item, weight))
            self._weight += weight
            self._changed.notify_all()

    def finish(self) -> None:
        """Mark the end of the items."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Mark the end of the items with an error. The receiver gets it after all items."""
        with self._changed:
            self._error = error
            self._finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop receiving, and drop the waiting items."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._weight = 0
            self._changed.notify_all()

    def receive(self, timeout_s: float | None = None) -> T | None:
        """Return the next item, or None if none arrived within `timeout_s`.

        Raises:
            EndOfChannelError: The sender finished. If it failed, its error is raised instead.
        """
        with self._changed:
            if not self._items and not self._finished and not self._closed:
                self._changed.wait(timeout_s)
            if self._items:
                item, weight = self._items.popleft()
                self._weight -= weight
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            if self._finished or self._closed:
                raise EndOfChannelError
            return None
