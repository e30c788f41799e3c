"""Raised and returned failures. tests/contrib/beam/test_handler.py tests the rest in pipelines."""

import numpy as np
import pytest

from cases import for_each
from headrace.contrib.beam.handler import check_parameters, predict_elements
from headrace.contrib.beam.loaded_model import BatchResponses
from headrace.core.errors import ConfigError, RefusedRowsError
from headrace.core.tensor import InferResponse, RowFailure


def refuse(requests):
    responses = (
        InferResponse((), failures=tuple(RowFailure(row, f"why {row}") for row in range(r.rows)))
        for r in requests
    )
    return BatchResponses("m", tuple(responses))


def test_refusal_error_names_first_elements_and_counts_all():
    with pytest.raises(RefusedRowsError) as raised:
        predict_elements(
            [np.float32(i) for i in range(20)], refuse, inference_args=None, failures="raise", namespace="n"
        )
    assert "20 of 20 elements" in str(raised.value)
    assert "element 7: why 7" in str(raised.value)
    assert "why 8" not in str(raised.value)


def test_returned_failures_keep_their_elements():
    elements = [np.float32(1), np.float32(2)]
    found = predict_elements(iter(elements), refuse, inference_args=None, failures="return", namespace="n")
    assert [(r.example, r.inference.why, r.model_id) for r in found] == [(1, "why 0", "m"), (2, "why 1", "m")]


@for_each("value", [[1], None, {"a": 1}])
def test_parameters_must_be_plain_values(value):
    check_parameters({"a": 1, "b": "c", "d": True, "e": 0.5})
    check_parameters(None)
    with pytest.raises(ConfigError, match="'x' is a"):
        check_parameters({"x": value})
