"""The sink with a real source and flow: checkpoints and records of the ledger."""

import pytest

from cases import for_each
from headrace.core.errors import CountMismatchError, UnavailableError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.runs import task_sink as module
from headrace.runs.ledger import TransformLedger
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import make_plan
from headrace.runs.records import TaskCheckpoint
from headrace.runs.task_run import TaskRun, TransformWork
from headrace.runs.task_sink import suppresses_output
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.testing import ManualClock
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    OverlaidStores,
    allow_small_tasks,
    make_settings,
    put,
    rows,
)


class RecordingLedger(TransformLedger):
    """A ledger that remembers every checkpoint."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.seen: list[TaskCheckpoint] = []

    def checkpoint(self, checkpoint: TaskCheckpoint) -> None:
        self.seen.append(checkpoint)
        super().checkpoint(checkpoint)


def work_of(stores, *, destination: str = OUT, clock=None, settings=None, **more) -> TransformWork:
    run_settings = settings or make_settings(checkpoint_s=0.0)
    plan = make_plan(IN, destination, stores, run_settings)
    ledger = RecordingLedger(stores.for_uri(destination), destination)
    return TransformWork(
        plan=plan,
        settings=run_settings,
        stores=stores,
        ledger=ledger,
        learned={},
        clock=clock or ManualClock(),
        **more,
    )


def execute(work, predictor, **more) -> bool:
    return TaskRun(work, work.plan.tasks, predictor, **more).execute()


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
        ([s.counts.rows_out for s in c.done], c.entries, c.record, c.counts, c.failures)
        for c in work.ledger.seen
    ]
    reason = {'decode: column 0: "…" is not a number': 1}
    assert at[0] == ([], 4, 4, Counts(4, 4), {})
    assert ([6], 2, 2, Counts(2, 1, 1), reason) in at
    assert at[-1][0] == [6]
    assert work.ledger.checkpoints() == {}


def test_resumed_shard_counts_its_drafts(stores, shared):
    put(stores, {"a.csv": b"x,1\n" + rows(20)})
    work = work_of(stores)
    with pytest.raises(InjectedError):
        execute(work, FailingPredictor(shared, at=2))
    work.ledger.seen.clear()
    assert execute(work, shared, checkpoints=work.ledger.checkpoints())
    assert [c.entries for c in work.ledger.seen] == sorted(c.entries for c in work.ledger.seen)
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


def test_published_draft_is_removed_with_the_commit(stores, shared, monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.runs.spooled_output.BUFFER_BYTES_MAX", 5)
    put(stores, {"a.csv": rows(20) + b"x,1\n"})
    work = work_of(stores, destination=f"{tmp_path}/out/")
    assert isinstance(work.ledger.store, LocalStore)
    assert execute(work, shared)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "_headrace",
        "a.csv.out",
        "a.csv.out.failed",
    ]
    assert list((tmp_path / "out" / "_headrace" / "drafts").iterdir()) == []


def test_counts_are_checked_before_publishing(stores, shared, monkeypatch):
    put(stores, {"a.csv": rows(3)})
    monkeypatch.setattr(
        module.ShardOutput,
        "_count",
        lambda self, rows, failures: (
            setattr(self, "entries", self.entries + rows) or setattr(self, "counts", Counts(5, 3))
        ),
    )
    with pytest.raises(CountMismatchError, match=r"a\.csv"):
        execute(work_of(stores), shared)
    assert list(stores.for_uri(OUT).list(OUT + "a")) == []


@for_each(
    ("on_error", "failed", "suppressed"),
    [("record", True, False), ("object", True, True), ("object", False, False)],
)
def test_on_error_object_suppresses_output_with_failures(on_error, failed, suppressed):
    assert suppresses_output(make_settings(failures={"on_error": on_error}), failed=failed) is suppressed


def test_empty_outputs_follow_the_metadata():
    metadata = ModelMetadata(
        "m",
        outputs=(
            TensorSpec("y", "FP32", (-1,)),
            TensorSpec("v", "INT64", (-1, 3)),
            TensorSpec("open", "FP32", (-1, -1)),
            TensorSpec("unknown", "FP32", None),
            TensorSpec("s", "BYTES", (-1,)),
        ),
    )
    found = module._make_empty_outputs(metadata)
    assert {n: (d.shape, d.dtype.str) for n, d in found.items()} == {
        "y": ((0,), "<f4"),
        "v": ((0, 3), "<i8"),
        "s": ((0,), "|O"),
    }


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
