"""The work loop of one instance of a model with a step."""

import asyncio
import threading

import pytest

from engine.sequences.controlled_engine import ControlledEngine, diary_request
from engine.sequences.models import Adding, many_sequences_request, more, run, start, submit_result
from engine.support import WAIT_S, serving, wait_until
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
        assert submit_result(engine, many_sequences_request(["a", "b", "c"], [1, 2, 3])) == [1.0, 2.0, 3.0]
        assert submit_result(engine, more("b", 5)) == [7.0]
    assert model.calls[-2:] == [[1.0, 2.0, 3.0], [5.0]]


def test_rows_of_one_sequence_are_steps_in_order(model):
    with serving(model) as engine:
        assert submit_result(engine, start("a", 1, 2, 3)) == [1.0, 3.0, 6.0]
    assert model.calls[-3:] == [[1.0], [2.0], [3.0]]


# The next call is prepared during a call


@pytest.fixture
def run_prepared(model):
    """Run an engine with a held call of two rows, and a prepared one. Return six futures and the
    gate.
    """
    model.max_batch_rows = 2
    engine = Engine(lambda: model, name="m", serving=ServeSettings(isolation="thread"), in_flight_max=8)
    engine.start()
    try:
        # The request with the first row waits for it.
        model.gate = threading.Event()
        first = engine.submit(start("first", 0))
        assert model.stepping.wait(WAIT_S)
        model.stepping.clear()
        held, model.gate = model.gate, threading.Event()
        futures = [engine.submit(start(id, value), strict=True) for value, id in enumerate("abcdef", 1)]
        held.set()
        first.result(WAIT_S)
        assert model.stepping.wait(WAIT_S)
        run(wait_until(lambda: engine._session.queue.waiting()[3] == 4))
        model.calls.clear()
        yield engine, futures
    finally:
        model.gate.set()
        engine.stop(drain=False)


def totals(futures):
    """Return the total of each request."""
    return [future.result(WAIT_S).outputs[0].data.item() for future in futures]


def test_next_call_is_prepared_in_order(model, run_prepared):
    _, futures = run_prepared
    model.gate.set()
    assert totals(futures) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert model.calls == [[3.0, 4.0], [5.0, 6.0]]


def test_cancelled_prepared_step_is_not_done(model, run_prepared):
    engine, futures = run_prepared
    engine.abandon(futures[2])
    model.gate.set()
    assert totals(futures[3:]) == [4.0, 5.0, 6.0]
    assert model.calls == [[4.0], [5.0, 6.0]]


def test_request_taken_after_deadline_has_begun():
    """It ends with the call that it was taken with; no step of it is done."""
    controlled = ControlledEngine(SequenceLimits(), instances=1, in_flight_max=8)
    submit, judge = controlled.engine.submit, controlled.backends[0].judge

    async def main():
        first = submit(diary_request([(1, "plain")], _begins("a")))
        await controlled.wait_idle()
        late = [submit(diary_request([(2, "plain")], _begins(id), deadline=3.0)) for id in "bc"]
        other = submit(diary_request([(3, "plain")], _begins("d")))
        controlled.clock.advance(4.0)
        judge("go")
        await controlled.wait_idle()
        assert first.done()
        assert [token for _, token, _ in controlled.backends[0].held] == [3]
        assert not any(future.cancel() for future in late)
        controlled.engine.abandon(late[0])
        assert isinstance(late[0].exception(0), CancelledRequestError)
        judge("go")
        await controlled.wait_idle()
        assert isinstance(late[1].exception(0), DeadlineError)
        assert other.done()
        return [(info.id, info.stage, info.steps) for info in controlled.engine.sequences()]

    try:
        assert controlled.run(main()) == [
            ("a", "idle", 1),
            ("b", "idle", 0),
            ("c", "idle", 0),
            ("d", "idle", 1),
        ]
    finally:
        controlled.close()


def _begins(id):
    return {"sequence_id": id, "sequence_start": True}


def test_stop_reports_endings_of_parallel_commit():
    controlled = ControlledEngine(
        SequenceLimits(time_ms_max=1000.0), instances=1, in_flight_max=8, rows_max=1
    )

    async def main():
        controlled.engine.submit(diary_request([(1, "plain")], _begins("a")))
        await controlled.wait_idle()
        second = controlled.engine.submit(diary_request([(2, "plain")], _begins("b")))
        # Called by the instance after its first call, when it looks for the next.
        second.add_done_callback(lambda _: (controlled.queue.drop(), dropped.set()))
        free = controlled.block_commit(0)
        controlled.clock.advance(2.0)
        controlled.backends[0].judge("go")
        assert await asyncio.to_thread(dropped.wait, WAIT_S)
        free.set()

    dropped = threading.Event()
    try:
        controlled.run(main())
    finally:
        controlled.close()
    assert controlled.model.ended == [("a", "timed_out", 1, [[1, 0]])]


@pytest.mark.parametrize("ends", [True, False])
def test_waiting_request_completes_before_next_call(ends):
    """With the end of its sequence, or complete without a step."""
    controlled = ControlledEngine(SequenceLimits(), instances=1, in_flight_max=8, rows_max=1)
    backend = controlled.backends[0]

    def ask(rows, parameters):
        return asyncio.ensure_future(controlled.engine.infer(diary_request(rows, parameters)))

    async def main():
        ask([(1, "plain")], {**_begins("a"), "sequence_end": ends})
        await controlled.wait_idle()
        behind = ask([(2, "plain")] if ends else None, {"sequence_id": "a", "sequence_end": True})
        ask([(3, "plain")], _begins("b"))
        await controlled.wait_idle()
        free = controlled.block_commit(0)
        backend.judge("go")
        # The first call is committed in parallel to the second one, which is held.
        await controlled.wait_idle(committed=False)
        free.set()
        await controlled.wait_idle()
        assert [token for _, token, _ in backend.held] == [3]
        assert behind.done()
        return behind.exception()

    try:
        error = controlled.run(main())
        assert isinstance(error, SequenceGoneError) if ends else error is None
    finally:
        controlled.close()


# Death of an instance


def _kill_twice(*verdicts, instances=1):
    """Yield an engine whose instance gets these verdicts in turn."""
    controlled = ControlledEngine(SequenceLimits(), instances=instances, in_flight_max=8)

    async def judge():
        for verdict in verdicts:
            await controlled.wait_idle()
            if not controlled.busy(0):
                return
            controlled.backends[0].judge(verdict)
        await controlled.wait_idle()

    return controlled, judge


def test_fatal_request_is_retried_alone_once():
    """The other requests of its call succeed."""
    controlled, judge = _kill_twice("die", "die", "go", "go")

    async def main():
        tasks = [
            asyncio.ensure_future(
                controlled.engine.infer(
                    diary_request([(i, "plain")], {"sequence_id": str(i), "sequence_start": True})
                )
            )
            for i in (1, 2)
        ]
        await asyncio.sleep(0)
        await judge()
        return await asyncio.gather(*tasks, return_exceptions=True)

    try:
        answers = controlled.run(main())
        assert isinstance(answers[0], InstanceLostError)
        assert answers[1].outputs
        assert controlled.engine.model_statistics().restarts == 2
        # The sequence that was started for it exists, and is empty.
        assert [(info.id, info.steps) for info in controlled.engine.sequences()] == [("1", 0), ("2", 1)]
    finally:
        controlled.close()


@pytest.mark.parametrize(("first", "calls"), [("die", 1 + 3 + 2), ("go", 3)])
def test_prepared_steps_run_after_restart(first, calls):
    """Once; alone only if it was in the call that died."""
    controlled = ControlledEngine(SequenceLimits(), instances=1, in_flight_max=16)
    tasks = []

    async def main():
        for number in range(9):
            parameters = {"sequence_id": str(number), "sequence_start": True}
            tasks.append(
                asyncio.ensure_future(controlled.engine.infer(diary_request([(number, "plain")], parameters)))
            )
        await asyncio.sleep(0)
        await controlled.wait_idle()
        if first == "go":
            controlled.backends[0].kill()
            await controlled.wait_idle()
        controlled.backends[0].judge(first)
        while not all(task.done() for task in tasks):
            await controlled.wait_idle()
            if controlled.busy(0):
                controlled.backends[0].judge("go")
        return await asyncio.gather(*tasks)

    try:
        answers = controlled.run(main())
        assert [a.outputs[0].data.item() for a in answers] == [f"[[{n}, 0]]" for n in range(9)]
        statistics = controlled.engine.model_statistics()
        assert (statistics.restarts, statistics.calls) == (1, calls)
    finally:
        controlled.close()


def test_sequences_end_with_their_instance():
    """Their requests, later ones, and the model learn it."""
    controlled, _ = _kill_twice()

    async def main():
        first = asyncio.ensure_future(
            controlled.engine.infer(
                diary_request([(1, "plain")], {"sequence_id": "a", "sequence_start": True})
            )
        )
        await controlled.wait_idle()
        controlled.backends[0].judge("go")
        await first
        second = asyncio.ensure_future(
            controlled.engine.infer(diary_request([(2, "plain")], {"sequence_id": "a"}))
        )
        await controlled.wait_idle()
        controlled.backends[0].judge("die")
        with pytest.raises(SequenceLostError, match="died"):
            await second
        with pytest.raises(SequenceLostError, match="sequence_start"):
            await controlled.engine.infer(diary_request([(3, "plain")], {"sequence_id": "a"}))
        await controlled.wait_idle()

    try:
        controlled.run(main())
        assert controlled.model.ended == [("a", "instance_lost", 1, [])]
    finally:
        controlled.close()


def test_restarted_instance_gets_new_sequences():
    """As the others do."""
    controlled, _ = _kill_twice(instances=2)
    tasks = []

    async def main():
        controlled.backends[0].kill()
        await controlled.wait_idle()
        for id in "ab":
            parameters = {"sequence_id": id, "sequence_start": True}
            tasks.append(
                asyncio.ensure_future(controlled.engine.infer(diary_request([(1, "plain")], parameters)))
            )
        await asyncio.sleep(0)
        await controlled.wait_idle()
        return [controlled.busy(at) for at in (0, 1)]

    try:
        assert controlled.run(main()) == [True, True]
    finally:
        controlled.close()
