"""Client requests decoded by a server, and server responses decoded by a client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.statistics import (
    BatchStatistics,
    Duration,
    ModelIndexEntry,
    ModelState,
    ModelStatistics,
)
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor, TensorSpec
from headrace.protocols.oip_grpc import server_info
from headrace.protocols.oip_grpc.requests import decode_request, encode_request
from headrace.protocols.oip_grpc.responses import decode_response, encode_response

NUMBERS = [
    np.float64,
    np.float32,
    np.float16,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint64,
    np.bool_,
]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
NUMERIC = st.sampled_from(NUMBERS).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
TEXT = hnp.arrays(object, SHAPES, elements=st.text() | st.binary())


def as_bytes(array):
    if array.dtype != object:
        return array.tolist()
    return [v.encode() if isinstance(v, str) else v for v in array.ravel().tolist()]


@given(NUMERIC | TEXT, st.dictionaries(st.text(), st.booleans() | st.integers(-5, 5) | st.text()))
def test_request_round_trips(array, parameters):
    parameters = {k: v for k, v in parameters.items() if k not in ("priority", "timeout")}
    sent = InferRequest((Tensor("x", array),), "q", ("y",), parameters)
    wire = decode_request(encode_request("m", "2", sent), now=0.0)
    got = wire.request
    assert (wire.model, wire.version, wire.raw, got.id, got.outputs) == ("m", "2", True, "q", ("y",))
    assert got["x"].shape == array.shape
    np.testing.assert_equal(as_bytes(got["x"]), as_bytes(array))
    assert got.parameters == parameters


def test_bf16_is_sent_as_bf16():
    sent = InferRequest((Tensor("x", np.array([1.5, -2], np.float32)),))
    data = encode_request("m", "", sent, datatypes={"x": "BF16"})
    assert b"BF16" in data
    assert decode_request(data, now=0.0).request["x"].tolist() == [1.5, -2]


@given(NUMERIC | TEXT, st.booleans())
def test_response_is_decoded_raw_and_typed(array, raw):
    sent = InferResponse((Tensor("y", array),), "m", "3", "q", {"tokens": 7})
    got = decode_response(encode_response(sent, raw=raw))
    assert (got.model_name, got.model_version, got.id, got.parameters) == ("m", "3", "q", {"tokens": 7})
    np.testing.assert_equal(as_bytes(got["y"]), as_bytes(array))


def test_server_documents_are_decoded():
    metadata = ModelMetadata(
        "m", "2", "onnx", (TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "BYTES", (-1,)),)
    )
    assert server_info.decode_metadata(server_info.encode_metadata(metadata, ("1", "2"))) == metadata
    entries = (
        ModelIndexEntry("a", "1", ModelState.READY),
        ModelIndexEntry("b", "1", ModelState.UNAVAILABLE, "no weights"),
    )
    assert server_info.decode_index(server_info.encode_index(entries, "inference")) == entries
    statistics = ModelStatistics(
        "m", "1", rows=5, calls=2, success=Duration(3, 4000), queue=Duration(3, 5),
        batches=(BatchStatistics(2, Duration(1, 9)),),
    )  # fmt: skip
    assert server_info.decode_statistics(server_info.encode_statistics([statistics])) == (statistics,)


@for_each("decode", [decode_response, server_info.decode_metadata, server_info.decode_statistics])
def test_malformed_messages_are_refused(decode):
    with pytest.raises(DataError, match=r"not a \w+ message"):
        decode(b"\xff\xff\xff")
