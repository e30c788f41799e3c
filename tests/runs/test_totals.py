"""The totals of a run are the sums of its records, with the results of a retry."""

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.runs.items import Cursor
from headrace.runs.plan import Plan, Shard, Task
from headrace.runs.records import (
    Counts,
    PartRecord,
    PlannedObject,
    RetriedOutput,
    ShardRecord,
    TaskRecord,
    sum_counts,
)
from headrace.runs.settings import StreamSettings
from headrace.runs.totals import (
    RegionTransfer,
    RunTotals,
    TaskSums,
    part_totals,
    replace_retried,
    task_totals,
)
from headrace.storage.contract import ObjectInfo
from runs.support import make_settings

# Two small objects in one task, and a large one in two ranges.
TASKS = (
    Task(0, (Shard(0), Shard(1)), "eu"),
    Task(1, (Shard(2, 0, 2, 0, 50),), "eu"),
    Task(2, (Shard(2, 1, 2, 50, None),), "us"),
)
INFOS = tuple(ObjectInfo(f"memory://in/{name}", size) for name, size in (("a", 10), ("b", 20), ("c", 100)))
PLAN = Plan(tuple(PlannedObject(i, f"{i.uri[-1]}.out", "eu") for i in INFOS), TASKS)
TRANSFORM, STREAM = make_settings(), make_settings(preset=StreamSettings)


def shard(index: int, number: int = 0, *, rows: int, failed: int = 0, broken: int = 0, **more) -> ShardRecord:
    counts = Counts(rows + failed, rows, failed, broken)
    failures = {"model: no": failed} if failed else {}
    if broken:
        failures["object: gone"] = broken
    return ShardRecord(index, number, counts, more.pop("out_bytes", 2 * rows), failures=failures, **more)


def records_of(*shards: ShardRecord) -> list[TaskRecord]:
    """Return the records of the tasks that have these shards."""
    found = []
    for task in TASKS:
        places = {(s.index, s.number) for s in task.shards}
        mine = tuple(s for s in shards if (s.index, s.number) in places)
        if len(mine) == len(places):
            found.append(TaskRecord(task.number, "a", mine, region="eu"))
    return found


SHARDS = (
    shard(0, rows=5),
    shard(1, rows=3, failed=2),
    shard(2, 0, rows=4, out_bytes=10, begin_bytes=2),
    shard(2, 1, rows=1, failed=1, out_bytes=4, begin_bytes=2),
)


def retried(number: int, rows: int, out_bytes: int, left: int = 0) -> dict[int, RetriedOutput]:
    return {number: RetriedOutput(number, rows, out_bytes, {"model: no": left} if left else {})}


# Outputs of objects


def test_results_of_objects_add_up_to_the_totals():
    totals = task_totals(PLAN, records_of(*SHARDS), TRANSFORM)
    assert totals.counts == Counts(16, 13, 3)
    assert [(o.output, o.counts.records_in, o.out_bytes) for o in totals.worst] == [
        ("b.out", 5, 6),
        ("c.out", 6, 12),  # the header of the second range is not in the output
    ]
    assert (totals.objects_with_failures, totals.out_bytes) == (2, 28)
    assert totals.failures == {"model: no": 3}
    assert (totals.objects_done, totals.tasks, totals.parts) == (3, 3, 0)
    assert totals.tasks_left == {}


def test_object_is_done_with_its_last_range():
    totals = task_totals(PLAN, records_of(*SHARDS[:3]), TRANSFORM)
    assert (totals.objects_done, totals.tasks, totals.tasks_left) == (2, 2, {"us": 1})
    # The records of a finished range count, its output does not exist yet.
    assert totals.counts == Counts(14, 12, 2)
    assert totals.out_bytes == 16
    assert [o.uri for o in totals.worst] == ["memory://in/b"]


def test_object_with_failures_is_suppressed_if_the_settings_say_so():
    settings = make_settings(failures={"on_error": "object"})
    totals = task_totals(PLAN, records_of(*SHARDS), settings)
    assert [o.suppressed for o in totals.worst] == [True, True]
    assert (totals.objects_suppressed, totals.rows_suppressed, totals.out_bytes) == (2, 8, 10)
    assert totals.counts == Counts(16, 13, 3)


@for_each("settings", [TRANSFORM, STREAM])
def test_object_broken_in_two_ranges_is_one_broken_object(settings):
    shards = (*SHARDS[:2], shard(2, 0, rows=4, broken=1), shard(2, 1, rows=0, broken=1))
    totals = task_totals(PLAN, records_of(*shards), settings)
    assert totals.counts.objects_broken == 1
    assert totals.counts.records_in == 14


def test_retried_object_has_the_results_of_its_retry():
    totals = task_totals(PLAN, records_of(*SHARDS), TRANSFORM, retried=retried(1, 1, 8, left=1))
    assert totals.counts == Counts(16, 14, 2)
    assert totals.failures == {"model: no": 2}
    assert (totals.worst[0].counts, totals.worst[0].out_bytes) == (Counts(5, 4, 1), 8)
    assert totals.out_bytes == 30


def test_sums_are_of_the_records_in_any_order():
    sums = TaskSums(PLAN, TRANSFORM)
    for one in reversed(records_of(*SHARDS)):
        before = sums.copy()
        sums.add(one)
        assert before.totals().tasks == sums.totals().tasks - 1
    assert sums.totals() == task_totals(PLAN, records_of(*SHARDS), TRANSFORM)


def test_report_names_the_objects_with_the_most_failures():
    objects = tuple(PlannedObject(ObjectInfo(f"memory://in/{n}", 1), f"{n}.out") for n in range(50))
    plan = Plan(objects, tuple(Task(n, (Shard(n),)) for n in range(50)))
    records = [TaskRecord(n, "a", (shard(n, rows=0, failed=n),)) for n in range(50)]
    totals = task_totals(plan, records, TRANSFORM)
    assert [int(o.output.removesuffix(".out")) for o in totals.worst] == list(range(49, 29, -1))
    assert (totals.objects_with_failures, totals.counts) == (49, Counts(1225, 0, 1225))


# Parts of tasks


def test_tasks_of_a_stream_are_parts():
    totals = task_totals(PLAN, records_of(*SHARDS), STREAM)
    assert totals.counts == Counts(16, 13, 3)
    # Each part has a header of its own.
    assert totals.out_bytes == 10 + 6 + 10 + 4
    assert totals.failures == {"model: no": 3}
    assert (totals.objects_done, totals.tasks, totals.parts) == (3, 3, 3)
    assert (totals.worst, totals.objects_with_failures) == ((), 0)


def test_task_without_records_is_no_part():
    shards = (shard(0, rows=0), shard(1, rows=0), shard(2, 0, rows=1), shard(2, 1, rows=0, failed=1))
    totals = task_totals(PLAN, records_of(*shards), STREAM)
    assert (totals.parts, totals.tasks) == (2, 3)


def test_object_of_a_stream_is_done_with_its_last_range():
    totals = task_totals(PLAN, records_of(*SHARDS[:3]), STREAM)
    assert (totals.objects_done, totals.parts, totals.tasks_left) == (2, 2, {"us": 1})


def test_retried_part_has_the_results_of_its_retry():
    """The number of a part is that of its task."""
    totals = task_totals(PLAN, records_of(*SHARDS), STREAM, retried=retried(2, 1, 6))
    assert totals.counts == Counts(16, 14, 2)
    assert totals.out_bytes == 10 + 6 + 10 + 6
    assert totals.failures == {"model: no": 2}
    assert totals.parts == 3


@for_each("settings", [TRANSFORM, STREAM])
def test_transfers_between_regions_are_part_of_the_totals(settings):
    records = records_of(*SHARDS[:3])
    totals = task_totals(PLAN, records, settings, destination_region="us")
    written = sum(s.out_bytes for s in SHARDS[:3])
    assert totals.transfers == (RegionTransfer("eu", "us", written),)


# Parts in the order of the source


def part(number: int, *, rows: int, failed: int = 0) -> PartRecord:
    counts = Counts(rows + failed, rows, failed)
    return PartRecord(
        part=number,
        checkpoint=0,
        cursor=Cursor(number),
        total=Counts(),
        in_part=counts,
        attempt="a",
        out_bytes=2 * rows,
        failures={"model: no": failed} if failed else {},
    )


def test_parts_add_up():
    totals = part_totals([part(0, rows=5), part(1, rows=3, failed=2), part(2, rows=0, failed=1)])
    assert totals == RunTotals(Counts(11, 8, 3), out_bytes=16, failures={"model: no": 3}, parts=3)
    assert part_totals([]) == RunTotals()


PARTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6).map(
    lambda sizes: [part(n, rows=rows, failed=failed) for n, (rows, failed) in enumerate(sizes)]
)


@given(PARTS, st.integers(0, 6))
def test_totals_of_two_series_of_parts_add_up(parts, cut):
    """A run reads only the new parts after each append."""
    together, before = part_totals(parts), part_totals(parts[:cut])
    found = before.plus(part_totals(parts[cut:]))
    assert (found.counts, found.out_bytes) == (together.counts, together.out_bytes)
    assert found.failures == together.failures


@given(PARTS, st.data())
def test_results_of_a_retry_replace_those_of_their_parts(parts, data):
    results: dict[int, RetriedOutput] = {}
    for one in parts:
        if one.in_part.rows_failed and data.draw(st.booleans()):
            gained = data.draw(st.integers(0, one.in_part.rows_failed))
            out_bytes, left = 2 * (one.in_part.rows_out + gained), one.in_part.rows_failed - gained
            results |= retried(one.part, gained, out_bytes, left)
    originals = [p for p in parts if p.part in results]
    totals = replace_retried(part_totals(parts), originals, results)
    recovered = sum(r.rows for r in results.values())
    before = sum_counts(p.in_part for p in parts)
    assert totals.counts == before.plus(Counts(0, recovered, -recovered))
    assert totals.out_bytes == 2 * totals.counts.rows_out
    assert sum(totals.failures.values()) == totals.counts.rows_failed
    assert all(totals.failures.values())
    direct = part_totals(parts, results)
    assert direct == totals
