"""Objects to blocks: reads the plan's objects one after the other, from a cursor on.

Arrives: chunks. Leaves: `ReadBlock`s. An object that breaks (truncated, vanished, changed) costs the rest of
that object, as one failure of kind OBJECT; the next one is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ChangedError, CorruptError, EmptySourceError, NotFoundError
from headrace.formats.read import ReadOptions, behind, only_first, read_object, seekable, unreadable
from headrace.pipeline.items import Cursor, ReadBlock
from headrace.pipeline.prefetch import Extent, Prefetch
from headrace.pipeline.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_COSTS_ONE_OBJECT = (CorruptError, NotFoundError, ChangedError, EmptySourceError)


class Reader:
    """Blocks of all planned objects from `start` on, up to `stop`. One thread iterates; `close` may come from another."""

    def __init__(
        self,
        stores: Stores,
        plan: Sequence[ObjectInfo],
        options: ReadOptions,
        settings: FlowSettings,
        start: Cursor,
        *,
        stop: Cursor | None = None,
        appended: bool = False,
    ) -> None:
        self._stop = stop
        if stop is not None:
            plan = plan[: stop.index + (stop.position is not None)]
        self._plan = plan
        self._options = options
        self._start = start
        # A source of one object that is empty is an error; one that came after or before others costs itself alone.
        self._empty_raises = len(plan) == 1 and not appended and stop is None
        self._started_at = 0
        if start.position and start.index < len(plan) and seekable(plan[start.index].uri, options):
            self._started_at = start.position.member_byte
        extents = [
            Extent(info, self._started_at if index == start.index else 0) for index, info in enumerate(plan)
        ]
        self._prefetch = Prefetch(stores, extents, settings, first_index=start.index)
        self.bytes_read = 0
        self.objects_read = 0

    def close(self) -> None:
        """Stop prefetching."""
        self._prefetch.close()

    def blocks(self) -> Iterator[ReadBlock]:
        """All blocks. Raises what breaks the whole run: no access, a store that stays away."""
        for index in range(self._start.index, len(self._plan)):
            resume = self._start.position if index == self._start.index else None
            blocks = self._object_blocks(index, resume)
            if self._stop is not None and index == self._stop.index and self._stop.position is not None:
                blocks = _until(blocks, self._stop.position)
            yield from blocks
            self.objects_read += 1

    def _object_blocks(self, index: int, resume: Position | None) -> Iterator[ReadBlock]:
        uri = self._plan[index].uri
        if why := unreadable(uri, self._options):
            yield _lost(index, Position(object=uri), why)
            return
        last: Block | None = None
        started_at = self._started_at if resume else 0
        try:
            for block in read_object(
                uri, self._chunks(index), self._options, resume=resume, started_at=started_at
            ):
                last = block
                yield ReadBlock(block, index)
        except _COSTS_ONE_OBJECT as error:
            if isinstance(error, EmptySourceError) and self._empty_raises:
                raise
            reached = behind(last) if last else resume or Position(object=uri)
            yield _lost(index, reached, f"{error}; the rest of {uri} is not read")

    def _chunks(self, index: int) -> Iterator[bytes]:
        for chunk in self._prefetch.chunks(index):
            self.bytes_read += len(chunk)
            yield chunk


def _until(blocks: Iterator[ReadBlock], stop: Position) -> Iterator[ReadBlock]:
    """An object's blocks, without the record at `stop` and all that come after it."""
    for read in blocks:
        first = read.block.first
        if first.member_byte > stop.member_byte:
            return
        if first.member_byte == stop.member_byte and first.record + read.block.records >= stop.record:
            if first.record < stop.record:
                yield replace(read, block=only_first(read.block, stop.record - first.record))
            return
        yield read


def _lost(index: int, reached: Position, why: str) -> ReadBlock:
    """What says that an object cannot be read from `reached` on."""
    failure = Failure(reached, FailureKind.OBJECT, why)
    return ReadBlock(Block(reached, failures=(failure,)), index, last=True)
