"""The store of cloud objects: adds retries, resumed reads and sorted listings to `Bucket`.

Most S3-compatible servers list in the order of a directory tree (``a/x`` before ``a-x``), not in the
order of the keys. Their listings are sorted in bounded memory: sorted runs on disk, then a merge.
"""

import heapq
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Literal

import orjson
from typing_extensions import override

from headrace.core.clock import TransientFault
from headrace.core.errors import (
    AlreadyExistsError,
    ChangedError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from headrace.storage.cloud import Bucket, Entry, RangeIgnoredError
from headrace.storage.contract import NO_METADATA, ObjectInfo, Store, UrlSigner, Writer
from headrace.storage.multipart import PartWriter
from headrace.storage.retry import Retrier
from headrace.storage.uri import Location, object_location, prefix_location

FIRST_RANGE_BYTES = 256 << 10
"""The length of a stream's first range. Each next range is four times as long."""
RANGE_BYTES_MAX = 8 << 20
PART_BYTES = 8 << 20
"""The length of a part of an upload. Stores accept 10,000 parts, so an object can have 80 GB."""
PARTS_AT_ONCE = 2
ONE_REQUEST_BYTES_MAX = 64 << 20
"""The longest object that `put` writes in one request; longer ones are written in parts."""
RUN_ENTRIES_MAX = 50_000
"""Entries of an unsorted listing in memory at once, about 15 MB."""
_ROWS_PER_LINE = 1_000

_Row = tuple[str, int | None, str, float]


class CloudStore(Store, UrlSigner):
    """The store of ``s3://``, ``gs://`` or ``az://`` objects. Safe from any thread.

    It creates one client for each bucket on first use. S3 and Google Cloud Storage list in key
    order; most servers behind a custom endpoint do not. A listing of such a server is read
    completely, then sorted in bounded memory.
    """

    def __init__(self, scheme: str, connect: Callable[[str, str], Bucket], retrier: Retrier) -> None:
        self._scheme = scheme
        self._connect = connect
        self._retrier = retrier
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    @override
    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """Yield the bytes in consecutive ranged reads, each bound to the first one's ETag."""
        bucket, key = self._object(uri)
        attempts = self._retrier.begin(uri, "reading")
        at, length, size_bytes = start, FIRST_RANGE_BYTES, None
        while size_bytes is None or at < size_bytes:
            try:
                response = bucket.get_range(key, at, length, etag)
            except RangeIgnoredError:
                yield from self._stream_whole(uri, bucket, key, at, etag)
                return
            except TransientFault as fault:
                attempts.record_failure(fault)
                continue
            if size_bytes not in (None, response.size_bytes):
                # The server sends no ETag, or ignores If-Match.
                raise ChangedError(uri, f"has changed: had {size_bytes} bytes, now has {response.size_bytes}")
            attempts.record_progress()
            etag, size_bytes = response.etag, response.size_bytes
            at, length = at + len(response.data), min(length * 4, RANGE_BYTES_MAX)
            if response.data:
                yield response.data

    @override
    def get(self, uri: str) -> bytes:
        bucket, key = self._object(uri)
        return self._retrier.run(uri, "reading", lambda: bucket.get(key).data)

    @override
    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        bucket, key = self._object(uri)
        if length <= 0:
            return b""
        try:
            return self._retrier.run(uri, "reading", lambda: bucket.get_range(key, start, length, etag).data)
        except RangeIgnoredError:
            return _read_first(self._stream_whole(uri, bucket, key, start, etag), length)

    @override
    def put(self, uri: str, data: bytes) -> None:
        if len(data) > ONE_REQUEST_BYTES_MAX:
            with self.writer(uri) as writer:
                writer.write(data)
            return
        bucket, key = self._object(uri)
        self._retrier.run(uri, "writing", lambda: bucket.put(key, data))

    @override
    def put_if_absent(self, uri: str, data: bytes) -> None:
        """Write at most `ONE_REQUEST_BYTES_MAX` bytes, because one request must carry them.

        Raises StorageError for more bytes.
        """
        bucket, key = self._object(uri)
        if len(data) > ONE_REQUEST_BYTES_MAX:
            raise StorageError(
                uri, f"has {len(data)} bytes; put-if-absent takes at most {ONE_REQUEST_BYTES_MAX} bytes"
            )

        def attempt() -> None:
            try:
                bucket.create(key, data)
            except AlreadyExistsError:
                # The object is an earlier attempt whose response was lost, or a conflict with a
                # write that has not finished, or deleted again: the last two are retried.
                self._require_same_bytes(bucket, key, data)

        self._retrier.run(uri, "writing", attempt)

    @override
    def writer(self, uri: str, metadata: Mapping[str, str] = NO_METADATA) -> Writer:
        bucket, key = self._object(uri)

        def whole(data: bytes) -> None:
            self._retrier.run(uri, "writing", lambda: bucket.put(key, data, metadata))

        def upload(parts: Iterator[bytes]) -> None:
            sent = _Checksum()
            try:
                bucket.put_parts(
                    key,
                    sent.update_from(parts),
                    part_bytes=PART_BYTES,
                    parts_at_once=PARTS_AT_ONCE,
                    metadata=metadata,
                )
            except TransientFault as fault:
                # The client has already retried each part, and earlier parts are no longer in
                # memory.
                raise UnavailableError(
                    uri, "a part of the upload still fails after every retry", str(fault)
                ) from fault
            except NotFoundError as error:
                if error.uri == bucket.uri:
                    raise
                if not self._is_stored(uri, sent):
                    why = "the server no longer has this upload; was it aborted there? Write the object again"
                    raise StorageError(uri, why) from error

        return PartWriter(uri, PART_BYTES, whole, upload)

    @override
    def metadata(self, uri: str) -> Mapping[str, str]:
        bucket, key = self._object(uri)
        return self._retrier.run(uri, "reading the metadata", lambda: bucket.metadata(key))

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects without folder markers.

        Folder markers are empty objects whose key ends in a slash.
        """
        location = prefix_location(prefix)
        bucket = self._bucket(location)
        if bucket.sorts_keys:
            return self._list_sorted(bucket, location)
        return self._drop_folder_markers(sort_by_uri(self._list_unsorted(bucket, location)))

    @override
    def head(self, uri: str) -> ObjectInfo:
        bucket, key = self._object(uri)
        return _info(uri, self._retrier.run(uri, "reading the metadata", lambda: bucket.head(key)))

    @override
    def sign(self, method: Literal["GET", "PUT"], uri: str, expires_s: float) -> str:
        bucket, key = self._object(uri)
        return bucket.sign(method, key, expires_s)

    @override
    def delete(self, uri: str) -> None:
        bucket, key = self._object(uri)
        self._retrier.run(uri, "deleting", lambda: bucket.delete(key))

    def _object(self, uri: str) -> tuple[Bucket, str]:
        location = object_location(uri)
        return self._bucket(location), location.key

    def _bucket(self, location: Location) -> Bucket:
        if location.scheme != self._scheme:
            raise ValueError(f"{location.uri}: this store serves only {self._scheme}://")
        with self._lock:
            bucket = self._buckets.get(location.bucket)
            if bucket is None:
                bucket = self._buckets[location.bucket] = self._connect(self._scheme, location.bucket)
            return bucket

    def _stream_whole(self, uri: str, bucket: Bucket, key: str, at: int, etag: str) -> Iterator[bytes]:
        """Yield the bytes from `at`, read in one request, for a server without ranges.

        An interrupted read starts again from the beginning of the object.
        """
        attempts = self._retrier.begin(uri, "reading")
        while True:
            try:
                for response in bucket.get_from(key, at, etag):
                    etag = response.etag
                    at += len(response.data)
                    attempts.record_progress()
                    yield response.data
            except TransientFault as fault:
                attempts.record_failure(fault)
            else:
                return

    def _is_stored(self, uri: str, sent: "_Checksum") -> bool:
        """Return True if the object holds exactly the bytes that were sent.

        The server then completed the upload and only its response was lost. Otherwise the upload
        was aborted on the server. Another object of the same length may exist, so this method reads
        the object.
        """
        stored = _Checksum()
        try:
            for _ in stored.update_from(self.stream(uri)):
                pass
        except NotFoundError:
            return False
        return stored == sent

    def _require_same_bytes(self, bucket: Bucket, key: str, data: bytes) -> None:
        uri = f"{bucket.uri}/{key}"
        try:
            # One byte more than `data` shows a difference, however long the stored object is.
            stored = bucket.get_range(key, 0, len(data) + 1).data
        except RangeIgnoredError:
            stored = bucket.get(key).data
        except NotFoundError:
            raise TransientFault("the object existed on writing and was missing on reading") from None
        if stored != data:
            raise AlreadyExistsError(uri, "exists already with other bytes")

    def _list_sorted(self, bucket: Bucket, location: Location) -> Iterator[ObjectInfo]:
        """Yield the entries of a server that lists in key order, one page in memory.

        An interrupted listing continues after the last key.
        """
        folder, start_of_name = _split_prefix(location.key)
        after = _key_before(folder, start_of_name)
        last = ""
        attempts = self._retrier.begin(location.uri, "listing")
        while True:
            try:
                for page in bucket.list(folder, after):
                    for entry in page:
                        if entry.key <= last and not entry.size_bytes:
                            continue  # a folder marker, sorted by its key with the slash
                        if entry.key <= last:
                            raise StorageError(location.uri, f"the listing is out of order at {entry.key!r}")
                        last = after = entry.key
                        if entry.key.startswith(location.key):
                            info = _info(f"{bucket.uri}/{entry.key}", entry)
                            yield from self._drop_folder_markers([info])
                        elif entry.key > location.key:
                            return
                    attempts.record_progress()
            except TransientFault as fault:
                attempts.record_failure(fault)
            else:
                return

    def _list_unsorted(self, bucket: Bucket, location: Location) -> Iterator[ObjectInfo]:
        """Yield the entries in the server's order.

        An interrupted listing starts again from the beginning; the sort drops the duplicates.
        """
        folder, _ = _split_prefix(location.key)
        attempts = self._retrier.begin(location.uri, "listing")
        while True:
            try:
                for page in bucket.list(folder):
                    for entry in page:
                        if entry.key.startswith(location.key):
                            yield _info(f"{bucket.uri}/{entry.key}", entry)
            except TransientFault as fault:
                attempts.record_failure(fault)
            else:
                return

    def _drop_folder_markers(self, infos: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Yield all infos but those of folder markers.

        The client strips the slash from the key of a folder marker. A HEAD request for each empty
        object finds the markers.
        """
        for info in infos:
            if info.size_bytes:
                yield info
                continue
            with suppress(NotFoundError):
                yield self.head(info.uri)


@dataclass(slots=True)
class _Checksum:
    """The number of bytes seen, their CRC-32, and a flag that the chunks have ended."""

    length: int = 0
    crc: int = 0
    ended: bool = False

    def update_from(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks unchanged and add each one to the checksum."""
        for chunk in chunks:
            self.length += len(chunk)
            self.crc = zlib.crc32(chunk, self.crc)
            yield chunk
        self.ended = True


def _info(uri: str, entry: Entry) -> ObjectInfo:
    return ObjectInfo(uri, entry.size_bytes, entry.etag, entry.modified_s)


def _read_first(chunks: Iterator[bytes], length: int) -> bytes:
    """Return the first `length` bytes, without reading further chunks."""
    parts: list[bytes] = []
    while length > 0 and (chunk := next(chunks, b"")):
        parts.append(chunk[:length])
        length -= len(parts[-1])
    return b"".join(parts)


def _split_prefix(key_prefix: str) -> tuple[str, str]:
    """Split a string prefix into its folder and the start of a name.

    The folder consists of whole segments, as the client needs it for a listing.
    """
    folder, _, start_of_name = key_prefix.rpartition("/")
    return folder, start_of_name


def _key_before(folder: str, start_of_name: str) -> str:
    """Return a key shortly before all keys with this prefix, to start a sorted listing at.

    Return "" if no such key is known.
    """
    if not start_of_name:
        return ""
    before = start_of_name[:-1] + chr(ord(start_of_name[-1]) - 1)
    if not (before.isascii() and before[-1].isalnum()):
        return ""
    return f"{folder}/{before}" if folder else before


def sort_by_uri(
    infos: Iterable[ObjectInfo], *, run_entries_max: int = RUN_ENTRIES_MAX
) -> Iterator[ObjectInfo]:
    """Yield the infos sorted by URI, without duplicate URIs.

    Reads all of `infos` before the first yield.
    """
    with ExitStack() as files:
        runs: list[IO[bytes]] = []
        rows: list[_Row] = []
        for info in infos:
            rows.append((info.uri, info.size_bytes, info.etag, info.modified_s))
            if len(rows) >= run_entries_max:
                runs.append(files.enter_context(_spill(rows)))
                rows.clear()
        rows.sort(key=_row_uri)
        last: str | None = None
        for row in heapq.merge(*(_read(run) for run in runs), rows, key=_row_uri):
            if row[0] != last:
                last = row[0]
                yield ObjectInfo(*row)


def _row_uri(row: _Row) -> str:
    return row[0]


def _spill(rows: list[_Row]) -> IO[bytes]:
    """Return one sorted run in an anonymous file, `_ROWS_PER_LINE` rows a line."""
    run: IO[bytes] = tempfile.TemporaryFile(prefix="headrace-list-")  # noqa: SIM115 - the caller closes it
    rows.sort(key=_row_uri)
    for start in range(0, len(rows), _ROWS_PER_LINE):
        run.write(orjson.dumps(rows[start : start + _ROWS_PER_LINE], option=orjson.OPT_APPEND_NEWLINE))
    run.seek(0)
    return run


def _read(run: IO[bytes]) -> Iterator[_Row]:
    for line in run:
        yield from orjson.loads(line)
