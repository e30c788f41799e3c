import pytest

from headrace.core.errors import LedgerError, ResumeRefusedError
from headrace.runs.ledger import TransformLedger
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import PlannedObject
from headrace.runs.records import ShardRecord, TaskCheckpoint, TaskRecord
from headrace.storage.contract import ObjectInfo
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore

OUT = "memory://out/"


@pytest.fixture
def ledger() -> TransformLedger:
    return TransformLedger(MemoryStore(), OUT)


def record(task: int, *, attempt: str = "a", rows: int = 3) -> TaskRecord:
    return TaskRecord(task, attempt, (ShardRecord(task, 0, Counts(rows, rows), 9),), 0.5)


def names(ledger) -> list[str]:
    return [i.uri.removeprefix(OUT + "_headrace/") for i in ledger.store.list(OUT)]


def test_second_commit_of_a_task_changes_nothing(ledger):
    ledger.checkpoint(TaskCheckpoint(4, ()))
    assert ledger.commit_task(record(4))
    assert ledger.checkpoints() == {}
    assert not ledger.commit_task(record(4, attempt="b", rows=5))
    assert ledger.commit_task(record(123_456))
    assert ledger.tasks() == {4: record(4), 123_456: record(123_456)}
    ledger.checkpoint(TaskCheckpoint(7, ()))
    assert ledger.done_tasks() == {4, 123_456}
    assert (ledger.task(4), ledger.task(5)) == (record(4), None)
    ledger.replace_task(record(4, attempt="c"))
    assert ledger.task(4) == record(4, attempt="c")


def test_tasks_and_checkpoints_are_separate(ledger):
    ledger.commit_task(record(1))
    ledger.checkpoint(TaskCheckpoint(1, (), 5))
    ledger.checkpoint(TaskCheckpoint(2, (), 6))
    ledger.checkpoint(TaskCheckpoint(2, (), 7))
    assert list(ledger.tasks()) == [1]
    assert {n: c.entries for n, c in ledger.checkpoints().items()} == {1: 5, 2: 7}


OBJECTS = [
    PlannedObject(ObjectInfo("memory://in/ä.csv", 5, '"e"', 1.5), "ä.csv.out"),
    PlannedObject(ObjectInfo("http://h/b", None), "b.out"),
]


def test_run_round_trips_and_cannot_be_replaced(ledger):
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
    name = ledger.run_id()
    assert name
    # Even the same identity is another run.
    for other in (identity, {"source": "b"}):
        with pytest.raises(LedgerError, match="two transforms"):
            ledger.begin(other, OBJECTS)
    assert ledger.run_id() == name


def test_ledger_of_a_stream_is_refused(ledger):
    ledger.store.put(OUT + "_headrace/run.json", b'{"v": 1}')
    with pytest.raises(LedgerError, match="headrace stream"):
        ledger.identity()


def test_similar_object_name_is_ignored(ledger):
    ledger.store.put(OUT + "_headrace/run.json.bak", b"{}")
    assert ledger.identity() is None


def test_finish_removes_drafts_and_checkpoints(ledger):
    ledger.begin({}, OBJECTS)
    ledger.commit_task(record(1))
    ledger.checkpoint(TaskCheckpoint(1, ()))
    ledger.commit_object(7)
    ledger.store.put(ledger.draft_uri("x.out"), b"1")
    assert ledger.final_report() is None
    ledger.finish({"rows": 3})
    assert ledger.final_report() == {"rows": 3}
    assert names(ledger) == ["object-00007.json", "plan.jsonl", "report.json", "run.json", "task-00001.json"]
    assert ledger.assembled_objects() == {7}


@pytest.mark.parametrize("end", ["finish", "delete"])
def test_unfinished_files_of_killed_writers_are_removed(tmp_path, end):
    ledger = TransformLedger(LocalStore(), f"{tmp_path}/")
    ledger.begin({}, OBJECTS)
    for folder in ("_headrace", "_headrace/drafts"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / ".headrace-1-aa.tmp").write_bytes(b"")
    (tmp_path / ".headrace-2-bb.tmp").write_bytes(b"perhaps of another writer, who lives")
    _ = ledger.finish({}) if end == "finish" else ledger.delete()
    assert [p.name for p in tmp_path.rglob(".headrace-*")] == [".headrace-2-bb.tmp"]


@pytest.mark.parametrize("store", [MemoryStore(), LocalStore()])
def test_publish_replaces_without_leaving_a_draft(tmp_path, store):
    ledger = TransformLedger(store, f"{tmp_path}/" if isinstance(store, LocalStore) else OUT)
    ledger.publish("_report.json", b"1")
    ledger.publish("_report.json", b"22")
    assert [i.uri for i in store.list(ledger.destination)] == [ledger.destination + "_report.json"]
    assert store.get(ledger.destination + "_report.json") == b"22"


def test_deleted_run_cannot_be_resumed(ledger):
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
