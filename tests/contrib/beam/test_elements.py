"""Elements to requests and back, without Beam."""

import numpy as np
import pytest

from cases import for_each
from headrace.contrib.beam.elements import ONLY_INPUT, ElementFailure, build_batch, element_bytes, inferences
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


def test_rows_of_equal_shapes_share_a_request():
    batch = build_batch([f32(1, 2), f32(3), f32(4, 5), np.float64(6)], {})
    assert [(a.elements, a.request.inputs[0].name) for a in batch.requests] == [
        ((0, 2), ONLY_INPUT),
        ((1,), ONLY_INPUT),
        ((3,), ONLY_INPUT),
    ]
    assert batch.requests[0].request[ONLY_INPUT].tolist() == [[1, 2], [4, 5]]
    assert batch.requests[2].request[ONLY_INPUT].shape == (1,)


def test_order_of_input_names_is_irrelevant():
    batch = build_batch([{"a": f32(1), "b": f32(2)}, {"b": f32(4), "a": f32(3)}], {})
    (request,) = batch.requests
    assert (request.request["a"].tolist(), request.request["b"].tolist()) == ([[1], [3]], [[2], [4]])


def test_text_elements_are_unchanged():
    texts = [{"t": "a\0"}, {"t": b"bc\0"}, {"t": np.str_("def")}]
    (request,) = build_batch(texts, {}).requests
    assert request.request["t"].tolist() == ["a\0", b"bc\0", "def"]
    (request,) = build_batch([{"t": ["a", "bcd"]}], {}).requests
    assert request.request["t"].tolist() == [["a", "bcd"]]


@for_each(
    ("element", "why"),
    [
        ({}, "empty dict"),
        ({"x": [[1], [2, 3]]}, "input 'x' is not an array"),
        ({"x": np.complex64(1)}, "input 'x': numpy dtype complex64 has no"),
        (np.array(["2026-11-22"], "datetime64[D]"), "the element: numpy dtype datetime64"),
        (None, "not a NoneType"),
        (("key", f32(1)), "KeyedModelHandler"),
    ],
)
def test_invalid_element_fails_alone(element, why):
    batch = build_batch([element, f32(1)], {})
    first, second = inferences(batch, [response(7)])
    assert why in first.why
    assert first.attempts == 0
    assert second == {"y": 7}


def test_own_parameters_override_shared_ones():
    own = InferRequest((Tensor("x", f32(1)),), parameters={"b": 3}, deadline=1.0)
    batch = build_batch([own, f32(1)], {"a": 1, "b": 2})
    assert [request.request.parameters for request in batch.requests] == [{"a": 1, "b": 3}, {"a": 1, "b": 2}]
    assert batch.requests[0].request.deadline is None


def test_failures_take_the_places_of_their_rows():
    batch = build_batch([f32(i) for i in range(4)], {})
    partial = response(10, 30, failures=(RowFailure(0, "no", 2), RowFailure(2, "nor this", 3)))
    assert inferences(batch, [partial]) == [
        ElementFailure("no", 2),
        {"y": 10},
        ElementFailure("nor this", 3),
        {"y": 30},
    ]


@for_each("error", [ModelInputError("m", "no"), RefusedRowsError("m", "no")])
def test_request_error_fails_its_rows(error):
    batch = build_batch([f32(1), f32(1, 2), f32(2)], {})
    first, other, second = inferences(batch, [error, response(5)])
    assert first == second == ElementFailure("model m: no")
    assert other == {"y": 5}


def test_model_error_is_raised():
    with pytest.raises(InstanceLostError):
        inferences(build_batch([f32(1)], {}), [InstanceLostError("m", "died")])


@for_each(
    "wrong_response",
    [response(1), response(1, 2, 3), InferResponse((), "m"), response(1, 2, failures=(RowFailure(0, "no"),))],
)
def test_wrong_number_of_predictions_is_refused(wrong_response):
    with pytest.raises(ModelContractError):
        inferences(build_batch([f32(1), f32(2)], {}), [wrong_response])


def test_fully_failed_request_is_a_failure():
    request = InferRequest((Tensor("x", f32(1, 2)),))
    failed = InferResponse((), "m", failures=(RowFailure(0, "no", 3), RowFailure(1, "nor this")))
    assert inferences(build_batch([request], {}), [failed]) == [
        ElementFailure("row 0: no; row 1: nor this", 3)
    ]


def test_element_bytes_sums_all_values():
    assert element_bytes({"a": f32(1, 2), "b": "xy", "c": [1.5]}) == 8 + 2 + 8
