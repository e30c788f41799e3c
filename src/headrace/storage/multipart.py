"""Writing an object in parts while its bytes are still being made: a bounded hand-over to one uploading thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterator

from headrace.storage.contract import Writer

PARTS_WAITING_MAX = 1
"""Parts that wait for the uploader, beside those that it has in flight."""


class UploadAbortedError(Exception):
    """Travels through the client to make it abort; never leaves the room."""


class PartWriter(Writer):
    """A `Writer` that keeps up to one part and then uploads in the background.

    Holds at most the part being filled, `PARTS_WAITING_MAX` waiting and those in flight. Not for several threads at
    once. An object no longer than one part is written by `whole`, in one request.

    Args:
        uri: The object, for messages.
        part_bytes: Length of every part but the last.
        whole: Writes the object whole.
        upload: Takes the parts from an iterator; aborts and lets pass what that raises.
    """

    def __init__(
        self,
        uri: str,
        part_bytes: int,
        whole: Callable[[bytes], None],
        upload: Callable[[Iterator[bytes]], None],
    ) -> None:
        self._uri = uri
        self._part_bytes = part_bytes
        self._whole = whole
        self._buffer = bytearray()
        self._parts = _Parts()
        self._error: BaseException | None = None
        self._upload = upload
        self._thread: threading.Thread | None = None
        self._open = True

    def write(self, data: bytes) -> None:
        """Append; blocks while the uploader is behind. Raises what went wrong in any part before."""
        if not self._open:
            raise ValueError(f"{self._uri}: the writer is closed")
        rest = memoryview(data).cast("B")
        while len(self._buffer) + len(rest) > self._part_bytes:
            taken = self._part_bytes - len(self._buffer)
            self._buffer += rest[:taken]
            rest = rest[taken:]
            self._hand_over()
        self._buffer += rest

    def close(self) -> None:
        """Upload what is left and publish."""
        if not self._open:
            return
        self._open = False
        if self._thread is None:
            self._whole(bytes(self._buffer))
            return
        self._parts.put(bytes(self._buffer))
        self._parts.end()
        self._thread.join()
        self._raise_error()

    def abort(self) -> None:
        """Stop the upload and have the server forget its parts."""
        if not self._open:
            return
        self._open = False
        self._buffer.clear()
        if self._thread is not None:
            self._parts.abort()
            self._thread.join()

    def _hand_over(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-upload", daemon=True)
            self._thread.start()
        part, self._buffer = bytes(self._buffer), bytearray()
        self._parts.put(part)
        self._raise_error()

    def _run(self) -> None:
        try:
            self._upload(iter(self._parts))
        except UploadAbortedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by the writer's own thread
            self._error = error
        finally:
            self._parts.abandon()

    def _raise_error(self) -> None:
        if self._error is not None:
            self._open = False
            raise self._error


class _Parts:
    """A bounded queue that both ends can give up."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = self._aborted = self._abandoned = False

    def put(self, part: bytes) -> None:
        """Wait for room; drops the part when the uploader has given up."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < PARTS_WAITING_MAX)
            if not self._abandoned:
                self._waiting.append(part)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._waiting.clear()
            self._changed.notify_all()

    def abandon(self) -> None:
        """The uploader is gone; whoever waits for room goes on, and what it brings is dropped."""
        with self._changed:
            self._abandoned = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended or self._aborted)
                if self._aborted:
                    raise UploadAbortedError
                if not self._waiting:
                    return
                part = self._waiting.popleft()
                self._changed.notify_all()
            yield part
