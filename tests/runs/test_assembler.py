"""Objects are published as soon as their shards are finished and placed correctly."""

import pytest

from headrace.core.errors import NotFoundError
from headrace.runs.assembler import Assembler
from headrace.runs.ledger import TransformLedger
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import PlannedObject, Shard, Task, TransformPlan
from headrace.runs.records import ShardPosition, ShardRecord, TaskRecord
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import discard, open_draft
from headrace.storage.memory import MemoryStore
from runs.support import make_settings

OUT = "memory://out/"
PLAN = TransformPlan(
    (PlannedObject(ObjectInfo("a", 30), "a.out"), PlannedObject(ObjectInfo("b", 3), "b.out")),
    (
        Task(0, (Shard(0, 0, 3, 0, 10),)),
        Task(1, (Shard(0, 1, 3, 10, 20),)),
        Task(2, (Shard(0, 2, 3, 20, None),)),
        Task(3, (Shard(1),)),
    ),
)


@pytest.fixture
def ledger() -> TransformLedger:
    return TransformLedger(MemoryStore(), OUT)


def record_task(
    ledger, number: int, begin: int, end: int, *, failed: int = 0, attempt: str = "a"
) -> TaskRecord:
    draft = open_draft(ledger.store, ledger.draft_uri(f"{number}-{attempt}"))
    draft.write(b"%d\n" % number)
    persisted = draft.persist().full_range
    draft.close()
    relative = number > 0
    positions = ShardPosition(begin, 0, 1), ShardPosition(end, 1, 2)
    shard = ShardRecord(
        0, number, Counts(1 + failed, 1, failed), 2, *positions, relative=relative, out=persisted
    )
    return TaskRecord(number, attempt, (shard,))


def assembler_of(ledger, records=(), **settings) -> Assembler:
    return Assembler(ledger, PLAN, make_settings(**settings), records)


def test_last_shard_publishes_the_object_in_any_order(ledger):
    assembler = assembler_of(ledger)
    assert assembler.unassembled() == [0]
    for number, begin, end in ((2, 20, 30), (0, 0, 11)):
        assembler.add_task(record_task(ledger, number, begin, end))
        assert not list(ledger.store.list(OUT + "a"))
    assembler.add_task(record_task(ledger, 1, 11, 20))
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"
    assert (assembler.unassembled(), assembler.ranges_to_redo()) == ([], {})


def test_range_start_is_known_after_the_earlier_ranges(ledger):
    assembler = assembler_of(ledger)
    assert assembler.range_starts() == {}
    assembler.add_task(record_task(ledger, 0, 0, 11))
    assert assembler.range_starts()[0, 1] == ShardPosition(11, 1, 2)
    assembler.add_task(record_task(ledger, 1, 11, 20))
    assert assembler.range_starts()[0, 2] == ShardPosition(20, 2, 3)


def test_misplaced_ranges_are_redone_one_after_another(ledger):
    assembler = assembler_of(ledger)
    for number, begin, end in ((0, 0, 11), (1, 13, 22), (2, 22, 30)):
        assembler.add_task(record_task(ledger, number, begin, end))
    assert not list(ledger.store.list(OUT + "a"))
    assert assembler.ranges_to_redo() == {1: ((0, 1), ShardPosition(11, 1, 2))}
    assembler.add_task(record_task(ledger, 1, 11, 20, attempt="b"))
    assert assembler.ranges_to_redo() == {2: ((0, 2), ShardPosition(20, 2, 3))}
    assembler.add_task(record_task(ledger, 2, 20, 30, attempt="b"))
    assert assembler.ranges_to_redo() == {}
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"


def test_publish_all_completes_an_earlier_process(ledger):
    records = [record_task(ledger, n, 10 * n, 10 * n + 10) for n in range(3)]
    assembler = assembler_of(ledger, records)
    assembler.publish_all()
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"
    again = assembler_of(ledger, records)
    assert again.unassembled() == []
    again.publish_all()


def test_object_published_by_another_process_counts(ledger):
    records = [record_task(ledger, n, 10 * n, 10 * n + 10) for n in range(3)]
    assembler = assembler_of(ledger, records)
    assembler_of(ledger, records).publish_all()
    assembler.publish_all()
    assert assembler.unassembled() == []
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"


def test_missing_draft_is_an_error(ledger):
    records = [record_task(ledger, n, 10 * n, 10 * n + 10) for n in range(3)]
    discard(ledger.store, records[1].shards[0].out.kept)
    with pytest.raises(NotFoundError):
        assembler_of(ledger, records).publish_all()


@pytest.mark.parametrize(("on_error", "is_published"), [("record", True), ("object", False)])
def test_on_error_object_suppresses_an_object_with_failures(ledger, on_error, is_published):
    records = [record_task(ledger, n, 10 * n, 10 * n + 10, failed=n % 2) for n in range(3)]
    assembler_of(ledger, records, failures={"on_error": on_error}).publish_all()
    assert bool(list(ledger.store.list(OUT + "a.out"))) is is_published
    assert ledger.assembled_objects() == {0}


def test_whole_objects_are_ignored(ledger):
    assembler = assembler_of(ledger)
    assembler.add_task(TaskRecord(3, "a", (ShardRecord(1, 0, Counts(1, 1), 2),)))
    assert ledger.assembled_objects() == set()
