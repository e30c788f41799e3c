"""Where an instance runs, as its settings say, else its model, else its own speed."""

import functools
import threading

import numpy as np
import pytest

from headrace.core import Model, TensorSpec
from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.engine.isolation import INLINE_CALL_S, Placement
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, ManualClock

X_SPEC = (TensorSpec("x", "FP32", (-1, 2)),)


class Timed(Model):
    """Takes as long as it says, on its test's clock."""

    inputs = X_SPEC
    max_batch_rows = 8

    def __init__(self, clock, call_s=0.0, row_s=0.0):
        self.clock, self.call_s, self.row_s = clock, call_s, row_s

    def predict(self, x):
        self.clock.advance(self.call_s + self.row_s * len(x))
        return x


def _placement(make, clock=None, **settings) -> Placement:
    serve = ServeSettings(**settings)
    factory = (lambda: make) if isinstance(make, Model) else make
    return Placement(factory, "m", version="1", fingerprint="f", settings=serve, clock=clock or ManualClock())


def _inline(make, clock=None, **settings) -> bool:
    placement = _placement(make, clock, **settings)
    backend = placement.load()
    try:
        return placement.inline(backend)
    finally:
        backend.close()


@pytest.mark.parametrize(
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
def test_auto_is_inline_for_models_that_are_fast_on_one_row_and_on_a_full_batch(call_s, row_s, inline):
    clock = ManualClock()
    assert _inline(Timed(clock, call_s, row_s), clock) == inline


def test_a_full_batch_that_takes_long_is_not_inline():
    clock = ManualClock()
    model = Timed(clock, row_s=INLINE_CALL_S * 0.5)
    model.max_batch_rows = 1024
    assert not _inline(model, clock)


def test_one_slow_call_among_several_is_chance():
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
    """A plain function that gives a coroutine, as a decorator may make one."""

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
    """Says nothing of its shapes."""


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
    """Its largest batch fits into no memory."""

    inputs = (TensorSpec("x", "FP32", (-1, 1 << 20)),)
    max_batch_rows = 1 << 40


@pytest.mark.parametrize("make", [_Async, _Hidden, _Streams, _Unknown, _Text, _NoZeros, _Exits, _Vast])
def test_auto_is_a_thread_where_that_cannot_be_measured_or_must_not_be(make):
    assert not _inline(make)


def test_several_instances_are_never_inline():
    assert _inline(EchoModelWithShape)
    assert not _inline(EchoModelWithShape, instances=2)


class EchoModelWithShape(EchoModel):
    inputs = X_SPEC


@pytest.mark.parametrize("where", ["inline", "thread"])
def test_the_settings_go_before_the_model(where):
    """Whatever the model says, and however fast it is."""

    class Says(EchoModelWithShape):
        isolation = "inline" if where == "thread" else "thread"

    assert _inline(Says, isolation=where) == (where == "inline")


@pytest.mark.parametrize("where", ["inline", "thread"])
def test_the_models_own_choice_is_taken(where):
    class Says(_Unknown):
        isolation = where

    assert _inline(Says) == (where == "inline")


@pytest.mark.parametrize("settings", [{"isolation": "inline"}, {}])
def test_an_async_predict_cannot_be_inline(settings):
    """It is told, and what was loaded is closed."""
    closed = []

    class Says(_Async):
        isolation = "inline"

        def close(self):
            closed.append(1)

    with pytest.raises(ConfigError, match="asynchronous predict cannot run inline"):
        _placement(Says, **settings).load()
    assert closed == [1]


def test_only_one_instance_can_be_inline():
    with pytest.raises(ConfigError, match="only one inline instance"):
        _placement(EchoModel, isolation="inline", instances=2).load()


def test_a_model_is_made_once_where_its_own_choice_is_asked():
    made = []

    class Counted(EchoModel):
        def __init__(self):
            made.append(threading.get_ident())

    placement = _placement(Counted)
    for _ in range(2):
        placement.load().close()
    assert len(made) == 2


@pytest.mark.parametrize("isolation", [None, "thread"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("no file"), ModelLoadError),
        (SystemExit(3), ModelLoadError),
        (MissingExtraError("onnx", "an ONNX model"), MissingExtraError),
    ],
)
def test_a_model_that_cannot_be_made_is_told(isolation, error, told):
    """The same way, whoever makes it."""

    def make():
        raise error

    with pytest.raises(told):
        _placement(make, isolation=isolation).load()


def test_what_is_loaded_knows_its_name_and_version():
    backend = _placement(functools.partial(EchoModel)).load()
    known = backend.metadata
    assert (known.name, known.version, known.fingerprint) == ("m", "1", "f")
    assert np.array_equal(backend.rows_max, EchoModel.max_batch_rows)
    backend.close()
