"""Columns to requests: every row in one of them, or with a reason; never both, never neither."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.ray.batch import batch_of
from headrace.ray.inputs import InputColumns, check_columns


def inputs(*specs, columns=None):
    return InputColumns(
        ModelMetadata("m", inputs=tuple(TensorSpec(*s) for s in specs)), check_columns(columns), "str"
    )


def asked(made, **columns):
    return made.asked(batch_of({name: np.asarray(column) for name, column in columns.items()}))


def objects(values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


NUMBER = st.one_of(st.none(), st.integers(-200, 200), st.floats(width=32), st.sampled_from(["x", b"y"]))
TENSOR = st.one_of(NUMBER, st.lists(st.integers(-9, 9), min_size=1, max_size=3).map(np.array))


@settings(deadline=None)  # pyarrow's first import, or a busy machine, may fall into an example
@given(st.lists(st.tuples(NUMBER, NUMBER)), st.sampled_from(["FP32", "INT8"]))
def test_several_columns_become_one_tensor(rows, datatype):
    """Row by row it is what the cells of that row alone would be."""
    made = inputs(("x", datatype, (-1, 2)), columns=["a", "b"])
    requests, whys = asked(made, a=objects([a for a, _ in rows]), b=objects([b for _, b in rows]))
    places = [row for one in requests for row in one.rows.tolist()]
    assert sorted([*places, *whys]) == list(range(len(rows)))
    for one in requests:
        (tensor,) = one.tensors
        assert tensor.data.shape == (len(one.rows), 2)
        for values, row in zip(tensor.data, one.rows, strict=True):
            np.testing.assert_array_equal(values, np.array(rows[row], values.dtype))
    if datatype == "INT8":
        assert all(
            isinstance(v, int | float) and -128 <= v <= 127 and v == int(v) for p in places for v in rows[p]
        )


@settings(deadline=None)  # pyarrow's first import, or a busy machine, may fall into an example
@given(st.lists(st.tuples(TENSOR, TENSOR)))
def test_rows_of_one_shape_go_together(rows):
    """Inputs of any shape: each request has one, and each row its own values."""
    made = inputs(("a", "FP32", None), ("b", "FP64", (-1, -1)), columns={"a": "p"})
    # What is guessed would be text with these.
    rows = [row for row in rows if not isinstance(row[0], str | bytes)]
    columns = {"p": objects([p for p, _ in rows]), "b": objects([b for _, b in rows])}
    requests, whys = asked(made, **columns)
    assert sorted([row for one in requests for row in one.rows.tolist()] + list(whys)) == list(
        range(len(rows))
    )
    assert len({tuple(t.data.shape[1:] for t in one.tensors) for one in requests}) == len(requests)
    for one in requests:
        for tensor, index in zip(one.tensors, (0, 1), strict=True):
            for values, row in zip(tensor.data, one.rows, strict=True):
                np.testing.assert_array_equal(
                    values, np.array(rows[row][index], values.dtype).reshape(values.shape)
                )


def test_names_are_the_inputs():
    requests, whys = asked(
        inputs(("a", "FP32", (-1,)), ("b", "INT64", (-1, 1))), a=[1, 2], b=[3, 4], c=[5, 6]
    )
    assert not whys
    assert {t.name: t.data.tolist() for t in requests[0].tensors} == {"a": [1.0, 2.0], "b": [[3], [4]]}


def test_vectors_of_one_are_single_values_where_the_model_has_it_so():
    requests, _ = asked(inputs(("a", "FP32", (-1,))), a=[[1], [2]])
    assert requests[0].tensors[0].data.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dense", [True, False])
def test_a_tensor_of_another_shape_costs_its_row_also_where_all_are(dense):
    """Which rows share a batch is Ray's choice: it must not change what happens to one."""
    images = [np.ones((3, 2)), np.ones((3, 2) if dense else (2, 2))]
    column = np.stack(images) if dense else objects(images)
    requests, whys = asked(inputs(("x", "FP32", (-1, 2, 2))), x=column)
    assert whys[0] == "column 'x' is [3, 2], where the model takes [2, 2]"
    assert len(whys) == 2 if dense else requests[0].rows.tolist() == [1]


def test_tensors_are_not_taken_for_one_of_several_columns():
    requests, whys = asked(
        inputs(("x", "FP32", (-1, 2)), columns=["a", "b"]), a=[1, 2], b=objects([1, np.ones(2)])
    )
    assert whys == {1: "column 'b' is [2], where one value is taken of each column"}
    assert requests[0].tensors[0].data.tolist() == [[1, 1]]


def test_no_rows_no_request():
    assert asked(inputs(("x", "FP32", (-1,))), y=np.empty(0)) == ([], {})


@pytest.mark.parametrize(
    ("specs", "columns", "error", "says"),
    [
        ([("x", "FP32", (-1,))], "age", ConfigError, r'columns=\["age"\]'),
        ([("x", "FP32", (-1,))], [], ConfigError, "names no column"),
        ([("x", "FP32", (-1,))], {"x": []}, ConfigError, "names no column for input 'x'"),
        ([("x", "FP32", (-1,))], {"y": "a"}, ConfigError, "no input 'y' .it takes 'x'"),
        ([("x", "FP32", (-1,)), ("y", "FP32", (-1,))], ["a", "b"], ConfigError, "name the columns for each"),
        ([], None, ConfigError, "does not tell its inputs"),
        ([("x", "FP32", (-1,))], None, ModelInputError, "no column 'x' .it has 'a', 'b', 's'"),
        ([("x", "FP32", (-1, 3))], ["a", "b"], ModelInputError, "names 2 columns"),
        ([("x", "FP32", (-1, 3))], ["a"], ModelInputError, "holds one value a row"),
        ([("x", "FP32", None)], ["a", "s"], ModelInputError, "text and numbers"),
    ],
)
def test_what_could_fit_in_no_row_is_an_error(specs, columns, error, says):
    with pytest.raises(error, match=says):
        asked(inputs(*specs, columns=columns), a=[1], b=[2], s=["t"])
