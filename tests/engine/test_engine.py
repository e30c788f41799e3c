"""The engine: one life, bounded, on time, and no request harms another."""

import itertools
import threading
from concurrent.futures import CancelledError, wait

import numpy as np
import pytest

from engine.support import WAIT_S, answer, request, rows, running
from headrace.core import InferRequest, Model, Tensor
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
    PredictError,
    StoppedError,
)
from headrace.engine import Engine
from headrace.testing import EchoModel, HeldModel, ManualClock, PickyModel, check_predictor


def _spawn(function) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


# Life


@pytest.mark.parametrize("instances", [1, 3])
def test_it_keeps_the_promises_of_a_predictor(instances):
    """The suite that any predictor goes through."""
    check_predictor(
        lambda: Engine(EchoModel, name="echo", instances=instances), request(rows(1, 2, 3), id="r")
    )


def test_it_can_be_started_again():
    """A second life loads anew and counts anew."""
    engine = Engine(EchoModel, name="m")
    for _ in range(2):
        engine.start()
        assert answer(engine).outputs[0].rows == 1
        assert engine.statistics().calls == 1
        engine.stop()


def test_each_instance_is_made_loaded_called_and_closed_in_its_own_thread():
    """A model may hold what belongs to one thread."""
    seen: dict[int, list[str]] = {}

    class Noting(Model):
        def __init__(self):
            self._note("made")

        def _note(self, what):
            seen.setdefault(threading.get_ident(), []).append(what)

        def load(self):
            self._note("loaded")

        def warm_up(self):
            self._note("warm")

        def predict(self, x):
            return x

        def close(self):
            self._note("closed")

    with running(Noting, instances=2):
        assert list(seen.values()) == [["made", "loaded", "warm"]] * 2
    assert all(notes[-1] == "closed" for notes in seen.values())


def test_warming_up_can_be_left_out():
    """For models whose warm-up costs more than their first call."""

    class Warm(EchoModel):
        def warm_up(self):
            raise AssertionError("called")

    with running(Warm, warm_up=False):
        pass


def test_one_instance_that_does_not_load_stops_all():
    """The cause is kept, what was loaded is closed, and no thread is left."""
    made = itertools.count()
    closed: list[Model] = []

    class Second(EchoModel):
        def load(self):
            if next(made) == 1:
                raise OSError("no weights")

        def close(self):
            closed.append(self)

    before = threading.active_count()
    engine = Engine(Second, name="m", instances=3)
    with pytest.raises(ModelLoadError, match="did not load: OSError: no weights") as caught:
        engine.start()
    assert isinstance(caught.value.__cause__, OSError)
    assert threading.active_count() == before
    assert len(closed) == 2
    with pytest.raises(StoppedError):
        engine.submit(request())
    engine.stop()


def test_a_missing_extra_is_told_as_it_is():
    """Its message says what to install; wrapping it would hide that."""

    def make():
        raise MissingExtraError("onnx", "an ONNX model")

    with pytest.raises(MissingExtraError):
        Engine(make, name="m").start()


def test_stopping_while_it_loads_makes_start_say_so():
    """Whoever waits in `start` must not believe that it runs."""
    loading, go_on = threading.Event(), threading.Event()

    class Slow(EchoModel):
        def load(self):
            loading.set()
            assert go_on.wait(WAIT_S)

    engine = Engine(Slow, name="m")
    caught: list[BaseException] = []

    def start():
        try:
            engine.start()
        except StoppedError as error:
            caught.append(error)

    starter = _spawn(start)
    assert loading.wait(WAIT_S)
    stopper = _spawn(engine.stop)
    while engine._life.state.name != "STOPPING":
        threading.Event().wait(0.001)
    go_on.set()
    starter.join(WAIT_S)
    stopper.join(WAIT_S)
    assert "stopped while it loaded" in str(caught[0])


def test_metadata_is_known_once_started():
    """And tells what the loaded model says of itself."""

    class Named(EchoModel):
        max_batch_rows = 7
        max_batch_delay_ms = 3.0

    engine = Engine(Named, name="m", fingerprint="abc")
    with pytest.raises(StoppedError, match="start the engine first"):
        _ = engine.metadata
    engine.start()
    engine.stop()
    known = engine.metadata
    assert (known.name, known.platform, known.fingerprint) == ("m", "Named", "abc")
    assert (known.max_batch_rows, known.max_batch_delay_ms) == (7, 3.0)


@pytest.mark.parametrize("settings", [{"instances": 0}, {"in_flight_max": 0}])
def test_an_engine_that_could_never_answer_is_refused(settings):
    """No instances, or no room."""
    with pytest.raises(ConfigError):
        Engine(EchoModel, name="m", **settings)


# Admission


def test_submit_blocks_while_there_is_no_room_and_goes_on_when_there_is():
    """Back-pressure: exactly `in_flight_max` requests are unanswered at most."""
    model = HeldModel()
    with running(model, in_flight_max=2) as engine:
        first = [engine.submit(request()) for _ in range(2)]
        through = threading.Event()
        third = []

        def ask():
            third.append(engine.submit(request()))
            through.set()

        _spawn(ask)
        model.wait_for_calls(1)
        assert not through.wait(0.05)
        model.release(1)
        assert through.wait(WAIT_S)
        model.release(2)
        wait([*first, *third], WAIT_S)


def test_instances_work_side_by_side():
    """Two calls are inside the model at once; a third waits for one of them."""
    model = HeldModel()
    with running(model, instances=2) as engine:
        futures = [engine.submit(request()) for _ in range(3)]
        model.wait_for_calls(2)
        assert model.calls == 2
        model.release(3)
        assert all(f.result(WAIT_S) for f in futures)


def test_a_request_that_does_not_fit_fails_without_a_call():
    """The future tells, and takes no room."""
    model = HeldModel()
    with running(model, in_flight_max=1) as engine:
        wrong = InferRequest((Tensor("y", rows(1)),))
        for _ in range(3):
            assert isinstance(engine.submit(wrong).exception(WAIT_S), ModelInputError)
        assert model.calls == 0


def test_submit_that_waits_for_room_hears_of_the_stop():
    """It must not wait for an answer that nobody will give."""
    model = HeldModel()
    caught: list[BaseException] = []
    with running(model, in_flight_max=1) as engine:
        engine.submit(request())
        model.wait_for_calls(1)

        def ask():
            try:
                engine.submit(request())
            except StoppedError as error:
                caught.append(error)

        asker = _spawn(ask)
        stopper = _spawn(engine.stop)
        asker.join(WAIT_S)
        model.release()
        stopper.join(WAIT_S)
    assert len(caught) == 1


# Cancelling, deadlines, stopping


def test_cancelling_what_waits_takes_it_out_and_makes_room():
    """It never runs, whoever waits for it hears of it, and its place is free at once."""
    model = HeldModel()
    with running(model, in_flight_max=2) as engine:
        running_one = engine.submit(request())
        model.wait_for_calls(1)
        waiting = engine.submit(request())
        assert waiting.cancel()
        done, _ = wait([waiting], WAIT_S)
        assert done == {waiting}
        with pytest.raises(CancelledError):
            waiting.result()
        third = engine.submit(request())
        model.release(2)
        assert running_one.result(WAIT_S)
        assert third.result(WAIT_S)
        assert model.calls == 2


def test_cancelling_what_runs_changes_nothing():
    """It has begun, so it finishes; others are not touched."""
    model = HeldModel()
    with running(model) as engine:
        future = engine.submit(request())
        model.wait_for_calls(1)
        assert not future.cancel()
        model.release()
        assert future.result(WAIT_S)


def test_a_request_past_its_deadline_is_never_begun():
    """The one before it took too long; the one after it is answered."""
    clock, model = ManualClock(), HeldModel()
    with running(model, clock=clock) as engine:
        first = engine.submit(request())
        model.wait_for_calls(1)
        late = engine.submit(request(deadline=5.0, id="late"))
        after = engine.submit(request(deadline=6.0))
        clock.advance(5.0)
        model.release(2)
        assert first.result(WAIT_S)
        assert isinstance(late.exception(WAIT_S), DeadlineError)
        assert "request late before its deadline" in str(late.exception())
        assert after.result(WAIT_S)
        assert model.calls == 2


def test_a_request_that_passes_its_deadline_while_it_runs_fails_when_its_call_ends():
    """Its caller has given up: a late answer is no answer."""
    clock, model = ManualClock(), HeldModel()
    with running(model, clock=clock) as engine:
        future = engine.submit(request(deadline=5.0))
        model.wait_for_calls(1)
        clock.advance(5.0)
        model.release()
        assert isinstance(future.exception(WAIT_S), DeadlineError)


def test_a_request_of_many_calls_stops_at_its_deadline():
    """The remaining calls are not made."""
    clock, model = ManualClock(), HeldModel()
    model.max_batch_rows = 1
    with running(model, clock=clock) as engine:
        future = engine.submit(request(rows(1, 2, 3), deadline=5.0))
        model.wait_for_calls(1)
        clock.advance(5.0)
        model.release(3)
        assert isinstance(future.exception(WAIT_S), DeadlineError)
        assert engine.model_statistics().calls == 1


def test_stopping_with_drain_finishes_what_was_accepted():
    """Also what still waited in the queue; nothing new is taken meanwhile."""
    model = HeldModel()
    with running(model) as engine:
        futures = [engine.submit(request()) for _ in range(3)]
        model.wait_for_calls(1)
        stopper = _spawn(engine.stop)
        while True:
            try:
                futures.append(engine.submit(request()))
                pytest.fail("submit while draining must be refused")
            except StoppedError:
                break
        model.release(3)
        stopper.join(WAIT_S)
        assert all(f.result(0).outputs for f in futures)


def test_stopping_without_drain_fails_what_was_accepted():
    """What waits fails at once, what runs fails when its call ends, and no further call is made."""
    model = HeldModel()
    model.max_batch_rows = 1
    with running(model) as engine:
        runs, waits = engine.submit(request(rows(1, 2))), engine.submit(request())
        model.wait_for_calls(1)
        stopper = _spawn(lambda: engine.stop(drain=False))
        assert isinstance(waits.exception(WAIT_S), StoppedError)
        assert not runs.done()
        model.release(3)
        stopper.join(WAIT_S)
        assert isinstance(runs.exception(WAIT_S), StoppedError)
        assert engine.model_statistics().calls == 1


def test_a_second_stop_can_cut_the_drain_short():
    """As pressing Ctrl-C twice does."""
    model = HeldModel()
    with running(model) as engine:
        futures = [engine.submit(request()) for _ in range(3)]
        model.wait_for_calls(1)
        draining = _spawn(engine.stop)
        cutting = _spawn(lambda: engine.stop(drain=False))
        assert isinstance(futures[2].exception(WAIT_S), StoppedError)
        model.release(1)
        draining.join(WAIT_S)
        cutting.join(WAIT_S)
        assert engine.model_statistics().calls == 1


# What the model does must not harm its thread or other requests


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), SystemExit(3), GeneratorExit()])
def test_what_would_end_a_thread_fails_the_request_only(error):
    """The instance goes on answering."""

    class Rude(Model):
        def predict(self, x):
            if x[0, 0] < 0:
                raise error
            return x

    with running(Rude) as engine:
        future = engine.submit(request(rows(-1)))
        assert isinstance(future.exception(WAIT_S), PredictError)
        assert future.exception().__cause__ is error
        assert answer(engine).outputs[0].rows == 1


def test_a_callback_may_stop_the_engine():
    """With drain: what was accepted is answered, by the very thread that stops."""
    model = HeldModel()
    with running(model) as engine:
        futures = [engine.submit(request(rows(n))) for n in range(3)]
        futures[0].add_done_callback(lambda _: engine.stop())
        model.wait_for_calls(1)
        model.release(3)
        assert [f.result(WAIT_S).outputs[0].data.tolist() for f in futures] == [[[0]], [[1]], [[2]]]


@pytest.mark.parametrize("stops", [True, False])
def test_a_callback_that_would_end_a_thread_harms_no_other_request(stops):
    """Neither the thread of an instance, nor the one that stops."""

    def rude(_: object) -> None:
        raise SystemExit(3)

    model = HeldModel()
    with running(model) as engine:
        futures = [engine.submit(request()) for _ in range(3)]
        for future in futures:
            future.add_done_callback(rude)
        model.wait_for_calls(1)
        stopping = _spawn(lambda: engine.stop(drain=False)) if stops else None
        if stopping is not None:
            futures[-1].exception(WAIT_S)
        model.release(3)
        wait(futures, WAIT_S)
        assert all(future.done() for future in futures)
        if stopping is not None:
            stopping.join(WAIT_S)
            assert not stopping.is_alive()


def test_an_engine_that_got_no_thread_can_be_started_again(monkeypatch):
    """No thread to be had is told, and nothing is left that would wait for it."""
    engine = Engine(EchoModel, name="m", instances=2)
    start, tries = threading.Thread.start, itertools.count(1)

    def scarce(thread):
        if next(tries) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", scarce)
        with pytest.raises(RuntimeError, match="new thread"):
            engine.start()
    engine.start()
    assert answer(engine).outputs[0].rows == 1
    engine.stop()


def test_a_failing_request_does_not_harm_the_next():
    """A broken contract is told to the one who asked."""

    class Short(Model):
        def predict(self, x):
            return x[1:] if x[0, 0] < 0 else x

    with running(Short) as engine:
        with pytest.raises(ModelContractError, match="request r-1: output 'output' has 1 rows for 2 rows"):
            answer(engine, rows(-1, 2), id="r-1")
        assert answer(engine, rows(3)).outputs[0].data.tolist() == [[3]]


# Statistics


def test_busy_and_starved_time_are_told_apart():
    """Starved: from the end of a request to the arrival of the next. Waiting requests starve nobody."""
    clock, model = ManualClock(), HeldModel()
    with running(model, clock=clock) as engine:
        clock.advance(100.0)  # Before the first request: not starved, there was never work.
        first = engine.submit(request())
        model.wait_for_calls(1)
        second = engine.submit(request(rows(1, 2)))
        clock.advance(2.0)
        model.release(1)
        first.result(WAIT_S)
        model.wait_for_calls(2)
        clock.advance(3.0)
        model.release(1)
        second.result(WAIT_S)
        clock.advance(4.0)
        assert engine.statistics().starved_s == 0.0
        third = engine.submit(request())
        model.wait_for_calls(3)
        model.release(1)
        third.result(WAIT_S)
        figures = engine.statistics()
        assert (figures.busy_s, figures.starved_s) == (5.0, 4.0)
        assert (figures.instances, figures.calls, figures.rows) == (1, 3, 4)
        assert engine.instance_statistics() == (figures,)


def test_failed_rows_and_the_calls_that_found_them_are_counted():
    """Rows in = rows + failed_rows, whatever the model did."""
    with running(PickyModel({3.0})) as engine:
        answer(engine, rows(1, 2, 3, 4))
        figures = engine.statistics()
        assert (figures.rows, figures.failed_rows, figures.calls, figures.retries) == (3, 1, 5, 4)


def test_many_callers_get_their_own_answers():
    """A stress of admission: no answer is lost, doubled or crossed."""
    with running(EchoModel, instances=2) as engine:
        wrong: list[object] = []

        def ask(number):
            for step in range(50):
                value = float(number * 1000 + step)
                future = engine.submit(request(rows(value), id=str(value)))
                if step % 7 == 3 and future.cancel():
                    continue
                response = future.result(WAIT_S)
                if (response.id, response.outputs[0].data.tolist()) != (str(value), [[value]]):
                    wrong.append(response)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert wrong == []
        assert not engine._life.channel._put
        assert np.isfinite(engine.statistics().busy_share)


# Callers that leave


def test_what_has_begun_can_be_abandoned():
    """Its future ends at once; the model in a thread goes on, unseen, and what waits behind is answered."""
    model = HeldModel()
    with running(model, in_flight_max=2) as engine:
        begun = engine.submit(request(rows(1)))
        model.wait_for_calls(1)
        waiting = engine.submit(request(rows(2)))
        threads = [_spawn(lambda: engine.abandon(begun)) for _ in range(8)]
        for thread in threads:
            thread.join(WAIT_S)
        with pytest.raises(CancelledRequestError):
            begun.result(0)
        # It makes room for another at once.
        another = engine.submit(request(rows(3)))
        model.release(3)
        assert wait([waiting, another], WAIT_S).not_done == set()
        assert [waiting.exception(), another.exception()] == [None, None]
        statistics = engine.model_statistics()
    assert (statistics.cancelled, statistics.success.count, statistics.fail.count) == (1, 2, 0)


def test_what_waits_can_be_abandoned():
    """It is cancelled, and whoever waits for it is told."""
    model = HeldModel()
    with running(model, in_flight_max=4) as engine:
        begun = engine.submit(request(rows(1)))
        model.wait_for_calls(1)
        waiting = engine.submit(request(rows(2)))
        engine.abandon(waiting)
        assert wait([waiting], WAIT_S).done == {waiting}
        assert waiting.cancelled()
        model.release()
        assert begun.result(WAIT_S)
        engine.abandon(begun)
        assert begun.exception() is None
        assert engine.model_statistics().calls == 1
        assert engine.model_statistics().cancelled == 1


def test_a_future_of_nobody_here_stays_as_it_is():
    """It was answered before, by an engine that has stopped."""
    with running(EchoModel()) as engine:
        asked = engine.submit(request())
        asked.result(WAIT_S)
    engine.abandon(asked)
    assert asked.exception() is None
