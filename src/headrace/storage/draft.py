"""Outputs under way: bytes that no reader sees until they are published, and that outlive a killed process once kept.

A disk has them in one file, which gets another name when it is published and is never copied. Stores that cannot append have them
as segments, objects of their own, which are copied together.
"""
# Paths stay the strings that were written, as in `local`.
# ruff: noqa: PTH103, PTH105, PTH120

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.core.errors import NotFoundError, StorageError
from headrace.storage.contract import Store
from headrace.storage.local import LocalStore, flush_folder, os_errors, replace_by_link
from headrace.storage.uri import parse

SEGMENT_BYTES: Final = 16 << 20
"""The length of a segment, where a store needs segments; one of them is held in memory, and one is on its way."""
COPY_BYTES: Final = 16 << 20
FLUSH_BYTES: Final = 32 << 20
"""A file is flushed each time that it has grown by so much, beside the writing."""
_NOT_IN_KERNEL: Final = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Kept:
    """The first `nbytes` of a draft, which survive its process; `segments` is how many objects hold them."""

    uri: str
    nbytes: int
    segments: int = 0

    @property
    def whole(self) -> "KeptRange":
        """All of it."""
        return KeptRange(self, 0, self.nbytes)


@dataclass(frozen=True, slots=True)
class KeptRange:
    """Bytes ``start .. stop`` of what was kept of a draft."""

    kept: Kept
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """How many they are."""
        return self.stop - self.start


class Draft(Protocol):
    """One output under way. One thread at a time."""

    @property
    def nbytes(self) -> int:
        """How much has been written."""
        ...

    def write(self, data: bytes) -> None:
        """Append. May upload in the background; raises what went wrong before."""
        ...

    def keep(self) -> Kept:
        """Make everything so far outlive this process; more may be written behind it."""
        ...

    def publish(self, uri: str) -> Kept | None:
        """Make it the object `uri`, whole and replacing; nothing more can be written.

        What was kept of it stays, for whoever remembers that: it is returned, to `discard` when nobody does any more.
        """
        ...

    def close(self) -> None:
        """Let go of it; what was kept stays. Closing twice does nothing."""
        ...


def open_draft(store: Store, uri: str, kept: KeptRange | None = None) -> Draft:
    """A new draft below the name `uri`, which nobody else uses; it begins with what was `kept` of another one.

    Raises StorageError when that is not there any more.
    """
    draft: Draft = _FileDraft(uri) if isinstance(store, LocalStore) else _SegmentDraft(store, uri)
    if kept is not None:
        append(store, draft, kept)
    return draft


def append(store: Store, draft: Draft, part: KeptRange) -> None:
    """Write a range of what was kept of another draft to this one."""
    if isinstance(draft, _FileDraft):
        draft.take(part)
        return
    for piece in read_kept(store, part):
        draft.write(piece)


def read_kept(store: Store, part: KeptRange) -> Iterator[bytes]:
    """The bytes of a range, in pieces of at most COPY_BYTES."""
    if not part.kept.segments:
        for start in range(part.start, part.stop, COPY_BYTES):
            length = min(COPY_BYTES, part.stop - start)
            yield _exactly(part.kept.uri, store.get_range(part.kept.uri, start, length), length)
        return
    at = 0
    for number in range(part.kept.segments):
        if at >= part.stop:
            return
        segment = store.get(segment_uri(part.kept.uri, number))
        piece = segment[max(0, part.start - at) : max(0, part.stop - at)]
        at += len(segment)
        if piece:
            yield piece
    if at < part.stop:
        raise StorageError(part.kept.uri, f"has {at} bytes, {part.stop} were kept")


def assemble(
    store: Store, parts: Sequence[KeptRange], draft_uri: str, uri: str, *, ended: bool = True
) -> None:
    """Publish ranges of drafts, one after the other, as one object; they stay. `draft_uri` is nobody else's.

    A file that is all of it is published itself, if that has `ended`: somebody might still write behind the last range.
    """
    if ended and isinstance(store, LocalStore) and _are_one_file(parts):
        _FileDraft(parts[-1].kept.uri, length=parts[-1].stop).publish(uri)
        return
    if not isinstance(store, LocalStore):
        with store.writer(uri) as writer:
            for part in parts:
                for piece in read_kept(store, part):
                    writer.write(piece)
        return
    draft = open_draft(store, draft_uri)
    try:
        for part in parts:
            append(store, draft, part)
        draft.publish(uri)
    finally:
        draft.close()


def _are_one_file(parts: Sequence[KeptRange]) -> bool:
    """Whether the ranges are a file from its start on, in order."""
    at = 0
    for part in parts:
        if part.start != at or part.kept.uri != parts[0].kept.uri:
            return False
        at = part.stop
    return bool(parts)


def is_whole(store: Store, kept: Kept) -> bool:
    """Whether all that was kept is there: a power cut may have taken the end of it."""
    uris = [segment_uri(kept.uri, number) for number in range(kept.segments)] or [kept.uri]
    return sum(_size(store, uri) for uri in uris) >= kept.nbytes


def _size(store: Store, uri: str) -> int:
    try:
        return store.head(uri).size_bytes or 0
    except NotFoundError:
        return 0


def discard(store: Store, kept: Kept) -> None:
    """Remove what was kept of a draft."""
    if not kept.segments:
        store.delete(kept.uri)
    for number in range(kept.segments):
        store.delete(segment_uri(kept.uri, number))


def discard_all(store: Store, folder: str) -> None:
    """Remove all drafts that are in a folder, when nobody writes any there."""
    for info in store.list(folder):
        store.delete(info.uri)
    remove_unfinished(store, folder)


def remove_unfinished(store: Store, folder: str) -> None:
    """Remove what killed writers left in a folder, not below it, when nobody writes there. Only disks show such things."""
    if isinstance(store, LocalStore):
        store.clean(folder, older_than_s=0.0)


def segment_uri(uri: str, number: int) -> str:
    """Where segment `number` of a draft is."""
    return f"{uri}.{number:05d}"


def _exactly(uri: str, data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise StorageError(uri, f"is {length - len(data)} bytes shorter than what was kept of it")
    return data


class _FileDraft:
    """One file; with `length` one that is there, whose first bytes are all of it."""

    def __init__(self, uri: str, *, length: int = 0) -> None:
        self._uri = uri
        self._path = os.path.realpath(parse(uri).key)
        self._kept: Kept | None = Kept(uri, length) if length else None
        self.nbytes = self._flushed_bytes = length
        self._flusher: threading.Thread | None = None
        with os_errors(uri):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            flags = os.O_RDWR | os.O_CLOEXEC | (0 if length else os.O_CREAT | os.O_TRUNC)
            self._file = os.open(self._path, flags, 0o666)
        if length:
            self._cut(length)

    def _cut(self, length: int) -> None:
        """Leave the first bytes alone."""
        with os_errors(self._uri):
            size = os.fstat(self._file).st_size
            if size < length:
                self.close()
                raise StorageError(self._uri, f"has {size} bytes, {length} were kept")
            os.ftruncate(self._file, length)

    def write(self, data: bytes) -> None:
        with os_errors(self._uri):
            self._write_all(data)
        self.nbytes += len(data)
        if self.nbytes - self._flushed_bytes >= FLUSH_BYTES:
            self._flush_behind()

    def _flush_behind(self) -> None:
        """Have the disk write while the model works, so that publishing does not wait for all of it."""
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

    def take(self, part: KeptRange) -> None:
        """Copy a range of another file within the kernel."""
        with os_errors(part.kept.uri):
            source = os.open(parse(part.kept.uri).key, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._copy(source, part)
        finally:
            os.close(source)

    def _copy(self, source: int, part: KeptRange) -> None:
        at = part.start
        with os_errors(self._uri):
            while at < part.stop:
                copied = self._copy_some(source, at, part.stop - at)
                if not copied:
                    raise StorageError(part.kept.uri, f"has {at} bytes, {part.stop} were kept")
                at += copied
        self.nbytes += part.stop - part.start

    def _copy_some(self, source: int, at: int, length: int) -> int:
        """Within the kernel where it can; some file systems cannot, and some systems have not got that."""
        try:
            return os.copy_file_range(source, self._file, length, at)
        except AttributeError:
            pass
        except OSError as error:
            if error.errno not in _NOT_IN_KERNEL:
                raise
        data = os.pread(source, min(length, COPY_BYTES), at)
        self._write_all(data)
        return len(data)

    def keep(self) -> Kept:
        # A killed process loses nothing that was written. Should a power cut, `is_whole` tells.
        self._kept = Kept(self._uri, self.nbytes)
        return self._kept

    def publish(self, uri: str) -> Kept | None:
        path = os.path.realpath(parse(uri).key)
        with os_errors(uri):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.fsync(self._file)
            self.close()
            if self._kept is None:
                os.replace(self._path, path)
            else:
                replace_by_link(self._path, path)  # somebody may remember what was kept
            flush_folder(path)
        return self._kept

    def close(self) -> None:
        if self._flusher is not None:
            self._flusher.join()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _flush(file: int) -> None:
    with contextlib.suppress(OSError):  # publishing flushes again, and says so
        os.fdatasync(file)
    os.close(file)


class _SegmentDraft:
    def __init__(self, store: Store, uri: str) -> None:
        self._store = store
        self._uri = uri
        self._buffer = bytearray()
        self._segments = 0
        self._uploader: ThreadPoolExecutor | None = None
        self._uploading: Future[None] | None = None
        self._kept: Kept | None = None
        self.nbytes = 0

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

    def keep(self) -> Kept:
        if self._buffer:
            self._put_segment(bytes(self._buffer))
            self._buffer.clear()
        self._wait()
        self._kept = Kept(self._uri, self.nbytes, self._segments)
        return self._kept

    def publish(self, uri: str) -> Kept | None:
        self._wait()
        if not self._segments:
            self._store.put(uri, bytes(self._buffer))
            self.close()
            return None
        kept = Kept(self._uri, self.nbytes - len(self._buffer), self._segments)
        with self._store.writer(uri) as writer:
            for piece in read_kept(self._store, KeptRange(kept, 0, kept.nbytes)):
                writer.write(piece)
            writer.write(bytes(self._buffer))
        self.close()
        if self._kept is not None:
            return kept
        discard(self._store, kept)
        return None

    def close(self) -> None:
        if self._uploader is not None:
            with contextlib.suppress(Exception):  # it was raised, or will not matter any more
                self._wait()
            self._uploader.shutdown()
            self._uploader = None
