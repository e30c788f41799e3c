"""HTTP exchanges: malformed requests, time limits, and bodies in every encoding."""

import asyncio
import gzip
import tracemalloc
import zlib
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.errors import DataError, LimitError
from headrace.server.http import (
    INLINE_BYTES_MAX,
    DisconnectedError,
    Exchange,
    HttpTimeouts,
    SlowBodyError,
    accepts_gzip,
    decompress_body,
)
from headrace.server.rest import RestLimits
from server.support import WAIT_S, EchoAll, Linear, RestServer, serving, tensor
from server.test_rest import ROW
from servers.polling import wait_until

BODY = orjson.dumps({"inputs": [ROW]})
PATH = "/v2/models/linear/infer"
BYTES_MAX = 4 << 20


def gzipped(body: bytes) -> bytes:
    """Return the body gzipped without a time stamp."""
    return gzip.compress(body, mtime=0)


@pytest.fixture(scope="module")
def server():
    limits = RestLimits(body_bytes_max=BYTES_MAX, gzip_bytes_min=1000)
    with serving({"linear": Linear, "any": EchoAll}, limits=limits) as opened:
        yield opened


# Encodings


@for_each(
    ("encoding", "packed"),
    [
        ("gzip", gzipped(BODY)),
        ("GZIP ", gzipped(BODY)),
        ("x-gzip", gzipped(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
    ],
)
def test_compressed_bodies_are_accepted(server: RestServer, encoding, packed):
    response = server.post(PATH, packed, {"Content-Encoding": encoding})
    assert response.json["outputs"][0]["data"] == [10.0]


@for_each(
    ("encoding", "packed", "why"),
    [
        ("gzip", BODY, "not a complete gzip stream"),
        ("gzip", b"", "ends early"),
        ("gzip", gzipped(BODY)[:-5], "ends early"),
        ("gzip", gzipped(BODY)[:20], "ends early"),
        ("gzip", gzipped(BODY) + b"more", "4 bytes follow"),
        ("gzip", gzipped(b"{}") + gzipped(BODY), "bytes follow"),
        ("gzip", gzipped(BODY)[:-6] + b"123456", "not a complete gzip stream"),
        ("deflate", BODY, "not a complete deflate stream"),
        ("zstd", BODY, "unsupported content encoding 'zstd'"),
        ("br", BODY, "use gzip or deflate"),
        ("gzip, gzip", gzipped(gzipped(BODY)), "unsupported content encoding"),
        ("\xff", BODY, "unsupported content encoding"),
    ],
)
def test_invalid_encodings_are_refused(server: RestServer, encoding, packed, why):
    response = server.post(PATH, packed, {"Content-Encoding": encoding})
    assert response.status == 400
    assert why in response.error


@for_each("encoding", ["gzip", "deflate"])
def test_decompression_bomb_is_refused_early(server: RestServer, encoding):
    """No more than the limit is decompressed, of a body that would be ten times larger."""
    pack = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    piece = bytes(1 << 20)
    bomb = b"".join([*(pack.compress(piece) for _ in range(10 * BYTES_MAX >> 20)), pack.flush()])
    assert len(bomb) < INLINE_BYTES_MAX
    assert server.post(PATH, bomb, {"Content-Encoding": encoding}).status == 413
    tracemalloc.start()
    try:
        with pytest.raises(LimitError):
            decompress_body(bomb, encoding.encode(), BYTES_MAX)
        assert tracemalloc.get_traced_memory()[1] < 3 * BYTES_MAX
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.sampled_from([b"gzip", b"deflate", b"identity", b"br", b"\xff"]))
def test_any_bytes_decompress_or_raise_data_error(body, encoding):
    with suppress(DataError, LimitError):
        assert len(decompress_body(body, encoding, 1000)) <= 1000


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_decompressed_size_limit_is_exact(body, most):
    packed = gzip.compress(body)
    if len(body) > most:
        with pytest.raises(LimitError):
            decompress_body(packed, b"gzip", most)
    else:
        assert decompress_body(packed, b"gzip", most) == body


@for_each(
    ("accepted", "takes"),
    [
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000, br", False),
        (b"gzip;q=0.001", True),
        (b"br", False),
        (b"", False),
    ],
)
def test_long_responses_are_gzipped_on_request(server: RestServer, accepted, takes):
    assert accepts_gzip(accepted) is takes
    x = tensor("x", [0.5] * 1000)
    response = server.infer("any", x, headers={"Accept-Encoding": accepted.decode()})
    assert response.headers["vary"] == "accept-encoding"
    assert (response.headers.get("content-encoding") == "gzip") is takes
    body = gzip.decompress(response.body) if takes else response.body
    assert orjson.loads(body)["outputs"][0]["data"] == [0.5] * 1000


def test_short_responses_are_not_gzipped(server: RestServer):
    assert "content-encoding" not in server.infer("linear", ROW, headers={"Accept-Encoding": "gzip"}).headers


# Sizes


def test_declared_size_beyond_the_limit_responds_413_at_once(server: RestServer):
    with server.socket() as raw:
        raw.send(b"POST ", PATH.encode(), b" HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        response = raw.read_response()
    assert response.status == 413
    assert str(BYTES_MAX) in response.error


def test_chunked_body_beyond_the_limit_responds_413(server: RestServer):
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with server.socket() as raw:
        raw.send(b"POST ", PATH.encode(), b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 5)
        response = raw.read_response()
    assert response.status == 413


def test_whitespace_is_not_json(server: RestServer):
    assert server.post(PATH, b" " * (3 << 20)).status == 400


def test_one_byte_chunks_are_accepted(server: RestServer):
    body = BODY + b" " * levels.by_level(100_000, 3_000_000, 3_000_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with server.socket() as raw:
        raw.send(
            b"POST ", PATH.encode(), b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n"
        )
        assert raw.read_response().json["outputs"][0]["data"] == [10.0]


def test_body_may_be_sent_in_pieces(server: RestServer):
    with server.socket() as raw:
        raw.send(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(BODY)))
        for at in range(0, len(BODY), 7):
            raw.send(BODY[at : at + 7])
        assert raw.read_response().status == 200


def test_expect_continue_is_answered_only_for_readable_bodies(server: RestServer):
    with server.socket() as raw:
        head = b"POST %s HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        raw.send(head % (PATH.encode(), len(BODY)))
        assert raw.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(BODY)
        assert raw.read_response().status == 200
        raw.send(head % (b"/v2/models/nope/infer", len(BODY)))
        assert raw.read_response().status == 404


def test_trailers_are_ignored(server: RestServer):
    with server.socket() as raw:
        raw.send(b"POST ", PATH.encode(), b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n")
        raw.send(b"%x\r\n" % len(BODY), BODY, b"\r\n0\r\na: b\r\n\r\n")
        assert raw.read_response().status == 200


# Connections


def test_connection_is_kept_after_errors(server: RestServer):
    with server.socket() as raw:
        for path, body, status in [
            ("/v2/models/nope/infer", BODY, 404),
            (PATH, b"{", 400),
            (PATH, b"", 400),
            ("/v2", b"", 405),
            ("/nothing", BODY, 404),
            (PATH, BODY, 200),
            (PATH, b"x" * (BYTES_MAX + 1), 413),
            (PATH, BODY, 200),
        ]:
            assert raw.post(path, body).read_response().status == status, path


def test_pipelined_requests_are_answered_in_order(server: RestServer):
    one = orjson.dumps({"inputs": [ROW], "id": "1"})
    two = orjson.dumps({"inputs": [ROW], "id": "2"})
    head = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(one))
    with server.socket() as raw:
        raw.send(head, one, head, two, b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert [raw.read_response().json.get("id") for _ in range(3)] == ["1", "2", None]


@for_each(
    "request_bytes",
    [
        b"POST /v2 HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"POST /v2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n",
        b"GET /v2\x00 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA: b\x00\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_http_closes_only_its_connection(server: RestServer, request_bytes):
    with server.socket() as raw:
        raw.send(request_bytes)
        response = raw.read_to_end()
    assert response == b"" or response.startswith(b"HTTP/1.1 400")
    assert response == b"" or set(orjson.loads(response.partition(b"\r\n\r\n")[2])) == {"error"}
    assert b"Traceback" not in response
    assert server.infer("linear", ROW).status == 200


@for_each("sent", [b"POST ", b"POST %s HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{" % PATH.encode()])
def test_disconnect_during_a_request_leaves_no_task(server: RestServer, sent):
    before = server.open_tasks()
    for _ in range(20):
        server.socket().send(sent).abort()
    wait_until(lambda: server.open_tasks() <= before)
    assert server.infer("linear", ROW).status == 200


def test_endless_head_is_refused(server: RestServer):
    with server.socket() as raw:
        try:
            raw.send(b"GET /v2 HTTP/1.1\r\n", b"a: b\r\n" * 200_000)
            response = raw.read_to_end()
        except (ConnectionResetError, BrokenPipeError):
            response = b"HTTP/1.1 431"  # closed before all of it was sent
    assert response.startswith(b"HTTP/1.1 431")
    with server.socket() as raw:
        raw.send(b"GET /v2 HTTP/1.1\r\nlong: ", b"x" * 60_000, b"\r\n\r\n")
        assert raw.read_response().status == 200


def test_slow_head_times_out(monkeypatch):
    """The limit applies to the first request of a connection and to later ones."""
    monkeypatch.setattr("headrace.server.connection.HEAD_S_MAX", 0.2)
    with serving({"linear": Linear}) as server:
        with server.socket() as raw:
            assert raw.send(b"GET /v2 HTT").read_to_end() == b""
        with server.socket() as raw:
            assert raw.send(b"GET /v2 HTTP/1.1\r\n\r\n").read_response().status == 200
            assert raw.send(b"GET /v2 HTT").read_to_end() == b""
        with server.socket() as raw:
            raw.post(PATH, BODY)
            assert raw.read_response().status == 200
            with server.socket() as slow:  # closed after the time limit of a head
                assert slow.send(b"GET /v2 HTT").read_to_end() == b""
            assert raw.post(PATH, BODY).read_response().status == 200, "an idle connection is kept"


def test_slow_body_times_out():
    with serving({"linear": Linear}, limits=RestLimits(body_s_max=0.1)) as server, server.socket() as raw:
        raw.send(b"POST %s HTTP/1.1\r\nContent-Length: 100\r\n\r\n{" % PATH.encode())
        response = raw.read_response()
        assert response.status == 408
        assert "in time" in response.error
        assert response.headers["connection"] == "close"
        assert raw.read_to_end() == b""


def test_silence_within_a_body_times_out(monkeypatch):
    monkeypatch.setattr("headrace.server.connection.BODY_IDLE_S_MAX", 0.05)
    with serving({"linear": Linear}) as server:
        for path in (PATH, "/v2/models/linear/infer_stream", "/v2/repository/index"):
            with server.socket() as raw:
                raw.send(b"POST %s HTTP/1.1\r\nContent-Length: 1000\r\n\r\n0123456789" % path.encode())
                response = raw.read_response()
                assert (response.status, response.error) == (408, "the body did not arrive in time")
                assert raw.read_to_end() == b""


# The exchange in isolation


def exchange_of(messages, **headers):
    """Return an exchange with these body messages, after which the client stays silent."""
    waiting = list(messages)
    sent = []

    async def receive():
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    named = [(k.replace("_", "-").encode(), v) for k, v in headers.items()]
    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": named}
    return Exchange(scope, receive, send, HttpTimeouts(0.05)), sent


def part(body: bytes, *, more: bool = True):
    return {"type": "http.request", "body": body, "more_body": more}


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.integers(0, 400))
def test_body_is_its_joined_parts_up_to_the_limit(parts, most):
    messages = [part(p, more=i < len(parts) - 1) for i, p in enumerate(parts)]
    exchange, _ = exchange_of(messages)
    whole = b"".join(parts)
    if len(whole) > most:
        with pytest.raises(LimitError):
            asyncio.run(exchange.body(most))
    else:
        assert asyncio.run(exchange.body(most)) == whole


def test_disconnect_before_the_end_raises():
    exchange, _ = exchange_of([part(b"a"), {"type": "http.disconnect"}])
    with pytest.raises(DisconnectedError):
        asyncio.run(exchange.body(100))


def test_missing_rest_of_a_body_times_out():
    exchange, _ = exchange_of([part(b"a")])
    with pytest.raises(SlowBodyError):
        asyncio.run(exchange.body(100))


def test_put_back_body_is_read_again():
    async def twice():
        exchange, _ = exchange_of([part(b"abc", more=False)])
        body = await exchange.body(100)
        exchange.put_back(body)
        return body, await exchange.body(100)

    assert asyncio.run(twice()) == (b"abc", b"abc")


def test_disconnect_cancels_the_awaited_work():
    ended = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def scenario():
        exchange, _ = exchange_of([{"type": "http.disconnect"}])
        with pytest.raises(DisconnectedError):
            await exchange.while_connected(forever())
        assert asyncio.current_task().cancelling() == 0

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
    assert ended == [True]


def test_external_cancellation_is_kept():
    async def scenario():
        exchange, _ = exchange_of([])
        task = asyncio.ensure_future(exchange.while_connected(asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
