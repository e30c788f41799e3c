from dataclasses import replace

import pytest

from headrace.core.errors import TooManyFailuresError, UnavailableError
from headrace.core.tensor import InferRequest
from headrace.runs.ledger import Ledger
from headrace.runs.tasks import TaskRun
from headrace.runs.work import RunWork
from headrace.storage.resolve import MemoryStore
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    FailOnceStore,
    InjectedError,
    make_settings,
    plan_of,
    put,
    rows,
)


def work_of(stores, *, store=None, checkpoint_s: float = 1e9, **more) -> RunWork:
    run_settings = make_settings(checkpoint_s=checkpoint_s, tasks={"task_objects_max": 2})
    plan = plan_of(stores, run_settings)
    ledger = Ledger(store or stores.for_uri(OUT), OUT)
    return RunWork(plan=plan, settings=run_settings, stores=stores, ledger=ledger, **more)


def test_tasks_are_committed(stores, shared):
    put(stores, {"a.csv": rows(5), "b.csv": rows(5), "c.csv": rows(1)})
    work = work_of(stores)
    run = TaskRun(work, work.plan.tasks, shared)
    assert run.reading == IN + "a.csv"
    assert run.execute()
    assert run.reading == IN + "c.csv"
    assert [len(r.shards) for r in work.ledger.tasks().values()] == [2, 1]
    assert work.progress.rows_out == 11


def test_delivered_batches_survive_an_error(stores, shared):
    put(stores, {"a.csv": rows(20)})
    work = work_of(stores)
    with pytest.raises(InjectedError):
        TaskRun(work, work.plan.tasks, FailingPredictor(shared, at=3)).execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert (checkpoint.record, checkpoint.counts.rows_out) == (12, 12)
    predictor = FailingPredictor(shared, at=-1)
    resumed = TaskRun(replace(work, checkpoints=work.ledger.checkpoints()), work.plan.tasks, predictor)
    assert resumed.execute()
    assert predictor.calls == 2
    assert work.ledger.task(0).shards[0].counts.rows_out == 20


def test_batch_of_a_failing_callback_is_persisted_once(stores, shared):
    """The batch is in the output, so the cursor must be after it."""
    put(stores, {"a.csv": rows(20)})
    batches = []

    def stop_after_two(batch):
        batches.append(batch)
        if len(batches) == 2:
            raise TooManyFailuresError("enough")

    work = work_of(stores, on_batch=stop_after_two)
    with pytest.raises(TooManyFailuresError):
        TaskRun(work, work.plan.tasks, shared).execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert (checkpoint.record, checkpoint.counts.rows_out, checkpoint.out.nbytes) == (8, 8, 35)


def test_partially_written_batch_is_not_persisted(stores, shared, monkeypatch):
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 5)
    monkeypatch.setattr("headrace.storage.draft.SEGMENT_BYTES", 5)
    put(stores, {"a.csv": rows(20)})
    for at in range(1, 8):
        work = work_of(stores, store=FailOnceStore(MemoryStore(), at=at, write_first=False))
        with pytest.raises(UnavailableError):
            TaskRun(work, work.plan.tasks, shared).execute()
        for checkpoint in work.ledger.checkpoints().values():
            assert checkpoint.record == checkpoint.counts.rows_out


def test_drain_persists_delivered_batches(stores, shared):
    put(stores, {"a.csv": rows(20), "b.csv": rows(20)})
    work = work_of(stores)
    predictor = FailingPredictor(shared, at=6)
    run = TaskRun(work, work.plan.tasks, predictor)
    predictor.action = run.drain
    assert not run.execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert [s.counts.rows_out for s in checkpoint.done] == [20]
    assert checkpoint.record == checkpoint.counts.rows_out > 0


def test_requests_contain_only_the_runs_rows(stores, shared):
    put(stores, {"a.csv": rows(5)})
    work = work_of(stores)
    seen: list[InferRequest] = []
    predictor = FailingPredictor(shared, at=-1)
    real = shared.submit

    class Watching(FailingPredictor):
        def submit(self, request):
            seen.append(request)
            return real(request)

    TaskRun(work, work.plan.tasks, Watching(predictor.inner, at=-1)).execute()
    assert [len(r.inputs[0].data) for r in seen] == [4, 1]


def test_batch_that_broke_the_sink_is_not_persisted(stores, shared):
    """Its records are in the output, but the cursor is still before them."""
    put(stores, {"a.csv": rows(8) + b"9,1\nx,1\n" + rows(8)})
    run_settings = make_settings(failures={"on_error": "job"}, checkpoint_s=0.0)
    work = work_of(stores)
    work = replace(work, settings=run_settings)
    with pytest.raises(TooManyFailuresError):
        TaskRun(work, work.plan.tasks, shared).execute()
    (checkpoint,) = work.ledger.checkpoints().values()
    assert (checkpoint.record, checkpoint.counts.records_in, checkpoint.out.nbytes) == (8, 8, 35)
