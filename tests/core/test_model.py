import numpy as np
import pytest

from headrace.core import Model, RowError


def test_a_row_error_names_one_row_or_many():
    assert RowError(3, "negative").rows == {3: "negative"}
    assert str(RowError({7: "b", 1: "a"})) == "row 1: a; row 7: b"


def test_a_row_error_takes_numpys_integers():
    """`for row in np.flatnonzero(x < 0): raise RowError(row, ...)` is how models are written."""
    assert RowError(np.int64(3), "negative").rows == {3: "negative"}


def test_a_model_without_predict_says_so():
    class Empty(Model):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no predict"):
        Empty().predict(np.zeros(1))
