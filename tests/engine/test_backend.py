"""A model in this process: loaded, warmed up, called, streamed and closed where it lives."""

import asyncio
import threading

import numpy as np
import pytest

from engine.step_models import Declared
from headrace.core import InferRequest, Model, Tensor, TensorSpec
from headrace.core.call import current_call
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    ModelLoadError,
    PredictError,
    StoppedError,
)
from headrace.core.sequence import SequenceEnd
from headrace.engine.backend import LocalBackend
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import Ending, StepOrder
from headrace.engine.streams import StreamCall
from headrace.testing import EchoModel

X_SPEC = (TensorSpec("x", "FP32", (-1, 3)),)


def _backend(model: Model) -> LocalBackend:
    return LocalBackend(lambda: model, "m")


@pytest.mark.parametrize(
    ("method", "error"),
    [("load", OSError("no file")), ("warm_up", ValueError("bad")), ("load", SystemExit(1))],
)
def test_what_fails_before_it_is_ready_is_a_load_error(method, error):
    """With its cause."""

    def fail(self):
        raise error

    model = type("Failing", (EchoModel,), {method: fail})()
    with pytest.raises(ModelLoadError, match=type(error).__name__) as caught:
        _backend(model)
    assert caught.value.__cause__ is error


def test_a_model_that_loaded_is_closed_when_its_warm_up_fails():
    """And one that did not load is not."""
    closed = []

    class Cold(EchoModel):
        def __init__(self, failing):
            self.failing = failing

        def load(self):
            if self.failing == "load":
                raise ValueError

        def warm_up(self):
            raise ValueError

        def close(self):
            closed.append(self.failing)

    for failing in ("load", "warm_up"):
        with pytest.raises(ModelLoadError):
            _backend(Cold(failing))
    assert closed == ["warm_up"]


class _Seen(EchoModel):
    def __init__(self, inputs, fails=False):
        self.inputs = inputs
        self.fails = fails
        self.seen = []

    def predict(self, x):
        self.seen.append((x.shape, x.dtype.name, float(x.sum())))
        if self.fails:
            raise ValueError
        return x


@pytest.mark.parametrize("fails", [False, True])
def test_sizes_that_are_known_are_warmed_up_with_zeros(fails):
    """One row; a model that does not take zeros is ready all the same."""
    model = _Seen(X_SPEC, fails)
    _backend(model)
    assert model.seen == [((1, 3), "float32", 0.0)]


@pytest.mark.parametrize(
    "spec", [TensorSpec("x", "FP32"), TensorSpec("x", "FP32", (-1, -1)), TensorSpec("x", "BYTES", (-1, 3))]
)
def test_sizes_that_are_not_known_are_not_guessed(spec):
    """A wrong guess would be an error in somebody's log."""
    model = _Seen((spec,))
    _backend(model)
    assert model.seen == []


def test_a_models_own_warm_up_replaces_zeros():
    """It knows better."""

    class Own(_Seen):
        def warm_up(self):
            self.seen.append("own")

    model = Own(X_SPEC)
    _backend(model)
    assert model.seen == ["own"]


def test_max_batch_rows_must_leave_room():
    """Or no row could ever be called."""
    model = EchoModel()
    model.max_batch_rows = 0
    with pytest.raises(ModelLoadError, match="max_batch_rows must be 1 or more"):
        _backend(model)


def test_a_close_that_fails_is_logged(caplog):
    """Nothing can be done about it any more."""

    class Stuck(EchoModel):
        def close(self):
            raise OSError("stuck")

    _backend(Stuck()).close()
    assert "model failed to close" in caplog.text


# Where the model's code runs


class _Everywhere(Model):
    """Notes the thread and the loop of each of its methods."""

    def __init__(self):
        self.seen = {}

    def _note(self, what):
        self.seen[what] = (threading.current_thread().name, asyncio._get_running_loop())

    def load(self):
        self._note("load")

    def predict(self, x):
        self._note("predict")
        return x

    async def predict_stream(self, requests):
        self._note("stream")
        async for one in requests:
            yield one["x"]

    def close(self):
        self._note("close")


def _called(backend: LocalBackend, *values: float, call=None) -> list[float]:
    x = np.array(values, np.float32).reshape(-1, 1)
    called = backend.call(({"x": x},), len(x), "", call or current_call(), fresh=True)
    return called.outputs["output"].ravel().tolist()


def _streamed(backend: LocalBackend) -> StreamCall:
    stream = StreamCall(SystemClock(), deadline=None, id="")
    stream.requests.offer(InferRequest((Tensor("x", np.ones((1, 1), np.float32)),)))
    stream.requests.close()
    backend.open_stream(stream)
    return stream


def test_a_model_with_async_streams_lives_in_one_event_loop():
    """All of its methods, also the plain ones."""
    model = _Everywhere()
    backend = _backend(model)
    assert _called(backend, 1) == [1]
    assert len(_streamed(backend).answers.get()) == 1
    backend.close()
    assert set(model.seen) == {"load", "predict", "stream", "close"}
    ((name, loop),) = set(model.seen.values())
    assert name == "headrace-m-loop"
    assert loop.is_closed()


def test_a_closed_backend_opens_no_stream():
    backend = _backend(_Everywhere())
    backend.close()
    with pytest.raises(StoppedError):
        _streamed(backend)


def test_closing_ends_streams_before_the_model_is_closed():
    """A plain generator in its thread: its reader is told that it was the engine."""
    order = []

    class Streams(EchoModel):
        def predict_stream(self, requests):
            try:
                yield from (one["x"] for one in requests)
                yield 1.0
                yield from iter(lambda: 1.0, 0.0)
            finally:
                order.append("generator")

        def close(self):
            order.append("model")

    backend = _backend(Streams())
    stream = _streamed(backend)
    assert stream.answers.get()
    backend.close()
    assert order == ["generator", "model"]
    with pytest.raises(StoppedError):
        stream.answers.get()


# Cancelling


class _Waits(Model):
    """Waits for ever on negative values, and cleans up."""

    def __init__(self, *, cleans=lambda: asyncio.sleep(0)):
        self.entered, self.ended, self.cleans = threading.Event(), [], cleans

    async def predict(self, x):
        if x[0, 0] >= 0:
            return x
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.cleans()
            self.ended.append(1)


class _WaitsBeside(_Waits):
    """The same in a loop of its own."""

    async def predict_stream(self, requests):
        yield 1


@pytest.mark.parametrize("make", [_Waits, _WaitsBeside])
def test_an_async_predict_is_cancelled(make):
    """Once, however often it is asked for; and the call is over when its cleaning up is."""
    model = make()
    backend = _backend(model)

    def cancel():
        assert model.entered.wait(30)
        for _ in range(3):
            backend.cancel()

    for _ in range(20):
        model.entered.clear()
        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(CancelledRequestError):
            _called(backend, -1)
        canceller.join()
        backend.cancel()
        assert _called(backend, 2) == [2]
    assert len(model.ended) == 20
    backend.close()


class _Gone:
    """A call of which nobody waits when it begins."""

    cancelled = True
    deadline_s = None


@pytest.mark.parametrize("make", [_Waits, _WaitsBeside])
def test_a_call_that_nobody_waits_for_when_it_begins_is_cancelled(make):
    """They left between its being taken and its first step."""
    backend = _backend(make())
    with pytest.raises(CancelledRequestError):
        _called(backend, -1, call=_Gone())
    backend.close()


@pytest.mark.parametrize("make", [_Waits, _WaitsBeside])
def test_a_model_that_cancels_itself_was_not_cancelled(make):
    async def predict(_, x):
        raise asyncio.CancelledError

    backend = _backend(type("Own", (make,), {"predict": predict})())
    with pytest.raises(PredictError, match="nobody had cancelled"):
        _called(backend, 1)
    backend.close()


def test_nothing_of_a_call_is_left_behind():
    backend = _backend(EchoModel())
    _called(backend, 1, call=_Gone())
    assert not current_call().cancelled


def test_a_negative_delay_is_refused():
    model = EchoModel()
    model.max_batch_delay_ms = -1.0
    with pytest.raises(ModelLoadError, match="max_batch_delay_ms must be 0 or more"):
        _backend(model)
    settings = ServeSettings(max_batch_delay_ms=3.0)
    assert LocalBackend(lambda: model, "m", settings=settings).metadata.max_batch_delay_ms == 3.0


@pytest.mark.parametrize("make", [_Waits, _WaitsBeside])
def test_a_second_cancellation_does_not_break_into_the_cleaning_up(make):
    cleaning, go_on = threading.Event(), threading.Event()

    async def cleans():
        cleaning.set()
        await asyncio.to_thread(go_on.wait, 30)

    model = make(cleans=cleans)
    backend = _backend(model)

    def cancel():
        assert model.entered.wait(30)
        backend.cancel()
        assert cleaning.wait(30)
        backend.cancel()
        go_on.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(CancelledRequestError):
        _called(backend, -1)
    canceller.join()
    assert model.ended == [1]
    backend.close()


# Plain streams whose caller has gone


class _Steps(EchoModel):
    """Reads all that it is sent before it yields."""

    def __init__(self):
        self.read, self.entered, self.go_on = 0, threading.Event(), threading.Event()

    def predict_stream(self, requests):
        for _ in requests:
            self.read += 1
            self.entered.set()
            assert self.go_on.wait(30)
        yield 1.0


def test_a_stream_that_nobody_waits_for_runs_no_code_of_the_model():
    model = _Steps()
    model.go_on.set()
    backend = _backend(model)
    with backend.turns:
        _streamed(backend).cancel()
    backend.close()
    assert model.read == 0


def test_requests_of_a_caller_who_has_gone_are_not_read_on():
    """However many have arrived already."""
    model = _Steps()
    backend = _backend(model)
    stream = StreamCall(SystemClock(), deadline=None, id="")
    for _ in range(5):
        stream.requests.offer(InferRequest(()))
    backend.open_stream(stream)
    assert model.entered.wait(30)
    stream.cancel()
    model.go_on.set()
    backend.close()
    assert model.read == 1


# Steps; what holds wherever they are done is in test_backend_steps.py


def _order(number, steps=0):
    return StepOrder(
        number, f"s{number}", steps, again=False, end=False, parameters={}, restore=None, save=False
    )


def _stepped(backend, parts, *orders):
    return backend.step(parts, orders, current_call()).outputs


@pytest.mark.parametrize("method", ["predict", "predict_stream", "predict_request"])
def test_a_model_with_a_step_answers_by_nothing_else(method):
    """Which one would be asked, nobody could tell."""
    model = type("Both", (Declared,), {method: lambda self, x: x})()
    with pytest.raises(ModelLoadError, match=f"it has both step and {method}: a model with a step"):
        _backend(model)


def test_a_model_with_a_step_does_not_run_inline():
    """There its requests would not wait for each other."""
    with pytest.raises(ConfigError, match="a model with a step cannot run inline"):
        LocalBackend(Declared, "m", inline=True)


def test_steps_are_warmed_up_with_zeros_in_a_sequence_that_ends():
    """So that a model frees what it took for it; also an asynchronous one."""
    model = Declared()
    backend = _backend(model)
    assert model.calls == [("float32", (1, 2), "int64", (1,))]
    assert model.held == set()
    backend.close()


def test_a_warm_up_that_fails_ends_its_sequence_too():
    async def step(self, states, x, n):
        self.held.add(states[0].id)
        raise ValueError

    model = type("NoZeros", (Declared,), {"step": step})()
    backend = _backend(model)
    assert (model.held, backend.metadata.predicts, backend.metadata.streams) == (set(), True, True)
    backend.close()


def test_a_step_takes_its_inputs_as_declared_by_name_or_position():
    """Converted where nothing is lost, and joined."""
    model = Declared()
    backend = _backend(model)
    part = {"x": np.ones((1, 2), np.float32), "n": np.array([3], np.int32)}
    outputs = _stepped(backend, (part, part), _order(1), _order(2))
    assert outputs["y"].tolist() == [[3, 3], [3, 3]]
    assert model.calls[-1] == ("float32", (2, 2), "int64", (2,))
    assert model.held == {"s1", "s2"}
    backend.end_sequences([Ending(1, "s1", 1, SequenceEnd.ENDED)])
    assert model.held == {"s2"}
    backend.close()


@pytest.mark.parametrize(
    "step", [lambda self: 0, lambda self, states: 0, lambda self, *, x: 0, lambda self, *, x, y: 0]
)
def test_a_step_that_takes_no_states_or_no_inputs_does_not_load(step):
    with pytest.raises(ModelLoadError, match=r"as in step\(self, states, x\)"):
        _backend(type("Odd", (Model,), {"step": step})())


@pytest.mark.parametrize(
    "step",
    [
        lambda self, states, x: x + 1,
        lambda self, *args: args[1] + 1,
        lambda self, states, /, **tensors: tensors["x"] + 1,
        lambda self, states, *, x: x + 1,
        lambda self, states, x, /: x + 1,
    ],
)
def test_a_step_may_take_its_inputs_any_way(step):
    backend = _backend(type("Any", (Model,), {"step": step})())
    assert _stepped(backend, ({"x": np.ones((1, 1))},), _order(1))["output"].tolist() == [[2]]


def test_what_a_step_is_given_is_its_own_to_write_into():
    """What fails is tried again with the same rows."""

    class Writes(Model):
        def step(self, states, x):
            x += 1
            return x

    x = np.zeros((2, 1))
    assert _stepped(_backend(Writes()), ({"x": x},), _order(1), _order(2))["output"].tolist() == [[1], [1]]
    assert x.tolist() == [[0], [0]]


def test_a_step_can_ask_about_its_call():
    seen = []

    class Asks(Model):
        def step(self, states, x):
            seen.append(current_call().cancelled)
            return x

    _backend(Asks()).step(({"x": np.zeros((1, 1))},), [_order(1)], _Gone())
    assert (seen, current_call().cancelled) == ([True], False)
