"""The engine: settings, start and stop, limits, deadlines, and isolation between requests."""

import itertools
import threading
from concurrent.futures import CancelledError, wait

import numpy as np
import pytest

from cases import for_each
from engine.support import WAIT_S, OverlapDetector, request, rows, running, serving, submit_and_wait
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
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, HeldModel, ManualClock, PickyModel, check_predictor
from servers.polling import wait_until


def _spawn(function) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


# Starting and stopping


@pytest.mark.parametrize("instances", [1, 3])
def test_engine_keeps_predictor_contract(instances):
    check_predictor(
        lambda: Engine(EchoModel, name="echo", instances=instances), request(rows(1, 2, 3), id="r")
    )


def test_engine_can_be_restarted():
    engine = Engine(EchoModel, name="m")
    for _ in range(2):
        engine.start()
        assert submit_and_wait(engine).outputs[0].rows == 1
        assert engine.statistics().calls == 1
        engine.stop()


def test_each_instance_lives_in_its_own_thread():
    """A model may use resources that belong to one thread."""
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


def test_warm_up_can_be_skipped():

    class Warm(EchoModel):
        def warm_up(self):
            raise AssertionError("called")

    with running(Warm, warm_up=False):
        pass


def test_failed_load_of_one_instance_stops_all():
    """The cause is kept, loaded models are closed, and no thread is left."""
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


@for_each("serve", [{}, {"isolation": None}, {"isolation": "auto"}])
def test_thread_instances_load_one_after_another(serve):
    """Libraries such as torch.export keep state of a load in global variables."""
    detector = OverlapDetector()
    with serving(detector.model(), instances=3, **serve):
        assert detector.peak == 1


def test_missing_extra_error_is_unchanged():
    """Its message says what to install."""

    def make():
        raise MissingExtraError("onnx", "an ONNX model")

    with pytest.raises(MissingExtraError):
        Engine(make, name="m").start()


def test_stop_while_loading_fails_start():
    """A waiting `start` must not report success."""
    loading, release = threading.Event(), threading.Event()

    class Slow(EchoModel):
        def load(self):
            loading.set()
            assert release.wait(WAIT_S)

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
    wait_until(lambda: engine._session.state.name == "STOPPING")
    release.set()
    starter.join(WAIT_S)
    stopper.join(WAIT_S)
    assert "stopped while it loaded" in str(caught[0])


def test_metadata_is_known_once_started():

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


@for_each("settings", [{"instances": 0}, {"in_flight_max": 0}])
def test_engine_without_instances_is_refused(settings):
    with pytest.raises(ConfigError):
        Engine(EchoModel, name="m", **settings)


# Admission


def test_submit_blocks_while_full():
    """Exactly `in_flight_max` requests may be unanswered."""
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


def test_instances_run_in_parallel():
    """Two calls are inside the model at once; a third waits."""
    model = HeldModel()
    with running(model, instances=2) as engine:
        futures = [engine.submit(request()) for _ in range(3)]
        model.wait_for_calls(2)
        assert model.calls == 2
        model.release(3)
        assert all(f.result(WAIT_S) for f in futures)


def test_invalid_request_fails_without_call():
    """The future has the error, and takes no space."""
    model = HeldModel()
    with running(model, in_flight_max=1) as engine:
        wrong = InferRequest((Tensor("y", rows(1)),))
        for _ in range(3):
            assert isinstance(engine.submit(wrong).exception(WAIT_S), ModelInputError)
        assert model.calls == 0


def test_stop_fails_blocked_submit():
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

        client = _spawn(ask)
        stopper = _spawn(engine.stop)
        client.join(WAIT_S)
        model.release()
        stopper.join(WAIT_S)
    assert len(caught) == 1


# Cancelling, deadlines, stopping


def test_cancelled_waiting_request_frees_space():
    """It never runs, waiting threads see the cancellation, and its space is free at once."""
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


def test_running_request_cannot_be_cancelled():
    """It finishes; others are not affected."""
    model = HeldModel()
    with running(model) as engine:
        future = engine.submit(request())
        model.wait_for_calls(1)
        assert not future.cancel()
        model.release()
        assert future.result(WAIT_S)


def test_expired_request_is_never_begun():
    """The request before it took too long; the request after it succeeds."""
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


def test_request_expiring_in_call_fails_after_call():
    clock, model = ManualClock(), HeldModel()
    with running(model, clock=clock) as engine:
        future = engine.submit(request(deadline=5.0))
        model.wait_for_calls(1)
        clock.advance(5.0)
        model.release()
        assert isinstance(future.exception(WAIT_S), DeadlineError)


def test_request_of_many_calls_stops_at_deadline():
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


def test_stop_with_drain_finishes_accepted_requests():
    """Waiting requests too; no new request is accepted meanwhile."""
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


def test_stop_without_drain_fails_accepted_requests():
    """Waiting requests fail at once, running ones when their call ends; no further call is made."""
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


def test_second_stop_cuts_drain_short():
    """As a second Ctrl-C does."""
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


# Exceptions of the model must not harm its thread or other requests


@for_each("error", [KeyboardInterrupt("stop"), SystemExit(3), GeneratorExit()])
def test_system_exit_fails_request_only(error):
    """The instance continues."""

    class Rude(Model):
        def predict(self, x):
            if x[0, 0] < 0:
                raise error
            return x

    with running(Rude) as engine:
        future = engine.submit(request(rows(-1)))
        assert isinstance(future.exception(WAIT_S), PredictError)
        assert future.exception().__cause__ is error
        assert submit_and_wait(engine).outputs[0].rows == 1


def test_callback_may_stop_engine():
    """With drain: accepted requests complete in the thread that stops."""
    model = HeldModel()
    with running(model) as engine:
        futures = [engine.submit(request(rows(n))) for n in range(3)]
        futures[0].add_done_callback(lambda _: engine.stop())
        model.wait_for_calls(1)
        model.release(3)
        assert [f.result(WAIT_S).outputs[0].data.tolist() for f in futures] == [[[0]], [[1]], [[2]]]


@for_each("stops", [True, False])
def test_system_exit_in_callback_harms_no_other_request(stops):
    """Neither in the thread of an instance nor in the one that stops."""

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


def test_engine_restarts_after_thread_shortage(monkeypatch):
    """The shortage is raised, and nothing is left behind."""
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
    assert submit_and_wait(engine).outputs[0].rows == 1
    engine.stop()


def test_failing_request_does_not_harm_next():
    """A contract error goes to its own request."""

    class Short(Model):
        def predict(self, x):
            return x[1:] if x[0, 0] < 0 else x

    with running(Short) as engine:
        with pytest.raises(ModelContractError, match="request r-1: output 'output' has 1 rows for 2 rows"):
            submit_and_wait(engine, rows(-1, 2), id="r-1")
        assert submit_and_wait(engine, rows(3)).outputs[0].data.tolist() == [[3]]


# Statistics


def test_busy_and_starved_time_are_separate():
    """Starved: from the end of a request to the arrival of the next. Waiting requests starve no
    instance.
    """
    clock, model = ManualClock(), HeldModel()
    with running(model, clock=clock) as engine:
        clock.advance(100.0)  # Before the first request there was no work, so no starved time.
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


def test_failed_rows_and_retries_are_counted():
    """Rows in = rows + failed_rows."""
    with running(PickyModel({3.0})) as engine:
        submit_and_wait(engine, rows(1, 2, 3, 4))
        figures = engine.statistics()
        assert (figures.rows, figures.failed_rows, figures.calls, figures.retries) == (3, 1, 5, 4)


def test_many_clients_get_their_own_responses():
    """A stress of admission: no response is lost, doubled or crossed."""
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
        assert not engine._session.queue._entries_by_future
        assert np.isfinite(engine.statistics().busy_share)


# Clients that leave


def test_running_request_can_be_abandoned():
    """Its future ends at once. The model in a thread continues, and the next request completes."""
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
        # Its space is free at once.
        another = engine.submit(request(rows(3)))
        model.release(3)
        assert wait([waiting, another], WAIT_S).not_done == set()
        assert [waiting.exception(), another.exception()] == [None, None]
        statistics = engine.model_statistics()
    assert (statistics.cancelled, statistics.success.count, statistics.fail.count) == (1, 2, 0)


def test_waiting_request_can_be_abandoned():
    """It is cancelled, and waiting threads see it."""
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


def test_unknown_future_is_unchanged_by_abandon():
    """It belongs to an engine that has stopped."""
    with running(EchoModel()) as engine:
        future = engine.submit(request())
        future.result(WAIT_S)
    engine.abandon(future)
    assert future.exception() is None


@for_each(
    "wrong",
    [
        {"instances": 0},
        {"queue_rows_max": 0},
        {"streams_max": -1},
        {"max_batch_rows": 0},
        {"max_batch_delay_ms": -1.0},
        {"call_timeout_s": 0.0},
        {"cancel_grace_s": -1.0},
        {"cancel_grace_s": float("nan")},
        {"memory_bytes_max": 0},
        {"processes_max": 0},
        {"environ_pass": ("A=b",)},
        {"environ_pass": ("",)},
        {"isolation": "elsewhere"},
    ],
)
def test_invalid_setting_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        ServeSettings(**wrong)
