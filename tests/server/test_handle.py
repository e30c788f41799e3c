"""Opaque requests over HTTP: bodies and forms in; a status, headers and bytes or chunks out."""

import http.client

import pytest

from cases import for_each
from engine.handle_models import Both, Twice
from server.multipart_forms import form
from server.support import WAIT_S, Linear, serving

PATH = "/v2/models/twice/handle"


@pytest.fixture(scope="module")
def server():
    with serving({"twice": Twice, "both": Both, "linear": Linear}) as server:
        yield server


def test_body_reaches_model_unchanged(server):
    response = server.post(PATH, b"\0\xff")
    assert (response.status, response.body) == (200, b"\0\xff\0\xff")
    assert response.headers["content-type"] == "application/octet-stream"
    assert server.post(PATH, None).body == b""
    assert server.post("/v2/models/twice/versions/1/handle", b"a").body == b"aa"


def test_model_chooses_status_type_and_headers(server):
    response = server.post(PATH, b"status", {"Kind": "x", "Authorization": "Bearer secret"})
    assert (response.status, response.body) == (418, b"teapot")
    assert (response.headers["content-type"], response.headers["x-kind"]) == ("text/plain", "x")


def test_form_becomes_parts(server):
    body, content_type = form({"body": b"parts", "file": b"\r\n--x\0"}, file="file")
    response = server.post(PATH, body, {"Content-Type": content_type})
    assert response.body == b"body=parts,file=\r\n--x\0"


@for_each(
    "sent",
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b"--x\r\nno colon\r\n\r\n"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nabc'),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Type: text/plain\r\n\r\nabc\r\n--x--\r\n"),
    ],
)
def test_malformed_form_responds_400(server, sent):
    content_type, body = sent
    response = server.post(PATH, body, {"Content-Type": content_type})
    assert (response.status, "form" in response.json["error"]) == (400, True)


def test_chunks_are_sent_as_they_come(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    connection.request("POST", PATH, b"endless")
    response = connection.getresponse()
    assert response.read(1000) == b"x" * 1000
    connection.close()
    assert server.post(PATH, b"chunks").body == b"c0c1c2"


@for_each(
    "error", [("twice", b"fail", 500), ("twice", b"bad", 422), ("linear", b"a", 501), ("unknown", b"a", 404)]
)
def test_errors_are_json(server, error):
    model, body, status = error
    response = server.post(f"/v2/models/{model}/handle", body)
    assert (response.status, set(response.json)) == (status, {"error", "type", "request_id"})
