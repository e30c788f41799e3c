"""What one instance does over and over: a step of many sequences, and what came of each."""

import asyncio
import threading

import pytest

from engine.steps.models import Adding, answered, more, of_many, run, start
from engine.steps.mortal import Mortals, diary_request
from engine.support import WAIT_S, serving, until
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    InstanceLostError,
    SequenceGoneError,
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


def totals(futures):
    """What each request comes to."""
    return [future.result(WAIT_S).outputs[0].data.item() for future in futures]


def test_the_next_call_is_made_ready_in_order(model, made_ready):
    _, futures = made_ready
    model.gate.set()
    assert totals(futures) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert model.calls == [[3.0, 4.0], [5.0, 6.0]]


def test_what_nobody_wants_any_more_is_not_done_though_it_was_ready(model, made_ready):
    engine, futures = made_ready
    engine.abandon(futures[2])
    model.gate.set()
    assert totals(futures[3:]) == [4.0, 5.0, 6.0]
    assert model.calls == [[4.0], [5.0, 6.0]]


def test_a_request_that_is_taken_when_its_time_is_over_has_begun():
    """It is over with the call that was taken with it, whatever becomes of its caller meanwhile; no step of it is done."""
    mortals = Mortals(SequenceLimits(), instances=1, in_flight_max=8)
    submit, judge = mortals.engine.submit, mortals.backends[0].judge

    async def main():
        first = submit(diary_request([(1, "plain")], _begins("a")))
        await mortals.settle()
        late = [submit(diary_request([(2, "plain")], _begins(id), deadline=3.0)) for id in "bc"]
        other = submit(diary_request([(3, "plain")], _begins("d")))
        mortals.clock.advance(4.0)
        judge("go")
        await mortals.settle()
        assert first.done()
        assert [token for _, token, _ in mortals.backends[0].held] == [3]
        assert not any(future.cancel() for future in late)
        mortals.engine.abandon(late[0])
        assert isinstance(late[0].exception(0), CancelledRequestError)
        judge("go")
        await mortals.settle()
        assert isinstance(late[1].exception(0), DeadlineError)
        assert other.done()
        return [(info.id, info.stage, info.steps) for info in mortals.engine.sequences()]

    try:
        assert mortals.run(main()) == [
            ("a", "idle", 1),
            ("b", "idle", 0),
            ("c", "idle", 0),
            ("d", "idle", 1),
        ]
    finally:
        mortals.close()


def _begins(id):
    return {"sequence_id": id, "sequence_start": True}


def test_a_stop_tells_the_model_of_what_ended_with_a_call_that_is_settled_beside_it():
    mortals = Mortals(SequenceLimits(time_ms_max=1000.0), instances=1, in_flight_max=8, rows_max=1)

    async def main():
        mortals.engine.submit(diary_request([(1, "plain")], _begins("a")))
        await mortals.settle()
        second = mortals.engine.submit(diary_request([(2, "plain")], _begins("b")))
        # Told by the instance when it has made its first call, and looks for the next.
        second.add_done_callback(lambda _: (mortals.channel.drop(), dropped.set()))
        free = mortals.unsettled(0)
        mortals.clock.advance(2.0)
        mortals.backends[0].judge("go")
        assert await asyncio.to_thread(dropped.wait, WAIT_S)
        free.set()

    dropped = threading.Event()
    try:
        mortals.run(main())
    finally:
        mortals.close()
    assert mortals.model.ended == [("a", "timed_out", 1, [[1, 0]])]


@pytest.mark.parametrize("ends", [True, False])
def test_whoever_waits_behind_a_step_hears_of_it_before_the_next_call_is_over(ends):
    """That its sequence has ended; or that it is over, since it asks for no step."""
    mortals = Mortals(SequenceLimits(), instances=1, in_flight_max=8, rows_max=1)
    backend = mortals.backends[0]

    def ask(rows, parameters):
        return asyncio.ensure_future(mortals.engine.ask(diary_request(rows, parameters)))

    async def main():
        ask([(1, "plain")], {**_begins("a"), "sequence_end": ends})
        await mortals.settle()
        behind = ask([(2, "plain")] if ends else None, {"sequence_id": "a", "sequence_end": True})
        ask([(3, "plain")], _begins("b"))
        await mortals.settle()
        free = mortals.unsettled(0)
        backend.judge("go")
        # What came of the first call is settled beside the second, which is held.
        await mortals.settle(settled=False)
        free.set()
        await mortals.settle()
        assert [token for _, token, _ in backend.held] == [3]
        assert behind.done()
        return behind.exception()

    try:
        error = mortals.run(main())
        assert isinstance(error, SequenceGoneError) if ends else error is None
    finally:
        mortals.close()


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
