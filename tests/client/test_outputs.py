"""What an answer must hold."""

import numpy as np
import pytest

from headrace.client.outputs import called, require_outputs
from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest, Tensor

INPUTS = (Tensor("x", np.zeros(2)),)


def test_outputs_that_were_asked_for_must_be_there():
    request = InferRequest(INPUTS, "r7", ("cow", "cat"))
    require_outputs(request, ["cat", "cow", "dog"], "m")
    require_outputs(InferRequest(INPUTS), [], "m")
    with pytest.raises(ModelContractError, match=r"request r7: .*without output 'cow' \(it has cat, dog\)"):
        require_outputs(request, ["cat", "dog"], "m")


def test_a_request_without_an_id_has_no_name():
    assert (called(InferRequest(INPUTS, "r7")), called(InferRequest(INPUTS))) == ("request r7: ", "")
