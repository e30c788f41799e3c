"""From a body to a request, and from a response to a body."""

import numpy as np
import pytest

from headrace.core.errors import OverloadedError, UnauthenticatedError
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor, TensorSpec
from headrace.protocols.oip_json import WireBody, WireRequest, encode_request
from headrace.server.errors import quiet_status_of
from headrace.server.observation import CURRENT, Observation
from headrace.server.rest_inference import (
    HEADER_LENGTH,
    content_headers,
    declared_bf16,
    error_headers,
    read_request,
    told_status,
    written_response,
)

ROWS = np.array([[1.5, 2.5]], np.float32)
METADATA = ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 2)),))


def never() -> float:
    raise AssertionError("nobody asked for the time")


@pytest.mark.parametrize("binary", [False, True])
def test_a_request_is_read_whatever_its_form(binary):
    body = encode_request(InferRequest((Tensor("x", ROWS),), "one"), binary=binary)
    headers = {HEADER_LENGTH: str(body.json_bytes).encode()} if binary else {}
    wire = read_request(headers, body.body, METADATA, lambda: 0.0)
    assert (wire.request.id, wire.request["x"].tolist(), wire.binary_default) == (
        "one",
        ROWS.tolist(),
        binary,
    )


def test_nothing_but_numbers_is_a_raw_request():
    wire = read_request({HEADER_LENGTH: b"0"}, ROWS.tobytes(), METADATA, never)
    assert (wire.request["x"].tolist(), wire.binary_default) == (ROWS.tolist(), True)


def test_a_timeout_counts_from_now():
    request = InferRequest((Tensor("x", ROWS),), parameters={"timeout": 2_000_000, "priority": 3})
    wire = read_request({}, encode_request(request, binary=False).body, METADATA, lambda: 10.0)
    assert (wire.request.deadline, wire.request.priority) == (12.0, 3)


def test_a_response_has_the_form_that_was_asked_for():
    response = InferResponse((Tensor("x", ROWS),), "m")
    plain = written_response(response, WireRequest(InferRequest(()), False, {}), METADATA)
    assert content_headers(plain) == (b"application/json", ())
    packed = written_response(response, WireRequest(InferRequest(()), False, {"x": True}), METADATA)
    assert packed.body.endswith(ROWS.tobytes())
    assert content_headers(packed) == (
        b"application/octet-stream",
        ((HEADER_LENGTH, b"%d" % (len(packed.body) - 8)),),
    )
    assert isinstance(packed, WireBody)


def test_bf16_is_known_by_declaration_alone():
    outputs = (TensorSpec("a", "FP32"), TensorSpec("b", "BF16"))
    assert declared_bf16(ModelMetadata("m", outputs=outputs)) == {"b": "BF16"}
    assert not declared_bf16(METADATA)


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (OverloadedError("full", retry_after_s=1.2), [(b"retry-after", b"2")]),
        (UnauthenticatedError("who?"), [(b"www-authenticate", b"Bearer")]),
        (ValueError("ours"), []),
    ],
    ids=["overload", "no key", "fault"],
)
def test_errors_say_what_to_do_in_their_heads(error, headers):
    assert list(error_headers(quiet_status_of(error))) == headers


def test_what_is_logged_of_an_error_is_about_its_request(monkeypatch):
    about = []

    def noted(error):
        about.append(CURRENT.get())
        return quiet_status_of(error)

    monkeypatch.setattr("headrace.server.rest_inference.status_of", noted)
    seen = Observation("rest", "POST", "/", began_s=0.0, header=lambda _: "an-id")
    status = told_status(KeyError("x"), seen)
    assert (about, CURRENT.get(), status.http, seen.failure) == ([seen], None, 500, ("KeyError", status))
