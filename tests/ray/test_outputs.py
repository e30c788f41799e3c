"""Answers to columns: every row's own values, whichever request they came in."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import InferResponse, ModelMetadata, RowFailure, Tensor, TensorSpec
from headrace.ray.inputs import Asked
from headrace.ray.outputs import OutputColumns, answered_rows, check_answer, check_outputs


def answer(rows, failed=(), **outputs):
    """The answer to a request for `rows`, of which the indexes `failed` failed."""
    failures = tuple(RowFailure(row, "why") for row in failed)
    tensors = tuple(Tensor(name, np.asarray(data)) for name, data in outputs.items())
    return Asked((), np.array(rows)), InferResponse(tensors, failures=failures)


def outputs(*specs, names=None, nullable=True):
    metadata = ModelMetadata("m", outputs=tuple(TensorSpec(*s) for s in specs))
    return OutputColumns(metadata, check_outputs(names), nullable=nullable)


@settings(deadline=None)  # pyarrow's first import, or a busy machine, may fall into an example
@given(st.lists(st.tuples(st.sampled_from("ab-"), st.booleans()), max_size=20), st.booleans())
def test_every_value_is_in_its_rows_place(rows, nullable):
    """`-` is a row that was in no request, False one that failed in its own."""
    answers = []
    for request in "ab":
        places = [i for i, (which, _) in enumerate(rows) if which == request]
        good = [i for i in places if rows[i][1]]
        failed = [k for k, i in enumerate(places) if not rows[i][1]]
        values = (
            {"y": np.array(good, np.int32), "v": np.array([[i, i] for i in good], np.float32)} if good else {}
        )
        if places:
            answers.append(answer(places, failed, **values))
    made = outputs(("y", "INT32", (-1,)), ("v", "FP32", (-1, 2)), nullable=nullable).columns(
        len(rows), answers
    )
    assert len(made["y"]) == len(made["v"]) == len(rows)
    for i, (which, good) in enumerate(rows):
        if which != "-" and good:
            assert int(made["y"][i].as_py() if nullable else made["y"][i]) == i
            assert made["v"][i].tolist() == [i, i]
        else:
            assert np.isnan(made["v"][i]).all()
            if nullable:
                assert made["y"][i].as_py() is None


@pytest.mark.parametrize(
    ("spec", "arrow"),
    [
        (("y", "INT64", (-1,)), pa.int64()),
        (("y", "FP16", (-1,)), pa.float16()),
        (("y", "BOOL", None), pa.bool_()),
        (("y", "BYTES", (-1,)), pa.string()),
    ],
)
@pytest.mark.parametrize("rows", [0, 3])
def test_a_batch_in_which_every_row_failed_has_nulls_of_the_outputs_type(spec, arrow, rows):
    """A column whose type changes from block to block breaks whoever reads the files."""
    made = outputs(spec).columns(rows, [])
    assert made["y"].type == arrow
    assert made["y"].null_count == len(made["y"]) == rows


def test_what_is_not_declared_is_known_once_it_was_seen():
    of = outputs()
    assert of.columns(2, []) == {}
    of.columns(1, [answer([0], y=[1])])
    assert of.columns(2, [])["y"].type == pa.int64()
    assert of.known == ["y"]


def test_an_output_that_is_named_is_there_before_anything_is_known_of_it():
    assert outputs(names=["y"]).columns(2, [])["y"].type == pa.null()


def test_rows_of_different_shapes_are_objects():
    made = outputs().columns(3, [answer([0, 2], y=np.zeros((2, 2))), answer([1], y=np.ones((1, 3)))])
    assert [row.tolist() for row in made["y"]] == [[0, 0], [1, 1, 1], [0, 0]]


def test_bytes_and_text():
    made = outputs().columns(2, [answer([0], y=np.array(["a"], object), b=np.array([b"\xff"], object))])
    assert (made["y"].type, made["y"].to_pylist()) == (pa.string(), ["a", None])
    assert (made["b"].type, made["b"].to_pylist()) == (pa.binary(), [b"\xff", None])


def test_text_of_an_endpoint_comes_as_bytes_and_is_text_again():
    made = OutputColumns(ModelMetadata("m"), None, nullable=False, decode=True)
    text, image = np.array(["é".encode(), b"a"], object), np.array([[b"\xff"], [b"a"]], object)
    out = made.columns(2, [answer([0, 1], t=text, i=image)])
    assert out["t"].tolist() == ["é", "a"]
    assert out["i"] is image
    assert made.columns(1, [answer([0], t=text[1:], i=image[1:])])["i"].tolist() == [[b"a"]]


def test_without_nulls_arrays_are_handed_on():
    response = answer([0, 1], y=[1, 2])
    assert outputs(nullable=False).columns(2, [response])["y"] is response[1]["y"]


def test_outputs_are_renamed():
    made = outputs(("y", "FP32", (-1,)), ("z", "FP32", (-1,)), names={"y": "score"}, nullable=False)
    assert made.known == ["score"]
    assert list(made.columns(1, [answer([0], y=[1.0])])) == ["score"]


def test_outputs_that_come_and_go_are_an_error():
    with pytest.raises(ModelContractError, match="differ from call to call"):
        outputs().columns(2, [answer([0], y=[1]), answer([1], z=[1])])


@pytest.mark.parametrize(
    ("names", "says"),
    [("y", r'outputs=\["y"\]'), ([], "names no output"), ({"y": "a", "z": "a"}, "one column")],
)
def test_names_that_cannot_be(names, says):
    with pytest.raises(ConfigError, match=says):
        check_outputs(names)


@pytest.mark.parametrize(
    "wrong",
    [
        answer([0, 1], y=[1]),
        answer([0, 1], y=[1, 2, 3]),
        answer([0, 1], [0], y=[1, 2]),
        answer([0, 1], [0, 0], y=[1]),
        answer([0, 1], [5], y=[1]),
        answer([0, 1]),
    ],
)
def test_an_answer_of_another_number_of_rows_is_an_error(wrong):
    with pytest.raises(ModelContractError, match="asked for 2 rows"):
        check_answer(*wrong, "m")


def test_rows_that_were_answered():
    right = answer([3, 5, 9], [1], y=[1, 2])
    check_answer(*right, "m")
    assert answered_rows(*right).tolist() == [3, 9]
