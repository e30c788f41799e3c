"""The REST API over real sockets: every route, every form of a request, every client error."""

import threading

import numpy as np
import orjson
import pytest

from cases import for_each
from headrace.core import Model, TensorSpec
from headrace.core.errors import UnsupportedError
from headrace.core.tensor import InferResponse
from headrace.protocols.oip_json import decode_response
from headrace.protocols.sse import EventDecoder
from headrace.testing import EchoModel, HeldModel
from server.support import (
    HEADER_LENGTH,
    WAIT_S,
    EchoAll,
    Linear,
    Raising,
    RestServer,
    Strided,
    Texts,
    Typed,
    Words,
    definition,
    serving,
    tensor,
)
from servers.polling import wait_until

ROW = tensor("x", [1, 2, 3, 4], shape=[1, 4])


class Both(Model):
    """A model that predicts, and also streams a response for each row."""

    inputs = (TensorSpec("x", "FP32", (-1,)),)

    def predict(self, x):
        return x

    def predict_stream(self, requests):
        for request in requests:
            for value in request["x"]:
                yield {"y": np.array([value], np.float32), "z": np.array([1, 2], np.int64)}


class NoTensor(Model):
    """A model whose output is no tensor of the protocol: neither text nor bytes."""

    def predict(self, x):
        return {"y": np.array([object()] * len(x), object)}


class Surrogate(Model):
    """A model that raises a text that is not valid UTF-8."""

    def predict(self, x):
        raise ValueError("lone \ud800 surrogate")


class WholeEcho(Model):
    """A model that returns whole requests."""

    def predict(self, **tensors):
        return tensors

    def predict_request(self, request):
        return InferResponse(request.inputs)


class StreamEcho(Model):
    """A model that streams its requests."""

    async def predict_stream(self, requests):
        async for request in requests:
            yield InferResponse(request.inputs)
            yield {t.name: t.data for t in request.inputs}


class Infinite(Model):
    """A model whose output is a number that JSON lacks."""

    def predict(self, x):
        return np.array([[np.inf, np.nan]] * len(x), np.float32)


@pytest.fixture(scope="module")
def server():
    models = [
        definition(Linear, "linear"),
        definition(Linear, "linear", "2"),
        definition(Linear, "linear", "10"),
        definition(EchoModel, "echo"),
        definition(EchoAll, "any"),
        definition(EchoAll, "inline", isolation="inline"),
        definition(Typed, "typed"),
        definition(Strided, "strided"),
        definition(Words, "words"),
        definition(Raising, "raising"),
        definition(Texts, "texts"),
        definition(Both, "both"),
        definition(NoTensor, "texted"),
        definition(Surrogate, "surrogate"),
        definition(Infinite, "infinite"),
        definition(WholeEcho, "whole"),
        definition(StreamEcho, "streamed"),
        definition(Linear, "stats"),
        definition(Linear, "na me/é%".replace("/", "-")),
    ]
    with serving(models) as opened:
        yield opened


def binary_body(*tensors: tuple[str, str, list[int], bytes], **document) -> tuple[bytes, dict[str, str]]:
    """Return a body of JSON and raw tensors, and its header."""
    inputs = [
        {"name": n, "datatype": d, "shape": s, "parameters": {"binary_data_size": len(raw)}}
        for n, d, s, raw in tensors
    ]
    head = orjson.dumps({"inputs": inputs, **document})
    return head + b"".join(raw for *_, raw in tensors), {HEADER_LENGTH: str(len(head))}


def outputs_of(answer):
    """Return the arrays of a response by name."""
    length = answer.headers.get(HEADER_LENGTH.lower())
    response = decode_response(answer.body, None if length is None else int(length))
    return {t.name: t.data for t in response.outputs}


# Metadata


def test_server_metadata_has_name_version_and_extensions(server: RestServer):
    for path in ("/v2", "/v2/", "/"):
        response = server.get(path)
        assert response.status == 200
        assert (response.json["name"], response.json["version"]) == ("headrace", "1.2")
        assert "binary_tensor_data" in response.json["extensions"]


def test_health_responses_are_json(server: RestServer):
    assert server.get("/v2/health/live").json == {"live": True}
    assert server.get("/v2/health/ready").json == {"ready": True}
    assert server.get("/v2/models/linear/ready").json == {"name": "linear", "ready": True}


def test_server_is_live_but_not_ready_while_models_load():
    with serving({"linear": Linear}, started=False) as server:
        assert server.get("/v2/health/live").status == 200
        response = server.get("/v2/health/ready")
        assert (response.status, response.json) == (503, {"ready": False})
        assert server.get("/v2/models/linear/ready").status == 503
        assert server.infer("linear", ROW).status == 503
        assert server.get("/v2/models/linear").status == 503
        assert server.get("/v2/models/nope/ready").status == 404
        server.repository.start()
        assert server.get("/v2/health/ready").status == 200
        server.dataplane.drain()
        assert server.get("/v2/health/ready").status == 503
        assert server.infer("linear", ROW).status == 200, "who drains still answers"


def test_model_and_version_metadata(server: RestServer):
    found = server.get("/v2/models/linear").json
    assert found["versions"] == ["1", "2", "10"]
    assert found["platform"] == "Linear"
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}]
    assert server.get("/v2/models/linear/versions/2").json["name"] == "linear"
    assert set(server.get("/v2/models").json["models"]) >= {"linear", "echo"}


def test_newest_version_is_the_default(server: RestServer):
    assert server.infer("linear", ROW).json["model_version"] == "10"
    assert server.infer("linear/versions/2", ROW).json["model_version"] == "2"
    assert server.get("/v2/models/linear/versions/2/ready").status == 200
    response = server.infer("linear/versions/3", ROW)
    assert response.status == 404
    assert "no version '3'" in response.error


def test_statistics_count_requests(server: RestServer):
    server.infer("linear/versions/1", ROW)
    (one,) = server.get("/v2/models/linear/versions/1/stats").json["model_stats"]
    assert (one["name"], one["version"]) == ("linear", "1")
    assert one["inference_count"] >= 1
    assert len(server.get("/v2/models/linear/stats").json["model_stats"]) == 3
    assert len(server.get("/v2/models/stats").json["model_stats"]) == 19


def test_model_may_be_named_stats(server: RestServer):
    assert server.infer("stats", ROW).status == 200
    assert server.get("/v2/models/stats/ready").json == {"name": "stats", "ready": True}
    assert "model_stats" in server.get("/v2/models/stats").json


def test_model_names_are_percent_decoded(server: RestServer):
    assert server.get("/v2/models/na%20me-%C3%A9%25").json["name"] == "na me-é%"


def test_index_lists_every_version(server: RestServer):
    everything = server.post("/v2/repository/index").json
    assert {"name": "linear", "version": "2", "state": "READY", "reason": ""} in everything
    assert server.post("/v2/repository/index", {"ready": True}).json == everything
    assert server.post("/v2/repository/index", {"ready": "yes"}).status == 400
    assert server.post("/v2/repository/index", b"[]").status == 400


def test_documentation_is_served(server: RestServer):
    document = server.get("/v2/docs/dataplane.json").json
    assert document == server.get("/openapi.json").json
    assert "/v2/models/{model_name}/infer" in document["paths"]
    page = server.get("/v2/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "linear" in page.body.decode()


# Routes


@for_each(
    "path",
    [
        "/v1/models",
        "/v2/nothing",
        "/v2/models/linear/nothing",
        "/v2/models//infer",
        "/v2/models/linear/versions//infer",
        "/v2/models/linear/versions",
        "/v2/models/linear/infer/more",
        "/v2//models",
        "/v2/models/linear//",
        "/v2/repository/models//load",
        "/v2/repository/models/linear/nothing",
        "/V2",
        "/v2/models/..%2F..%2Fetc%2Fpasswd/infer",
    ],
)
def test_other_paths_respond_404(server: RestServer, path):
    for method in ("GET", "POST"):
        response = server.request(method, path)
        assert response.status == 404
        assert "no resource at" in response.error


@for_each(
    "name",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fetc",
        "%00",
        "a%00b",
        "x" * 10_000,
        "%F0%9F%92%A9",
        "%FF%FE",
        "é",
        "<script>",
        "a%0d%0aSet-Cookie:x",
        "%25s",
    ],
)
def test_unknown_models_respond_404_for_any_body(server: RestServer, name):
    with server.socket() as raw:
        for body in (b"{", b'{"inputs": []}', b"\0" * 100):
            for action in ("infer", "infer_stream", "generate", "generate_stream"):
                response = raw.post(f"/v2/models/{name}/{action}", body).read_response()
                if response.status == 400:  # the path itself is malformed
                    return
                assert response.status == 404
                assert len(response.error) < 4100
                assert "traceback" not in response.error.lower()
        for path in (f"/v2/models/{name}", f"/v2/models/{name}/ready", f"/v2/models/{name}/stats"):
            assert raw.send(b"GET ", path.encode(), b" HTTP/1.1\r\n\r\n").read_response().status == 404


def test_trailing_slashes_are_ignored(server: RestServer):
    assert server.get("/v2/models/linear/").json["name"] == "linear"
    assert server.get("/v2/models/").json["models"]
    assert server.post("/v2/models/linear/infer/", {"inputs": [ROW]}).status == 200
    assert server.get("/v2/health/live/").status == 200


@for_each(
    ("method", "path", "allow"),
    [
        ("POST", "/v2", "GET, HEAD"),
        ("GET", "/v2/models/linear/infer", "POST"),
        ("HEAD", "/v2/models/linear/infer", "POST"),
        ("DELETE", "/v2/models/linear", "GET, HEAD"),
        ("OPTIONS", "/v2/health/live", "GET, HEAD"),
        ("PATCH", "/v2/repository/index", "POST"),
        ("PUT", "/v2/repository/models/linear/load", "POST"),
        ("TRACE", "/v2/models/linear/stats", "GET, HEAD"),
    ],
)
def test_unsupported_methods_respond_405_with_allow(server: RestServer, method, path, allow):
    response = server.request(method, path)
    assert response.status == 405
    assert response.headers["allow"] == allow
    assert method == "HEAD" or allow in response.error


@for_each("path", ["/v2", "/v2/models/linear", "/v2/models/linear/versions/2/ready", "/v2/docs"])
def test_head_is_get_without_a_body(server: RestServer, path):
    head, get = server.request("HEAD", path), server.get(path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.body))
    assert server.request("HEAD", "/v2/models/nope").status == 404


# Inference in JSON


def test_response_bytes(server: RestServer):
    response = server.infer("linear/versions/1", ROW, id="a")
    assert response.body == (
        b'{"model_name":"linear","model_version":"1","id":"a","outputs":'
        b'[{"name":"y","shape":[1,1],"datatype":"FP32","data":[10.0]}]}'
    )
    assert response.headers["content-type"] == "application/json"


def test_data_may_be_nested_or_flat(server: RestServer):
    nested = {**ROW, "shape": [2, 4], "data": [[1, 2, 3, 4], [5, 6, 7, 8]]}
    flat = {**ROW, "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8]}
    for one in (nested, flat):
        assert server.infer("linear", one).json["outputs"][0]["data"] == [10.0, 26.0]


def test_parameters_and_unknown_keys_are_accepted(server: RestServer):
    more = {"content_type": "np", "anything": [{"at": ["all"]}]}
    response = server.infer("linear", {**ROW, "parameters": more, "extra": 1}, parameters=more, unknown={})
    assert response.status == 200


def test_request_without_rows_has_outputs_without_rows(server: RestServer):
    response = server.infer("linear", {**ROW, "shape": [0, 4], "data": []})
    expected = [{"name": "y", "shape": [0, 1], "datatype": "FP32", "data": []}]
    assert (response.status, response.json["outputs"]) == (200, expected)


def test_rows_without_values(server: RestServer):
    response = server.infer("any", tensor("x", [], shape=[3, 0]))
    assert response.json["outputs"] == [{"name": "x", "shape": [3, 0], "datatype": "FP32", "data": []}]


def test_requested_outputs_are_returned_in_order(server: RestServer):
    inputs = [tensor("a"), tensor("b"), tensor("c")]
    response = server.infer("any", *inputs, outputs=[{"name": "c"}, {"name": "a"}])
    assert [o["name"] for o in response.json["outputs"]] == ["c", "a"]
    response = server.infer("any", *inputs, outputs=[{"name": "nope"}])
    assert response.status == 400
    assert "no output 'nope' (it has 'a', 'b', 'c')" in response.error


def test_non_contiguous_outputs_are_written_row_major(server: RestServer):
    data = tensor("x", list(range(8)), shape=[2, 4])
    json = {o["name"]: o["data"] for o in server.infer("strided", data).json["outputs"]}
    assert json == {"reversed": [3, 2, 1, 0, 7, 6, 5, 4], "second": [0, 2, 4, 6], "column": list(range(8))}
    binary = outputs_of(server.infer("strided", data, parameters={"binary_data_output": True}))
    assert {n: a.ravel().tolist() for n, a in binary.items()} == json


def test_null_means_nan_and_infinity_is_refused(server: RestServer):
    response = server.infer("any", tensor("x", [1.5, None]))
    assert response.json["outputs"][0]["data"] == [1.5, None]
    response = server.infer("infinite", tensor("x"))
    assert response.status == 400
    assert "infinite" in response.error
    assert "binary" in response.error
    found = outputs_of(server.infer("infinite", tensor("x"), parameters={"binary_data_output": True}))
    assert np.isinf(found["output"][0, 0])


def test_infer_joins_the_items_of_a_stream(server: RestServer):
    response = server.infer("words", tensor("text", ["to be or"], "BYTES"))
    assert response.json["outputs"] == [
        {"name": "word", "shape": [3], "datatype": "BYTES", "data": ["to", "be", "or"]}
    ]


def test_infer_prefers_predict_over_streaming(server: RestServer):
    assert server.infer("both", tensor("x", [1, 2])).json["outputs"][0]["name"] == "output"


# Binary tensors


def test_binary_request_and_response(server: RestServer):
    x = np.arange(8, dtype=np.float32)
    body, header = binary_body(("x", "FP32", [2, 4], x.tobytes()), parameters={"binary_data_output": True})
    response = server.post(
        "/v2/models/linear/infer", body, {**header, "Content-Type": "application/octet-stream"}
    )
    assert response.status == 200
    assert response.headers["content-type"] == "application/octet-stream"
    json_bytes = int(response.headers[HEADER_LENGTH.lower()])
    assert orjson.loads(response.body[:json_bytes])["outputs"] == [
        {"name": "y", "shape": [2, 1], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    ]
    assert np.frombuffer(response.body[json_bytes:], "<f4").tolist() == [6.0, 22.0]


def test_json_and_binary_can_be_mixed_by_direction(server: RestServer):
    assert outputs_of(server.infer("linear", ROW, parameters={"binary_data_output": True}))["y"][0, 0] == 10
    body, header = binary_body(("x", "FP32", [1, 4], np.ones(4, "<f4").tobytes()))
    response = server.post("/v2/models/linear/infer", body, header)
    assert response.json["outputs"][0]["data"] == [4.0]
    assert HEADER_LENGTH.lower() not in response.headers


def test_json_and_binary_can_be_mixed_by_output(server: RestServer):
    inputs = [tensor("a"), tensor("b", ["é"], "BYTES"), tensor("c", [7], "INT64")]
    requested = [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}, {"name": "c"}]
    response = server.infer("any", *inputs, outputs=requested, parameters={"binary_data_output": True})
    first, second, third = response.json["outputs"]
    assert first["data"] == [1.0]
    assert [second["parameters"], third["parameters"]] == [{"binary_data_size": 6}, {"binary_data_size": 8}]
    assert response.body.endswith(b"\x02\0\0\0\xc3\xa9\x07\0\0\0\0\0\0\0")
    requested = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]
    response = server.infer("any", *inputs, outputs=requested)
    assert response.json["outputs"][1]["data"] == ["é"]


def test_every_datatype_in_binary(server: RestServer):
    brain = np.array([1.5, -2.0, 0.0, 3.0], np.float32).view(np.uint32) >> 16
    body, header = binary_body(
        ("flag", "BOOL", [2], b"\1\0"),
        ("text", "BYTES", [2], b"\1\0\0\0\xff\0\0\0\0"),
        ("half", "FP16", [2, 2], np.array([1, 2, 3, 4.5], "<f2").tobytes()),
        ("brain", "BF16", [2, 2], brain.astype("<u2").tobytes()),
        ("whole", "INT64", [2], np.array([-1, 2**62], "<i8").tobytes()),
        parameters={"binary_data_output": True},
    )
    response = server.post("/v2/models/typed/infer", body, header)
    assert response.status == 200, response.body
    assert [o["datatype"] for o in response.json["outputs"]] == ["BOOL", "BYTES", "FP16", "BF16", "INT64"]
    sent = body[int(header[HEADER_LENGTH]) :]
    assert response.body[int(response.headers[HEADER_LENGTH.lower()]) :] == sent


def test_zero_rows_and_zero_sizes_in_binary(server: RestServer):
    body, header = binary_body(("x", "FP32", [3, 0], b""), parameters={"binary_data_output": True})
    response = server.post("/v2/models/any/infer", body, header)
    assert response.json["outputs"][0]["parameters"] == {"binary_data_size": 0}
    body, header = binary_body(("x", "FP32", [0, 4], b""), parameters={"binary_data_output": True})
    response = server.post("/v2/models/linear/infer", body, header)
    parameters = {"binary_data_size": 0}
    assert response.json["outputs"] == [
        {"name": "y", "shape": [0, 1], "datatype": "FP32", "parameters": parameters}
    ]
    assert outputs_of(response)["y"].shape == (0, 1)


@for_each("model", ["any", "inline", "both"])
def test_tensor_without_axes_is_one_row(server: RestServer, model):
    for data in ([2.5], 2.5):
        response = server.infer(model, {**tensor(shape=[]), "data": data})
        assert response.status == 200, response.body
        found = [tuple(t.data.shape) for t in decode_response(response.body).outputs]
        assert (found, response.json["outputs"][0]["data"]) == ([(1,)], [2.5])
    body, headers = binary_body(("x", "FP32", [], np.float32(2.5).tobytes()))
    found = outputs_of(server.post(f"/v2/models/{model}/infer", body, headers))
    assert [(d.shape, d.tolist()) for d in found.values()] == [((1,), [2.5])]
    response = server.infer("any", tensor("x", [1, 2], shape=[2]), tensor("y", [1], shape=[]))
    assert (response.status, "disagree on the number of rows (x: 2, y: 1)" in response.error) == (400, True)
    response = server.infer("linear", tensor(shape=[]))
    assert "takes FP32 [-1, 4], but the request has FP32 [1]" in response.error


@for_each("text", [False, True])
def test_whole_requests_and_streams_keep_tensors_without_axes(server: RestServer, text):
    datatype, value = ("BYTES", "one") if text else ("FP32", 2.5)
    inputs = tensor("x", [value], datatype, []), tensor("y", [1, 2, 3])
    as_json = [{"name": "x", "shape": [], "datatype": datatype, "data": [value]}]
    response = server.infer("whole", *inputs)
    assert [t["name"] for t in response.json["outputs"]] == ["x", "y"]
    assert response.json["outputs"][:1] == as_json
    assert server.infer("whole", inputs[0]).json["outputs"] == as_json
    binary = server.infer("whole", inputs[0], parameters={"binary_data_output": True})
    (found,) = outputs_of(binary).values()
    assert (found.shape, found.item()) == ((), b"one" if text else 2.5)
    response = server.post("/v2/models/streamed/infer_stream", {"inputs": list(inputs)})
    events = [orjson.loads(event) for event in EventDecoder().feed(response.body)]
    assert [event["outputs"][:1] for event in events] == [as_json, as_json]
    joined = server.infer("streamed", inputs[0]).json["outputs"]
    assert joined == [{"name": "x", "shape": [2], "datatype": datatype, "data": [value, value]}]


def test_non_utf8_bytes_need_binary(server: RestServer):
    body, header = binary_body(("x", "BYTES", [1], b"\1\0\0\0\xff"))
    response = server.post("/v2/models/any/infer", body, header)
    assert response.status == 400
    assert "not UTF-8" in response.error


def test_raw_request_is_a_single_tensor(server: RestServer):
    raw = {HEADER_LENGTH: "0"}
    response = server.post("/v2/models/linear/infer", np.arange(8, dtype="<f4").tobytes(), raw)
    assert outputs_of(response)["y"].ravel().tolist() == [6.0, 22.0]
    response = server.post("/v2/models/words/infer", b"to be", raw)
    assert outputs_of(response)["word"].tolist() == [b"to", b"be"]
    response = server.post("/v2/models/linear/infer", b"123", raw)
    assert response.status == 400
    assert "3 bytes" in response.error
    assert "one input" in server.post("/v2/models/typed/infer", b"", raw).error
    assert "not known" in server.post("/v2/models/echo/infer", b"1234", raw).error
    assert server.post("/v2/models/linear/infer_stream", np.ones(4, "<f4").tobytes(), raw).status == 200


# Bad requests


BAD_TENSORS = {
    "product is not the number of values": {**ROW, "shape": [2, 4]},
    "negative size": {**ROW, "shape": [-1, 4]},
    "huge size": {**ROW, "shape": [2**63, 4]},
    "huge size and nothing": {**ROW, "shape": [2**63, 0], "data": []},
    "larger than 64 bits": {**ROW, "shape": [2**70, 4]},
    "size is no integer": {**ROW, "shape": [1.5, 4]},
    "size is true": {**ROW, "shape": [True, 4]},
    "shape is text": {**ROW, "shape": "1,4"},
    "no shape": {k: v for k, v in ROW.items() if k != "shape"},
    "no dimension": {**ROW, "shape": [], "data": [1, 2]},
    "many dimensions": {**ROW, "shape": [1] * 100},
    "datatype unknown": {**ROW, "datatype": "FP128"},
    "datatype is a number": {**ROW, "datatype": 32},
    "datatype is a list": {**ROW, "datatype": []},
    "integers with fractions": {**ROW, "datatype": "INT32", "data": [1.5, 2, 3, 4]},
    "out of range": {**ROW, "datatype": "UINT8", "data": [256, 0, 0, 0]},
    "negative unsigned": {**ROW, "datatype": "UINT32", "data": [-1, 0, 0, 0]},
    "too large for its float": {**ROW, "data": [1e39, 0, 0, 0]},
    "text for numbers": {**ROW, "data": ["1", "2", "3", "4"]},
    "true for numbers": {**ROW, "data": [True, 2, 3, 4.5]},
    "numbers for text": {**ROW, "datatype": "BYTES"},
    "ragged": {**ROW, "data": [[1, 2], [3], [4]]},
    "lists and values": {**ROW, "data": [[1, 2], 3, 4]},
    "nested otherwise": {**ROW, "data": [[1, 2], [3, 4]]},
    "data is text": {**ROW, "data": "1234"},
    "data is an object": {**ROW, "data": {"0": 1}},
    "no data": {k: v for k, v in ROW.items() if k != "data"},
    "no name": {k: v for k, v in ROW.items() if k != "name"},
    "empty name": {**ROW, "name": ""},
    "name is a number": {**ROW, "name": 5},
    "another name": {**ROW, "name": "z"},
    "parameters is a list": {**ROW, "parameters": []},
    "binary size without binary": {**ROW, "parameters": {"binary_data_size": 16}},
    "BF16 in JSON": {**ROW, "datatype": "BF16"},
    "a string": "x",
    "null": None,
}


@for_each("what", BAD_TENSORS)
@for_each("action", ["infer", "infer_stream", "generate"])
def test_malformed_tensor_responds_400(server: RestServer, what, action):
    response = server.post(f"/v2/models/linear/{action}", {"inputs": [BAD_TENSORS[what]]})
    assert response.status == 400, response.body
    assert response.error


BAD_BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "NaN": b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[NaN,1,2,3]}]}',
    "Infinity": b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[Infinity,1,2,3]}]}',
    "lone surrogate": b'{"id":"\\ud800","inputs":[]}',
    "no UTF-8": b'{"id":"\xff"}',
    "UTF-16": '{"inputs":[]}'.encode("utf-16"),
    "nested 100 000 deep": b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "data nested 900 deep": orjson.dumps({"inputs": [ROW]}).replace(b"[1,2,3,4]", b"[" * 900 + b"]" * 900),
    "no inputs": b'{"inputs":[]}',
    "inputs is an object": b'{"inputs":{}}',
    "the same twice": orjson.dumps({"inputs": [ROW, ROW]}),
    "an input too many": orjson.dumps({"inputs": [ROW, {**ROW, "name": "z"}]}),
    "10 000 inputs": orjson.dumps({"inputs": [{**ROW, "name": str(i)} for i in range(10_000)]}),
    "10 000 outputs": orjson.dumps({"inputs": [ROW], "outputs": [{"name": str(i)} for i in range(10_000)]}),
    "1 000 outputs": orjson.dumps({"inputs": [ROW], "outputs": [{"name": str(i)} for i in range(1000)]}),
    "the same output twice": orjson.dumps({"inputs": [ROW], "outputs": [{"name": "y"}] * 2}),
    "parameters is text": orjson.dumps({"inputs": [ROW], "parameters": "p"}),
    "id is a number": orjson.dumps({"inputs": [ROW], "id": 7}),
    "priority is text": orjson.dumps({"inputs": [ROW], "parameters": {"priority": "1"}}),
    "priority is negative": orjson.dumps({"inputs": [ROW], "parameters": {"priority": -1}}),
    "timeout is true": orjson.dumps({"inputs": [ROW], "parameters": {"timeout": True}}),
    "binary_data_output is 1": orjson.dumps({"inputs": [ROW], "parameters": {"binary_data_output": 1}}),
    "binary_data is text": orjson.dumps(
        {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"binary_data": "y"}}]}
    ),
}


@for_each("what", BAD_BODIES)
def test_malformed_body_responds_400(server: RestServer, what):
    response = server.post("/v2/models/linear/infer", BAD_BODIES[what])
    assert response.status == 400, response.body
    assert 0 < len(response.error) < 4100


@for_each("model", ["any", "inline"])
def test_tensor_named_self_responds_400(server: RestServer, model):
    """Python would take it for the first parameter of `predict(self, **tensors)`."""
    for names in (["self"], ["x", "self"]):
        response = server.infer(model, *(tensor(name, [1], shape=[1]) for name in names))
        assert (response.status, "no input can be named 'self'" in response.error) == (400, True)


def test_last_duplicate_key_wins(server: RestServer):
    body = (
        b'{"id":"a","id":"b","inputs":'
        b'[{"name":"x","shape":[9],"shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
    )
    assert server.post("/v2/models/linear/infer", body).json["id"] == "b"


@for_each(
    ("header", "size", "raw"),
    [
        ("1000000", 16, b"\0" * 16),
        ("-1", 16, b"\0" * 16),
        ("1e3", 16, b"\0" * 16),
        ("9" * 30, 16, b"\0" * 16),
        ("", 16, b"\0" * 16),
        (None, 17, b"\0" * 16),
        (None, 2**63, b"\0" * 16),
        (None, -1, b"\0" * 16),
        (None, "16", b"\0" * 16),
        (None, True, b"\0" * 16),
        (None, 16.0, b"\0" * 16),
        (None, None, b"\0" * 16),
        (None, 15, b"\0" * 15),
        (None, 16, b"\0" * 17),
    ],
)
def test_wrong_binary_sizes_respond_400(server: RestServer, header, size, raw):
    head = orjson.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": size}}
            ]
        }
    )
    headers = {HEADER_LENGTH: str(len(head)) if header is None else header}
    response = server.post("/v2/models/linear/infer", head + raw, headers)
    assert response.status == 400
    assert response.error


@for_each("raw", [b"\xff\xff\xff\xff", b"\5\0\0\0abc", b"\1\0\0\0a\1\0\0", b"\1\0\0\0", b"", b"\1\0\0\0aX"])
def test_wrong_bytes_element_lengths_respond_400(server: RestServer, raw):
    body, header = binary_body(("text", "BYTES", [1], raw))
    assert server.post("/v2/models/words/infer", body, header).status == 400
    body, header = binary_body(("text", "BYTES", [2**32], raw))
    assert server.post("/v2/models/words/infer", body, header).status == 400


@for_each("model", ["any", "inline"])
def test_too_many_empty_rows_are_refused_quickly(server: RestServer, model):
    """2^40 rows without values are a body of a few bytes; they must not be processed."""
    response = server.infer(model, tensor("x", [], shape=[2**40, 0]))
    assert response.status == 413
    assert "the limit is 1048576" in response.error


# Model errors


def test_model_error_has_only_the_models_message(server: RestServer):
    response = server.infer("raising", tensor("x", [-1]))
    assert response.status == 500
    # The message of the model is sent unchanged; headrace adds no details of its own.
    assert response.error == "model raising: ValueError: negative at /secret/weights.bin"


def test_refused_rows_are_named(server: RestServer):
    response = server.infer("raising", tensor("x", [1, 13]))
    assert (response.status, response.error) == (422, "model raising: row 1: thirteen")


def test_invalid_model_output_responds_500(server: RestServer):
    assert server.infer("texted", tensor("x")).status == 500


def test_unencodable_error_text_is_sent(server: RestServer):
    response = server.infer("surrogate", tensor("x"))
    assert response.status == 500
    assert "surrogate" in response.error


def test_unexpected_error_discloses_nothing(server: RestServer, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("secret /etc/passwd")

    monkeypatch.setattr(server.dataplane, "metadata", broken)
    response = server.infer("linear", ROW)
    assert (response.status, response.error) == (500, "internal error")
    assert "secret" in caplog.text


# Priorities, timeouts and limits


def test_full_queue_responds_429_with_retry_after():
    held = HeldModel()
    with serving({"held": held}, queue_rows_max=2, max_batch_rows=1) as server:
        threads = [threading.Thread(target=server.infer, args=("held", tensor("x"))) for _ in range(3)]
        threads[0].start()
        held.wait_for_calls(1)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: server.dataplane.statistics("held")[0].waiting_rows == 2)
        response = server.infer("held", tensor("x"))
        assert response.status == 429
        assert int(response.headers["retry-after"]) >= 1
        assert "queue_rows_max" in response.error
        assert server.infer("held", tensor("x", [1, 2, 3])).status == 429, (
            "it has to wait till nothing else does"
        )
        held.release(10)
        for thread in threads:
            thread.join(WAIT_S)
        assert server.infer("held", tensor("x")).status == 200


def test_timeout_in_microseconds_responds_504():
    held = HeldModel()
    with serving({"held": held}) as server:
        response = server.infer("held", tensor("x"), parameters={"timeout": 50_000}, id="late")
        assert response.status == 504
        assert "late" in response.error
        held.release(10)
        assert server.infer("held", tensor("x"), parameters={"timeout": 2**63}).status == 200
        assert server.infer("held", tensor("x"), parameters={"timeout": 0, "priority": 0}).status == 200


def test_higher_priority_runs_first():
    order: list[float] = []

    class Noting(HeldModel):
        def predict(self, x):
            order.extend(x.ravel().tolist())
            return super().predict(x)

    held = Noting()
    with serving({"held": held}, max_batch_rows=1) as server:

        def send(value: float, priority: int):
            server.infer("held", tensor("x", [value]), parameters={"priority": priority})

        threads = []
        for waiting, (value, priority) in enumerate([(1, 0), (2, 20), (3, 0), (4, 1)]):
            threads.append(threading.Thread(target=send, args=(value, priority)))
            threads[-1].start()
            held.wait_for_calls(1)
            wait_until(lambda n=waiting: server.dataplane.statistics("held")[0].waiting_rows == n)
        held.release(10)
        for thread in threads:
            thread.join(WAIT_S)
        assert order == [1, 4, 3, 2]


def test_disconnect_removes_the_request_from_the_queue():
    held = HeldModel()
    with serving({"held": held}, max_batch_rows=1) as server:
        first = threading.Thread(target=server.infer, args=("held", tensor("x")))
        first.start()
        held.wait_for_calls(1)
        missing = server.socket().post("/v2/models/held/infer", orjson.dumps({"inputs": [tensor("x")]}))
        wait_until(lambda: server.dataplane.statistics("held")[0].waiting_requests == 1)
        missing.abort()
        wait_until(lambda: server.dataplane.statistics("held")[0].waiting_requests == 0)
        assert server.dataplane.statistics("held")[0].cancelled == 1
        held.release(10)
        first.join(WAIT_S)
        wait_until(lambda: server.open_tasks() <= 3)
        assert held.calls == 1, "nobody waited for the second"


# Event streams


def test_event_stream_bytes(server: RestServer):
    with server.socket() as raw:
        body = orjson.dumps({"id": "i", "inputs": [tensor("text", ["to é"], "BYTES")]})
        raw.post("/v2/models/words/infer_stream", body, b"Connection: close")
        head, _, rest = raw.read_to_end().partition(b"\r\n\r\n")
    assert b"HTTP/1.1 200" in head
    assert b"content-type: text/event-stream; charset=utf-8" in head.lower()
    assert b"cache-control: no-cache" in head
    assert b"content-length" not in head.lower()

    def event(word):
        return (
            '{"model_name":"words","model_version":"1","id":"i","outputs":'
            f'[{{"name":"word","shape":[1],"datatype":"BYTES","data":["{word}"]}}]}}'
        )

    assert unchunked(rest) == f"data: {event('to')}\n\ndata: {event('é')}\n\n".encode()


def test_non_streaming_model_streams_one_event(server: RestServer):
    response = server.post("/v2/models/linear/infer_stream", {"inputs": [ROW]})
    (event,) = EventDecoder().feed(response.body)
    assert orjson.loads(event)["outputs"][0]["data"] == [10.0]
    assert orjson.loads(event)["model_version"] == "10"


def test_stream_has_only_requested_outputs(server: RestServer):
    body = {"inputs": [tensor("x", [1, 2])], "outputs": [{"name": "z"}]}
    events = EventDecoder().feed(server.post("/v2/models/both/infer_stream", body).body)
    assert [[o["name"] for o in orjson.loads(e)["outputs"]] for e in events] == [["z"], ["z"]]
    response = server.post(
        "/v2/models/words/infer_stream",
        {"inputs": [tensor("text", ["a"], "BYTES")], "outputs": [{"name": "no"}]},
    )
    assert response.status == 400
    assert "no output 'no'" in response.error


def test_failure_before_the_first_event_is_an_error_response(server: RestServer):
    def send(text):
        return server.post("/v2/models/words/infer_stream", {"inputs": [tensor("text", [text], "BYTES")]})

    response = send("boom")
    assert (response.status, response.headers["content-type"]) == (500, "application/json")
    assert "boom" in response.error
    response = send("inf")
    assert response.status == 400, "what cannot be encoded is before the first event too"
    assert "infinite" in response.error


@for_each(("text", "why"), [("a b boom c", "boom"), ("a b inf c", "infinite")])
def test_later_failure_is_the_last_event(server: RestServer, text, why):
    response = server.post("/v2/models/words/infer_stream", {"inputs": [tensor("text", [text], "BYTES")]})
    assert response.status == 200
    *words, last = EventDecoder().feed(response.body)
    assert [orjson.loads(e)["outputs"][0]["data"] for e in words] == [["a"], ["b"]]
    assert why in orjson.loads(last)["error"]
    assert set(orjson.loads(last)) == {"error", "type"}


def test_empty_stream_has_no_events(server: RestServer):
    response = server.post("/v2/models/words/infer_stream", {"inputs": [tensor("text", [""], "BYTES")]})
    assert (response.status, response.body) == (200, b"")


class Endless(Model):
    """A model that streams for ever and records its items and its end."""

    inputs = (TensorSpec("x", "FP32", (-1,)),)

    def __init__(self):
        self.yielded = 0
        self.closed = threading.Event()

    def predict_stream(self, requests):
        (request,) = list(requests)
        block = np.zeros(1000, np.float64)
        try:
            while True:
                self.yielded += 1
                yield {"y": block, "n": np.array([float(request["x"][0])])}
        finally:
            self.closed.set()


def test_disconnect_closes_the_generator():
    model = Endless()
    with serving({"endless": model}) as server:
        raw = server.socket().post("/v2/models/endless/infer_stream", orjson.dumps({"inputs": [tensor("x")]}))
        raw.read_until(b"data: ")
        assert not model.closed.is_set()
        raw.abort()
        assert model.closed.wait(WAIT_S)
        wait_until(lambda: server.dataplane.statistics("endless")[0].open_streams == 0)
        wait_until(lambda: server.open_tasks() <= 3)


def test_slow_reader_throttles_the_model():
    """Only the events that fit into the buffers are made while the client does not read.

    Requests to another model are the clock: the server handles them and the stream in one event loop.
    """
    model = Endless()
    with serving({"endless": model, "linear": Linear}) as server:
        with server.socket() as raw:
            raw.post("/v2/models/endless/infer_stream", orjson.dumps({"inputs": [tensor("x")]}))
            raw.read_until(b"data: ")

            def has_stopped():
                before = model.yielded
                for _ in range(50):
                    assert server.infer("linear", ROW).status == 200
                return model.yielded == before

            assert any(has_stopped() for _ in range(200))
            # 256 in the pipe, as many taken from it at once, and those in the buffers of the sockets.
            assert model.yielded < 4000
            assert not model.closed.is_set()
        assert model.closed.wait(WAIT_S)


def test_open_streams_are_limited():
    model = Endless()
    with serving({"endless": model}, streams_max=1) as server, server.socket() as raw:
        raw.post("/v2/models/endless/infer_stream", orjson.dumps({"inputs": [tensor("x")]}))
        raw.read_until(b"data: ")
        response = server.post("/v2/models/endless/infer_stream", {"inputs": [tensor("x")]})
        assert response.status == 429
        assert response.headers["retry-after"] == "1"


def test_stream_ends_at_its_timeout():
    model = Endless()
    with serving({"endless": model}) as server:
        response = server.post(
            "/v2/models/endless/infer_stream", {"inputs": [tensor("x")], "parameters": {"timeout": 100_000}}
        )
        assert "deadline" in orjson.loads(EventDecoder().feed(response.body)[-1])["error"]
        assert model.closed.wait(WAIT_S)


# Generate


def test_generate_returns_text(server: RestServer):
    response = server.post("/v2/models/texts/generate", {"text_input": "hello", "id": "g", "stream": False})
    assert response.json == {"model_name": "texts", "model_version": "1", "id": "g", "text_output": "HELLO"}
    response = server.post("/v2/models/texts/versions/1/generate", {"text_input": ["a", "b"]})
    assert response.json["text_output"] == ["A", "B"]


def test_generate_stream_sends_an_event_per_piece(server: RestServer):
    response = server.post(
        "/v2/models/words/generate_stream", {"text_input": "to be", "parameters": {"t": 1}}
    )
    assert [orjson.loads(e)["text_output"] for e in EventDecoder().feed(response.body)] == ["to", "be"]


def test_generate_accepts_inference_requests(server: RestServer):
    request = {"inputs": [tensor("text_input", ["a"], "BYTES")]}
    assert server.post("/v2/models/texts/generate", request).json["outputs"][0]["data"] == ["A"]
    events = EventDecoder().feed(server.post("/v2/models/texts/generate_stream", request).body)
    assert orjson.loads(events[0])["outputs"][0]["data"] == ["A"]


@for_each(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"text_input": {}}',
        b'{"text_input": 5}',
        b'{"text_input": null}',
        b'{"text_input": "a", "id": 3}',
        b'{"text_input": "a", "parameters": []}',
        b'{"text_input": "a", "timeout": "soon"}',
        b'{"text_input": "\\ud800"}',
        b'{"inputs": [{"name": "text_input"}]}',
        b'{"text_input": ' + b"[" * 100_000,
    ],
)
def test_malformed_generate_requests_respond_400(server: RestServer, body):
    for action in ("generate", "generate_stream"):
        response = server.post(f"/v2/models/texts/{action}", body)
        assert response.status == 400
        assert response.error


# Unsupported


def test_unsupported_feature_responds_501(server: RestServer, monkeypatch):
    def unsupported(*_):
        raise UnsupportedError("not here")

    monkeypatch.setattr(server.dataplane, "metadata", unsupported)
    assert server.infer("linear", ROW).status == 501


def unchunked(body: bytes) -> bytes:
    """Return a chunked body without its framing; it must be complete."""
    parts = []
    while True:
        size, _, body = body.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            assert body == b"\r\n"
            return b"".join(parts)
        parts.append(body[:count])
        body = body[count:].removeprefix(b"\r\n")
