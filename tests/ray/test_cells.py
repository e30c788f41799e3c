"""A column's values as what an input takes, and why some are not."""

import numpy as np
import pytest

from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.ray.cells import cells_of, text_of


def objects(*values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def cells(column, datatype="FP32", shape=(-1,), text="str"):
    return cells_of(column, TensorSpec("x", datatype, shape), text)


@pytest.mark.parametrize(
    ("column", "datatype", "values", "whys"),
    [
        (np.array([1, 2]), "FP32", [1.0, 2.0], {}),
        (np.array([1.5, np.nan]), "FP32", [1.5, None], {}),
        (np.array([True, False]), "INT8", [1, 0], {}),
        (
            np.array([1.0, 2.5, np.nan, np.inf, 2.0**63]),
            "INT64",
            [1],
            {1: "holds 2.5", 2: "is null or NaN", 3: "holds inf", 4: "holds 9.2"},
        ),
        (np.array([-1, 255, 256]), "UINT8", [None, 255], {0: "holds -1", 2: "holds 256"}),
        (np.array([0, 1]), "BOOL", [], {0: "no bool", 1: "no bool"}),
        (objects(1, None, "3", 2.5), "FP64", [1.0], {1: "is null", 2: "is text"}),
        (objects({"a": 1}), "FP32", [], {0: "is dict"}),
        (np.array([[1, 2], [300, 4]]), "UINT8", [[1, 2]], {1: "holds 300"}),
    ],
)
def test_numbers(column, datatype, values, whys):
    """Whatever fits is there, in the model's type; whatever does not says why."""
    made = cells(column, datatype)
    assert made.whys.keys() == whys.keys()
    assert all(said in made.whys[row] for row, said in whys.items())
    for row, value in enumerate(values):
        if value is not None:
            assert made.of(np.array([row]))[0].tolist() == value


@pytest.mark.parametrize(
    ("text", "values", "whys"),
    [
        ("str", ["é", "b"], {2: "no UTF-8", 3: "is null", 4: "is int", 5: "is null"}),
        ("bytes", ["é".encode(), b"b", b"\xff"], {3: "is null", 4: "is int", 5: "is null"}),
        ("sent", ["é", b"b", b"\xff"], {3: "is null", 4: "is int", 5: "is null"}),
    ],
)
def test_text(text, values, whys):
    """Ray gives NaN for a null where it knows no type of a column."""
    made = cells(objects("é", b"b", b"\xff", None, 7, float("nan")), "BYTES", text=text)
    assert {row: why for row, why in made.whys.items() if whys[row] in why}.keys() == whys.keys()
    assert made.of(np.arange(len(values))).tolist() == values


def test_text_of_numpys_own_kind():
    assert cells(np.array(["a", "bc"]), "BYTES").of(np.arange(2)).tolist() == ["a", "bc"]


def test_lists_of_lists_are_tensors_and_ragged_ones_are_none():
    """Ray has a list of lists as an array of arrays."""
    column = objects(objects(np.ones(2), np.ones(2)), objects(np.ones(2), np.ones(3)), [[1, 2], [3, 4]])
    made = cells(column, shape=(-1, -1, -1))
    assert made.whys == {1: "holds lists of different lengths"}
    assert made.of(np.array([0, 2])).tolist() == [[[1, 1], [1, 1]], [[1, 2], [3, 4]]]


def test_lists_of_text_are_tensors():
    made = cells(objects(["a", "b"], objects("c", None), []), "BYTES", (-1, -1))
    assert made.whys == {1: "is null"}
    assert made.of(np.array([0])).tolist() == [["a", "b"]]
    assert made.shape(2) == (0,)


@pytest.mark.parametrize("column", [np.array(["a", "b"]), objects(None, "b"), objects([], ["b"])])
def test_a_type_that_is_only_guessed_gives_way_to_text(column):
    """Of a Python model that declares nothing, all inputs are FP32 of no shape."""
    made = cells(column, shape=None)
    assert made.of(np.array([1])).dtype == object


def test_an_endpoint_is_sent_bytes_as_they_are():
    metadata = ModelMetadata("m")
    assert text_of(metadata, at_endpoint=True) == "sent"
    assert text_of(metadata, at_endpoint=False) == "str"
