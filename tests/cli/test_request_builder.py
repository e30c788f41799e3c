"""Requests built from values and the model's metadata: names, shapes and datatypes."""

import numpy as np
import pytest

from cases import for_each
from headrace.cli.request_builder import CsvTable, InputValue, JsonValue, RequestDocument, build_request
from headrace.core.errors import DataError
from headrace.core.tensor import ModelMetadata, TensorSpec

X = TensorSpec("x", "FP32", (-1, 3))
N = TensorSpec("n", "INT64", (-1,))
NAME = TensorSpec("name", "BYTES", (-1, 1))
UNDECLARED = ModelMetadata("m")


def model(*specs, platform="python"):
    return ModelMetadata("m", "1", platform, specs)


def built_input(value, *specs, name=None):
    """Return the only input of the request for a value."""
    parsed = value if isinstance(value, np.ndarray | CsvTable | RequestDocument | dict) else JsonValue(value)
    (tensor,) = build_request([InputValue(name, parsed)], (), model(*specs)).inputs
    return tensor


@for_each(
    ("value", "spec", "shape"),
    [
        ([[1, 2, 3]], X, (1, 3)),
        ([1, 2, 3], X, (1, 3)),
        ([[1, 2, 3], [4, 5, 6]], X, (2, 3)),
        (5, N, (1,)),
        ([5, 6], N, (2,)),
        (["a", "b"], NAME, (2, 1)),
        ("a", NAME, (1, 1)),
        ([[["a"]]], TensorSpec("t", "BYTES", None), (1, 1, 1)),
        ([[1, 2]], TensorSpec("free", "FP32", (-1,)), (1, 2)),
    ],
)
def test_missing_brackets_are_added(value, spec, shape):
    tensor = built_input(value, spec)
    assert (tensor.name, tensor.data.shape, tensor.datatype) == (spec.name, shape, spec.datatype)


@for_each(
    ("value", "specs", "message"),
    [
        ([1, 2], (X,), r"'x' has shape \[2\], but the model takes \[-1, 3\]"),
        ([1.5], (N,), "cannot have fractions"),
        (["a"], (N,), "INT64 values cannot be str"),
        ([[1, 2], [3]], (X,), "ragged"),
        ([1], (X, N), r"It takes x FP32 \[-1, 3\], n INT64 \[-1\]"),
        ({"z": [1]}, (X,), r"no input 'z'. It takes x FP32"),
        (np.array(["a"]), (N,), "INT64, but the file contains <U1"),
        (np.array([1.5]), (N,), "does not fit INT64"),
        (np.array([1e300, 0, 0]), (X,), "does not fit FP32"),
        (np.array([1j]), (N,), "complex128"),
    ],
)
def test_value_that_does_not_fit_is_refused(value, specs, message):
    with pytest.raises(DataError, match=message):
        built_input(value, *specs)


@for_each(
    ("array", "spec"),
    [
        (np.array([[1, 2, 3]], np.float64), X),
        (np.array([[1, 2, 3]], np.int64), X),
        (np.array([1.0, 2.0]), N),
        (np.array(["a", "é"]), NAME),
        (np.array([1, 0], np.bool_), TensorSpec("f", "BOOL", (-1,))),
    ],
)
def test_arrays_are_converted_to_the_declared_datatype(array, spec):
    tensor = built_input(array, spec)
    assert tensor.datatype == spec.datatype
    np.testing.assert_array_equal(tensor.data.ravel(), array.ravel())


def test_names_are_those_of_option_object_or_file():
    metadata = model(X, N)
    by_command = build_request(
        [InputValue("x", JsonValue([1, 2, 3])), InputValue("n", np.array([7]))], (), metadata
    )
    by_object = build_request([InputValue(None, JsonValue({"x": [1, 2, 3], "n": [7]}))], (), metadata)
    by_file = build_request([InputValue(None, {"x": np.array([1, 2, 3]), "n": np.array([7])})], (), metadata)
    for request in (by_command, by_object, by_file):
        assert {t.name: t.data.tolist() for t in request.inputs} == {"x": [[1, 2, 3]], "n": [7]}
    with pytest.raises(DataError, match="'n' is given twice"):
        build_request([InputValue("n", JsonValue([1])), InputValue("n", JsonValue([2]))], (), metadata)


def test_texts_go_to_the_only_text_input():
    request = build_request([InputValue("n", JsonValue(7))], ["a"], model(N, NAME), {"k": 1})
    assert request["name"].tolist() == [["a"]]
    assert request.parameters == {"k": 1}
    assert build_request([], ["a", "b"], UNDECLARED)["text_input"].tolist() == ["a", "b"]
    assert build_request([], ["a"], model(TensorSpec("free", "FP32", (-1,))))["free"].tolist() == ["a"]
    for specs in ((X,), (NAME, TensorSpec("t", "BYTES", (-1,)))):
        with pytest.raises(DataError, match="no single text input for --text"):
            build_request([], ["a"], model(*specs))


@for_each(("value", "datatype"), [([1, 2.5], "FP32"), (["a"], "BYTES"), ([True], "BOOL")])
def test_undeclared_inputs_keep_the_type_of_their_values(value, datatype):
    tensor = build_request([InputValue("x", JsonValue(value))], (), UNDECLARED).inputs[0]
    assert tensor.datatype == datatype
    with pytest.raises(DataError, match="name the input"):
        build_request([InputValue(None, JsonValue(value))], (), UNDECLARED)


def test_whole_request_is_sent_unchanged_and_alone():
    tensor = b'{"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}'
    body = b'{"id": "q", "parameters": {"a": 1}, "inputs": [%s]}' % tensor
    request = build_request([InputValue(None, RequestDocument(body))], (), model(X), {"b": 2})
    assert (request.id, request.parameters, request["x"].dtype) == ("q", {"a": 1, "b": 2}, np.int8)
    with pytest.raises(DataError, match="cannot be combined"):
        build_request([InputValue(None, RequestDocument(body))], ["a"], model(X))


def test_missing_input_of_a_graph_is_refused():
    with pytest.raises(DataError, match="'n' is missing"):
        build_request([InputValue("x", JsonValue([1, 2, 3]))], (), model(X, N, platform="onnx_onnxruntime"))
    assert build_request([InputValue("x", JsonValue([1, 2, 3]))], (), model(X, N)).inputs


ROWS = [["1", "2", "3"], ["4", "5", "6"]]


@for_each("rows", [ROWS, [["a", "b", "c"], *ROWS]])
def test_numeric_table_is_a_matrix_with_or_without_a_header(rows):
    tensor = built_input(CsvTable(rows, "rows.csv"), X)
    assert tensor.data.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_columns_become_inputs_of_the_same_names():
    table = CsvTable([["name", "other", "n"], ["Bo", "9", "1"], ["Zoë", "9", "2"]], "rows.csv")
    request = build_request([InputValue(None, table)], (), model(N, NAME))
    assert {t.name: t.data.tolist() for t in request.inputs} == {"n": [1, 2], "name": [["Bo"], ["Zoë"]]}


def test_text_column_may_have_a_header():
    for rows in ([["name"], ["a"], ["b"]], [["a"], ["b"]]):
        assert built_input(CsvTable(rows, "r.csv"), NAME).data.tolist() == [["a"], ["b"]]


@for_each(
    ("rows", "message"),
    [
        ([["a", "b", "c"], ["1", "n/a", "3"]], r"r.csv: 'n/a' is not a number \(record 1, for 'x'\)"),
        ([["a", "b", "c"]], "no rows below its header"),
        ([["1", "2"]], r"shape \[1, 2\]"),
    ],
)
def test_table_that_does_not_fit_is_refused_with_its_position(rows, message):
    with pytest.raises(DataError, match=message):
        built_input(CsvTable(rows, "r.csv"), X)
