"""Read the objects and ranges of a run into blocks, one after another, with the start and end of each.

Input: open shards, with the positions to resume from. Output: `ReadBlock`s, and a `ShardEnd` for each
shard. A broken object (truncated, missing, changed) costs the rest of that object, as one failure
of kind OBJECT.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import (
    ChangedError,
    CorruptError,
    DataError,
    EmptySourceError,
    NotFoundError,
)
from headrace.formats.contract import ReadAt
from headrace.formats.lines import PROBE_BYTES
from headrace.formats.read import (
    format_name,
    is_random_access,
    is_seekable,
    is_zip,
    position_after,
    read_object,
    read_zip,
    skip_records,
    text_format,
    unreadable_reason,
)
from headrace.formats.read_options import ReadOptions
from headrace.formats.text_range import TextFormat, TextRange
from headrace.runs.items import BlockSource, Cursor, ReadBlock
from headrace.runs.lazy_sequence import MappedSequence
from headrace.runs.plan import OpenShard, Shard, ShardEnd
from headrace.runs.prefetch import Extent, Prefetch, is_local
from headrace.runs.projection import TableColumns
from headrace.runs.records import PlannedObject, ReadBound, ShardPosition
from headrace.runs.settings import RunSettings
from headrace.runs.subset import RecordSampler
from headrace.runs.table_source import object_blocks, ranges_of, read_ahead, table_blocks, table_head
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_OBJECT_ERRORS = (CorruptError, NotFoundError, ChangedError, EmptySourceError)
_TAIL_BYTES = 64 << 10
_TAIL_BYTES_MAX = 4 << 20


class ShardSource(BlockSource):
    """A source of the blocks of all open shards, in order.

    One thread iterates. Another may take from `shard_ends`; any thread may call `close`.

    Args:
        stores: The object stores.
        objects: The objects of the plan.
        open_shards: The shards to read.
        settings: The options of reading, and the limits of reading ahead.
        range_starts: The known starts of ranges, by object index and range number.
        columns: The columns to read of the tables of some formats; of other formats, all are read.
        first: The index of the first open shard. A block has the index of its shard.
        stop: The position at which to stop, if not at the end.
        empty_raises: Raise EmptySourceError for an empty archive, instead of reporting it as broken.
    """

    def __init__(
        self,
        stores: Stores,
        objects: Sequence[PlannedObject],
        open_shards: Sequence[OpenShard],
        settings: RunSettings,
        *,
        range_starts: Mapping[tuple[int, int], ShardPosition] | None = None,
        columns: TableColumns | None = None,
        first: int = 0,
        stop: Cursor | None = None,
        empty_raises: bool = False,
    ) -> None:
        if stop is not None:
            open_shards = open_shards[: stop.index - first + (stop.position is not None)]
        self._stores = stores
        self._objects = objects
        self._open_shards = open_shards
        self._read = settings.read
        self._subset = settings.subset
        self._columns = columns or {}
        self._ahead_bytes_max = settings.flow.prefetch_bytes_max
        self._range_starts = dict(range_starts or {})
        self._first = first
        self._stop = stop
        self._empty_raises = empty_raises
        self._heads: dict[int, tuple[bool, tuple[str, ...] | None]] = {}
        self._skipped: set[int] = set()
        self.shard_ends: deque[ShardEnd] = deque()
        """The ends of shards of tasks that are completely read, in order."""
        self.range_begins: dict[int, tuple[ShardPosition, bool]] = {}
        """The start of each range by open shard, and whether its positions are relative."""
        self._reading = 0
        self.bytes_read = 0
        self.objects_read = 0
        self._prefetch = Prefetch(stores, MappedSequence(open_shards, self._extent), settings.flow)

    @property
    def reading(self) -> str:
        """The URI of the object that is being read, or an empty string."""
        return self._info(self._open_shards[self._reading]).uri if self._open_shards else ""

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
            self._reading = number
            yield from self._shard_blocks(number, open_shard)
            self.objects_read += open_shard.shard.ends_object
            if open_shard.ends_task:
                end = Block(Position(self._info(open_shard).uri))
                yield ReadBlock(end, self._first + number, ends_batch=True)

    def _info(self, open_shard: OpenShard) -> ObjectInfo:
        return self._objects[open_shard.shard.index].info

    def _begin(self, open_shard: OpenShard) -> Position | None:
        """Return the start of a range, if it is known."""
        shard, resume = open_shard.shard, open_shard.resume
        if resume is not None and resume.begin is not None:
            return resume.begin.position(self._info(open_shard).uri)
        position = self._range_starts.get((shard.index, shard.number))
        return None if position is None or not shard.number else position.position(self._info(open_shard).uri)

    def _extent(self, open_shard: OpenShard) -> Extent:
        """Return the bytes that are certain to be read; a range may need a little more at both ends."""
        info, shard = self._info(open_shard), open_shard.shard
        if is_random_access(info.uri, self._read) or is_zip(info.uri, self._read):
            return Extent(info, 0, 0)  # read separately, from its end
        if shard.number:
            return Extent(info, max(0, shard.start - 1), shard.stop)
        if open_shard.resume and is_seekable(info.uri, self._read):
            return Extent(info, open_shard.resume.member_byte, shard.stop)
        return Extent(info, 0, shard.stop)

    def _shard_blocks(self, number: int, open_shard: OpenShard) -> Iterator[ReadBlock]:
        uri, entries, index = self._info(open_shard).uri, 0, self._first + number
        last: Block | None = None
        text_range: TextRange | None = None
        broken = relative = False
        if not is_random_access(uri, self._read) and (why := unreadable_reason(uri, self._read)):
            # An event notification or a watched source may name any object.
            yield _failed_block(index, Position(uri), why)
            self._add_shard_end(ShardEnd(index, 1), open_shard, None, broken=True)
            return
        try:
            text_range = self._range(open_shard)
            relative = self._relative(open_shard, text_range)
            sampler = self._sampler(uri)
            for read in self._bounded_blocks(number, open_shard, text_range):
                last = read
                if open_shard.shard.index in self._skipped:
                    if open_shard.shard.is_whole:
                        break
                    continue  # the next range starts where this one ends
                if text_range is not None and text_range.begin is not None:
                    self.range_begins[index] = (ShardPosition.from_position(text_range.begin), relative)
                block = read if sampler is None else sampler.sample(read)
                entries += block.records
                yield ReadBlock(block, index)
        except _OBJECT_ERRORS as error:
            if isinstance(error, EmptySourceError) and self._empty_raises:
                raise
            reached = position_after(last) if last else self._begin_of(open_shard)
            entries += 1
            yield _failed_block(index, reached, f"{error}; the rest of {uri} is not read")
            broken = True
        self._add_shard_end(
            ShardEnd(index, entries, relative=relative), open_shard, text_range, broken=broken
        )

    def _sampler(self, uri: str) -> RecordSampler | None:
        """Return the chooser of an object's records, or None to read all of them."""
        subset = self._subset
        if subset.sample is None:
            return None
        by_byte = text_format(uri, self._read) is not None
        return RecordSampler(subset.sample, subset.sample_seed, by_byte=by_byte)

    def _bounded_blocks(
        self, number: int, open_shard: OpenShard, text_range: TextRange | None
    ) -> Iterator[Block]:
        """Yield the blocks of a shard up to the limit of the run and the stop of the source."""
        blocks = self._blocks_of(number, open_shard, text_range)
        bound, stop = self._objects[open_shard.shard.index].bound, self._stop
        if bound is not None:
            blocks = _stop_at(blocks, bound)
        if stop is not None and stop.position is not None and stop.index == self._first + number:
            blocks = _stop_at(blocks, ReadBound(stop.position.record, stop.position.member_byte))
        return blocks

    def _begin_of(self, open_shard: OpenShard) -> Position:
        """Return the start of a shard of which nothing was read."""
        if open_shard.resume is not None:
            return open_shard.resume.position(self._info(open_shard).uri)
        return self._begin(open_shard) or Position(self._info(open_shard).uri, byte=open_shard.shard.start)

    @staticmethod
    def _relative(open_shard: OpenShard, text_range: TextRange | None) -> bool:
        """Return True if the range's positions count from its own start, because the start is guessed."""
        if open_shard.resume is not None:
            return open_shard.resume.relative
        return bool(open_shard.shard.number) and text_range is not None and text_range.begin is None

    def _add_shard_end(
        self, end: ShardEnd, open_shard: OpenShard, text_range: TextRange | None, *, broken: bool
    ) -> None:
        if open_shard.task < 0:
            return
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
        """Return the shard as a range of a text, or None for a whole object, or one that is not text."""
        shard, names = open_shard.shard, None
        text = None if shard.is_whole else text_format(self._info(open_shard).uri, self._read)
        if text is None:
            return None
        if shard.number:
            # The object's first bytes, which are outside of this range, tell if it is text.
            is_text, names = self._head(open_shard, text)
            if not is_text:
                return None
        return TextRange(text, shard.start, shard.stop, begin=self._begin(open_shard), column_names=names)

    def _blocks_of(self, number: int, open_shard: OpenShard, text_range: TextRange | None) -> Iterator[Block]:
        uri, resume = self._info(open_shard).uri, open_shard.resume
        if text_range is not None:
            position = None if resume is None else Position(uri, record=resume.record)
            yield from skip_records(
                text_range.blocks(self._chunks(number, open_shard, text_range), uri), position
            )
            return
        columns = self._columns.get(format_name(uri, self._read) or "")
        if is_random_access(uri, self._read):
            yield from self._table_blocks(open_shard, columns)
            return
        if open_shard.shard.number:
            return
        position = None if resume is None else resume.position(uri)
        if is_zip(uri, self._read):
            info = self._info(open_shard)
            read_at = ranges_of(info, self._stores)
            yield from read_zip(uri, self._counted(read_at), info.size_bytes, self._read, resume=position)
            return
        start_byte = resume.member_byte if resume and is_seekable(uri, self._read) else 0
        chunks = self._chunks(number, open_shard, None)
        yield from read_object(
            uri, chunks, self._read, resume=position, start_byte=start_byte, columns=columns
        )

    def _table_blocks(self, open_shard: OpenShard, columns: Sequence[str] | None) -> Iterator[Block]:
        """Yield the blocks of a table of random access, or of the row groups of one range."""
        info, shard = self._info(open_shard), open_shard.shard
        record = open_shard.resume.record if open_shard.resume is not None else 0
        blocks = table_blocks(
            info,
            self._stores,
            self._read,
            columns=columns,
            start=shard.start,
            stop=shard.stop,
            first_record=record,
        )
        if not is_local(info):
            blocks = read_ahead(blocks, self._ahead_bytes_max)
        yield from skip_records(blocks, Position(info.uri, record=record))
        self.bytes_read += (info.size_bytes or 0 if shard.stop is None else shard.stop) - shard.start

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

    def _counted(self, read_at: ReadAt) -> ReadAt:
        """Return a function that reads ranges of an object, and counts their bytes."""

        def counted(start: int, length: int) -> bytes:
            data = read_at(start, length)
            self.bytes_read += len(data)
            return data

        return counted

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
            head = next(text.blocks(self._tail(whole, 0), Position(self._info(open_shard).uri)), None)
            broken = head is not None and any(f.kind is FailureKind.OBJECT for f in head.failures)
            self._heads[index] = (not broken, None if head is None else head.column_names)
        return self._heads[index]


def _stop_at(blocks: Iterator[Block], stop: ReadBound) -> Iterator[Block]:
    """Yield the blocks of an object before the record at `stop`."""
    for block in blocks:
        first = block.first
        if first.member_byte > stop.member_byte:
            return
        if first.member_byte == stop.member_byte and first.record + block.records >= stop.record:
            if first.record < stop.record:
                yield block.slice(0, stop.record - first.record)
            return
        yield block


def _failed_block(index: int, reached: Position, why: str) -> ReadBlock:
    """Return an empty block whose failure says that the object is unreadable from `reached` on."""
    failure = Failure(reached, FailureKind.OBJECT, why)
    return ReadBlock(Block(reached, failures=(failure,)), index, last=True)


assert PROBE_BYTES <= _TAIL_BYTES, "an object's first tail tells whether it is text"


def read_head(info: ObjectInfo, stores: Stores, read: ReadOptions) -> Block:
    """Return an empty block at the start of an object, with the columns of its records, if known.

    CSV has the names of the columns, Parquet and ORC a table without rows. An object that cannot be read has
    neither.
    """
    head = Block(Position(info.uri))
    if is_random_access(info.uri, read):
        try:
            return table_head(info, stores, read)
        except (*_OBJECT_ERRORS, DataError):
            return head
    if not read.has_column_names:
        return head
    chunks = stores.for_uri(info.uri).stream(info.uri, etag=info.etag)
    try:
        first = next(object_blocks(info, stores, read, chunks), head)
    except (*_OBJECT_ERRORS, DataError):
        return head
    return Block(first.first, column_names=None if first.table is not None else first.column_names)
