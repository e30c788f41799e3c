"""What a worker process tells of what it observes, and what becomes of it at the other end."""

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.engine import Engine
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


class Begun:
    """A run that has begun, over objects of 40 rows each; its workers keep a checkpoint of every batch."""

    def __init__(self, folder: Path, names: str, *, task_objects_max: int = 1) -> None:
        self.settings = settings_of(tasks={"checkpoint_s": 0.0, "task_objects_max": task_objects_max})
        source, self.out, self.stores = f"{folder}/in/", f"{folder}/out/", Stores()
        for name in names:
            self.stores.for_uri(source).put(f"{source}{name}.csv", rows(40))
        self.plan = make_plan(source, self.out, self.stores, self.settings)
        self.ledger = TransformLedger(self.stores.for_uri(self.out), self.out)
        self.ledger.begin({}, self.plan.objects)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """A model that is started, and known to the run."""
        with engine() as started:
            self.ledger.learn(learn(self.plan, self.stores, self.settings, started.metadata))
            yield started

    def worker(self, predictor, told: list, kind: type[Worker] = Worker, **more) -> Worker:
        return kind(
            predictor, told.append, stores=self.stores, destination=self.out, settings=self.settings, **more
        )

    def output(self, name: str) -> bytes:
        return self.stores.for_uri(self.out).get(f"{self.out}{name}.csv.out")


@pytest.mark.parametrize("more", [(), (1,)])
def test_a_task_that_somebody_else_finishes_is_no_error(tmp_path, more):
    """A worker goes on from a checkpoint; before it has begun, who wrote that finishes the task, and removes its drafts."""
    begun = Begun(tmp_path, "ab")
    kept, given_up = threading.Event(), threading.Event()

    def orphaned() -> None:
        kept.set()
        assert given_up.wait(30)

    def finished() -> None:
        given_up.set()
        orphan.join(30)

    with begun.engine() as started:
        told: list = []
        slow = begun.worker(Breaking(started, at=5, action=orphaned), [])
        orphan = threading.Thread(target=slow.do, args=[Assignment((0,), keep_all=True)])
        orphan.start()
        assert kept.wait(30)
        assert begun.ledger.checkpoints([0])[0].entries
        begun.worker(Breaking(started, at=0, action=finished), told).do(Assignment((0, *more)))
    assert [m for m in told if "error" in m] == []
    assert [json.loads(m["task"])["task"] for m in told if "task" in m] == [0, *more]
    assert told[-1] == {"idle": True, "complete": True}
    assert sorted(begun.ledger.tasks()) == [0, *more]
    assert begun.output("a").count(b"\n") == 40


def test_a_task_in_which_somebody_else_is_further_is_no_error(tmp_path):
    """Who wrote the checkpoint that a worker goes on from publishes that object before it has begun, and writes another one."""
    begun = Begun(tmp_path, "ab", task_objects_max=2)
    kept, doubled, further, done = (threading.Event() for _ in range(4))

    def wait_in_a() -> None:
        kept.set()
        assert doubled.wait(30)

    def wait_in_b() -> None:
        further.set()
        assert done.wait(30)

    def overtaken() -> None:
        before = begun.ledger.checkpoints([0])[0]
        assert before.out is not None
        assert begun.ledger.is_whole(before)
        doubled.set()
        assert further.wait(30)
        assert len(begun.ledger.checkpoints([0])[0].done) == 1
        assert not begun.ledger.is_whole(before)

    with begun.engine() as started:
        slow_told, told = [], []
        slow = begun.worker(
            Breaking(Breaking(started, at=5, action=wait_in_a), at=15, action=wait_in_b), slow_told
        )
        other = threading.Thread(target=slow.do, args=[Assignment((0,), keep_all=True)])
        other.start()
        assert kept.wait(30)
        begun.worker(Breaking(started, at=0, action=overtaken), told).do(Assignment((0,)))
        done.set()
        other.join(30)
    for said in (told, slow_told):
        assert [m for m in said if "error" in m] == []
        assert [json.loads(m["task"])["attempt"] for m in said if "task" in m] == [
            begun.ledger.task(0).attempt
        ]
        assert said[-1] == {"idle": True, "complete": True}
    for name in "ab":
        assert begun.output(name).count(b"\n") == 40


def test_a_kept_output_that_is_gone_is_told_of(tmp_path):
    """Nobody else was there: the disk lost it."""
    begun = Begun(tmp_path, "a")
    told: list = []
    with begun.engine() as started:
        worker = begun.worker(Breaking(started, at=5), told)
        worker.do(Assignment((0,), keep_all=True))
        kept = begun.ledger.checkpoints([0])[0].out.kept.uri
        begun.ledger.store.delete(kept)
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
    begun = Begun(tmp_path, "a")
    clock, told, after = ManualClock(), [], {}

    def files() -> dict[str, bytes]:
        found = (p for p in Path(begun.out).rglob("*") if p.is_file() and "drafts" not in p.parts)
        return {str(p): p.read_bytes() for p in found}

    class Orphan(Worker):
        def _on_batch(self, batch) -> None:
            super()._on_batch(batch)
            if not after and begun.ledger.checkpoints([0]):
                over(begun.ledger, begun.plan.objects)
                clock.advance(LOOKED_EVERY_S)
                after.update(files())

    with begun.engine() as started:
        orphan = begun.worker(started, told, Orphan, clock=clock)
        orphan.do(Assignment((0,), run=begun.ledger.run(), keep_all=True))
    assert "it writes nothing more" in told[-1]["error"]["message"]
    assert after
    assert files() == after
    assert [m for m in told if "task" in m] == []
