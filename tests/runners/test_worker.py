"""A worker's messages, and its tasks that other workers share."""

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.engine import Engine
from headrace.reports.observation import RunObservation
from headrace.runners.messages import Assignment
from headrace.runners.worker import OBSERVATION_INTERVAL_S, TaskWorker
from headrace.runs.ledger import Ledger
from headrace.runs.plan_pages import head_of
from headrace.runs.sample import schema_of
from headrace.runs.settings import RunSettings, StreamSettings, TransformSettings
from headrace.runs.work import CHECK_INTERVAL_S
from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from reports.observation_support import failure, scored
from runs.stream_support import ScriptedPredictor
from runs.support import FailingPredictor, engine, make_settings, plan_of, rows


def observations_in(messages) -> list[RunObservation]:
    observations = [RunObservation.from_json(m["observed"]) for m in messages if "observed" in m]
    messages.clear()
    return observations


def test_observations_are_sent_once_at_intervals(tmp_path):
    sent: list = []
    clock = ManualClock()
    worker = TaskWorker(
        ScriptedPredictor(),
        # A connection serializes messages at once.
        lambda message: sent.append(copy.deepcopy(message)),
        stores=Stores(),
        destination=f"{tmp_path}/out/",
        settings=TransformSettings(),
        clock=clock,
    )
    worker._observation = seen = RunObservation(clock.now())
    observations: list[RunObservation] = []
    for step in range(10):
        seen.add_batch(scored({"y": np.full(3, step, np.float32)}, [failure(step)]), clock.now())
        worker._on_batch(None)
        observations += observations_in(sent)
        clock.advance(OBSERVATION_INTERVAL_S / 2)
    assert len(observations) == 4
    worker._send_observed()
    worker._send_observed()
    observations += observations_in(sent)
    assert len(observations) == 5
    together = RunObservation(0.0)
    for one in observations:
        together.add_all(one)
    assert together.records == 40
    assert [f.record for f in together.failures] == list(range(10))
    assert together.series[0].distribution.distinct == {float(step): 3 for step in range(10)}


def test_assignment_has_the_observation_start():
    for since_s in (None, 12.5):
        assert (
            Assignment.from_json(Assignment((1,), observed_since_s=since_s).to_json()).observed_since_s
            == since_s
        )


def begin(ledger, plan, settings) -> None:
    ledger.write_plan(0, plan.objects, head_of(plan.objects, settings))
    ledger.begin({}, "transform")


class BegunRun:
    """A run that has begun, over objects of 40 rows. Its workers write a checkpoint of every batch."""

    def __init__(
        self,
        folder: Path,
        names: str,
        *,
        task_objects_max: int = 1,
        preset: type[RunSettings] = TransformSettings,
    ) -> None:
        tasks = {"task_objects_max": task_objects_max}
        self.settings = make_settings(preset=preset, checkpoint_s=0.0, tasks=tasks)
        source, self.out, self.stores = f"{folder}/in/", f"{folder}/out/", Stores()
        for name in names:
            self.stores.for_uri(source).put(f"{source}{name}.csv", rows(40))
        self.plan = plan_of(self.stores, self.settings, source, self.out)
        self.ledger = Ledger(self.stores.for_uri(self.out), self.out)
        begin(self.ledger, self.plan, self.settings)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Yield a started engine whose metadata the run has probed."""
        with engine() as started:
            infos = [planned.info for planned in self.plan.objects]
            self.ledger.write_schema(schema_of(infos, self.stores, self.settings, started.metadata))
            yield started

    def worker(self, predictor, messages: list, kind: type[TaskWorker] = TaskWorker, **more) -> TaskWorker:
        return kind(
            predictor,
            messages.append,
            stores=self.stores,
            destination=self.out,
            settings=self.settings,
            **more,
        )

    def output(self, name: str) -> bytes:
        return self.stores.for_uri(self.out).get(f"{self.out}{name}.csv.out")


def test_worker_of_a_stream_writes_the_parts_of_its_tasks(tmp_path):
    begun, messages = BegunRun(tmp_path, "abc", task_objects_max=2, preset=StreamSettings), []
    with begun.engine() as started:
        begun.worker(started, messages).do(Assignment((1, 0)))
    assert [m for m in messages if "error" in m] == []
    parts = {p.name: p.read_bytes() for p in Path(begun.out).iterdir() if p.is_file()}
    one = b"".join(b"%d.0\n" % (2 * i) for i in range(40))
    assert parts == {"part-00000.csv": one * 2, "part-00001.csv": one}


@pytest.mark.parametrize("more", [(), (1,)])
def test_task_finished_by_another_worker_is_no_error(tmp_path, more):
    """A worker resumes from a checkpoint. Meanwhile its writer finishes the task and removes the
    drafts.
    """
    begun = BegunRun(tmp_path, "ab")
    checkpoint_written, doubled = threading.Event(), threading.Event()

    def orphaned() -> None:
        checkpoint_written.set()
        assert doubled.wait(30)

    def finished() -> None:
        doubled.set()
        orphan.join(30)

    with begun.engine() as started:
        messages: list = []
        slow = begun.worker(FailingPredictor(started, at=5, action=orphaned), [])
        orphan = threading.Thread(target=slow.do, args=[Assignment((0,), checkpoint_all=True)])
        orphan.start()
        assert checkpoint_written.wait(30)
        assert begun.ledger.checkpoints([0])[0].is_inside
        begun.worker(FailingPredictor(started, at=0, action=finished), messages).do(Assignment((0, *more)))
    assert [m for m in messages if "error" in m] == []
    assert [json.loads(m["task"])["task"] for m in messages if "task" in m] == [0, *more]
    assert messages[-1] == {"idle": True, "complete": True}
    assert sorted(begun.ledger.tasks()) == [0, *more]
    assert begun.output("a").count(b"\n") == 40


def test_task_advanced_by_another_worker_is_no_error(tmp_path):
    """A worker resumes from a checkpoint. Meanwhile its writer publishes the object and advances."""
    begun = BegunRun(tmp_path, "ab", task_objects_max=2)
    checkpoint_written, doubled, further, done = (threading.Event() for _ in range(4))

    def wait_in_a() -> None:
        checkpoint_written.set()
        assert doubled.wait(30)

    def wait_in_b() -> None:
        further.set()
        assert done.wait(30)

    def overtaken() -> None:
        before = begun.ledger.checkpoints([0])[0]
        assert before.out is not None
        assert begun.ledger.is_complete(before)
        doubled.set()
        assert further.wait(30)
        assert len(begun.ledger.checkpoints([0])[0].done) == 1
        assert not begun.ledger.is_complete(before)

    with begun.engine() as started:
        slow_messages, messages = [], []
        slow = begun.worker(
            FailingPredictor(FailingPredictor(started, at=5, action=wait_in_a), at=15, action=wait_in_b),
            slow_messages,
        )
        other = threading.Thread(target=slow.do, args=[Assignment((0,), checkpoint_all=True)])
        other.start()
        assert checkpoint_written.wait(30)
        begun.worker(FailingPredictor(started, at=0, action=overtaken), messages).do(Assignment((0,)))
        done.set()
        other.join(30)
    for sent in (messages, slow_messages):
        assert [m for m in sent if "error" in m] == []
        assert [json.loads(m["task"])["attempt"] for m in sent if "task" in m] == [
            begun.ledger.task(0).attempt
        ]
        assert sent[-1] == {"idle": True, "complete": True}
    for name in "ab":
        assert begun.output(name).count(b"\n") == 40


def test_lost_draft_is_an_error(tmp_path):
    """No other worker is involved: the disk lost the draft."""
    begun = BegunRun(tmp_path, "a")
    messages: list = []
    with begun.engine() as started:
        worker = begun.worker(FailingPredictor(started, at=5), messages)
        worker.do(Assignment((0,), checkpoint_all=True))
        checkpoint_written = begun.ledger.checkpoints([0])[0].out.kept.uri
        begun.ledger.store.delete(checkpoint_written)
        worker.do(Assignment((0,)))
    assert [m["error"]["type"] for m in messages if "error" in m] == ["InjectedError", "NotFoundError"]
    assert checkpoint_written in messages[-1]["error"]["message"]


def begin_anew(ledger, plan) -> None:
    """Replace the run, as --overwrite does."""
    ledger.abandon()
    ledger.delete()
    begin(ledger, plan, make_settings())


def finish(ledger, _) -> None:
    ledger.finish({})


@pytest.mark.parametrize("over", [begin_anew, finish])
def test_worker_of_a_finished_run_stops_writing(tmp_path, over):
    """An orphan of a run works on after the run has finished or was replaced."""
    begun = BegunRun(tmp_path, "a")
    clock, messages, after = ManualClock(), [], {}

    def files() -> dict[str, bytes]:
        found = (p for p in Path(begun.out).rglob("*") if p.is_file() and "drafts" not in p.parts)
        return {str(p): p.read_bytes() for p in found}

    class Orphan(TaskWorker):
        def _on_batch(self, batch) -> None:
            super()._on_batch(batch)
            if not after and begun.ledger.checkpoints([0]):
                over(begun.ledger, begun.plan)
                clock.advance(CHECK_INTERVAL_S)
                after.update(files())

    with begun.engine() as started:
        orphan = begun.worker(started, messages, Orphan, clock=clock)
        orphan.do(Assignment((0,), run_id=begun.ledger.run_id(), checkpoint_all=True))
    assert "the worker stops writing" in messages[-1]["error"]["message"]
    assert after
    assert files() == after
    assert [m for m in messages if "task" in m] == []
