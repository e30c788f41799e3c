"""A bounded pipe between two sides, each a thread or a coroutine of any event loop.

It connects an instance and a network listener while a stream is open: requests one way, responses
the other. It has one producer and one consumer. The consumer takes all items at once, so that one
thread hop serves many items.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from headrace.core.errors import CancelledRequestError

_log = logging.getLogger("headrace.engine")

T = TypeVar("T")


class Pipe(Generic[T]):
    """A bounded first-in, first-out pipe of up to `items_max` items.

    The producer ends it with `close`, with or without an error, which the consumer gets after the
    last item. The consumer ends it with `abandon`; then waiting and later calls of `put` raise
    CancelledRequestError. Any thread may call both, more than once.
    """

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._abandoned = False
        self._getter: Callable[[], None] | None = None
        self._putter: Callable[[], None] | None = None

    @property
    def error(self) -> BaseException | None:
        """The error passed to `close`."""
        return self._error

    @property
    def abandoned(self) -> bool:
        """True once the consumer has left."""
        return self._abandoned

    # Producer side

    def offer(self, item: T) -> bool:
        """Put an item beyond the limit, if needed. Return True while there is space for another.

        Raises CancelledRequestError once abandoned.
        """
        return self.offer_all((item,))

    def offer_deferred(self, item: T, wakes: "list[Callable[[], None]]") -> bool:
        """Put an item as `offer` does. Append the consumer's wake-up to `wakes`, for `wake_all`."""
        has_space, wake = self._add((item,))
        if wake is not None:
            wakes.append(wake)
        return has_space

    def offer_all(self, items: Iterable[T]) -> bool:
        """Put several items as `offer` does."""
        has_space, wake = self._add(items)
        if wake is not None:
            wake()
        return has_space

    def _add(self, items: Iterable[T]) -> tuple[bool, Callable[[], None] | None]:
        """Add items. Return True while there is space, and the consumer's wake-up."""
        with self._lock:
            self._check()
            self._items.extend(items)
            wake, self._getter = self._getter, None
            return len(self._items) < self._items_max, wake

    def when_space(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once there is space, or once the pipe is abandoned.

        Return False if either holds now.

        `wake` is called by the consumer. For a producer that neither blocks nor awaits.
        """
        return self._register(
            lambda: len(self._items) < self._items_max or self._abandoned, wake, putting=True
        )

    def put(self, item: T) -> None:
        """Put an item, then block until there is space for another."""
        if not self.offer(item):
            self._wait(lambda: len(self._items) < self._items_max or self._abandoned, putting=True)
            self._check()

    async def aput(self, item: T) -> None:
        """Put an item, then wait until there is space for another."""
        if not self.offer(item):
            await self._await(lambda: len(self._items) < self._items_max or self._abandoned, putting=True)
            self._check()

    def _check(self) -> None:
        if self._abandoned:
            raise CancelledRequestError("the consumer of the stream has left")

    def close(self, error: BaseException | None = None) -> None:
        """End the pipe after the items in it. The first call counts."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._error = True, error
            wake, self._getter = self._getter, None
        if wake is not None:
            wake()

    # Consumer side

    def take(self) -> list[T]:
        """Return all items, possibly none."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
            wake, self._putter = self._putter, None
        if wake is not None:
            wake()
        return items

    def when_item(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once there is an item, or once the pipe is closed.

        Return False if either holds now.

        `wake` is called by the producer. For a consumer that neither blocks nor awaits.
        """
        return self._register(lambda: bool(self._items) or self._closed, wake, putting=False)

    @property
    def ended(self) -> bool:
        """True once the pipe is closed and empty."""
        return self._closed and not self._items

    def get(self) -> list[T]:
        """Block for at least one item. Return all items, none at the end.

        Raises the error of `close`.
        """
        self._wait(lambda: bool(self._items) or self._closed, putting=False)
        return self._take_or_raise()

    async def aget(self) -> list[T]:
        """Wait for items as `get` does, in a coroutine."""
        if not self._items:
            await self._await(lambda: bool(self._items) or self._closed, putting=False)
        return self._take_or_raise()

    def _take_or_raise(self) -> list[T]:
        items = self.take()
        if not items and self._error is not None:
            raise self._error
        return items

    def abandon(self) -> None:
        """Leave as the consumer; items in the pipe are dropped."""
        with self._lock:
            self._abandoned = True
            self._items.clear()
            wake, self._putter = self._putter, None
        if wake is not None:
            wake()

    # Waiting

    def _register(self, ready: Callable[[], bool], wake: Callable[[], None], *, putting: bool) -> bool:
        """Register a wake-up and return True, unless `ready` holds."""
        with self._lock:
            if ready():
                return False
            if putting:
                self._putter = wake
            else:
                self._getter = wake
            return True

    def _wait(self, ready: Callable[[], bool], *, putting: bool) -> None:
        woken = threading.Lock()
        woken.acquire()
        while self._register(ready, woken.release, putting=putting):
            woken.acquire()

    async def _await(self, ready: Callable[[], bool], *, putting: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            woken: asyncio.Future[None] = loop.create_future()
            if not self._register(ready, _Waker(loop, woken), putting=putting):
                return
            await woken


class _Waker:
    """The wake-up of a coroutine, for any thread."""

    __slots__ = ("_future", "_thread", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: "asyncio.Future[None]") -> None:
        self.loop = loop
        self._future = woken
        self._thread = threading.get_ident()

    def done(self) -> None:
        """Wake the coroutine, in its event loop."""
        if not self._future.done():
            self._future.set_result(None)

    def __call__(self) -> None:
        if threading.get_ident() == self._thread:
            _call_loop(self.done)
        else:
            _call_loop(lambda: self.loop.call_soon_threadsafe(self.done))


def _call_loop(go: Callable[[], object]) -> None:
    try:
        go()
    except RuntimeError:  # the event loop is closed, so its coroutine is gone
        _log.debug("an item is dropped: the event loop of its client is closed")


def wake_all(wakes: Sequence[Callable[[], None]]) -> None:
    """Call several wake-ups, with one hop per event loop, since a hop costs more than an item."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waker]] = {}
    for wake in wakes:
        if isinstance(wake, _Waker):
            by_loop.setdefault(wake.loop, []).append(wake)
        else:
            wake()
    for loop, wakers in by_loop.items():
        _call_loop(lambda loop=loop, wakers=wakers: loop.call_soon_threadsafe(_wake_all_waiters, wakers))


def _wake_all_waiters(wakers: Sequence[_Waker]) -> None:
    for waker in wakers:
        waker.done()
