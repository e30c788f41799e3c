import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Position
from headrace.core.errors import LedgerError, ResumeRefusedError
from headrace.pipeline.ledger import Counts
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import Kept, KeptRange
from headrace.storage.memory import MemoryStore
from headrace.transforms.ledger import (
    Checkpoint,
    ShardRecord,
    Spot,
    TaskRecord,
    TransformLedger,
    repeated_bytes,
)
from headrace.transforms.plan import PlannedObject

OUT = "memory://out/"

NUMBERS = st.integers(0, 2**40)
COUNTS = st.builds(Counts, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
SPOTS = st.builds(Spot, NUMBERS, NUMBERS, NUMBERS)
KEPT = st.builds(KeptRange, st.builds(Kept, st.text(max_size=9), NUMBERS, NUMBERS), NUMBERS, NUMBERS)
REASONS = st.dictionaries(st.text(max_size=9), NUMBERS, max_size=3)
SHARDS = st.builds(
    ShardRecord,
    index=NUMBERS,
    number=NUMBERS,
    counts=COUNTS,
    out_bytes=NUMBERS,
    begin=st.none() | SPOTS,
    end=st.none() | SPOTS,
    relative=st.booleans(),
    begin_bytes=NUMBERS,
    out=st.none() | KEPT,
    failed=st.none() | KEPT,
    failures=REASONS,
)
DONE = st.lists(SHARDS, max_size=3).map(tuple)


@pytest.fixture
def ledger() -> TransformLedger:
    return TransformLedger(MemoryStore(), OUT)


def record(task: int, *, attempt: str = "a", rows: int = 3) -> TaskRecord:
    return TaskRecord(task, attempt, (ShardRecord(task, 0, Counts(rows, rows), 9),), 0.5)


def names(ledger) -> list[str]:
    return [i.uri.removeprefix(OUT + "_headrace/") for i in ledger.store.list(OUT)]


@given(st.builds(TaskRecord, NUMBERS, st.text(max_size=9), DONE, st.floats(0, 1e9)))
def test_a_tasks_record_comes_back(record):
    assert TaskRecord.from_json(record.to_json()) == record


@given(
    st.builds(
        Checkpoint,
        task=NUMBERS,
        done=DONE,
        entries=NUMBERS,
        record=NUMBERS,
        line=NUMBERS,
        byte=NUMBERS,
        counts=COUNTS,
        begin=st.none() | SPOTS,
        relative=st.booleans(),
        member_byte=NUMBERS,
        member=st.none() | st.text(max_size=9),
        begin_bytes=NUMBERS,
        out=st.none() | KEPT,
        failed=st.none() | KEPT,
        failures=REASONS,
    )
)
def test_a_checkpoint_comes_back(checkpoint):
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_a_checkpoint_tells_where_to_go_on():
    checkpoint = Checkpoint(1, (), 5, record=7, line=8, byte=9, member="m", member_byte=512)
    assert checkpoint.position("u") == Position("u", "m", 7, 8, 9, 512)
    assert Spot.of(Position("u", record=1, line=2, byte=3)).position("u") == Position(
        "u", record=1, line=2, byte=3
    )


@pytest.mark.parametrize("kind", [TaskRecord, Checkpoint])
def test_another_versions_record_is_refused(kind):
    with pytest.raises(LedgerError, match="version 9"):
        kind.from_json(b'{"v": 9}')


def test_who_finishes_a_task_second_changes_nothing(ledger):
    ledger.checkpoint(Checkpoint(4, ()))
    assert ledger.commit_task(record(4))
    assert ledger.checkpoints() == {}
    assert not ledger.commit_task(record(4, attempt="b", rows=5))
    assert ledger.commit_task(record(123_456))
    assert ledger.tasks() == {4: record(4), 123_456: record(123_456)}
    assert (ledger.task(4), ledger.task(5)) == (record(4), None)
    ledger.replace_task(record(4, attempt="c"))
    assert ledger.task(4) == record(4, attempt="c")


def test_tasks_and_checkpoints_are_kept_apart(ledger):
    ledger.commit_task(record(1))
    ledger.checkpoint(Checkpoint(1, (), 5))
    ledger.checkpoint(Checkpoint(2, (), 6))
    ledger.checkpoint(Checkpoint(2, (), 7))
    assert list(ledger.tasks()) == [1]
    assert {n: c.entries for n, c in ledger.checkpoints().items()} == {1: 5, 2: 7}


OBJECTS = [
    PlannedObject(ObjectInfo("memory://in/ä.csv", 5, '"e"', 1.5), "ä.csv.out"),
    PlannedObject(ObjectInfo("http://h/b", None), "b.out"),
]


def test_a_run_comes_back(ledger):
    assert ledger.identity() is None
    assert ledger.objects() == []
    assert ledger.learned() is None
    identity = {"source": ["a"], "settings": {"x": (1, 2), "y": None}}
    ledger.learn({"csv_width": 3})
    ledger.begin(identity, OBJECTS)
    assert ledger.objects() == OBJECTS
    assert ledger.learned() == {"csv_width": 3}
    ledger.check_identity(identity)
    with pytest.raises(ResumeRefusedError, match=r"settings\.y was None, is 3"):
        ledger.check_identity({"source": ["a"], "settings": {"x": (1, 2), "y": 3}})
    ledger.begin(identity, OBJECTS)
    with pytest.raises(LedgerError, match="two transforms"):
        ledger.begin({"source": "b"}, OBJECTS)


def test_only_a_transforms_ledger_is_one(ledger):
    ledger.store.put(OUT + "_headrace/run.json", b'{"v": 1}')
    with pytest.raises(LedgerError, match="headrace stream"):
        ledger.identity()


def test_a_name_that_begins_like_another_is_another(ledger):
    ledger.store.put(OUT + "_headrace/run.json.bak", b"{}")
    assert ledger.identity() is None


def test_at_the_end_drafts_and_checkpoints_go(ledger):
    ledger.begin({}, OBJECTS)
    ledger.commit_task(record(1))
    ledger.checkpoint(Checkpoint(1, ()))
    ledger.commit_object(7)
    ledger.store.put(ledger.draft_uri("x.out"), b"1")
    assert ledger.finished() is None
    ledger.finish({"rows": 3})
    assert ledger.finished() == {"rows": 3}
    assert names(ledger) == ["object-00007.json", "plan.jsonl", "report.json", "run.json", "task-00001.json"]
    assert ledger.assembled() == {7}


def test_what_is_deleted_cannot_be_resumed_and_leaves_its_neighbours(ledger):
    ledger.begin({"source": "a"}, OBJECTS)
    ledger.commit_task(record(1))
    ledger.store.put(OUT + "other", b"1")
    ledger.abandon()
    assert ledger.identity() is not None
    with pytest.raises(ResumeRefusedError):
        ledger.check_identity({"source": "a"})
    ledger.delete()
    assert names(ledger) == [OUT + "other"]
    assert ledger.identity() is None


@pytest.mark.parametrize(
    ("begins", "repeated"), [([], []), ([0, 5, 0, 5, 5], [0, 0, 0, 5, 5]), ([5, 5], [0, 5]), ([0, 0], [0, 0])]
)
def test_a_header_is_of_the_first_shard_that_has_one(begins, repeated):
    shards = [ShardRecord(0, n, Counts(), 9, begin_bytes=b) for n, b in enumerate(begins)]
    assert repeated_bytes(shards) == repeated
