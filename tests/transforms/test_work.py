from dataclasses import replace

import pytest

from headrace.core.errors import TooManyFailuresError, UnavailableError
from headrace.core.tensor import InferRequest
from headrace.storage.memory import MemoryStore
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import make_plan
from headrace.transforms.work import TaskRun, Work
from transforms.support import IN, OUT, Breaking, BrokenError, FailsOnce, put, rows, settings_of


def work_of(stores, *, store=None, checkpoint_s: float = 1e9, **more) -> Work:
    used = settings_of(tasks={"checkpoint_s": checkpoint_s, "task_objects_max": 2})
    plan = make_plan(IN, OUT, stores, used)
    ledger = TransformLedger(store or stores.for_uri(OUT), OUT)
    return Work(plan=plan, settings=used, stores=stores, ledger=ledger, learned={}, **more)


def test_it_does_its_tasks(stores, shared):
    put(stores, {"a.csv": rows(5), "b.csv": rows(5), "c.csv": rows(1)})
    work = work_of(stores)
    run = TaskRun(work, work.plan.tasks, shared)
    assert run.reading == IN + "a.csv"
    assert run.execute()
    assert run.reading == IN + "c.csv"
    assert [len(r.shards) for r in work.ledger.tasks().values()] == [2, 1]
    assert work.progress.rows_out == 11


def test_what_was_delivered_before_it_broke_is_kept(stores, shared):
    put(stores, {"a.csv": rows(20)})
    work = work_of(stores)
    with pytest.raises(BrokenError):
        TaskRun(work, work.plan.tasks, Breaking(shared, at=3)).execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert (checkpoint.record, checkpoint.counts.rows_out) == (12, 12)
    predictor = Breaking(shared, at=-1)
    again = TaskRun(work, work.plan.tasks, predictor, checkpoints=work.ledger.checkpoints())
    assert again.execute()
    assert predictor.asked == 2
    assert work.ledger.task(0).shards[0].counts.rows_out == 20


def test_what_was_written_when_somebody_had_enough_is_kept_once(stores, shared):
    """The batch is in the output, so the cursor must be behind it."""
    put(stores, {"a.csv": rows(20)})
    told = []

    def enough(batch):
        told.append(batch)
        if len(told) == 2:
            raise TooManyFailuresError("enough")

    work = work_of(stores, on_batch=enough)
    with pytest.raises(TooManyFailuresError):
        TaskRun(work, work.plan.tasks, shared).execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert (checkpoint.record, checkpoint.counts.rows_out, checkpoint.out.nbytes) == (8, 8, 35)


def test_what_was_written_by_half_is_not_kept(stores, shared, monkeypatch):
    monkeypatch.setattr("headrace.transforms.spool.HELD_BYTES_MAX", 5)
    monkeypatch.setattr("headrace.storage.draft.SEGMENT_BYTES", 5)
    put(stores, {"a.csv": rows(20)})
    for at in range(1, 8):
        work = work_of(stores, store=FailsOnce(MemoryStore(), at=at, done=False))
        with pytest.raises(UnavailableError):
            TaskRun(work, work.plan.tasks, shared).execute()
        for checkpoint in work.ledger.checkpoints().values():
            assert checkpoint.record == checkpoint.counts.rows_out == checkpoint.entries


def test_a_drain_keeps_what_was_delivered(stores, shared):
    put(stores, {"a.csv": rows(20), "b.csv": rows(20)})
    work = work_of(stores)
    predictor = Breaking(shared, at=6)
    run = TaskRun(work, work.plan.tasks, predictor)
    predictor.action = run.drain
    assert not run.execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert [s.counts.rows_out for s in checkpoint.done] == [20]
    assert checkpoint.record == checkpoint.counts.rows_out > 0


def test_a_model_is_asked_by_itself(stores, shared):
    """Nobody else's request is in a batch."""
    put(stores, {"a.csv": rows(5)})
    work = work_of(stores)
    seen: list[InferRequest] = []
    predictor = Breaking(shared, at=-1)
    real = shared.submit

    class Watching(Breaking):
        def submit(self, request):
            seen.append(request)
            return real(request)

    TaskRun(work, work.plan.tasks, Watching(predictor.inner, at=-1)).execute()
    assert [len(r.inputs[0].data) for r in seen] == [4, 1]


def test_of_a_batch_that_broke_the_sink_nothing_is_kept(stores, shared):
    """Its records are in the output already, and the cursor before them is not theirs."""
    put(stores, {"a.csv": rows(8) + b"9,1\nx,1\n" + rows(8)})
    used = settings_of(failures={"on_error": "job"}, tasks={"checkpoint_s": 0.0})
    work = work_of(stores)
    work = replace(work, settings=used)
    with pytest.raises(TooManyFailuresError):
        TaskRun(work, work.plan.tasks, shared).execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert (checkpoint.record, checkpoint.counts.records_in, checkpoint.out.nbytes) == (8, 8, 35)
