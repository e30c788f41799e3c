"""What predict may return, and what is told when it returns something else."""

import numpy as np
import pytest

from headrace.core import TensorSpec
from headrace.core.errors import ModelContractError
from headrace.engine.outputs import OutputCheck

ONE = (TensorSpec("score", "FP32"),)
TWO = (TensorSpec("label", "INT64"), TensorSpec("score", "FP32"))


def _checked(returned, specs=(), rows=2):
    return OutputCheck("m", specs)(returned, rows, "r")


@pytest.mark.parametrize(
    ("returned", "specs", "names"),
    [
        (np.zeros(2), (), ["output"]),
        (np.zeros((2, 5)), ONE, ["score"]),
        ([1, 2], (), ["output"]),
        ({"a": [1, 2], "b": [[1], [2]]}, (), ["a", "b"]),
        ((np.zeros(2), np.ones(2)), TWO, ["label", "score"]),
        ({"score": np.zeros(2), "more": np.zeros(2)}, ONE, ["score", "more"]),
    ],
)
def test_arrays_lists_mappings_and_declared_tuples_are_taken(returned, specs, names):
    """Always arrays by name, a row for each row."""
    outputs = _checked(returned, specs)
    assert list(outputs) == names
    assert all(isinstance(d, np.ndarray) and len(d) == 2 for d in outputs.values())


@pytest.mark.parametrize("text", [["a", "bcd"], np.array(["a", "bcd"]), np.array(["a", "bcd"], object)])
def test_text_comes_out_as_objects(text):
    """Whatever kind of text array the model made."""
    data = _checked(text)["output"]
    assert (data.dtype, data.tolist()) == (np.dtype(object), ["a", "bcd"])


def test_arrays_are_handed_on_without_a_copy():
    """Outputs may be large."""
    array = np.zeros((2, 3))
    assert _checked(array)["output"] is array


@pytest.mark.parametrize(
    ("returned", "specs", "message"),
    [
        (np.zeros(1), (), "request r: output 'output' has 1 rows for 2 rows"),
        (np.zeros(3), (), "has 3 rows for 2 rows"),
        (1.5, (), "has one value for 2 rows"),
        (None, (), "it returned None"),
        ({}, (), "it returned an empty mapping, without any output"),
        ({"label": [1, 2]}, TWO, "it returned label, without output 'score'"),
        ((np.zeros(2), np.zeros(2)), (), "tuple of 2: return a mapping"),
        (np.zeros(2, complex), (), "output 'output' is no array that can be handed on"),
        ([[1], [1, 2]], (), "output 'output' is no array that can be handed on"),
    ],
)
def test_a_broken_promise_is_told(returned, specs, message):
    """With the request, the output, and the numbers."""
    with pytest.raises(ModelContractError, match=message):
        _checked(returned, specs)


def test_parts_are_joined_in_order():
    """Outputs of several calls for one request."""
    check = OutputCheck("m", ())
    joined = check.joined([{"y": np.array([1, 2])}, {"y": np.array([3])}], "r")
    assert joined["y"].tolist() == [1, 2, 3]
    assert check.joined([], "r") == {}


@pytest.mark.parametrize(
    "other", [{"z": np.zeros(1)}, {"y": np.zeros((1, 2))}, {"y": np.array(["a"], object)}]
)
def test_parts_that_differ_cannot_be_joined(other):
    """Another name, another width, or text after numbers: no array holds both."""
    with pytest.raises(ModelContractError, match="request r: its outputs differ from call to call"):
        OutputCheck("m", ()).joined([{"y": np.zeros(1)}, other], "r")
