"""Conversion of a column's values for an input."""

import numpy as np

from cases import for_each
from headrace.contrib.ray.column_values import convert_column, text_type_for
from headrace.core.tensor import ModelMetadata, TensorSpec


def objects(*values):
    converted = np.empty(len(values), object)
    converted[:] = values
    return converted


def convert(column, datatype="FP32", shape=(-1,), text="str"):
    return convert_column(column, TensorSpec("x", datatype, shape), text)


@for_each(
    ("column", "datatype", "values", "reasons"),
    [
        (np.array([1, 2]), "FP32", [1.0, 2.0], {}),
        (np.array([1.5, np.nan]), "FP32", [1.5, None], {}),
        (np.array([True, False]), "INT8", [1, 0], {}),
        (
            np.array([1.0, 2.5, np.nan, np.inf, 2.0**63]),
            "INT64",
            [1],
            {1: "value 2.5", 2: "is null or NaN", 3: "value inf", 4: "value 9.2"},
        ),
        (np.array([-1, 255, 256]), "UINT8", [None, 255], {0: "value -1", 2: "value 256"}),
        (np.array([0, 1]), "BOOL", [], {0: "not a valid bool", 1: "not a valid bool"}),
        (objects(1, None, "3", 2.5), "FP64", [1.0], {1: "is null", 2: "is text"}),
        (objects({"a": 1}), "FP32", [], {0: "has type dict"}),
        (np.array([[1, 2], [300, 4]]), "UINT8", [[1, 2]], {1: "value 300"}),
    ],
)
def test_numbers_convert_or_fail_with_reason(column, datatype, values, reasons):
    converted = convert(column, datatype)
    assert converted.reasons.keys() == reasons.keys()
    assert all(part in converted.reasons[row] for row, part in reasons.items())
    for row, value in enumerate(values):
        if value is not None:
            assert converted.take(np.array([row]))[0].tolist() == value


@for_each(
    ("text", "values", "reasons"),
    [
        ("str", ["é", "b"], {2: "not UTF-8", 3: "is null", 4: "has type int", 5: "is null"}),
        ("bytes", ["é".encode(), b"b", b"\xff"], {3: "is null", 4: "has type int", 5: "is null"}),
        ("sent", ["é", b"b", b"\xff"], {3: "is null", 4: "has type int", 5: "is null"}),
    ],
)
def test_text_converts_or_fails_with_reason(text, values, reasons):
    """Ray makes NaN of a null in a column of unknown type."""
    converted = convert(objects("é", b"b", b"\xff", None, 7, float("nan")), "BYTES", text=text)
    assert {
        row: why for row, why in converted.reasons.items() if reasons[row] in why
    }.keys() == reasons.keys()
    assert converted.take(np.arange(len(values))).tolist() == values


def test_numpy_unicode_column_is_text():
    assert convert(np.array(["a", "bc"]), "BYTES").take(np.arange(2)).tolist() == ["a", "bc"]


def test_nested_lists_become_tensors_unless_ragged():
    """Ray represents a list of lists as an array of arrays."""
    column = objects(objects(np.ones(2), np.ones(2)), objects(np.ones(2), np.ones(3)), [[1, 2], [3, 4]])
    converted = convert(column, shape=(-1, -1, -1))
    assert converted.reasons == {1: "has lists of different lengths"}
    assert converted.take(np.array([0, 2])).tolist() == [[[1, 1], [1, 1]], [[1, 2], [3, 4]]]


def test_lists_of_text_become_tensors():
    converted = convert(objects(["a", "b"], objects("c", None), []), "BYTES", (-1, -1))
    assert converted.reasons == {1: "is null"}
    assert converted.take(np.array([0])).tolist() == [["a", "b"]]
    assert converted.shape(2) == (0,)


@for_each("column", [np.array(["a", "b"]), objects(None, "b"), objects([], ["b"])])
def test_undeclared_input_accepts_text(column):
    """Undeclared inputs of a Python model are FP32 without a shape."""
    converted = convert(column, shape=None)
    assert converted.take(np.array([1])).dtype == object


def test_endpoint_gets_bytes_unchanged():
    metadata = ModelMetadata("m")
    assert text_type_for(metadata, at_endpoint=True) == "sent"
    assert text_type_for(metadata, at_endpoint=False) == "str"
