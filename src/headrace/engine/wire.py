"""Frames both ways between an instance and its process, by one thread at each end.

All that is there goes in one write, and all that has come is handed on at once: a hop is paid once for many frames.
"""

import logging
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

_HEADER: Final = struct.Struct("<QBQ")
"""Bytes of payload, kind, and which stream or call."""
_READ_BYTES: Final = 256 * 1024

_log = logging.getLogger("headrace.engine")


class Kind(IntEnum):
    """What a frame is about."""

    OPEN = 1
    """A stream begins."""
    ITEMS = 2
    """Its requests or responses, one or many."""
    TAKEN = 3
    """So many of them were taken at the other end."""
    END = 4
    """No more items; with an error, or without."""
    CANCEL = 5
    """Whoever asked for a stream has gone."""
    CANCEL_CALL = 6
    """Nobody waits for a call of `predict`."""
    LOG = 7
    """A record for the log of the process that serves."""


Frame = tuple[int, int, memoryview]
"""Kind, which stream or call, payload."""


class Wire:
    """One end. `on_frames`, `gather` and `on_end` are called in its thread, `on_end` once, when the other end is gone.

    `gather` posts what else there is to send; it is called after each `wake`. `watch` is a file that becomes readable
    when the other end is gone: sooner, or more surely, than the socket itself tells.
    """

    def __init__(
        self,
        end: socket.socket,
        name: str,
        *,
        on_frames: Callable[[Sequence[Frame]], None],
        gather: Callable[[], None],
        on_end: Callable[[], None],
        watch: int | None = None,
    ) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._on_frames = on_frames
        self._gather = gather
        self._on_end = on_end
        self._watch = watch
        self._posted: deque[bytes] = deque()
        self._unsent = memoryview(b"")
        self._arrived = bytearray()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False
        self._lock = threading.Lock()
        self._closing = False
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._poll.register(self._socket, select.POLLIN)
        if watch is not None:
            self._poll.register(watch, select.POLLIN)
        self._waits_to_send = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, kind: int, id: int, payload: bytes = b"") -> None:
        """Send a frame. Any thread; never blocks. After the end it goes nowhere."""
        self._posted.append(_HEADER.pack(len(payload), kind, id) + payload)
        self.wake()

    @property
    def backlog(self) -> int:
        """How many posted frames have not been sent yet."""
        return len(self._posted)

    def wake(self) -> None:
        """Gather and send soon. Any thread."""
        with self._lock:
            if not self._rung and self._bell >= 0:
                self._rung = True
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Hand on what has come, end the thread, and wait for it unless this is it; then close the socket.

        `on_end` is not called by this.
        """
        self._closing = True
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # Its thread

    def _run(self) -> None:
        try:
            self._carry()
        except Exception:  # noqa: BLE001 - a frame that cannot be read ends the connection, not the thread's duties
            _log.exception("frames between a model's process and this one went wrong")
        finally:
            try:
                if not self._closing:
                    self._on_end()
            finally:
                self._socket.close()
                with self._lock:
                    os.close(self._bell)
                    self._bell = -1

    def _carry(self) -> None:
        over = False
        while not over:
            closing = self._closing
            self._send()
            # Once more when it closes: what the other end said before it went is not lost.
            over = self._wait_and_read(at_once=closing) or closing
        self._send()

    def _send(self) -> None:
        """As much as the socket takes, of what was posted meanwhile too: its bell may have been heard already."""
        while self._unsent or self._gathered():
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return
            except OSError:
                # Gone: reading will tell, after what it still had to say.
                self._unsent = memoryview(b"")

    def _gathered(self) -> bool:
        """Take all that was posted; whether that is anything."""
        self._gather()
        posted = [self._posted.popleft() for _ in range(len(self._posted))]
        self._unsent = memoryview(b"".join(posted))
        return bool(posted)

    def _wait_and_read(self, *, at_once: bool) -> bool:
        """Wait for something to do unless `at_once`, and read what there is; whether the other end is gone."""
        if self._waits_to_send != bool(self._unsent):
            self._waits_to_send = bool(self._unsent)
            self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = dict(self._poll.poll(0 if at_once else None))
        if self._bell in ready:
            with self._lock:
                self._rung = False
                os.eventfd_read(self._bell)
        gone = self._watch in ready
        if gone or ready.get(self._socket.fileno(), 0) & ~select.POLLOUT:
            gone = self._read(to_the_end=gone) or gone
        return gone

    def _read(self, *, to_the_end: bool) -> bool:
        """Hand on the frames that have come whole; whether no more can come."""
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                return True
            self._arrived += data
            self._hand_on()
            if not to_the_end:
                return False

    def _hand_on(self) -> None:
        places: list[tuple[int, int, int, int]] = []
        start = 0
        while start + _HEADER.size <= len(self._arrived):
            size, kind, id = _HEADER.unpack_from(self._arrived, start)
            end = start + _HEADER.size + size
            if end > len(self._arrived):
                break
            places.append((kind, id, start + _HEADER.size, end))
            start = end
        if not places:
            return
        whole = memoryview(bytes(memoryview(self._arrived)[:start]))
        del self._arrived[:start]
        self._on_frames([(kind, id, whole[first:last]) for kind, id, first, last in places])
