"""What a worker process tells of what it observes, and what becomes of it at the other end."""

import copy
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from headrace.transforms.fence import LOOKED_EVERY_S
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.observation import Observation
from headrace.transforms.plan import make_plan
from headrace.transforms.probe import learn
from headrace.transforms.runners.messages import Assignment
from headrace.transforms.runners.worker import OBSERVED_EVERY_S, Worker
from headrace.transforms.settings import TransformSettings
from pipeline.support import ScriptedPredictor
from transforms.observing import failure, scored
from transforms.support import Breaking, engine, rows, settings_of


def _told(messages) -> list[Observation]:
    told = [Observation.from_json(m["observed"]) for m in messages if "observed" in m]
    messages.clear()
    return told


def test_each_batch_is_told_once_and_now_and_then(tmp_path):
    ours: list = []
    clock = ManualClock()
    worker = Worker(
        ScriptedPredictor(),
        # As they are at that moment, as a connection takes them.
        lambda message: ours.append(copy.deepcopy(message)),
        stores=Stores(),
        destination=f"{tmp_path}/out/",
        settings=TransformSettings(),
        clock=clock,
    )
    worker._observation = seen = Observation(clock.now())
    told: list[Observation] = []
    for step in range(10):
        seen.batch(scored({"y": np.full(3, step, np.float32)}, [failure(step)]), clock.now())
        worker._on_batch(None)
        told += _told(ours)
        clock.advance(OBSERVED_EVERY_S / 2)
    assert len(told) == 4
    worker._tell_observed()
    worker._tell_observed()
    told += _told(ours)
    assert len(told) == 5
    together = Observation(0.0)
    for one in told:
        together.add_all(one)
    assert together.records == 40
    assert [f.record for f in together.failures] == list(range(10))
    assert together.series[0].distribution.distinct == {float(step): 3 for step in range(10)}


def test_an_assignment_says_since_when_to_observe():
    for since_s in (None, 12.5):
        assert (
            Assignment.from_json(Assignment((1,), observed_since_s=since_s).to_json()).observed_since_s
            == since_s
        )


@pytest.mark.parametrize("more", [(), (1,)])
def test_a_task_that_somebody_else_finishes_is_no_error(tmp_path, more):
    """A worker goes on from a checkpoint; before it has begun, who wrote that finishes the task, and removes its drafts."""
    settings = settings_of(tasks={"checkpoint_s": 0.0, "task_objects_max": 1})
    source, out = f"{tmp_path}/in/", f"{tmp_path}/out/"
    stores = Stores()
    for name in "ab":
        stores.for_uri(source).put(f"{source}{name}.csv", rows(40))
    plan = make_plan(source, out, stores, settings)
    ledger = TransformLedger(stores.for_uri(out), out)
    ledger.begin({}, plan.objects)

    def worker(predictor, told: list) -> Worker:
        return Worker(predictor, told.append, stores=stores, destination=out, settings=settings)

    kept, given_up = threading.Event(), threading.Event()

    def orphaned() -> None:
        kept.set()
        assert given_up.wait(30)

    def finished() -> None:
        given_up.set()
        orphan.join(30)

    with engine() as started:
        ledger.learn(learn(plan, stores, settings, started.metadata))
        told: list = []
        slow = worker(Breaking(started, at=5, action=orphaned), [])
        orphan = threading.Thread(target=slow.do, args=[Assignment((0,), keep_all=True)])
        orphan.start()
        assert kept.wait(30)
        assert ledger.checkpoints([0])[0].entries
        worker(Breaking(started, at=0, action=finished), told).do(Assignment((0, *more)))
    assert [m for m in told if "error" in m] == []
    assert [json.loads(m["task"])["task"] for m in told if "task" in m] == [0, *more]
    assert told[-1] == {"idle": True, "complete": True}
    assert sorted(ledger.tasks()) == [0, *more]
    assert stores.for_uri(out).get(f"{out}a.csv.out").count(b"\n") == 40


def test_a_task_in_which_somebody_else_is_further_is_no_error(tmp_path):
    """Who wrote the checkpoint that a worker goes on from publishes that object before it has begun, and writes another one."""
    settings = settings_of(tasks={"checkpoint_s": 0.0, "task_objects_max": 2})
    source, out = f"{tmp_path}/in/", f"{tmp_path}/out/"
    stores = Stores()
    for name in "ab":
        stores.for_uri(source).put(f"{source}{name}.csv", rows(40))
    plan = make_plan(source, out, stores, settings)
    ledger = TransformLedger(stores.for_uri(out), out)
    ledger.begin({}, plan.objects)

    def worker(predictor, told: list) -> Worker:
        return Worker(predictor, told.append, stores=stores, destination=out, settings=settings)

    kept, doubled, further, done = (threading.Event() for _ in range(4))

    def wait_in_a() -> None:
        kept.set()
        assert doubled.wait(30)

    def wait_in_b() -> None:
        further.set()
        assert done.wait(30)

    def overtaken() -> None:
        before = ledger.checkpoints([0])[0]
        assert before.out is not None
        assert ledger.is_whole(before)
        doubled.set()
        assert further.wait(30)
        assert len(ledger.checkpoints([0])[0].done) == 1
        assert not ledger.is_whole(before)

    with engine() as started:
        ledger.learn(learn(plan, stores, settings, started.metadata))
        slow_told, told = [], []
        slow = worker(Breaking(Breaking(started, at=5, action=wait_in_a), at=15, action=wait_in_b), slow_told)
        other = threading.Thread(target=slow.do, args=[Assignment((0,), keep_all=True)])
        other.start()
        assert kept.wait(30)
        worker(Breaking(started, at=0, action=overtaken), told).do(Assignment((0,)))
        done.set()
        other.join(30)
    for said in (told, slow_told):
        assert [m for m in said if "error" in m] == []
        assert [json.loads(m["task"])["attempt"] for m in said if "task" in m] == [ledger.task(0).attempt]
        assert said[-1] == {"idle": True, "complete": True}
    for name in "ab":
        assert stores.for_uri(out).get(f"{out}{name}.csv.out").count(b"\n") == 40


def test_a_kept_output_that_is_gone_is_told_of(tmp_path):
    """Nobody else was there: the disk lost it."""
    settings = settings_of(tasks={"checkpoint_s": 0.0})
    source, out = f"{tmp_path}/in/", f"{tmp_path}/out/"
    stores = Stores()
    stores.for_uri(source).put(f"{source}a.csv", rows(40))
    plan = make_plan(source, out, stores, settings)
    ledger = TransformLedger(stores.for_uri(out), out)
    ledger.begin({}, plan.objects)
    told: list = []
    with engine() as started:
        ledger.learn(learn(plan, stores, settings, started.metadata))
        worker = Worker(
            Breaking(started, at=5), told.append, stores=stores, destination=out, settings=settings
        )
        worker.do(Assignment((0,), keep_all=True))
        kept = ledger.checkpoints([0])[0].out.kept.uri
        stores.for_uri(out).delete(kept)
        worker.do(Assignment((0,)))
    assert [m["error"]["type"] for m in told if "error" in m] == ["BrokenError", "NotFoundError"]
    assert kept in told[-1]["error"]["message"]


def begin_anew(ledger, objects) -> None:
    """As --overwrite does."""
    ledger.abandon()
    ledger.delete()
    ledger.begin({}, objects)


def finish(ledger, _) -> None:
    ledger.finish({})


@pytest.mark.parametrize("over", [begin_anew, finish])
def test_one_whose_run_is_over_writes_nothing_more(tmp_path, over):
    """An orphan that its run gave up works on when the run has ended, or another one has begun in its place."""
    settings = settings_of(tasks={"checkpoint_s": 0.0, "task_objects_max": 1})
    source, out = f"{tmp_path}/in/", f"{tmp_path}/out/"
    stores = Stores()
    stores.for_uri(source).put(f"{source}a.csv", rows(40))
    plan = make_plan(source, out, stores, settings)
    ledger = TransformLedger(stores.for_uri(out), out)
    ledger.begin({}, plan.objects)
    clock, told, after = ManualClock(), [], {}

    def files() -> dict[str, bytes]:
        found = (p for p in Path(out).rglob("*") if p.is_file() and "drafts" not in p.parts)
        return {str(p): p.read_bytes() for p in found}

    class Orphan(Worker):
        def _on_batch(self, batch) -> None:
            super()._on_batch(batch)
            if not after and ledger.checkpoints([0]):
                over(ledger, plan.objects)
                clock.advance(LOOKED_EVERY_S)
                after.update(files())

    with engine() as started:
        ledger.learn(learn(plan, stores, settings, started.metadata))
        orphan = Orphan(started, told.append, stores=stores, destination=out, settings=settings, clock=clock)
        orphan.do(Assignment((0,), run=ledger.run(), keep_all=True))
    assert "it writes nothing more" in told[-1]["error"]["message"]
    assert after
    assert files() == after
    assert [m for m in told if "task" in m] == []
