"""Publish objects of several shards as soon as all their shards are scored.

The assembler does not run tasks. The run reports each finished task to it and asks it for the
ranges to score again.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from headrace.core.errors import NotFoundError
from headrace.runs.assemble import publish_object, shard_offsets
from headrace.runs.ledger import TransformLedger
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import TransformPlan
from headrace.runs.records import ShardPosition, ShardRecord, TaskRecord
from headrace.runs.settings import RunSettings
from headrace.runs.task_sink import suppresses_output
from headrace.storage.draft import PersistedDraft, discard


class Assembler:
    """The objects of several shards that are not yet published. Used by one thread at a time."""

    def __init__(
        self,
        ledger: TransformLedger,
        plan: TransformPlan,
        settings: RunSettings,
        records: Iterable[TaskRecord] = (),
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._settings = settings
        self._attempt = uuid.uuid4().hex[:12]
        self._shard_counts = {s.index: s.count for task in plan.tasks for s in task.shards if not s.is_whole}
        self._task_numbers = {(s.index, s.number): t.number for t in plan.tasks for s in t.shards}
        self._shards: defaultdict[int, dict[int, ShardRecord]] = defaultdict(dict)
        self._assembled = ledger.assembled_objects() if self._shard_counts else set[int]()
        for record in records:
            self._add_shards(record)

    def _add_shards(self, record: TaskRecord) -> None:
        for shard in record.shards:
            if shard.index in self._shard_counts:
                self._shards[shard.index][shard.number] = shard

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
        if index in self._assembled or len(shards) < self._shard_counts[index]:
            return
        records = _leading_shards(shards)
        if shard_offsets(records)[1] is not None:
            return
        records, unused = self._drop_after_break(records)
        failed = any(r.counts.rows_failed or r.counts.objects_broken for r in records)
        suppressed = suppresses_output(self._settings, failed=failed)
        planned = self._plan.objects[index]
        try:
            publish_object(self._ledger, planned, records, suppressed=suppressed, attempt=self._attempt)
        except NotFoundError:
            if index not in self._ledger.assembled_objects():
                raise
        for draft in unused:
            discard(self._ledger.store, draft)
        self._assembled.add(index)

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
            if index not in self._assembled and number is not None:
                found[self._task_numbers[index, number]] = ((index, number), known[number].begin)
        return found

    def unassembled(self) -> list[int]:
        """Return the indices of the objects of several shards that are not yet published."""
        return [index for index in self._shard_counts if index not in self._assembled]


def _leading_shards(shards: dict[int, ShardRecord]) -> list[ShardRecord]:
    """Return the shards up to the first one that is missing."""
    found: list[ShardRecord] = []
    while (shard := shards.get(len(found))) is not None:
        found.append(shard)
    return found
