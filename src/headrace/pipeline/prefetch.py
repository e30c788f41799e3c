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
        self._window: deque[tuple[_Read, Future[bytes]]] = deque()
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
            read = next(self._reads, None)
            if read is None:
                return
            self._window.append((read, self._pool.submit(self._fetch, read)))
            self._window_bytes += read.length or 0

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
            read, future = self._window.popleft()
            self._window_bytes -= read.length or 0
            if read.index < index:
                future.cancel()
                self._fill()
                continue
            self._fill()
            if read.length is None:
                store = self._stores.for_uri(read.info.uri)
                yield from store.stream(read.info.uri, start=read.start, etag=read.info.etag)
            else:
                yield future.result()

    def close(self) -> None:
        """Forget what was not begun; running reads end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _is_local(info: ObjectInfo) -> bool:
    return "://" not in info.uri or info.uri.startswith(("file:", "memory:"))


def _ranges_ahead_max(info: ObjectInfo) -> int:
    return LOCAL_RANGES_AHEAD_MAX if _is_local(info) else RANGES_AHEAD_MAX
