"""Responses as ModelInferResponse messages: raw, typed and wrapped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.tensor import InferResponse, RowFailure, Tensor, text_array
from headrace.protocols.oip_grpc.requests import decode_request
from headrace.protocols.oip_grpc.responses import encode_response, encode_stream_error, wrap_stream_response
from headrace.protocols.protobuf import message_class

Response = message_class("ModelInferResponse")
StreamResponse = message_class("ModelStreamInferResponse")
Request = message_class("ModelInferRequest")
DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40))
)


def encode(*arrays, raw=True, names="yzab", **settings):
    tensors = tuple(Tensor(name, array) for name, array in zip(names, arrays, strict=False))
    made = settings.pop("response", InferResponse(tensors, "m", "1", "i"))
    return Response.FromString(encode_response(made, raw=raw, **settings))


def decode(message):
    """Decode a response as a request: both have the same tensors."""
    request = Request()
    for output in message.outputs:
        tensor = request.inputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if output.HasField("contents"):
            tensor.contents.ParseFromString(output.contents.SerializeToString())
    request.raw_input_contents.extend(message.raw_output_contents)
    return decode_request(request.SerializeToString(), now=0.0).request


@given(st.lists(ARRAYS, min_size=1, max_size=3), st.booleans())
def test_responses_round_trip(arrays, raw):
    message = encode(*arrays, raw=raw)
    assert (message.model_name, message.model_version, message.id) == ("m", "1", "i")
    assert len(message.raw_output_contents) == (len(arrays) if raw else 0)
    for tensor, array in zip(decode(message).inputs, arrays, strict=True):
        assert (tensor.data.dtype, tensor.data.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(tensor.data, array)


@for_each("raw", [True, False])
def test_text_and_bytes_round_trip(raw):
    assert decode(encode(text_array(["é", b"\xff"]), raw=raw))["y"].tolist() == ["é".encode(), b"\xff"]


def test_strided_and_big_endian_arrays_encode_by_value():
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    for raw in (True, False):
        np.testing.assert_array_equal(decode(encode(array, raw=raw))["y"], array)


def test_long_lengths_are_encoded():
    for size in (127, 128, 20_000, 3_000_000):
        (raw,) = encode(np.zeros(size, np.uint8)).raw_output_contents
        assert len(raw) == size


def test_half_floats_make_the_whole_response_raw():
    message = encode(np.ones(2, np.float16), np.ones(2, np.float32), raw=False)
    assert [len(raw) for raw in message.raw_output_contents] == [4, 8]


def test_declared_bf16_is_rounded_and_raw():
    message = encode(np.array([1.0], np.float32), raw=False, datatypes={"y": "BF16"})
    assert (message.outputs[0].datatype, message.raw_output_contents[0]) == ("BF16", b"\x80\x3f")


def test_request_id_is_the_default_response_id():
    assert encode(response=InferResponse((), "m"), id="request").id == "request"
    assert encode(response=InferResponse((), "m", None, "own"), id="request").id == "own"


def test_parameters_of_every_type_encode():
    parameters = {
        "b": True,
        "i": -1,
        "u": 2**63,
        "d": 0.5,
        "s": "x",
        "n": np.float32(2),
        "none": None,
        "l": [1, 2],
        "huge": 2**64 - 1,
    }
    found = encode(response=InferResponse((), "m", parameters=parameters)).parameters
    assert found["b"].bool_param is True
    assert (found["i"].int64_param, found["u"].uint64_param) == (-1, 2**63)
    assert (found["d"].double_param, found["n"].double_param) == (0.5, 2.0)
    assert (found["s"].string_param, found["l"].string_param) == ("x", "[1,2]")
    assert found["huge"].uint64_param == 2**64 - 1
    assert "none" not in found


@for_each("value", [object(), 2**70, "\ud800", {"a": {1, 2}}])
def test_unencodable_parameter_is_named(value):
    with pytest.raises(DataError, match="parameter 'p'"):
        encode(response=InferResponse((), "m", parameters={"p": value}))


@for_each("raw", [True, False])
@for_each("value", [3, "\ud800"])
def test_invalid_bytes_element_is_named(raw, value):
    with pytest.raises(DataError, match="'y': element 1"):
        encode(text_array(["a", value]), raw=raw)


def test_failed_rows_are_refused():
    with pytest.raises(ValueError, match="1 rows failed"):
        encode(response=InferResponse((), failures=(RowFailure(0, "bad"),)))


def test_unknown_dtype_is_a_type_error():
    with pytest.raises(TypeError, match="complex"):
        encode(np.ones(1, np.complex64))


def test_response_is_wrapped_for_triton():
    inner = encode_response(
        InferResponse((Tensor("y", np.zeros(100, np.float32)),), "m"), raw=True, final=False
    )
    message = StreamResponse.FromString(wrap_stream_response(inner))
    assert message.infer_response.SerializeToString() == Response.FromString(inner).SerializeToString()
    assert message.infer_response.parameters["triton_final_response"].bool_param is False
    assert message.error_message == ""


def test_stream_error_has_the_id_of_its_request():
    message = StreamResponse.FromString(encode_stream_error("no", model="m", id="7"))
    assert (message.error_message, message.infer_response.id, message.infer_response.model_name) == (
        "no",
        "7",
        "m",
    )
    assert message.infer_response.parameters["triton_final_response"].bool_param is True
