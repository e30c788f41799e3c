"""Columns to requests: every row is in exactly one request or has a reason."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.contrib.ray.inputs import InputColumns, as_column_batch, check_columns
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec


def inputs(*specs, columns=None):
    return InputColumns(
        ModelMetadata("m", inputs=tuple(TensorSpec(*s) for s in specs)), check_columns(columns), "str"
    )


def requests_of(input_columns, **columns):
    return input_columns.requests(
        as_column_batch({name: np.asarray(column) for name, column in columns.items()})
    )


def objects(values):
    input_columns = np.empty(len(values), object)
    input_columns[:] = values
    return input_columns


NUMBER = st.one_of(st.none(), st.integers(-200, 200), st.floats(width=32), st.sampled_from(["x", b"y"]))
TENSOR = st.one_of(NUMBER, st.lists(st.integers(-9, 9), min_size=1, max_size=3).map(np.array))


@given(st.lists(st.tuples(NUMBER, NUMBER)), st.sampled_from(["FP32", "INT8"]))
def test_several_columns_become_one_tensor(rows, datatype):
    """Each row of the tensor equals the row's values in the columns."""
    input_columns = inputs(("x", datatype, (-1, 2)), columns=["a", "b"])
    requests, reasons = requests_of(
        input_columns, a=objects([a for a, _ in rows]), b=objects([b for _, b in rows])
    )
    places = [row for one in requests for row in one.rows.tolist()]
    assert sorted([*places, *reasons]) == list(range(len(rows)))
    for one in requests:
        (tensor,) = one.tensors
        assert tensor.data.shape == (len(one.rows), 2)
        for values, row in zip(tensor.data, one.rows, strict=True):
            np.testing.assert_array_equal(values, np.array(rows[row], values.dtype))
    if datatype == "INT8":
        assert all(
            isinstance(v, int | float) and -128 <= v <= 127 and v == int(v) for p in places for v in rows[p]
        )


@given(st.lists(st.tuples(TENSOR, TENSOR)))
def test_rows_of_equal_shapes_share_a_request(rows):
    """All rows of a request have one shape, and each row has its own values."""
    input_columns = inputs(("a", "FP32", None), ("b", "FP64", (-1, -1)), columns={"a": "p"})
    # Text in the undeclared input would make it a text input.
    rows = [row for row in rows if not isinstance(row[0], str | bytes)]
    columns = {"p": objects([p for p, _ in rows]), "b": objects([b for _, b in rows])}
    requests, reasons = requests_of(input_columns, **columns)
    assert sorted([row for one in requests for row in one.rows.tolist()] + list(reasons)) == list(
        range(len(rows))
    )
    assert len({tuple(t.data.shape[1:] for t in one.tensors) for one in requests}) == len(requests)
    for one in requests:
        for tensor, index in zip(one.tensors, (0, 1), strict=True):
            for values, row in zip(tensor.data, one.rows, strict=True):
                np.testing.assert_array_equal(
                    values, np.array(rows[row][index], values.dtype).reshape(values.shape)
                )


def test_columns_are_matched_by_input_name():
    requests, reasons = requests_of(
        inputs(("a", "FP32", (-1,)), ("b", "INT64", (-1, 1))), a=[1, 2], b=[3, 4], c=[5, 6]
    )
    assert not reasons
    assert {t.name: t.data.tolist() for t in requests[0].tensors} == {"a": [1.0, 2.0], "b": [[3], [4]]}


def test_vectors_of_one_become_single_values():
    requests, _ = requests_of(inputs(("a", "FP32", (-1,))), a=[[1], [2]])
    assert requests[0].tensors[0].data.tolist() == [1.0, 2.0]


@for_each("dense", [True, False])
def test_wrong_shape_fails_its_row_in_any_batch(dense):
    """Ray chooses which rows share a batch. The choice must not change the result of a row."""
    images = [np.ones((3, 2)), np.ones((3, 2) if dense else (2, 2))]
    column = np.stack(images) if dense else objects(images)
    requests, reasons = requests_of(inputs(("x", "FP32", (-1, 2, 2))), x=column)
    assert reasons[0] == "column 'x' has shape [3, 2], but the model takes [2, 2]"
    assert len(reasons) == 2 if dense else requests[0].rows.tolist() == [1]


def test_tensor_in_one_of_several_columns_fails_its_row():
    requests, reasons = requests_of(
        inputs(("x", "FP32", (-1, 2)), columns=["a", "b"]), a=[1, 2], b=objects([1, np.ones(2)])
    )
    assert reasons == {1: "column 'b' has shape [2], but the input takes one value per column"}
    assert requests[0].tensors[0].data.tolist() == [[1, 1]]


def test_empty_batch_makes_no_request():
    assert requests_of(inputs(("x", "FP32", (-1,))), y=np.empty(0)) == ([], {})


@for_each(
    ("specs", "columns", "error", "message"),
    [
        ([("x", "FP32", (-1,))], "age", ConfigError, r'columns=\["age"\]'),
        ([("x", "FP32", (-1,))], [], ConfigError, "names no column"),
        ([("x", "FP32", (-1,))], {"x": []}, ConfigError, "names no column for input 'x'"),
        ([("x", "FP32", (-1,))], {"y": "a"}, ConfigError, "no input 'y' .it takes 'x'"),
        ([("x", "FP32", (-1,)), ("y", "FP32", (-1,))], ["a", "b"], ConfigError, "name the columns of each"),
        ([], None, ConfigError, "does not declare its inputs"),
        ([("x", "FP32", (-1,))], None, ModelInputError, "no column 'x' .it has 'a', 'b', 's'"),
        ([("x", "FP32", (-1, 3))], ["a", "b"], ModelInputError, "names 2 columns"),
        ([("x", "FP32", (-1, 3))], ["a"], ModelInputError, "has one value per row"),
        ([("x", "FP32", None)], ["a", "s"], ModelInputError, "text and numbers"),
    ],
)
def test_columns_that_fit_no_row_are_an_error(specs, columns, error, message):
    with pytest.raises(error, match=message):
        requests_of(inputs(*specs, columns=columns), a=[1], b=[2], s=["t"])
