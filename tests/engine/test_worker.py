"""An instance's thread when code of ours raises: whoever waits hears of it. How processes die and come back is in test_process.py."""

import asyncio
import logging
import threading

import numpy as np
import pytest

import headrace.engine.rounds
import headrace.engine.steps.settlement
from engine.process_models import Identity
from engine.steps.counted import Counted, Shared, sums
from engine.steps.counted import asked as counted_request
from engine.steps.counted import engine as counted_engine
from engine.steps.models import Adding, answered, end, more, of_many, run, start, step_request
from engine.support import WAIT_S, answer, request, rows, serving, until, values
from headrace.core import Model
from headrace.core.errors import InstanceLostError, PredictError, SequenceLostError, StoppedError
from headrace.engine import Engine
from headrace.engine.backend import LocalBackend
from headrace.engine.channel import Channel
from headrace.engine.instance import Instance
from headrace.engine.settings import ServeSettings
from headrace.engine.steps.calls import StepCall, StepCaller
from headrace.engine.steps.channel import StepChannel
from headrace.engine.steps.gathered import Gathered
from headrace.engine.steps.keeper import Keeper
from headrace.engine.steps.settlement import Settlement
from headrace.engine.tally import Tally
from headrace.engine.ticket import FutureReply

ISOLATIONS = ("thread", "process")


class Doubling(Model):
    """Holds its first call until it may go on."""

    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def __init__(self):
        self.gate, self.calling = threading.Event(), threading.Event()

    def predict(self, x):
        self.calling.set()
        assert self.gate.wait(WAIT_S)
        return x * np.float32(2)


class Breaking:
    """Makes something raise, once or over and over: before it does anything, or after. `threads` are those that it raised in."""

    def __init__(self, patch):
        self._patch = patch
        self.threads = []

    def __call__(self, where, name, *, error=None, times=1, skip=0, after=False):
        real, left = getattr(where, name), [None] * skip + [error or RuntimeError("boom")] * times

        def broken(*args, **settings):
            raised = left.pop(0) if left else None
            if raised is not None and not after:
                self._raise(raised)
            done = real(*args, **settings)
            if raised is not None:
                self._raise(raised)
            return done

        self._patch.setattr(where, name, broken)

    def _raise(self, error):
        self.threads.append(threading.current_thread().name)
        raise error


@pytest.fixture
def breaks(monkeypatch):
    return Breaking(monkeypatch)


@pytest.fixture
def model():
    return Adding()


def failed(engine, asked):
    """What a request comes to that is expected to fail, within a time."""
    return engine.submit(asked, strict=True).exception(WAIT_S)


def is_ours(error):
    """Whether an error names the model, and what was raised; what that said is not for callers elsewhere."""
    if not isinstance(error, PredictError) or str(error.__cause__) != "boom":
        return False
    return error.model == "m" and "with RuntimeError:" in str(error) and "boom" not in str(error)


def traces(caplog):
    """The errors whose traces were logged."""
    return [str(r.exc_info[1]) for r in caplog.records if r.levelno == logging.ERROR and r.exc_info]


# Batches


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_was_taken_fails_and_the_thread_goes_on(isolation, breaks, caplog):
    with serving(Identity, isolation=isolation) as engine:
        breaks(Instance, "answer_all")
        assert is_ours(failed(engine, request()))
        assert values(answer(engine, rows(2))) == [2.0]
        assert engine.alive
        statistics = engine.model_statistics()
    assert traces(caplog) == ["boom"]
    assert (statistics.success.count, statistics.fail.count, statistics.in_flight) == (1, 1, 0)


def test_all_of_a_batch_fail(breaks):
    """Those that waited behind it are answered."""
    model = Doubling()
    with serving(model) as engine:

        async def main():
            first = asyncio.ensure_future(engine.ask(request(rows(1))))
            await asyncio.to_thread(model.calling.wait, WAIT_S)
            others = [asyncio.ensure_future(engine.ask(request(rows(v)))) for v in (2, 3)]
            await asyncio.sleep(0)
            breaks(Instance, "answer_all")
            model.gate.set()
            came = await asyncio.gather(first, *others, return_exceptions=True)
            return came, await engine.ask(request(rows(4)))

        (one, *two), last = run(main())
        assert (values(one), values(last)) == ([2.0], [8.0])
        assert all(map(is_ours, two))


def test_a_want_of_memory_is_told_as_the_cause(breaks):
    with serving(Identity) as engine:
        breaks(Instance, "answer_all", error=MemoryError("no room"))
        error = failed(engine, request())
    assert isinstance(error, PredictError)
    assert isinstance(error.__cause__, MemoryError)


@pytest.mark.parametrize(
    "where",
    [(FutureReply, "begin"), (headrace.engine.rounds, "deliver"), (Tally, "ended"), (Channel, "ended")],
)
def test_also_when_it_was_not_begun_or_answered_and_not_told(where, breaks):
    """Whatever it was that raised, each has one end."""
    with serving(Identity) as engine:
        breaks(*where)
        future = engine.submit(request(), strict=True)
        assert is_ours(future.exception(WAIT_S)) or values(future.result()) == [1.0]
        assert values(answer(engine, rows(2))) == [2.0]


def test_what_cannot_even_be_counted_is_told(breaks, caplog):
    with serving(Identity) as engine:
        breaks(Instance, "answer_all")
        breaks(Tally, "ended", error=RuntimeError("worse"))
        assert is_ours(failed(engine, request()))
    assert traces(caplog) == ["boom", "worse"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_without_its_last_thread_an_engine_says_so_at_once(isolation, breaks, caplog):
    """To those who wait, and to those who come later."""
    with serving(Identity, isolation=isolation) as engine:
        breaks(Channel, "poll")
        error = failed(engine, request())
        assert isinstance(error, InstanceLostError)
        assert "with RuntimeError:" in str(error)
        with pytest.raises((InstanceLostError, StoppedError)):
            engine.submit(request())
        with pytest.raises((InstanceLostError, StoppedError)):
            run(engine.ask(request()))
        assert not engine.alive
    assert traces(caplog) == ["boom"]


def test_the_other_instances_take_what_one_would_have(breaks):
    with serving(Identity, instances=2) as engine:
        breaks(Channel, "poll")
        for value in range(4):
            assert values(answer(engine, rows(value))) == [value]
        assert not engine.alive


# Steps


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    "where",
    [
        (StepChannel, "stepped"),
        (StepCaller, "call"),
        (Settlement, "_count"),
        (headrace.engine.steps.settlement, "deliver"),
        (Tally, "ended"),
    ],
)
def test_what_was_taken_ends_with_its_sequence_and_others_go_on(isolation, where, breaks, caplog):
    with serving(Adding, isolation=isolation) as engine:
        assert answered(engine, of_many(["a", "b"], [1, 2])) == [1.0, 2.0]
        breaks(*where)
        error = failed(engine, more("a", 10))
        assert error is None or is_ours(error)
        assert isinstance(failed(engine, more("a", 1)), SequenceLostError)
        assert answered(engine, more("b", 5)) == [7.0]
        assert answered(engine, start("a", 3)) == [3.0]
        assert engine.alive
        statistics = engine.model_statistics()
    assert traces(caplog) == ["boom"]
    assert statistics.sequences.ends["instance_lost"] == 1
    assert (statistics.in_flight, statistics.waiting_requests, statistics.waiting_rows) == (0, 0, 0)


def test_requests_that_wait_for_the_sequence_hear_of_it(model, breaks):
    """And the model is told of its end."""
    with serving(model) as engine:
        answered(engine, start("a", 1))
        model.gate, model.stepping = threading.Event(), threading.Event()
        first = engine.submit(more("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        second = engine.submit(more("a", 1), strict=True)
        breaks(StepChannel, "stepped")
        model.gate.set()
        assert is_ours(first.exception(WAIT_S))
        assert isinstance(second.exception(WAIT_S), SequenceLostError)
        assert answered(engine, start("b", 1)) == [1.0]
        assert model.told == [("a", "instance_lost", 2.0)]


def full_calls(model, engine, *, settled):
    """Two requests of different sequences, one of which is in a call that is full while the other waits: what they come to.

    `settled` is called before the first one is.
    """
    answered(engine, start("a", 1))
    answered(engine, start("b", 2))
    model.gate, model.stepping = threading.Event(), threading.Event()
    first = engine.submit(more("a", 10), strict=True)
    assert model.stepping.wait(WAIT_S)
    second = engine.submit(more("b", 10), strict=True)
    settled()
    model.gate.set()
    return first.exception(WAIT_S), second.exception(WAIT_S)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", [(StepChannel, "stepped"), (StepChannel, "settle"), (Settlement, "_count")])
def test_the_same_holds_where_steps_are_settled_beside_the_next_call(model, where, after, breaks):
    with serving(model, max_batch_rows=1) as engine:
        one, other = full_calls(model, engine, settled=lambda: breaks(*where, after=after))
        assert breaks.threads[0].endswith("-beside_0")
        assert is_ours(one) or (one is None and where[1] == "settle")
        assert other is None
        assert isinstance(failed(engine, more("a", 1)), SequenceLostError)
        assert answered(engine, more("b", 5)) == [17.0]


@pytest.fixture
def five_calls(model):
    """What five requests come to, a call for each: the model is held in the second until `ready` is true."""
    model.max_batch_rows = 1
    engine = Engine(lambda: model, name="m", serving=ServeSettings(isolation="thread"), in_flight_max=8)
    engine.start()
    model.gate = threading.Event()
    futures = [engine.submit(start("first", 0), strict=True)]
    assert model.stepping.wait(WAIT_S)
    futures += [engine.submit(start(id, 1), strict=True) for id in "abcd"]

    def ends(ready):
        held, model.gate = model.gate, threading.Event()
        held.set()
        run(until(ready))
        model.gate.set()
        return [future.exception(WAIT_S) for future in futures]

    yield ends
    model.gate.set()
    engine.stop(drain=False)


def test_a_call_that_could_not_be_made_ready_is_made_all_the_same(five_calls, monkeypatch):
    real, threads = StepCall.of, []

    def broken(outcomes):
        if threading.current_thread().name.endswith("-beside_0"):
            threads.append(len(outcomes))
            raise RuntimeError("boom")
        return real(outcomes)

    monkeypatch.setattr(StepCall, "of", broken)
    assert five_calls(lambda: threads) == [None] * 5


def test_everybody_hears_of_it_where_the_next_steps_could_not_be_taken(five_calls, breaks):
    breaks(StepChannel, "take_full")
    ends = five_calls(lambda: breaks.threads)
    assert breaks.threads[0].endswith("-beside_0")
    assert ends[:2] == [None, None]
    assert all(isinstance(end, InstanceLostError | SequenceLostError) for end in ends[2:])


@pytest.mark.parametrize(("rows_max", "times"), [(8, 2), (1, 1)])
def test_what_cannot_even_fail_ends_the_thread(model, rows_max, times, breaks, caplog):
    """Everybody hears of it all the same."""
    with serving(model, max_batch_rows=rows_max) as engine:

        def both():
            breaks(StepChannel, "stepped")
            breaks(StepChannel, "spoiled", error=RuntimeError("worse"), times=times)

        one, other = full_calls(model, engine, settled=both)
        assert is_ours(one)
        assert other is None or isinstance(other, (InstanceLostError, SequenceLostError, PredictError))
        # Its thread has that to itself; it may be a moment.
        assert isinstance(failed_at_last(engine), InstanceLostError)
        assert not engine.alive
    assert "boom" in traces(caplog)
    assert "worse" in traces(caplog)


def failed_at_last(engine):
    """What later requests come to, once the last thread has ended: those before may end otherwise, but each does."""
    while True:
        try:
            error = engine.submit(start("c", 1)).exception(WAIT_S)
        except InstanceLostError as lost:
            return lost
        except StoppedError:
            continue
        assert error is not None


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_without_its_last_thread_nobody_waits_for_a_step(isolation, breaks, caplog):
    with serving(Adding, isolation=isolation) as engine:
        answered(engine, start("a", 1))
        breaks(StepChannel, "_poll")
        assert isinstance(failed(engine, more("a", 1)), (InstanceLostError, SequenceLostError))
        assert isinstance(failed_at_last(engine), InstanceLostError)
        assert not engine.alive
    assert traces(caplog) == ["boom"]


def test_the_other_instances_have_the_sequences_from_then_on(breaks):
    with serving(Adding, instances=2) as engine:
        answered(engine, start("a", 1))
        answered(engine, start("b", 2))
        breaks(StepChannel, "_poll")
        assert isinstance(failed(engine, more("a", 1)), SequenceLostError)
        assert answered(engine, more("b", 5)) == [7.0]
        for value in (1, 2, 3):
            assert answered(engine, start(f"c{value}", value)) == [value]
        assert not engine.alive


def test_a_model_that_cannot_be_told_of_ends_answers_all_the_same(model, breaks):
    with serving(model) as engine:
        assert answered(engine, start("a", 1)) == [1.0]
        breaks(LocalBackend, "end_sequences")
        assert answered(engine, end("a", 1)) == [2.0]
        # It may share the work with what is told.
        error = failed(engine, start("b", 1))
        assert error is None or is_ours(error)
        assert answered(engine, start("c", 1)) == [1.0]


@pytest.mark.parametrize("after", [False, True])
def test_a_stream_ends_with_the_error_while_its_caller_waits_for_an_item(model, after, breaks):
    model.gate = threading.Event()

    async def main(engine):
        stream = engine.stream(step_request(Adding.AGAIN))
        try:
            item = asyncio.ensure_future(anext(stream))
            await until(lambda: model.stepping.is_set() and stream._call.answers._getter is not None)
            breaks(StepChannel, "stepped", after=after)
            model.gate.set()
            assert (await item).outputs[0].data.item() == Adding.AGAIN
            with pytest.raises(PredictError, match="headrace itself failed"):
                async for _ in stream:
                    pass
        finally:
            await stream.aclose()

    with serving(model, warm_up=False) as engine:
        run(main(engine))
        assert engine.sequences() == ()
        assert engine.model_statistics().open_streams == 0


def test_outputs_that_cannot_be_given_cost_their_request_alone(model, breaks, caplog):
    """Their step is done."""
    with serving(model) as engine:
        assert answered(engine, of_many(["a", "b"], [1, 2])) == [1.0, 2.0]
        model.gate, model.stepping = threading.Event(), threading.Event()
        waits = engine.submit(start("c", 1))
        assert model.stepping.wait(WAIT_S)
        first, second = [engine.submit(more(id, 10), strict=True) for id in ("a", "b")]
        breaks(Gathered, "give", skip=1)
        model.gate.set()
        assert waits.result(WAIT_S).outputs
        assert is_ours(first.exception(WAIT_S))
        assert values(second.result(WAIT_S)) == [12.0]
        assert model.calls[-1] == [10.0, 10.0]
        assert answered(engine, more("a", 5)) == [16.0]
    assert traces(caplog) == ["boom"]


# Checkpoints


@pytest.mark.parametrize(
    ("where", "after", "goes_on"),
    [
        ((Shared, "save"), False, 1),
        ((Shared, "save"), True, 3),
        ((Keeper, "bring"), False, 1),
        ((StepChannel, "stepped"), False, 3),
    ],
)
def test_with_checkpoints_a_sequence_goes_on_at_the_last_step_that_was_saved(where, after, goes_on, breaks):
    store = Shared()
    with counted_engine(store) as engine:
        assert sums(engine, 1, sequence_id="s", sequence_start=True) == [1]
        breaks(*where, after=after)
        future = engine.submit(counted_request(2, sequence_id="s"), strict=True)
        assert is_ours(future.exception(WAIT_S))
        assert sums(engine, 4, sequence_id="s") == [goes_on + 4]
        assert sums(engine, 0, sequence_id="s", sequence_end=True) == [goes_on + 4]
        assert store.ids == []


def test_with_checkpoints_nothing_is_lost_with_a_thread(breaks):
    """Another instance has its sequences from then on, and what waits for them."""
    with counted_engine(Shared(), instances=2) as engine:
        assert sums(engine, 1, sequence_id="s", sequence_start=True) == [1]
        breaks(StepChannel, "_poll")
        assert sums(engine, 2, sequence_id="s") == [3]
        assert not engine.alive


def test_with_checkpoints_in_a_process(breaks):
    with counted_engine("memory:", Counted, isolation="process") as engine:
        assert sums(engine, 1, sequence_id="s", sequence_start=True) == [1]
        breaks(StepChannel, "stepped")
        assert sums(engine, 2, sequence_id="s") == "PredictError"
        assert sums(engine, 4, sequence_id="s") == [7]
