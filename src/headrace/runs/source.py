"""Read the shards of tasks into blocks, one after another, with the start and end of each.

Input: tasks and their checkpoints. Output: `ReadBlock`s, whose `index` is the shard's place in the
list of open shards, and a `ShardEnd` for each. A broken object costs the rest of that object.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ChangedError, CorruptError, EmptySourceError, NotFoundError
from headrace.formats.lines import PROBE_BYTES
from headrace.formats.read import (
    ReadOptions,
    is_read_by_row_groups,
    is_seekable,
    position_after,
    read_object,
    skip_records,
    text_format,
)
from headrace.formats.text_range import TextFormat, TextRange
from headrace.runs.items import BlockSource, ReadBlock
from headrace.runs.parquet_source import parquet_blocks
from headrace.runs.plan import Shard, Task, TransformPlan
from headrace.runs.prefetch import Extent, Prefetch
from headrace.runs.records import ShardPosition, ShardRecord, TaskCheckpoint
from headrace.runs.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_OBJECT_ERRORS = (CorruptError, NotFoundError, ChangedError, EmptySourceError)
_TAIL_BYTES = 64 << 10
_TAIL_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard that this process reads.

    `resume` is the checkpoint to continue from. `done` are the shards of the same task that an
    earlier process finished; they are attached to the first open shard of the task.
    """

    task: int
    shard: Shard
    ends_task: bool
    resume: TaskCheckpoint | None = None
    done: tuple[ShardRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """The end of a shard: its `entries` (records and failures) are all read.

    `index` is its place among the open shards. `begin` and `end` are set for ranges only. A broken
    object has no `end`; an object that is not text has neither.
    """

    open_shard: int
    entries: int
    begin: ShardPosition | None = None
    end: ShardPosition | None = None
    relative: bool = False


def list_open_shards(tasks: Sequence[Task], checkpoints: Mapping[int, TaskCheckpoint]) -> list[OpenShard]:
    """Return the unfinished shards of these tasks."""
    open_shards: list[OpenShard] = []
    for task in tasks:
        checkpoint = checkpoints.get(task.number)
        done = checkpoint.done if checkpoint else ()
        for place, shard in enumerate(task.shards[len(done) :], len(done)):
            first = place == len(done)
            resume = checkpoint if checkpoint and checkpoint.entries and first else None
            ends_task = place == len(task.shards) - 1
            open_shards.append(OpenShard(task.number, shard, ends_task, resume, done if first else ()))
    return open_shards


class TaskSource(BlockSource):
    """A source of the blocks of all open shards, in order.

    One thread iterates. Another may take from `shard_ends`; any thread may call `close`.

    Args:
        stores: The object stores.
        plan: The plan of the tasks.
        open_shards: The shards to read.
        read: The options of reading.
        flow: The limits of reading ahead.
        range_starts: The known starts of ranges, by object index and range number.
    """

    def __init__(
        self,
        stores: Stores,
        plan: TransformPlan,
        open_shards: Sequence[OpenShard],
        *,
        read: ReadOptions,
        flow: FlowSettings,
        range_starts: Mapping[tuple[int, int], ShardPosition],
    ) -> None:
        self._stores = stores
        self._plan = plan
        self._open_shards = open_shards
        self._read = read
        self._range_starts = dict(range_starts)
        self._heads: dict[int, tuple[bool, tuple[str, ...] | None]] = {}
        self._skipped: set[int] = set()
        self.shard_ends: deque[ShardEnd] = deque()
        """The ends of shards that are completely read, in order."""
        self.range_begins: dict[int, tuple[ShardPosition, bool]] = {}
        """The start of each range by open shard, and whether its positions are relative."""
        self.reading = 0
        """The index of the open shard that is being read."""
        self.bytes_read = 0
        self.objects_read = 0
        self._prefetch = Prefetch(stores, [self._extent(open_shard) for open_shard in open_shards], flow)

    def skip(self, index: int) -> None:
        """Stop reading object `index`. Blocks that were read may still be delivered."""
        self._skipped.add(index)

    @override
    def close(self) -> None:
        self._prefetch.close()

    @override
    def blocks(self) -> Iterator[ReadBlock]:
        """Yield all blocks. Raises errors that stop the run: denied access, an unavailable store."""
        for number, open_shard in enumerate(self._open_shards):
            self.reading = number
            yield from self._shard_blocks(number, open_shard)
            self.objects_read += open_shard.shard.ends_object
            if open_shard.ends_task:
                yield ReadBlock(Block(Position(self._uri(open_shard))), number, ends_batch=True)

    def _uri(self, open_shard: OpenShard) -> str:
        return self._info(open_shard).uri

    def _info(self, open_shard: OpenShard) -> ObjectInfo:
        return self._plan.objects[open_shard.shard.index].info

    def _begin(self, open_shard: OpenShard) -> Position | None:
        """Return the start of a range, if it is known."""
        shard, resume = open_shard.shard, open_shard.resume
        if resume is not None and resume.begin is not None:
            return resume.begin.position(self._uri(open_shard))
        position = self._range_starts.get((shard.index, shard.number))
        return None if position is None or not shard.number else position.position(self._uri(open_shard))

    def _extent(self, open_shard: OpenShard) -> Extent:
        """Return the bytes that are certain to be read; a range may need a little more at both ends."""
        info, shard = self._info(open_shard), open_shard.shard
        if is_read_by_row_groups(info.uri, self._read):
            return Extent(info, 0, 0)  # read separately, from its end
        if shard.number:
            return Extent(info, max(0, shard.start - 1), shard.stop)
        if open_shard.resume and is_seekable(info.uri, self._read):
            return Extent(info, open_shard.resume.member_byte, shard.stop)
        return Extent(info, 0, shard.stop)

    def _shard_blocks(self, number: int, open_shard: OpenShard) -> Iterator[ReadBlock]:
        uri, entries = self._uri(open_shard), 0
        last: Block | None = None
        text_range: TextRange | None = None
        broken = relative = False
        try:
            text_range = self._range(open_shard)
            relative = self._relative(open_shard, text_range)
            for block in self._blocks_of(number, open_shard, text_range):
                last = block
                if open_shard.shard.index in self._skipped:
                    if open_shard.shard.is_whole:
                        break
                    continue  # the next range starts where this one ends
                if text_range is not None and text_range.begin is not None:
                    self.range_begins[number] = (ShardPosition.from_position(text_range.begin), relative)
                entries += block.records
                yield ReadBlock(block, number)
        except _OBJECT_ERRORS as error:
            reached = position_after(last) if last else self._first(open_shard)
            failure = Failure(reached, FailureKind.OBJECT, f"{error}; the rest of {uri} is not read")
            entries += 1
            yield ReadBlock(Block(reached, failures=(failure,)), number, last=True)
            broken = True
        self._add_shard_end(
            ShardEnd(number, entries, relative=relative), open_shard, text_range, broken=broken
        )

    def _first(self, open_shard: OpenShard) -> Position:
        """Return the start of a shard of which nothing was read."""
        if open_shard.resume is not None:
            return open_shard.resume.position(self._uri(open_shard))
        return self._begin(open_shard) or Position(self._uri(open_shard), byte=open_shard.shard.start)

    @staticmethod
    def _relative(open_shard: OpenShard, text_range: TextRange | None) -> bool:
        """Return True if the range's positions count from its own start, because the start is guessed."""
        if open_shard.resume is not None:
            return open_shard.resume.relative
        return bool(open_shard.shard.number) and text_range is not None and text_range.begin is None

    def _add_shard_end(
        self, end: ShardEnd, open_shard: OpenShard, text_range: TextRange | None, *, broken: bool
    ) -> None:
        begin = text_range.begin if text_range is not None else None
        reached = text_range.end if text_range is not None and not broken else None
        if begin is not None and (broken or reached is not None):
            end = replace(end, begin=ShardPosition.from_position(begin))
        if begin is not None and reached is not None:
            end = replace(end, end=ShardPosition.from_position(reached))
            if not end.relative:
                # If this process reads the next range, its start is known.
                self._range_starts[open_shard.shard.index, open_shard.shard.number + 1] = (
                    ShardPosition.from_position(reached)
                )
        self.shard_ends.append(end)

    def _range(self, open_shard: OpenShard) -> TextRange | None:
        """Return the shard as a range of a text, or None if its object is not text."""
        shard, names = open_shard.shard, None
        text = text_format(self._uri(open_shard), self._read)
        if text is None:
            return None
        if shard.number:
            # The object's first bytes, which are outside of this range, tell if it is text.
            is_text, names = self._head(open_shard, text)
            if not is_text:
                return None
        return TextRange(text, shard.start, shard.stop, begin=self._begin(open_shard), column_names=names)

    def _blocks_of(self, number: int, open_shard: OpenShard, text_range: TextRange | None) -> Iterator[Block]:
        uri, resume = self._uri(open_shard), open_shard.resume
        if text_range is not None:
            position = None if resume is None else Position(uri, record=resume.record)
            yield from skip_records(
                text_range.blocks(self._chunks(number, open_shard, text_range), uri), position
            )
            return
        if open_shard.shard.number:
            return
        if is_read_by_row_groups(uri, self._read):
            position = None if resume is None else Position(uri, record=resume.record)
            yield from skip_records(
                parquet_blocks(self._info(open_shard), self._stores, self._read), position
            )
            self.bytes_read += self._info(open_shard).size_bytes or 0
            return
        position = None if resume is None else resume.position(uri)
        start_byte = resume.member_byte if resume and is_seekable(uri, self._read) else 0
        chunks = self._chunks(number, open_shard, None)
        yield from read_object(uri, chunks, self._read, resume=position, start_byte=start_byte)

    def _chunks(self, number: int, open_shard: OpenShard, text_range: TextRange | None) -> Iterator[bytes]:
        """Yield a shard's bytes; for a range, also the bytes after it on demand."""
        past = 0
        extent = self._extent(open_shard)
        if text_range is not None:
            # The previous range may end after this one's start, or even after its end.
            past = text_range.first_byte - extent.start
        for chunk in self._prefetch.chunks(number):
            self.bytes_read += len(chunk)
            if past < len(chunk):
                yield chunk[past:] if past else chunk
            past = max(0, past - len(chunk))
        if extent.stop is not None:
            yield from self._tail(open_shard, extent.stop + past)

    def _tail(self, open_shard: OpenShard, at: int) -> Iterator[bytes]:
        info = self._info(open_shard)
        store, length = self._stores.for_uri(info.uri), _TAIL_BYTES
        while at < (info.size_bytes or 0):
            length = min(length, (info.size_bytes or 0) - at)
            chunk = store.get_range(info.uri, at, length, etag=info.etag)
            if not chunk:
                raise ChangedError(
                    info.uri, f"had {info.size_bytes} bytes when it was listed, but now ends at byte {at}"
                )
            yield chunk
            at += len(chunk)
            length = min(length * 4, _TAIL_BYTES_MAX)

    def _head(self, open_shard: OpenShard, text: TextFormat) -> tuple[bool, tuple[str, ...] | None]:
        """Return whether an object is text, and the column names of its header."""
        index = open_shard.shard.index
        if index not in self._heads:
            whole = OpenShard(open_shard.task, Shard(index), ends_task=False)
            head = next(text.blocks(self._tail(whole, 0), Position(self._uri(open_shard))), None)
            broken = head is not None and any(f.kind is FailureKind.OBJECT for f in head.failures)
            self._heads[index] = (not broken, None if head is None else head.column_names)
        return self._heads[index]


assert PROBE_BYTES <= _TAIL_BYTES, "an object's first tail tells whether it is text"
