import numpy as np
import pytest

from headrace.core.errors import ModelContractError
from headrace.core.tensor import InferRequest, InferResponse, RowFailure, Tensor
from headrace.runs.sequences import end_request, join_responses, split_request

REQUEST = InferRequest(
    (Tensor("x", np.arange(12).reshape(6, 2)), Tensor("sequence_id", np.array([*"aababb"], object))),
    id="batch-7",
)


def answer(part: InferRequest, refused: tuple[int, ...] = (), name: str = "y") -> InferResponse:
    good = np.delete(part["x"][:, 0] * 10, refused)
    outputs = (Tensor(name, good),) if len(good) else ()
    return InferResponse(outputs, "m", id=part.id, failures=tuple(RowFailure(row, "no") for row in refused))


def test_end_request_has_no_rows():
    request = end_request("a")
    assert request.inputs == ()
    assert request.parameters == {"sequence_id": "a", "sequence_end": True}


def test_request_is_split_before_rows():
    parts = split_request(REQUEST, (2, 5))
    assert [part.rows for part in parts] == [2, 3, 1]
    assert [part.id for part in parts] == ["batch-7.0", "batch-7.1", "batch-7.2"]
    assert "".join(id for part in parts for id in part["sequence_id"]) == "aababb"
    assert np.concatenate([part["x"] for part in parts]).tolist() == REQUEST["x"].tolist()


def test_joined_responses_have_failures_at_their_rows():
    refused = [(1,), (0, 1, 2), ()]
    made = join_responses(
        REQUEST, (2, 5), [answer(p, r) for p, r in zip(split_request(REQUEST, (2, 5)), refused, strict=True)]
    )
    assert made["y"].tolist() == [0, 100]
    assert [failure.row for failure in made.failures] == [1, 2, 3, 4]
    assert (made.id, made.model_name) == ("batch-7", "m")


def test_joined_failures_have_no_outputs():
    parts = split_request(REQUEST, (3,))
    made = join_responses(REQUEST, (3,), [answer(part, (0, 1, 2)) for part in parts])
    assert made.outputs == ()
    assert [failure.row for failure in made.failures] == list(range(6))


def test_responses_with_different_outputs_raise():
    one, other = split_request(REQUEST, (3,))
    with pytest.raises(ModelContractError, match="different outputs: y, then z"):
        join_responses(REQUEST, (3,), [answer(one), answer(other, name="z")])
