"""The thread of an instance: batches, deaths, and defects of headrace, in which every request ends."""

import asyncio
import logging
import threading

import numpy as np
import pytest

import headrace.engine.batch_loop
import headrace.engine.sequences.step_committer
from engine.process_models import Identity
from engine.sequences.models import (
    Adding,
    end,
    many_sequences_request,
    more,
    run,
    start,
    step_request,
    submit_result,
)
from engine.sequences.sum_model import FaultyStore, SumModel, sums
from engine.sequences.sum_model import engine as counted_engine
from engine.sequences.sum_model import sum_request as counted_request
from engine.support import WAIT_S, request, rows, serving, submit_and_wait, values, wait_until
from headrace.core import Model
from headrace.core.errors import InstanceLostError, PredictError, SequenceLostError, StoppedError
from headrace.engine import Engine
from headrace.engine.batch_caller import BatchCaller
from headrace.engine.batch_loop import RequestCommitter
from headrace.engine.counters import EngineCounters
from headrace.engine.local_backend import LocalBackend
from headrace.engine.pending_request import FutureCallback
from headrace.engine.request_queue import RequestQueue
from headrace.engine.schedule import IndependentRequests
from headrace.engine.sequences.instance_steps import InstanceSteps, StateLoader
from headrace.engine.sequences.sequence_rows import MultiRowRequest
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.step_committer import StepCommitter
from headrace.engine.settings import ServeSettings
from servers import polling

ISOLATIONS = ("thread", pytest.param("process", marks=pytest.mark.slow))


class Doubling(Model):
    """Holds its first call until released."""

    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def __init__(self):
        self.gate, self.calling = threading.Event(), threading.Event()

    def predict(self, x):
        self.calling.set()
        assert self.gate.wait(WAIT_S)
        return x * np.float32(2)


class Breaking:
    """Makes a function raise, once or repeatedly, before or after it runs. `threads` are those it
    raised in.
    """

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


def submit_error(engine, sent):
    """Return the error of a request that is expected to fail in time."""
    return engine.submit(sent, strict=True).exception(WAIT_S)


def is_internal_error(error):
    """Return True if the error names the model and the exception type, without its text."""
    if not isinstance(error, PredictError) or str(error.__cause__) != "boom":
        return False
    return error.model == "m" and "(RuntimeError)" in str(error) and "boom" not in str(error)


def logged_errors(caplog):
    """Return the logged exceptions."""
    return [str(r.exc_info[1]) for r in caplog.records if r.levelno == logging.ERROR and r.exc_info]


# Batches


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_defect_fails_batch_and_thread_continues(isolation, breaks, caplog):
    with serving(Identity, isolation=isolation) as engine:
        breaks(BatchCaller, "call")
        assert is_internal_error(submit_error(engine, request()))
        assert values(submit_and_wait(engine, rows(2))) == [2.0]
        assert engine.alive
        statistics = engine.model_statistics()
    assert logged_errors(caplog) == ["boom"]
    assert (statistics.success.count, statistics.fail.count, statistics.in_flight) == (1, 1, 0)


def test_defect_fails_whole_batch(breaks):
    """Requests that waited behind it succeed."""
    model = Doubling()
    with serving(model) as engine:

        async def main():
            first = asyncio.ensure_future(engine.infer(request(rows(1))))
            await asyncio.to_thread(model.calling.wait, WAIT_S)
            others = [asyncio.ensure_future(engine.infer(request(rows(v)))) for v in (2, 3)]
            await asyncio.sleep(0)
            breaks(BatchCaller, "call")
            model.gate.set()
            results = await asyncio.gather(first, *others, return_exceptions=True)
            return results, await engine.infer(request(rows(4)))

        (one, *two), last = run(main())
        assert (values(one), values(last)) == ([2.0], [8.0])
        assert all(map(is_internal_error, two))


def test_memory_error_is_the_cause(breaks):
    with serving(Identity) as engine:
        breaks(BatchCaller, "call", error=MemoryError("no room"))
        error = submit_error(engine, request())
    assert isinstance(error, PredictError)
    assert isinstance(error.__cause__, MemoryError)


@pytest.mark.parametrize(
    "where",
    [
        (FutureCallback, "start"),
        (RequestCommitter, "item"),
        (RequestCommitter, "result"),
        (headrace.engine.batch_loop, "deliver"),
        (EngineCounters, "record_result"),
        (IndependentRequests, "end"),
        (RequestCommitter, "_end"),
    ],
)
def test_defect_around_delivery_ends_each_request_once(where, breaks):
    with serving(Identity) as engine:
        breaks(*where)
        future = engine.submit(request(), strict=True)
        assert is_internal_error(future.exception(WAIT_S)) or values(future.result()) == [1.0]
        assert values(submit_and_wait(engine, rows(2))) == [2.0]
        statistics = engine.model_statistics()
    assert statistics.in_flight == 0


def test_defect_in_counting_still_reports_error(breaks, caplog):
    with serving(Identity) as engine:
        breaks(BatchCaller, "call")
        breaks(EngineCounters, "record_result", error=RuntimeError("worse"))
        assert is_internal_error(submit_error(engine, request()))
    assert logged_errors(caplog) == ["boom", "worse"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_engine_without_threads_fails_at_once(isolation, breaks, caplog):
    """Waiting and later requests."""
    with serving(Identity, isolation=isolation) as engine:
        breaks(IndependentRequests, "take")
        error = submit_error(engine, request())
        assert isinstance(error, InstanceLostError)
        assert "(RuntimeError)" in str(error)
        with pytest.raises((InstanceLostError, StoppedError)):
            engine.submit(request())
        with pytest.raises((InstanceLostError, StoppedError)):
            run(engine.infer(request()))
        polling.wait_until(lambda: not engine.alive)  # its thread ends by itself
    assert logged_errors(caplog) == ["boom"]


def test_other_instances_take_over_batches(breaks):
    with serving(Identity, instances=2) as engine:
        breaks(IndependentRequests, "take")
        for value in range(4):
            assert values(submit_and_wait(engine, rows(value))) == [value]
        polling.wait_until(lambda: not engine.alive)  # its thread ends by itself


# Steps


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    "where",
    [
        (InstanceSteps, "end_steps"),
        (BatchCaller, "call"),
        (StepCommitter, "_count_step"),
        (headrace.engine.sequences.step_committer, "deliver"),
        (EngineCounters, "record_result"),
    ],
)
def test_defect_ends_taken_sequences_only(isolation, where, breaks, caplog):
    with serving(Adding, isolation=isolation) as engine:
        assert submit_result(engine, many_sequences_request(["a", "b"], [1, 2])) == [1.0, 2.0]
        breaks(*where)
        error = submit_error(engine, more("a", 10))
        assert error is None or is_internal_error(error)
        assert isinstance(submit_error(engine, more("a", 1)), SequenceLostError)
        assert submit_result(engine, more("b", 5)) == [7.0]
        assert submit_result(engine, start("a", 3)) == [3.0]
        assert engine.alive
        statistics = engine.model_statistics()
    assert logged_errors(caplog) == ["boom"]
    assert statistics.sequences.ends["instance_lost"] == 1
    assert (statistics.in_flight, statistics.waiting_requests, statistics.waiting_rows) == (0, 0, 0)


def test_waiting_requests_of_ended_sequence_fail(model, breaks):
    """The end is reported to the model."""
    with serving(model) as engine:
        submit_result(engine, start("a", 1))
        model.gate, model.stepping = threading.Event(), threading.Event()
        first = engine.submit(more("a", 1), strict=True)
        assert model.stepping.wait(WAIT_S)
        second = engine.submit(more("a", 1), strict=True)
        breaks(InstanceSteps, "end_steps")
        model.gate.set()
        assert is_internal_error(first.exception(WAIT_S))
        assert isinstance(second.exception(WAIT_S), SequenceLostError)
        assert submit_result(engine, start("b", 1)) == [1.0]
        assert model.ended == [("a", "instance_lost", 2.0)]


def run_full_calls(model, engine, *, before_results):
    """Return the results of two requests of different sequences: one in a full call, one waiting.

    `before_results` is called before the first one ends.
    """
    submit_result(engine, start("a", 1))
    submit_result(engine, start("b", 2))
    model.gate, model.stepping = threading.Event(), threading.Event()
    first = engine.submit(more("a", 10), strict=True)
    assert model.stepping.wait(WAIT_S)
    second = engine.submit(more("b", 10), strict=True)
    before_results()
    model.gate.set()
    return first.exception(WAIT_S), second.exception(WAIT_S)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "where", [(InstanceSteps, "end_steps"), (RequestQueue, "mark_ended"), (StepCommitter, "_count_step")]
)
def test_defect_in_parallel_commit_ends_its_sequences(model, where, after, breaks):
    with serving(model, max_batch_rows=1) as engine:
        one, other = run_full_calls(model, engine, before_results=lambda: breaks(*where, after=after))
        assert breaks.threads[0].endswith("-beside_0")
        assert is_internal_error(one) or (one is None and where[1] == "mark_ended")
        assert other is None
        assert isinstance(submit_error(engine, more("a", 1)), SequenceLostError)
        assert submit_result(engine, more("b", 5)) == [17.0]


@pytest.fixture
def run_five_calls(model):
    """Return the results of five requests, a call for each. The second call is held until `ready`."""
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
        run(wait_until(ready))
        model.gate.set()
        return [future.exception(WAIT_S) for future in futures]

    yield ends
    model.gate.set()
    engine.stop(drain=False)


def test_failed_preparation_is_retried_in_call(run_five_calls, monkeypatch):
    real, threads = headrace.engine.batch_loop.prepare_inputs, []

    def broken(items):
        if threading.current_thread().name.endswith("-beside_0"):
            threads.append(len(items))
            raise RuntimeError("boom")
        return real(items)

    monkeypatch.setattr(headrace.engine.batch_loop, "prepare_inputs", broken)
    assert run_five_calls(lambda: threads) == [None] * 5


def test_failed_take_of_next_steps_fails_all(run_five_calls, breaks):
    breaks(SequenceSchedule, "take_full")
    ends = run_five_calls(lambda: breaks.threads)
    assert breaks.threads[0].endswith("-beside_0")
    assert ends[:2] == [None, None]
    assert all(isinstance(end, InstanceLostError | SequenceLostError) for end in ends[2:])


@pytest.mark.parametrize(("rows_max", "times"), [(8, 2), (1, 1)])
def test_failing_failure_handling_ends_thread(model, rows_max, times, breaks, caplog):
    with serving(model, max_batch_rows=rows_max) as engine:

        def both():
            breaks(InstanceSteps, "end_steps")
            breaks(InstanceSteps, "state_corrupted", error=RuntimeError("worse"), times=times)

        one, other = run_full_calls(model, engine, before_results=both)
        assert is_internal_error(one)
        assert other is None or isinstance(other, (InstanceLostError, SequenceLostError, PredictError))
        # The thread ends by itself, possibly a moment later.
        assert isinstance(failed_commits(engine), InstanceLostError)
        polling.wait_until(lambda: not engine.alive)  # its thread ends by itself
    assert "boom" in logged_errors(caplog)
    assert "worse" in logged_errors(caplog)


def failed_commits(engine):
    """Return the results of later requests, after the last thread has ended. Earlier ones end
    somehow.
    """
    while True:
        try:
            error = engine.submit(start("c", 1)).exception(WAIT_S)
        except InstanceLostError as lost:
            return lost
        except StoppedError:
            continue
        assert error is not None


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_step_requests_fail_without_threads(isolation, breaks, caplog):
    with serving(Adding, isolation=isolation) as engine:
        submit_result(engine, start("a", 1))
        breaks(SequenceSchedule, "take")
        assert isinstance(submit_error(engine, more("a", 1)), (InstanceLostError, SequenceLostError))
        assert isinstance(failed_commits(engine), InstanceLostError)
        polling.wait_until(lambda: not engine.alive)  # its thread ends by itself
    assert logged_errors(caplog) == ["boom"]


def test_other_instances_take_over_sequences(breaks):
    with serving(Adding, instances=2) as engine:
        submit_result(engine, start("a", 1))
        submit_result(engine, start("b", 2))
        breaks(SequenceSchedule, "take")
        assert isinstance(submit_error(engine, more("a", 1)), SequenceLostError)
        assert submit_result(engine, more("b", 5)) == [7.0]
        for value in (1, 2, 3):
            assert submit_result(engine, start(f"c{value}", value)) == [value]
        polling.wait_until(lambda: not engine.alive)  # its thread ends by itself


def test_failing_end_sequences_does_not_stop_service(model, breaks):
    with serving(model) as engine:
        assert submit_result(engine, start("a", 1)) == [1.0]
        breaks(LocalBackend, "end_sequences")
        assert submit_result(engine, end("a", 1)) == [2.0]
        # It may share the batch with the endings.
        error = submit_error(engine, start("b", 1))
        assert error is None or is_internal_error(error)
        assert submit_result(engine, start("c", 1)) == [1.0]


@pytest.mark.parametrize("after", [False, True])
def test_defect_ends_waiting_stream_with_error(model, after, breaks):
    model.gate = threading.Event()

    async def main(engine):
        stream = engine.stream(step_request(Adding.AGAIN))
        try:
            item = asyncio.ensure_future(anext(stream))
            await wait_until(lambda: model.stepping.is_set() and stream._call.responses._getter is not None)
            breaks(InstanceSteps, "end_steps", after=after)
            model.gate.set()
            assert (await item).outputs[0].data.item() == Adding.AGAIN
            with pytest.raises(PredictError, match="an internal error"):
                async for _ in stream:
                    pass
        finally:
            await stream.aclose()

    with serving(model, warm_up=False) as engine:
        run(main(engine))
        assert engine.sequences() == ()
        assert engine.model_statistics().open_streams == 0


def test_failed_output_delivery_fails_its_request_only(model, breaks, caplog):
    """Their step is done."""
    with serving(model) as engine:
        assert submit_result(engine, many_sequences_request(["a", "b"], [1, 2])) == [1.0, 2.0]
        model.gate, model.stepping = threading.Event(), threading.Event()
        waits = engine.submit(start("c", 1))
        assert model.stepping.wait(WAIT_S)
        first, second = [engine.submit(more(id, 10), strict=True) for id in ("a", "b")]
        breaks(MultiRowRequest, "add_output", skip=1)
        model.gate.set()
        assert waits.result(WAIT_S).outputs
        assert is_internal_error(first.exception(WAIT_S))
        assert values(second.result(WAIT_S)) == [12.0]
        assert model.calls[-1] == [10.0, 10.0]
        assert submit_result(engine, more("a", 5)) == [16.0]
    assert logged_errors(caplog) == ["boom"]


# Checkpoints


@pytest.mark.parametrize(
    ("where", "after", "goes_on"),
    [
        ((FaultyStore, "save"), False, 1),
        ((FaultyStore, "save"), True, 3),
        ((StateLoader, "load"), False, 1),
        ((InstanceSteps, "end_steps"), False, 3),
    ],
)
def test_sequence_continues_at_last_saved_step(where, after, goes_on, breaks):
    store = FaultyStore()
    with counted_engine(store) as engine:
        assert sums(engine, 1, sequence_id="s", sequence_start=True) == [1]
        breaks(*where, after=after)
        future = engine.submit(counted_request(2, sequence_id="s"), strict=True)
        assert is_internal_error(future.exception(WAIT_S))
        assert sums(engine, 4, sequence_id="s") == [goes_on + 4]
        assert sums(engine, 0, sequence_id="s", sequence_end=True) == [goes_on + 4]
        assert store.ids == []


def test_lost_thread_loses_no_checkpointed_step(breaks):
    """Another instance takes over its sequences and their requests."""
    with counted_engine(FaultyStore(), instances=2) as engine:
        assert sums(engine, 1, sequence_id="s", sequence_start=True) == [1]
        breaks(SequenceSchedule, "take")
        assert sums(engine, 2, sequence_id="s") == [3]
        polling.wait_until(lambda: not engine.alive)  # its thread ends by itself


@pytest.mark.slow
def test_checkpointed_sequence_survives_defect_in_process_mode(breaks):
    with counted_engine("memory:", SumModel, isolation="process") as engine:
        assert sums(engine, 1, sequence_id="s", sequence_start=True) == [1]
        breaks(InstanceSteps, "end_steps")
        assert sums(engine, 2, sequence_id="s") == "PredictError"
        assert sums(engine, 4, sequence_id="s") == [7]


class BatchDoubling(Model):
    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def predict(self, x):
        return x * np.float32(2)


class _DyingBackend(LocalBackend):
    """Dies of a value; the first call waits until it may continue."""

    POISON = 13.0

    def __init__(self, settings):
        super().__init__(BatchDoubling, "m", settings=settings)
        self.dead = False
        self.calls = []
        self.gate = threading.Event()

    @property
    def lost(self):
        return self.dead

    def restart(self):
        self.dead = False

    def call(self, inputs, call, deliver=None):
        assert self.gate.wait(WAIT_S)
        self.calls.append([part["x"].ravel().tolist() for part in inputs.parts])
        if any(self.POISON in part["x"] for part in inputs.parts):
            self.dead = True
            raise InstanceLostError("m", "it died")
        return super().call(inputs, call, deliver)


def _run_requests(*sent):
    """Return the results of requests that waited together, and the calls that were made."""
    settings = ServeSettings(isolation="thread")
    backend = _DyingBackend(settings)

    class Here:
        def load(self):
            return backend

        def is_inline(self, _):
            return False

    engine = Engine(BatchDoubling, name="m", serving=settings)
    engine._backend_factory = Here()
    engine.start()

    async def main():
        first = asyncio.ensure_future(engine.infer(request(rows(0))))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(engine.infer(request(rows(v)))) for v in sent]
        await asyncio.sleep(0)
        backend.gate.set()
        return (await asyncio.gather(first, *others, return_exceptions=True))[1:]

    try:
        answers = asyncio.run(asyncio.wait_for(main(), WAIT_S))
        return answers, backend.calls, engine.model_statistics()
    finally:
        backend.gate.set()
        engine.stop()


def test_requests_of_one_batch_share_a_call():
    answers, calls, _ = _run_requests(1, 2, 3)
    assert [values(answer) for answer in answers] == [[2.0], [4.0], [6.0]]
    assert sorted(value for call in calls for part in call for value in part) == [0.0, 1.0, 2.0, 3.0]


def test_requests_of_fatal_call_are_retried_alone_once():
    """A request that killed twice is not retried."""
    answers, calls, statistics = _run_requests(1, _DyingBackend.POISON, 3)
    assert isinstance(answers[1], InstanceLostError)
    assert [values(answers[i]) for i in (0, 2)] == [[2.0], [6.0]]
    killing = [call for call in calls if [_DyingBackend.POISON] in call]
    assert len(killing) == 2
    assert killing[1] == [[_DyingBackend.POISON]]
    assert statistics.restarts == 2
    assert (statistics.success.count, statistics.fail.count) == (3, 1)
