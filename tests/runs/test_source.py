"""Reading the objects of a run: by tasks and their ranges, or in order from one cursor to another."""

import gzip
import io
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import levels
from cases import for_each
from headrace.core.block import FailureKind, Position
from headrace.core.errors import AccessDeniedError, EmptySourceError
from headrace.formats.contract import DecodedBlock
from headrace.runs.items import BlockEntries, Cursor, ReadBlock
from headrace.runs.plan import ObjectShards, Shard, ShardEnd, Task, list_open_shards
from headrace.runs.records import Counts, PlannedObject, ShardPosition, ShardRecord, TaskCheckpoint
from headrace.runs.source import ShardSource
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from runs.support import IN, make_settings, put, rows, tar

RANGES = [(0, 11), (11, 22), (22, None)]
"""Ranges of ten records of four bytes, with starts 0, 4, 8 | 12, 16, 20 | 24 …"""


def listed(stores: Stores) -> list[PlannedObject]:
    return [PlannedObject(info) for info in stores.for_uri(IN).list(IN)]


def source_of(stores, tasks, *, checkpoints=None, range_starts=None, read=None) -> ShardSource:
    return ShardSource(
        stores,
        listed(stores),
        list_open_shards(tasks, checkpoints or {}),
        # Without read-ahead, a test can change an object before it is read.
        make_settings(read=read, flow={"prefetch_bytes_max": 1}),
        range_starts=range_starts,
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
    midway = TaskCheckpoint(0, done, is_inside=True, record=5)
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
    resume = TaskCheckpoint(1, (), is_inside=True, record=2, begin=ShardPosition(12, 0, 1), relative=True)
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
    unknown = [PlannedObject(ObjectInfo(IN + "a.csv", None))]
    open_shards = list_open_shards([Task(0, (Shard(0),))], {})
    source = ShardSource(stores, unknown, open_shards, make_settings())
    assert len(read_all(source)) == 10
    assert source.bytes_read == 40


def test_object_that_is_being_read_is_known(stores):
    put(stores, {"a.csv": rows(2), "b.csv": rows(2)})
    source = source_of(stores, [Task(0, (Shard(0),)), Task(1, (Shard(1),))])
    assert source.reading == IN + "a.csv"
    assert [source.reading for read in source.blocks() if len(read.block)] == [IN + "a.csv", IN + "b.csv"]
    source.close()
    assert source_of(stores, []).reading == ""


def test_denied_access_stops_the_whole_run(stores):
    put(stores, {"a.csv": rows(2), "b.csv": rows(2)})
    source = source_of(stores, [Task(0, (Shard(0), Shard(1)))])

    def denied(uri, *_, **__):
        raise AccessDeniedError(uri, "not yours")

    stores.for_uri(IN).get_range = denied
    with pytest.raises(AccessDeniedError):
        read_all(source)


# In order, without tasks

CUT = gzip.compress(rows(3000), mtime=0)[:-900]


def parquet(count: int, row_group_size: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(count))}), out, row_group_size=row_group_size)
    return out.getvalue()


def source_over(
    objects: Mapping[str, bytes],
    start: Cursor | None = None,
    *,
    stop: Cursor | None = None,
    empty_raises: bool = False,
    change: Mapping[str, bytes | None] | None = None,
) -> ShardSource:
    """Return a source of these objects from `start` to `stop`; `change` replaces some after the listing."""
    stores, begin = Stores(), start or Cursor()
    put(stores, objects)
    planned = listed(stores)
    for name, data in (change or {}).items():
        put(stores, {name: data}) if data is not None else stores.for_uri(IN).delete(IN + name)
    return ShardSource(
        stores,
        planned,
        ObjectShards(planned, begin),
        make_settings(),
        first=begin.index,
        stop=stop,
        empty_raises=empty_raises,
    )


def read_blocks(source: ShardSource) -> list[tuple[int, int, list[str]]]:
    """Return index, number of records and failure reasons of every block."""
    found = [(r.index, len(r.block), [f.why for f in r.block.failures]) for r in source.blocks()]
    source.close()
    return found


def test_objects_are_read_in_order_and_counted():
    source = source_over({"a.csv": b"1\n2\n", "b.csv": b"", "c.csv": b"3\n"})
    assert read_blocks(source) == [(0, 2, []), (2, 1, [])]
    assert (source.objects_read, source.bytes_read) == (3, 6)
    assert not source.shard_ends


@for_each(
    ("change", "why"),
    [
        ({"b.csv": None}, "no such object"),
        ({"b.csv": b"2\n3\n"}, "has changed (ETag"),
    ],
)
def test_missing_or_changed_object_fails_alone(change, why):
    found = read_blocks(source_over({"a.csv": b"1\n", "b.csv": b"2\n", "c.csv": b"3\n"}, change=change))
    assert [(index, rows) for index, rows, _ in found] == [(0, 1), (1, 0), (2, 1)]
    (texts,) = found[1][2]
    assert why in texts
    assert texts.endswith(f"the rest of {IN}b.csv is not read")


def test_broken_object_yields_earlier_records_and_its_position():
    source = source_over({"a.csv.gz": CUT, "b.csv": b"3\n"})
    blocks = list(source.blocks())
    source.close()
    lost = blocks[-2].block.failures[0]
    records = sum(len(r.block) for r in blocks[:-2])
    assert records > 0
    assert (lost.position.record, lost.position.line) == (records, records + 1)
    assert blocks[-2].last
    assert blocks[-1].block.first.object == IN + "b.csv"


def test_resumed_broken_object_fails_at_the_same_position():
    whole = source_over({"a.csv.gz": CUT})
    *_, before, lost = whole.blocks()
    whole.close()
    position = lost.block.first
    resumed = source_over({"a.csv.gz": CUT}, Cursor(0, position))
    (again,) = resumed.blocks()
    resumed.close()
    assert again.block.failures[0].position == position
    assert before.block.first.record < position.record


def test_empty_archive_raises_only_on_request():
    with pytest.raises(EmptySourceError):
        read_blocks(source_over({"a.tar": bytes(1024)}, empty_raises=True))
    (only,) = read_blocks(source_over({"a.tar": bytes(1024)}))
    assert "the archive holds no files" in only[2][0]


def test_object_of_unknown_format_fails_alone():
    (first, second) = read_blocks(source_over({"a": b"1\n", "b.csv": b"1\n"}))
    assert f"{IN}a: the name does not determine the format; choose it with --format" in first[2][0]
    assert second == (1, 1, [])


def test_parquet_object_is_read_in_order_and_resumed():
    objects = {"a.csv": b"1\n", "b.parquet": parquet(7, 3), "c.csv": b"2\n"}
    whole = source_over(objects)
    assert [(index, rows) for index, rows, _ in read_blocks(whole)] == [
        (0, 1),
        (1, 3),
        (1, 3),
        (1, 1),
        (2, 1),
    ]
    assert whole.objects_read == 3
    assert whole.bytes_read == sum(map(len, objects.values()))
    start = Cursor(1, Position(IN + "b.parquet", record=4))
    rest = [text for _, _, text in entries(source_over(objects, start))]
    assert rest == ['{"n":4}', '{"n":5}', '{"n":6}', "2"]


def test_broken_parquet_object_fails_alone():
    found = read_blocks(source_over({"a.parquet": parquet(7, 3)[:-1], "b.csv": b"1\n"}))
    assert [(index, rows, len(failures)) for index, rows, failures in found] == [(0, 0, 1), (1, 1, 0)]


MEMBERS = tar({"x.csv": b"4\n5\n6\n", "broken.csv.gz": CUT[:700], "none.csv": b"", "y.csv": b"7\n8\n"})
MANY = {
    "a.csv": b"1\n2\n3\n",
    "b.tar": MEMBERS,
    "c.tar.gz": gzip.compress(MEMBERS),
    "d.csv": b"",
    "e.csv.gz": CUT[:900],
    "f.csv": b"9\n10\n",
    "g.parquet": parquet(7, 3),
    "h.parquet": parquet(7, 3)[:-1],
    "i": b"11\n",
    "j.csv": b"12\n",
}


def entries(source: ShardSource) -> list[tuple[ReadBlock, int, str]]:
    """Return every record and failure, with its block and its index in it."""
    found = []
    for read in source.blocks():
        block = read.block
        found += [(read, i, block.record(i).decode()) for i in range(len(block))]
        found += [(read, len(block) + i, f.why) for i, f in enumerate(block.failures)]
    source.close()
    return found


def test_reads_up_to_and_from_a_cursor_cover_everything():
    whole = entries(source_over(MANY))
    texts = [(read.index, text) for read, _, text in whole]
    assert len(texts) > 100
    assert sum("the rest of" in text for _, text in texts) == 4
    last = len(whole) - 20
    for at in [*range(0, last, levels.by_level(5, 1, 1)), *range(last, len(whole))]:
        read, before, _ = whole[at]
        stop = BlockEntries(read, DecodedBlock({})).cursor_after(before + 1)
        upto = [(r.index, text) for r, _, text in entries(source_over(MANY, stop=stop))]
        assert upto == texts[: at + 1]
        if at % 35 == 0 or at >= last:
            rest = [(r.index, text) for r, _, text in entries(source_over(MANY, stop))]
            assert upto + rest == texts


def test_read_up_to_the_start_is_empty():
    assert entries(source_over(MANY, stop=Cursor())) == []
    start = Cursor(0, Position(IN + "a.csv", record=2))
    assert entries(source_over(MANY, start, stop=start)) == []


def test_read_between_two_cursors_has_the_indices_of_the_objects():
    start, stop = Cursor(0, Position(IN + "a.csv", record=2)), Cursor(5, Position(IN + "f.csv", record=1))
    found = [(r.index, text) for r, _, text in entries(source_over(MANY, start, stop=stop))]
    assert (found[0], found[-1]) == ((0, "3"), (5, "9"))
    later = replace(start, index=5, position=None)
    assert [(r.index, t) for r, _, t in entries(source_over(MANY, later, stop=stop))] == [(5, "9")]
