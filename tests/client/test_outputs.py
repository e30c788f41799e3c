"""Checks of the outputs of a response."""

import numpy as np
import pytest

from headrace.client.rows import message_prefix, require_outputs, require_rows
from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest, Tensor

INPUTS = (Tensor("x", np.zeros(2)),)


def test_require_outputs_raises_for_a_missing_output():
    request = InferRequest(INPUTS, "r7", ("cow", "cat"))
    require_outputs(request, ["cat", "cow", "dog"], "m")
    require_outputs(InferRequest(INPUTS), [], "m")
    with pytest.raises(ModelContractError, match=r"request r7: .*no output 'cow' \(it has cat, dog\)"):
        require_outputs(request, ["cat", "dog"], "m")


def test_require_rows_raises_for_an_output_without_axes():
    request = InferRequest((Tensor("x", np.zeros(1)),))
    require_rows(request, [Tensor("y", np.zeros(1))], 1, "m")
    with pytest.raises(ModelContractError, match=r"output 'y' has shape \[\] for 1 rows"):
        require_rows(request, [Tensor("y", np.zeros(()))], 1, "m")


def test_message_prefix_is_empty_without_an_id():
    assert (message_prefix(InferRequest(INPUTS, "r7")), message_prefix(InferRequest(INPUTS))) == (
        "request r7: ",
        "",
    )
