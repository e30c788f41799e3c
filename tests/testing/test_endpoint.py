"""The scripted endpoint: its faults, and the behaviour of the real servers."""

import http.client
import json
import socket
import threading
from contextlib import suppress

import numpy as np
import orjson
import pytest

from headrace.core import InferRequest, RowError, Tensor, TensorSpec
from headrace.protocols.oip_documents import decode_metadata
from headrace.protocols.oip_json import decode_response, encode_request, parse_header_length
from headrace.testing import EndpointFault, ScriptedEndpoint

X = TensorSpec("x", "FP32", (-1, 2))
REQUEST = InferRequest((Tensor("x", np.array([[1, 0], [2, 0]], np.float32)),), id="r")


def double(tensors):
    return {"y": tensors["x"][:, 0] * 2}


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(double, inputs=(X,)) as endpoint:
        yield endpoint


class Client:
    """One connection to an endpoint."""

    def __init__(self, endpoint):
        self.connection = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def send(self, path, body=None, headers=None, method="POST"):
        self.connection.request(method, path, body, headers or {})
        response = self.connection.getresponse()
        return response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}


def send(endpoint, path, body=None, headers=None, method="POST"):
    with Client(endpoint) as client:
        return client.send(path, body, headers, method)


def infer(endpoint, *, binary=True, request=REQUEST):
    wire = encode_request(request, binary=binary)
    return send(endpoint, "/v2/models/model/infer", wire.body, wire.headers)


@pytest.mark.parametrize("binary", [True, False])
def test_open_inference_protocol_responds_in_the_form_of_the_request(endpoint, binary):
    status, body, headers = infer(endpoint, binary=binary)
    json_bytes = parse_header_length(headers.get("inference-header-content-length"))
    assert (status, json_bytes is not None) == (200, binary)
    response = decode_response(body, json_bytes)
    assert (response.outputs[0].data.tolist(), response.id, response.model_name) == ([2.0, 4.0], "r", "model")
    assert endpoint.requests[0].binary == binary
    assert endpoint.rows_completed == 2


def test_binary_tensors_are_refused_like_mlserver_does(endpoint):
    endpoint.binary = False
    assert infer(endpoint)[0] == 422
    assert infer(endpoint, binary=False)[0] == 200


def test_metadata_and_health(endpoint):
    status, body, _ = send(endpoint, "/v2/models/model", method="GET")
    assert (status, decode_metadata(body).inputs) == (200, (X,))
    for path in ("/v2/health/ready", "/v2/models/model/ready", "/v2/models/model/versions/1/ready", "/ping"):
        assert send(endpoint, path, method="GET")[0] == 200
    assert endpoint.requests == []
    assert len(endpoint.other_requests) == 5


@pytest.mark.parametrize(
    ("body", "answer"),
    [(b"[1.5, 0]", 3.0), (b'{"x": [2, 1]}', 4.0)],
)
def test_torchserve_has_a_row_per_request(endpoint, body, answer):
    for path in ("/predictions/model", "/predictions/model/1.0"):
        status, found, _ = send(endpoint, path, body)
        assert (status, json.loads(found)) == (200, answer)


def test_torchserve_takes_text_and_returns_objects():
    def predict(tensors):
        return {
            "length": np.array([len(tensors["x"][0])]),
            "kind": np.array([type(tensors["x"][0]).__name__], object),
        }

    with ScriptedEndpoint(predict) as endpoint:
        assert json.loads(send(endpoint, "/predictions/model", b"tabby")[1]) == {"length": 5, "kind": "str"}
        assert json.loads(send(endpoint, "/predictions/model", b"\xff")[1]) == {"length": 1, "kind": "bytes"}


def test_model_errors_become_the_responses_of_real_servers():
    def predict(tensors):
        if tensors["x"][0, 0] == 1:
            raise RowError(0, "not taken")
        raise ValueError("a defect")

    with ScriptedEndpoint(predict) as endpoint:
        wrong = InferRequest((Tensor("x", np.zeros((1, 2), np.float32)),))
        status, body, _ = infer(endpoint)
        assert (status, orjson.loads(body)) == (400, {"error": "row 0: not taken"})
        status, body, _ = infer(endpoint, request=wrong)
        assert (status, orjson.loads(body)) == (500, {"error": "ValueError: a defect"})
        assert send(endpoint, "/v2/models/model/infer", b"{")[0] == 400
        assert send(endpoint, "/predictions/model", b"[1, 0]")[0] == 400
        status, body, _ = send(endpoint, "/predictions/model", b"[0, 0]")
        assert (status, orjson.loads(body)["type"]) == (503, "InternalServerException")


def test_unknown_path_is_404(endpoint):
    for path in ("/v2/models/other/infer", "/predictions/other", "/"):
        assert send(endpoint, path, b"{}")[0] == 404


def test_token_is_required(endpoint):
    endpoint.token = "t"
    assert infer(endpoint)[0] == 401
    assert send(endpoint, "/v2/models/model", method="GET")[0] == 401
    assert send(endpoint, "/v2/models/model", method="GET", headers={"Authorization": "Bearer t"})[0] == 200


def test_each_prediction_uses_up_one_fault(endpoint):
    endpoint.faults += [
        EndpointFault(status=503, headers={"Retry-After": "7"}, body=b"busy"),
        None,
        EndpointFault(drop=True),
        EndpointFault(cut_bytes=5),
    ]
    status, body, headers = infer(endpoint)
    assert (status, body, headers["retry-after"]) == (503, b"busy", "7")
    assert send(endpoint, "/v2/models/model", method="GET")[0] == 200
    assert infer(endpoint)[0] == 200
    with pytest.raises(http.client.RemoteDisconnected):
        infer(endpoint)
    with pytest.raises(http.client.IncompleteRead) as caught:
        infer(endpoint)
    assert len(caught.value.partial) == 5
    assert infer(endpoint)[0] == 200
    assert len(endpoint.requests) == 5
    assert endpoint.completed == [1, 4]


def test_default_fault_applies_to_every_request(endpoint):
    endpoint.default_fault = EndpointFault(status=502)
    assert infer(endpoint)[0] == 502
    assert send(endpoint, "/v2/models/model", method="GET")[0] == 502


def test_hang_lasts_until_the_client_disconnects(endpoint):
    endpoint.faults.append(EndpointFault(hang=True))
    with Client(endpoint) as client:
        client.connection.timeout = 0.05
        with pytest.raises(TimeoutError):
            client.send("/predictions/model", b"[1, 0]")
    assert infer(endpoint)[0] == 200


def test_connection_is_kept_alive(endpoint):
    with Client(endpoint) as client:
        client.send("/predictions/model", b"[1, 0]")
        kept = client.connection.sock
        client.send("/predictions/model", b"[1, 0]")
        assert client.connection.sock is kept


def test_held_predictions_are_in_flight_until_release(endpoint):
    endpoint.hold()
    statuses = []
    threads = [threading.Thread(target=lambda: statuses.append(infer(endpoint)[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    endpoint.wait_for_requests(3)
    assert endpoint.completed == []
    assert endpoint.in_flight_peak == 3
    endpoint.release()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 3


def test_delays_reorder_responses(endpoint):
    endpoint.delay_s = lambda n: 0.05 if n == 0 else 0.0
    first = threading.Thread(target=infer, args=(endpoint,))
    first.start()
    endpoint.wait_for_requests(1)
    infer(endpoint)
    first.join()
    assert endpoint.completed == [1, 0]


def test_stop_closes_connections_and_restart_keeps_the_port(endpoint):
    url = endpoint.url
    endpoint.hold()
    with Client(endpoint) as client:
        client.connection.request("POST", "/predictions/model", b"[1, 0]")
        endpoint.wait_for_requests(1)
        endpoint.stop()
        endpoint.stop()
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            client.connection.getresponse()
    with pytest.raises(ConnectionRefusedError):
        infer(endpoint)
    endpoint.release()
    endpoint.start()
    endpoint.start()
    assert endpoint.url == url
    assert infer(endpoint)[0] == 200


def test_expect_100_continue_gets_a_response(endpoint):
    host, port = endpoint.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        raw.sendall(
            b"POST /predictions/model HTTP/1.1\r\nHost: h\r\n"
            b"Content-Length: 6\r\nExpect: 100-continue\r\n\r\n"
        )
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"[1, 0]")
        assert raw.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01 hello\r\n\r\n", b"x" * 70_000, b"GET /"])
def test_invalid_http_ends_only_its_connection(endpoint, garbage):
    host, port = endpoint.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert raw.recv(100) == b""
    assert infer(endpoint)[0] == 200
