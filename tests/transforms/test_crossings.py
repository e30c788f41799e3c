from headrace.pipeline.ledger import Counts
from headrace.storage.contract import ObjectInfo
from headrace.transforms.crossings import Crossing, crossings, tasks_left
from headrace.transforms.plan import PlannedObject, Shard, Task, TransformPlan
from headrace.transforms.records import ShardRecord, TaskRecord

PLAN = TransformPlan(
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


def test_each_byte_that_crosses_counts_once():
    """Ranges count what they are of their object; what has no size counts nothing."""
    records = [record(0, "eu"), record(1, "eu"), record(2, "eu"), record(3, "eu"), record(4, "eu")]
    assert crossings(PLAN, records, None) == [Crossing("us", "eu", 1000)]
    assert crossings(PLAN, records[:2], None) == [Crossing("us", "eu", 400)]
    assert crossings(PLAN, records[2:], None) == [Crossing("us", "eu", 600)]


def test_predictions_cross_to_where_they_are_kept():
    records = [record(0, "eu", 30), record(1, "us", 50), record(3, "us", 5)]
    assert crossings(PLAN, records, "eu") == [Crossing("us", "eu", 55)]
    assert crossings(PLAN, [record(0, "us", 30)], "eu") == [
        Crossing("eu", "us", 100),
        Crossing("us", "eu", 30),
    ]


def test_workers_that_do_not_say_where_they_are_cross_nothing():
    assert crossings(PLAN, [record(n, None, 9) for n in range(5)], "eu") == []


def test_what_is_left_is_told_by_region():
    assert tasks_left(PLAN, [record(1, "us")]) == {"eu": 1, "us": 2, "": 1}
    assert tasks_left(PLAN, [record(n, None) for n in range(5)]) == {}
