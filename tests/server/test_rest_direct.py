"""What is answered without an exchange is answered as it would be in one."""

import asyncio
import json
import threading

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import Model
from headrace.core.tensor import TensorSpec
from headrace.protocols.oip_json import HEADER_LENGTH
from headrace.server.direct import Reply
from headrace.server.errors import CLIENT_GONE
from headrace.server.rest import RestApp, RestLimits
from headrace.server.security import ApiKey, Role
from server.support import WAIT_S, Any1, Linear, Raising, Texts, Typed, Words, definition, serving, tensor
from server.test_rest import ROW, wait_for

LIMITS = RestLimits(body_bytes_max=100_000, gzip_bytes_min=1000)
KEY = "a-key-that-is-long-enough-to-be-one"
KEYS = (ApiKey.of("web", "infer", KEY),)


class Brain(Model):
    """BF16 in its metadata."""

    inputs = (TensorSpec("x", "BF16", (-1,)),)
    outputs = (TensorSpec("y", "BF16", (-1,)),)

    def predict(self, x):
        return x


def models():
    return [
        definition(Linear, "linear"),
        definition(Linear, "linear", "2"),
        definition(Any1, "any"),
        definition(Any1, "inline", isolation="inline"),
        definition(Typed, "typed"),
        definition(Raising, "raising"),
        definition(Raising, "raising-inline", isolation="inline"),
        definition(Texts, "texts", isolation="inline"),
        definition(Words, "words"),
        definition(Brain, "brain", isolation="inline"),
    ]


@pytest.fixture(scope="module")
def both():
    """The same models behind both ways."""
    with (
        serving(models(), limits=LIMITS) as direct,
        serving(models(), limits=LIMITS, direct=False) as long,
    ):
        yield direct, long


def exchanges(server) -> list[str]:
    """From now on: the paths of the requests that were ASGI exchanges."""
    paths = []
    serve = server.app._serve

    async def noted(exchange):
        paths.append(exchange.path)
        await serve(exchange)

    server.app._serve = noted
    return paths


def told(server, path, body, headers):
    """What a caller sees, but for the time of day."""
    answer = server.post(path, body, {"x-request-id": "same", **headers})
    return answer.status, {k: v for k, v in answer.headers.items() if k != "date"}, answer.body


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


@pytest.mark.parametrize("case", CASES)
def test_both_ways_give_the_same_answer(both, case):
    direct, long = both
    model, body, headers = CASES[case]
    path = f"/v2/models/{model}/infer"
    one, other = told(direct, path, body, headers), told(long, path, body, headers)
    if other[1].get("x-request-id") != "same":
        # Made up by the server: of each another one.
        assert one[1].pop("x-request-id", None) is not None or "x-request-id" not in other[1]
        other[1].pop("x-request-id", None)
    assert one == other


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
def test_any_body_gets_the_same_answer_both_ways(both, body, headers):
    direct, long = both
    path = "/v2/models/any/infer"
    assert told(direct, path, body, headers) == told(long, path, body, headers)


def test_hot_requests_are_no_exchanges(both):
    server, _ = both
    paths = exchanges(server)
    for model in ("linear", "inline", "linear/versions/2", "raising"):
        server.infer(model, ROW)
    assert not paths
    for path in ("/v2/models/linear/infer?a=b", "/v2/models/l%69near/infer", "/v2/models/linear/infer/"):
        assert server.post(path, {"inputs": [ROW]}).status == 200
    assert len(paths) == 3


def test_what_is_answered_is_counted_either_way(both):
    counts = []
    for server in both:
        before = dict(server.app.answers.sent())
        for _ in range(3):
            server.infer("linear", ROW)
            server.infer("inline", tensor("no", ["x"], "BYTES"))
        server.infer("nobody", ROW)
        after = server.app.answers.sent()
        counts.append({key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key)})
    assert counts[0] == counts[1]
    assert counts[0]["infer", 200] >= 3


def test_keys_are_asked_for(both):
    del both
    with serving({"linear": Linear}, keys=KEYS) as server:
        paths = exchanges(server)
        body, path = {"inputs": [ROW]}, "/v2/models/linear/infer"
        assert server.post(path, body).status == 401
        refused = server.post(path, body, {"Authorization": "Bearer another"})
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert server.post(path, body, {"Authorization": f"Bearer {KEY}"}).status == 200
        assert KEYS[0].role is Role.INFER
        assert not paths


def test_a_model_that_is_gone_is_told_and_one_that_is_back_answers():
    with serving({"linear": Linear}) as server:
        assert server.infer("linear", ROW).status == 200
        server.repository.unload("linear")
        assert server.infer("linear", ROW).status == 503
        server.repository.load("linear")
        assert server.infer("linear", ROW).status == 200


def test_a_caller_who_leaves_is_counted_and_its_request_withdrawn():
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
                    wait_for(lambda: server.dataplane.statistics()[0].waiting_requests == 1)
                wait_for(lambda: server.dataplane.statistics()[0].waiting_requests == 0)
                wait_for(lambda: server.app.answers.sent().get(("infer", CLIENT_GONE)) == 1)
                go.set()
                assert first.answer().status == 200
        finally:
            go.set()
        (statistics,) = server.dataplane.statistics()
        assert (statistics.cancelled, statistics.success.count) == (1, 1)


def test_targets_are_remembered_up_to_a_bound(both, monkeypatch):
    server, _ = both
    monkeypatch.setattr("headrace.server.rest_direct.ROUTES_MAX", 2)
    direct = server.app.direct
    for model in ("linear", "any", "inline", "typed", "nobody"):
        direct.route(b"/v2/models/%s/infer" % model.encode())
    assert len(direct._routes) <= 2


def test_where_requests_are_observed_all_are_exchanges(both):
    server, _ = both
    assert RestApp(server.dataplane, observers=[]).direct is None


def test_inline_models_are_answered_in_the_call_itself(both):
    """No task, no loop: the answer is what the call returns."""
    server, _ = both
    direct = server.app.direct
    route = direct.route(b"/v2/models/inline/infer")
    body = orjson.dumps({"inputs": [tensor()]})

    async def ask():
        return direct.answer(route, [(b"content-length", b"%d" % len(body))], body)

    reply = asyncio.run_coroutine_threadsafe(ask(), server.loop).result(WAIT_S)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.head) == (200, b"content-type: application/json\r\n")
