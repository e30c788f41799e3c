"""`LocalBackend`: a model that is loaded, warmed up, called, streamed and closed in this process."""

import asyncio
import threading

import numpy as np
import pytest

from cases import for_each
from engine.step_models import Declared
from headrace.core import InferRequest, Model, Tensor, TensorSpec
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    ModelLoadError,
    PredictError,
    StoppedError,
)
from headrace.core.model import current_call
from headrace.core.sequence import SequenceEnd
from headrace.engine.backend import CallInputs
from headrace.engine.local_backend import LocalBackend
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding, StepOrder
from headrace.engine.streams import StreamCall
from headrace.testing import EchoModel

X_SPEC = (TensorSpec("x", "FP32", (-1, 3)),)


def _backend(model: Model) -> LocalBackend:
    return LocalBackend(lambda: model, "m")


@for_each(
    ("method", "error"),
    [("load", OSError("no file")), ("warm_up", ValueError("bad")), ("load", SystemExit(1))],
)
def test_failure_before_ready_is_load_error(method, error):
    """The cause is kept."""

    def fail(self):
        raise error

    model = type("Failing", (EchoModel,), {method: fail})()
    with pytest.raises(ModelLoadError, match=type(error).__name__) as caught:
        _backend(model)
    assert caught.value.__cause__ is error


def test_failed_warm_up_closes_loaded_model():
    """A model that did not load is not closed."""
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


@for_each("fails", [False, True])
def test_declared_shapes_are_warmed_up_with_zeros(fails):
    """One row. A model that does not accept zeros is ready all the same."""
    model = _Seen(X_SPEC, fails)
    _backend(model)
    assert model.seen == [((1, 3), "float32", 0.0)]


@for_each(
    "spec", [TensorSpec("x", "FP32"), TensorSpec("x", "FP32", (-1, -1)), TensorSpec("x", "BYTES", (-1, 3))]
)
def test_unknown_shapes_are_not_warmed_up(spec):
    """A wrong guess would log an error."""
    model = _Seen((spec,))
    _backend(model)
    assert model.seen == []


def test_model_warm_up_replaces_zeros():

    class Own(_Seen):
        def warm_up(self):
            self.seen.append("own")

    model = Own(X_SPEC)
    _backend(model)
    assert model.seen == ["own"]


def test_max_batch_rows_below_one_is_refused():
    model = EchoModel()
    model.max_batch_rows = 0
    with pytest.raises(ModelLoadError, match="max_batch_rows must be 1 or more"):
        _backend(model)


def test_failed_close_is_logged(caplog):

    class Stuck(EchoModel):
        def close(self):
            raise OSError("stuck")

    _backend(Stuck()).close()
    assert "closing the model failed" in caplog.text


# Threads of the model's code


class _AllMethods(Model):
    """Records the thread and the event loop of each of its methods."""

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
    called = backend.call(CallInputs(({"x": x},), len(x), fresh=True), call or current_call())
    return called.outputs["output"].ravel().tolist()


def _streamed(backend: LocalBackend) -> StreamCall:
    stream = StreamCall(SystemClock(), deadline=None, id="")
    stream.requests.offer(InferRequest((Tensor("x", np.ones((1, 1), np.float32)),)))
    stream.requests.close()
    backend.open_stream(stream)
    return stream


def test_model_with_async_streams_uses_one_event_loop():
    model = _AllMethods()
    backend = _backend(model)
    assert _called(backend, 1) == [1]
    assert len(_streamed(backend).responses.get()) == 1
    backend.close()
    assert set(model.seen) == {"load", "predict", "stream", "close"}
    ((name, loop),) = set(model.seen.values())
    assert name == "headrace-m-loop"
    assert loop.is_closed()


def test_closed_backend_opens_no_stream():
    backend = _backend(_AllMethods())
    backend.close()
    with pytest.raises(StoppedError):
        _streamed(backend)


def test_close_ends_streams_before_model_closes():
    """A plain generator in its thread gets the error of the stop."""
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
    assert stream.responses.get()
    backend.close()
    assert order == ["generator", "model"]
    with pytest.raises(StoppedError):
        stream.responses.get()


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
    """The same in an event loop of its own."""

    async def predict_stream(self, requests):
        yield 1


@for_each("make", [_Waits, _WaitsBeside])
def test_async_predict_is_cancelled(make):
    """Once, however often `cancel` is called; the call ends after its clean-up."""
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


class _CancelledCall:
    """A call that is cancelled before it begins."""

    cancelled = True
    deadline_s = None


@for_each("make", [_Waits, _WaitsBeside])
def test_call_without_client_is_cancelled_at_begin(make):
    """The clients left between the take and the first step of the coroutine."""
    backend = _backend(make())
    with pytest.raises(CancelledRequestError):
        _called(backend, -1, call=_CancelledCall())
    backend.close()


@for_each("make", [_Waits, _WaitsBeside])
def test_own_cancelled_error_is_predict_error(make):
    async def predict(_, x):
        raise asyncio.CancelledError

    backend = _backend(type("Own", (make,), {"predict": predict})())
    with pytest.raises(PredictError, match="its call was not cancelled"):
        _called(backend, 1)
    backend.close()


def test_call_leaves_no_context():
    backend = _backend(EchoModel())
    _called(backend, 1, call=_CancelledCall())
    assert not current_call().cancelled


def test_negative_delay_is_refused():
    model = EchoModel()
    model.max_batch_delay_ms = -1.0
    with pytest.raises(ModelLoadError, match="max_batch_delay_ms must be 0 or more"):
        _backend(model)
    settings = ServeSettings(max_batch_delay_ms=3.0)
    assert LocalBackend(lambda: model, "m", settings=settings).metadata.max_batch_delay_ms == 3.0


@for_each("make", [_Waits, _WaitsBeside])
def test_second_cancellation_does_not_interrupt_clean_up(make):
    cleaning, release = threading.Event(), threading.Event()

    async def cleans():
        cleaning.set()
        await asyncio.to_thread(release.wait, 30)

    model = make(cleans=cleans)
    backend = _backend(model)

    def cancel():
        assert model.entered.wait(30)
        backend.cancel()
        assert cleaning.wait(30)
        backend.cancel()
        release.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(CancelledRequestError):
        _called(backend, -1)
    canceller.join()
    assert model.ended == [1]
    backend.close()


# Plain streams whose client has left


class _Steps(EchoModel):
    """Reads all of its requests before it yields."""

    def __init__(self):
        self.read, self.entered, self.release = 0, threading.Event(), threading.Event()

    def predict_stream(self, requests):
        for _ in requests:
            self.read += 1
            self.entered.set()
            assert self.release.wait(30)
        yield 1.0


def test_abandoned_stream_runs_no_model_code():
    model = _Steps()
    model.release.set()
    backend = _backend(model)
    with backend.model_lock:
        _streamed(backend).cancel()
    backend.close()
    assert model.read == 0


def test_requests_of_departed_client_are_not_read():
    model = _Steps()
    backend = _backend(model)
    stream = StreamCall(SystemClock(), deadline=None, id="")
    for _ in range(5):
        stream.requests.offer(InferRequest(()))
    backend.open_stream(stream)
    assert model.entered.wait(30)
    stream.cancel()
    model.release.set()
    backend.close()
    assert model.read == 1


# Steps. Tests that hold for any backend are in test_backend_steps.py.


def _order(number, steps=0):
    return StepOrder(
        number, f"s{number}", steps, again=False, end=False, parameters={}, restore=None, save=False
    )


def _stepped(backend, parts, *orders):
    return backend.call(CallInputs(parts, len(orders), orders=orders), current_call()).outputs


@for_each("method", ["predict", "predict_stream", "predict_request"])
def test_model_with_step_and_predict_does_not_load(method):
    model = type("Both", (Declared,), {method: lambda self, x: x})()
    with pytest.raises(ModelLoadError, match=f"it defines both step and {method}: step alone"):
        _backend(model)


def test_model_with_step_cannot_run_inline():
    """Inline, its requests could not wait for each other."""
    with pytest.raises(ConfigError, match="a model with a step cannot run inline"):
        LocalBackend(Declared, "m", inline=True)


def test_step_warm_up_ends_its_sequence():
    """The model can free what it took for the sequence, also an asynchronous one."""
    model = Declared()
    backend = _backend(model)
    assert model.calls == [("float32", (1, 2), "int64", (1,))]
    assert model.held == set()
    backend.close()


def test_failed_step_warm_up_ends_its_sequence():
    async def step(self, states, x, n):
        self.held.add(states[0].id)
        raise ValueError

    model = type("NoZeros", (Declared,), {"step": step})()
    backend = _backend(model)
    assert (model.held, backend.metadata.can_predict, backend.metadata.can_stream) == (set(), True, True)
    backend.close()


def test_step_takes_declared_inputs_by_name_or_position():
    model = Declared()
    backend = _backend(model)
    part = {"x": np.ones((1, 2), np.float32), "n": np.array([3], np.int32)}
    outputs = _stepped(backend, (part, part), _order(1), _order(2))
    assert outputs["y"].tolist() == [[3, 3], [3, 3]]
    assert model.calls[-1] == ("float32", (2, 2), "int64", (2,))
    assert model.held == {"s1", "s2"}
    backend.end_sequences([SequenceEnding(1, "s1", 1, SequenceEnd.ENDED)])
    assert model.held == {"s2"}
    backend.close()


@for_each("step", [lambda self: 0, lambda self, states: 0, lambda self, *, x: 0, lambda self, *, x, y: 0])
def test_step_without_states_or_inputs_does_not_load(step):
    with pytest.raises(ModelLoadError, match=r"as in step\(self, states, x\)"):
        _backend(type("Odd", (Model,), {"step": step})())


@for_each(
    "step",
    [
        lambda self, states, x: x + 1,
        lambda self, *args: args[1] + 1,
        lambda self, states, /, **tensors: tensors["x"] + 1,
        lambda self, states, *, x: x + 1,
        lambda self, states, x, /: x + 1,
    ],
)
def test_step_accepts_variadic_parameters(step):
    backend = _backend(type("Any", (Model,), {"step": step})())
    assert _stepped(backend, ({"x": np.ones((1, 1))},), _order(1))["output"].tolist() == [[2]]


def test_step_may_write_into_its_inputs():
    """A failed step is retried with unchanged rows."""

    class Writes(Model):
        def step(self, states, x):
            x += 1
            return x

    x = np.zeros((2, 1))
    assert _stepped(_backend(Writes()), ({"x": x},), _order(1), _order(2))["output"].tolist() == [[1], [1]]
    assert x.tolist() == [[0], [0]]


def test_step_sees_its_current_call():
    seen = []

    class Asks(Model):
        def step(self, states, x):
            seen.append(current_call().cancelled)
            return x

    inputs = CallInputs(({"x": np.zeros((1, 1))},), 1, orders=[_order(1)])
    _backend(Asks()).call(inputs, _CancelledCall())
    assert (seen, current_call().cancelled) == ([True], False)
