"""One request over a real socket: answered whole, or told why not."""

import asyncio
import ssl
import sys

import pytest

from headrace.client.connection import Connection, HttpCall
from headrace.client.retry import TransientFault
from headrace.core.errors import EndpointError, MissingExtraError
from headrace.testing import EndpointFault, ScriptedEndpoint


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda x: x["x"]) as endpoint:
        yield endpoint


def send(
    url, *, fault=None, endpoint=None, timeout_s=10.0, headers=None, method="POST", body=b"[1.0]", **more
):
    if fault:
        endpoint.faults.append(fault)

    async def run():
        async with Connection(headers or {}, connections_max=2, **more) as connection:
            return await connection.send(HttpCall(method, url, body, {"Content-Type": "text/x"}), timeout_s)

    return asyncio.run(run())


def test_an_answer_comes_whole_with_status_body_and_headers(endpoint):
    fault = EndpointFault(status=418, body=b"a teapot", headers={"X-Kind": "Pot"})
    answer = send(endpoint.torchserve_url, fault=fault, endpoint=endpoint)
    assert (answer.status, answer.body, answer.headers["x-kind"]) == (418, b"a teapot", "Pot")


def test_the_request_goes_out_as_it_was_given(endpoint):
    send(endpoint.torchserve_url, headers={"Authorization": "Bearer t"})
    (seen,) = endpoint.requests
    assert (seen.body, seen.headers["content-type"], seen.headers["authorization"]) == (
        b"[1.0]",
        "text/x",
        "Bearer t",
    )
    assert seen.headers["user-agent"] == "headrace"


def test_a_quoted_name_is_not_quoted_again(endpoint):
    send(f"{endpoint.url}/predictions/a%2Fb%20c")
    assert endpoint.requests[0].path == "/predictions/a%2Fb%20c"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (EndpointFault(drop=True), "isconnected"),
        (EndpointFault(cut_bytes=1), "payload"),
        (EndpointFault(hang=True), "no answer within 0.05 s"),
    ],
)
def test_a_lost_answer_may_pass(endpoint, fault, why):
    timeout_s = 0.05 if fault.hang else 10.0
    with pytest.raises(TransientFault, match=why):
        send(endpoint.torchserve_url, fault=fault, endpoint=endpoint, timeout_s=timeout_s, body=b"[1.5, 2.5]")


def test_nobody_listening_may_pass(endpoint):
    endpoint.stop()
    with pytest.raises(TransientFault, match="onnect"):
        send(endpoint.torchserve_url)


def test_a_redirect_is_not_followed(endpoint):
    fault = EndpointFault(status=302, headers={"Location": endpoint.url})
    answer = send(endpoint.torchserve_url, fault=fault, endpoint=endpoint)
    assert (answer.status, answer.headers["location"]) == (302, endpoint.url)
    assert len(endpoint.requests) == 1


def test_an_answer_that_is_too_long_is_no_answer(endpoint):
    fault = EndpointFault(status=200, body=b"x" * 101)
    with pytest.raises(EndpointError, match="more than 100 bytes"):
        send(endpoint.torchserve_url, fault=fault, endpoint=endpoint, answer_bytes_max=100)


@pytest.mark.parametrize("url", ["http://", "http://host:port/x", "mailto:x", "http://a..b/x"])
def test_no_url_is_an_error_that_does_not_pass(url):
    with pytest.raises(EndpointError, match="not a URL"):
        send(url)


def test_a_server_without_tls_is_not_asked_again():
    """A certificate that is not trusted does not get better; neither does none at all."""

    async def plain(reader, writer):
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def run():
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Connection({}, connections_max=1) as connection:
            await connection.send(HttpCall("GET", f"https://127.0.0.1:{port}/"), 10.0)

    with pytest.raises(EndpointError, match="no trusted TLS") as caught:
        asyncio.run(run())
    assert isinstance(caught.value.__cause__, ssl.SSLError | OSError)


def test_without_aiohttp_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "headrace.client.connection")
    with pytest.raises(MissingExtraError, match=r"headrace\[http\]"):
        import headrace.client.connection  # noqa: F401
