"""How many bytes a transform moved from one region to another, counted from its ledger."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.transforms.plan import Shard, TransformPlan
from headrace.transforms.records import TaskRecord


@dataclass(frozen=True, slots=True)
class Crossing:
    """Bytes that went from one region to another: of objects to who read them, or of predictions to where they are kept.

    Objects count with their stored (compressed) size; what was read again after a kill counts once.
    """

    from_region: str
    to_region: str
    nbytes: int


def crossings(
    plan: TransformPlan, records: Sequence[TaskRecord], destination_region: str | None
) -> list[Crossing]:
    """Of all tasks that are done; those of which a region is not known count nothing. Most bytes first."""
    moved = Counter[tuple[str, str]]()
    for record in records:
        here, there = record.region, plan.tasks[record.task].region
        if here is None:
            continue
        if there not in (None, here):
            moved[there, here] += sum(_bytes_of(plan, shard) for shard in plan.tasks[record.task].shards)
        if destination_region not in (None, here):
            moved[here, destination_region] += sum(shard.out_bytes for shard in record.shards)
    return [Crossing(*places, nbytes) for places, nbytes in moved.most_common() if nbytes]


def _bytes_of(plan: TransformPlan, shard: Shard) -> int:
    size = plan.objects[shard.index].info.size_bytes or 0
    return (size if shard.stop is None else shard.stop) - shard.start


def tasks_left(plan: TransformPlan, records: Sequence[TaskRecord]) -> dict[str, int]:
    """How many tasks are not done, by their region; those without one under the empty name."""
    done = {record.task for record in records}
    return dict(Counter(task.region or "" for task in plan.tasks if task.number not in done))
