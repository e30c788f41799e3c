"""Objects in the cloud: the nine verbs over one attempt each, with retries, resuming and order added."""

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import (
    AlreadyExistsError,
    ChangedError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from headrace.storage.cloud import Bucket, Entry
from headrace.storage.contract import ObjectInfo, Writer
from headrace.storage.faults import RangeIgnoredError
from headrace.storage.multipart import PartWriter
from headrace.storage.order import sorted_by_uri
from headrace.storage.retry import Retrier, TransientFault
from headrace.storage.uri import Location, object_location, prefix_location

FIRST_RANGE_BYTES = 256 << 10
"""A stream's first range is small, so that its first byte comes early; each next one is four times as long."""
RANGE_BYTES_MAX = 8 << 20
PART_BYTES = 8 << 20
"""A part of a large upload. Stores take 10,000 parts, so an object can have 80 GB."""
PARTS_AT_ONCE = 2
ONE_REQUEST_BYTES_MAX = 64 << 20
"""`put` sends more than this in parts."""


class CloudStore:
    """``s3://``, ``gs://`` or ``az://``: one client a bucket, made when it is first asked for. Safe from any thread.

    A listing is sorted here, in bounded memory and after it came whole, unless the service is known to sort by key
    (S3 and Google Cloud Storage themselves do; most servers behind an endpoint of their own do not).
    """

    def __init__(self, scheme: str, connect: Callable[[str, str], Bucket], retrier: Retrier) -> None:
        self._scheme = scheme
        self._connect = connect
        self._retrier = retrier
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """See `Store.stream`. Ranged reads, one after the other, each bound to the first one's ETag."""
        bucket, key = self._object(uri)
        attempts = self._retrier.begin(uri, "reading")
        at, length, size_bytes = start, FIRST_RANGE_BYTES, None
        while size_bytes is None or at < size_bytes:
            try:
                piece = bucket.get_range(key, at, length, etag)
            except RangeIgnoredError:
                yield from self._stream_whole(uri, bucket, key, at, etag)
                return
            except TransientFault as fault:
                attempts.failed(fault)
                continue
            if size_bytes not in (None, piece.size_bytes):
                # Where there is no ETag to tell, or the server does not look at it first.
                raise ChangedError(uri, f"had {size_bytes} bytes, and now has {piece.size_bytes}")
            attempts.progressed()
            etag, size_bytes = piece.etag, piece.size_bytes
            at, length = at + len(piece.data), min(length * 4, RANGE_BYTES_MAX)
            if piece.data:
                yield piece.data

    def get(self, uri: str) -> bytes:
        """See `Store.get`."""
        bucket, key = self._object(uri)
        return self._retrier.run(uri, "reading", lambda: bucket.get(key).data)

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """See `Store.get_range`."""
        bucket, key = self._object(uri)
        if length <= 0:
            return b""
        try:
            return self._retrier.run(uri, "reading", lambda: bucket.get_range(key, start, length, etag).data)
        except RangeIgnoredError:
            return _first(self._stream_whole(uri, bucket, key, start, etag), length)

    def put(self, uri: str, data: bytes) -> None:
        """See `Store.put`."""
        if len(data) > ONE_REQUEST_BYTES_MAX:
            with self.writer(uri) as writer:
                writer.write(data)
            return
        bucket, key = self._object(uri)
        self._retrier.run(uri, "writing", lambda: bucket.put(key, data))

    def put_if_absent(self, uri: str, data: bytes) -> None:
        """See `Store.put_if_absent`. One request, so at most `ONE_REQUEST_BYTES_MAX`."""
        bucket, key = self._object(uri)
        if len(data) > ONE_REQUEST_BYTES_MAX:
            raise StorageError(
                uri, f"put-if-absent takes at most {ONE_REQUEST_BYTES_MAX} bytes, not {len(data)}"
            )

        def attempt() -> None:
            try:
                bucket.create(key, data)
            except AlreadyExistsError:
                # Ours, when an earlier attempt was stored but its answer lost. Gone again, or a conflict with a write
                # that has not ended: try again.
                self._require_same(bucket, key, data)

        self._retrier.run(uri, "writing", attempt)

    def writer(self, uri: str) -> Writer:
        """See `Store.writer`."""
        bucket, key = self._object(uri)

        def whole(data: bytes) -> None:
            self._retrier.run(uri, "writing", lambda: bucket.put(key, data))

        def upload(parts: Iterator[bytes]) -> None:
            sent = _Sum()
            try:
                bucket.put_parts(key, sent.of(parts), part_bytes=PART_BYTES, parts_at_once=PARTS_AT_ONCE)
            except TransientFault as fault:
                # The client has retried every part already; the parts before are gone, so we cannot.
                raise UnavailableError(uri, f"a part still fails after every retry: {fault}") from fault
            except NotFoundError as error:
                if error.uri == bucket.uri:
                    raise
                if not self._stands(uri, sent):
                    why = "the server no longer knows this upload (was it aborted there?): write it again"
                    raise StorageError(uri, why) from error

        return PartWriter(uri, PART_BYTES, whole, upload)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`. Folder markers (empty objects whose key ends in a slash) are left out."""
        location = prefix_location(prefix)
        bucket = self._bucket(location)
        if bucket.sorts_keys:
            return self._list_sorted(bucket, location)
        return self._without_markers(sorted_by_uri(self._list_unsorted(bucket, location)))

    def head(self, uri: str) -> ObjectInfo:
        """See `Store.head`."""
        bucket, key = self._object(uri)
        return _info(uri, self._retrier.run(uri, "asking for", lambda: bucket.head(key)))

    def sign(self, method: Literal["GET", "PUT"], uri: str, expires_s: float) -> str:
        """See `Signing.sign`."""
        bucket, key = self._object(uri)
        return bucket.sign(method, key, expires_s)

    def delete(self, uri: str) -> None:
        """See `Store.delete`."""
        bucket, key = self._object(uri)
        self._retrier.run(uri, "deleting", lambda: bucket.delete(key))

    def _object(self, uri: str) -> tuple[Bucket, str]:
        location = object_location(uri)
        return self._bucket(location), location.key

    def _bucket(self, location: Location) -> Bucket:
        if location.scheme != self._scheme:
            raise ValueError(f"{location.uri}: this store is for {self._scheme}://")
        with self._lock:
            bucket = self._buckets.get(location.bucket)
            if bucket is None:
                bucket = self._buckets[location.bucket] = self._connect(self._scheme, location.bucket)
            return bucket

    def _stream_whole(self, uri: str, bucket: Bucket, key: str, at: int, etag: str) -> Iterator[bytes]:
        """For a server without ranges: one request, read again from its start when it breaks."""
        attempts = self._retrier.begin(uri, "reading")
        while True:
            try:
                for piece in bucket.get_from(key, at, etag):
                    etag = piece.etag
                    at += len(piece.data)
                    attempts.progressed()
                    yield piece.data
            except TransientFault as fault:
                attempts.failed(fault)
            else:
                return

    def _stands(self, uri: str, sent: "_Sum") -> bool:
        """Whether an upload that the server knows no more is complete: only the answer to its completion was lost.

        Otherwise somebody has aborted it. Another object of the same length may stand there, so this reads it.
        """
        standing = _Sum()
        try:
            for _ in standing.of(self.stream(uri)):
                pass
        except NotFoundError:
            return False
        return standing == sent

    def _require_same(self, bucket: Bucket, key: str, data: bytes) -> None:
        uri = f"{bucket.uri}/{key}"
        try:
            # One byte more than ours is enough to tell, however long the other is.
            standing = bucket.get_range(key, 0, len(data) + 1).data
        except RangeIgnoredError:
            standing = bucket.get(key).data
        except NotFoundError:
            raise TransientFault("it was said to exist already, and then not to") from None
        if standing != data:
            raise AlreadyExistsError(uri, "other bytes stand there already")

    def _list_sorted(self, bucket: Bucket, location: Location) -> Iterator[ObjectInfo]:
        """As it comes, a page in memory; goes on after the last key when it breaks."""
        folder, start_of_name = _split(location.key)
        after = _before(folder, start_of_name)
        last = ""
        attempts = self._retrier.begin(location.uri, "listing")
        while True:
            try:
                for page in bucket.list(folder, after):
                    for entry in page:
                        if entry.key <= last and not entry.size_bytes:
                            continue  # a folder marker, whose place is that of its key with the slash
                        if entry.key <= last:
                            raise StorageError(location.uri, f"the listing is out of order at {entry.key!r}")
                        last = after = entry.key
                        if entry.key.startswith(location.key):
                            info = _info(f"{bucket.uri}/{entry.key}", entry)
                            yield from self._without_markers([info])
                        elif entry.key > location.key:
                            return
                    attempts.progressed()
            except TransientFault as fault:
                attempts.failed(fault)
            else:
                return

    def _list_unsorted(self, bucket: Bucket, location: Location) -> Iterator[ObjectInfo]:
        """In the server's order, from its start again when it breaks: whoever sorts drops what comes twice."""
        folder, _ = _split(location.key)
        attempts = self._retrier.begin(location.uri, "listing")
        while True:
            try:
                for page in bucket.list(folder):
                    for entry in page:
                        if entry.key.startswith(location.key):
                            yield _info(f"{bucket.uri}/{entry.key}", entry)
            except TransientFault as fault:
                attempts.failed(fault)
            else:
                return

    def _without_markers(self, infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """The client cuts the slash off a folder marker's key, so an empty object is asked for by its name."""
        for info in infos:
            if info.size_bytes:
                yield info
                continue
            with suppress(NotFoundError):
                yield self.head(info.uri)


@dataclass(slots=True)
class _Sum:
    """What bytes come to: their number and a checksum, and whether they have come to their end."""

    length: int = 0
    crc: int = 0
    ended: bool = False

    def of(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same chunks, summed up as they pass."""
        for chunk in chunks:
            self.length += len(chunk)
            self.crc = zlib.crc32(chunk, self.crc)
            yield chunk
        self.ended = True


def _info(uri: str, entry: Entry) -> ObjectInfo:
    return ObjectInfo(uri, entry.size_bytes, entry.etag, entry.modified_s)


def _first(chunks: Iterator[bytes], length: int) -> bytes:
    """At most `length` bytes, without reading on after them."""
    pieces: list[bytes] = []
    while length > 0 and (chunk := next(chunks, b"")):
        pieces.append(chunk[:length])
        length -= len(pieces[-1])
    return b"".join(pieces)


def _split(key_prefix: str) -> tuple[str, str]:
    """A string prefix as the whole segments, which the client can list, and the start of a name, which it cannot."""
    folder, _, start_of_name = key_prefix.rpartition("/")
    return folder, start_of_name


def _before(folder: str, start_of_name: str) -> str:
    """A key a little before all that start so, to begin a sorted listing at; "" where there is none to be had."""
    if not start_of_name:
        return ""
    before = start_of_name[:-1] + chr(ord(start_of_name[-1]) - 1)
    if not (before.isascii() and before[-1].isalnum()):
        return ""
    return f"{folder}/{before}" if folder else before
