from headrace.runs.plan import Plan, Shard, Task
from headrace.runs.records import Counts, PlannedObject, ShardRecord, TaskRecord
from headrace.runs.totals import RegionTransfer, task_totals, tasks_left
from headrace.storage.contract import ObjectInfo
from runs.support import make_settings

PLAN = Plan(
    tuple(
        PlannedObject(ObjectInfo(f"memory://in/{region}{size}", size, ""), "o", region)
        for region, size in (("eu", 100), ("us", 1000), (None, 7), ("us", None))
    ),
    (
        Task(0, (Shard(0),), "eu"),
        Task(1, (Shard(1, 0, 2, 0, 400),), "us"),
        Task(2, (Shard(1, 1, 2, 400),), "us"),
        Task(3, (Shard(2),)),
        Task(4, (Shard(3),), "us"),
    ),
)


def record(task: int, region: str | None, out_bytes: int = 0) -> TaskRecord:
    shards = tuple(ShardRecord(s.index, s.number, Counts(), out_bytes) for s in PLAN.tasks[task].shards)
    return TaskRecord(task, "a", shards, region=region)


def region_transfers(records: list[TaskRecord], destination: str | None) -> list[RegionTransfer]:
    return list(task_totals(PLAN, records, make_settings(), destination_region=destination).transfers)


def test_transferred_bytes_count_once():
    """Ranges count their share of the object; objects of unknown size count nothing."""
    records = [record(0, "eu"), record(1, "eu"), record(2, "eu"), record(3, "eu"), record(4, "eu")]
    assert region_transfers(records, None) == [RegionTransfer("us", "eu", 1000)]
    assert region_transfers(records[:2], None) == [RegionTransfer("us", "eu", 400)]
    assert region_transfers(records[2:], None) == [RegionTransfer("us", "eu", 600)]


def test_predictions_transfer_to_the_destination():
    records = [record(0, "eu", 30), record(1, "us", 50), record(3, "us", 5)]
    assert region_transfers(records, "eu") == [RegionTransfer("us", "eu", 55)]
    assert region_transfers([record(0, "us", 30)], "eu") == [
        RegionTransfer("eu", "us", 100),
        RegionTransfer("us", "eu", 30),
    ]


def test_workers_without_region_transfer_nothing():
    assert region_transfers([record(n, None, 9) for n in range(5)], "eu") == []


def test_remaining_tasks_are_counted_by_region():
    assert tasks_left(PLAN, {1}) == {"eu": 1, "us": 2, "": 1}
    assert tasks_left(PLAN, set(range(5))) == {}
