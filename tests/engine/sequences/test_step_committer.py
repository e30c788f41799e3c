"""Results of steps, as their clients get them."""

import threading

import pytest

from engine.sequences.models import Adding, end, more, run, start, submit_result
from engine.support import WAIT_S, serving
from headrace.core.errors import (
    CancelledRequestError,
    SequenceGoneError,
)


@pytest.fixture
def model():
    return Adding()


def test_model_ends_its_sequence(model):
    """The remaining rows of its request are not done."""
    with serving(model) as engine:
        error = submit_result(engine, start("a", 1, Adding.LAST, 1))
        assert isinstance(error, SequenceGoneError)
        assert "row 2 of 3" in str(error)
        assert isinstance(submit_result(engine, more("a", 1)), SequenceGoneError)
    assert model.ended == [("a", "ended", 104.0)]


def test_rescheduled_row_is_stepped_again(model):
    with serving(model) as engine:
        assert submit_result(engine, start("a", 900)) == [900.0, 1800.0, 2700.0]


def test_abandoned_step_stays_done(model):
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        model.gate, model.stepping = threading.Event(), threading.Event()
        future = engine.submit(more("a", 1, 7))
        assert model.stepping.wait(WAIT_S)
        engine.abandon(future)
        assert isinstance(future.exception(WAIT_S), CancelledRequestError)
        model.gate.set()
        assert submit_result(engine, more("a", 1)) == [3.0]
    assert [7.0] not in model.calls


def test_late_request_learns_end_reason(model):
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        assert submit_result(engine, end("a")) == []
        assert "ended it" in str(submit_result(engine, more("a", 1)))
        assert run(_infer_outcome(engine, more("b", 1))) == "SequenceGoneError"


async def _infer_outcome(engine, request):
    try:
        return await engine.infer(request)
    except SequenceGoneError as error:
        return type(error).__name__
