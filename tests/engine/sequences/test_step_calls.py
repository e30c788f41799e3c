"""Steps of many sequences in one call, and the bisection of its failures."""

import threading

import numpy as np
import pytest

from engine.sequences.models import (
    Adding,
    end,
    many_sequences_request,
    more,
    start,
    step_request,
    submit_result,
)
from engine.support import WAIT_S, serving
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    ModelContractError,
    PredictError,
)
from headrace.testing import ManualClock


@pytest.fixture
def model():
    return Adding()


@pytest.mark.parametrize("bad", [Adding.ODD, Adding.KEYBOARD, Adding.WRONG])
def test_failing_row_keeps_its_state(model, bad):
    """The other rows of its call succeed, and its sequence lives."""
    with serving(model) as engine:
        submit_result(engine, many_sequences_request(["a", "b", "c"], [1, 2, 3]))
        sent = step_request(1, bad, 1, tensors={"sequence_id": np.array(["a", "b", "c"], object)})
        response = engine.submit(sent).result(WAIT_S) if bad != Adding.WRONG else None
        if response is not None:
            assert response.outputs[0].data.ravel().tolist() == [2.0, 4.0]
            assert [failure.row for failure in response.failures] == [1]
        else:
            assert isinstance(submit_result(engine, more("b", bad)), ModelContractError)
        assert submit_result(engine, more("b", 1)) == [3.0]


def test_strict_request_fails_with_its_row(model):
    """Earlier steps stay done."""
    with serving(model) as engine:
        assert isinstance(submit_result(engine, start("a", 1, Adding.ODD, 5)), PredictError)
        assert submit_result(engine, more("a", 1)) == [2.0]
    assert [5.0] not in model.calls


def test_out_of_memory_reduces_calls(model):
    ids = ["a", "b", "c", "d"]
    with serving(model) as engine:
        values = submit_result(engine, many_sequences_request(ids, [Adding.MEMORY] * 4))
        model.calls.clear()
        again = submit_result(engine, many_sequences_request(ids, [1] * 4))
    assert (values, again) == ([Adding.MEMORY] * 4, [1.0] * 4)
    assert model.calls == [[1.0, 1.0], [1.0, 1.0]]


def test_expired_step_is_not_begun(model):
    clock = ManualClock()
    with serving(model, clock=clock) as engine:
        submit_result(engine, start("a", 1))
        model.gate, model.stepping = threading.Event(), threading.Event()
        first = engine.submit(more("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        late = engine.submit(more("a", 50, deadline=5.0))
        clock.advance(6.0)
        model.gate.set()
        assert isinstance(late.exception(WAIT_S), DeadlineError)
        assert first.result(WAIT_S).outputs[0].data.item() == 2.0
        assert submit_result(engine, more("a", 1)) == [3.0]


@pytest.mark.parametrize("raised", [None, CancelledRequestError("nobody waits")])
def test_step_error_after_deadline_is_deadline_error(model, raised):
    """The model may see the deadline before its client does; the sequence continues."""
    clock = ManualClock()
    with serving(model, clock=clock) as engine:
        submit_result(engine, start("a", 1))
        model.gate, model.stepping, model.raises = threading.Event(), threading.Event(), raised
        late = engine.submit(more("a", Adding.ODD, deadline=5.0), strict=True)
        assert model.stepping.wait(WAIT_S)
        clock.advance(6.0)
        model.gate.set()
        assert isinstance(late.exception(WAIT_S), DeadlineError)
        assert submit_result(engine, more("a", 1)) == [2.0]


@pytest.mark.parametrize("other", [1.0, Adding.ODD])
def test_failing_batch_mate_ends_no_begun_step(model, other):
    """A step that was begun when its client left is done, and ends its sequence, in any case."""
    with serving(model) as engine:
        submit_result(engine, many_sequences_request(["a", "b", "c"], [0, 0, 0]))
        held, shared = threading.Event(), threading.Event()
        model.gate, model.stepping = held, threading.Event()
        engine.submit(more("c", 0))
        assert model.stepping.wait(WAIT_S)
        leaving = engine.submit(end("a", 7))
        staying = engine.submit(more("b", other), strict=True)
        model.stepping.clear()
        model.gate = shared
        held.set()
        assert model.stepping.wait(WAIT_S)
        assert sorted(model.calls[-1]) == sorted([7.0, other])
        engine.abandon(leaving)
        shared.set()
        assert isinstance(staying.exception(WAIT_S), PredictError if other == Adding.ODD else type(None))
        assert [(info.id, info.steps) for info in engine.sequences()] == [
            ("b", 1 if other == Adding.ODD else 2),
            ("c", 2),
        ]
    assert model.ended[0] == ("a", "ended", 7.0)


def test_rows_of_lone_request_share_no_call(model):
    with serving(model) as engine:
        engine.submit(start("z", 0)).result(WAIT_S)
        model.gate, model.stepping = threading.Event(), threading.Event()
        engine.submit(more("z", 0))
        assert model.stepping.wait(WAIT_S)
        futures = [
            engine.submit(many_sequences_request(["a", "b"], [1, 2]), alone=True),
            engine.submit(many_sequences_request(["c", "d"], [3, 4]), alone=True),
        ]
        model.calls.clear()
        model.gate.set()
        for future in futures:
            future.result(WAIT_S)
    assert sorted(model.calls) == [[1.0, 2.0], [3.0, 4.0]]
