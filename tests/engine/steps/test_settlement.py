"""What whoever asked for a step hears of it."""

import threading

import pytest

from engine.steps.models import Adding, answered, end, more, run, start
from engine.support import WAIT_S, serving
from headrace.core.errors import (
    CancelledRequestError,
    SequenceGoneError,
)


@pytest.fixture
def model():
    return Adding()


def test_a_model_ends_its_sequence(model):
    """What its request still asked for was not done."""
    with serving(model) as engine:
        error = answered(engine, start("a", 1, Adding.LAST, 1))
        assert isinstance(error, SequenceGoneError)
        assert "row 2 of the 3" in str(error)
        assert isinstance(answered(engine, more("a", 1)), SequenceGoneError)
    assert model.told == [("a", "ended", 104.0)]


def test_a_row_that_goes_on_is_stepped_again(model):
    with serving(model) as engine:
        assert answered(engine, start("a", 900)) == [900.0, 1800.0, 2700.0]


def test_a_step_that_nobody_waits_for_stays_done(model):
    with serving(model) as engine:
        answered(engine, start("a", 1))
        model.gate, model.stepping = threading.Event(), threading.Event()
        future = engine.submit(more("a", 1, 7))
        assert model.stepping.wait(WAIT_S)
        engine.abandon(future)
        assert isinstance(future.exception(WAIT_S), CancelledRequestError)
        model.gate.set()
        assert answered(engine, more("a", 1)) == [3.0]
    assert [7.0] not in model.calls


def test_whoever_is_late_hears_how_a_sequence_ended(model):
    with serving(model) as engine:
        answered(engine, start("a", 1))
        assert answered(engine, end("a")) == []
        assert "has ended" in str(answered(engine, more("a", 1)))
        assert run(_ask(engine, more("b", 1))) == "SequenceGoneError"


async def _ask(engine, request):
    try:
        return await engine.ask(request)
    except SequenceGoneError as error:
        return type(error).__name__
