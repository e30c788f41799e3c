"""The isolation of an instance: by its settings, else its model, else its measured speed."""

import functools
import threading

import numpy as np
import pytest

from cases import for_each
from engine import process_models as models
from headrace.core import Model, TensorSpec
from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.engine.backend_factory import INLINE_CALL_S, BackendFactory
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, ManualClock

X_SPEC = (TensorSpec("x", "FP32", (-1, 2)),)


class Timed(Model):
    """Takes the time that it is given, on the test's clock."""

    inputs = X_SPEC
    max_batch_rows = 8

    def __init__(self, clock, call_s=0.0, row_s=0.0):
        self.clock, self.call_s, self.row_s = clock, call_s, row_s

    def predict(self, x):
        self.clock.advance(self.call_s + self.row_s * len(x))
        return x


def _backend_factory(make, clock=None, load_lock=None, **settings) -> BackendFactory:
    serve = ServeSettings(**settings)
    factory = (lambda: make) if isinstance(make, Model) else make
    return BackendFactory(
        factory,
        "m",
        version="1",
        fingerprint="f",
        settings=serve,
        clock=clock or ManualClock(),
        load_lock=load_lock or threading.Lock(),
    )


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("isolation", ["process", None])
def test_processes_load_in_parallel(isolation):
    """An instance in a process does not wait for loads of threads, once its isolation is known."""
    lock = threading.Lock()
    backend_factory = _backend_factory(models.Apart, load_lock=lock, isolation=isolation)
    backend_factory.load().close()
    with lock:
        backend_factory.load().close()


def _inline(make, clock=None, **settings) -> bool:
    backend_factory = _backend_factory(make, clock, **settings)
    backend = backend_factory.load()
    try:
        return backend_factory.is_inline(backend)
    finally:
        backend.close()


@for_each(
    ("call_s", "row_s", "inline"),
    [
        (0.0, 0.0, True),
        (INLINE_CALL_S * 0.9, 0.0, True),
        (INLINE_CALL_S * 1.1, 0.0, False),
        (0.0, INLINE_CALL_S * 0.9, True),
        (0.0, INLINE_CALL_S * 1.3, False),
        (INLINE_CALL_S * 100, 0.0, False),
    ],
)
def test_auto_runs_fast_models_inline(call_s, row_s, inline):
    clock = ManualClock()
    assert _inline(Timed(clock, call_s, row_s), clock) == inline


def test_slow_full_batch_is_not_inline():
    clock = ManualClock()
    model = Timed(clock, row_s=INLINE_CALL_S * 0.5)
    model.max_batch_rows = 1024
    assert not _inline(model, clock)


def test_single_slow_call_is_ignored():
    """The median counts: the first call of a size may be slow."""
    clock, calls = ManualClock(), []

    class Once(Timed):
        def predict(self, x):
            calls.append(len(x))
            clock.advance(INLINE_CALL_S * 5 if calls.count(len(x)) == 2 else 0.0)
            return x

    assert _inline(Once(clock), clock)
    assert set(calls) == {1, 8}


class _Async(EchoModel):
    inputs = X_SPEC

    async def predict(self, x):
        return x


class _Hidden(EchoModel):
    """A plain function that returns a coroutine, as a decorator may do."""

    inputs = X_SPEC

    def predict(self, x):
        async def later():
            return x

        return later()


class _Streams(EchoModel):
    inputs = X_SPEC

    def predict_stream(self, requests):
        yield 1


class _Unknown(EchoModel):
    """Declares no shapes."""


class _Text(EchoModel):
    inputs = (TensorSpec("x", "BYTES", (-1, 2)),)


class _NoZeros(EchoModel):
    inputs = X_SPEC

    def predict(self, x):
        if not x.any():
            raise ValueError("zeros")
        return x


class _Exits(EchoModel):
    inputs = X_SPEC
    max_batch_rows = 8

    def predict(self, x):
        if len(x) > 1:
            raise SystemExit(3)
        return x


class _Vast(EchoModel):
    """Has a largest batch that fits into no memory."""

    inputs = (TensorSpec("x", "FP32", (-1, 1 << 20)),)
    max_batch_rows = 1 << 40


@for_each("make", [_Async, _Hidden, _Streams, _Unknown, _Text, _NoZeros, _Exits, _Vast])
def test_auto_is_thread_without_measurement(make):
    assert not _inline(make)


def test_several_instances_are_never_inline():
    assert _inline(EchoModelWithShape)
    assert not _inline(EchoModelWithShape, instances=2)


class EchoModelWithShape(EchoModel):
    inputs = X_SPEC


@for_each("where", ["inline", "thread"])
def test_settings_override_model_isolation(where):

    class Says(EchoModelWithShape):
        isolation = "inline" if where == "thread" else "thread"

    assert _inline(Says, isolation=where) == (where == "inline")


@for_each("where", ["inline", "thread"])
def test_model_isolation_is_the_default(where):
    class Says(_Unknown):
        isolation = where

    assert _inline(Says) == (where == "inline")


@for_each("settings", [{"isolation": "inline"}, {}])
def test_async_predict_cannot_run_inline(settings):
    """The loaded model is closed."""
    closed = []

    class Says(_Async):
        isolation = "inline"

        def close(self):
            closed.append(1)

    with pytest.raises(ConfigError, match="asynchronous predict cannot run inline"):
        _backend_factory(Says, **settings).load()
    assert closed == [1]


def test_only_one_instance_can_run_inline():
    with pytest.raises(ConfigError, match="only one instance can run inline"):
        _backend_factory(EchoModel, isolation="inline", instances=2).load()


def test_model_is_made_once_for_its_isolation():
    made = []

    class Counted(EchoModel):
        def __init__(self):
            made.append(threading.get_ident())

    backend_factory = _backend_factory(Counted)
    for _ in range(2):
        backend_factory.load().close()
    assert len(made) == 2


@pytest.mark.parametrize("isolation", [None, "thread"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("no file"), ModelLoadError),
        (SystemExit(3), ModelLoadError),
        (MissingExtraError("onnx", "an ONNX model"), MissingExtraError),
    ],
)
def test_factory_error_is_load_error(isolation, error, expected):
    """The same error for thread and process."""

    def make():
        raise error

    with pytest.raises(expected):
        _backend_factory(make, isolation=isolation).load()


def test_backend_has_name_and_version():
    backend = _backend_factory(functools.partial(EchoModel)).load()
    known = backend.metadata
    assert (known.name, known.version, known.fingerprint) == ("m", "1", "f")
    assert np.array_equal(backend.rows_max, EchoModel.max_batch_rows)
    backend.close()
