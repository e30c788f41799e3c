"""Values become the inputs that they are meant for; see also tests/cli/test_fitting.py, which asks all of it through the command."""

import numpy as np
import pytest

from headrace.core.errors import DataError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.plain_json import request_of_json

X = TensorSpec("x", "FP32", (-1, 3))
N = TensorSpec("n", "INT64", (-1,))


def made(value, *specs):
    request = request_of_json(value, ModelMetadata("m", "1", "python", specs))
    return {tensor.name: tensor.data for tensor in request.inputs}


@pytest.mark.parametrize("value", [[[1, 2, 3]], [1, 2, 3], {"x": [[1, 2, 3]]}, {"x": [1, 2, 3]}])
def test_values_go_to_the_one_input_or_to_the_one_that_is_named(value):
    arrays = made(value, X)
    assert arrays.keys() == {"x"}
    np.testing.assert_array_equal(arrays["x"], np.array([[1, 2, 3]], np.float32), strict=True)


def test_an_object_has_a_value_for_each_input():
    arrays = made({"x": [[1, 2, 3], [4, 5, 6]], "n": [7, 8]}, X, N)
    assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
        "x": (np.float32, (2, 3)),
        "n": (np.int64, (2,)),
    }


def test_of_a_model_that_declares_nothing_inputs_are_named():
    assert made({"text": "hello", "n": 3})["text"].tolist() == ["hello"]


@pytest.mark.parametrize(
    ("value", "specs", "said"),
    [
        ([1, 2], (X,), r"'x' has shape \[2\], but the model takes \[-1, 3\]"),
        (
            [1],
            (X, N),
            r'say for which input it is, as in \{"NAME": values\}. It takes x FP32 \[-1, 3\], n INT64',
        ),
        ([1], (), "name its inputs"),
        ({}, (X,), "there is no input. It takes x"),
        ({"z": [1]}, (X,), "no input 'z'"),
        (None, (X,), "'x'"),
        ([[1, 2], [3]], (X,), "ragged"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(value, specs, said):
    with pytest.raises(DataError, match=said):
        made(value, *specs)
