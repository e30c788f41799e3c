"""Outputs of `predict`: accepted kinds, and errors of the others."""

import numpy as np
import pytest

from cases import for_each
from headrace.core import TensorSpec
from headrace.core.errors import ModelContractError
from headrace.engine.outputs import OutputCheck

ONE = (TensorSpec("score", "FP32"),)
TWO = (TensorSpec("label", "INT64"), TensorSpec("score", "FP32"))


def _check(returned, specs=(), rows=2):
    return OutputCheck("m", specs)(returned, rows, "r")


@for_each(
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
def test_arrays_lists_mappings_and_tuples_are_accepted(returned, specs, names):
    outputs = _check(returned, specs)
    assert list(outputs) == names
    assert all(isinstance(d, np.ndarray) and len(d) == 2 for d in outputs.values())


@for_each("text", [["a", "bcd"], np.array(["a", "bcd"]), np.array(["a", "bcd"], object)])
def test_text_becomes_object_arrays(text):
    data = _check(text)["output"]
    assert (data.dtype, data.tolist()) == (np.dtype(object), ["a", "bcd"])


def test_arrays_are_not_copied():
    array = np.zeros((2, 3))
    assert _check(array)["output"] is array


@for_each(
    ("returned", "specs", "message"),
    [
        (np.zeros(1), (), "request r: output 'output' has 1 rows for 2 rows"),
        (np.zeros(3), (), "has 3 rows for 2 rows"),
        (1.5, (), "has one value for 2 rows"),
        (None, (), "it returned None"),
        ({}, (), "it returned an empty mapping, without any output"),
        ({"label": [1, 2]}, TWO, "it returned label, without output 'score'"),
        ((np.zeros(2), np.zeros(2)), (), "tuple of 2: return a mapping"),
        (np.zeros(2, complex), (), "output 'output' cannot be converted to an array"),
        ([[1], [1, 2]], (), "output 'output' cannot be converted to an array"),
    ],
)
def test_invalid_outputs_raise_contract_error(returned, specs, message):
    """With the request, the output and the numbers."""
    with pytest.raises(ModelContractError, match=message):
        _check(returned, specs)


def test_parts_are_joined_in_order():
    """Outputs of several calls of one request."""
    check = OutputCheck("m", ())
    joined = check.joined([{"y": np.array([1, 2])}, {"y": np.array([3])}], "r")
    assert joined["y"].tolist() == [1, 2, 3]
    assert check.joined([], "r") == {}


@for_each("other", [{"z": np.zeros(1)}, {"y": np.zeros((1, 2))}, {"y": np.array(["a"], object)}])
def test_differing_parts_cannot_be_joined(other):
    """Another name, another width, or text after numbers."""
    with pytest.raises(ModelContractError, match="request r: its outputs differ from call to call"):
        OutputCheck("m", ()).joined([{"y": np.zeros(1)}, other], "r")
