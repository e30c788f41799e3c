import numpy as np
import pytest

from headrace.core import Model, RowError, current_call
from headrace.core.model import CALL


def test_row_error_has_one_or_several_rows():
    assert RowError(3, "negative").rows == {3: "negative"}
    assert str(RowError({7: "b", 1: "a"})) == "row 1: a; row 7: b"


def test_row_error_accepts_numpy_integers():
    """Models iterate over `np.flatnonzero(x < 0)`."""
    assert RowError(np.int64(3), "negative").rows == {3: "negative"}


def test_model_without_predict_raises():
    class Empty(Model):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no predict"):
        Empty().predict(np.zeros(1))


class _EndingCall:
    deadline_s = 0.5
    cancelled = True


def test_no_deadline_outside_of_calls():
    assert current_call().deadline_s is None
    assert not current_call().cancelled


def test_current_call_is_the_one_that_the_engine_set():
    token = CALL.set(_EndingCall())
    try:
        assert current_call().cancelled
        assert current_call().deadline_s == 0.5
    finally:
        CALL.reset(token)
    assert not current_call().cancelled
