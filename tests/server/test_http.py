"""One exchange: what HTTP itself can do to a server, and bodies in every encoding."""

import asyncio
import gzip
import resource
import time
import zlib
from contextlib import suppress

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DataError, LimitError
from headrace.server.http import (
    DisconnectedError,
    Exchange,
    Patience,
    SlowBodyError,
    decompressed,
    takes_gzip,
)
from headrace.server.rest import RestLimits
from server.support import WAIT_S, Any1, Linear, Server, serving, tensor
from server.test_rest import ROW, wait_for

BODY = orjson.dumps({"inputs": [ROW]})
PATH = "/v2/models/linear/infer"
BYTES_MAX = 4 << 20


def gzipped(body: bytes) -> bytes:
    """Gzipped, without the time of day."""
    return gzip.compress(body, mtime=0)


@pytest.fixture(scope="module")
def server():
    limits = RestLimits(body_bytes_max=BYTES_MAX, gzip_bytes_min=1000)
    with serving({"linear": Linear, "any": Any1}, limits=limits) as opened:
        yield opened


# Encodings


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzipped(BODY)),
        ("GZIP ", gzipped(BODY)),
        ("x-gzip", gzipped(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
    ],
    ids=lambda value: value if isinstance(value, str) else "body",
)
def test_bodies_may_be_compressed(server: Server, encoding, packed):
    answer = server.post(PATH, packed, {"Content-Encoding": encoding})
    assert answer.json["outputs"][0]["data"] == [10.0]


@pytest.mark.parametrize(
    ("encoding", "packed", "why"),
    [
        ("gzip", BODY, "no whole gzip stream"),
        ("gzip", b"", "ends early"),
        ("gzip", gzipped(BODY)[:-5], "ends early"),
        ("gzip", gzipped(BODY)[:20], "ends early"),
        ("gzip", gzipped(BODY) + b"more", "4 bytes follow"),
        ("gzip", gzipped(b"{}") + gzipped(BODY), "bytes follow"),
        ("gzip", gzipped(BODY)[:-6] + b"123456", "no whole gzip stream"),
        ("deflate", BODY, "no whole deflate stream"),
        ("zstd", BODY, "'zstd' is not taken"),
        ("br", BODY, "use gzip or deflate"),
        ("gzip, gzip", gzipped(gzipped(BODY)), "is not taken"),
        ("\xff", BODY, "is not taken"),
    ],
    ids=lambda value: value if isinstance(value, str) else "body",
)
def test_wrong_encodings_are_told(server: Server, encoding, packed, why):
    answer = server.post(PATH, packed, {"Content-Encoding": encoding})
    assert answer.status == 400
    assert why in answer.error


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_refused_without_being_unpacked(server: Server, encoding):
    """A thousand times its size, as 10 MB are of 10 GB: no more than the bound is ever made of it."""
    pack = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    piece = bytes(1 << 20)
    bomb = b"".join([*(pack.compress(piece) for _ in range(200)), pack.flush()])
    assert len(bomb) < BYTES_MAX
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    answer = server.post(PATH, bomb, {"Content-Encoding": encoding})
    assert answer.status == 413
    assert time.monotonic() - began < 5
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 50 << 20, "it would have been 200 MB"


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"gzip", b"deflate", b"identity", b"br", b"\xff"]))
def test_any_bytes_are_a_body_or_an_error(body, encoding):
    with suppress(DataError, LimitError):
        assert len(decompressed(body, encoding, 1000)) <= 1000


@settings(deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_the_bound_is_exact(body, most):
    packed = gzip.compress(body)
    if len(body) > most:
        with pytest.raises(LimitError):
            decompressed(packed, b"gzip", most)
    else:
        assert decompressed(packed, b"gzip", most) == body


@pytest.mark.parametrize(
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
def test_long_responses_are_packed_for_those_who_take_it(server: Server, accepted, takes):
    assert takes_gzip(accepted) is takes
    x = tensor("x", [0.5] * 1000)
    answer = server.infer("any", x, headers={"Accept-Encoding": accepted.decode()})
    assert answer.headers["vary"] == "accept-encoding"
    assert (answer.headers.get("content-encoding") == "gzip") is takes
    body = gzip.decompress(answer.body) if takes else answer.body
    assert orjson.loads(body)["outputs"][0]["data"] == [0.5] * 1000


def test_short_responses_are_not_packed(server: Server):
    assert "content-encoding" not in server.infer("linear", ROW, headers={"Accept-Encoding": "gzip"}).headers


# Sizes


def test_a_body_beyond_the_bound_is_413_before_it_is_read(server: Server):
    with server.socket() as raw:
        raw.send(b"POST ", PATH.encode(), b" HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        answer = raw.answer()
    assert answer.status == 413
    assert str(BYTES_MAX) in answer.error


def test_a_body_in_chunks_is_413_as_soon_as_it_is_too_large(server: Server):
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with server.socket() as raw:
        raw.send(b"POST ", PATH.encode(), b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 5)
        answer = raw.answer()
    assert answer.status == 413


def test_whitespace_alone_is_no_json(server: Server):
    assert server.post(PATH, b" " * (3 << 20)).status == 400


def test_three_megabytes_in_chunks_of_one_byte(server: Server):
    body = BODY + b" " * (3_000_000 - len(BODY))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    began = time.monotonic()
    with server.socket() as raw:
        raw.send(
            b"POST ", PATH.encode(), b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n"
        )
        assert raw.answer().json["outputs"][0]["data"] == [10.0]
    assert time.monotonic() - began < 20


def test_a_body_may_come_in_pieces(server: Server):
    with server.socket() as raw:
        raw.send(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(BODY)))
        for at in range(0, len(BODY), 7):
            raw.send(BODY[at : at + 7])
        assert raw.answer().status == 200


def test_expect_continue_is_answered_only_where_the_body_is_wanted(server: Server):
    with server.socket() as raw:
        head = b"POST %s HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        raw.send(head % (PATH.encode(), len(BODY)))
        assert raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(BODY)
        assert raw.answer().status == 200
        raw.send(head % (b"/v2/models/nope/infer", len(BODY)))
        assert raw.answer().status == 404


def test_trailers_are_passed_over(server: Server):
    with server.socket() as raw:
        raw.send(b"POST ", PATH.encode(), b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n")
        raw.send(b"%x\r\n" % len(BODY), BODY, b"\r\n0\r\na: b\r\n\r\n")
        assert raw.answer().status == 200


# Connections


def test_a_connection_is_kept_after_every_error(server: Server):
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
            assert raw.post(path, body).answer().status == status, path


def test_two_requests_at_once_are_answered_in_order(server: Server):
    one = orjson.dumps({"inputs": [ROW], "id": "1"})
    two = orjson.dumps({"inputs": [ROW], "id": "2"})
    head = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(one))
    with server.socket() as raw:
        raw.send(head, one, head, two, b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert [raw.answer().json.get("id") for _ in range(3)] == ["1", "2", None]


@pytest.mark.parametrize(
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
def test_what_is_no_http_ends_the_connection_and_nothing_else(server: Server, request_bytes):
    with server.socket() as raw:
        raw.send(request_bytes)
        answer = raw.rest()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert answer == b"" or set(orjson.loads(answer.partition(b"\r\n\r\n")[2])) == {"error"}
    assert b"Traceback" not in answer
    assert server.infer("linear", ROW).status == 200


@pytest.mark.parametrize(
    "sent", [b"POST ", b"POST %s HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{" % PATH.encode()]
)
def test_a_caller_who_leaves_in_the_middle_leaves_nothing_behind(server: Server, sent):
    before = server.open_tasks()
    for _ in range(20):
        server.socket().send(sent).abort()
    wait_for(lambda: server.open_tasks() <= before)
    assert server.infer("linear", ROW).status == 200


def test_a_head_without_an_end_is_refused(server: Server):
    with server.socket() as raw:
        try:
            raw.send(b"GET /v2 HTTP/1.1\r\n", b"a: b\r\n" * 200_000)
            answer = raw.rest()
        except (ConnectionResetError, BrokenPipeError):
            answer = b"HTTP/1.1 431"  # it was closed before all of it was sent
    assert answer.startswith(b"HTTP/1.1 431")
    with server.socket() as raw:
        raw.send(b"GET /v2 HTTP/1.1\r\nlong: ", b"x" * 60_000, b"\r\n\r\n")
        assert raw.answer().status == 200


def test_a_head_that_drips_is_given_up(monkeypatch):
    """Of the first request of a connection, and of a later one."""
    monkeypatch.setattr("headrace.server.connection.HEAD_S_MAX", 0.2)
    with serving({"linear": Linear}) as server:
        with server.socket() as raw:
            assert raw.send(b"GET /v2 HTT").rest() == b""
        with server.socket() as raw:
            assert raw.send(b"GET /v2 HTTP/1.1\r\n\r\n").answer().status == 200
            assert raw.send(b"GET /v2 HTT").rest() == b""
        with server.socket() as raw:
            raw.post(PATH, BODY)
            assert raw.answer().status == 200
            time.sleep(0.3)
            assert raw.post(PATH, BODY).answer().status == 200, "an idle connection is kept"


def test_a_body_that_drips_is_given_up():
    with serving({"linear": Linear}, limits=RestLimits(body_s_max=0.1)) as server, server.socket() as raw:
        raw.send(b"POST %s HTTP/1.1\r\nContent-Length: 100\r\n\r\n{" % PATH.encode())
        answer = raw.answer()
        assert answer.status == 408
        assert "in time" in answer.error
        assert answer.headers["connection"] == "close"
        assert raw.rest() == b""


# The exchange by itself


def exchange_of(messages, **headers):
    """An exchange whose body comes as `messages` say; then the caller stays, silent."""
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
    return Exchange(scope, receive, send, Patience(0.05)), sent


def part(body: bytes, *, more: bool = True):
    return {"type": "http.request", "body": body, "more_body": more}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.integers(0, 400))
def test_a_body_is_its_parts_up_to_the_bound(parts, most):
    messages = [part(p, more=i < len(parts) - 1) for i, p in enumerate(parts)]
    exchange, _ = exchange_of(messages)
    whole = b"".join(parts)
    if len(whole) > most:
        with pytest.raises(LimitError):
            asyncio.run(exchange.body(most))
    else:
        assert asyncio.run(exchange.body(most)) == whole


def test_who_goes_before_the_end_is_not_answered():
    exchange, _ = exchange_of([part(b"a"), {"type": "http.disconnect"}])
    with pytest.raises(DisconnectedError):
        asyncio.run(exchange.body(100))


def test_who_never_sends_the_rest_is_not_waited_for():
    exchange, _ = exchange_of([part(b"a")])
    with pytest.raises(SlowBodyError):
        asyncio.run(exchange.body(100))


def test_an_unread_body_is_there_once_more():
    async def twice():
        exchange, _ = exchange_of([part(b"abc", more=False)])
        body = await exchange.body(100)
        exchange.unread(body)
        return body, await exchange.body(100)

    assert asyncio.run(twice()) == (b"abc", b"abc")


def test_what_is_asked_ends_when_its_caller_goes():
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


def test_a_cancellation_from_elsewhere_stays_one():
    async def scenario():
        exchange, _ = exchange_of([])
        task = asyncio.ensure_future(exchange.while_connected(asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
