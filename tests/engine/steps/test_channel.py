"""Requests wait for their sequences; stops, refusals and callers who leave."""

import asyncio
import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

from engine.steps.models import Adding, answered, end, more, of_many, run, start, step_request
from engine.support import WAIT_S, nothing_left, on_thread, serving, until
from headrace.core.errors import (
    ModelLoadError,
    SequenceFullError,
    SequenceGoneError,
    StoppedError,
    TooManySequencesError,
)
from headrace.engine import Engine
from headrace.engine.settings import ServeSettings


@pytest.fixture
def model():
    return Adding()


def _gated(model):
    model.gate, model.stepping = threading.Event(), threading.Event()
    return model


# Stops


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("instances", [1, 3])
def test_a_stop_ends_all_that_lives(model, drain, instances):
    """The model is told of each, and no instance sleeps on."""
    with nothing_left(), serving(model, instances=instances) as engine:
        for id in "ab":
            answered(engine, start(id, 1))
        began_s = time.monotonic()
        engine.stop(drain=drain)
        assert time.monotonic() - began_s < 10.0
        assert engine.sequences() == ()
    assert sorted(model.told) == [("a", "stopped", 1.0), ("b", "stopped", 1.0)]


def test_a_stop_finishes_what_was_asked(model):
    with serving(model, instances=2) as engine:
        answered(engine, start("a", 1))
        _gated(model)
        futures = [engine.submit(more("a", i), strict=True) for i in (1, 2)]
        assert model.stepping.wait(WAIT_S)
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        model.gate.set()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
        assert [future.result(0).outputs[0].data.item() for future in futures] == [2.0, 4.0]
    assert model.told == [("a", "stopped", 4.0)]


def test_a_stop_that_cannot_wait_fails_what_was_asked(model):
    """The step in progress is the last."""
    with serving(model, instances=2) as engine:
        answered(engine, start("a", 1))
        _gated(model)
        futures = [engine.submit(more("a", i), strict=True) for i in (1, 2)]
        assert model.stepping.wait(WAIT_S)
        stopping = threading.Thread(target=engine.stop, kwargs={"drain": False})
        stopping.start()
        assert {type(future.exception(WAIT_S)) for future in futures} == {StoppedError}
        model.gate.set()
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
    assert model.told == [("a", "stopped", 2.0)]


def test_an_engine_that_is_started_again_knows_nothing_of_before(model):
    with serving(model) as engine:
        answered(engine, start("a", 1))
        engine.stop()
        engine.start()
        assert isinstance(answered(engine, more("a", 1)), SequenceGoneError)
        assert answered(engine, start("a", 5)) == [5.0]


def test_a_model_that_fails_to_load_leaves_nothing():
    made = []

    def make():
        made.append(Adding())
        if len(made) == 2:
            raise OSError("no weights")
        return made[-1]

    with nothing_left():
        engine = Engine(make, name="m", serving=ServeSettings(isolation="thread", instances=2))
        with pytest.raises(ModelLoadError, match="no weights"):
            engine.start()
        assert not engine.running


# Refusals


def test_a_request_that_is_refused_leaves_no_sequence_of_its_own(model):
    """Nor does it take the places of others."""
    with serving(model, sequences={"live_max": 3}) as engine:
        answered(engine, start("old", 1))
        assert isinstance(answered(engine, of_many(["a", "b", "c"], [1, 2, 3])), TooManySequencesError)
        assert [info.id for info in engine.sequences()] == ["old"]
        assert engine.model_statistics().refused == 1
        assert answered(engine, of_many(["a", "b"], [1, 2])) == [1.0, 2.0]


def test_rows_that_no_sequence_takes_fail_alone(model):
    with serving(model) as engine:
        answered(engine, start("a", 1))
        asked = step_request(1, 2, 3, tensors={"sequence_id": np.array(["x", "a", "y"], object)})
        response = engine.submit(asked).result(WAIT_S)
        assert response.outputs[0].data.ravel().tolist() == [3.0]
        assert [(f.row, "no such sequence" in f.why) for f in response.failures] == [(0, True), (2, True)]


@pytest.mark.parametrize("strict", [True, False])
def test_an_end_of_nothing_is_an_error(model, strict):
    with serving(model) as engine:
        future = engine.submit(end("a"), strict=strict)
        assert isinstance(future.exception(WAIT_S), SequenceGoneError)
        assert engine.model_statistics().fail.count == 1


def test_no_rows_are_answered_at_once(model):
    none = step_request(tensors={"x": np.zeros((0, 1), np.float32), "sequence_id": np.array([], object)})
    with serving(model) as engine:
        assert answered(engine, none) == []


def test_only_so_much_waits_for_one_sequence(model):
    async def main(engine):
        first = asyncio.ensure_future(engine.ask(start("a", 1)))
        await on_thread(model.stepping.wait, WAIT_S)
        waiting = [asyncio.ensure_future(engine.ask(more("a", 1))) for _ in range(4)]
        await asyncio.sleep(0)
        model.gate.set()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    with serving(model, sequences={"requests_max": 1}) as engine:
        _gated(model)
        answers = run(main(engine))
    # As many as may be submitted are taken in any case.
    assert [type(answer).__name__ for answer in answers[-1:]] == [SequenceFullError.__name__]
    assert [answer.outputs[0].data.item() for answer in answers[:-1]] == [1.0, 2.0, 3.0, 4.0]


# Callers who leave


def test_a_request_that_is_abandoned_while_it_waits_is_never_done(model):
    with serving(model) as engine:
        answered(engine, start("a", 1))
        _gated(model)
        first = engine.submit(more("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        second = engine.submit(more("a", 50))
        engine.abandon(second)
        assert second.cancelled()
        assert wait([second], timeout=WAIT_S).done == {second}
        model.gate.set()
        first.result(WAIT_S)
        assert answered(engine, more("a", 1)) == [3.0]


def test_a_future_cannot_be_cancelled_once_a_step_of_it_was_begun(model):
    with serving(model) as engine:
        _gated(model)
        future = engine.submit(start("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        assert not future.cancel()
        model.gate.set()
        assert future.result(WAIT_S).outputs[0].data.item() == 1.0


def test_whoever_waits_behind_one_that_is_cancelled_is_let_go(model):
    """An end, which asks for no step, behind one that will never be done."""
    with serving(model) as engine:
        _gated(model)
        engine.submit(start("busy", 1))
        assert model.stepping.wait(WAIT_S)
        waiting = engine.submit(start("a", 1))
        ending = engine.submit(end("a"), strict=True)
        assert waiting.cancel()
        assert ending.result(WAIT_S).outputs == ()
        model.gate.set()


def test_a_sequence_that_is_cancelled_takes_all_that_waits_with_it(model):
    with serving(model) as engine:
        answered(engine, start("a", 1))
        _gated(model)
        futures = [engine.submit(more("a", i), strict=True) for i in (1, 2)]
        assert model.stepping.wait(WAIT_S)
        assert engine.cancel_sequence("a")
        assert {type(future.exception(WAIT_S)) for future in futures} == {SequenceGoneError}
        assert not engine.cancel_sequence("a")
        model.gate.set()
    assert model.told == [("a", "cancelled", 2.0)]


def test_a_sequence_that_nobody_uses_ends_though_nobody_asks(model):
    """Also one of which no step was ever asked: its instance, which sleeps, hears of it."""
    with serving(model, sequences={"idle_ms": 50.0}) as engine:
        none = step_request(tensors={"x": np.zeros((0, 1), np.float32)}, sequence_id="a", sequence_start=True)
        assert answered(engine, none) == []
        channel = engine._life.steps
        assert channel.live <= 1
        run(until(lambda: channel.live == 0))
