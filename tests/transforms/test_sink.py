"""The sink, fed by the source and flow that feed it in a run; its checkpoints and records are looked at."""

import pytest

from headrace.core.errors import CountMismatchError, UnavailableError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.pipeline.ledger import Counts
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.testing import ManualClock
from headrace.transforms import sink as module
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import make_plan
from headrace.transforms.records import Checkpoint
from headrace.transforms.sink import withholds
from headrace.transforms.work import TaskRun, Work
from transforms.support import IN, OUT, Breaking, BrokenError, WithStore, cut, put, rows, settings_of


class Watched(TransformLedger):
    """Remembers every checkpoint."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.seen: list[Checkpoint] = []

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.seen.append(checkpoint)
        super().checkpoint(checkpoint)


def work_of(stores, *, destination: str = OUT, clock=None, settings=None, **more) -> Work:
    used = settings or settings_of(tasks={"checkpoint_s": 0.0})
    plan = make_plan(IN, destination, stores, used)
    ledger = Watched(stores.for_uri(destination), destination)
    return Work(
        plan=plan,
        settings=used,
        stores=stores,
        ledger=ledger,
        learned={},
        clock=clock or ManualClock(),
        **more,
    )


def execute(work, predictor, **more) -> bool:
    return TaskRun(work, work.plan.tasks, predictor, **more).execute()


def test_checkpoints_are_made_when_they_are_due(stores, shared):
    put(stores, {"a.csv": rows(40)})
    clock = ManualClock()
    batches = []

    def tick(batch):
        batches.append(batch)
        clock.advance(1.0)

    work = work_of(stores, clock=clock, settings=settings_of(tasks={"checkpoint_s": 3.0}), on_batch=tick)
    assert execute(work, shared)
    assert [c.record for c in work.ledger.seen] == [16, 28]
    assert len(batches) == 10
    assert work.ledger.task(0).elapsed_s in (9.0, 10.0)  # committed with the last batch, or behind it


def test_a_checkpoint_says_what_is_done_and_how_far_the_next_is(stores, shared):
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


def test_a_resumed_slot_counts_what_is_in_its_drafts(stores, shared):
    put(stores, {"a.csv": b"x,1\n" + rows(20)})
    work = work_of(stores)
    with pytest.raises(BrokenError):
        execute(work, Breaking(shared, at=2))
    work.ledger.seen.clear()
    assert execute(work, shared, checkpoints=work.ledger.checkpoints())
    assert [c.entries for c in work.ledger.seen] == sorted(c.entries for c in work.ledger.seen)
    (shard,) = work.ledger.task(0).shards
    assert (shard.counts, sum(shard.failures.values())) == (Counts(21, 20, 1), 1)


def test_ranges_are_kept_and_not_published(stores, shared, monkeypatch):
    cut(monkeypatch)
    put(stores, {"a.csv": rows(10)})
    work = work_of(stores, settings=settings_of(tasks={"task_bytes": 20}))
    assert execute(work, shared)
    first, second = (work.ledger.task(n).shards[0] for n in (0, 1))
    assert first.out.nbytes == first.out_bytes == 20
    assert (first.end, second.begin) == (second.begin, first.end)
    assert first.failed is None
    assert [i.uri for i in work.ledger.store.list(OUT + "a.csv")] == []


def test_what_another_process_committed_is_told_as_it_stands(stores, shared):
    put(stores, {"a.csv": rows(3)})
    told = []
    work = work_of(stores, on_task=told.append)
    assert execute(work, shared)
    assert execute(work, shared)
    assert told[0] == told[1]
    assert told[0].attempt == told[1].attempt


def test_a_published_drafts_last_name_goes_with_the_commit(stores, shared, monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.transforms.spool.HELD_BYTES_MAX", 5)
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


def test_the_law_is_looked_at_before_anything_is_published(stores, shared, monkeypatch):
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


@pytest.mark.parametrize(
    ("on_error", "failed", "withheld"),
    [("record", True, False), ("object", True, True), ("object", False, False)],
)
def test_what_withholds_an_output(on_error, failed, withheld):
    assert withholds(settings_of(failures={"on_error": on_error}), failed=failed) is withheld


def test_outputs_of_no_rows_are_those_that_the_model_tells_of():
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
    found = module._no_rows(metadata)
    assert {n: (d.shape, d.dtype.str) for n, d in found.items()} == {
        "y": ((0,), "<f4"),
        "v": ((0, 3), "<i8"),
        "s": ((0,), "|O"),
    }


def test_nothing_is_committed_before_its_outputs_are_there(stores, shared):
    put(stores, {"a.csv": rows(3)})

    class Refusing(MemoryStore):
        def put(self, uri: str, data: bytes) -> None:
            if uri.endswith("a.csv.out"):
                raise UnavailableError(uri, "stays away")
            super().put(uri, data)

    work = work_of(WithStore(stores, OUT, Refusing()))
    with pytest.raises(UnavailableError):
        execute(work, shared)
    assert work.ledger.tasks() == {}
