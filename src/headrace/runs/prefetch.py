"""Ranged reads of the planned objects ahead of their use, delivered in order.

Extents of objects in reading order become chunks. One window of reads in plan order serves a few
huge objects and many small ones alike. It is filled up to `prefetch_bytes_max`, and threads read.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headrace.core.errors import ChangedError
from headrace.formats.contract import BLOCK_BYTES_MAX
from headrace.runs.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

FIRST_RANGE_BYTES = 256 * 1024
"""The size of the first read of a run. It is small, so that the first records arrive soon; each
following read is four times larger.
"""
READS_AHEAD_MAX = 64
LOCAL_RANGE_BYTES = BLOCK_BYTES_MAX - (1 << 16)
"""The size of local reads. Local latency is low, so a few small reads ahead stay in the processor's
cache. A read and the rest of the previous one make one block of text.
"""
LOCAL_RANGES_AHEAD_MAX = 3
SMALL_BYTES = 128 * 1024
"""The maximum size of a small local object. Small objects are read in groups, because passing one
to a thread takes longer than reading it.
"""
SMALL_GROUP_MAX = 32
RANGES_AHEAD_MAX = 8
"""The maximum reads ahead of large objects. More hide no further latency."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes to read of an object: from `start` to `stop`, or to its end."""

    info: ObjectInfo
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """One range of one extent. With `length` None, the size is unknown and the object is streamed."""

    index: int
    info: ObjectInfo
    start: int
    length: int | None


class Prefetch:
    """The chunks of extents, in order. One thread uses it; any thread may call `close`.

    The extents may grow. They are read ahead as far as they are known.
    """

    def __init__(
        self,
        stores: Stores,
        extents: Sequence[Extent],
        settings: FlowSettings,
    ) -> None:
        self._stores = stores
        self._bytes_max = settings.prefetch_bytes_max
        self._range_bytes = settings.range_bytes
        self._extents = extents
        self._next_extent = 0
        self._reads: Iterator[_Read] = iter(())
        """The reads of the last extent that are not started."""
        self._ramp = FIRST_RANGE_BYTES
        self._window: deque[tuple[_Read, Future[list[bytes | BaseException]], int]] = deque()
        """The started reads, with their group's future and their position in the group."""
        self._ungrouped: _Read | None = None
        """A planned read that did not fit the previous group."""
        self._window_bytes = 0
        # Concurrent reads of a local disk gain nothing, and more threads compete for the
        # interpreter lock.
        threads = 1 if not extents or is_local(extents[0].info) else settings.prefetch_threads
        self._pool = ThreadPoolExecutor(threads, "headrace-prefetch")
        self._fill()

    def _plan_reads(self, index: int, extent: Extent) -> Iterator[_Read]:
        info, start = extent.info, extent.start
        if info.size_bytes is None:
            yield _Read(index, info, start, None)
            return
        stop = info.size_bytes if extent.stop is None else min(extent.stop, info.size_bytes)
        range_bytes = min(self._range_bytes, LOCAL_RANGE_BYTES) if is_local(info) else self._range_bytes
        while start < stop:
            length = min(range_bytes, self._ramp, stop - start)
            self._ramp = min(self._ramp * 4, range_bytes)
            yield _Read(index, info, start, length)
            start += length

    def _fill(self) -> None:
        """Start reads until the window is full. A single read may be larger than the window."""
        while len(self._window) < READS_AHEAD_MAX and self._window_bytes < self._bytes_max:
            last = self._window[-1][0] if self._window else None
            if last and last.start:
                ranges_max = LOCAL_RANGES_AHEAD_MAX if is_local(last.info) else RANGES_AHEAD_MAX
                if len(self._window) >= ranges_max:
                    return
            reads = self._next_group()
            if not reads:
                return
            future = self._pool.submit(self._fetch_all, reads)
            self._window.extend((read, future, place) for place, read in enumerate(reads))
            self._window_bytes += sum(read.length or 0 for read in reads)

    def _next_group(self) -> list[_Read]:
        """Return the next read, and the reads of small local objects that follow it."""
        read = self._next_read()
        reads = [] if read is None else [read]
        if read is None or not _is_small(read):
            return reads
        bytes_left = self._bytes_max - self._window_bytes - (read.length or 0)
        while len(reads) < SMALL_GROUP_MAX and (read := self._next_read()) is not None:
            bytes_left -= read.length or 0
            if not _is_small(read) or bytes_left < 0:
                self._ungrouped = read
                break
            reads.append(read)
        return reads

    def _next_read(self) -> _Read | None:
        read, self._ungrouped = self._ungrouped, None
        read = read or next(self._reads, None)
        # More extents may be known later: do not wait for them.
        while read is None and self._next_extent < len(self._extents):
            self._reads = self._plan_reads(self._next_extent, self._extents[self._next_extent])
            self._next_extent += 1
            read = next(self._reads, None)
        return read

    def _fetch_all(self, reads: Sequence[_Read]) -> list[bytes | BaseException]:
        """Return the bytes or the error of each read."""
        found: list[bytes | BaseException] = []
        for read in reads:
            try:
                found.append(self._fetch(read))
            except Exception as error:  # noqa: BLE001 - raised when the object is read
                found.append(error)
        return found

    def _fetch(self, read: _Read) -> bytes:
        if read.length is None:
            return b""
        uri = read.info.uri
        data = self._stores.for_uri(uri).get_range(uri, read.start, read.length, etag=read.info.etag)
        if len(data) != read.length:
            end = read.start + len(data)
            raise ChangedError(
                uri, f"had {read.info.size_bytes} bytes when it was listed, but ends at byte {end}"
            )
        return data

    def chunks(self, index: int) -> Iterator[bytes]:
        """Yield the bytes of extent `index`. Drop the rest of earlier ones.

        The errors of the store are raised at their byte.
        """
        self._fill()
        while self._window and self._window[0][0].index <= index:
            read, future, place = self._window.popleft()
            self._window_bytes -= read.length or 0
            if read.index < index:
                if place == 0 and (not self._window or self._window[0][1] is not future):
                    future.cancel()  # no other read waits for it
                self._fill()
                continue
            self._fill()
            if read.length is None:
                store = self._stores.for_uri(read.info.uri)
                yield from store.stream(read.info.uri, start=read.start, etag=read.info.etag)
            else:
                found = future.result()[place]
                if isinstance(found, BaseException):
                    raise found
                yield found

    def close(self) -> None:
        """Cancel the reads that have not begun. Running reads end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def is_local(info: ObjectInfo) -> bool:
    """Return True if an object is on a disk or in memory, so that reads ahead gain nothing."""
    return "://" not in info.uri or info.uri.startswith(("file:", "memory:"))


def _is_small(read: _Read) -> bool:
    """Return True if a read covers a whole small local object."""
    whole = read.start == 0 and read.length == read.info.size_bytes
    return whole and read.length is not None and read.length <= SMALL_BYTES and is_local(read.info)
