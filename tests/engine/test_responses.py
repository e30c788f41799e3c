"""Responses from the outputs of a request's calls."""

import numpy as np
import pytest

from engine.support import request, rows
from headrace.core.errors import ModelContractError, ModelInputError
from headrace.core.tensor import InferRequest, ModelMetadata, RowFailure, TensorSpec
from headrace.engine.outputs import OutputCheck, ResponseBuilder

respond = ResponseBuilder(OutputCheck("m", ()), ModelMetadata("m", "3"))


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
    """Every row failed, or the request ends a sequence without a step."""
    declared = respond_as(TensorSpec("y", "FP32", (-1, 1)))
    assert declared([], request(rows(1))).outputs == ()
    assert declared([], InferRequest(())).outputs == ()


# Zero rows

NO_ROWS = np.zeros((0, 4), np.float32)


def respond_as(*specs):
    return ResponseBuilder(OutputCheck("m", specs), ModelMetadata("m", "3", outputs=specs))


def described(response):
    return {t.name: (t.datatype, t.data.shape) for t in response.outputs}


def test_zero_rows_have_declared_shapes():
    specs = (
        TensorSpec("fixed", "FP64", (-1, 3)),
        TensorSpec("variable", "INT8", (-1, -1, 2)),
        TensorSpec("text", "BYTES", (-1,)),
        TensorSpec("half", "BF16", (-1, 2)),
        TensorSpec("unknown", "UINT8"),
    )
    assert described(respond_as(*specs)([], request(NO_ROWS))) == {
        "fixed": ("FP64", (0, 3)),
        "variable": ("INT8", (0, 0, 2)),
        "text": ("BYTES", (0,)),
        "half": ("FP32", (0, 2)),
        "unknown": ("UINT8", (0,)),
    }


def test_zero_rows_of_undeclared_outputs_follow_first_response():
    undeclared = respond_as()
    assert described(undeclared([], request(NO_ROWS))) == {}
    given = {"y": np.ones((2, 3)), "text": np.array(["a", "b"], object)}
    undeclared([given], request(rows(1, 2), outputs=("y",)))
    undeclared([{"y": np.ones((2, 7)), "text": given["text"]}], request(rows(1, 2)))
    found = undeclared([], request(NO_ROWS))
    assert described(found) == {"y": ("FP64", (0, 3)), "text": ("BYTES", (0,))}
    assert found["y"].base is None, "it would keep the first outputs in memory"


def test_zero_rows_of_unknown_shape_follow_first_response():
    partly = respond_as(TensorSpec("fixed", "FP32", (-1, 1)), TensorSpec("unknown", "FP32"))
    partly([{"fixed": rows(1), "unknown": np.ones((1, 2, 3), np.float32)}], request())
    assert described(partly([], request(NO_ROWS))) == {
        "fixed": ("FP32", (0, 1)),
        "unknown": ("FP32", (0, 2, 3)),
    }


def test_zero_rows_are_selected_by_name():
    specs = (TensorSpec("y", "FP32", (-1, 1)), TensorSpec("z", "FP32", (-1, 1)))
    assert [*described(respond_as(*specs)([], request(NO_ROWS, outputs=("z",))))] == ["z"]
    with pytest.raises(ModelInputError, match="no output 'w'"):
        respond_as(*specs)([], request(NO_ROWS, outputs=("w",)))


def test_differing_steps_cannot_be_joined():
    with pytest.raises(ModelContractError, match="differ"):
        respond([{"y": rows(1)}, {"z": rows(1)}], request())
