"""Which objects can be put together: keeps what is done of each, and publishes the ones that are whole.

Decides nothing about how tasks are done; is told of each, and says which ranges must be done again.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from headrace.core.errors import NotFoundError
from headrace.pipeline.ledger import Counts
from headrace.storage.draft import Kept, discard
from headrace.transforms.assemble import bases, publish_object
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import TransformPlan
from headrace.transforms.records import ShardRecord, Spot, TaskRecord
from headrace.transforms.settings import TransformSettings
from headrace.transforms.sink import withholds


class Assembler:
    """Objects of several shards, on their way to being whole. One thread at a time."""

    def __init__(
        self,
        ledger: TransformLedger,
        plan: TransformPlan,
        settings: TransformSettings,
        records: Iterable[TaskRecord] = (),
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._settings = settings
        self._attempt = uuid.uuid4().hex[:12]
        self._wanted = {s.index: s.of for task in plan.tasks for s in task.shards if not s.whole}
        self._task_of = {(s.index, s.number): t.number for t in plan.tasks for s in t.shards}
        self._shards: defaultdict[int, dict[int, ShardRecord]] = defaultdict(dict)
        self._assembled = ledger.assembled() if self._wanted else set[int]()
        for record in records:
            self._keep(record)

    def _keep(self, record: TaskRecord) -> None:
        for shard in record.shards:
            if shard.index in self._wanted:
                self._shards[shard.index][shard.number] = shard

    def begins(self) -> dict[tuple[int, int], Spot]:
        """Where ranges begin, by object and number, as far as all ranges before are done and right."""
        found: dict[tuple[int, int], Spot] = {}
        for index, shards in self._shards.items():
            known, _ = bases(_from_first(shards))
            for number, base in enumerate(known):
                if base.known:
                    found[index, number] = base.begin
        return found

    def done(self, record: TaskRecord) -> None:
        """A task is done: publish what that makes whole."""
        self._keep(record)
        for index in {shard.index for shard in record.shards if shard.index in self._wanted}:
            self._publish(index)

    def publish_all(self) -> None:
        """Publish everything that is whole; what an earlier process left undone."""
        for index in list(self._shards):
            self._publish(index)

    def _publish(self, index: int) -> None:
        shards = self._shards[index]
        if index in self._assembled or len(shards) < self._wanted[index]:
            return
        records = _from_first(shards)
        if bases(records)[1] is not None:
            return
        records, left = self._cut_off(records)
        failed = any(r.counts.rows_failed or r.counts.objects_broken for r in records)
        withheld = withholds(self._settings, failed=failed)
        planned = self._plan.objects[index]
        try:
            publish_object(self._ledger, planned, records, withheld=withheld, attempt=self._attempt)
        except NotFoundError:
            if index not in self._ledger.assembled():
                raise
        for kept in left:
            discard(self._ledger.store, kept)
        self._assembled.add(index)

    def _cut_off(self, records: list[ShardRecord]) -> tuple[list[ShardRecord], list[Kept]]:
        """The shards of an object that ends where it broke, and the drafts of what is behind that.

        Ranges behind may have been read before it broke, or not; either way nothing of them is counted or written.
        """
        broken = next((r.number for r in records if r.counts.objects_broken), len(records))
        left: list[Kept] = []
        for record in records[broken + 1 :]:
            number = self._task_of[record.index, record.number]
            nothing = ShardRecord(record.index, record.number, Counts(), 0)
            task = self._ledger.task(number)
            if task is not None and record != nothing:
                self._ledger.replace_task(replace(task, shards=(nothing,)))
            self._shards[record.index][record.number] = nothing
            left += [part.kept for part in (record.out, record.failed) if part is not None]
        return _from_first(self._shards[records[0].index]), left

    def wrong(self) -> dict[int, tuple[tuple[int, int], Spot]]:
        """The tasks to do again, by number: which range each is, and where it really begins.

        One of each object at most: only when that is right can the next be known.
        """
        found: dict[int, tuple[tuple[int, int], Spot]] = {}
        for index, shards in self._shards.items():
            known, number = bases(_from_first(shards))
            if index not in self._assembled and number is not None:
                found[self._task_of[index, number]] = ((index, number), known[number].begin)
        return found

    def missing(self) -> list[int]:
        """Objects of several shards that are not put together yet."""
        return [index for index in self._wanted if index not in self._assembled]


def _from_first(shards: dict[int, ShardRecord]) -> list[ShardRecord]:
    """The shards from the first on, up to the first that is not done."""
    found: list[ShardRecord] = []
    while (shard := shards.get(len(found))) is not None:
        found.append(shard)
    return found
