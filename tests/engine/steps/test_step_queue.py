"""Requests that wait for their sequences; stops, refusals and cancellations."""

import asyncio
import threading
from concurrent.futures import wait

import numpy as np
import pytest

from engine.steps.models import (
    Adding,
    end,
    many_sequences_request,
    more,
    run,
    start,
    step_request,
    submit_result,
)
from engine.support import WAIT_S, in_thread, no_leaks, serving, wait_until
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
        queue = engine._session.step_queue
        assert queue.live <= 1
        run(wait_until(lambda: queue.live == 0))
