"""One request over a real socket: whole responses and failures."""

import asyncio
import ssl
import sys

import pytest

from cases import for_each
from headrace.client.connection_pool import HttpConnectionPool, HttpRequest
from headrace.core.clock import TransientFault
from headrace.core.errors import EndpointError, MissingExtraError
from headrace.testing import EndpointFault, ScriptedEndpoint


@pytest.fixture
def endpoint():
    with ScriptedEndpoint(lambda x: x["x"]) as endpoint:
        yield endpoint


def send(
    url, *, fault=None, endpoint=None, timeout_s=10.0, headers=None, method="POST", body=b"[1.0]", **settings
):
    if fault:
        endpoint.faults.append(fault)

    async def run():
        async with HttpConnectionPool(headers or {}, connections_max=2, **settings) as pool:
            return await pool.send(HttpRequest(method, url, body, {"Content-Type": "text/x"}), timeout_s)

    return asyncio.run(run())


def test_response_has_status_body_and_headers(endpoint):
    fault = EndpointFault(status=418, body=b"a teapot", headers={"X-Kind": "Pot"})
    response = send(endpoint.torchserve_url, fault=fault, endpoint=endpoint)
    assert (response.status, response.body, response.headers["x-kind"]) == (418, b"a teapot", "Pot")


def test_request_is_sent_unchanged(endpoint):
    send(endpoint.torchserve_url, headers={"Authorization": "Bearer t"})
    (received,) = endpoint.requests
    assert (received.body, received.headers["content-type"], received.headers["authorization"]) == (
        b"[1.0]",
        "text/x",
        "Bearer t",
    )
    assert received.headers["user-agent"] == "headrace"


def test_encoded_name_is_not_encoded_again(endpoint):
    send(f"{endpoint.url}/predictions/a%2Fb%20c")
    assert endpoint.requests[0].path == "/predictions/a%2Fb%20c"


@for_each(
    ("fault", "message"),
    [
        (EndpointFault(drop=True), "isconnected"),
        (EndpointFault(cut_bytes=1), "payload"),
        (EndpointFault(hang=True), "no response within 0.05 s"),
    ],
)
def test_lost_response_is_a_transient_fault(endpoint, fault, message):
    timeout_s = 0.05 if fault.hang else 10.0
    with pytest.raises(TransientFault, match=message):
        send(endpoint.torchserve_url, fault=fault, endpoint=endpoint, timeout_s=timeout_s, body=b"[1.5, 2.5]")


def test_refused_connection_is_a_transient_fault(endpoint):
    endpoint.stop()
    with pytest.raises(TransientFault, match="onnect"):
        send(endpoint.torchserve_url)


def test_redirect_is_not_followed(endpoint):
    fault = EndpointFault(status=302, headers={"Location": endpoint.url})
    response = send(endpoint.torchserve_url, fault=fault, endpoint=endpoint)
    assert (response.status, response.headers["location"]) == (302, endpoint.url)
    assert len(endpoint.requests) == 1


def test_response_over_the_limit_raises(endpoint):
    fault = EndpointFault(status=200, body=b"x" * 101)
    with pytest.raises(EndpointError, match="more than 100 bytes"):
        send(endpoint.torchserve_url, fault=fault, endpoint=endpoint, response_bytes_max=100)


@for_each("url", ["http://", "http://host:port/x", "mailto:x", "http://a..b/x"])
def test_invalid_url_raises_a_permanent_error(url):
    with pytest.raises(EndpointError, match="not a URL"):
        send(url)


def test_missing_tls_is_a_permanent_error():
    """An untrusted certificate stays untrusted; so does a server without TLS."""

    async def plain(reader, writer):
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def run():
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, HttpConnectionPool({}, connections_max=1) as pool:
            await pool.send(HttpRequest("GET", f"https://127.0.0.1:{port}/"), 10.0)

    with pytest.raises(EndpointError, match="no trusted TLS") as caught:
        asyncio.run(run())
    assert isinstance(caught.value.__cause__, ssl.SSLError | OSError)


def test_leaving_a_stream_early_closes_its_connection():
    async def run():
        closed = asyncio.Event()

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            await reader.read()  # until the client closes
            closed.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, HttpConnectionPool({}, connections_max=1) as pool:
            async with pool.stream(HttpRequest("GET", url), 10.0) as response:
                assert await anext(response.chunks) == b"first"
            await asyncio.wait_for(closed.wait(), 10)

    asyncio.run(run())


def test_missing_aiohttp_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "headrace.client.connection_pool")
    with pytest.raises(MissingExtraError, match=r"headrace\[http\]"):
        import headrace.client.connection_pool  # noqa: F401
