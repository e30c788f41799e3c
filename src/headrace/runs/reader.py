"""The reader of a stream: the objects of the plan, one after the other, as blocks from a cursor on.

An object that breaks (truncated, missing, changed) loses its rest, as one failure of kind OBJECT.
The reader continues with the next object.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ChangedError, CorruptError, EmptySourceError, NotFoundError
from headrace.formats.read import (
    ReadOptions,
    first_records,
    is_seekable,
    position_after,
    read_object,
    unreadable_reason,
)
from headrace.runs.items import BlockSource, Cursor, ReadBlock
from headrace.runs.prefetch import Extent, Prefetch
from headrace.runs.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_COSTS_ONE_OBJECT = (CorruptError, NotFoundError, ChangedError, EmptySourceError)


class Reader(BlockSource):
    """The blocks of all planned objects from `start` up to `stop`."""

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
        # An empty object is an error only if it is the whole source.
        self._empty_raises = len(plan) == 1 and not appended and stop is None
        self._started_at = 0
        if start.position and start.index < len(plan) and is_seekable(plan[start.index].uri, options):
            self._started_at = start.position.member_byte
        extents = [
            Extent(info, self._started_at if index == start.index else 0) for index, info in enumerate(plan)
        ]
        self._prefetch = Prefetch(stores, extents, settings, first_index=start.index)
        self.bytes_read = 0
        self.objects_read = 0

    @override
    def close(self) -> None:
        self._prefetch.close()

    @override
    def blocks(self) -> Iterator[ReadBlock]:
        for index in range(self._start.index, len(self._plan)):
            resume = self._start.position if index == self._start.index else None
            blocks = self._object_blocks(index, resume)
            if self._stop is not None and index == self._stop.index and self._stop.position is not None:
                blocks = _stop_at(blocks, self._stop.position)
            yield from blocks
            self.objects_read += 1

    def _object_blocks(self, index: int, resume: Position | None) -> Iterator[ReadBlock]:
        uri = self._plan[index].uri
        if why := unreadable_reason(uri, self._options):
            yield _failed_block(index, Position(object=uri), why)
            return
        last: Block | None = None
        start_byte = self._started_at if resume else 0
        try:
            for block in read_object(
                uri, self._chunks(index), self._options, resume=resume, start_byte=start_byte
            ):
                last = block
                yield ReadBlock(block, index)
        except _COSTS_ONE_OBJECT as error:
            if isinstance(error, EmptySourceError) and self._empty_raises:
                raise
            reached = position_after(last) if last else resume or Position(object=uri)
            yield _failed_block(index, reached, f"{error}; the rest of {uri} is not read")

    def _chunks(self, index: int) -> Iterator[bytes]:
        for chunk in self._prefetch.chunks(index):
            self.bytes_read += len(chunk)
            yield chunk


def _stop_at(blocks: Iterator[ReadBlock], stop: Position) -> Iterator[ReadBlock]:
    """Yield the blocks of an object before the record at `stop`."""
    for read in blocks:
        first = read.block.first
        if first.member_byte > stop.member_byte:
            return
        if first.member_byte == stop.member_byte and first.record + read.block.records >= stop.record:
            if first.record < stop.record:
                yield replace(read, block=first_records(read.block, stop.record - first.record))
            return
        yield read


def _failed_block(index: int, reached: Position, why: str) -> ReadBlock:
    """Return an empty block whose failure says that the object is unreadable from `reached` on."""
    failure = Failure(reached, FailureKind.OBJECT, why)
    return ReadBlock(Block(reached, failures=(failure,)), index, last=True)
