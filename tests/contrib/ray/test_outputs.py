"""Responses to columns: every row gets its own values from any request."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.contrib.ray.inputs import RowsRequest
from headrace.contrib.ray.outputs import OutputColumns, check_outputs, check_response, predicted_rows
from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import InferResponse, ModelMetadata, RowFailure, Tensor, TensorSpec


def response_for(rows, failed=(), **outputs):
    """Return a request for `rows` and its response, in which the rows at the indexes `failed`
    failed.
    """
    failures = tuple(RowFailure(row, "why") for row in failed)
    tensors = tuple(Tensor(name, np.asarray(data)) for name, data in outputs.items())
    return RowsRequest((), np.array(rows)), InferResponse(tensors, failures=failures)


def outputs(*specs, names=None, nullable=True):
    metadata = ModelMetadata("m", outputs=tuple(TensorSpec(*s) for s in specs))
    return OutputColumns(metadata, check_outputs(names), nullable=nullable)


@given(st.lists(st.tuples(st.sampled_from("ab-"), st.booleans()), max_size=20), st.booleans())
def test_values_return_to_their_rows(rows, nullable):
    """`-` marks a row without a request, False a row that failed in its request."""
    responses = []
    for request in "ab":
        places = [i for i, (request_name, _) in enumerate(rows) if request_name == request]
        succeeded = [i for i in places if rows[i][1]]
        failed = [k for k, i in enumerate(places) if not rows[i][1]]
        values = (
            {"y": np.array(succeeded, np.int32), "v": np.array([[i, i] for i in succeeded], np.float32)}
            if succeeded
            else {}
        )
        if places:
            responses.append(response_for(places, failed, **values))
    columns = outputs(("y", "INT32", (-1,)), ("v", "FP32", (-1, 2)), nullable=nullable).columns(
        len(rows), responses
    )
    assert len(columns["y"]) == len(columns["v"]) == len(rows)
    for i, (request_name, succeeded) in enumerate(rows):
        if request_name != "-" and succeeded:
            assert int(columns["y"][i].as_py() if nullable else columns["y"][i]) == i
            assert columns["v"][i].tolist() == [i, i]
        else:
            assert np.isnan(columns["v"][i]).all()
            if nullable:
                assert columns["y"][i].as_py() is None


@for_each(
    ("spec", "arrow"),
    [
        (("y", "INT64", (-1,)), pa.int64()),
        (("y", "FP16", (-1,)), pa.float16()),
        (("y", "BOOL", None), pa.bool_()),
        (("y", "BYTES", (-1,)), pa.string()),
    ],
)
@for_each("rows", [0, 3])
def test_fully_failed_batch_has_typed_nulls(spec, arrow, rows):
    """A column whose type changes from block to block breaks readers of the files."""
    columns = outputs(spec).columns(rows, [])
    assert columns["y"].type == arrow
    assert columns["y"].null_count == len(columns["y"]) == rows


def test_undeclared_output_is_remembered():
    of = outputs()
    assert of.columns(2, []) == {}
    of.columns(1, [response_for([0], y=[1])])
    assert of.columns(2, [])["y"].type == pa.int64()
    assert of.known == ["y"]


def test_named_output_of_unknown_type_is_null_column():
    assert outputs(names=["y"]).columns(2, [])["y"].type == pa.null()


def test_rows_of_different_shapes_become_objects():
    columns = outputs().columns(
        3, [response_for([0, 2], y=np.zeros((2, 2))), response_for([1], y=np.ones((1, 3)))]
    )
    assert [row.tolist() for row in columns["y"]] == [[0, 0], [1, 1, 1], [0, 0]]


def test_bytes_and_text_have_arrow_types():
    columns = outputs().columns(
        2, [response_for([0], y=np.array(["a"], object), b=np.array([b"\xff"], object))]
    )
    assert (columns["y"].type, columns["y"].to_pylist()) == (pa.string(), ["a", None])
    assert (columns["b"].type, columns["b"].to_pylist()) == (pa.binary(), [b"\xff", None])


def test_endpoint_bytes_are_decoded_to_text():
    columns = OutputColumns(ModelMetadata("m"), None, nullable=False, decode=True)
    text, image = np.array(["é".encode(), b"a"], object), np.array([[b"\xff"], [b"a"]], object)
    out = columns.columns(2, [response_for([0, 1], t=text, i=image)])
    assert out["t"].tolist() == ["é", "a"]
    assert out["i"] is image
    assert columns.columns(1, [response_for([0], t=text[1:], i=image[1:])])["i"].tolist() == [[b"a"]]


def test_arrays_without_nulls_are_not_copied():
    response = response_for([0, 1], y=[1, 2])
    assert outputs(nullable=False).columns(2, [response])["y"] is response[1]["y"]


def test_outputs_are_renamed():
    columns = outputs(("y", "FP32", (-1,)), ("z", "FP32", (-1,)), names={"y": "score"}, nullable=False)
    assert columns.known == ["score"]
    assert list(columns.columns(1, [response_for([0], y=[1.0])])) == ["score"]


def test_outputs_that_differ_between_calls_are_an_error():
    with pytest.raises(ModelContractError, match="differ between calls"):
        outputs().columns(2, [response_for([0], y=[1]), response_for([1], z=[1])])


@for_each(
    ("names", "message"),
    [("y", r'outputs=\["y"\]'), ([], "names no output"), ({"y": "a", "z": "a"}, "one column")],
)
def test_invalid_output_names_are_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        check_outputs(names)


@for_each(
    "invalid",
    [
        response_for([0, 1], y=[1]),
        response_for([0, 1], y=[1, 2, 3]),
        response_for([0, 1], [0], y=[1, 2]),
        response_for([0, 1], [0, 0], y=[1]),
        response_for([0, 1], [5], y=[1]),
        response_for([0, 1]),
    ],
)
def test_response_with_wrong_row_count_is_refused(invalid):
    with pytest.raises(ModelContractError, match="for 2 rows it returned"):
        check_response(*invalid, "m")


def test_predicted_rows_exclude_failed_rows():
    valid = response_for([3, 5, 9], [1], y=[1, 2])
    check_response(*valid, "m")
    assert predicted_rows(*valid).tolist() == [3, 9]
