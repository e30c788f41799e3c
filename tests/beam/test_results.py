"""What is raised and what is returned; the rest of it tests/beam/test_handler.py does in pipelines."""

import numpy as np
import pytest

from headrace.beam.loaded import Answers
from headrace.beam.results import checked_parameters, results
from headrace.core.errors import ConfigError, RefusedRowsError
from headrace.core.tensor import InferResponse, RowFailure


def refuse(requests):
    every = (
        InferResponse((), failures=tuple(RowFailure(row, f"why {row}") for row in range(r.rows)))
        for r in requests
    )
    return Answers("m", tuple(every))


def test_the_first_refusals_are_named_and_all_are_counted():
    with pytest.raises(RefusedRowsError) as raised:
        results(
            [np.float32(i) for i in range(20)], refuse, inference_args=None, failures="raise", namespace="n"
        )
    assert "20 of 20 elements" in str(raised.value)
    assert "element 7: why 7" in str(raised.value)
    assert "why 8" not in str(raised.value)


def test_returned_they_stand_beside_their_elements():
    elements = [np.float32(1), np.float32(2)]
    found = results(iter(elements), refuse, inference_args=None, failures="return", namespace="n")
    assert [(r.example, r.inference.why, r.model_id) for r in found] == [(1, "why 0", "m"), (2, "why 1", "m")]


@pytest.mark.parametrize("value", [[1], None, {"a": 1}])
def test_parameters_are_plain_values(value):
    checked_parameters({"a": 1, "b": "c", "d": True, "e": 0.5})
    checked_parameters(None)
    with pytest.raises(ConfigError, match="'x' is a"):
        checked_parameters({"x": value})
