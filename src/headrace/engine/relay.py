"""Streams through a wire: items out of one pipe here, into the other's twin there, a bounded number on the way.

The same at both ends: an instance sends requests and receives responses, its process the other way round.
"""

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import orjson

from headrace.core.errors import CancelledRequestError
from headrace.engine.pipe import Pipe
from headrace.engine.stream_codec import plain
from headrace.engine.streams import ITEMS_MAX
from headrace.engine.told import error_of, told
from headrace.engine.wire import Kind, Wire

_COUNT: Final = struct.Struct("<I")
_TELL_ITEMS: Final = ITEMS_MAX // 4
"""So many items are taken before their producer is told, unless it may have to wait."""

T = TypeVar("T")


class Outlet(Generic[T]):
    """Items of one pipe on their way to the wire; at most ITEMS_MAX, and a pipe's content, ahead of their consumer."""

    def __init__(self, relay: "Relay", id: int, pipe: Pipe[T], pack: Callable[[T], bytes]) -> None:
        self._relay = relay
        self._id = id
        self._pipe = pipe
        self._pack = pack
        self._untaken = 0
        self._held = False
        self._bounded = True
        self.over = False

    def begin(self) -> None:
        """Send what comes."""
        if not self._pipe.when_item(self._ready):
            self._ready()

    def _ready(self) -> None:
        self._relay.ready(self)

    def taken(self, count: int) -> None:
        """The other end has handed so many on. In the wire's thread."""
        self._untaken -= count
        if self._held and self._untaken < ITEMS_MAX:
            self._held = False
            self._ready()

    def free(self) -> None:
        """Nobody takes any more, so that nothing is held back: the end must get through. In the wire's thread."""
        self._bounded = False
        self._held = False
        self._ready()

    def send(self, wire: Wire) -> None:
        """Post what is there. In the wire's thread."""
        if self.over:
            return
        if self._bounded and self._untaken >= ITEMS_MAX:
            self._held = True
            return
        if not self._send_items(wire):
            return
        if self._pipe.ended:
            self.end(wire, self._pipe.error)
        else:
            self.begin()

    def _send_items(self, wire: Wire) -> bool:
        """Post what is there; False when one cannot be packed, which ends the stream after those before it."""
        packed: list[bytes] = []
        failed: Exception | None = None
        try:
            for item in self._pipe.take():
                packed.append(self._pack(item))  # noqa: PERF401 - those before the one that fails are sent
        except Exception as error:  # noqa: BLE001 - whatever it is, the stream's caller hears of it
            failed = error
        if packed:
            self._untaken += len(packed)
            wire.post(Kind.ITEMS, self._id, b"".join(packed))
        if failed is not None:
            self.end(wire, failed)
        return failed is None

    def end(self, wire: Wire, error: BaseException | None) -> None:
        """No more items."""
        self.over = True
        wire.post(Kind.END, self._id, plain(told(error)) if error else b"")
        self._pipe.abandon()


class Inlet(Generic[T]):
    """Items from the wire on their way into a pipe."""

    def __init__(self, wire: Wire, id: int, pipe: Pipe[T], unpack: Callable[[memoryview], list[T]]) -> None:
        self._wire = wire
        self._id = id
        self._pipe = pipe
        self._unpack = unpack
        self._untold = 0
        self._lock = threading.Lock()

    def received(self, payload: memoryview) -> None:
        """In the wire's thread."""
        items = self._unpack(payload)
        with suppress(CancelledRequestError):
            room = self._pipe.offer_all(items)
            with self._lock:
                self._untold += len(items)
                enough = self._untold >= _TELL_ITEMS
            if enough and (room or not self._pipe.when_room(self._tell)):
                self._tell()

    def _tell(self) -> None:
        """There is room: the producer may send more. Any thread."""
        with self._lock:
            count, self._untold = self._untold, 0
        if count:
            self._wire.post(Kind.TAKEN, self._id, _COUNT.pack(count))


class Relay:
    """The outlets that have something to send. `ready` is for any thread, `gather` for the wire's."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self._ready: deque[Outlet[Any]] = deque()

    def ready(self, outlet: "Outlet[Any]") -> None:
        """It has items, or has ended."""
        self._ready.append(outlet)
        if self.wire is not None:
            self.wire.wake()

    def gather(self) -> None:
        """Post what there is, each outlet once."""
        wire = self.wire
        for _ in range(len(self._ready)):
            if wire is None:
                return
            self._ready.popleft().send(wire)


def count_of(payload: memoryview) -> int:
    """How many items a frame tells of."""
    return int(_COUNT.unpack(payload)[0])


def end_of(payload: memoryview) -> BaseException | None:
    """The error that a frame ends its stream with."""
    return error_of(orjson.loads(payload)) if len(payload) else None


def log_of(payload: memoryview) -> Sequence[object]:
    """A record for the log: its logger's name, level and text."""
    return orjson.loads(payload)
