"""A writer that uploads an object in parts while the caller produces it.

The parts pass through a bounded queue to one uploading thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator

from typing_extensions import override

from headrace.storage.contract import Writer

QUEUED_PARTS_MAX = 1
"""Parts queued for the uploader, besides those in flight."""


class UploadAbortedError(Exception):
    """An exception that makes the client abort the upload. This module catches it again."""


class PartWriter(Writer):
    """A `Writer` that buffers one part and then uploads in a background thread.

    Holds the part being filled, up to `QUEUED_PARTS_MAX` queued parts and those in flight. For one
    thread at a time. An object of one part or less is written in one request.

    Args:
        uri: The object, for messages.
        part_bytes: The length of each part but the last.
        put_whole: Writes the object in one request.
        upload: Uploads the parts of an iterator. An exception from the iterator aborts the upload
            and propagates.
    """

    def __init__(
        self,
        uri: str,
        part_bytes: int,
        put_whole: Callable[[bytes], None],
        upload: Callable[[Iterator[bytes]], None],
    ) -> None:
        self._uri = uri
        self._part_bytes = part_bytes
        self._put_whole = put_whole
        self._buffer = bytearray()
        self._parts = _PartQueue()
        self._error: BaseException | None = None
        self._upload = upload
        self._thread: threading.Thread | None = None
        self._open = True

    @override
    def write(self, data: bytes) -> None:
        """Append `data`. Blocks while the queue is full; raises the error of an earlier part."""
        if not self._open:
            raise ValueError(f"{self._uri}: the writer is closed")
        rest = memoryview(data).cast("B")
        while len(self._buffer) + len(rest) > self._part_bytes:
            taken = self._part_bytes - len(self._buffer)
            self._buffer += rest[:taken]
            rest = rest[taken:]
            self._enqueue_part()
        self._buffer += rest

    @override
    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._thread is None:
            self._put_whole(bytes(self._buffer))
            return
        self._parts.put(bytes(self._buffer))
        self._parts.end()
        self._thread.join()
        self._raise_error()

    @override
    def abort(self) -> None:
        """Stop the upload and make the server discard its parts."""
        if not self._open:
            return
        self._open = False
        self._buffer.clear()
        if self._thread is not None:
            self._parts.abort()
            self._thread.join()

    def _enqueue_part(self) -> None:
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


class _PartQueue:
    """A bounded queue that the producer and the consumer can each give up."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = self._aborted = self._abandoned = False

    def put(self, part: bytes) -> None:
        """Wait for space and append a part. The part is dropped if the consumer has given up."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < QUEUED_PARTS_MAX)
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
        """Record that the consumer is gone.

        Waiting producers continue, and their parts are dropped.
        """
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
