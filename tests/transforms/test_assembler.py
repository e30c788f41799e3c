import pytest

from headrace.core.errors import NotFoundError
from headrace.pipeline.ledger import Counts
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import discard, open_draft
from headrace.storage.memory import MemoryStore
from headrace.transforms.assembler import Assembler
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import PlannedObject, Shard, Task, TransformPlan
from headrace.transforms.records import ShardRecord, Spot, TaskRecord
from transforms.support import settings_of

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


def done(ledger, number: int, begin: int, end: int, *, failed: int = 0, attempt: str = "a") -> TaskRecord:
    draft = open_draft(ledger.store, ledger.draft_uri(f"{number}-{attempt}"))
    draft.write(b"%d\n" % number)
    kept = draft.keep().whole
    draft.close()
    relative = number > 0
    spots = Spot(begin, 0, 1), Spot(end, 1, 2)
    shard = ShardRecord(0, number, Counts(1 + failed, 1, failed), 2, *spots, relative=relative, out=kept)
    return TaskRecord(number, attempt, (shard,))


def assembler_of(ledger, records=(), **settings) -> Assembler:
    return Assembler(ledger, PLAN, settings_of(**settings), records)


def test_an_object_is_published_when_its_last_shard_is_done_in_any_order(ledger):
    assembler = assembler_of(ledger)
    assert assembler.missing() == [0]
    for number, begin, end in ((2, 20, 30), (0, 0, 11)):
        assembler.done(done(ledger, number, begin, end))
        assert not list(ledger.store.list(OUT + "a"))
    assembler.done(done(ledger, 1, 11, 20))
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"
    assert (assembler.missing(), assembler.wrong()) == ([], {})


def test_where_the_next_range_begins_is_known_once_those_before_are_done(ledger):
    assembler = assembler_of(ledger)
    assert assembler.begins() == {}
    assembler.done(done(ledger, 0, 0, 11))
    assert assembler.begins()[0, 1] == Spot(11, 1, 2)
    assembler.done(done(ledger, 1, 11, 20))
    assert assembler.begins()[0, 2] == Spot(20, 2, 3)


def test_a_wrong_range_is_asked_for_again_and_then_the_next(ledger):
    assembler = assembler_of(ledger)
    for number, begin, end in ((0, 0, 11), (1, 13, 22), (2, 22, 30)):
        assembler.done(done(ledger, number, begin, end))
    assert not list(ledger.store.list(OUT + "a"))
    assert assembler.wrong() == {1: ((0, 1), Spot(11, 1, 2))}
    assembler.done(done(ledger, 1, 11, 20, attempt="b"))
    assert assembler.wrong() == {2: ((0, 2), Spot(20, 2, 3))}
    assembler.done(done(ledger, 2, 20, 30, attempt="b"))
    assert assembler.wrong() == {}
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"


def test_what_an_earlier_process_left_undone_is_published(ledger):
    records = [done(ledger, n, 10 * n, 10 * n + 10) for n in range(3)]
    assembler = assembler_of(ledger, records)
    assembler.publish_all()
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"
    again = assembler_of(ledger, records)
    assert again.missing() == []
    again.publish_all()


def test_what_another_process_has_put_together_meanwhile_is_done(ledger):
    records = [done(ledger, n, 10 * n, 10 * n + 10) for n in range(3)]
    assembler = assembler_of(ledger, records)
    assembler_of(ledger, records).publish_all()
    assembler.publish_all()
    assert assembler.missing() == []
    assert ledger.store.get(OUT + "a.out") == b"0\n1\n2\n"


def test_a_draft_that_is_simply_gone_is_an_error(ledger):
    records = [done(ledger, n, 10 * n, 10 * n + 10) for n in range(3)]
    discard(ledger.store, records[1].shards[0].out.kept)
    with pytest.raises(NotFoundError):
        assembler_of(ledger, records).publish_all()


@pytest.mark.parametrize(("on_error", "there"), [("record", True), ("object", False)])
def test_an_object_with_failures_is_withheld_where_that_is_asked(ledger, on_error, there):
    records = [done(ledger, n, 10 * n, 10 * n + 10, failed=n % 2) for n in range(3)]
    assembler_of(ledger, records, failures={"on_error": on_error}).publish_all()
    assert bool(list(ledger.store.list(OUT + "a.out"))) is there
    assert ledger.assembled() == {0}


def test_whole_objects_are_none_of_its_business(ledger):
    assembler = assembler_of(ledger)
    assembler.done(TaskRecord(3, "a", (ShardRecord(1, 0, Counts(1, 1), 2),)))
    assert ledger.assembled() == set()
