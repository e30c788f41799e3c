"""What is given is made to fit what the model declares: names, shapes, datatypes; or refused with what it takes."""

import numpy as np
import pytest

from headrace.cli.fitting import fit_request
from headrace.cli.given import Document, Given, Json, Table
from headrace.core.errors import DataError
from headrace.core.tensor import ModelMetadata, TensorSpec

X = TensorSpec("x", "FP32", (-1, 3))
N = TensorSpec("n", "INT64", (-1,))
NAME = TensorSpec("name", "BYTES", (-1, 1))
UNTOLD = ModelMetadata("m")


def model(*specs, platform="python"):
    return ModelMetadata("m", "1", platform, specs)


def fitted(value, *specs, name=None):
    """The one input that a value becomes."""
    given = value if isinstance(value, np.ndarray | Table | Document | dict) else Json(value)
    (tensor,) = fit_request([Given(name, given)], (), model(*specs)).inputs
    return tensor


@pytest.mark.parametrize(
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
def test_brackets_that_were_left_out_are_put_back(value, spec, shape):
    tensor = fitted(value, spec)
    assert (tensor.name, tensor.data.shape, tensor.datatype) == (spec.name, shape, spec.datatype)


@pytest.mark.parametrize(
    ("value", "specs", "said"),
    [
        ([1, 2], (X,), r"'x' has shape \[2\], but the model takes \[-1, 3\]"),
        ([1.5], (N,), "cannot have fractions"),
        (["a"], (N,), "INT64 values cannot be str"),
        ([[1, 2], [3]], (X,), "ragged"),
        ([1], (X, N), r"It takes x FP32 \[-1, 3\], n INT64 \[-1\]"),
        ({"z": [1]}, (X,), r"no input 'z'. It takes x FP32"),
        (np.array(["a"]), (N,), "INT64, but the file has <U1"),
        (np.array([1.5]), (N,), "does not fit INT64"),
        (np.array([1e300, 0, 0]), (X,), "does not fit FP32"),
        (np.array([1j]), (N,), "complex128"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(value, specs, said):
    with pytest.raises(DataError, match=said):
        fitted(value, *specs)


@pytest.mark.parametrize(
    ("array", "spec"),
    [
        (np.array([[1, 2, 3]], np.float64), X),
        (np.array([[1, 2, 3]], np.int64), X),
        (np.array([1.0, 2.0]), N),
        (np.array(["a", "é"]), NAME),
        (np.array([1, 0], np.bool_), TensorSpec("f", "BOOL", (-1,))),
    ],
)
def test_arrays_become_what_the_model_declares(array, spec):
    tensor = fitted(array, spec)
    assert tensor.datatype == spec.datatype
    np.testing.assert_array_equal(tensor.data.ravel(), array.ravel())


def test_names_come_from_the_command_the_object_or_the_file():
    metadata = model(X, N)
    by_command = fit_request([Given("x", Json([1, 2, 3])), Given("n", np.array([7]))], (), metadata)
    by_object = fit_request([Given(None, Json({"x": [1, 2, 3], "n": [7]}))], (), metadata)
    by_file = fit_request([Given(None, {"x": np.array([1, 2, 3]), "n": np.array([7])})], (), metadata)
    for request in (by_command, by_object, by_file):
        assert {t.name: t.data.tolist() for t in request.inputs} == {"x": [[1, 2, 3]], "n": [7]}
    with pytest.raises(DataError, match="'n' is given twice"):
        fit_request([Given("n", Json([1])), Given("n", Json([2]))], (), metadata)


def test_texts_go_to_the_one_text_input():
    request = fit_request([Given("n", Json(7))], ["a"], model(N, NAME), {"k": 1})
    assert request["name"].tolist() == [["a"]]
    assert request.parameters == {"k": 1}
    assert fit_request([], ["a", "b"], UNTOLD)["text_input"].tolist() == ["a", "b"]
    assert fit_request([], ["a"], model(TensorSpec("free", "FP32", (-1,))))["free"].tolist() == ["a"]
    for specs in ((X,), (NAME, TensorSpec("t", "BYTES", (-1,)))):
        with pytest.raises(DataError, match="no one input for --text"):
            fit_request([], ["a"], model(*specs))


@pytest.mark.parametrize(("value", "datatype"), [([1, 2.5], "FP32"), (["a"], "BYTES"), ([True], "BOOL")])
def test_where_nothing_is_declared_values_are_what_they_are(value, datatype):
    tensor = fit_request([Given("x", Json(value))], (), UNTOLD).inputs[0]
    assert tensor.datatype == datatype
    with pytest.raises(DataError, match="name the input"):
        fit_request([Given(None, Json(value))], (), UNTOLD)


def test_a_whole_request_goes_as_it_is_and_alone():
    body = b'{"id": "q", "parameters": {"a": 1}, "inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}]}'
    request = fit_request([Given(None, Document(body))], (), model(X), {"b": 2})
    assert (request.id, request.parameters, request["x"].dtype) == ("q", {"a": 1, "b": 2}, np.int8)
    with pytest.raises(DataError, match="alone"):
        fit_request([Given(None, Document(body))], ["a"], model(X))


def test_an_input_that_a_graph_needs_is_missed_here():
    with pytest.raises(DataError, match="'n' is missing"):
        fit_request([Given("x", Json([1, 2, 3]))], (), model(X, N, platform="onnx_onnxruntime"))
    assert fit_request([Given("x", Json([1, 2, 3]))], (), model(X, N)).inputs


ROWS = [["1", "2", "3"], ["4", "5", "6"]]


@pytest.mark.parametrize("rows", [ROWS, [["a", "b", "c"], *ROWS]])
def test_a_table_of_numbers_is_a_matrix_with_or_without_a_header(rows):
    tensor = fitted(Table(rows, "rows.csv"), X)
    assert tensor.data.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_columns_go_to_the_inputs_of_their_names():
    table = Table([["name", "other", "n"], ["Bo", "9", "1"], ["Zoë", "9", "2"]], "rows.csv")
    request = fit_request([Given(None, table)], (), model(N, NAME))
    assert {t.name: t.data.tolist() for t in request.inputs} == {"n": [1, 2], "name": [["Bo"], ["Zoë"]]}


def test_a_column_of_text_may_have_its_header():
    for rows in ([["name"], ["a"], ["b"]], [["a"], ["b"]]):
        assert fitted(Table(rows, "r.csv"), NAME).data.tolist() == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([["a", "b", "c"], ["1", "n/a", "3"]], r"r.csv: 'n/a' is not a number \(record 1, for 'x'\)"),
        ([["a", "b", "c"]], "no row below its header"),
        ([["1", "2"]], r"shape \[1, 2\]"),
    ],
)
def test_a_table_that_does_not_fit_says_where(rows, said):
    with pytest.raises(DataError, match=said):
        fitted(Table(rows, "r.csv"), X)
