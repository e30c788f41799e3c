"""Any number of rows through a model with a fixed number of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ModelContractError
from headrace.runtimes.model_io import run_in_fixed_batches


@given(st.integers(1, 40), st.integers(1, 9))
def test_outputs_equal_those_of_one_call(rows, size):
    x = np.arange(2.0 * rows).reshape(rows, 2)
    sizes = []

    def run(tensors):
        sizes.append(len(tensors["x"]))
        return {"sum": tensors["x"].sum(axis=1), "same": tensors["x"]}

    outputs = run_in_fixed_batches(run, {"x": x}, size, "m")
    assert (outputs["sum"].tolist(), outputs["same"].tolist()) == (x.sum(axis=1).tolist(), x.tolist())
    assert sizes == [size] * -(-rows // size)


@for_each("wrong", [np.float32(3), np.ones(1), np.ones((3, 2))])
def test_wrong_number_of_output_rows_is_refused(wrong):
    with pytest.raises(ModelContractError, match=r"model m: output 'y' has shape .* for 2 rows"):
        run_in_fixed_batches(lambda tensors: {"y": np.asarray(wrong)}, {"x": np.ones((4, 1))}, 2, "m")
