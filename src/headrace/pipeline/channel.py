"""Hand-over between two stages' threads: a queue bounded by weight (bytes), in order, that ends or fails."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosedError(Exception):
    """The receiver has gone; the sender should stop. Never leaves the pipeline."""


class EndOfChannelError(Exception):
    """The sender has finished and everything was taken. Never leaves the pipeline."""


class Channel(Generic[T]):
    """One sender, one receiver.

    `send` blocks while items of `weight_max` or more are waiting, so at most that and one item are held. What
    was sent before `finish` or `fail` is received first. After `close`, by the receiver, `send` raises.
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
        """Hand `item` over; blocks while the channel is full."""
        with self._changed:
            while self._weight >= self._weight_max and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ChannelClosedError
            self._items.append((item, weight))
            self._weight += weight
            self._changed.notify_all()

    def finish(self) -> None:
        """Nothing more will be sent."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more will be sent, because of `error`: the receiver gets it after what was sent."""
        with self._changed:
            self._error = error
            self._finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """The receiver wants no more; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._weight = 0
            self._changed.notify_all()

    def receive(self, timeout_s: float | None = None) -> T | None:
        """The next item, or None when `timeout_s` passed without one.

        Raises what the sender failed with, or `EndOfChannelError`.
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
