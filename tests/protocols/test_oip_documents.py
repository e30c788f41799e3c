"""Documents about a server, and requests to its model repository."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.statistics import (
    BatchStatistics,
    Duration,
    ModelIndexEntry,
    ModelState,
    ModelStatistics,
)
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.oip_documents import (
    decode_index_request,
    decode_load_request,
    decode_metadata,
    encode_index,
    encode_model_metadata,
    encode_server_metadata,
    encode_statistics,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


def test_server_metadata_document():
    assert (
        encode_server_metadata("n", "1", ("a", "b")) == b'{"name":"n","version":"1","extensions":["a","b"]}'
    )


def test_model_metadata_round_trips():
    specs = (TensorSpec("x", "BF16", (-1, 3)), TensorSpec("t", "BYTES", (-1,)), TensorSpec("u", "FP32"))
    metadata = ModelMetadata("m", "7", "onnx", specs, specs[:1])
    body = encode_model_metadata(metadata, ("2", "7"))
    found = decode_metadata(body)
    assert (found.name, found.version, found.platform, found.outputs) == ("m", "7", "onnx", specs[:1])
    assert found.inputs == (*specs[:2], TensorSpec("u", "FP32", (-1,)))
    assert orjson.loads(body)["versions"] == ["2", "7"]


def test_index_has_state_and_reason():
    entries = [
        ModelIndexEntry("m", "1", ModelState.READY, ""),
        ModelIndexEntry("m", "2", ModelState.UNAVAILABLE, "why"),
    ]
    assert orjson.loads(encode_index(entries)) == [
        {"name": "m", "version": "1", "state": "READY", "reason": ""},
        {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "why"},
    ]


def test_statistics_document_matches_triton():
    statistics = ModelStatistics(
        "m",
        "1",
        last_inference_ms=5,
        rows=10,
        failed_rows=2,
        calls=3,
        success=Duration(4, 40),
        queue=Duration(5, 50),
        batches=(BatchStatistics(8, Duration(1, 9)),),
    )
    (found,) = orjson.loads(encode_statistics([statistics]))["model_stats"]
    assert (found["name"], found["version"], found["last_inference"]) == ("m", "1", 5)
    assert (found["inference_count"], found["execution_count"]) == (10, 3)
    assert found["inference_stats"]["success"] == {"count": 4, "ns": 40}
    assert set(found["inference_stats"]) == {
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
        "cache_hit", "cache_miss"
    }  # fmt: skip
    assert found["batch_stats"][0]["batch_size"] == 8
    assert found["batch_stats"][0]["compute_infer"] == {"count": 1, "ns": 9}
    assert orjson.loads(encode_statistics([])) == {"model_stats": []}


@for_each(
    ("body", "ready"),
    [
        (b"", False),
        (b" \n", False),
        (b"{}", False),
        (b'{"ready":true}', True),
        (b'{"ready":null,"x":1}', False),
    ],
)
def test_index_request_may_be_empty(body, ready):
    assert decode_index_request(body) is ready


def test_load_request_parameters():
    assert decode_load_request(b"") == {}
    assert decode_load_request(b'{"parameters":null}') == {}
    assert decode_load_request(b'{"parameters":{"config":"{}"},"other":1}') == {"config": "{}"}


@for_each("body", [b"{", b"[]", b"1", b'"x"', b"null", b"\xff", b"[" * 100_000])
def test_non_object_body_is_refused(body):
    for decode in (decode_index_request, decode_load_request):
        with pytest.raises(DataError):
            decode(body)


@given(
    st.binary(max_size=60)
    | JSON.map(orjson.dumps)
    | JSON.map(lambda v: orjson.dumps({"ready": v, "parameters": v}))
)
def test_any_body_decodes_or_raises_data_error(body):
    for decode in (decode_index_request, decode_load_request):
        try:
            found = decode(body)
        except DataError:
            continue
        assert isinstance(found, bool | dict)
