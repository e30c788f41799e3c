"""Failures specific to REST: invalid bodies, redirects, busy servers.

Shared behaviour is in test_model_server.py.
"""

import orjson
import pytest

from cases import for_each
from client.server_support import call_server, request_of
from headrace.client.model_server import ModelAddress
from headrace.core.errors import EndpointError, EndpointRefusedError, EndpointUnavailableError
from headrace.protocols.sse import encode_event
from headrace.testing import EndpointFault, ScriptedEndpoint

MODEL = ModelAddress("model")
ROW = request_of(x=[[1.0, 2.0]])


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda tensors: tensors["x"]) as endpoint:
        yield endpoint


def respond(endpoint, body, status=200, **headers):
    endpoint.default_fault = EndpointFault(status=status, body=body, headers=headers)


async def stream_all(server):
    return [r async for r in server.stream(MODEL, ROW)]


CALLS = {
    "metadata": lambda server: server.metadata(MODEL),
    "infer": lambda server: server.infer(MODEL, ROW, binary=False),
    "index": lambda server: server.index(),
    "statistics": lambda server: server.statistics(),
    "instances": lambda server: server.instances(MODEL),
    "set_instances": lambda server: server.set_instances(MODEL, 2),
}


@for_each("name", CALLS)
@for_each(
    "body",
    [b"<html>", b"", b"5", b'"text"', b'{"inputs": 5, "model_stats": 5}', b'[{"name": "x"}, 5]', b"null"],
)
def test_invalid_response_body_raises_endpoint_error(endpoint, name, body):
    respond(endpoint, body)
    with pytest.raises(EndpointError, match="its response violates the Open Inference Protocol"):
        call_server(endpoint.url, CALLS[name])


@for_each(("status", "kind"), [(400, EndpointRefusedError), (503, EndpointUnavailableError)])
def test_refusal_has_the_servers_message(endpoint, status, kind):
    respond(endpoint, orjson.dumps({"detail": "not today"}), status)
    for call in (*CALLS.values(), stream_all):
        with pytest.raises(kind, match=f"HTTP {status}: not today"):
            call_server(endpoint.url, call)


def test_busy_server_error_has_the_retry_delay(endpoint):
    respond(endpoint, b"{}", 429, **{"retry-after": "7"})
    with pytest.raises(EndpointUnavailableError, match="retry in 7 s"):
        call_server(endpoint.url, CALLS["infer"])


def test_redirect_is_not_followed_with_the_key(endpoint):
    respond(endpoint, b"", 307, location="http://elsewhere/")
    with pytest.raises(EndpointRefusedError, match="redirects to http://elsewhere/: use that URL"):
        call_server(endpoint.url, CALLS["metadata"], api_key="secret-0123456789")


def test_invalid_event_raises_endpoint_error(endpoint):
    respond(endpoint, encode_event(b'{"text": "x"}'))
    with pytest.raises(EndpointError, match="its response violates the Open Inference Protocol"):
        call_server(endpoint.url, stream_all)


def test_numbers_may_be_encoded_as_text(endpoint):
    entry = {
        "name": "m",
        "version": "1",
        "inference_count": "12",
        "inference_stats": {"success": {"count": "3", "ns": 5}},
    }
    respond(endpoint, orjson.dumps({"model_stats": [entry]}))
    (statistics,) = call_server(endpoint.url, CALLS["statistics"])
    assert (statistics.rows, statistics.success.count, statistics.fail.count) == (12, 3, 0)


def test_names_are_percent_encoded_in_paths(endpoint):
    with pytest.raises(EndpointRefusedError, match="/v2/models/a%2Fb%20c/versions/%C3%A9"):
        call_server(endpoint.url, lambda server: server.metadata(ModelAddress("a/b c", "é")))


def test_api_key_is_sent_as_a_bearer_token(endpoint):
    call_server(endpoint.url, CALLS["infer"], api_key="key-0123456789")
    call_server(endpoint.url, CALLS["infer"])
    first, second = endpoint.requests
    assert first.headers["authorization"] == "Bearer key-0123456789"
    assert "authorization" not in second.headers
