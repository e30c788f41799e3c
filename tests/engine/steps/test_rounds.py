"""What one instance does over and over: a step of many sequences, and what came of each."""

import asyncio
import threading

import numpy as np
import pytest

from engine.steps.models import Adding, answered, end, more, of_many, run, start, step_request
from engine.steps.mortal import Mortals, diary_request
from engine.support import WAIT_S, serving
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    InstanceLostError,
    ModelContractError,
    PredictError,
    SequenceGoneError,
    SequenceLostError,
)
from headrace.core.sequence import SequenceLimits
from headrace.testing import ManualClock


@pytest.fixture
def model():
    return Adding()


def test_steps_of_different_sequences_share_a_call(model):
    with serving(model) as engine:
        assert answered(engine, of_many(["a", "b", "c"], [1, 2, 3])) == [1.0, 2.0, 3.0]
        assert answered(engine, more("b", 5)) == [7.0]
    assert model.calls[-2:] == [[1.0, 2.0, 3.0], [5.0]]


def test_rows_of_one_sequence_are_steps_in_order(model):
    with serving(model) as engine:
        assert answered(engine, start("a", 1, 2, 3)) == [1.0, 3.0, 6.0]
    assert model.calls[-3:] == [[1.0], [2.0], [3.0]]


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


# When an instance dies


def _dying(*verdicts, instances=1):
    """An engine whose instance meets its calls with these verdicts, one after another."""
    mortals = Mortals(SequenceLimits(), instances=instances, in_flight_max=8)

    async def judge():
        for verdict in verdicts:
            await mortals.settle()
            if not mortals.busy(0):
                return
            mortals.backends[0].judge(verdict)
        await mortals.settle()

    return mortals, judge


def test_a_request_that_kills_is_asked_twice_and_by_itself():
    """Those that shared its call are answered."""
    mortals, judge = _dying("die", "die", "go", "go")

    async def main():
        asked = [
            asyncio.ensure_future(
                mortals.engine.ask(
                    diary_request([(i, "plain")], {"sequence_id": str(i), "sequence_start": True})
                )
            )
            for i in (1, 2)
        ]
        await asyncio.sleep(0)
        await judge()
        return await asyncio.gather(*asked, return_exceptions=True)

    try:
        answers = mortals.run(main())
        assert isinstance(answers[0], InstanceLostError)
        assert answers[1].outputs
        assert mortals.engine.model_statistics().restarts == 2
        # The sequence that was begun for it is there, and empty.
        assert [(info.id, info.steps) for info in mortals.engine.sequences()] == [("1", 0), ("2", 1)]
    finally:
        mortals.close()


def test_sequences_end_with_the_instance_that_had_them():
    """Their requests, those that come later, and the model, are told."""
    mortals, _ = _dying()

    async def main():
        first = asyncio.ensure_future(
            mortals.engine.ask(diary_request([(1, "plain")], {"sequence_id": "a", "sequence_start": True}))
        )
        await mortals.settle()
        mortals.backends[0].judge("go")
        await first
        second = asyncio.ensure_future(
            mortals.engine.ask(diary_request([(2, "plain")], {"sequence_id": "a"}))
        )
        await mortals.settle()
        mortals.backends[0].judge("die")
        with pytest.raises(SequenceLostError, match="died"):
            await second
        with pytest.raises(SequenceLostError, match="sequence_start"):
            await mortals.engine.ask(diary_request([(3, "plain")], {"sequence_id": "a"}))
        await mortals.settle()

    try:
        mortals.run(main())
        assert mortals.model.ended == [("a", "instance_lost", 1, [])]
    finally:
        mortals.close()


def test_an_instance_that_is_back_gets_new_sequences():
    """As the others do."""
    mortals, _ = _dying(instances=2)
    asked = []

    async def main():
        mortals.backends[0].kill()
        await mortals.settle()
        for id in "ab":
            parameters = {"sequence_id": id, "sequence_start": True}
            asked.append(asyncio.ensure_future(mortals.engine.ask(diary_request([(1, "plain")], parameters))))
        await asyncio.sleep(0)
        await mortals.settle()
        return [mortals.busy(at) for at in (0, 1)]

    try:
        assert mortals.run(main()) == [True, True]
    finally:
        mortals.close()


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
