"""The generate extension."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.tensor import InferResponse, ModelMetadata, Tensor, TensorSpec, text_array
from headrace.protocols.plain_bodies import (
    VALUES_MAX,
    decode_generate_request,
    encode_generate_response,
    is_infer_request,
)
from protocols.test_oip_documents import JSON

ONE = ModelMetadata("m", inputs=(TensorSpec("prompt", "BYTES", (-1,)),))
WIDE = ModelMetadata("m", inputs=(TensorSpec("prompt", "BYTES", (-1, -1)),))
MANY = ModelMetadata(
    "m",
    inputs=(
        TensorSpec("text_input", "BYTES", (-1, 1)),
        TensorSpec("temperature", "FP32", (-1, 1)),
        TensorSpec("k", "INT32", (-1,)),
    ),
)
UNKNOWN = ModelMetadata("m")


def decode(document, metadata=ONE):
    return decode_generate_request(orjson.dumps(document), metadata)


def test_text_feeds_the_only_input():
    found = decode({"text_input": "a", "id": "i", "parameters": {"p": 1}, "q": 2})
    (tensor,) = found.inputs
    assert (tensor.name, tensor.data.tolist(), tensor.data.dtype) == ("prompt", ["a"], object)
    assert (found.id, found.parameters) == ("i", {"p": 1, "q": 2})


def test_list_is_rows_or_one_row_by_declaration():
    assert decode({"text_input": ["a", "b"]})["prompt"].shape == (2,)
    assert decode({"text_input": ["a", "b"]}, WIDE)["prompt"].shape == (1, 2)
    assert decode({"text_input": "a"}, UNKNOWN)["text_input"].tolist() == ["a"]


def test_other_inputs_match_by_name_and_type():
    found = decode({"text_input": "a", "temperature": 0.5, "k": [1, 2], "top_p": 1}, MANY)
    assert found["temperature"].dtype == np.float32
    assert found["k"].tolist() == [1, 2]
    assert found.parameters == {"top_p": 1}


@for_each(
    ("document", "why"),
    [
        ({}, "needs 'text_input'"),
        ({"id": "x", "parameters": {}}, "needs 'text_input'"),
        ({"text_input": 1}, "FP32|BYTES values cannot be int|must be text"),
        ({"text_input": None}, "cannot be null|must be text"),
        ({"text_input": ["a", 1]}, "must be text or a list of texts"),
        ({"text_input": ["a", ["b"]]}, "must be text or a list of texts"),
        ({"text_input": "a", "id": 3}, "'id' must be a string"),
        ({"text_input": "a", "parameters": []}, "must be an object"),
        ([], "must be a JSON object"),
    ],
)
def test_malformed_body_is_refused(document, why):
    with pytest.raises(DataError, match=why):
        decode(document)


def test_values_are_bounded():
    with pytest.raises(DataError, match=f"the limit is {VALUES_MAX}"):
        decode({"text_input": [""] * (VALUES_MAX + 1)})


@for_each(
    ("body", "inference"),
    [
        (b'{"inputs":[{"name":"x"}]}', True),
        (b'{"inputs":[]}', True),
        (b'{"inputs":["text"]}', False),
        (b'{"inputs":{}}', False),
        (b'{"text_input":"a"}', False),
        (b"[]", False),
        (b"{", False),
    ],
)
def test_inference_requests_are_recognized(body, inference):
    assert is_infer_request(body) is inference


def test_response_has_outputs_by_name():
    response = InferResponse(
        (
            Tensor("answer", text_array(["é"])),
            Tensor("score", np.array([[0.5]], np.float32)),
            Tensor("ids", np.arange(3)[::-1]),
        ),
        "m",
        "2",
        "i",
    )
    assert encode_generate_response(response) == (
        '{"model_name":"m","model_version":"2","id":"i","text_output":"é","score":0.5,"ids":[2,1,0]}'.encode()
    )


def test_only_the_first_text_is_text_output():
    both = InferResponse(
        (Tensor("a", text_array(["x"])), Tensor("text_output", text_array([b"y", b"\xff"]))), "m"
    )
    assert orjson.loads(encode_generate_response(both)) == {
        "model_name": "m",
        "a": "x",
        "text_output": ["y", "\ufffd"],
    }
    assert orjson.loads(encode_generate_response(InferResponse((), "m"))) == {"model_name": "m"}


def test_unencodable_response_is_an_error():
    with pytest.raises(DataError):
        encode_generate_response(InferResponse((Tensor("x", text_array(["\ud800"])),), "m"))


@given(
    st.binary(max_size=60)
    | JSON.map(orjson.dumps)
    | st.dictionaries(st.sampled_from(["text_input", "id", "parameters", "temperature", "k", "z"]), JSON).map(
        orjson.dumps
    ),
    st.sampled_from([ONE, WIDE, MANY, UNKNOWN]),
)
def test_any_body_decodes_or_raises_data_error(body, metadata):
    try:
        found = decode_generate_request(body, metadata)
    except DataError:
        return
    assert found.inputs
    assert all(t.data.ndim >= 1 for t in found.inputs)
    is_infer_request(body)


def test_sequence_parameters_stand_beside_the_text():
    metadata = ModelMetadata("m", inputs=(TensorSpec("text", "BYTES", (-1,)),))
    request = decode_generate_request(
        b'{"text_input": "a", "sequence_id": 7, "sequence_start": true}', metadata
    )
    assert request.parameters == {"sequence_id": 7, "sequence_start": True}
    ended = decode_generate_request(b'{"sequence_id": 7, "sequence_end": true}', metadata)
    assert ended.inputs == ()
    parameters = {"sequence_id": 7, "sequence_end": True, "other": 1}
    document = orjson.loads(encode_generate_response(InferResponse((), "m", parameters=parameters)))
    assert document == {"model_name": "m", "sequence_id": 7, "sequence_end": True}
