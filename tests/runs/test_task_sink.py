"""The sink with a real source and flow: checkpoints and records of the ledger."""

import gzip
import io
import threading
from dataclasses import replace

import pyarrow.ipc
import pyarrow.parquet
import pytest

from cases import for_each
from headrace.core.errors import CountMismatchError, UnavailableError
from headrace.runs.ledger import Ledger
from headrace.runs.output import RecordOutput
from headrace.runs.output_settings import TABLES
from headrace.runs.records import Counts, TaskCheckpoint, TaskRecord
from headrace.runs.settings import StreamSettings
from headrace.runs.tasks import TaskRun
from headrace.runs.work import RunWork
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore, Stores
from headrace.testing import ManualClock
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    OverlaidStores,
    allow_small_tasks,
    failed_lines,
    make_settings,
    outputs,
    plan_of,
    put,
    rows,
)


class RecordingLedger(Ledger):
    """A ledger that remembers every checkpoint."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.seen: list[TaskCheckpoint] = []

    def checkpoint(self, checkpoint: TaskCheckpoint) -> None:
        self.seen.append(checkpoint)
        super().checkpoint(checkpoint)


def work_of(stores, *, destination: str = OUT, clock=None, settings=None, **more) -> RunWork:
    run_settings = settings or make_settings(checkpoint_s=0.0)
    plan = plan_of(stores, run_settings, destination=destination)
    ledger = RecordingLedger(stores.for_uri(destination), destination)
    return RunWork(
        plan=plan,
        settings=run_settings,
        stores=stores,
        ledger=ledger,
        clock=clock or ManualClock(),
        **more,
    )


def execute(work, predictor, **more) -> bool:
    return TaskRun(replace(work, **more), work.plan.tasks, predictor).execute()


def test_checkpoints_are_written_when_due(stores, shared):
    put(stores, {"a.csv": rows(40)})
    clock = ManualClock()
    batches = []

    def tick(batch):
        batches.append(batch)
        clock.advance(1.0)

    work = work_of(stores, clock=clock, settings=make_settings(checkpoint_s=3.0), on_batch=tick)
    assert execute(work, shared)
    assert [c.record for c in work.ledger.seen] == [16, 28]
    assert len(batches) == 10
    assert work.ledger.task(0).elapsed_s in (9.0, 10.0)  # committed with the last batch, or after it


def test_checkpoint_has_finished_and_current_shards(stores, shared):
    put(stores, {"a.csv": rows(6), "b.csv": b"x,1\n" + rows(20)})
    work = work_of(stores)
    assert execute(work, shared)
    at = [
        ([s.counts.rows_out for s in c.done], c.is_inside, c.record, c.counts, c.failures)
        for c in work.ledger.seen
    ]
    reason = {'decode: column 0: "…" is not a number': 1}
    assert at[0] == ([], True, 4, Counts(4, 4), {})
    assert ([6], True, 2, Counts(2, 1, 1), reason) in at
    assert at[-1][0] == [6]
    assert work.ledger.checkpoints() == {}


def test_resumed_shard_counts_its_drafts(stores, shared):
    put(stores, {"a.csv": b"x,1\n" + rows(20)})
    work = work_of(stores)
    with pytest.raises(InjectedError):
        execute(work, FailingPredictor(shared, at=2))
    work.ledger.seen.clear()
    assert execute(work, shared, checkpoints=work.ledger.checkpoints())
    assert [c.record for c in work.ledger.seen] == sorted(c.record for c in work.ledger.seen)
    (shard,) = work.ledger.task(0).shards
    assert (shard.counts, sum(shard.failures.values())) == (Counts(21, 20, 1), 1)


def test_ranges_are_persisted_but_not_published(stores, shared, monkeypatch):
    allow_small_tasks(monkeypatch)
    put(stores, {"a.csv": rows(10)})
    work = work_of(stores, settings=make_settings(tasks={"task_bytes": 20}))
    assert execute(work, shared)
    first, second = (work.ledger.task(n).shards[0] for n in (0, 1))
    assert first.out.nbytes == first.out_bytes == 20
    assert (first.end, second.begin) == (second.begin, first.end)
    assert first.failed is None
    assert [i.uri for i in work.ledger.store.list(OUT + "a.csv")] == []


def test_record_of_another_process_is_reported(stores, shared):
    put(stores, {"a.csv": rows(3)})
    records = []
    work = work_of(stores, on_task=records.append)
    assert execute(work, shared)
    assert execute(work, shared)
    assert records[0] == records[1]
    assert records[0].attempt == records[1].attempt


@pytest.mark.parametrize("partition_by", [(), ("1",)])
def test_published_draft_is_removed_with_the_commit(stores, shared, monkeypatch, tmp_path, partition_by):
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 5)
    put(stores, {"a.csv": rows(20) + b"x,1\n"})
    settings = make_settings(output={"partition_by": partition_by})
    work = work_of(stores, destination=f"{tmp_path}/out/", settings=settings)
    assert isinstance(work.ledger.store, LocalStore)
    assert execute(work, shared)
    name = "1=1" if partition_by else "a.csv.out"
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"_headrace", "a.csv.out.failed", name}
    assert list((tmp_path / "out" / "_headrace" / "drafts").iterdir()) == []


def test_counts_are_checked_before_publishing(stores, shared, monkeypatch):
    put(stores, {"a.csv": rows(3)})

    def miscount(self, selections, outputs):
        self.entries += sum(map(len, selections))
        self.counts = Counts(5, 3)

    monkeypatch.setattr(RecordOutput, "_encode", miscount)
    with pytest.raises(CountMismatchError, match=r"a\.csv"):
        execute(work_of(stores), shared)
    assert list(stores.for_uri(OUT).list(OUT + "a")) == []


def test_commit_waits_for_published_outputs(stores, shared):
    put(stores, {"a.csv": rows(3)})

    class Refusing(MemoryStore):
        def put(self, uri: str, data: bytes) -> None:
            if uri.endswith("a.csv.out"):
                raise UnavailableError(uri, "stays away")
            super().put(uri, data)

    work = work_of(OverlaidStores(stores, OUT, Refusing()))
    with pytest.raises(UnavailableError):
        execute(work, shared)
    assert work.ledger.tasks() == {}


# Parts of tasks

OBJECTS = {"a.csv": rows(6), "b.csv": b"x,1\n" + rows(9, 6) + b"-1,1\n", "c.csv": rows(2, 15)}


def stream_of(stores, objects=OBJECTS, *, task_objects_max: int = 3, checkpoint_s: float = 0.0, **more):
    """Return the work of a stream whose tasks have several objects."""
    put(stores, objects)
    tasks = {"task_objects_max": task_objects_max}
    settings = make_settings(preset=StreamSettings, tasks=tasks, checkpoint_s=checkpoint_s, **more)
    return work_of(stores, settings=settings)


def doubled(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d.0\n" % (2 * i) for i in range(start, start + count))


def comparable_tasks(work) -> list[TaskRecord]:
    """Return the records of the tasks, which do not depend on the process that ran them."""
    return [replace(record, attempt="", elapsed_s=0.0) for record in work.ledger.tasks().values()]


def test_task_of_several_objects_becomes_one_part(stores, shared):
    work = stream_of(stores, OBJECTS | {"d.csv": rows(3, 17)}, output={"header": True})
    assert [len(task.shards) for task in work.plan.tasks] == [3, 1]
    assert execute(work, shared)
    found = outputs(stores)
    failed = failed_lines(found.pop("part-00000.failed.jsonl"))
    assert found == {
        "part-00000.csv": b"y\n" + doubled(17),
        "part-00001.csv": b"y\n" + doubled(3, 17),
    }
    assert [(f["object"][-5:], f["record"], f["output_row"], f["output_byte"]) for f in failed] == [
        ("b.csv", 0, 6, len(b"y\n" + doubled(6))),
        ("b.csv", 10, 15, len(b"y\n" + doubled(15))),
    ]
    first, second = work.ledger.tasks().values()
    assert [shard.counts for shard in first.shards] == [Counts(6, 6), Counts(11, 9, 2), Counts(2, 2)]
    assert sum(shard.out_bytes for shard in first.shards) == len(found["part-00000.csv"])
    assert sum(shard.out_bytes for shard in second.shards) == len(found["part-00001.csv"])
    assert [sum(shard.failures.values()) for shard in first.shards] == [0, 2, 0]
    assert not any(shard.out or shard.failed for shard in first.shards)


@for_each("header", [False, True])
def test_part_resumes_inside_any_object_to_the_same_bytes(shared, header):
    whole = Stores()
    work = stream_of(whole, output={"header": header})
    assert execute(work, shared)
    expected, resumed_from = comparable_tasks(work), set()
    for at in range(1, 5):
        stores = Stores()
        work = stream_of(stores, output={"header": header})
        with pytest.raises(InjectedError):
            execute(work, FailingPredictor(shared, at=at))
        assert outputs(stores) == {}
        checkpoints = work.ledger.checkpoints()
        resumed_from |= {(len(c.done), c.is_inside) for c in checkpoints.values()}
        assert execute(work, shared, checkpoints=checkpoints)
        assert outputs(stores) == outputs(whole)
        assert comparable_tasks(work) == expected
    assert (1, True) in resumed_from


def test_empty_object_at_the_end_of_a_task_belongs_to_its_part(stores, shared, monkeypatch):
    """It is read only after the last batch of the task was written."""
    monkeypatch.setattr("headrace.runs.prefetch.SMALL_BYTES", 0)  # each object is read separately
    written = threading.Event()

    class Waiting(MemoryStore):
        def get_range(self, uri, start, length, **more):
            if uri.endswith("b.csv.gz"):
                assert written.wait(30)
            return super().get_range(uri, start, length, **more)

    overlaid = OverlaidStores(stores, IN, Waiting())
    objects = {"a.csv": rows(8), "b.csv.gz": gzip.compress(b""), "c.csv": rows(3, 8)}
    work = stream_of(overlaid, objects, task_objects_max=2, checkpoint_s=1e9)
    batches = []

    def on_batch(batch):
        batches.append(batch)
        if len(batches) == 2:
            written.set()

    assert execute(replace(work, on_batch=on_batch), shared)
    assert outputs(stores) == {"part-00000.csv": doubled(8), "part-00001.csv": doubled(3, 8)}
    assert [[s.counts.rows_out for s in r.shards] for r in work.ledger.tasks().values()] == [[8, 0], [3]]


def test_part_resumes_between_objects_to_the_same_bytes(shared):
    """A batch ends with the first object, so a checkpoint has no position in the second one."""
    objects = {"a.csv": rows(8), "b.csv": rows(4, 8)}
    whole, stores = Stores(), Stores()
    work = stream_of(whole, objects)
    assert execute(work, shared)
    expected = comparable_tasks(work)
    work = stream_of(stores, objects)
    with pytest.raises(InjectedError):
        execute(work, FailingPredictor(shared, at=2))
    (checkpoint,) = work.ledger.checkpoints().values()
    assert execute(work, shared, checkpoints={0: checkpoint})
    assert outputs(stores) == outputs(whole) == {"part-00000.csv": doubled(12)}
    assert comparable_tasks(work) == expected


@for_each(
    ("data", "written"),
    [(b"", set()), (b"x,1\ny,1\n", {"part-00000.failed.jsonl"})],
)
@for_each("format_", ["csv", *TABLES])
def test_part_without_predictions_has_at_most_a_header(shared, data, written, format_):
    stores = Stores()
    work = stream_of(stores, {"a.csv": data, "b.csv": b""}, output={"format": format_, "header": True})
    assert execute(work, shared)
    header = {"part-00000.csv": b"y\n"} if format_ == "csv" and not data else {}
    found = outputs(stores)
    assert set(found) == {*written, *header}
    assert header.items() <= found.items()
    (record,) = work.ledger.tasks().values()
    assert [shard.out_bytes for shard in record.shards] == [0, 2 * len(header)]


@for_each(("format_", "suffix"), [("jsonl", "jsonl"), ("csv", "csv")])
def test_part_has_the_suffix_of_its_format(shared, format_, suffix):
    stores = Stores()
    assert execute(stream_of(stores, {"a.csv": rows(1)}, output={"format": format_}), shared)
    assert list(outputs(stores)) == [f"part-00000.{suffix}"]


@for_each("format_", TABLES)
def test_part_that_is_a_table_is_scored_again_from_its_start(shared, format_):
    """A table has a footer, so a part of it cannot be continued."""
    stores = Stores()
    work = stream_of(stores, output={"format": format_})
    with pytest.raises(InjectedError):
        execute(work, FailingPredictor(shared, at=3))
    assert work.ledger.checkpoints() == {}
    assert execute(work, shared)
    data = io.BytesIO(outputs(stores)[f"part-00000.{format_}"])
    read = (
        pyarrow.parquet.read_table if format_ == "parquet" else lambda d: pyarrow.ipc.open_file(d).read_all()
    )
    assert read(data)["y"].to_pylist() == [2.0 * i for i in range(17)]


def test_drafts_of_a_part_are_removed_with_its_commit(stores, shared, monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 5)
    put(stores, OBJECTS)
    settings = make_settings(preset=StreamSettings, checkpoint_s=0.0)
    work = work_of(stores, destination=f"{tmp_path}/out/", settings=settings)
    assert execute(work, shared)
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["_headrace", "part-00000.csv", "part-00000.failed.jsonl"]
    assert list((tmp_path / "out" / "_headrace" / "drafts").iterdir()) == []
