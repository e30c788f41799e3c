import gzip

from cases import for_each
from headrace.core.block import FailureKind
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import PlannedObject, Shard, Task, TransformPlan
from headrace.runs.records import ShardPosition, ShardRecord, TaskCheckpoint
from headrace.runs.settings import FlowSettings
from headrace.runs.source import ShardEnd, TaskSource, list_open_shards
from headrace.storage.contract import ObjectInfo
from runs.support import IN, make_settings, put, rows

RANGES = [(0, 11), (11, 22), (22, None)]
"""Ranges of ten records of four bytes, with starts 0, 4, 8 | 12, 16, 20 | 24 …"""


def source_of(stores, tasks, *, checkpoints=None, range_starts=None, read=None) -> TaskSource:
    infos = list(stores.for_uri(IN).list(IN))
    plan = TransformPlan(tuple(PlannedObject(i, i.uri) for i in infos), tuple(tasks))
    return TaskSource(
        stores,
        plan,
        list_open_shards(tasks, checkpoints or {}),
        read=make_settings(read=read).read,
        # Without read-ahead, a test can change an object before it is read.
        flow=FlowSettings(prefetch_bytes_max=1),
        range_starts=range_starts or {},
    )


def ranges(index: int = 0, edges=RANGES) -> list[Task]:
    return [Task(n, (Shard(index, n, len(edges), a, b),)) for n, (a, b) in enumerate(edges)]


def read_all(source) -> list[tuple]:
    """Return open shard, record number, line, byte and bytes of every record, then the failures."""
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


def test_open_shards_are_the_unfinished_ones():
    tasks = [Task(0, (Shard(0), Shard(1), Shard(2))), Task(1, (Shard(3),))]
    done = (ShardRecord(0, 0, Counts(), 0),)
    fresh = list_open_shards(tasks, {})
    assert [(s.task, s.shard.index, s.ends_task, s.resume, s.done) for s in fresh] == [
        (0, 0, False, None, ()),
        (0, 1, False, None, ()),
        (0, 2, True, None, ()),
        (1, 3, True, None, ()),
    ]
    midway = TaskCheckpoint(0, done, entries=5)
    resumed = list_open_shards(tasks, {0: midway})
    assert [(s.shard.index, s.ends_task, s.resume, s.done) for s in resumed] == [
        (1, False, midway, done),
        (2, True, None, ()),
        (3, True, None, ()),
    ]
    between = list_open_shards(tasks, {0: TaskCheckpoint(0, done)})
    assert next((s.shard.index, s.resume, s.done) for s in between) == (1, None, done)


def test_consecutive_ranges_have_known_starts(stores):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges())
    found = read_all(source)
    assert found == [(0 if i < 3 else 1 if i < 6 else 2, i, i + 1, 4 * i, b"%d,1" % i) for i in range(10)]
    assert list(source.shard_ends) == [
        ShardEnd(0, 3, ShardPosition(0, 0, 1), ShardPosition(12, 3, 4)),
        ShardEnd(1, 3, ShardPosition(12, 3, 4), ShardPosition(24, 6, 7)),
        ShardEnd(2, 4, ShardPosition(24, 6, 7), ShardPosition(40, 10, 11)),
    ]
    assert source.objects_read == 1


def test_single_range_counts_from_its_own_start(stores):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges()[1:2])
    assert read_all(source) == [(0, i, i + 1, 12 + 4 * i, b"%d,1" % (i + 3)) for i in range(3)]
    assert list(source.shard_ends) == [
        ShardEnd(0, 3, ShardPosition(12, 0, 1), ShardPosition(24, 3, 4), relative=True)
    ]


def test_known_start_is_used(stores):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges()[1:2], range_starts={(0, 1): ShardPosition(12, 3, 4)})
    assert read_all(source) == [(0, i, i + 1, 4 * i, b"%d,1" % i) for i in range(3, 6)]
    assert list(source.shard_ends) == [ShardEnd(0, 3, ShardPosition(12, 3, 4), ShardPosition(24, 6, 7))]


@for_each("begin", [16, 24, 36, 40])
def test_known_start_can_be_beyond_the_range(stores, begin):
    """The previous range ends with a long record."""
    put(stores, {"a.csv": rows(10)})
    number = begin // 4
    source = source_of(stores, ranges()[1:2], range_starts={(0, 1): ShardPosition(begin, number, number + 1)})
    expected = range(number, max(number, 6))
    assert [(r[1], r[4]) for r in read_all(source)] == [(i, b"%d,1" % i) for i in expected]
    (end,) = source.shard_ends
    assert (end.begin, end.end) == (
        ShardPosition(begin, number, number + 1),
        ShardPosition(max(begin, 24), max(number, 6), max(number, 6) + 1),
    )


def test_range_resumes_from_its_checkpoint(stores):
    put(stores, {"a.csv": rows(10)})
    resume = TaskCheckpoint(1, (), entries=2, record=2, begin=ShardPosition(12, 0, 1), relative=True)
    source = source_of(
        stores, ranges()[1:2], checkpoints={1: resume}, range_starts={(0, 1): ShardPosition(12, 3, 4)}
    )
    assert [(r[1], r[3], r[4]) for r in read_all(source)] == [(2, 20, b"5,1")]
    assert list(source.shard_ends) == [
        ShardEnd(0, 1, ShardPosition(12, 0, 1), ShardPosition(24, 3, 4), relative=True)
    ]


def test_column_names_reach_single_ranges(stores):
    put(stores, {"a.csv": b"p,q\n" + rows(9)})
    source = source_of(stores, ranges()[1:2], read={"header": "names"})
    assert {r.block.column_names for r in source.blocks() if len(r.block)} == {("p", "q")}
    source.close()


def test_binary_object_fails_once(stores):
    put(stores, {"a.csv": b"\0" * 40})
    source = source_of(stores, ranges())
    assert [(r[0], r[4]) for r in read_all(source)] == [(0, FailureKind.OBJECT)]
    assert [(e.entries, e.begin, e.end) for e in source.shard_ends] == [
        (1, None, None),
        (0, None, None),
        (0, None, None),
    ]


def test_task_ends_its_batch(stores):
    put(stores, {"a.csv": rows(2), "b.csv": rows(2), "c.csv": b""})
    source = source_of(stores, [Task(0, (Shard(0), Shard(1))), Task(1, (Shard(2),))])
    assert [(r.index, len(r.block), r.ends_batch) for r in source.blocks()] == [
        (0, 2, False),
        (1, 2, False),
        (1, 0, True),
        (2, 0, True),
    ]
    source.close()


def test_broken_object_costs_its_rest(stores):
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
    assert [e.entries for e in source.shard_ends] == [4, 1, 1]


@for_each("replacement", [None, rows(11)])
def test_each_range_of_a_changed_object_fails(stores, replacement):
    put(stores, {"a.csv": rows(10)})
    source = source_of(stores, ranges()[1:])
    stores.for_uri(IN).delete(IN + "a.csv")
    if replacement is not None:
        put(stores, {"a.csv": replacement})
    assert [(r[0], r[4]) for r in read_all(source)] == [(0, FailureKind.OBJECT), (1, FailureKind.OBJECT)]
    assert [(e.begin, e.end) for e in source.shard_ends] == [(None, None)] * 2


def test_skipped_ranges_still_have_ends(stores):
    put(stores, {"a.csv": rows(10), "b.csv": rows(2)})
    source = source_of(stores, [*ranges(), Task(3, (Shard(1),))])
    source.skip(0)
    assert [(r[0], r[4]) for r in read_all(source)] == [(3, b"0,1"), (3, b"1,1")]
    assert list(source.shard_ends)[:3] == [
        ShardEnd(0, 0, ShardPosition(0, 0, 1), ShardPosition(12, 3, 4)),
        ShardEnd(1, 0, ShardPosition(12, 3, 4), ShardPosition(24, 6, 7)),
        ShardEnd(2, 0, ShardPosition(24, 6, 7), ShardPosition(40, 10, 11)),
    ]


def test_object_of_unknown_size_is_read_completely(stores):
    put(stores, {"a.csv": rows(10)})
    plan = TransformPlan((PlannedObject(ObjectInfo(IN + "a.csv", None), "a"),), (Task(0, (Shard(0),)),))
    source = TaskSource(
        stores,
        plan,
        list_open_shards(plan.tasks, {}),
        read=make_settings().read,
        flow=FlowSettings(),
        range_starts={},
    )
    assert len(read_all(source)) == 10
    assert source.bytes_read == 40
