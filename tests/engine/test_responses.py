"""Responses from the outputs of a request's calls."""

import pytest

from engine.support import request, rows
from headrace.core.errors import ModelContractError, ModelInputError
from headrace.core.tensor import RowFailure
from headrace.engine.outputs import OutputCheck
from headrace.engine.responses import ResponseBuilder

respond = ResponseBuilder(OutputCheck("m", ()), "m", "3")


def test_rows_are_joined_and_named():
    failures = (RowFailure(2, "odd"),)
    answer = respond([{"y": rows(1)}, {"y": rows(2)}], request(id="r"), failures, {"sequence_id": "a"})
    assert answer["y"].ravel().tolist() == [1.0, 2.0]
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "3", "r")
    assert (answer.failures, dict(answer.parameters)) == (failures, {"sequence_id": "a"})


def test_single_output_is_not_copied():
    data = rows(1)
    assert respond([{"y": data}], request())["y"] is data


def test_named_outputs_are_selected():
    given = [{"y": rows(1), "z": rows(2)}]
    assert [t.name for t in respond(given, request(outputs=("z",))).outputs] == ["z"]
    with pytest.raises(ModelInputError, match="no output 'w'"):
        respond(given, request(outputs=("w",)))


def test_no_outputs_are_an_empty_response():
    assert respond([], request(outputs=("z",))).outputs == ()


def test_differing_steps_cannot_be_joined():
    with pytest.raises(ModelContractError, match="differ"):
        respond([{"y": rows(1)}, {"z": rows(1)}], request())
