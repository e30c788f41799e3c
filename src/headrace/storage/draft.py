"""Outputs in progress: invisible to readers until published, and durable once persisted.

On a disk, a draft is one file. Publishing renames the file and never copies it. On a store without
append, a draft is a series of segment objects. Publishing copies them into one object. Many small
objects are written in the background and become durable together (`DraftPublisher`).
"""

# Paths stay strings as given, for the reason in `local`.
# ruff: noqa: PTH103, PTH105, PTH120

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from typing_extensions import override

from headrace.core.errors import NotFoundError, StorageError
from headrace.storage.contract import Store
from headrace.storage.local import LocalStore, flush_folder, replace_by_link, translate_os_errors
from headrace.storage.uri import parse

SEGMENT_BYTES: Final = 16 << 20
"""The length of a segment. One segment is in memory and one is being uploaded."""
COPY_BYTES: Final = 16 << 20
FLUSH_BYTES: Final = 32 << 20
"""The growth after which a file is flushed in the background."""
_NO_KERNEL_COPY_ERRNOS: Final = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
THREADS: Final = 16
"""The threads of a `DraftPublisher`."""
PENDING_MAX: Final = 64
"""The limit of objects queued or being written by a `DraftPublisher`."""
PENDING_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PersistedDraft:
    """The first `nbytes` of a draft. They survive the process that wrote them.

    `segments` is the number of segment objects that hold the bytes; 0 means one file.
    """

    uri: str
    nbytes: int
    segments: int = 0

    @property
    def full_range(self) -> "PersistedRange":
        """The range of all bytes."""
        return PersistedRange(self, 0, self.nbytes)


@dataclass(frozen=True, slots=True)
class PersistedRange:
    """Bytes ``start .. stop`` of the persisted draft `kept`."""

    kept: PersistedDraft
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.stop - self.start


class Draft(Protocol):
    """An output in progress. For one thread at a time."""

    nbytes: int
    """Bytes written so far."""

    def write(self, data: bytes) -> None:
        """Append `data`. May upload in the background; raises the error of an earlier upload."""
        ...

    def persist(self) -> PersistedDraft:
        """Make all bytes so far survive this process. Further writes are allowed."""
        ...

    def publish(self, uri: str) -> PersistedDraft | None:
        """Publish the bytes as the object `uri`, replacing an existing one. Ends the draft.

        Persisted bytes stay, because a ledger may refer to them. They are returned; the caller
        passes them to `discard` once no ledger refers to them. Return None if nothing is left.
        """
        ...

    def close(self) -> None:
        """Release the draft. Persisted bytes stay. Closing twice does nothing."""
        ...


def open_draft(store: Store, uri: str, persisted: PersistedRange | None = None) -> Draft:
    """Return a new draft at `uri`, a name that no other writer uses.

    The draft starts with a copy of the range `persisted`, if given. Raises NotFoundError or
    StorageError if the persisted bytes are gone.
    """
    draft: Draft = _FileDraft(uri) if isinstance(store, LocalStore) else _SegmentDraft(store, uri)
    if persisted is not None:
        append_range(store, draft, persisted)
    return draft


def append_range(store: Store, draft: Draft, part: PersistedRange) -> None:
    """Append a persisted range of another draft to this one."""
    if isinstance(draft, _FileDraft):
        draft.copy_range(part)
        return
    for chunk in read_range(store, part):
        draft.write(chunk)


def read_range(store: Store, part: PersistedRange) -> Iterator[bytes]:
    """Yield the bytes of a range in chunks."""
    if not part.kept.segments:
        for start in range(part.start, part.stop, COPY_BYTES):
            length = min(COPY_BYTES, part.stop - start)
            yield _require_length(part.kept.uri, store.get_range(part.kept.uri, start, length), length)
        return
    at = 0
    for number in range(part.kept.segments):
        if at >= part.stop:
            return
        segment = store.get(segment_uri(part.kept.uri, number))
        chunk = segment[max(0, part.start - at) : max(0, part.stop - at)]
        at += len(segment)
        if chunk:
            yield chunk
    if at < part.stop:
        raise StorageError(part.kept.uri, f"has {at} bytes, but {part.stop} were persisted")


def assemble(
    store: Store, parts: Sequence[PersistedRange], draft_uri: str, uri: str, *, ended: bool = True
) -> None:
    """Concatenate persisted ranges and publish the result as the object `uri`. The ranges stay.

    If the ranges are all of one file from its start, and the file has `ended`, the file itself is
    published without a copy. Without `ended`, another writer may still append to it. `draft_uri` is
    a name that no other writer uses.
    """
    if ended and isinstance(store, LocalStore) and _form_one_file(parts):
        _FileDraft(parts[-1].kept.uri, length=parts[-1].stop).publish(uri)
        return
    if not isinstance(store, LocalStore):
        with store.writer(uri) as writer:
            for part in parts:
                for chunk in read_range(store, part):
                    writer.write(chunk)
        return
    draft = open_draft(store, draft_uri)
    try:
        for part in parts:
            append_range(store, draft, part)
        draft.publish(uri)
    finally:
        draft.close()


def _form_one_file(parts: Sequence[PersistedRange]) -> bool:
    """Return True if the ranges are consecutive, of one file, from its start."""
    at = 0
    for part in parts:
        if part.start != at or part.kept.uri != parts[0].kept.uri:
            return False
        at = part.stop
    return bool(parts)


def is_complete(store: Store, persisted: PersistedDraft) -> bool:
    """Return True if the store still has all persisted bytes.

    A power cut may have lost the last ones.
    """
    uris = [segment_uri(persisted.uri, number) for number in range(persisted.segments)] or [persisted.uri]
    return sum(_size(store, uri) for uri in uris) >= persisted.nbytes


def _size(store: Store, uri: str) -> int:
    try:
        return store.head(uri).size_bytes or 0
    except NotFoundError:
        return 0


def discard(store: Store, persisted: PersistedDraft) -> None:
    """Delete the persisted bytes of a draft."""
    if not persisted.segments:
        store.delete(persisted.uri)
    for number in range(persisted.segments):
        store.delete(segment_uri(persisted.uri, number))


def segment_uri(uri: str, number: int) -> str:
    """Return the URI of segment `number` of a draft."""
    return f"{uri}.{number:05d}"


def _require_length(uri: str, data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise StorageError(uri, f"is {length - len(data)} bytes shorter than the persisted range")
    return data


class _FileDraft(Draft):
    """A draft in one file. With `length`, an existing file cut to that length."""

    def __init__(self, uri: str, *, length: int = 0) -> None:
        self._uri = uri
        self._path = os.path.realpath(parse(uri).key)
        self._persisted: PersistedDraft | None = PersistedDraft(uri, length) if length else None
        self.nbytes = self._flushed_bytes = length
        self._flusher: threading.Thread | None = None
        with translate_os_errors(uri):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            flags = os.O_RDWR | os.O_CLOEXEC | (0 if length else os.O_CREAT | os.O_TRUNC)
            self._file = os.open(self._path, flags, 0o666)
        if length:
            self._truncate(length)

    def _truncate(self, length: int) -> None:
        """Cut the file to `length` bytes."""
        with translate_os_errors(self._uri):
            size = os.fstat(self._file).st_size
            if size < length:
                self.close()
                raise StorageError(self._uri, f"has {size} bytes, but {length} were persisted")
            os.ftruncate(self._file, length)

    @override
    def write(self, data: bytes) -> None:
        with translate_os_errors(self._uri):
            self._write_all(data)
        self.nbytes += len(data)
        if self.nbytes - self._flushed_bytes >= FLUSH_BYTES:
            self._flush_in_background()

    def _flush_in_background(self) -> None:
        """Start writing the file to the disk, so that `publish` waits less."""
        if self._flusher is not None and self._flusher.is_alive():
            return
        self._flushed_bytes = self.nbytes
        self._flusher = threading.Thread(
            target=_flush, args=(os.dup(self._file),), name="headrace-flusher", daemon=True
        )
        self._flusher.start()

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def copy_range(self, part: PersistedRange) -> None:
        """Append a range of another file, copied within the kernel where possible."""
        with translate_os_errors(part.kept.uri):
            source = os.open(parse(part.kept.uri).key, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._copy_from(source, part)
        finally:
            os.close(source)

    def _copy_from(self, source: int, part: PersistedRange) -> None:
        at = part.start
        with translate_os_errors(self._uri):
            while at < part.stop:
                copied = self._copy_chunk(source, at, part.stop - at)
                if not copied:
                    raise StorageError(part.kept.uri, f"has {at} bytes, but {part.stop} were persisted")
                at += copied
        self.nbytes += part.stop - part.start

    def _copy_chunk(self, source: int, at: int, length: int) -> int:
        """Copy up to `length` bytes and return their number.

        Some systems have no `copy_file_range`, and some file systems do not support it: then read
        and write.
        """
        try:
            return os.copy_file_range(source, self._file, length, at)
        except AttributeError:
            pass
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY_ERRNOS:
                raise
        data = os.pread(source, min(length, COPY_BYTES), at)
        self._write_all(data)
        return len(data)

    @override
    def persist(self) -> PersistedDraft:
        # A killed process loses nothing that it wrote. After a power cut, `is_complete` detects a
        # loss.
        self._persisted = PersistedDraft(self._uri, self.nbytes)
        return self._persisted

    @override
    def publish(self, uri: str) -> PersistedDraft | None:
        path = os.path.realpath(parse(uri).key)
        with translate_os_errors(uri):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.fsync(self._file)
            self.close()
            if self._persisted is None:
                os.replace(self._path, path)
            else:
                replace_by_link(self._path, path)  # a ledger may still refer to the draft
            flush_folder(path)
        return self._persisted

    @override
    def close(self) -> None:
        if self._flusher is not None:
            self._flusher.join()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _flush(file: int) -> None:
    with contextlib.suppress(OSError):  # publishing flushes again and raises the error
        getattr(os, "fdatasync", os.fsync)(file)  # macOS has no fdatasync
    os.close(file)


class _SegmentDraft(Draft):
    def __init__(self, store: Store, uri: str) -> None:
        self._store = store
        self._uri = uri
        self._buffer = bytearray()
        self._segments = 0
        self._uploader: ThreadPoolExecutor | None = None
        self._uploading: Future[None] | None = None
        self._persisted: PersistedDraft | None = None
        self.nbytes = 0

    @override
    def write(self, data: bytes) -> None:
        self._buffer += data
        self.nbytes += len(data)
        while len(self._buffer) >= SEGMENT_BYTES:
            self._put_segment(bytes(memoryview(self._buffer)[:SEGMENT_BYTES]))
            del self._buffer[:SEGMENT_BYTES]

    def _put_segment(self, data: bytes) -> None:
        self._wait()
        if self._uploader is None:
            self._uploader = ThreadPoolExecutor(1, "headrace-draft")
        uri = segment_uri(self._uri, self._segments)
        self._uploading = self._uploader.submit(self._store.put, uri, data)
        self._segments += 1

    def _wait(self) -> None:
        if self._uploading is not None:
            self._uploading.result()
            self._uploading = None

    @override
    def persist(self) -> PersistedDraft:
        if self._buffer:
            self._put_segment(bytes(self._buffer))
            self._buffer.clear()
        self._wait()
        self._persisted = PersistedDraft(self._uri, self.nbytes, self._segments)
        return self._persisted

    @override
    def publish(self, uri: str) -> PersistedDraft | None:
        self._wait()
        if not self._segments:
            self._store.put(uri, bytes(self._buffer))
            self.close()
            return None
        persisted = PersistedDraft(self._uri, self.nbytes - len(self._buffer), self._segments)
        with self._store.writer(uri) as writer:
            for chunk in read_range(self._store, PersistedRange(persisted, 0, persisted.nbytes)):
                writer.write(chunk)
            writer.write(bytes(self._buffer))
        self.close()
        if self._persisted is not None:
            return persisted
        discard(self._store, persisted)
        return None

    @override
    def close(self) -> None:
        if self._uploader is not None:
            with contextlib.suppress(Exception):  # raised before, or irrelevant now
                self._wait()
            self._uploader.shutdown()
            self._uploader = None


class DraftPublisher:
    """A writer of many whole objects below one folder. For one thread at a time.

    `put` returns before the object exists. It blocks while PENDING_MAX objects or PENDING_BYTES_MAX
    bytes are pending. `flush` returns when all objects are durable, also against a power cut.
    Errors are raised by `flush` or by an earlier `put`. On a disk, temporary files are in the
    folder `drafts`.
    """

    def __init__(self, store: Store, folder: str, *, drafts: str) -> None:
        self._store = store
        self._folder = folder
        self._drafts = drafts
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._pending_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._unflushed = False

    def put(self, uri: str, data: bytes) -> None:
        """Write `data` as the object `uri`, replacing an existing one."""
        if isinstance(self._store, LocalStore):
            self._store.put_unflushed(uri, data, drafts=self._drafts)
            self._unflushed = True
            return
        while len(self._pending) >= PENDING_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            self._await_oldest()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "headrace-publisher")
        self._pending.append((self._pool.submit(self._store.put, uri, data), len(data)))
        self._pending_bytes += len(data)

    def _await_oldest(self) -> None:
        future, nbytes = self._pending.popleft()
        self._pending_bytes -= nbytes
        future.result()

    def flush(self) -> None:
        """Wait until all objects exist and are durable."""
        while self._pending:
            self._await_oldest()
        if self._unflushed and isinstance(self._store, LocalStore):
            self._store.flush(self._folder)
            self._unflushed = False

    def close(self) -> None:
        """Finish the running writes and drop the queued ones. Closing twice does nothing."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._pending.clear()
