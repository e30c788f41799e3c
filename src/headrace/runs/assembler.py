"""Publish the outputs of objects that several shards scored, as soon as all their shards are scored.

Such an object has one output, joined from those of its shards, or one part for each shard. The
positions of its failed records are made absolute. The assembler does not run tasks. The run reports
each finished task to it and asks it for the ranges to score again, because their starts were
guessed wrong.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.core.block import Failure
from headrace.core.errors import NotFoundError
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.runs.ledger import Ledger
from headrace.runs.output import suppresses_output
from headrace.runs.parts import part_names
from headrace.runs.plan import Plan
from headrace.runs.records import Counts, ShardPosition, ShardRecord, TaskRecord, repeated_bytes, sum_counts
from headrace.runs.settings import RunSettings
from headrace.storage.contract import Store
from headrace.storage.draft import PersistedDraft, assemble, discard, open_draft, read_range


@dataclass(frozen=True, slots=True)
class ShardOffset:
    """The start of a shard in its object, and the output of the shards before it.

    `begin` is valid only if `is_known`: each shard before this one has a known end.
    """

    begin: ShardPosition
    rows: int = 0
    out_bytes: int = 0
    is_known: bool = True


def shard_offsets(records: Sequence[ShardRecord]) -> tuple[list[ShardOffset], int | None]:
    """Return the offset of each shard and of the object's end, and the first misplaced shard's number.

    The list ends before the first misplaced shard. The number is None if every start is right. A
    shard without bounds, because its object is broken or not text, says nothing about the shards
    after it; those are accepted as they are.
    """
    found = [ShardOffset(ShardPosition(0, 0, 1))]
    for record, repeated in zip(records, repeated_bytes(records), strict=True):
        offset = found[-1]
        if (
            offset.is_known
            and record.number
            and record.begin is not None
            and record.begin.byte != offset.begin.byte
        ):
            return found, record.number
        is_known = offset.is_known and record.end is not None
        at = _absolute_position(record, offset, record.end) if record.end is not None else offset.begin
        out_bytes = offset.out_bytes + record.out_bytes - repeated
        found.append(ShardOffset(at, offset.rows + record.counts.rows_out, out_bytes, is_known))
    return found, None


def _absolute_position(record: ShardRecord, offset: ShardOffset, position: ShardPosition) -> ShardPosition:
    """Return a position that counts from the shard's start as a position in the object."""
    if not record.relative:
        return position
    return ShardPosition(
        position.byte, position.record + offset.begin.record, position.line + offset.begin.line - 1
    )


class Assembler:
    """The objects of several shards that are not yet published. Used by one thread at a time."""

    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        settings: RunSettings,
        records: Iterable[TaskRecord] = (),
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._settings = settings
        self._attempt = uuid.uuid4().hex[:12]
        ranges = [(task.number, shard) for task in plan.range_tasks() for shard in task.shards]
        self._shard_counts = {shard.index: shard.count for _, shard in ranges}
        self._task_numbers = {(shard.index, shard.number): number for number, shard in ranges}
        self._shards: defaultdict[int, dict[int, ShardRecord]] = defaultdict(dict)
        self._assembled = ledger.assembled() if self._shard_counts else set[int]()
        """The numbers of the published outputs."""
        for record in records:
            self._add_shards(record)

    def _add_shards(self, record: TaskRecord) -> None:
        for shard in record.shards:
            if shard.index in self._shard_counts:
                self._shards[shard.index][shard.number] = shard

    @property
    def range_tasks(self) -> frozenset[int]:
        """The numbers of the tasks that are ranges."""
        return frozenset(self._task_numbers.values())

    def range_starts(self) -> dict[tuple[int, int], ShardPosition]:
        """Return the known starts of ranges, by object index and range number.

        A start is known if all ranges before it are scored and placed correctly.
        """
        found: dict[tuple[int, int], ShardPosition] = {}
        for index, shards in self._shards.items():
            known, _ = shard_offsets(_leading_shards(shards))
            for number, base in enumerate(known):
                if base.is_known:
                    found[index, number] = base.begin
        return found

    def add_task(self, record: TaskRecord) -> None:
        """Record a finished task, and publish the objects that it completes."""
        self._add_shards(record)
        for index in {shard.index for shard in record.shards if shard.index in self._shard_counts}:
            self._publish(index)

    def publish_all(self) -> None:
        """Publish every complete object that an earlier process left unpublished."""
        for index in list(self._shards):
            self._publish(index)

    def _publish(self, index: int) -> None:
        shards = self._shards[index]
        if self._is_assembled(index) or len(shards) < self._shard_counts[index]:
            return
        records = _leading_shards(shards)
        if shard_offsets(records)[1] is not None:
            return
        records, unused = self._drop_after_break(records)
        for output in self._outputs(index, records):
            if output.number in self._assembled:
                continue
            try:
                output.publish(self._ledger, self._attempt)
            except NotFoundError:
                # Another process may have published the output and removed the drafts.
                if output.number not in self._ledger.assembled():
                    raise
            self._assembled.add(output.number)
        for draft in unused:
            discard(self._ledger.store, draft)

    def _outputs(self, index: int, records: Sequence[ShardRecord]) -> Iterator["_ShardsOutput"]:
        """Yield the outputs of an object: one of all its shards, or a part of each."""
        offsets = shard_offsets(records)[0]
        if self._settings.per_object:
            planned = self._plan.objects[index]
            counts = sum_counts(record.counts for record in records)
            suppressed = suppresses_output(self._settings, failed=counts.has_failures)
            names = (planned.output_name(counts), planned.failed)
            yield _ShardsOutput(index, names, tuple(records), tuple(offsets), suppressed=suppressed)
            return
        for record, offset in zip(records, offsets, strict=False):
            task = self._task_numbers[index, record.number]
            in_part = replace(offset, rows=0, out_bytes=0)
            names = part_names(task, self._settings.output.format)
            yield _ShardsOutput(task, names, (record,), (in_part,), is_part=True)

    def _is_assembled(self, index: int) -> bool:
        return self._output_numbers(index) <= self._assembled

    def _output_numbers(self, index: int) -> set[int]:
        """Return the numbers of the outputs of an object of several shards."""
        if self._settings.per_object:
            return {index}
        return {self._task_numbers[index, number] for number in range(self._shard_counts[index])}

    def assembled_tasks(self) -> set[int]:
        """Return the tasks whose ranges are in a published output."""
        if not self._settings.per_object:
            return set(self._assembled)
        return {task for (index, _), task in self._task_numbers.items() if index in self._assembled}

    def _drop_after_break(self, records: list[ShardRecord]) -> tuple[list[ShardRecord], list[PersistedDraft]]:
        """Return the shards of an object up to its break, and the drafts of the shards after it.

        Ranges after the break may have been read before the object broke. Their records are neither
        counted nor written.
        """
        broken = next((r.number for r in records if r.counts.objects_broken), len(records))
        unused: list[PersistedDraft] = []
        for record in records[broken + 1 :]:
            number = self._task_numbers[record.index, record.number]
            nothing = ShardRecord(record.index, record.number, Counts(), 0)
            task = self._ledger.task(number)
            if task is not None and record != nothing:
                self._ledger.replace_task(replace(task, shards=(nothing,)))
            self._shards[record.index][record.number] = nothing
            unused += [part.kept for part in (record.out, record.failed) if part is not None]
        return _leading_shards(self._shards[records[0].index]), unused

    def ranges_to_redo(self) -> dict[int, tuple[tuple[int, int], ShardPosition]]:
        """Return the misplaced ranges by task number: each range's key and its true start.

        There is at most one per object, because the next start is known only when this one is
        right.
        """
        found: dict[int, tuple[tuple[int, int], ShardPosition]] = {}
        for index, shards in self._shards.items():
            known, number = shard_offsets(_leading_shards(shards))
            if number is not None and not self._is_assembled(index):
                found[self._task_numbers[index, number]] = ((index, number), known[number].begin)
        return found

    def unassembled(self) -> list[int]:
        """Return the indices of the objects of several shards that are not yet published."""
        return [index for index in self._shard_counts if not self._is_assembled(index)]


def _leading_shards(shards: dict[int, ShardRecord]) -> list[ShardRecord]:
    """Return the shards up to the first one that is missing."""
    found: list[ShardRecord] = []
    while (shard := shards.get(len(found))) is not None:
        found.append(shard)
    return found


@dataclass(frozen=True, slots=True)
class _ShardsOutput:
    """An output of some shards of one object, and their offsets in the object and in the output."""

    number: int
    names: tuple[str, str]
    records: tuple[ShardRecord, ...]
    offsets: tuple[ShardOffset, ...]
    suppressed: bool = False
    is_part: bool = False
    """True if the output may be missing because no record was predicted."""

    def publish(self, ledger: Ledger, attempt: str) -> None:
        """Publish the output, unless it is suppressed, and the failed records.

        `attempt` is part of the drafts' names. Raises NotFoundError if another process has
        published the output and removed the drafts of its shards.
        """
        store, records = ledger.store, self.records
        uri, failed_uri = (ledger.destination + name for name in self.names)
        draft_uri = ledger.draft_uri(f"output-{self.number}-{attempt}")
        pairs = zip(records, repeated_bytes(records), strict=True)
        ranges = [replace(r.out, start=r.out.start + repeated) for r, repeated in pairs if r.out is not None]
        if self.suppressed:
            store.delete(uri)
        elif ranges or not self.is_part:
            # No worker writes after the last range. After another range, a lost worker may still
            # write.
            assemble(store, ranges, f"{draft_uri}.out", uri, ended=records[-1].out is not None)
        if any(record.failed is not None for record in records):
            self._publish_failed(store, f"{draft_uri}.failed", failed_uri)
        ledger.commit_output(self.number)
        for record in records:
            for draft in (record.out, record.failed):
                if draft is not None:
                    discard(store, draft.kept)

    def _publish_failed(self, store: Store, draft_uri: str, uri: str) -> None:
        draft = open_draft(store, draft_uri)
        for record, repeated, offset in zip(
            self.records, repeated_bytes(self.records), self.offsets, strict=False
        ):
            if record.failed is None:
                continue
            for failed in read_failed_records(_lines(read_range(store, record.failed))):
                draft.write(failed_record_line(_absolute_record(failed, record, repeated, offset)))
        draft.publish(uri)


def _absolute_record(
    failed: FailedRecord, record: ShardRecord, repeated: int, offset: ShardOffset
) -> FailedRecord:
    failure = _absolute_failure(failed.failure, offset) if record.relative else failed.failure
    # Records that fail before the first prediction have positions before the shard's header.
    byte = max(0, failed.output_byte - repeated)
    return FailedRecord(failure, failed.output_row + offset.rows, byte + offset.out_bytes)


def _absolute_failure(failure: Failure, offset: ShardOffset) -> Failure:
    at = failure.position
    position = replace(at, record=at.record + offset.begin.record, line=at.line + offset.begin.line - 1)
    return replace(failure, position=position)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that arrives in chunks."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
