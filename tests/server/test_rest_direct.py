"""The fast path gives the same responses as ASGI exchanges."""

import asyncio
import json
import threading

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace import Model
from headrace.core.tensor import TensorSpec
from headrace.jobs.access import Scope
from headrace.protocols.oip_json import HEADER_LENGTH
from headrace.server.errors import CLIENT_DISCONNECTED
from headrace.server.listener import DirectResponse
from headrace.server.rest import model_app
from headrace.server.rest_inference import RestLimits
from server.support import (
    WAIT_S,
    EchoAll,
    Linear,
    Raising,
    Texts,
    Typed,
    Words,
    definition,
    key_of,
    serving,
    tensor,
)
from server.test_rest import ROW
from servers.polling import wait_until

LIMITS = RestLimits(body_bytes_max=100_000, gzip_bytes_min=1000)
KEY = "a-key-that-is-long-enough-to-be-one"
KEYS = (key_of("web", KEY, Scope.INFER, models=frozenset({"linear"})),)


class Brain(Model):
    """A model with BF16 in its metadata."""

    inputs = (TensorSpec("x", "BF16", (-1,)),)
    outputs = (TensorSpec("y", "BF16", (-1,)),)

    def predict(self, x):
        return x


def models():
    return [
        definition(Linear, "linear"),
        definition(Linear, "linear", "2"),
        definition(EchoAll, "any"),
        definition(EchoAll, "inline", isolation="inline"),
        definition(Typed, "typed"),
        definition(Raising, "raising"),
        definition(Raising, "raising-inline", isolation="inline"),
        definition(Texts, "texts", isolation="inline"),
        definition(Words, "words"),
        definition(Brain, "brain", isolation="inline"),
    ]


@pytest.fixture(scope="module")
def both():
    """Serve the same models with and without the fast path."""
    with (
        serving(models(), limits=LIMITS) as direct,
        serving(models(), limits=LIMITS, direct=False) as long,
    ):
        yield direct, long


def exchanges(server) -> list[str]:
    """Return the list of paths that are ASGI exchanges from now on."""
    paths = []
    serve = server.app._serve

    async def noted(exchange):
        paths.append(exchange.path)
        await serve(exchange)

    server.app._serve = noted
    return paths


def without_date(server, path, body, headers):
    """Return a response without its date."""
    response = server.post(path, body, {"x-request-id": "same", **headers})
    return response.status, {k: v for k, v in response.headers.items() if k != "date"}, response.body


BINARY_HEAD = orjson.dumps(
    {
        "inputs": [
            {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
        ],
        "parameters": {"binary_data_output": True},
    }
)
RAW = np.array([1.0, 2.0], np.float32).tobytes()
MANY = tensor("x", range(3000))
CASES = {
    "json": ("linear", {"inputs": [ROW]}, {}),
    "with an id": ("linear", {"inputs": [ROW], "id": "i"}, {}),
    "inline": ("inline", {"inputs": [ROW]}, {}),
    "a version": ("linear/versions/2", {"inputs": [ROW]}, {}),
    "binary": ("any", BINARY_HEAD + RAW, {HEADER_LENGTH: str(len(BINARY_HEAD))}),
    "binary, inline": ("inline", BINARY_HEAD + RAW, {HEADER_LENGTH: str(len(BINARY_HEAD))}),
    "a header that is none": ("any", BINARY_HEAD + RAW, {HEADER_LENGTH: "x"}),
    "long": ("any", {"inputs": [MANY]}, {}),
    "long, packed": ("any", {"inputs": [MANY]}, {"Accept-Encoding": "gzip"}),
    "long, inline": ("inline", {"inputs": [MANY]}, {"Accept-Encoding": "deflate, gzip"}),
    "long, not packed": ("inline", {"inputs": [MANY]}, {"Accept-Encoding": "gzip;q=0"}),
    "text": ("texts", {"inputs": [tensor("text_input", ["é"], "BYTES")]}, {}),
    "bf16": ("brain", {"inputs": [tensor("x", [1.5], "BF16")]}, {}),
    "no json": ("linear", b"{", {}),
    "nothing": ("linear", b"", {}),
    "another input": ("linear", {"inputs": [tensor("z")]}, {}),
    "an unknown output": ("linear", {"inputs": [ROW], "outputs": [{"name": "no"}]}, {}),
    "a raised error": ("raising", {"inputs": [tensor("x", [3.0])]}, {}),
    "a raised error, inline": ("raising-inline", {"inputs": [tensor("x", [3.0])]}, {}),
    "no time": ("linear", {"inputs": [ROW], "parameters": {"timeout": 1}}, {}),
    "a bad timeout": ("linear", {"inputs": [ROW], "parameters": {"timeout": -1}}, {}),
    "of a model that streams": ("words", {"inputs": [tensor("n", [2.0])]}, {}),
    "an id that may not be sent": ("linear", {"inputs": [ROW]}, {"x-request-id": "\x7f"}),
    "too large": ("linear", b" " * 100_001, {}),
    "compressed": ("linear", b"no gzip", {"Content-Encoding": "gzip"}),
    "no such model": ("nobody", {"inputs": [ROW]}, {}),
    "no such version": ("linear/versions/9", {"inputs": [ROW]}, {}),
}


@for_each("case", CASES)
def test_fast_path_and_asgi_give_the_same_response(both, case):
    direct, long = both
    model, body, headers = CASES[case]
    path = f"/v2/models/{model}/infer"
    one, other = without_date(direct, path, body, headers), without_date(long, path, body, headers)
    if other[1].get("x-request-id") != "same":
        # The server generates another id for each response.
        assert one[1].pop("x-request-id", None) is not None or "x-request-id" not in other[1]
        other[1].pop("x-request-id", None)
    assert one == other


@settings(max_examples=levels.examples(1.5))
@given(
    st.binary(max_size=80)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["inputs", "name", "shape", "datatype", "data", "id"]), inner)
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode()),
    st.dictionaries(
        st.sampled_from(["Content-Encoding", HEADER_LENGTH, "Accept-Encoding", "Authorization"]),
        st.sampled_from(["gzip", "0", "7", "x", ""]),
    ),
)
def test_fast_path_and_asgi_agree_on_any_body(both, body, headers):
    direct, long = both
    path = "/v2/models/any/infer"
    assert without_date(direct, path, body, headers) == without_date(long, path, body, headers)


def test_fast_path_requests_are_no_exchanges(both):
    server, _ = both
    paths = exchanges(server)
    for model in ("linear", "inline", "linear/versions/2", "raising"):
        server.infer(model, ROW)
    assert not paths
    for path in ("/v2/models/linear/infer?a=b", "/v2/models/l%69near/infer", "/v2/models/linear/infer/"):
        assert server.post(path, {"inputs": [ROW]}).status == 200
    assert len(paths) == 3


def test_responses_of_both_paths_are_counted(both):
    counts = []
    for server in both:
        before = dict(server.app.response_counters.sent)
        for _ in range(3):
            server.infer("linear", ROW)
            server.infer("inline", tensor("no", ["x"], "BYTES"))
        server.infer("nobody", ROW)
        after = server.app.response_counters.sent
        counts.append({key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key)})
    assert counts[0] == counts[1]
    assert counts[0]["infer", 200] >= 3


def test_api_key_is_required(both):
    del both
    with serving({"linear": Linear, "any": EchoAll}, keys=KEYS) as server:
        paths = exchanges(server)
        body, path = {"inputs": [ROW]}, "/v2/models/linear/infer"
        assert server.post(path, body).status == 401
        refused = server.post(path, body, {"Authorization": "Bearer another"})
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert server.post(path, body, {"Authorization": f"Bearer {KEY}"}).status == 200
        assert server.infer("any", ROW, headers={"Authorization": f"Bearer {KEY}"}).status == 403
        assert not paths


@pytest.mark.parametrize("direct", [True, False])
def test_requests_of_a_key_are_limited(direct):
    slow = key_of("slow", KEY, Scope.INFER, requests_per_s_max=0.01)
    with serving({"linear": Linear}, keys=[slow], direct=direct) as server:
        headers = {"authorization": f"Bearer {KEY}"}
        first, second = (server.infer("linear", ROW, headers=headers) for _ in range(2))
        assert (first.status, second.status) == (200, 429)
        assert 90 < int(second.headers["retry-after"]) <= 100
        assert b"API key 'slow' has reached its limit" in second.body


def test_unloaded_model_responds_404_until_reloaded():
    with serving({"linear": Linear}) as server:
        assert server.infer("linear", ROW).status == 200
        server.repository.unload("linear")
        assert server.infer("linear", ROW).status == 503
        server.repository.load("linear")
        assert server.infer("linear", ROW).status == 200


def test_disconnect_is_counted_and_withdraws_the_request():
    entered, go = threading.Event(), threading.Event()

    class Slow(Model):
        def predict(self, x):
            entered.set()
            assert go.wait(WAIT_S)
            return x

    with serving({"slow": Slow}) as server:
        try:
            with server.socket() as first:
                first.post("/v2/models/slow/infer", orjson.dumps({"inputs": [tensor()]}))
                assert entered.wait(WAIT_S)
                with server.socket() as waiting:
                    waiting.post("/v2/models/slow/infer", orjson.dumps({"inputs": [tensor()]}))
                    wait_until(lambda: server.dataplane.statistics()[0].waiting_requests == 1)
                wait_until(lambda: server.dataplane.statistics()[0].waiting_requests == 0)
                wait_until(lambda: server.app.response_counters.sent.get(("infer", CLIENT_DISCONNECTED)) == 1)
                go.set()
                assert first.read_response().status == 200
        finally:
            go.set()
        (statistics,) = server.dataplane.statistics()
        assert (statistics.cancelled, statistics.success.count) == (1, 1)


def test_target_cache_is_limited(both, monkeypatch):
    server, _ = both
    monkeypatch.setattr("headrace.server.rest_direct.ROUTES_MAX", 2)
    direct = server.app.direct
    for model in ("linear", "any", "inline", "typed", "nobody"):
        direct.route(b"/v2/models/%s/infer" % model.encode())
    assert len(direct._routes) <= 2


def test_observed_requests_are_exchanges(both):
    server, _ = both
    assert model_app(server.dataplane, observers=[]).direct is None


def test_inline_model_responds_within_the_call(both):
    """There is no task and no loop: the call returns the response."""
    server, _ = both
    direct = server.app.direct
    route = direct.route(b"/v2/models/inline/infer")
    body = orjson.dumps({"inputs": [tensor()]})

    async def infer():
        return direct.respond(route, [(b"content-length", b"%d" % len(body))], body)

    reply = asyncio.run_coroutine_threadsafe(infer(), server.loop).result(WAIT_S)
    assert isinstance(reply, DirectResponse)
    assert (reply.status, reply.head) == (200, b"content-type: application/json\r\n")
