"""Decoding of bodies to requests, and encoding of responses."""

import numpy as np

from cases import for_each
from headrace.core.errors import OverloadedError, UnauthenticatedError
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor, TensorSpec
from headrace.protocols.oip_json import JsonWireRequest, encode_request
from headrace.server.dataplane import bf16_outputs
from headrace.server.errors import error_headers, quiet_status_of
from headrace.server.observation import CURRENT, RequestObservation, observed_error_status
from headrace.server.rest_inference import (
    HEADER_LENGTH,
    encode_response_body,
    read_request,
)

ROWS = np.array([[1.5, 2.5]], np.float32)
METADATA = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 2)),))


def never() -> float:
    raise AssertionError("nobody asked for the time")


@for_each("binary", [False, True])
def test_json_and_binary_requests_are_decoded(binary):
    body = encode_request(InferRequest((Tensor("x", ROWS),), "one"), binary=binary)
    headers = {HEADER_LENGTH: str(body.json_bytes).encode()} if binary else {}
    wire = read_request(headers, body.body, METADATA, lambda: 0.0, "")
    assert (wire.request.id, wire.request["x"].tolist(), wire.binary_default) == (
        "one",
        ROWS.tolist(),
        binary,
    )


def test_header_length_zero_means_a_raw_request():
    wire = read_request({HEADER_LENGTH: b"0"}, ROWS.tobytes(), METADATA, never, "shop")
    assert (wire.request["x"].tolist(), wire.binary_default) == (ROWS.tolist(), True)
    assert wire.request.namespace == "shop"


def test_timeout_counts_from_now():
    request = InferRequest((Tensor("x", ROWS),), parameters={"timeout": 2_000_000, "priority": 3})
    wire = read_request({}, encode_request(request, binary=False).body, METADATA, lambda: 10.0, "shop")
    assert (wire.request.deadline, wire.request.priority) == (12.0, 3)
    assert wire.request.namespace == "shop"


def test_response_has_the_requested_form():
    response = InferResponse((Tensor("x", ROWS),), "m")
    wire = JsonWireRequest(InferRequest(()), False, {})
    assert encode_response_body(response, wire, METADATA)[1:] == (b"application/json", ())
    wire = JsonWireRequest(InferRequest(()), False, {"x": True})
    packed, *described = encode_response_body(response, wire, METADATA)
    assert packed.endswith(ROWS.tobytes())
    assert described == [b"application/octet-stream", ((HEADER_LENGTH, b"%d" % (len(packed) - 8)),)]


def test_bf16_is_known_only_by_declaration():
    outputs = (TensorSpec("a", "FP32"), TensorSpec("b", "BF16"))
    assert bf16_outputs(ModelMetadata("m", outputs=outputs)) == {"b": "BF16"}
    assert not bf16_outputs(METADATA)


@for_each(
    ("error", "headers"),
    [
        (OverloadedError("full", retry_after_s=1.2), [(b"retry-after", b"2")]),
        (UnauthenticatedError("who?"), [(b"www-authenticate", b"Bearer")]),
        (ValueError("ours"), []),
    ],
)
def test_error_headers_match_the_status(error, headers):
    assert list(error_headers(quiet_status_of(error))) == headers


def test_error_log_has_the_request(monkeypatch):
    about = []

    def noted(error):
        about.append(CURRENT.get())
        return quiet_status_of(error)

    monkeypatch.setattr("headrace.server.observation.status_of", noted)
    seen = RequestObservation("rest", "POST", "/", began_s=0.0, header=lambda _: "an-id")
    status = observed_error_status(KeyError("x"), seen)
    assert (about, CURRENT.get(), status.http, seen.failure) == ([seen], None, 500, ("KeyError", status))
