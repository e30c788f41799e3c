"""A two-way connection for frames between an instance and its process, with one thread at each end.

All posted frames go out in one write, and all received frames are handled at once, so that one
thread hop serves many frames. It carries the items of streams from a pipe here to its counterpart
there, with bounded items in transit: an instance sends requests and receives responses, its process
the reverse.
"""

import logging
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Any, Final, Generic, TypeVar

import orjson

from headrace.core.errors import CancelledRequestError
from headrace.engine.pipe import Pipe
from headrace.engine.process.request_codec import error_from_wire, error_to_wire
from headrace.engine.streams import ITEMS_MAX

_HEADER: Final = struct.Struct("<QBQ")
"""Bytes of payload, frame kind, id of the stream or call."""
_READ_BYTES: Final = 256 * 1024
_COUNT: Final = struct.Struct("<I")
_ACKNOWLEDGE_ITEMS: Final = ITEMS_MAX // 4
"""Number of items after which their producer gets an acknowledgement, unless it may have to wait."""

_log = logging.getLogger("headrace.engine")

T = TypeVar("T")


class FrameKind(IntEnum):
    """The kind of a frame."""

    OPEN = 1
    """A stream begins."""
    ITEMS = 2
    """One or more requests or responses of a stream."""
    TAKEN = 3
    """Number of items that the other end has taken."""
    END = 4
    """No more items, with or without an error."""
    CANCEL = 5
    """The client of a stream has left."""
    CANCEL_CALL = 6
    """No client wants a call of `predict` any more."""
    DROP_BODY = 8
    """A body of `handle` that no client reads. The id is its number."""
    LOG = 7
    """A log record for the serving process."""
    LOST = 9
    """The process cannot call the model any more. The payload is the reason, as text."""


Frame = tuple[int, int, memoryview]
"""Frame kind, id of the stream or call, payload."""


class Wire:
    """One end of the connection.

    `on_frames`, `before_send` and `on_end` are called in its thread; `on_end` once, when the other
    end is gone. `before_send` is called after each `wake` and may post further frames. `watch` is a
    file descriptor that becomes readable when the other end is gone, sooner or more reliably than
    the socket.
    """

    def __init__(
        self,
        end: socket.socket,
        name: str,
        *,
        on_frames: Callable[[Sequence[Frame]], None],
        before_send: Callable[[], None],
        on_end: Callable[[], None],
        watch: int | None = None,
    ) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._on_frames = on_frames
        self._before_send = before_send
        self._on_end = on_end
        self._watch = watch
        self._posted: deque[bytes] = deque()
        self._unsent = memoryview(b"")
        self._received_bytes = bytearray()
        self._wakeup_fd, self._wakeup_writer = os.pipe()
        self._wakeup_pending = False
        self._lock = threading.Lock()
        self._closing = False
        self._poll = select.poll()
        self._poll.register(self._wakeup_fd, select.POLLIN)
        self._poll.register(self._socket, select.POLLIN)
        if watch is not None:
            self._poll.register(watch, select.POLLIN)
        self._waits_to_send = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, kind: int, id: int, payload: bytes = b"") -> None:
        """Send a frame, without blocking. Any thread. Frames after the end are dropped."""
        self._posted.append(_HEADER.pack(len(payload), kind, id) + payload)
        self.wake()

    @property
    def backlog(self) -> int:
        """Number of posted frames that are not sent yet."""
        return len(self._posted)

    def wake(self) -> None:
        """Make the thread call `before_send` and send soon. Any thread."""
        with self._lock:
            if not self._wakeup_pending and self._wakeup_fd >= 0:
                self._wakeup_pending = True
                os.write(self._wakeup_writer, b"\0")

    def close(self) -> None:
        """Handle what was received, end the thread and wait for it, then close the socket.

        Does not wait when called in its own thread. `on_end` is not called.
        """
        self._closing = True
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # Its thread

    def _run(self) -> None:
        try:
            self._transfer()
        except Exception:  # noqa: BLE001 - a bad frame ends the connection; on_end must be called
            _log.exception("a frame of the wire could not be handled")
        finally:
            try:
                if not self._closing:
                    self._on_end()
            finally:
                self._socket.close()
                with self._lock:
                    os.close(self._wakeup_fd)
                    os.close(self._wakeup_writer)
                    self._wakeup_fd = -1

    def _transfer(self) -> None:
        over = False
        while not over:
            closing = self._closing
            self._send()
            # Once more while closing, so that the last frames of the other end are not lost.
            over = self._wait_and_read(at_once=closing) or closing
        self._send()

    def _send(self) -> None:
        """Send as much as the socket takes, also frames that were posted since the last wake-up."""
        while self._unsent or self._load_unsent():
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return
            except OSError:
                # The other end is gone. Reading detects this, after its last frames.
                self._unsent = memoryview(b"")

    def _load_unsent(self) -> bool:
        """Load all posted frames. Return True if there are any."""
        self._before_send()
        posted = [self._posted.popleft() for _ in range(len(self._posted))]
        self._unsent = memoryview(b"".join(posted))
        return bool(posted)

    def _wait_and_read(self, *, at_once: bool) -> bool:
        """Wait for an event, unless `at_once`, and read. Return True once the other end is gone."""
        if self._waits_to_send != bool(self._unsent):
            self._waits_to_send = bool(self._unsent)
            self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = dict(self._poll.poll(0 if at_once else None))
        if self._wakeup_fd in ready:
            with self._lock:
                self._wakeup_pending = False
                os.read(self._wakeup_fd, 1)
        peer_closed = self._watch in ready
        if peer_closed or ready.get(self._socket.fileno(), 0) & ~select.POLLOUT:
            peer_closed = self._read(to_the_end=peer_closed) or peer_closed
        return peer_closed

    def _read(self, *, to_the_end: bool) -> bool:
        """Handle the complete frames. Return True if no more can arrive."""
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                return True
            self._received_bytes += data
            self._dispatch_frames()
            if not to_the_end:
                return False

    def _dispatch_frames(self) -> None:
        bounds: list[tuple[int, int, int, int]] = []
        start = 0
        while start + _HEADER.size <= len(self._received_bytes):
            size, kind, id = _HEADER.unpack_from(self._received_bytes, start)
            end = start + _HEADER.size + size
            if end > len(self._received_bytes):
                break
            bounds.append((kind, id, start + _HEADER.size, end))
            start = end
        if not bounds:
            return
        whole = memoryview(bytes(memoryview(self._received_bytes)[:start]))
        del self._received_bytes[:start]
        self._on_frames([(kind, id, whole[first:last]) for kind, id, first, last in bounds])


class StreamSender(Generic[T]):
    """The sending end of one pipe: up to ITEMS_MAX, plus one pipe's content, ahead of the consumer."""

    def __init__(self, relay: "Relay", id: int, pipe: Pipe[T], pack: Callable[[T], bytes]) -> None:
        self._ready = partial(relay.ready, self)
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
        wire.post(FrameKind.END, self._id, orjson.dumps(error_to_wire(error)) if error else b"")
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
