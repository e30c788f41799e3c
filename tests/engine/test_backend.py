"""A model in this process: loaded, warmed up, called, streamed and closed where it lives."""

import pytest

from headrace.core import Model, TensorSpec
from headrace.core.errors import ModelLoadError
from headrace.engine.backend import LocalBackend
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
