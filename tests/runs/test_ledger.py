import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import LedgerError, ResumeRefusedError
from headrace.reports.report import RunKind
from headrace.runs.items import Cursor
from headrace.runs.ledger import Ledger, RetryLedger
from headrace.runs.plan_pages import head_of
from headrace.runs.records import (
    Counts,
    PartRecord,
    PlannedObject,
    RetriedOutput,
    ShardRecord,
    TaskCheckpoint,
    TaskRecord,
)
from headrace.runs.schema import Column, RecordSchema, Schema
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import open_draft
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore
from runs.support import make_settings

OUT = "memory://out/run/"
SCHEMA = Schema((RecordSchema("csv", (Column("a", "integer"),), ",", {1: 3}, 3),))
IDENTITY = {"source": "memory://in/", "model": "m", "settings": {"columns": (1, 2)}}
OBJECTS = [
    PlannedObject(ObjectInfo("memory://in/ä.csv", 5, '"e"', 1.5), "ä.csv.out", "eu"),
    PlannedObject(ObjectInfo("http://h/b", None), "b.out"),
]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryStore(), OUT)


def begin(
    ledger: Ledger,
    identity: Mapping[str, Any] = IDENTITY,
    objects: Sequence[PlannedObject] = OBJECTS,
    kind: RunKind = "transform",
) -> None:
    ledger.write_plan(0, objects, head_of(objects, make_settings()))
    ledger.begin(identity, kind)


def names(ledger: Ledger) -> list[str]:
    return [i.uri.removeprefix(OUT + "_headrace/") for i in ledger.store.list(OUT)]


# The run


def test_run_round_trips_and_cannot_be_replaced(ledger):
    assert ledger.identity() is None
    assert ledger.kind() is None
    assert ledger.run_id() is None
    assert ledger.plan_heads() == []
    assert ledger.schema() == Schema()
    identity = {"source": ["a"], "settings": {"x": (1, 2), "y": None}}
    ledger.write_schema(SCHEMA)
    begin(ledger, identity)
    assert (ledger.plan_page(0), list(ledger.planned_objects())) == (OBJECTS, OBJECTS)
    assert ledger.plan_heads() == [head_of(OBJECTS, make_settings())]
    assert not ledger.has_complete_plan()
    ledger.complete_plan()
    assert ledger.has_complete_plan()
    assert ledger.schema() == SCHEMA
    ledger.check_identity(identity, "transform")
    with pytest.raises(ResumeRefusedError, match=r"settings\.y was None, is 3"):
        ledger.check_identity({"source": ["a"], "settings": {"x": (1, 2), "y": 3}}, "transform")
    name = ledger.run_id()
    assert name
    # Even the same identity is another run.
    for other in (identity, {"source": "b"}):
        with pytest.raises(LedgerError, match="two runs use the same destination"):
            ledger.begin(other, "transform")
    assert ledger.run_id() == name


def test_different_run_is_refused_with_its_differences(ledger):
    begin(ledger)
    ledger.check_identity(IDENTITY, "transform")
    with pytest.raises(ResumeRefusedError, match=r"another run .model was 'm', is 'n'.*--overwrite"):
        ledger.check_identity(IDENTITY | {"model": "n"}, "transform")


def test_only_changed_settings_are_named(ledger):
    settings = {"read": {"header": "none", "format": "csv"}, "batch": [None, 1]}
    begin(ledger, IDENTITY | {"settings": settings})
    others = settings | {"read": {"header": "names", "format": "csv"}}
    with pytest.raises(ResumeRefusedError, match=r"\(settings.read.header was 'none', is 'names'\)"):
        ledger.check_identity(IDENTITY | {"settings": others}, "transform")


@for_each(("kind", "other"), [("stream", "transform"), ("transform", "stream")])
def test_run_of_another_kind_is_refused(kind, other):
    ledger = Ledger(MemoryStore(), OUT)
    begin(ledger, kind=kind)
    assert ledger.kind() == kind
    ledger.check_identity(IDENTITY, kind)
    with pytest.raises(ResumeRefusedError, match=f"kind was '{kind}', is '{other}'"):
        ledger.check_identity(IDENTITY, other)


def test_similar_object_name_is_ignored(ledger):
    ledger.store.put(OUT + "_headrace/run.json.bak", b"{}")
    assert ledger.identity() is None
    assert ledger.kind() is None


@for_each("version", [1, 99])
def test_ledger_of_another_version_is_refused(version):
    ledger = Ledger(MemoryStore(), OUT)
    ledger.store.put(f"{OUT}_headrace/run.json", b'{"v": %d}' % version)
    wanted = f"the ledger has version {version}, but this headrace writes version 4.*--overwrite"
    for use in (ledger.identity, ledger.run_id, lambda: ledger.check_identity({}, "stream")):
        with pytest.raises(LedgerError, match=wanted):
            use()


@for_each(
    ("run", "plan_name", "plan", "kind", "outputs"),
    [
        (b'{"v": 1}', "plan-00000.jsonl", b'{"uri": "memory://in/a", "size_bytes": 1}\n', "stream", [""]),
        (
            b'{"v": 1, "kind": "transform"}',
            "plan.jsonl",
            b'{"info": {"uri": "memory://in/a", "size_bytes": 1}, "output": "a.out"}\n',
            "transform",
            ["a.out"],
        ),
    ],
)
def test_run_of_version_1_can_only_be_deleted(run, plan_name, plan, kind, outputs):
    ledger = Ledger(MemoryStore(), OUT)
    ledger.store.put(ledger.uri("run.json"), run)
    ledger.store.put(ledger.uri(plan_name), plan)
    ledger.store.put(ledger.uri("task-00000.json"), b'{"v": 1}')
    with pytest.raises(LedgerError, match="the ledger has version 1"):
        ledger.identity()
    with pytest.raises(LedgerError, match="the ledger has version 1"):
        ledger.tasks()
    assert ledger.kind() == kind
    assert [planned.output for planned in ledger.planned_objects()] == outputs
    ledger.abandon()
    assert ledger.kind() == kind
    ledger.delete()
    assert names(ledger) == []


def test_plan_files_with_more_digits_stay_in_order(ledger):
    begin(ledger, objects=OBJECTS[:1])
    for number in (99_999, 100_000, 100_001):
        page = [PlannedObject(ObjectInfo(f"memory://in/{number}", 1))]
        ledger.write_plan(number, page, head_of(page, make_settings()))
    assert [planned.info.uri.rpartition("/")[2] for planned in ledger.planned_objects()] == [
        "ä.csv",
        "99999",
        "100000",
        "100001",
    ]


# Parts


def part(
    number: int, checkpoint: int = 0, *, records: int = 4, total: int | None = None, attempt: str = "a"
) -> PartRecord:
    position = Position("memory://in/a.csv", "m.csv", record=records, member_byte=512)
    counts = Counts(records, records - 1, 1)
    return PartRecord(number, checkpoint, Cursor(0, position), Counts(total or records), counts, attempt, 99)


def test_parts_and_checkpoints_of_a_run(ledger):
    begin(ledger, kind="stream")
    assert ledger.parts_state().last is None
    assert ledger.parts_state().published == 0
    ledger.write_schema(SCHEMA)
    ledger.checkpoint_part(part(0, 1, records=2), b"out", b"failed")
    assert names(ledger) == [
        "part-00000.checkpoint-0001.failed",
        "part-00000.checkpoint-0001.json",
        "part-00000.checkpoint-0001.out",
        "plan-00000.jsonl",
        "run.json",
        "schema.json",
    ]
    state = ledger.parts_state()
    assert (state.last, state.checkpoints) == (part(0, 1, records=2), [part(0, 1, records=2)])
    assert state.published == 0
    assert ledger.part_bytes(state.last) == (b"out", b"failed")
    ledger.commit_part(part(0, 1))
    state = ledger.parts_state()
    assert (state.last, state.checkpoints, state.published) == (part(0), [], 1)
    assert ledger.final_report() is None
    ledger.finish({"status": "complete"})
    assert names(ledger) == ["part-00000.json", "plan-00000.jsonl", "report.json", "run.json", "schema.json"]
    assert ledger.final_report() == {"status": "complete"}
    ledger.reopen()
    assert ledger.final_report() is None


def test_parts_are_yielded_from_a_number_on(ledger):
    for number in range(3):
        ledger.commit_part(part(number, records=number + 1))
    ledger.checkpoint_part(part(3, 1, records=9), b"", b"")
    ledger.checkpoint_part(part(3, 2, records=10), b"", b"")
    state = ledger.parts_state()
    assert state.published == 3
    assert list(ledger.parts(state)) == [part(n, records=n + 1) for n in range(3)]
    assert list(ledger.parts(state, since=2)) == [part(2, records=3)]


def test_checkpoints_of_a_published_part_are_ignored(ledger):
    """A kill between the part's record and the deletion leaves them behind."""
    begin(ledger, kind="stream")
    ledger.checkpoint_part(part(0, 1), b"", b"")
    ledger.create("part-00000.json", part(0).to_json())
    state = ledger.parts_state()
    assert (state.last, state.checkpoints, state.published) == (part(0), [], 1)
    ledger.finish({})
    assert names(ledger) == ["part-00000.json", "plan-00000.jsonl", "report.json", "run.json"]


def test_parts_with_more_digits_stay_in_order(ledger):
    for number in (99_999, 100_000, 100_001):
        ledger.commit_part(part(number))
    assert ledger.parts_state().last.part == 100_001
    for number in (9_999, 10_000):
        ledger.checkpoint_part(part(100_002, number), b"", b"")
    assert ledger.parts_state().last.checkpoint == 10_000


def test_different_part_of_another_process_is_refused(ledger):
    begin(ledger, kind="stream")
    ledger.commit_part(part(0))
    ledger.commit_part(part(0))
    with pytest.raises(LedgerError, match=r"part-00000.json was written by another process.*--resume"):
        ledger.commit_part(part(0, attempt="b"))


# Tasks


def record(task: int, *, attempt: str = "a", rows: int = 3) -> TaskRecord:
    return TaskRecord(task, attempt, (ShardRecord(task, 0, Counts(rows, rows), 9),), 0.5)


def test_second_commit_of_a_task_changes_nothing(ledger):
    ledger.checkpoint(TaskCheckpoint(4, ()))
    assert ledger.commit_task(record(4))
    assert ledger.checkpoints() == {}
    assert not ledger.commit_task(record(4, attempt="b", rows=5))
    assert ledger.commit_task(record(123_456))
    assert ledger.tasks() == {4: record(4), 123_456: record(123_456)}
    assert list(ledger.iterate_tasks(without={4})) == [record(123_456)]
    ledger.checkpoint(TaskCheckpoint(7, ()))
    assert ledger.done_tasks() == {4, 123_456}
    assert (ledger.task(4), ledger.task(5)) == (record(4), None)
    ledger.replace_task(record(4, attempt="c"))
    assert ledger.task(4) == record(4, attempt="c")


def test_tasks_and_checkpoints_are_separate(ledger):
    ledger.commit_task(record(1))
    ledger.checkpoint(TaskCheckpoint(1, (), is_inside=True, record=5))
    ledger.checkpoint(TaskCheckpoint(2, (), is_inside=True, record=6))
    ledger.checkpoint(TaskCheckpoint(2, (), is_inside=True, record=7))
    assert list(ledger.tasks()) == [1]
    assert {n: c.record for n, c in ledger.checkpoints().items()} == {1: 5, 2: 7}
    assert {n: c.record for n, c in ledger.checkpoints([2, 3]).items()} == {2: 7}


def with_draft(ledger: Ledger, task: int) -> TaskRecord:
    """Return the record of a task with a persisted output."""
    draft = open_draft(ledger.store, ledger.draft_uri(f"{task}.out"))
    draft.write(b"rows")
    persisted = draft.persist()
    draft.close()
    return TaskRecord(task, "a", (ShardRecord(task, 0, Counts(1, 1), 4, out=persisted.full_range),))


def test_tasks_with_lost_drafts_are_found(ledger):
    records = {n: with_draft(ledger, n) for n in range(3)} | {3: record(3)}
    for one in records.values():
        ledger.commit_task(one)
    assert not any(map(ledger.is_lost, records.values()))
    for info in list(ledger.store.list(ledger.draft_uri(""))):
        if not info.uri.startswith(ledger.draft_uri("0.out")):
            ledger.store.delete(info.uri)
    assert [number for number, one in records.items() if ledger.is_lost(one)] == [1, 2]
    ledger.delete_task(2)
    assert ledger.done_tasks() == {0, 1, 3}


def test_assembled_outputs_are_recorded(ledger):
    assert ledger.assembled() == set()
    for number in (7, 123_456):
        ledger.commit_output(number)
    assert ledger.assembled() == {7, 123_456}


# The end


def test_finish_removes_drafts_and_checkpoints(ledger):
    begin(ledger)
    ledger.commit_task(record(1))
    ledger.checkpoint(TaskCheckpoint(1, ()))
    ledger.commit_output(7)
    ledger.store.put(ledger.draft_uri("x.out"), b"1")
    assert ledger.final_report() is None
    ledger.finish({"rows": 3})
    assert ledger.final_report() == {"rows": 3}
    assert names(ledger) == [
        "output-00007.json",
        "plan-00000.jsonl",
        "report.json",
        "run.json",
        "task-00001.json",
    ]
    assert ledger.assembled() == {7}


@pytest.mark.parametrize("end", ["finish", "delete"])
def test_unfinished_files_of_killed_writers_are_removed(tmp_path, end):
    ledger = Ledger(LocalStore(), f"{tmp_path}/")
    begin(ledger)
    for folder in ("_headrace", "_headrace/drafts"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / ".headrace-1-aa.tmp").write_bytes(b"")
    (tmp_path / ".headrace-2-bb.tmp").write_bytes(b"perhaps of another writer, who lives")
    _ = ledger.finish({}) if end == "finish" else ledger.delete()
    assert [p.name for p in tmp_path.rglob(".headrace-*")] == [".headrace-2-bb.tmp"]


@pytest.mark.parametrize("store", [MemoryStore(), LocalStore()])
def test_publish_replaces_without_leaving_a_draft(tmp_path, store):
    ledger = Ledger(store, f"{tmp_path}/" if isinstance(store, LocalStore) else OUT)
    ledger.publish("_report.json", b"1")
    ledger.publish("_report.json", b"22")
    assert [i.uri for i in store.list(ledger.destination)] == [ledger.destination + "_report.json"]
    assert store.get(ledger.destination + "_report.json") == b"22"


def test_deleted_run_cannot_be_resumed(ledger):
    begin(ledger)
    ledger.commit_task(record(1))
    ledger.store.put(OUT + "other", b"1")
    ledger.abandon()
    assert ledger.identity() is not None
    assert list(ledger.planned_objects()) == OBJECTS
    with pytest.raises(ResumeRefusedError):
        ledger.check_identity(IDENTITY, "transform")
    ledger.delete()
    assert names(ledger) == [OUT + "other"]
    assert ledger.identity() is None


@pytest.mark.parametrize("action", ["abandon", "delete"])
def test_destination_without_a_run_stays_unchanged(ledger, action):
    ledger.store.put(OUT + "other", b"1")
    getattr(ledger, action)()
    assert names(ledger) == [OUT + "other"]


# Damaged records


def _with_all_records() -> Ledger:
    ledger = Ledger(MemoryStore(), OUT)
    begin(ledger)
    ledger.write_schema(SCHEMA)
    ledger.commit_part(part(0))
    ledger.checkpoint_part(part(1, checkpoint=1), b"", b"")
    ledger.commit_task(record(0))
    ledger.checkpoint(TaskCheckpoint(1, ()))
    ledger.finish({"exit_code": 0})
    retries = RetryLedger(ledger)
    retries.commit(RetriedOutput(0, 1, 20, {}))
    retries.begin_redo([0])
    retries.save_new_info(0, OBJECTS[0].info)
    return ledger


def _read_all(ledger: Ledger, name: str) -> object:
    retries = RetryLedger(ledger)
    readers = {
        "run.json": ledger.kind,
        "plan-00000.jsonl": lambda: (ledger.plan_heads(), ledger.plan_page(0)),
        "schema.json": ledger.schema,
        "part-00000.json": lambda: list(ledger.parts(ledger.parts_state())),
        "task-00000.json": lambda: (ledger.task(0), ledger.tasks()),
        "report.json": ledger.final_report,
        "retried-00000.json": retries.retried,
        "again.json": retries.objects_to_redo,
        "renewed-00000.json": retries.new_infos,
    }
    return readers[name]()


@for_each(
    "name",
    [
        "run.json",
        "plan-00000.jsonl",
        "schema.json",
        "part-00000.json",
        "task-00000.json",
        "report.json",
        "retried-00000.json",
        "again.json",
        "renewed-00000.json",
    ],
)
@for_each("text", [b"", b'{"v": 2', b"[1]", b'"x"'])
def test_damaged_record_is_named(name, text):
    ledger = _with_all_records()
    assert _read_all(ledger, name) is not None
    uri = ledger.uri(name)
    if name == "plan-00000.jsonl":
        text, uri = ledger.store.get(uri) + (text or b"{"), f"{uri}: line 4"
    ledger.store.put(ledger.uri(name), text)
    with pytest.raises(LedgerError, match=re.escape(uri) + ": the record is damaged: .*Restore it"):
        _read_all(ledger, name)


@for_each(
    ("name", "field", "why"),
    [
        ("part-00000.json", "cursor", "'cursor' is missing"),
        ("part-00000.json", "total", "missing required field `total`"),
        ("task-00000.json", "shards", "missing required field `shards`"),
        ("task-00001.checkpoint.json", "done", "missing required field `done`"),
        ("again.json", "indices", "'indices' is missing"),
    ],
)
def test_missing_field_of_a_record_is_named(name, field, why):
    ledger = _with_all_records()
    ledger.checkpoint(TaskCheckpoint(1, ()))
    data = json.loads(ledger.store.get(ledger.uri(name)))
    del data[field]
    ledger.store.put(ledger.uri(name), json.dumps(data).encode())
    with pytest.raises(LedgerError, match=f"{re.escape(ledger.uri(name))}: the record is damaged: .*{why}"):
        ledger.checkpoints() if "checkpoint" in name else _read_all(ledger, name)
