"""Count the bytes that a transform moved between regions, from its ledger."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.runs.plan import Plan, Shard
from headrace.runs.records import TaskRecord


@dataclass(frozen=True, slots=True)
class RegionTransfer:
    """Bytes that moved from one region to another: objects to workers, or predictions to the destination.

    Objects count with their stored (compressed) size. Objects that were read again count once.
    """

    from_region: str
    to_region: str
    nbytes: int


def region_transfers(
    plan: Plan, records: Sequence[TaskRecord], destination_region: str | None
) -> list[RegionTransfer]:
    """Return the transfers of all finished tasks, the largest first.

    Unknown regions are not counted.
    """
    moved = Counter[tuple[str, str]]()
    for record in records:
        worker_region, data_region = record.region, plan.tasks[record.task].region
        if worker_region is None:
            continue
        if data_region not in (None, worker_region):
            moved[data_region, worker_region] += sum(
                _shard_bytes(plan, shard) for shard in plan.tasks[record.task].shards
            )
        if destination_region not in (None, worker_region):
            moved[worker_region, destination_region] += sum(shard.out_bytes for shard in record.shards)
    return [RegionTransfer(*places, nbytes) for places, nbytes in moved.most_common() if nbytes]


def _shard_bytes(plan: Plan, shard: Shard) -> int:
    size = plan.objects[shard.index].info.size_bytes or 0
    return (size if shard.stop is None else shard.stop) - shard.start


def tasks_left(plan: Plan, records: Sequence[TaskRecord]) -> dict[str, int]:
    """Return the number of unfinished tasks by region; "" stands for no region."""
    done = {record.task for record in records}
    return dict(Counter(task.region or "" for task in plan.tasks if task.number not in done))
