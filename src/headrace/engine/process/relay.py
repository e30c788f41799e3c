"""Streams over a wire, from a pipe here to its counterpart there, with bounded items in transit.

Both ends use it: an instance sends requests and receives responses, its process the reverse.
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
from headrace.engine.process.request_codec import encode_json
from headrace.engine.process.wire import FrameKind, Wire
from headrace.engine.process.wire_errors import error_from_wire, error_to_wire
from headrace.engine.streams import ITEMS_MAX

_COUNT: Final = struct.Struct("<I")
_ACKNOWLEDGE_ITEMS: Final = ITEMS_MAX // 4
"""Number of items after which their producer gets an acknowledgement, unless it may have to wait.
Number of items after which their producer gets an acknowledgement, unless it may have to wait.
"""

T = TypeVar("T")


class StreamSender(Generic[T]):
    """The sending end of one pipe: up to ITEMS_MAX, plus one pipe's content, ahead of the consumer."""

    def __init__(self, relay: "Relay", id: int, pipe: Pipe[T], pack: Callable[[T], bytes]) -> None:
        self._relay = relay
        self._id = id
        self._pipe = pipe
        self._pack = pack
        self._unacknowledged = 0
        self._blocked = False
        self._bounded = True
        self.ended = False

    def start(self) -> None:
        """Send the items of the pipe as they arrive."""
        if not self._pipe.when_item(self._ready):
            self._ready()

    def _ready(self) -> None:
        self._relay.ready(self)

    def acknowledge(self, count: int) -> None:
        """Record that the other end has passed on `count` items. In the wire's thread."""
        self._unacknowledged -= count
        if self._blocked and self._unacknowledged < ITEMS_MAX:
            self._blocked = False
            self._ready()

    def unblock(self) -> None:
        """Send without a limit, so that the end gets through: the consumer has left.

        In the wire's thread.
        """
        self._bounded = False
        self._blocked = False
        self._ready()

    def send(self, wire: Wire) -> None:
        """Post the items of the pipe. In the wire's thread."""
        if self.ended:
            return
        if self._bounded and self._unacknowledged >= ITEMS_MAX:
            self._blocked = True
            return
        if not self._send_items(wire):
            return
        if self._pipe.ended:
            self.end(wire, self._pipe.error)
        else:
            self.start()

    def _send_items(self, wire: Wire) -> bool:
        """Post the items.

        Return False if one cannot be packed, which ends the stream after those before it.
        """
        packed: list[bytes] = []
        failed: Exception | None = None
        try:
            for item in self._pipe.take():
                packed.append(self._pack(item))  # noqa: PERF401 - those before the one that fails are sent
        except Exception as error:  # noqa: BLE001 - reported to the client of the stream
            failed = error
        if packed:
            self._unacknowledged += len(packed)
            wire.post(FrameKind.ITEMS, self._id, b"".join(packed))
        if failed is not None:
            self.end(wire, failed)
        return failed is None

    def end(self, wire: Wire, error: BaseException | None) -> None:
        """Post the end of the stream."""
        self.ended = True
        wire.post(FrameKind.END, self._id, encode_json(error_to_wire(error)) if error else b"")
        self._pipe.abandon()


class StreamReceiver(Generic[T]):
    """The receiving end of one pipe: items from the wire into the pipe."""

    def __init__(self, wire: Wire, id: int, pipe: Pipe[T], unpack: Callable[[memoryview], list[T]]) -> None:
        self._wire = wire
        self._id = id
        self._pipe = pipe
        self._unpack = unpack
        self._unreported = 0
        self._lock = threading.Lock()

    def received(self, payload: memoryview) -> None:
        """Put the items of a frame into the pipe. In the wire's thread."""
        items = self._unpack(payload)
        with suppress(CancelledRequestError):
            has_space = self._pipe.offer_all(items)
            with self._lock:
                self._unreported += len(items)
                is_due = self._unreported >= _ACKNOWLEDGE_ITEMS
            if is_due and (has_space or not self._pipe.when_space(self._acknowledge)):
                self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge the items, so that the producer may send more. Any thread."""
        with self._lock:
            count, self._unreported = self._unreported, 0
        if count:
            self._wire.post(FrameKind.TAKEN, self._id, _COUNT.pack(count))


class Relay:
    """The senders with something to send. Any thread calls `ready`, the wire's thread `send_ready`."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self._ready: deque[StreamSender[Any]] = deque()

    def ready(self, sender: "StreamSender[Any]") -> None:
        """Mark a sender that has items or has ended."""
        self._ready.append(sender)
        if self.wire is not None:
            self.wire.wake()

    def send_ready(self) -> None:
        """Let each marked sender post once."""
        wire = self.wire
        for _ in range(len(self._ready)):
            if wire is None:
                return
            self._ready.popleft().send(wire)


def decode_count(payload: memoryview) -> int:
    """Return the number of items in a TAKEN frame."""
    return int(_COUNT.unpack(payload)[0])


def decode_end(payload: memoryview) -> BaseException | None:
    """Return the error of an END frame, or None."""
    return error_from_wire(orjson.loads(payload)) if len(payload) else None


def decode_log_record(payload: memoryview) -> Sequence[object]:
    """Return the logger name, level and text of a LOG frame."""
    return orjson.loads(payload)
