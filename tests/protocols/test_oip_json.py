"""Bodies of the Open Inference Protocol: round trips, promised leniency, and refusals."""

from contextlib import suppress

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.errors import DataError, UnsupportedError
from headrace.core.tensor import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RowFailure,
    Tensor,
    TensorSpec,
)
from headrace.protocols.oip_documents import (
    decode_error,
    decode_error_kind,
    decode_metadata,
    encode_error,
    encode_model_metadata,
)
from headrace.protocols.oip_json import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header_length,
)

NAMES = st.text("abc_é/ ", min_size=1, max_size=4)
ARRAYS = st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements={"allow_infinity": False} if dtype is np.float32 else None,
    )
)
TENSORS = st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=4).map(
    lambda d: tuple(Tensor(n, a) for n, a in d.items())
)


def same(found, expected):
    assert [t.name for t in found] == [t.name for t in expected]
    for a, b in zip(found, expected, strict=True):
        assert (a.data.dtype, a.data.shape) == (b.data.dtype, b.data.shape)
        np.testing.assert_array_equal(a.data, b.data)


SHARED_MEMORY = {"shared_memory_region": "r"}


def body_of(**document) -> bytes:
    return orjson.dumps(document)


def tensor_of(**more):
    return {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0], **more}


@given(TENSORS, st.booleans(), st.text("ab", max_size=3), st.lists(NAMES, unique=True, max_size=3))
def test_request_round_trips(inputs, binary, id_, outputs):
    wire = encode_request(InferRequest(inputs, id_, tuple(outputs), {"k": 1}), binary=binary)
    found = decode_request(wire.body, wire.json_bytes)
    same(found.request.inputs, inputs)
    assert (found.request.id, found.request.outputs, found.request.parameters) == (
        id_,
        tuple(outputs),
        {"k": 1},
    )
    assert all(found.binary(name) == binary for name in (outputs or ["any"]))


@given(TENSORS, st.sets(NAMES), st.none() | st.text("1v", max_size=2))
def test_response_round_trips_with_any_binary_outputs(outputs, binary_names, version):
    response = InferResponse(outputs, "m", version, "id", {"p": "q"})
    wire = encode_response(response, binary=binary_names.__contains__)
    assert (wire.json_bytes is not None) == any(t.name in binary_names for t in outputs)
    found = decode_response(wire.body, wire.json_bytes)
    same(found.outputs, outputs)
    assert (found.model_name, found.model_version, found.id, found.parameters) == (
        "m",
        version,
        "id",
        {"p": "q"},
    )


@given(TENSORS, st.data())
def test_truncated_or_extended_binary_body_is_refused(inputs, data):
    wire = encode_request(InferRequest(inputs), binary=True)
    cut = data.draw(st.integers(0, len(wire.body) - 1))
    with pytest.raises(DataError):
        decode_request(wire.body[:cut], wire.json_bytes)
    with pytest.raises(DataError, match="1 bytes follow the last tensor"):
        decode_request(wire.body + b"x", wire.json_bytes)


@given(st.binary(max_size=80), st.none() | st.integers(0, 90))
def test_any_bytes_decode_or_raise_data_error(body, json_bytes):
    with pytest.raises(DataError):
        decode_request(body, json_bytes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("FP32x", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "datatype", "data", "parameters", "binary_data_size"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("inputs", "outputs", "id", "parameters"), JSON)))
def test_any_document_decodes_or_raises_data_error(document):
    body = orjson.dumps(document)
    for decode in (decode_request, decode_response, decode_metadata):
        with suppress(DataError):
            decode(body)


@for_each(
    ("document", "why"),
    [
        ({}, "at least one tensor"),
        ({"inputs": {}}, "must be a list of objects"),
        ({"inputs": [1]}, "must be a list of objects"),
        ({"inputs": [tensor_of(name="")]}, "has no name"),
        ({"inputs": [tensor_of(), tensor_of()]}, "'x' is in 'inputs' twice"),
        ({"inputs": [tensor_of(data=None)]}, "either 'data' or 'binary_data_size', but has neither"),
        ({"inputs": [tensor_of(parameters={"binary_data_size": 4})]}, "but has both"),
        (
            {"inputs": [tensor_of(data=None, parameters={"binary_data_size": -1})]},
            "must be a number of bytes",
        ),
        ({"inputs": [tensor_of(data=None, parameters={"binary_data_size": 4})]}, "only 0 bytes are left"),
        ({"inputs": [tensor_of(parameters=[])]}, "must be an object, not list"),
        ({"inputs": [tensor_of()] * 1025}, "the limit is 1024"),
        ({"inputs": [tensor_of()], "outputs": [{"name": "y"}, {"name": "y"}]}, "'y' is requested twice"),
        ({"inputs": [tensor_of()], "parameters": {"binary_data_output": 1}}, "must be true or false"),
        ({"inputs": [tensor_of()], "id": 3}, "'id' must be a string"),
    ],
)
def test_malformed_request_names_the_defect(document, why):
    with pytest.raises(DataError, match=why):
        decode_request(orjson.dumps(document))


@for_each(("body", "why"), [(b"[1]", "must be a JSON object"), (b"{", "not JSON"), (b"", "not JSON")])
def test_non_object_body_is_refused(body, why):
    with pytest.raises(DataError, match=why):
        decode_request(body)


@for_each(("json_bytes", "why"), [(0, "without JSON"), (999, "only 2 bytes")])
def test_header_beyond_the_body_is_refused(json_bytes, why):
    with pytest.raises(DataError, match=why):
        decode_request(b"{}", json_bytes)


def test_header_must_be_a_number():
    assert parse_header_length(None) is None
    assert parse_header_length("12") == 12
    for value in ("", "-1", "1.5", "٣", "9" * 20):
        with pytest.raises(DataError, match="number of bytes"):
            parse_header_length(value)


def test_headers_have_the_json_length():
    request = InferRequest((Tensor("x", np.zeros(1, np.float32)),))
    assert encode_request(request, binary=False).headers == {"Content-Type": "application/json"}
    wire = encode_request(request, binary=True)
    assert wire.headers["Inference-Header-Content-Length"] == str(wire.json_bytes)
    assert orjson.loads(wire.body[: wire.json_bytes])["parameters"] == {"binary_data_output": True}


def test_output_binary_parameter_overrides_the_request():
    body = body_of(
        inputs=[tensor_of()],
        outputs=[{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}],
        parameters={"binary_data_output": True},
    )
    found = decode_request(body)
    assert (found.binary("a"), found.binary("b"), found.binary("other")) == (True, False, True)
    assert found.request.parameters == {}


def test_responses_may_have_nan_and_infinity_literals():
    body = b'{"outputs":[{"name":"y","shape":[2],"datatype":"FP32","data":[NaN,Infinity]}]}'
    (output,) = decode_response(body).outputs
    assert np.isnan(output.data[0])
    assert np.isinf(output.data[1])


def test_response_without_outputs_lists_its_keys():
    with pytest.raises(DataError, match="only 'status', 'x'"):
        decode_response(b'{"status":"ok","x":1}')


def test_failed_rows_are_refused():
    with pytest.raises(ValueError, match="1 rows failed"):
        encode_response(InferResponse((), failures=(RowFailure(0, "x"),)))


def test_bf16_is_sent_as_bits_and_widened_on_request():
    values = np.array([1.0, -2.5], np.float32)
    wire = encode_request(InferRequest((Tensor("x", values),)), binary=True, datatypes={"x": "BF16"})
    assert len(wire.body) - wire.json_bytes == 4
    widened = decode_request(wire.body, wire.json_bytes, bf16="float32").request.inputs[0].data
    np.testing.assert_array_equal(widened, values)
    bits = decode_request(wire.body, wire.json_bytes).request.inputs[0].data
    assert bits.tolist() == [0x3F80, 0xC020]


@given(
    st.builds(
        ModelMetadata,
        NAMES,
        st.none() | st.just("2"),
        st.text("ab", max_size=2),
        *[
            st.lists(
                st.builds(
                    TensorSpec,
                    NAMES,
                    st.sampled_from(["FP32", "BYTES", "BF16"]),
                    st.lists(st.integers(-1, 9), min_size=1).map(tuple),
                ),
                max_size=2,
            ).map(tuple)
        ] * 2,
    )
)  # fmt: skip
def test_metadata_round_trips(metadata):
    versions = () if metadata.version is None else (metadata.version,)
    assert decode_metadata(encode_model_metadata(metadata, versions)) == metadata


def test_metadata_of_other_servers_is_accepted():
    body = (
        b'{"name":"m","versions":["1","3"],"inputs":['
        b'{"name":"x","datatype":"FP32","shape":["-1","4"]},{"name":"z","datatype":"INT8"}]}'
    )
    found = decode_metadata(body)
    assert (found.version, found.outputs) == ("3", ())
    assert found.inputs == (TensorSpec("x", "FP32", (-1, 4)), TensorSpec("z", "INT8", None))


@for_each(
    ("tensors", "message"),
    [
        (
            {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": SHARED_MEMORY}]},
            "shared memory",
        ),
        ({"inputs": [tensor_of()], "outputs": [{"name": "y", "parameters": SHARED_MEMORY}]}, "'y': shared"),
        (
            {"inputs": [tensor_of()], "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            "'y': classification",
        ),
    ],
)
def test_unsupported_tensor_parameters_are_refused(tensors, message):
    with pytest.raises(UnsupportedError, match=message):
        decode_request(body_of(**tensors))


@for_each(
    ("body", "said"),
    [
        (encode_error("no such model"), "no such model"),
        (b'{"detail":[{"loc":"body"}]}', '[{"loc":"body"}]'),
        (b'{"code":404,"message":"gone"}', "gone"),
        (b"<html>\n bad gateway </html>", "<html> bad gateway </html>"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 9000, "x" * 2000),
        (b'{"error":' * 500 + b"1" + b"}" * 500, '{"error":' * 222 + '{"'),
    ],
)
def test_error_is_decoded_in_any_form(body, said):
    assert decode_error(body) == said


def test_tensor_parameters_round_trip():
    """Content types pass. Parameters of the encoding do not."""
    body = {
        "inputs": [
            {"name": "x", "shape": [1], "datatype": "FP32", "data": [1], "parameters": {"content_type": "np"}}
        ]
    }
    request = decode_request(orjson.dumps(body)).request
    assert request.inputs[0].parameters == {"content_type": "np"}
    for binary in (True, False):
        wire = encode_request(request, binary=binary)
        again = decode_request(wire.body, wire.json_bytes).request
        assert again.inputs[0].parameters == {"content_type": "np"}
        answer = encode_response(InferResponse(request.inputs, "m"), binary=binary)
        assert decode_response(answer.body, answer.json_bytes).outputs[0].parameters == {"content_type": "np"}


@for_each("inputs", [{}, {"inputs": []}, {"inputs": None}])
@for_each(
    "parameters",
    [{"sequence_id": "a", "sequence_end": True}, {"sequence_id": 7, "sequence_cancel": True}],
)
def test_sequence_end_needs_no_inputs(inputs, parameters):
    wire = decode_request(orjson.dumps({**inputs, "parameters": parameters}))
    assert (wire.request.inputs, wire.request.parameters) == ((), parameters)


@for_each(
    "parameters", [{"sequence_id": 0, "sequence_end": True}, {"sequence_end": True}, {"sequence_id": "a"}]
)
def test_other_requests_need_inputs(parameters):
    with pytest.raises(DataError, match="at least one tensor"):
        decode_request(orjson.dumps({"parameters": parameters}))


def test_error_kind_round_trips():
    assert decode_error_kind(encode_error("why", "sequence_gone")) == "sequence_gone"
    assert decode_error(encode_error("why", "sequence_gone")) == "why"
    for body in (encode_error("why"), b"plain", b"[]", b'{"kind": 3}'):
        assert decode_error_kind(body) == ""
