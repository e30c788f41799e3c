"""From elements to requests and back; without Beam."""

import numpy as np
import pytest

from headrace.beam.elements import ONLY_INPUT, ElementFailure, batch_of, element_bytes, inferences
from headrace.core.errors import (
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    RefusedRowsError,
)
from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor


def f32(*values):
    return np.array(values, np.float32)


def response(*values, failures=()):
    return InferResponse((Tensor("y", f32(*values)),), "m", failures=failures)


def test_rows_that_are_alike_share_a_request():
    batch = batch_of([f32(1, 2), f32(3), f32(4, 5), np.float64(6)], {})
    assert [(a.elements, a.request.inputs[0].name) for a in batch.asked] == [
        ((0, 2), ONLY_INPUT),
        ((1,), ONLY_INPUT),
        ((3,), ONLY_INPUT),
    ]
    assert batch.asked[0].request[ONLY_INPUT].tolist() == [[1, 2], [4, 5]]
    assert batch.asked[2].request[ONLY_INPUT].shape == (1,)


def test_the_order_of_names_makes_no_difference():
    batch = batch_of([{"a": f32(1), "b": f32(2)}, {"b": f32(4), "a": f32(3)}], {})
    (asked,) = batch.asked
    assert (asked.request["a"].tolist(), asked.request["b"].tolist()) == ([[1], [3]], [[2], [4]])


def test_text_stays_what_it_is():
    texts = [{"t": "a\0"}, {"t": b"bc\0"}, {"t": np.str_("def")}]
    (asked,) = batch_of(texts, {}).asked
    assert asked.request["t"].tolist() == ["a\0", b"bc\0", "def"]
    (asked,) = batch_of([{"t": ["a", "bcd"]}], {}).asked
    assert asked.request["t"].tolist() == [["a", "bcd"]]


@pytest.mark.parametrize(
    ("element", "why"),
    [
        ({}, "empty dict"),
        ({"x": [[1], [2, 3]]}, "input 'x' is no array"),
        ({"x": np.complex64(1)}, "input 'x': numpy dtype complex64 has no"),
        (np.array(["2026-11-22"], "datetime64[D]"), "the element: numpy dtype datetime64"),
        (None, "not a NoneType"),
        (("key", f32(1)), "KeyedModelHandler"),
    ],
)
def test_what_is_no_row_fails_alone(element, why):
    batch = batch_of([element, f32(1)], {})
    first, second = inferences(batch, [response(7)])
    assert why in first.why
    assert first.attempts == 0
    assert second == {"y": 7}


def test_parameters_go_with_every_request_and_a_requests_own_come_first():
    own = InferRequest((Tensor("x", f32(1)),), parameters={"b": 3}, deadline=1.0)
    batch = batch_of([own, f32(1)], {"a": 1, "b": 2})
    assert [asked.request.parameters for asked in batch.asked] == [{"a": 1, "b": 3}, {"a": 1, "b": 2}]
    assert batch.asked[0].request.deadline is None


def test_failures_stand_in_the_places_of_their_rows():
    batch = batch_of([f32(i) for i in range(4)], {})
    answer = response(10, 30, failures=(RowFailure(0, "no", 2), RowFailure(2, "nor this", 3)))
    assert inferences(batch, [answer]) == [
        ElementFailure("no", 2),
        {"y": 10},
        ElementFailure("nor this", 3),
        {"y": 30},
    ]


@pytest.mark.parametrize("error", [ModelInputError("m", "no"), RefusedRowsError("m", "no")])
def test_an_error_about_a_request_is_its_rows(error):
    batch = batch_of([f32(1), f32(1, 2), f32(2)], {})
    first, other, second = inferences(batch, [error, response(5)])
    assert first == second == ElementFailure("model m: no")
    assert other == {"y": 5}


def test_an_error_about_the_model_is_everybodys():
    with pytest.raises(InstanceLostError):
        inferences(batch_of([f32(1)], {}), [InstanceLostError("m", "died")])


@pytest.mark.parametrize(
    "answer",
    [response(1), response(1, 2, 3), InferResponse((), "m"), response(1, 2, failures=(RowFailure(0, "no"),))],
)
def test_neither_less_nor_more_than_one_prediction_for_each(answer):
    with pytest.raises(ModelContractError):
        inferences(batch_of([f32(1), f32(2)], {}), [answer])


def test_a_request_of_which_every_row_fails_is_a_failure():
    request = InferRequest((Tensor("x", f32(1, 2)),))
    answer = InferResponse((), "m", failures=(RowFailure(0, "no", 3), RowFailure(1, "nor this")))
    assert inferences(batch_of([request], {}), [answer]) == [ElementFailure("row 0: no; row 1: nor this", 3)]


def test_bytes_of_what_may_be_an_element():
    assert element_bytes({"a": f32(1, 2), "b": "xy", "c": [1.5]}) == 8 + 2 + 8
