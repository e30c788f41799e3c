"""Steps of many sequences in one call, and whose fault it is when that fails."""

import threading

import numpy as np
import pytest

from engine.steps.models import Adding, answered, more, of_many, start, step_request
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
def test_a_row_that_fails_fails_alone_and_leaves_its_state(model, bad):
    """Those that shared its call are answered, and its sequence lives."""
    with serving(model) as engine:
        answered(engine, of_many(["a", "b", "c"], [1, 2, 3]))
        asked = step_request(1, bad, 1, tensors={"sequence_id": np.array(["a", "b", "c"], object)})
        response = engine.submit(asked).result(WAIT_S) if bad != Adding.WRONG else None
        if response is not None:
            assert response.outputs[0].data.ravel().tolist() == [2.0, 4.0]
            assert [failure.row for failure in response.failures] == [1]
        else:
            assert isinstance(answered(engine, more("b", bad)), ModelContractError)
        assert answered(engine, more("b", 1)) == [3.0]


def test_a_strict_request_fails_with_its_row(model):
    """What was done before it stays done."""
    with serving(model) as engine:
        assert isinstance(answered(engine, start("a", 1, Adding.ODD, 5)), PredictError)
        assert answered(engine, more("a", 1)) == [2.0]
    assert [5.0] not in model.calls


def test_smaller_calls_are_made_once_memory_is_short(model):
    ids = ["a", "b", "c", "d"]
    with serving(model) as engine:
        values = answered(engine, of_many(ids, [Adding.MEMORY] * 4))
        model.calls.clear()
        again = answered(engine, of_many(ids, [1] * 4))
    assert (values, again) == ([Adding.MEMORY] * 4, [1.0] * 4)
    assert model.calls == [[1.0, 1.0], [1.0, 1.0]]


def test_a_request_whose_time_is_over_is_not_begun(model):
    clock = ManualClock()
    with serving(model, clock=clock) as engine:
        answered(engine, start("a", 1))
        model.gate, model.stepping = threading.Event(), threading.Event()
        first = engine.submit(more("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        late = engine.submit(more("a", 50, deadline=5.0))
        clock.advance(6.0)
        model.gate.set()
        assert isinstance(late.exception(WAIT_S), DeadlineError)
        assert first.result(WAIT_S).outputs[0].data.item() == 2.0
        assert answered(engine, more("a", 1)) == [3.0]


@pytest.mark.parametrize("raised", [None, CancelledRequestError("nobody waits")])
def test_whatever_a_step_raises_once_nobody_waits_is_a_deadline_s_end(model, raised):
    """The model may have learned of the deadline before its caller did; the sequence goes on."""
    clock = ManualClock()
    with serving(model, clock=clock) as engine:
        answered(engine, start("a", 1))
        model.gate, model.stepping, model.raises = threading.Event(), threading.Event(), raised
        late = engine.submit(more("a", Adding.ODD, deadline=5.0), strict=True)
        assert model.stepping.wait(WAIT_S)
        clock.advance(6.0)
        model.gate.set()
        assert isinstance(late.exception(WAIT_S), DeadlineError)
        assert answered(engine, more("a", 1)) == [2.0]


def test_rows_of_one_that_is_asked_alone_share_calls_with_nobody(model):
    with serving(model) as engine:
        engine.submit(start("z", 0)).result(WAIT_S)
        model.gate, model.stepping = threading.Event(), threading.Event()
        engine.submit(more("z", 0))
        assert model.stepping.wait(WAIT_S)
        futures = [
            engine.submit(of_many(["a", "b"], [1, 2]), alone=True),
            engine.submit(of_many(["c", "d"], [3, 4]), alone=True),
        ]
        model.calls.clear()
        model.gate.set()
        for future in futures:
            future.result(WAIT_S)
    assert sorted(model.calls) == [[1.0, 2.0], [3.0, 4.0]]
