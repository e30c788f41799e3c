"""Requests that wait for their sequences; batches, stops, refusals and cancellations."""

import asyncio
import threading
from concurrent.futures import wait
from math import inf

import numpy as np
import pytest

from engine.sequences.models import (
    Adding,
    end,
    many_sequences_request,
    more,
    run,
    start,
    step_request,
    submit_result,
)
from engine.support import WAIT_S, in_thread, no_leaks, pending_request, serving, wait_until
from headrace.batching.adaptive import WaitCondition
from headrace.core.errors import (
    ModelLoadError,
    SequenceFullError,
    SequenceGoneError,
    StoppedError,
    TooManySequencesError,
)
from headrace.core.sequence import SequenceEnd, SequenceLimits
from headrace.core.tensor import ModelMetadata
from headrace.engine import Engine
from headrace.engine.inputs import ModelInputs
from headrace.engine.outputs import OutputCheck, ResponseBuilder
from headrace.engine.pending_request import deliver
from headrace.engine.request_queue import RequestQueue
from headrace.engine.schedule import IndependentRequests, TakenBatch
from headrace.engine.sequences.instance_steps import InstanceSteps
from headrace.engine.sequences.row_request import StepItem
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding
from headrace.testing import ManualClock


@pytest.fixture
def model():
    return Adding()


def _gated(model):
    model.gate, model.stepping = threading.Event(), threading.Event()
    return model


# Batches of an instance


class Consumer:
    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


class Schedule:
    """A schedule of two instances, with two rows per call and a second of co-batching delay."""

    def __init__(self, **limits):
        self.clock = ManualClock()
        self.queue = RequestQueue(
            self.clock,
            IndependentRequests(merge=True),
            model="m",
            in_flight_max=8,
            queue_rows_max=64,
            deliver_results=deliver,
        )
        self.sequences = self.queue.schedule = SequenceSchedule(
            SequenceLimits(**limits),
            self.clock,
            self.queue,
            model="m",
            inputs=ModelInputs.of(Adding(), "m"),
            respond=ResponseBuilder(OutputCheck("m", ()), ModelMetadata("m")),
            instances=2,
            merge=True,
            deliver_results=deliver,
        )
        self.steps = InstanceSteps(self.sequences, 0)
        self.queue.resize(rows_max=2, delay_s=1.0)
        self.consumers = [Consumer(), Consumer()]

    def add(self, request):
        entry = pending_request(request)
        assert self.queue.offer(entry)
        return entry

    def take(self, instance=0):
        """Return the items of the next batch, or the condition to wait for."""
        found = self.sequences.take(self.consumers[instance], instance, self.clock.now(), closed=False)
        return self.items(found) if isinstance(found, TakenBatch) else found

    def items(self, batch):
        return [StepItem(sequence, row_request) for sequence, row_request in batch.work]

    def endings(self, instance=0):
        found = self.sequences.take(self.consumers[instance], instance, self.clock.now(), closed=False)
        return found.endings if isinstance(found, TakenBatch) else ()

    def woken(self):
        return [consumer.woken for consumer in self.consumers]


def _ids(items):
    return [item.sequence.id for item in items]


def test_each_instance_takes_the_steps_of_its_sequences():
    """New sequences go to the instance with the fewest."""
    schedule = Schedule()
    for id in "abcd":
        schedule.add(start(id, 1))
    assert _ids(schedule.take(0)) == ["a", "c"]
    assert _ids(schedule.take(1)) == ["b", "d"]


def test_only_instance_of_sequence_is_woken():
    schedule = Schedule()
    assert (schedule.take(0), schedule.take(1)) == (WaitCondition(), WaitCondition())
    schedule.add(start("a", 1))
    assert schedule.woken() == [1, 0]


def test_only_full_call_is_taken_ahead():
    schedule = Schedule()
    schedule.add(start("a", 1))
    assert not schedule.sequences.is_full(0)
    assert schedule.queue.take_full(0) is None
    schedule.add(start("b", 1))
    schedule.add(start("c", 1))
    assert schedule.sequences.is_full(0)
    assert _ids(schedule.items(schedule.queue.take_full(0))) == ["a", "c"]
    assert not schedule.sequences.is_full(0)


def test_taken_steps_run_until_they_end():
    schedule = Schedule()
    schedule.clock.advance(3.0)
    for id in "abc":
        schedule.add(start(id, 1))
    schedule.clock.advance(1.0)
    assert schedule.queue.waiting() == (3, 3, 1.0, 0)
    items = schedule.take(0)
    assert schedule.queue.waiting() == (1, 1, 1.0, 2)
    schedule.steps.end_steps(items)
    assert [item.done for item in items] == [True, True]
    assert schedule.queue.waiting() == (1, 1, 1.0, 0)


@pytest.mark.parametrize("is_started", [False, True])
def test_started_request_skips_co_batching_wait(is_started):
    """A new request waits for the sequences that shared the last call."""
    schedule = Schedule()
    for id in "abc":
        schedule.add(start(id, 1, 2) if is_started else start(id, 1))
    items = schedule.take(0)
    schedule.steps.end_steps(items[:1])
    if not is_started:
        schedule.add(more("a", 2))
    found = schedule.take(0)
    if is_started:
        assert _ids(found) == ["a"]
    else:
        assert found == WaitCondition(1.0)


def test_started_request_wakes_waiting_instance():
    schedule = Schedule()
    for id in "abc":
        schedule.add(start(id, 1, 2) if id == "c" else start(id, 1))
    a, c = schedule.take(0)
    schedule.steps.end_steps([a])
    schedule.add(more("a", 2))
    assert schedule.take(0) == WaitCondition(1.0)
    schedule.steps.end_steps([c])
    assert schedule.woken()[0] == 1
    assert _ids(schedule.take(0)) == ["a", "c"]


def test_ended_sequence_is_reported_once_to_its_instance():
    """At once, unless the model has never seen it."""
    schedule = Schedule(idle_ms=inf)
    for id in "abc":
        schedule.add(start(id, 1))
    a, c = schedule.take(0)
    schedule.steps.end_steps([a, c])
    assert (schedule.take(0), schedule.woken()) == (WaitCondition(), [0, 0])
    assert schedule.sequences.cancel("a")
    assert schedule.sequences.cancel("b")
    assert schedule.woken() == [1, 0]
    assert schedule.endings(0) == (SequenceEnding(a.sequence.number, "a", 1, SequenceEnd.CANCELLED),)
    assert schedule.endings(0) == schedule.endings(1) == ()


def test_unreported_endings_return_to_their_instance():
    schedule = Schedule()
    schedule.add(start("a", 1))
    schedule.steps.end_steps(schedule.take(0))
    schedule.sequences.cancel("a")
    endings = schedule.endings(0)
    schedule.steps.return_endings(endings)
    assert len(endings) == 1
    assert schedule.endings(0) == endings


def test_instance_wakes_at_next_expiry():
    schedule = Schedule(idle_ms=4000.0)
    schedule.add(start("a", 1))
    schedule.steps.end_steps(schedule.take(0))
    assert schedule.take(0) == WaitCondition(4.0)
    schedule.clock.advance(4.0)
    assert [ending.reason for ending in schedule.endings(0)] == [SequenceEnd.IDLE]


# Stops


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("instances", [1, 3])
def test_stop_ends_live_sequences(model, drain, instances):
    """Each end is reported to the model, and no instance sleeps on."""
    with no_leaks(), serving(model, instances=instances) as engine:
        for id in "ab":
            submit_result(engine, start(id, 1))
        stopping = threading.Thread(target=engine.stop, kwargs={"drain": drain}, daemon=True)
        stopping.start()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        assert engine.sequences() == ()
    assert sorted(model.ended) == [("a", "stopped", 1.0), ("b", "stopped", 1.0)]


def test_stop_finishes_queued_steps(model):
    with serving(model, instances=2) as engine:
        submit_result(engine, start("a", 1))
        _gated(model)
        futures = [engine.submit(more("a", i), strict=True) for i in (1, 2)]
        assert model.stepping.wait(WAIT_S)
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        model.gate.set()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        assert [future.result(0).outputs[0].data.item() for future in futures] == [2.0, 4.0]
    assert model.ended == [("a", "stopped", 4.0)]


def test_stop_without_drain_fails_queued_steps(model):
    """The step in progress is the last."""
    with serving(model, instances=2) as engine:
        submit_result(engine, start("a", 1))
        _gated(model)
        futures = [engine.submit(more("a", i), strict=True) for i in (1, 2)]
        assert model.stepping.wait(WAIT_S)
        stopping = threading.Thread(target=engine.stop, kwargs={"drain": False})
        stopping.start()
        assert {type(future.exception(WAIT_S)) for future in futures} == {StoppedError}
        model.gate.set()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
    assert model.ended == [("a", "stopped", 2.0)]


def test_restarted_engine_has_no_sequences(model):
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        engine.stop()
        engine.start()
        assert isinstance(submit_result(engine, more("a", 1)), SequenceGoneError)
        assert submit_result(engine, start("a", 5)) == [5.0]


def test_failed_load_leaves_nothing():
    made = []

    def make():
        made.append(Adding())
        if len(made) == 2:
            raise OSError("no weights")
        return made[-1]

    with no_leaks():
        engine = Engine(make, name="m", serving=ServeSettings(isolation="thread", instances=2))
        with pytest.raises(ModelLoadError, match="no weights"):
            engine.start()
        assert not engine.running


# Refusals


def test_refused_request_leaves_no_sequence(model):
    """Nor does it evict others."""
    with serving(model, sequences={"live_max": 3}) as engine:
        submit_result(engine, start("old", 1))
        assert isinstance(
            submit_result(engine, many_sequences_request(["a", "b", "c"], [1, 2, 3])), TooManySequencesError
        )
        assert [info.id for info in engine.sequences()] == ["old"]
        assert engine.model_statistics().refused == 1
        assert submit_result(engine, many_sequences_request(["a", "b"], [1, 2])) == [1.0, 2.0]


def test_refused_rows_fail_alone(model):
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        sent = step_request(1, 2, 3, tensors={"sequence_id": np.array(["x", "a", "y"], object)})
        response = engine.submit(sent).result(WAIT_S)
        assert response.outputs[0].data.ravel().tolist() == [3.0]
        assert [(f.row, "no such sequence" in f.why) for f in response.failures] == [(0, True), (2, True)]


@pytest.mark.parametrize("strict", [True, False])
def test_end_of_unknown_sequence_is_error(model, strict):
    with serving(model) as engine:
        future = engine.submit(end("a"), strict=strict)
        assert isinstance(future.exception(WAIT_S), SequenceGoneError)
        assert engine.model_statistics().fail.count == 1


def test_empty_request_completes_at_once(model):
    none = step_request(tensors={"x": np.zeros((0, 1), np.float32), "sequence_id": np.array([], object)})
    with serving(model) as engine:
        assert submit_result(engine, none) == []


def test_requests_per_sequence_are_bounded(model):
    async def main(engine):
        first = asyncio.ensure_future(engine.infer(start("a", 1)))
        await in_thread(model.stepping.wait, WAIT_S)
        waiting = [asyncio.ensure_future(engine.infer(more("a", 1))) for _ in range(4)]
        await asyncio.sleep(0)
        model.gate.set()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    with serving(model, sequences={"requests_max": 1}) as engine:
        _gated(model)
        answers = run(main(engine))
    # The engine accepts as many as may be submitted in any case.
    assert [type(answer).__name__ for answer in answers[-1:]] == [SequenceFullError.__name__]
    assert [answer.outputs[0].data.item() for answer in answers[:-1]] == [1.0, 2.0, 3.0, 4.0]


# Clients that leave


def test_abandoned_waiting_request_is_never_done(model):
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        _gated(model)
        first = engine.submit(more("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        second = engine.submit(more("a", 50))
        engine.abandon(second)
        assert second.cancelled()
        assert wait([second], timeout=WAIT_S).done == {second}
        model.gate.set()
        first.result(WAIT_S)
        assert submit_result(engine, more("a", 1)) == [3.0]


def test_started_request_cannot_be_cancelled(model):
    with serving(model) as engine:
        _gated(model)
        future = engine.submit(start("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        assert not future.cancel()
        model.gate.set()
        assert future.result(WAIT_S).outputs[0].data.item() == 1.0


def test_cancelled_request_unblocks_next(model):
    """An end without a step, behind a request that will never be done."""
    with serving(model) as engine:
        _gated(model)
        engine.submit(start("busy", 1))
        assert model.stepping.wait(WAIT_S)
        waiting = engine.submit(start("a", 1))
        ending = engine.submit(end("a"), strict=True)
        assert waiting.cancel()
        assert ending.result(WAIT_S).outputs == ()
        model.gate.set()


def test_cancelled_sequence_fails_its_requests(model):
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        _gated(model)
        futures = [engine.submit(more("a", i), strict=True) for i in (1, 2)]
        assert model.stepping.wait(WAIT_S)
        assert engine.cancel_sequence("a")
        assert {type(future.exception(WAIT_S)) for future in futures} == {SequenceGoneError}
        assert not engine.cancel_sequence("a")
        model.gate.set()
    assert model.ended == [("a", "cancelled", 2.0)]


def test_idle_sequence_ends_without_traffic(model):
    """Also one without any step: its sleeping instance is woken."""
    with serving(model, sequences={"idle_ms": 50.0}) as engine:
        none = step_request(tensors={"x": np.zeros((0, 1), np.float32)}, sequence_id="a", sequence_start=True)
        assert submit_result(engine, none) == []
        sequences = engine._session.sequences
        assert sequences.statistics().live <= 1
        run(wait_until(lambda: sequences.statistics().live == 0))
