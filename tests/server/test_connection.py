"""Connections: what is answered directly, what goes the long way, and that nobody can tell but by the clock."""

import asyncio
import gc
import http.client
import socket
import ssl
import struct
import threading
import weakref
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.server.connection import Connection, Shared
from headrace.server.direct import Reply
from headrace.server.listen import HttpListener, TlsFiles, new_event_loop
from headrace.server.overdue import Overdue
from server.support import WAIT_S, Socket
from server.test_rest import wait_for

OK = b"HTTP/1.1 200 OK"


class Echo:
    """Answers what is posted to ``/now`` and ``/later`` with itself, and not what is called ``refused``."""

    def __init__(self) -> None:
        self.seen = []
        self.begun = []
        self.cancelled = 0
        self.go: asyncio.Event | None = None

    def route(self, target):
        return target.decode() if target in (b"/now", b"/later") else None

    def answer(self, route, headers, body):
        if body == b"refused":
            return None
        self.seen.append((route, dict(headers), body))
        reply = Reply(200, b"x-way: direct\r\n", body)
        if route == "/now":
            return reply

        async def later():
            self.begun.append(body)
            try:
                if self.go is not None:
                    await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if body == b"broken":
                raise RuntimeError("meant to be")
            return reply

        return later


async def long_way(scope, receive, send):
    """The same over ASGI."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"x-way", b"long"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Door:
    """A listener with a loop of its own."""

    def __init__(self, direct, tls=None, **shared) -> None:
        self.direct = direct
        self.loop = new_event_loop()
        self.listener = HttpListener(long_way, "127.0.0.1", 0, tls, direct=direct)
        self.made = []
        shared_by_all = Shared(direct, **shared)
        door = self

        class Noted(Connection):
            def __init__(self, **uvicorn):
                super().__init__(shared=shared_by_all, **uvicorn)
                door.made.append(weakref.ref(self))

        self.listener._config.http_protocol_class = Noted
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.started = threading.Event()
        self.stop = asyncio.Event()

    def _run(self):
        async def main():
            await self.listener.start()
            self.started.set()
            await self.stop.wait()
            await self.listener.stop(WAIT_S)

        self.loop.run_until_complete(main())
        self.loop.close()

    def call(self, function, *args):
        """In the loop, and its result."""

        async def there():
            return function(*args)

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(WAIT_S)

    def socket(self) -> Socket:
        return Socket(self.listener.port)

    def stop_soon(self):
        self.loop.call_soon_threadsafe(self.stop.set)


@contextmanager
def door(direct=None, **settings):
    opened = Door(direct or Echo(), **settings)
    opened.thread.start()
    assert opened.started.wait(WAIT_S)
    try:
        yield opened
    finally:
        opened.stop_soon()
        opened.thread.join(WAIT_S)


@pytest.fixture(scope="module")
def echo():
    with door() as opened:
        yield opened


def post(body: bytes, path: bytes = b"/now", *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def way(answer) -> tuple[str, bytes]:
    assert answer.status == 200
    return answer.headers["x-way"], answer.body


@pytest.mark.parametrize("path", [b"/now", b"/later"])
def test_a_whole_post_is_answered_directly(echo, path):
    with echo.socket() as raw:
        for body in (b"one", b"two", b""):
            answer = raw.send(post(body, path, b"X-Ab: c")).answer()
            assert way(answer) == ("direct", body)
            assert answer.headers["date"]
    route, headers, body = echo.direct.seen[-2]
    assert (route, headers[b"x-ab"], body) == (path.decode(), b"c", b"two")


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"refused"),
        post(b"x", b"/elsewhere"),
        post(b"x").replace(b"POST", b"PUT"),
        post(b"x").replace(b"HTTP/1.1", b"HTTP/1.0"),
        post(b"x", b"/now", b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
        post(b"x", b"/now", b"Connection: close"),
        post(b"x", b"/now", b"Connection: upgrade", b"Upgrade: x"),
    ],
    ids=["refused", "elsewhere", "put", "1.0", "1.0 kept", "close", "upgrade"],
)
def test_everything_else_is_an_exchange(echo, request_bytes):
    with echo.socket() as raw:
        answer = raw.send(request_bytes).answer()
        assert way(answer)[0] == "long"


def test_a_body_in_chunks_is_answered_directly_too(echo):
    with echo.socket() as raw:
        raw.send(b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        assert way(raw.answer()) == ("direct", b"abc")


def test_who_waits_to_be_told_to_go_on_is_told(echo):
    with echo.socket() as raw:
        head, _, body = post(b"hi", b"/now", b"Expect: 100-continue").partition(b"\r\n\r\n")
        raw.send(head + b"\r\n\r\n")
        assert raw.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        assert way(raw.send(body).answer()) == ("long", b"hi")


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([b"/now", b"/later", b"/long"]), st.sampled_from([b"", b"a", b"refused", b"x" * 99])
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS, st.lists(st.integers(1, 600), max_size=4))
def test_requests_in_any_pieces_are_answered_in_order(echo, requests, cuts):
    """Also several at once, by whichever ways."""
    whole = b"".join(post(body, path) for path, body in requests)
    with echo.socket() as raw:
        raw._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
            raw.send(whole[start:stop])
        for path, body in requests:
            expected = "direct" if path != b"/long" and body != b"refused" else "long"
            name, told = way(raw.answer())
            assert told == body
            # One that came while another was being answered waits its turn as an exchange.
            assert name in (expected, "long")


def test_a_body_that_does_not_come_is_waited_for_the_long_way():
    with door(held=Overdue(0.01)) as opened, opened.socket() as raw:
        raw.send(post(b"slow")[:-1])
        wait_for(lambda: opened.call(lambda: len(opened.listener._server.server_state.tasks)) == 1)
        assert way(raw.send(b"w").answer()) == ("long", b"slow")
        assert way(raw.send(post(b"fast")).answer()) == ("direct", b"fast")


def test_a_body_that_is_large_is_read_the_long_way(echo, monkeypatch):
    monkeypatch.setattr("headrace.server.connection.HELD_BYTES_MAX", 1000)
    with echo.socket() as raw:
        assert way(raw.send(post(b"x" * 1000)).answer())[0] == "direct"
        assert way(raw.send(post(b"x" * 1001)).answer()) == ("long", b"x" * 1001)


def test_who_reads_nothing_is_not_answered_without_end(echo):
    """Answers that nobody takes wait in the socket; then requests do."""
    body = b"x" * 100_000
    with echo.socket() as raw:
        raw._socket.setblocking(False)
        sent, request = 0, post(body)
        asked = len(echo.direct.seen)
        with suppress(BlockingIOError):
            while sent < 400 * len(request):
                sent += raw._socket.send(request[sent % len(request) :])
        assert sent < 400 * len(request), "nobody took it any more"
        assert len(echo.direct.seen) - asked < 400


def test_what_breaks_after_all_cuts_the_connection_and_nothing_else(echo):
    with echo.socket() as raw:
        assert raw.send(post(b"broken", b"/later")).rest() == b""
    with echo.socket() as raw:
        assert way(raw.send(post(b"x")).answer())[0] == "direct"


def test_who_leaves_is_not_answered():
    with door() as opened:
        opened.direct.go = opened.call(asyncio.Event)
        with opened.socket() as raw:
            raw.send(post(b"x", b"/later"))
            wait_for(lambda: opened.direct.begun)
        wait_for(lambda: opened.direct.cancelled == 1)


def test_what_is_under_way_is_finished_before_it_stops():
    """The answer says that the connection ends with it."""
    with door() as opened:
        opened.direct.go = go = opened.call(asyncio.Event)
        with opened.socket() as raw, opened.socket() as held:
            raw.send(post(b"x", b"/later"))
            wait_for(lambda: opened.direct.begun)
            # Begun, but not whole: it is finished as well.
            held.send(post(b"held")[:-1])
            wait_for(lambda: any(c() is not None and c()._held for c in opened.made))
            opened.stop_soon()
            wait_for(lambda: len(opened.listener._server.server_state.tasks) == 2)
            assert way(held.send(b"d").answer()) == ("long", b"held")
            opened.loop.call_soon_threadsafe(go.set)
            answer = raw.answer()
            assert (way(answer), answer.headers["connection"]) == (("direct", b"x"), "close")
            assert raw.rest() == b""


def test_an_idle_connection_is_closed_after_a_while():
    with door(idle=Overdue(0.05)) as opened, opened.socket() as raw:
        assert way(raw.send(post(b"x")).answer())[0] == "direct"
        assert raw.rest() == b""


@pytest.mark.parametrize("path", [b"/now", b"/elsewhere"])
def test_a_connection_that_is_reset_leaves_nothing_behind(path):
    """Also when its response was finished before the reset came: no timer keeps it for the time of an idle one."""
    with door() as opened:
        with opened.socket() as raw:
            raw.send(post(b"x", path)).answer()
            raw._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        (made,) = opened.made

        def gone():
            gc.collect()
            return made() is None

        wait_for(gone)


def test_garbage_behind_a_good_request_is_refused_after_its_answer(echo):
    with echo.socket() as raw:
        raw.send(post(b"x"), b"\x00\x01 no http\r\n\r\n")
        assert way(raw.answer())[0] == "direct"
        assert raw.answer().status == 400
        assert raw.rest() == b""


@pytest.mark.parametrize("mutual", [False, True])
def test_tls_and_mutual_tls(pems, mutual):
    """Both ways pass under TLS; who has no certificate where one is needed gets nothing, nor does plain HTTP."""
    tls = TlsFiles(pems / "server.pem", pems / "server.key", pems / "ca.pem" if mutual else None)

    def asked(context):
        connection = http.client.HTTPSConnection(
            "localhost", opened.listener.port, timeout=WAIT_S, context=context
        )
        try:
            ways = []
            for body in (b"x", b"refused"):
                connection.request("POST", "/now", body)
                answer = connection.getresponse()
                ways.append((answer.headers["x-way"], answer.read()))
            return ways
        finally:
            connection.close()

    with door(tls=tls) as opened:
        assert opened.listener.address.startswith("https://")
        stranger = ssl.create_default_context(cafile=pems / "ca.pem")
        known = ssl.create_default_context(cafile=pems / "ca.pem")
        known.load_cert_chain(pems / "client.pem", pems / "client.key")
        assert asked(known if mutual else stranger) == [("direct", b"x"), ("long", b"refused")]
        if mutual:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                asked(stranger)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            asked(ssl.create_default_context())
        with opened.socket() as raw:
            raw.send(post(b"x"))
            with suppress(ConnectionResetError):
                assert b"HTTP/" not in raw.rest()
