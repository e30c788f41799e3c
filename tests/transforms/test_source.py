import gzip

import pytest

from headrace.core.block import FailureKind
from headrace.pipeline.ledger import Counts
from headrace.pipeline.settings import FlowSettings
from headrace.storage.contract import ObjectInfo
from headrace.transforms.plan import PlannedObject, Shard, Task, TransformPlan
from headrace.transforms.records import Checkpoint, ShardRecord, Spot
from headrace.transforms.source import ShardEnd, TaskSource, slots_of
from transforms.support import IN, put, rows, settings_of

RANGES = [(0, 11), (11, 22), (22, None)]
"""Of ten records of four bytes: they begin at 0, 4, 8 | 12, 16, 20 | 24 …"""


def source_of(stores, tasks, *, checkpoints=None, begins=None, read=None) -> TaskSource:
    infos = list(stores.for_uri(IN).list(IN))
    plan = TransformPlan(tuple(PlannedObject(i, i.uri) for i in infos), tuple(tasks))
    return TaskSource(
        stores,
        plan,
        slots_of(tasks, checkpoints or {}),
        read=settings_of(read=read).read,
        # So that what a test does to an object comes before it is read.
        flow=FlowSettings(prefetch_bytes_max=1),
        begins=begins or {},
    )


def ranges(index: int = 0, edges=RANGES) -> list[Task]:
    return [Task(n, (Shard(index, n, len(edges), a, b),)) for n, (a, b) in enumerate(edges)]


def read_all(source) -> list[tuple]:
    """Slot, record number, line, byte and bytes of everything that comes."""
    found = []
    for read in source.blocks():
        block = read.block
        for i in range(len(block)):
            at = block.position(i)
            found.append((read.index, at.record, at.line, at.byte, block.record(i)))
        found += [
            (read.index, f.position.record, f.position.line, f.position.byte, f.kind) for f in block.failures
        ]
    source.close()
    return found


def test_slots_are_what_is_left_of_the_tasks():
    tasks = [Task(0, (Shard(0), Shard(1), Shard(2))), Task(1, (Shard(3),))]
    done = (ShardRecord(0, 0, Counts(), 0),)
    fresh = slots_of(tasks, {})
    assert [(s.task, s.shard.index, s.ends_task, s.resume, s.done) for s in fresh] == [
        (0, 0, False, None, ()),
        (0, 1, False, None, ()),
        (0, 2, True, None, ()),
        (1, 3, True, None, ()),
    ]
    midway = Checkpoint(0, done, entries=5)
    resumed = slots_of(tasks, {0: midway})
    assert [(s.shard.index, s.ends_task, s.resume, s.done) for s in resumed] == [
        (1, False, midway, done),
        (2, True, None, ()),
        (3, True, None, ()),
    ]
    between = slots_of(tasks, {0: Checkpoint(0, done)})
    assert next((s.shard.index, s.resume, s.done) for s in between) == (1, None, done)


def test_ranges_one_after_the_other_need_no_guess(stores):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges())
    found = read_all(source)
    assert found == [(0 if i < 3 else 1 if i < 6 else 2, i, i + 1, 4 * i, b"%d,1" % i) for i in range(10)]
    assert list(source.ended) == [
        ShardEnd(0, 3, Spot(0, 0, 1), Spot(12, 3, 4)),
        ShardEnd(1, 3, Spot(12, 3, 4), Spot(24, 6, 7)),
        ShardEnd(2, 4, Spot(24, 6, 7), Spot(40, 10, 11)),
    ]
    assert source.objects_read == 1


def test_a_range_alone_counts_from_its_own_begin(stores):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges()[1:2])
    assert read_all(source) == [(0, i, i + 1, 12 + 4 * i, b"%d,1" % (i + 3)) for i in range(3)]
    assert list(source.ended) == [ShardEnd(0, 3, Spot(12, 0, 1), Spot(24, 3, 4), relative=True)]


def test_a_begin_that_is_known_is_taken(stores):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges()[1:2], begins={(0, 1): Spot(12, 3, 4)})
    assert read_all(source) == [(0, i, i + 1, 4 * i, b"%d,1" % i) for i in range(3, 6)]
    assert list(source.ended) == [ShardEnd(0, 3, Spot(12, 3, 4), Spot(24, 6, 7))]


@pytest.mark.parametrize("begin", [16, 24, 36, 40])
def test_a_begin_behind_the_edge_or_behind_all_of_the_range_is_read_from_there(stores, begin):
    """The record before was long."""
    put(stores, {"a.csv": rows(10)})
    number = begin // 4
    source = source_of(stores, ranges()[1:2], begins={(0, 1): Spot(begin, number, number + 1)})
    expected = range(number, max(number, 6))
    assert [(r[1], r[4]) for r in read_all(source)] == [(i, b"%d,1" % i) for i in expected]
    (end,) = source.ended
    assert (end.begin, end.end) == (
        Spot(begin, number, number + 1),
        Spot(max(begin, 24), max(number, 6), max(number, 6) + 1),
    )


def test_a_range_goes_on_where_its_checkpoint_says(stores):
    put(stores, {"a.csv": rows(10)})
    resume = Checkpoint(1, (), entries=2, record=2, begin=Spot(12, 0, 1), relative=True)
    source = source_of(stores, ranges()[1:2], checkpoints={1: resume}, begins={(0, 1): Spot(12, 3, 4)})
    assert [(r[1], r[3], r[4]) for r in read_all(source)] == [(2, 20, b"5,1")]
    assert list(source.ended) == [ShardEnd(0, 1, Spot(12, 0, 1), Spot(24, 3, 4), relative=True)]


def test_names_of_the_header_reach_ranges_that_are_read_alone(stores):
    put(stores, {"a.csv": b"p,q\n" + rows(9)})
    source = source_of(stores, ranges()[1:2], read={"header": "names"})
    assert {r.block.column_names for r in source.blocks() if len(r.block)} == {("p", "q")}
    source.close()


def test_what_is_no_text_fails_once_however_it_is_cut(stores):
    put(stores, {"a.csv": b"\0" * 40})
    source = source_of(stores, ranges())
    assert [(r[0], r[4]) for r in read_all(source)] == [(0, FailureKind.OBJECT)]
    assert [(e.entries, e.begin, e.end) for e in source.ended] == [
        (1, None, None),
        (0, None, None),
        (0, None, None),
    ]


def test_each_task_ends_its_batch(stores):
    put(stores, {"a.csv": rows(2), "b.csv": rows(2), "c.csv": b""})
    source = source_of(stores, [Task(0, (Shard(0), Shard(1))), Task(1, (Shard(2),))])
    assert [(r.index, len(r.block), r.ends_batch) for r in source.blocks()] == [
        (0, 2, False),
        (1, 2, False),
        (1, 0, True),
        (2, 0, True),
    ]
    source.close()


def test_an_object_that_breaks_costs_its_rest(stores):
    put(stores, {"a.csv.gz": gzip.compress(rows(3), mtime=0)[:-3], "b.csv": rows(1), "c.csv": rows(1)})
    tasks = [Task(0, (Shard(0), Shard(1), Shard(2)))]
    source = source_of(stores, tasks)
    stores.for_uri(IN).delete(IN + "b.csv")
    found = read_all(source)
    assert [(r[0], r[4]) for r in found] == [
        (0, b"0,1"),
        (0, b"1,1"),
        (0, b"2,1"),
        (0, FailureKind.OBJECT),
        (1, FailureKind.OBJECT),
        (2, b"0,1"),
    ]
    assert found[3][1:4] == (3, 4, 12)
    assert [e.entries for e in source.ended] == [4, 1, 1]


@pytest.mark.parametrize("gone", [None, rows(11)])
def test_ranges_of_an_object_that_is_gone_or_another_fail_each(stores, gone):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges()[1:])
    stores.for_uri(IN).delete(IN + "a.csv")
    if gone is not None:
        put(stores, {"a.csv": gone})
    assert [(r[0], r[4]) for r in read_all(source)] == [(0, FailureKind.OBJECT), (1, FailureKind.OBJECT)]
    assert [(e.begin, e.end) for e in source.ended] == [(None, None)] * 2


def test_a_skipped_object_gives_no_more_and_its_ranges_still_tell_where_they_end(stores):
    put(stores, {"a.csv": rows(10), "b.csv": rows(2)})
    source = source_of(stores, [*ranges(), Task(3, (Shard(1),))])
    source.skip(0)
    assert [(r[0], r[4]) for r in read_all(source)] == [(3, b"0,1"), (3, b"1,1")]
    assert list(source.ended)[:3] == [
        ShardEnd(0, 0, Spot(0, 0, 1), Spot(12, 3, 4)),
        ShardEnd(1, 0, Spot(12, 3, 4), Spot(24, 6, 7)),
        ShardEnd(2, 0, Spot(24, 6, 7), Spot(40, 10, 11)),
    ]


def test_an_object_of_unknown_size_is_read_to_its_end(stores):
    put(stores, {"a.csv": rows(10)})
    plan = TransformPlan((PlannedObject(ObjectInfo(IN + "a.csv", None), "a"),), (Task(0, (Shard(0),)),))
    source = TaskSource(
        stores, plan, slots_of(plan.tasks, {}), read=settings_of().read, flow=FlowSettings(), begins={}
    )
    assert len(read_all(source)) == 10
    assert source.bytes_read == 40
