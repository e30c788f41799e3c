"""What only REST can get wrong: answers that are none, redirects, busy servers. The rest is in test_server.py."""

import orjson
import pytest

from client.server_support import asked, request_of
from headrace.client.server import ModelAddress
from headrace.core.errors import EndpointError, EndpointRefusedError, EndpointUnavailableError
from headrace.protocols.sse import encode_event
from headrace.testing import EndpointFault, ScriptedEndpoint

MODEL = ModelAddress("model")
ROW = request_of(x=[[1.0, 2.0]])


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda tensors: tensors["x"]) as endpoint:
        yield endpoint


def answering(endpoint, body, status=200, **headers):
    endpoint.always = EndpointFault(status=status, body=body, headers=headers)


async def stream_all(server):
    return [r async for r in server.stream(MODEL, ROW)]


ASKS = {
    "metadata": lambda server: server.metadata(MODEL),
    "infer": lambda server: server.infer(MODEL, ROW, binary=False),
    "index": lambda server: server.index(),
    "statistics": lambda server: server.statistics(),
}


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize(
    "body",
    [b"<html>", b"", b"5", b'"text"', b'{"inputs": 5, "model_stats": 5}', b'[{"name": "x"}, 5]', b"null"],
)
def test_what_is_no_answer_is_told_as_such(endpoint, name, body):
    answering(endpoint, body)
    with pytest.raises(EndpointError, match="its answer is not one of the Open Inference Protocol"):
        asked(endpoint.url, ASKS[name])


@pytest.mark.parametrize(("status", "kind"), [(400, EndpointRefusedError), (503, EndpointUnavailableError)])
def test_a_refusal_has_the_servers_words(endpoint, status, kind):
    answering(endpoint, orjson.dumps({"detail": "not today"}), status)
    for ask in (*ASKS.values(), stream_all):
        with pytest.raises(kind, match=f"HTTP {status}: not today"):
            asked(endpoint.url, ask)


def test_a_busy_server_says_when_to_come_back(endpoint):
    answering(endpoint, b"{}", 429, **{"retry-after": "7"})
    with pytest.raises(EndpointUnavailableError, match="ask again in 7 s"):
        asked(endpoint.url, ASKS["infer"])


def test_a_redirect_is_not_followed_with_the_key(endpoint):
    answering(endpoint, b"", 307, location="http://elsewhere/")
    with pytest.raises(EndpointRefusedError, match="redirects to http://elsewhere/: give that URL"):
        asked(endpoint.url, ASKS["metadata"], api_key="secret-0123456789")


def test_an_event_that_is_no_response_is_told_as_such(endpoint):
    answering(endpoint, encode_event(b'{"text": "x"}'))
    with pytest.raises(EndpointError, match="its answer is not one of the Open Inference Protocol"):
        asked(endpoint.url, stream_all)


def test_sizes_and_counts_may_be_written_as_text(endpoint):
    entry = {
        "name": "m",
        "version": "1",
        "inference_count": "12",
        "inference_stats": {"success": {"count": "3", "ns": 5}},
    }
    answering(endpoint, orjson.dumps({"model_stats": [entry]}))
    (statistics,) = asked(endpoint.url, ASKS["statistics"])
    assert (statistics.rows, statistics.success.count, statistics.fail.count) == (12, 3, 0)


def test_names_are_quoted_in_paths(endpoint):
    with pytest.raises(EndpointRefusedError, match="/v2/models/a%2Fb%20c/versions/%C3%A9"):
        asked(endpoint.url, lambda server: server.metadata(ModelAddress("a/b c", "é")))
