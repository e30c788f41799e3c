"""What one instance does over and over: a step of many sequences, and what came of each."""

import asyncio
import threading

import pytest

from engine.steps.models import Adding, answered, more, of_many, run, start
from engine.steps.mortal import Mortals, diary_request
from engine.support import WAIT_S, serving, until
from headrace.core.errors import (
    InstanceLostError,
    SequenceLostError,
)
from headrace.core.sequence import SequenceLimits
from headrace.engine import Engine
from headrace.engine.settings import ServeSettings


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


# While a call is made, the next one is made ready


@pytest.fixture
def made_ready(model):
    """An engine in whose model a call of two rows is, and whose next one is ready; the futures of six sequences' rows, and the gate."""
    model.max_batch_rows = 2
    engine = Engine(lambda: model, name="m", serving=ServeSettings(isolation="thread"), in_flight_max=8)
    engine.start()
    try:
        # Whoever comes with the first row waits for it.
        model.gate = threading.Event()
        first = engine.submit(start("first", 0))
        assert model.stepping.wait(WAIT_S)
        model.stepping.clear()
        held, model.gate = model.gate, threading.Event()
        futures = [engine.submit(start(id, value), strict=True) for value, id in enumerate("abcdef", 1)]
        held.set()
        first.result(WAIT_S)
        assert model.stepping.wait(WAIT_S)
        run(until(lambda: engine._life.steps.waiting()[3] == 4))
        model.calls.clear()
        yield engine, futures
    finally:
        model.gate.set()
        engine.stop(drain=False)


def test_the_next_call_is_made_ready_in_order(model, made_ready):
    _, futures = made_ready
    model.gate.set()
    assert [future.result(WAIT_S).outputs[0].data.item() for future in futures] == [
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
        6.0,
    ]
    assert model.calls == [[3.0, 4.0], [5.0, 6.0]]


def test_what_nobody_wants_any_more_is_not_done_though_it_was_ready(model, made_ready):
    engine, futures = made_ready
    engine.abandon(futures[2])
    model.gate.set()
    assert [future.result(WAIT_S).outputs[0].data.item() for future in futures[3:]] == [4.0, 5.0, 6.0]
    assert model.calls == [[4.0], [5.0, 6.0]]


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


@pytest.mark.parametrize(("first", "calls"), [("die", 1 + 3 + 2), ("go", 3)])
def test_what_was_ready_is_done_by_the_instance_that_comes(first, calls):
    """Once; and by itself only where it was in the call that the instance died in."""
    mortals = Mortals(SequenceLimits(), instances=1, in_flight_max=16)
    asked = []

    async def main():
        for number in range(9):
            parameters = {"sequence_id": str(number), "sequence_start": True}
            asked.append(
                asyncio.ensure_future(mortals.engine.ask(diary_request([(number, "plain")], parameters)))
            )
        await asyncio.sleep(0)
        await mortals.settle()
        if first == "go":
            mortals.backends[0].kill()
            await mortals.settle()
        mortals.backends[0].judge(first)
        while not all(task.done() for task in asked):
            await mortals.settle()
            if mortals.busy(0):
                mortals.backends[0].judge("go")
        return await asyncio.gather(*asked)

    try:
        answers = mortals.run(main())
        assert [a.outputs[0].data.item() for a in answers] == [f"[[{n}, 0]]" for n in range(9)]
        statistics = mortals.engine.model_statistics()
        assert (statistics.restarts, statistics.calls) == (1, calls)
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
