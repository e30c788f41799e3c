"""A bounded pipe between two sides, each of which is a thread or a coroutine of any event loop.

What an instance and a door have between them while a stream is open: requests one way, responses the other. One
producer and one consumer. The consumer takes all that is there at once, so that a hop is paid once for many items.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

from headrace.core.errors import CancelledRequestError

_log = logging.getLogger("headrace.engine")

T = TypeVar("T")


class Pipe(Generic[T]):
    """Items in order, at most `items_max` of them on the way.

    The producer ends with `close`, with or without an error, which the consumer meets after the last item. The
    consumer ends with `abandon`: then a `put` that waits, and every one after, raises CancelledRequestError. Both may
    be called from any thread, more than once.
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
        """What `close` was given."""
        return self._error

    @property
    def abandoned(self) -> bool:
        """Whether the consumer has gone."""
        return self._abandoned

    # The producer's side

    def offer(self, item: T) -> bool:
        """Put an item whatever the bound; whether there is room for another. CancelledRequestError once abandoned."""
        return self.offer_all((item,))

    def offer_quietly(self, item: T, wakes: "list[Callable[[], None]]") -> bool:
        """As `offer`; whom it would wake is added to `wakes`, for `wake_all`."""
        room, wake = self._add((item,))
        if wake is not None:
            wakes.append(wake)
        return room

    def offer_all(self, items: Iterable[T]) -> bool:
        """Put several items whatever the bound; see `offer`."""
        room, wake = self._add(items)
        if wake is not None:
            wake()
        return room

    def _add(self, items: Iterable[T]) -> tuple[bool, Callable[[], None] | None]:
        """Whether there is room for another, and whom to wake."""
        with self._lock:
            self._check()
            self._items.extend(items)
            wake, self._getter = self._getter, None
            return len(self._items) < self._items_max, wake

    def when_room(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once, from the consumer, when there is room or nobody takes any more; not when it is so now.

        Whether it is not. For a producer that neither blocks nor awaits.
        """
        return self._register(
            lambda: len(self._items) < self._items_max or self._abandoned, wake, putting=True
        )

    def put(self, item: T) -> None:
        """Put an item, then block while there is no room for another."""
        if not self.offer(item):
            self._wait(lambda: len(self._items) < self._items_max or self._abandoned, putting=True)
            self._check()

    async def aput(self, item: T) -> None:
        """Put an item, then wait while there is no room for another."""
        if not self.offer(item):
            await self._await(lambda: len(self._items) < self._items_max or self._abandoned, putting=True)
            self._check()

    def _check(self) -> None:
        if self._abandoned:
            raise CancelledRequestError("nobody takes this stream's items any more")

    def close(self, error: BaseException | None = None) -> None:
        """No more items come; the first call counts."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._error = True, error
            wake, self._getter = self._getter, None
        if wake is not None:
            wake()

    # The consumer's side

    def take(self) -> list[T]:
        """What is there now, perhaps nothing."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
            wake, self._putter = self._putter, None
        if wake is not None:
            wake()
        return items

    def when_item(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once, from the producer, when an item is there or no more come; not when it is so now.

        Whether it is not. For a consumer that neither blocks nor awaits.
        """
        return self._register(lambda: bool(self._items) or self._closed, wake, putting=False)

    @property
    def ended(self) -> bool:
        """Whether nothing is there, and nothing comes any more."""
        return self._closed and not self._items

    def get(self) -> list[T]:
        """All items that are there, at least one, blocking for it; none at the end. Raises what `close` was given."""
        self._wait(lambda: bool(self._items) or self._closed, putting=False)
        return self._taken()

    async def aget(self) -> list[T]:
        """What `get` does, for a coroutine."""
        if not self._items:
            await self._await(lambda: bool(self._items) or self._closed, putting=False)
        return self._taken()

    def _taken(self) -> list[T]:
        items = self.take()
        if not items and self._error is not None:
            raise self._error
        return items

    def abandon(self) -> None:
        """Nobody takes anything any more; what is on the way is dropped."""
        with self._lock:
            self._abandoned = True
            self._items.clear()
            wake, self._putter = self._putter, None
        if wake is not None:
            wake()

    # Waiting

    def _register(self, ready: Callable[[], bool], wake: Callable[[], None], *, putting: bool) -> bool:
        """Ask to be woken, unless it is so already; whether it is not."""
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
    """Wakes a coroutine, from any thread."""

    __slots__ = ("_thread", "_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: "asyncio.Future[None]") -> None:
        self.loop = loop
        self._woken = woken
        self._thread = threading.get_ident()

    def done(self) -> None:
        """In its event loop."""
        if not self._woken.done():
            self._woken.set_result(None)

    def __call__(self) -> None:
        if threading.get_ident() == self._thread:
            _reach(self.done)
        else:
            _reach(lambda: self.loop.call_soon_threadsafe(self.done))


def _reach(go: Callable[[], object]) -> None:
    try:
        go()
    except RuntimeError:  # the loop is closed: whoever waited there is gone
        _log.debug("an item for a closed event loop")


def wake_all(wakes: Sequence[Callable[[], None]]) -> None:
    """Wake several, with one hop for each event loop: a hop costs more than an item, and gives way to other threads."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waker]] = {}
    for wake in wakes:
        if isinstance(wake, _Waker):
            by_loop.setdefault(wake.loop, []).append(wake)
        else:
            wake()
    for loop, wakers in by_loop.items():
        _reach(partial(_hop, loop, wakers))


def _hop(loop: asyncio.AbstractEventLoop, wakers: Sequence[_Waker]) -> None:
    loop.call_soon_threadsafe(_done_all, wakers)


def _done_all(wakers: Sequence[_Waker]) -> None:
    for waker in wakers:
        waker.done()
