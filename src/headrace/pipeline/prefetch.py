"""Bytes before they are asked for: ranged reads of the planned objects, some ahead, given out in order.

Arrives: extents of objects, in the order of reading. Leaves: each one's chunks. One window serves a few huge objects and many small ones
alike: it is filled with reads in plan order until `prefetch_bytes_max`, and threads work on it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headrace.core.errors import ChangedError
from headrace.formats.contract import BLOCK_BYTES_MAX
from headrace.pipeline.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

FIRST_RANGE_BYTES = 256 * 1024
"""The first read of a run is small, so that the first records are there soon; each next is four times larger."""
READS_AHEAD_MAX = 64
LOCAL_RANGE_BYTES = BLOCK_BYTES_MAX - (1 << 16)
"""Local reads have little latency to hide: smaller ones, a few ahead, stay in the processor's cache. A read and what is
left of the one before make one block of text."""
LOCAL_RANGES_AHEAD_MAX = 3
SMALL_BYTES = 128 * 1024
"""Local objects no longer than this are read several at a time: handing one over to a thread takes longer than reading it."""
SMALL_TOGETHER_MAX = 32
RANGES_AHEAD_MAX = 8
"""More reads of large objects than this hide nothing."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What is to be read of an object: the bytes from `start` to `stop`, or to its end."""

    info: ObjectInfo
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """One range of one extent; `length` None is an object of unknown size, read from `start` as one stream."""

    index: int
    info: ObjectInfo
    start: int
    length: int | None


class Prefetch:
    """Chunks of extents, in order. Used by one thread; `close` by any."""

    def __init__(
        self,
        stores: Stores,
        extents: Sequence[Extent],
        settings: FlowSettings,
        *,
        first_index: int = 0,
    ) -> None:
        self._stores = stores
        self._bytes_max = settings.prefetch_bytes_max
        self._range_bytes = settings.range_bytes
        self._reads = self._plan_reads(extents, first_index)
        self._window: deque[tuple[_Read, Future[list[bytes | BaseException]], int]] = deque()
        """Reads that were asked for, with the answer that each is a part of."""
        self._next: _Read | None = None
        """A read that was planned and would not go together with those before it."""
        self._window_bytes = 0
        # More than one read of a local disk at a time gains nothing, and each thread takes turns with the others.
        threads = 1 if all(_is_local(extent.info) for extent in extents) else settings.prefetch_threads
        self._pool = ThreadPoolExecutor(threads, "headrace-prefetch")
        self._fill()

    def _plan_reads(self, extents: Sequence[Extent], first_index: int) -> Iterator[_Read]:
        ramp = FIRST_RANGE_BYTES
        for index in range(first_index, len(extents)):
            extent = extents[index]
            info, start = extent.info, extent.start
            if info.size_bytes is None:
                yield _Read(index, info, start, None)
                continue
            stop = info.size_bytes if extent.stop is None else min(extent.stop, info.size_bytes)
            range_bytes = min(self._range_bytes, LOCAL_RANGE_BYTES) if _is_local(info) else self._range_bytes
            while start < stop:
                length = min(range_bytes, ramp, stop - start)
                ramp = min(ramp * 4, range_bytes)
                yield _Read(index, info, start, length)
                start += length

    def _fill(self) -> None:
        """Ask for reads until the window is full; a single read larger than the window is allowed."""
        while len(self._window) < READS_AHEAD_MAX and self._window_bytes < self._bytes_max:
            last = self._window[-1][0] if self._window else None
            if last and last.start and len(self._window) >= _ranges_ahead_max(last.info):
                return
            reads = self._together()
            if not reads:
                return
            answer = self._pool.submit(self._fetch_all, reads)
            self._window.extend((read, answer, place) for place, read in enumerate(reads))
            self._window_bytes += sum(read.length or 0 for read in reads)

    def _together(self) -> list[_Read]:
        """The next read, and those of small local objects that follow it."""
        read = self._planned()
        reads = [] if read is None else [read]
        if read is None or not _is_small(read):
            return reads
        room = self._bytes_max - self._window_bytes - (read.length or 0)
        while len(reads) < SMALL_TOGETHER_MAX and (read := self._planned()) is not None:
            room -= read.length or 0
            if not _is_small(read) or room < 0:
                self._next = read
                break
            reads.append(read)
        return reads

    def _planned(self) -> _Read | None:
        read, self._next = self._next, None
        return read or next(self._reads, None)

    def _fetch_all(self, reads: Sequence[_Read]) -> list[bytes | BaseException]:
        """What each read came to; an error is for the object that it is about."""
        found: list[bytes | BaseException] = []
        for read in reads:
            try:
                found.append(self._fetch(read))
            except Exception as error:  # noqa: BLE001 - raised where the object is asked for
                found.append(error)
        return found

    def _fetch(self, read: _Read) -> bytes:
        if read.length is None:
            return b""
        uri = read.info.uri
        data = self._stores.for_uri(uri).get_range(uri, read.start, read.length, etag=read.info.etag)
        if len(data) != read.length:
            why = f"had {read.info.size_bytes} bytes when it was listed, and ends at {read.start + len(data)} now"
            raise ChangedError(uri, why)
        return data

    def chunks(self, index: int) -> Iterator[bytes]:
        """The bytes of extent `index`; what is left of earlier ones is dropped.

        Raises the store's errors at the byte where they happened.
        """
        while self._window and self._window[0][0].index <= index:
            read, answer, place = self._window.popleft()
            self._window_bytes -= read.length or 0
            if read.index < index:
                if place == 0 and (not self._window or self._window[0][1] is not answer):
                    answer.cancel()  # nobody else waits for it
                self._fill()
                continue
            self._fill()
            if read.length is None:
                store = self._stores.for_uri(read.info.uri)
                yield from store.stream(read.info.uri, start=read.start, etag=read.info.etag)
            else:
                found = answer.result()[place]
                if isinstance(found, BaseException):
                    raise found
                yield found

    def close(self) -> None:
        """Forget what was not begun; running reads end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _is_local(info: ObjectInfo) -> bool:
    return "://" not in info.uri or info.uri.startswith(("file:", "memory:"))


def _is_small(read: _Read) -> bool:
    """Whether a read is all of a small local object."""
    whole = read.start == 0 and read.length == read.info.size_bytes
    return whole and read.length is not None and read.length <= SMALL_BYTES and _is_local(read.info)


def _ranges_ahead_max(info: ObjectInfo) -> int:
    return LOCAL_RANGES_AHEAD_MAX if _is_local(info) else RANGES_AHEAD_MAX
