"""Plain values as inputs. tests/cli/test_request_builder.py tests them through the command."""

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.plain_bodies import request_from_json

X = TensorSpec("x", "FP32", (-1, 3))
N = TensorSpec("n", "INT64", (-1,))


def request_tensors(value, *specs):
    request = request_from_json(value, ModelMetadata("m", "1", "python", specs))
    return {tensor.name: tensor.data for tensor in request.inputs}


@for_each("value", [[[1, 2, 3]], [1, 2, 3], {"x": [[1, 2, 3]]}, {"x": [1, 2, 3]}])
def test_values_feed_the_only_or_the_named_input(value):
    arrays = request_tensors(value, X)
    assert arrays.keys() == {"x"}
    np.testing.assert_array_equal(arrays["x"], np.array([[1, 2, 3]], np.float32), strict=True)


def test_object_has_a_value_per_input():
    arrays = request_tensors({"x": [[1, 2, 3], [4, 5, 6]], "n": [7, 8]}, X, N)
    assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
        "x": (np.float32, (2, 3)),
        "n": (np.int64, (2,)),
    }


def test_undeclared_model_needs_named_inputs():
    assert request_tensors({"text": "hello", "n": 3})["text"].tolist() == ["hello"]


@for_each(
    ("value", "specs", "said"),
    [
        ([1, 2], (X,), r"'x' has shape \[2\], but the model takes \[-1, 3\]"),
        (
            [1],
            (X, N),
            r'name the input, as in \{"NAME": values\}. It takes x FP32 \[-1, 3\], n INT64',
        ),
        ([1], (), "does not declare its inputs: name them"),
        ({}, (X,), "the request has no input. It takes x"),
        ({"z": [1]}, (X,), "no input 'z'"),
        (None, (X,), "'x'"),
        ([[1, 2], [3]], (X,), "ragged"),
    ],
)
def test_unsuitable_value_is_refused_with_the_declared_inputs(value, specs, said):
    with pytest.raises(DataError, match=said):
        request_tensors(value, *specs)
