"""Outputs of several shards are published as soon as their shards are finished and placed correctly."""

from dataclasses import replace

import pytest

from cases import for_each
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import NotFoundError, UnavailableError
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.runs.assembler import Assembler, ShardOffset, shard_offsets
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Plan, Shard, Task
from headrace.runs.records import Counts, PlannedObject, ShardPosition, ShardRecord, TaskRecord
from headrace.runs.settings import StreamSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import PersistedRange, discard, open_draft
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore
from runs.support import FailOnceStore, make_settings

OUT = "memory://out/"
URI = "memory://in/a.csv"
INFOS = (ObjectInfo(URI, 30), ObjectInfo("memory://in/b.csv", 3))
TASKS = (
    Task(0, (Shard(0, 0, 3, 0, 10),)),
    Task(1, (Shard(0, 1, 3, 10, 20),)),
    Task(2, (Shard(0, 2, 3, 20, None),)),
    Task(3, (Shard(1),)),
)
PLAN = Plan((PlannedObject(INFOS[0], "a.out"), PlannedObject(INFOS[1], "b.out")), TASKS)
PARTS_PLAN = Plan(tuple(map(PlannedObject, INFOS)), TASKS)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryStore(), OUT)


@pytest.fixture(params=["disk", "memory"])
def any_ledger(request, tmp_path) -> Ledger:
    if request.param == "disk":
        return Ledger(LocalStore(), f"{tmp_path}/out/")
    return Ledger(MemoryStore(), OUT)


def assembler_of(ledger, records=(), **settings) -> Assembler:
    """Return the assembler of a transform."""
    return Assembler(ledger, PLAN, make_settings(**settings), records)


def parts_assembler_of(ledger, records=(), **settings) -> Assembler:
    """Return the assembler of a stream."""
    return Assembler(ledger, PARTS_PLAN, make_settings(preset=StreamSettings, **settings), records)


def published(ledger) -> dict[str, bytes]:
    """Return the published outputs and failed records by name."""
    start = ledger.destination
    found = (info.uri for info in ledger.store.list(start))
    return {
        uri.removeprefix(start): ledger.store.get(uri)
        for uri in found
        if not uri.startswith(start + "_headrace/")
    }


# Offsets


def shard(number, begin, end, *, rows=0, failed_rows=0, out_bytes=0, relative=False, **more) -> ShardRecord:
    positions = [None if s is None else ShardPosition(*s) for s in (begin, end)]
    counts = Counts(rows + failed_rows, rows, failed_rows)
    return ShardRecord(0, number, counts, out_bytes, *positions, relative=relative, **more)


def test_shard_offsets_add_up():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4), rows=3, out_bytes=20, begin_bytes=2),
        shard(1, (12, 0, 1), (30, 5, 8), rows=4, out_bytes=30, begin_bytes=2, relative=True),
        shard(2, (30, 8, 11), (40, 9, 12), rows=1, out_bytes=10, begin_bytes=2),
    ]
    found, misplaced = shard_offsets(records)
    assert misplaced is None
    assert found == [
        ShardOffset(ShardPosition(0, 0, 1)),
        ShardOffset(ShardPosition(12, 3, 4), 3, 20),
        ShardOffset(ShardPosition(30, 8, 11), 7, 48),
        ShardOffset(ShardPosition(40, 9, 12), 8, 56),
    ]


def test_first_misplaced_shard_ends_the_offsets():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4)),
        shard(1, (16, 0, 1), (30, 5, 6), relative=True),
        shard(2, (99, 0, 1), (120, 5, 6), relative=True),
    ]
    found, misplaced = shard_offsets(records)
    assert misplaced == 1
    assert found == [ShardOffset(ShardPosition(0, 0, 1)), ShardOffset(ShardPosition(12, 3, 4))]


def test_shards_after_an_unknown_end_are_accepted():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4)),
        shard(1, None, None),
        shard(2, (99, 0, 1), (120, 5, 6), relative=True),
    ]
    found, misplaced = shard_offsets(records)
    assert misplaced is None
    assert [base.is_known for base in found] == [True, True, False, False]


# Progress


def record_task(
    ledger, number: int, begin: int, end: int, *, failed: int = 0, attempt: str = "a"
) -> TaskRecord:
    persisted = persist_draft(ledger, f"{number}-{attempt}", b"%d\n" % number)
    relative = number > 0
    positions = ShardPosition(begin, 0, 1), ShardPosition(end, 1, 2)
    found = ShardRecord(
        0, number, Counts(1 + failed, 1, failed), 2, *positions, relative=relative, out=persisted
    )
    return TaskRecord(number, attempt, (found,))


def record_tasks(ledger, **more) -> list[TaskRecord]:
    return [record_task(ledger, n, 10 * n, 10 * n + 10, **more) for n in range(3)]


def persist_draft(ledger, name: str, data: bytes) -> PersistedRange:
    draft = open_draft(ledger.store, ledger.draft_uri(name))
    draft.write(data)
    persisted = draft.persist()
    draft.close()
    return persisted.full_range


def test_last_shard_publishes_the_object_in_any_order(ledger):
    assembler = assembler_of(ledger)
    assert assembler.unassembled() == [0]
    for number, begin, end in ((2, 20, 30), (0, 0, 11)):
        assembler.add_task(record_task(ledger, number, begin, end))
        assert published(ledger) == {}
    assembler.add_task(record_task(ledger, 1, 11, 20))
    assert published(ledger) == {"a.out": b"0\n1\n2\n"}
    assert (assembler.unassembled(), assembler.ranges_to_redo()) == ([], {})


def test_range_start_is_known_after_the_earlier_ranges(ledger):
    assembler = assembler_of(ledger)
    assert assembler.range_starts() == {}
    assembler.add_task(record_task(ledger, 0, 0, 11))
    assert assembler.range_starts()[0, 1] == ShardPosition(11, 1, 2)
    assembler.add_task(record_task(ledger, 1, 11, 20))
    assert assembler.range_starts()[0, 2] == ShardPosition(20, 2, 3)


@for_each(
    ("make", "expected"),
    [
        (assembler_of, {"a.out": b"0\n1\n2\n"}),
        (parts_assembler_of, {f"part-{n:05d}.csv": b"%d\n" % n for n in range(3)}),
    ],
)
def test_misplaced_ranges_are_redone_one_after_another(make, expected):
    ledger = Ledger(MemoryStore(), OUT)
    assembler = make(ledger)
    for number, begin, end in ((0, 0, 11), (1, 13, 22), (2, 22, 30)):
        assembler.add_task(record_task(ledger, number, begin, end))
    assert published(ledger) == {}
    assert assembler.ranges_to_redo() == {1: ((0, 1), ShardPosition(11, 1, 2))}
    assembler.add_task(record_task(ledger, 1, 11, 20, attempt="b"))
    assert assembler.ranges_to_redo() == {2: ((0, 2), ShardPosition(20, 2, 3))}
    assembler.add_task(record_task(ledger, 2, 20, 30, attempt="b"))
    assert assembler.ranges_to_redo() == {}
    assert published(ledger) == expected


def test_publish_all_completes_an_earlier_process(ledger):
    records = record_tasks(ledger)
    assembler_of(ledger, records).publish_all()
    assert published(ledger) == {"a.out": b"0\n1\n2\n"}
    again = assembler_of(ledger, records)
    assert again.unassembled() == []
    again.publish_all()


@for_each("make", [assembler_of, parts_assembler_of])
def test_publication_is_continued_after_a_kill_at_any_call(make):
    whole = Ledger(MemoryStore(), OUT)
    make(whole, record_tasks(whole)).publish_all()
    failures, at, failing = 0, 0, True
    while failing:
        at += 1
        ledger = Ledger(MemoryStore(), OUT)
        records = record_tasks(ledger)
        store = FailOnceStore(ledger.store, at=at, write_first=False)
        try:
            make(Ledger(store, OUT), records).publish_all()
        except UnavailableError:
            failures += 1
        failing = store.failed
        again = make(ledger, records)
        again.publish_all()
        assert published(ledger) == published(whole)
        assert again.unassembled() == []
    assert failures > 5


@for_each("make", [assembler_of, parts_assembler_of])
def test_object_published_by_another_process_counts(make):
    ledger = Ledger(MemoryStore(), OUT)
    records = record_tasks(ledger)
    assembler = make(ledger, records)
    make(ledger, records).publish_all()
    before = published(ledger)
    assembler.publish_all()
    assert assembler.unassembled() == []
    assert published(ledger) == before


def test_missing_draft_is_an_error(ledger):
    records = record_tasks(ledger)
    discard(ledger.store, records[1].shards[0].out.kept)
    with pytest.raises(NotFoundError):
        assembler_of(ledger, records).publish_all()


@pytest.mark.parametrize(("on_error", "is_published"), [("record", True), ("object", False)])
def test_on_error_object_suppresses_an_object_with_failures(ledger, on_error, is_published):
    records = [record_task(ledger, n, 10 * n, 10 * n + 10, failed=n % 2) for n in range(3)]
    assembler_of(ledger, records, failures={"on_error": on_error}).publish_all()
    assert bool(list(ledger.store.list(OUT + "a.out"))) is is_published
    assert ledger.assembled() == {0}


def test_whole_objects_are_ignored(ledger):
    whole = TaskRecord(3, "a", (ShardRecord(1, 0, Counts(1, 1), 2),))
    for assembler in (assembler_of(ledger), parts_assembler_of(ledger)):
        assembler.add_task(whole)
        assert assembler.unassembled() == [0]
    assert ledger.assembled() == set()
    assert published(ledger) == {}


# One output for each object


def failed_line(record: int, line: int, byte: int, row: int, out_byte: int) -> bytes:
    failure = Failure(Position(URI, record=record, line=line, byte=byte), FailureKind.DECODE, "why", b"raw")
    return failed_record_line(FailedRecord(failure, row, out_byte))


def tasks_with_failures(ledger) -> list[TaskRecord]:
    """Return three ranges of two predictions and a header each.

    Two of them have failures. The positions of the second one are relative.
    """
    size = {"rows": 2, "out_bytes": 6, "begin_bytes": 2}
    shards = [
        shard(
            0,
            (0, 0, 1),
            (12, 3, 4),
            out=persist_draft(ledger, "0.out", b"y\n0\n1\n"),
            failed=persist_draft(ledger, "0.failed", failed_line(0, 1, 0, 0, 0)),
            failed_rows=1,
            **size,
        ),
        shard(
            1,
            (12, 0, 1),
            (30, 3, 5),
            out=persist_draft(ledger, "1.out", b"y\n2\n3\n"),
            failed=persist_draft(
                ledger, "1.failed", failed_line(0, 1, 12, 0, 0) + failed_line(2, 4, 20, 2, 6)
            ),
            failed_rows=2,
            relative=True,
            **size,
        ),
        shard(2, (30, 6, 8), (40, 9, 12), out=persist_draft(ledger, "2.out", b"y\n4\n5\n"), **size),
    ]
    return as_tasks(shards)


def as_tasks(shards) -> list[TaskRecord]:
    return [TaskRecord(one.number, "a", (one,)) for one in shards]


def failed_positions(data: bytes) -> list[tuple[Position, int, int]]:
    return [(f.failure.position, f.output_row, f.output_byte) for f in read_failed_records(data.splitlines())]


def test_shards_are_joined_with_one_header_and_absolute_failures(any_ledger):
    ledger = any_ledger
    assembler_of(ledger, tasks_with_failures(ledger)).publish_all()
    found = published(ledger)
    assert found.keys() == {"a.out", "a.out.failed"}
    assert found["a.out"] == b"y\n0\n1\n2\n3\n4\n5\n"
    assert failed_positions(found["a.out.failed"]) == [
        (Position(URI, record=0, line=1, byte=0), 0, 0),
        (Position(URI, record=3, line=4, byte=12), 2, 6),
        (Position(URI, record=5, line=7, byte=20), 4, 10),
    ]
    assert ledger.assembled() == {0}
    assert not list(ledger.store.list(ledger.uri("drafts/")))


def test_tasks_of_an_assembled_object_are_known(ledger):
    """Their drafts were removed on purpose."""
    assembler = assembler_of(ledger, record_tasks(ledger))
    assert assembler.assembled_tasks() == set()
    assembler.publish_all()
    assert assembler.assembled_tasks() == {0, 1, 2}


def test_object_without_output_is_published_empty(any_ledger):
    nothing = as_tasks(shard(number, None, None) for number in range(3))
    assembler_of(any_ledger, nothing).publish_all()
    assert published(any_ledger) == {"a.out": b""}


def test_late_writer_does_not_change_a_published_object(tmp_path):
    """The writer is a lost worker. Its draft has the range after the object's break."""
    ledger = Ledger(LocalStore(), f"{tmp_path}/")
    orphan = open_draft(ledger.store, ledger.draft_uri("0.out"))
    orphan.write(b"0\n")
    first = shard(0, (0, 0, 1), None, out=orphan.persist().full_range, rows=1, out_bytes=2)
    orphan.write(b"1\n")
    assembler_of(ledger, as_tasks([first, shard(1, None, None), shard(2, None, None)])).publish_all()
    orphan.write(b"2\n")
    orphan.close()
    assert (tmp_path / "a.out").read_bytes() == b"0\n"


def test_suppressed_object_publishes_failures_only(any_ledger):
    ledger = any_ledger
    ledger.store.put(ledger.destination + "a.out", b"of an earlier attempt")
    assembler_of(ledger, tasks_with_failures(ledger), failures={"on_error": "object"}).publish_all()
    assert published(ledger).keys() == {"a.out.failed"}


@for_each("make", [assembler_of, parts_assembler_of])
def test_draft_removed_by_another_process_publishes_nothing(make):
    ledger = Ledger(MemoryStore(), OUT)
    records = tasks_with_failures(ledger)
    make(ledger, records).publish_all()
    before = published(ledger)
    for number in ledger.assembled():
        ledger.store.delete(ledger.uri(f"output-{number:05d}.json"))
    with pytest.raises(NotFoundError):
        make(ledger, records).publish_all()
    assert published(ledger) == before


# One part for each range


def test_each_range_becomes_a_part_with_absolute_failures(any_ledger):
    """The places of the failures in the output are those in the part."""
    ledger = any_ledger
    assembler = parts_assembler_of(ledger, tasks_with_failures(ledger))
    assembler.publish_all()
    found = published(ledger)
    assert failed_positions(found.pop("part-00000.failed.jsonl")) == [
        (Position(URI, record=0, line=1, byte=0), 0, 0)
    ]
    assert failed_positions(found.pop("part-00001.failed.jsonl")) == [
        (Position(URI, record=3, line=4, byte=12), 0, 0),
        (Position(URI, record=5, line=7, byte=20), 2, 6),
    ]
    assert found == {
        "part-00000.csv": b"y\n0\n1\n",
        "part-00001.csv": b"y\n2\n3\n",
        "part-00002.csv": b"y\n4\n5\n",
    }
    assert ledger.assembled() == assembler.assembled_tasks() == {0, 1, 2}
    assert not list(ledger.store.list(ledger.uri("drafts/")))


def test_parts_of_an_object_wait_for_its_last_range(ledger):
    """Only then are the positions of its failures known."""
    assembler = parts_assembler_of(ledger)
    first, second, third = tasks_with_failures(ledger)
    for record in (third, first):
        assembler.add_task(record)
        assert published(ledger) == {}
        assert assembler.unassembled() == [0]
    assembler.add_task(second)
    assert len(published(ledger)) == 5
    assert assembler.unassembled() == []


def test_range_without_predictions_has_no_part(any_ledger):
    ledger = any_ledger
    failed = persist_draft(ledger, "1.failed", failed_line(0, 1, 10, 0, 0))
    ranges = [
        shard(0, (0, 0, 1), (10, 1, 2), rows=1, out_bytes=2, out=persist_draft(ledger, "0.out", b"0\n")),
        shard(1, (10, 0, 1), (20, 1, 2), failed_rows=1, failed=failed, relative=True),
        shard(2, (20, 0, 1), (20, 0, 1), relative=True),
    ]
    assembler = parts_assembler_of(ledger, as_tasks(ranges))
    assembler.publish_all()
    assert published(ledger).keys() == {"part-00000.csv", "part-00001.failed.jsonl"}
    assert assembler.unassembled() == []


@for_each(
    ("make", "expected"),
    [
        (assembler_of, {"a.out.partial": b"0\n1\n"}),
        (parts_assembler_of, {"part-00000.csv": b"0\n", "part-00001.csv": b"1\n"}),
    ],
)
def test_ranges_after_the_break_of_an_object_are_dropped(make, expected):
    """They may have been read before the object broke."""
    ledger = Ledger(MemoryStore(), OUT)
    records = record_tasks(ledger)
    broken = replace(records[1].shards[0], counts=Counts(1, 1, 0, 1), end=None)
    records[1] = replace(records[1], shards=(broken,))
    for record in records:
        assert ledger.commit_task(record)
    assembler = make(ledger, records)
    assembler.publish_all()
    assert published(ledger) == expected
    assert ledger.task(2).shards == (ShardRecord(0, 2, Counts(), 0),)
    assert assembler.unassembled() == []
    assert not list(ledger.store.list(ledger.uri("drafts/")))
