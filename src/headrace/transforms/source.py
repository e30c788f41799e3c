"""Tasks to blocks: reads each shard of some tasks, one after the other, and tells where each began and ended.

Arrives: tasks, and how far earlier work on them came. Leaves: `ReadBlock`s, whose `index` is the shard's place among all
that are read here, and a `ShardEnd` for each. An object that breaks costs the rest of that object.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ChangedError, CorruptError, EmptySourceError, NotFoundError
from headrace.formats.lines import PROBE_BYTES
from headrace.formats.read import (
    ReadOptions,
    after,
    behind,
    by_row_groups,
    read_object,
    seekable,
    text_format,
)
from headrace.formats.text_range import TextFormat, TextRange
from headrace.pipeline.items import ReadBlock
from headrace.pipeline.prefetch import Extent, Prefetch
from headrace.pipeline.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms.parquet_source import parquet_blocks
from headrace.transforms.plan import Shard, Task, TransformPlan
from headrace.transforms.records import Checkpoint, ShardRecord, Spot

_COSTS_ONE_OBJECT = (CorruptError, NotFoundError, ChangedError, EmptySourceError)
_TAIL_BYTES = 64 << 10
_TAIL_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """A shard that is read here.

    `resume` is where its task's checkpoint says to go on within it; `done` are the shards of its task before it that
    an earlier process has done, told with the first that is read here.
    """

    task: int
    shard: Shard
    ends_task: bool
    resume: Checkpoint | None = None
    done: tuple[ShardRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """A shard was read to its end: `entries` of it came, records and failures.

    `begin` and `end` are told of ranges alone: no `end` where the object broke, neither where it turned out to be no text.
    """

    slot: int
    entries: int
    begin: Spot | None = None
    end: Spot | None = None
    relative: bool = False


def slots_of(tasks: Sequence[Task], checkpoints: Mapping[int, Checkpoint]) -> list[Slot]:
    """The shards that are still to be done of these tasks."""
    slots: list[Slot] = []
    for task in tasks:
        checkpoint = checkpoints.get(task.number)
        done = checkpoint.done if checkpoint else ()
        for place, shard in enumerate(task.shards[len(done) :], len(done)):
            first = place == len(done)
            resume = checkpoint if checkpoint and checkpoint.entries and first else None
            ends_task = place == len(task.shards) - 1
            slots.append(Slot(task.number, shard, ends_task, resume, done if first else ()))
    return slots


class TaskSource:
    """Blocks of all slots, in order. One thread iterates; `ended` may be taken from by another, `close` called by any.

    Args:
        stores: Where the objects are.
        plan: What the slots are of.
        slots: What is read.
        read: How objects are read.
        flow: How much is read ahead.
        begins: Where ranges begin, by object and number, as far as the ranges before are done.
    """

    def __init__(
        self,
        stores: Stores,
        plan: TransformPlan,
        slots: Sequence[Slot],
        *,
        read: ReadOptions,
        flow: FlowSettings,
        begins: Mapping[tuple[int, int], Spot],
    ) -> None:
        self._stores = stores
        self._plan = plan
        self._slots = slots
        self._read = read
        self._begins = dict(begins)
        self._heads: dict[int, tuple[bool, tuple[str, ...] | None]] = {}
        self._skipped: set[int] = set()
        self.ended: deque[ShardEnd] = deque()
        """Of every slot that was read to its end, in order."""
        self.begun: dict[int, tuple[Spot, bool]] = {}
        """By slot, where a range began, and whether its numbers are relative to that."""
        self.reading = 0
        """The slot that is being read."""
        self.bytes_read = 0
        self.objects_read = 0
        self._prefetch = Prefetch(stores, [self._extent(slot) for slot in slots], flow)

    def skip(self, index: int) -> None:
        """Nothing more is wanted of object `index`; what was read of it may still come."""
        self._skipped.add(index)

    def close(self) -> None:
        """Stop reading ahead."""
        self._prefetch.close()

    def blocks(self) -> Iterator[ReadBlock]:
        """All blocks. Raises what breaks the whole run: no access, a store that stays away."""
        for number, slot in enumerate(self._slots):
            self.reading = number
            yield from self._slot_blocks(number, slot)
            self.objects_read += slot.shard.ends_object
            if slot.ends_task:
                yield ReadBlock(Block(Position(self._uri(slot))), number, ends_batch=True)

    def _uri(self, slot: Slot) -> str:
        return self._info(slot).uri

    def _info(self, slot: Slot) -> ObjectInfo:
        return self._plan.objects[slot.shard.index].info

    def _begin(self, slot: Slot) -> Position | None:
        """Where a range begins, if that is known."""
        shard, resume = slot.shard, slot.resume
        if resume is not None and resume.begin is not None:
            return resume.begin.position(self._uri(slot))
        spot = self._begins.get((shard.index, shard.number))
        return None if spot is None or not shard.number else spot.position(self._uri(slot))

    def _extent(self, slot: Slot) -> Extent:
        """What is sure to be read; of a range perhaps a little more, at both ends."""
        info, shard = self._info(slot), slot.shard
        if by_row_groups(info.uri, self._read):
            return Extent(info, 0, 0)  # read by itself, from its end
        if shard.number:
            return Extent(info, max(0, shard.start - 1), shard.stop)
        if slot.resume and seekable(info.uri, self._read):
            return Extent(info, slot.resume.member_byte, shard.stop)
        return Extent(info, 0, shard.stop)

    def _slot_blocks(self, number: int, slot: Slot) -> Iterator[ReadBlock]:
        uri, entries = self._uri(slot), 0
        last: Block | None = None
        cut: TextRange | None = None
        broken = relative = False
        try:
            cut = self._range(slot)
            relative = self._relative(slot, cut)
            for block in self._blocks_of(number, slot, cut):
                last = block
                if slot.shard.index in self._skipped:
                    if slot.shard.whole:
                        break
                    continue  # the range after this one begins where this one ends
                if cut is not None and cut.begin is not None:
                    self.begun[number] = (Spot.of(cut.begin), relative)
                entries += block.records
                yield ReadBlock(block, number)
        except _COSTS_ONE_OBJECT as error:
            reached = behind(last) if last else self._first(slot)
            failure = Failure(reached, FailureKind.OBJECT, f"{error}; the rest of {uri} is not read")
            entries += 1
            yield ReadBlock(Block(reached, failures=(failure,)), number, last=True)
            broken = True
        self._told(ShardEnd(number, entries, relative=relative), slot, cut, broken=broken)

    def _first(self, slot: Slot) -> Position:
        """Where a slot begins, as far as that is known before anything of it was read."""
        if slot.resume is not None:
            return slot.resume.position(self._uri(slot))
        return self._begin(slot) or Position(self._uri(slot), byte=slot.shard.start)

    @staticmethod
    def _relative(slot: Slot, cut: TextRange | None) -> bool:
        """Whether a range's numbers count from its own begin: so where that is guessed."""
        if slot.resume is not None:
            return slot.resume.relative
        return bool(slot.shard.number) and cut is not None and cut.begin is None

    def _told(self, end: ShardEnd, slot: Slot, cut: TextRange | None, *, broken: bool) -> None:
        begin = cut.begin if cut is not None else None
        reached = cut.end if cut is not None and not broken else None
        if begin is not None and (broken or reached is not None):
            end = replace(end, begin=Spot.of(begin))
        if begin is not None and reached is not None:
            end = replace(end, end=Spot.of(reached))
            if not end.relative:
                # The next range, when it is read here, need not guess.
                self._begins[slot.shard.index, slot.shard.number + 1] = Spot.of(reached)
        self.ended.append(end)

    def _range(self, slot: Slot) -> TextRange | None:
        """The slot as a range of a text; None where its object is none."""
        shard, names = slot.shard, None
        text = text_format(self._uri(slot), self._read)
        if text is None:
            return None
        if shard.number:
            # The object's first bytes tell whether it is text, and this range has not got them.
            is_text, names = self._head(slot, text)
            if not is_text:
                return None
        return TextRange(text, shard.start, shard.stop, begin=self._begin(slot), column_names=names)

    def _blocks_of(self, number: int, slot: Slot, cut: TextRange | None) -> Iterator[Block]:
        uri, resume = self._uri(slot), slot.resume
        if cut is not None:
            position = None if resume is None else Position(uri, record=resume.record)
            yield from after(cut.blocks(self._chunks(number, slot, cut), uri), position)
            return
        if slot.shard.number:
            return
        if by_row_groups(uri, self._read):
            position = None if resume is None else Position(uri, record=resume.record)
            yield from after(parquet_blocks(self._info(slot), self._stores, self._read), position)
            self.bytes_read += self._info(slot).size_bytes or 0
            return
        position = None if resume is None else resume.position(uri)
        started_at = resume.member_byte if resume and seekable(uri, self._read) else 0
        chunks = self._chunks(number, slot, None)
        yield from read_object(uri, chunks, self._read, resume=position, started_at=started_at)

    def _chunks(self, number: int, slot: Slot, cut: TextRange | None) -> Iterator[bytes]:
        """A slot's bytes; of a range those behind it too, for as long as they are asked for."""
        past = 0
        extent = self._extent(slot)
        if cut is not None:
            # The range before may have ended behind this one's edge, or behind all of it.
            past = cut.first_byte - extent.start
        for chunk in self._prefetch.chunks(number):
            self.bytes_read += len(chunk)
            if past < len(chunk):
                yield chunk[past:] if past else chunk
            past = max(0, past - len(chunk))
        if extent.stop is not None:
            yield from self._tail(slot, extent.stop + past)

    def _tail(self, slot: Slot, at: int) -> Iterator[bytes]:
        info = self._info(slot)
        store, length = self._stores.for_uri(info.uri), _TAIL_BYTES
        while at < (info.size_bytes or 0):
            length = min(length, (info.size_bytes or 0) - at)
            chunk = store.get_range(info.uri, at, length, etag=info.etag)
            if not chunk:
                raise ChangedError(
                    info.uri, f"had {info.size_bytes} bytes when it was listed, and ends at {at} now"
                )
            yield chunk
            at += len(chunk)
            length = min(length * 4, _TAIL_BYTES_MAX)

    def _head(self, slot: Slot, text: TextFormat) -> tuple[bool, tuple[str, ...] | None]:
        """Whether an object is text, and the names of its header."""
        index = slot.shard.index
        if index not in self._heads:
            whole = Slot(slot.task, Shard(index), ends_task=False)
            head = next(text.blocks(self._tail(whole, 0), Position(self._uri(slot))), None)
            broken = head is not None and any(f.kind is FailureKind.OBJECT for f in head.failures)
            self._heads[index] = (not broken, None if head is None else head.column_names)
        return self._heads[index]


assert PROBE_BYTES <= _TAIL_BYTES, "an object's first tail tells whether it is text"
