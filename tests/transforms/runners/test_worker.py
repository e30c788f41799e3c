"""What a worker process tells of what it observes, and what becomes of it at the other end."""

import copy

import numpy as np

from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from headrace.transforms.observation import Observation
from headrace.transforms.runners.messages import Assignment
from headrace.transforms.runners.worker import OBSERVED_EVERY_S, Worker
from headrace.transforms.settings import TransformSettings
from pipeline.support import ScriptedPredictor
from transforms.observing import failure, scored


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
