"""HTTP connections: direct responses and ASGI exchanges, which clients cannot distinguish."""

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
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.server.connection import ConnectionContext, HttpConnection
from headrace.server.http import OverdueWatch
from headrace.server.listen import HttpListener, TlsFiles, new_event_loop
from headrace.server.listener import DirectResponse
from server.manual_time import ManualTime
from server.support import WAIT_S, Socket
from servers.polling import wait_until

OK = b"HTTP/1.1 200 OK"


class Echo:
    """A direct handler that echoes posts to ``/now`` and ``/later``, and declines the body
    ``refused``.
    """

    def __init__(self) -> None:
        self.seen = []
        self.begun = []
        self.cancelled = 0
        self.go: asyncio.Event | None = None

    def route(self, target):
        return target.decode() if target in (b"/now", b"/later") else None

    def respond(self, route, headers, body):
        if body == b"refused":
            return None
        self.seen.append((route, dict(headers), body))
        reply = DirectResponse(200, b"x-way: direct\r\n", body)
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


async def asgi_app(scope, receive, send):
    """Echo over ASGI."""
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


class RunningListener:
    """A listener with its own event loop."""

    def __init__(self, direct, tls=None, app=asgi_app, **shared) -> None:
        self.direct = direct
        self.loop = new_event_loop()
        self.listener = HttpListener(app, "127.0.0.1", 0, tls, direct=direct)
        self.made = []
        shared_by_all = ConnectionContext(direct, **shared)
        running_listener = self

        class Noted(HttpConnection):
            def __init__(self, **uvicorn):
                super().__init__(shared=shared_by_all, **uvicorn)
                running_listener.made.append(weakref.ref(self))

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
        """Call a function in the event loop and return its result."""

        async def there():
            return function(*args)

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(WAIT_S)

    def socket(self) -> Socket:
        return Socket(self.listener.port)

    def stop_soon(self):
        self.loop.call_soon_threadsafe(self.stop.set)


@contextmanager
def running_listener(direct=None, **settings):
    opened = RunningListener(direct or Echo(), **settings)
    opened.thread.start()
    assert opened.started.wait(WAIT_S)
    try:
        yield opened
    finally:
        opened.stop_soon()
        opened.thread.join(WAIT_S)


@pytest.fixture(scope="module")
def echo():
    with running_listener() as opened:
        yield opened


def post(body: bytes, path: bytes = b"/now", *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def path_and_body(response) -> tuple[str, bytes]:
    assert response.status == 200
    return response.headers["x-way"], response.body


@for_each("path", [b"/now", b"/later"])
def test_whole_post_gets_a_direct_response(echo, path):
    with echo.socket() as raw:
        for body in (b"one", b"two", b""):
            response = raw.send(post(body, path, b"X-Ab: c")).read_response()
            assert path_and_body(response) == ("direct", body)
            assert response.headers["date"]
    route, headers, body = echo.direct.seen[-2]
    assert (route, headers[b"x-ab"], body) == (path.decode(), b"c", b"two")


@for_each(
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
)
def test_other_requests_are_asgi_exchanges(echo, request_bytes):
    with echo.socket() as raw:
        response = raw.send(request_bytes).read_response()
        assert path_and_body(response)[0] == "long"


def test_chunked_body_gets_a_direct_response(echo):
    with echo.socket() as raw:
        raw.send(b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        assert path_and_body(raw.read_response()) == ("direct", b"abc")


def test_expect_continue_is_an_asgi_exchange(echo):
    with echo.socket() as raw:
        head, _, body = post(b"hi", b"/now", b"Expect: 100-continue").partition(b"\r\n\r\n")
        raw.send(head + b"\r\n\r\n")
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        assert path_and_body(raw.send(body).read_response()) == ("long", b"hi")


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([b"/now", b"/later", b"/long"]), st.sampled_from([b"", b"a", b"refused", b"x" * 99])
    ),
    min_size=1,
    max_size=5,
)


@given(REQUESTS, st.lists(st.integers(1, 600), max_size=4))
def test_split_requests_are_answered_in_order(echo, requests, cuts):
    """Several requests may arrive together, and may use both paths."""
    whole = b"".join(post(body, path) for path, body in requests)
    with echo.socket() as raw:
        raw._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
            raw.send(whole[start:stop])
        for path, body in requests:
            expected = "direct" if path != b"/long" and body != b"refused" else "long"
            name, received = path_and_body(raw.read_response())
            assert received == body
            # A request that arrived during another response waits as an exchange.
            assert name in (expected, "long")


def test_late_body_becomes_an_asgi_exchange():
    with running_listener(incomplete=OverdueWatch(0.01)) as opened, opened.socket() as raw:
        raw.send(post(b"slow")[:-1])
        wait_until(lambda: opened.call(lambda: len(opened.listener._server.server_state.tasks)) == 1)
        assert path_and_body(raw.send(b"w").read_response()) == ("long", b"slow")
        assert path_and_body(raw.send(post(b"fast")).read_response()) == ("direct", b"fast")


# Silence within a body


class ManualWatch(OverdueWatch):
    """A watch whose time passes by `advance` alone."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.time = ManualTime()
        self.starts = 0

    def watch(self, item, on_overdue, loop):
        super().watch(item, on_overdue, self.time)
        self.starts += 1


def send_and_wait(opened, raw, silent, data):
    """Send bytes, and wait until they started the time of silence anew."""
    starts = silent.starts
    raw.send(data)
    wait_until(lambda: silent.starts > starts)


@for_each("path", [b"/now", b"/long"])
@for_each("incomplete_s", [0.001, WAIT_S])
def test_silence_within_a_body_is_refused(path, incomplete_s):
    """Whether the connection still buffers the body or the application reads it."""
    silent = OverdueWatch(0.05)
    with running_listener(silent=silent, incomplete=OverdueWatch(incomplete_s)) as opened:
        for body in (
            post(b"x" * 1000, path)[:-990],
            post(b"", path, b"Transfer-Encoding: chunked") + b"5\r\nab",
        ):
            request = body.replace(b"Content-Length: 0\r\n", b"")
            with opened.socket() as raw:
                response = raw.send(request).read_response()
                assert (response.status, response.error) == (408, "the body did not arrive in time")
                assert response.headers["connection"] == "close"
                assert raw.read_to_end() == b""
        with opened.socket() as raw:
            assert path_and_body(raw.send(post(b"whole", path)).read_response())[1] == b"whole"
        assert not opened.call(lambda: silent._due)


@for_each("path", [b"/now", b"/long"])
def test_slow_body_without_silence_arrives(path):
    silent = ManualWatch()
    with running_listener(silent=silent) as opened, opened.socket() as raw:
        request = post(b"x" * 20, path)
        send_and_wait(opened, raw, silent, request[:-20])
        for _ in range(19):
            opened.call(silent.time.advance, 0.9)
            send_and_wait(opened, raw, silent, b"x")
        assert path_and_body(raw.send(b"x").read_response())[1] == b"x" * 20
        # The connection is idle now, which has a limit of its own.
        opened.call(silent.time.advance, 10)
        assert path_and_body(raw.send(post(b"next", path)).read_response())[1] == b"next"


def test_body_that_the_application_does_not_read_is_not_silent():
    silent, released = ManualWatch(), threading.Event()

    async def app(scope, receive, send):
        await asyncio.to_thread(released.wait, WAIT_S)
        await asgi_app(scope, receive, send)

    with running_listener(app=app, silent=silent) as opened, opened.socket() as raw:
        body = b"x" * 1_000_000
        sending = threading.Thread(target=raw.send, args=(post(body, b"/long"),))
        sending.start()
        # uvicorn sets `flow` when the connection is made, after the object is.
        wait_until(lambda: opened.made and (flow := opened.made[0]().flow) is not None and flow.read_paused)
        opened.call(silent.time.advance, 10)
        released.set()
        assert path_and_body(raw.read_response()) == ("long", body)
        sending.join(WAIT_S)


def test_expected_body_is_not_silent_before_the_application_wants_it():
    silent, released = ManualWatch(), threading.Event()

    async def app(scope, receive, send):
        await asyncio.to_thread(released.wait, WAIT_S)
        await asgi_app(scope, receive, send)

    with running_listener(app=app, silent=silent) as opened, opened.socket() as raw:
        head, _, body = post(b"hi", b"/long", b"Expect: 100-continue").partition(b"\r\n\r\n")
        send_and_wait(opened, raw, silent, head + b"\r\n\r\n")
        opened.call(silent.time.advance, 10)
        released.set()
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        assert path_and_body(raw.send(body).read_response()) == ("long", b"hi")


def test_response_before_the_end_of_a_silent_body_is_finished():
    """Then the connection is closed."""
    silent, released = ManualWatch(), threading.Event()

    async def app(scope, receive, send):
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.to_thread(released.wait, WAIT_S)
        await send({"type": "http.response.body", "body": b"b"})

    with running_listener(app=app, silent=silent) as opened, opened.socket() as raw:
        send_and_wait(opened, raw, silent, post(b"xyz", b"/long")[:-2])
        raw.read_until(b"\r\n\r\na")
        opened.call(silent.time.advance, 10)
        released.set()
        assert raw.read_until(b"b") == b"b"
        send_and_wait(opened, raw, silent, b"y")
        opened.call(silent.time.advance, 10)
        assert raw.read_to_end() == b""


@for_each("before", [b"", post(b"x")])
def test_head_that_does_not_arrive_in_time_closes_the_connection(before):
    """Both the first head of a connection and a later one."""
    heads = OverdueWatch(0.05)
    with running_listener(heads=heads) as opened, opened.socket() as raw:
        if before:
            assert path_and_body(raw.send(before).read_response())[1] == b"x"
        raw.send(b"POST /now HTTP/1.1\r\n")
        assert raw.read_to_end() == b""
        assert not opened.call(lambda: heads._due)


def test_large_body_becomes_an_asgi_exchange(echo, monkeypatch):
    monkeypatch.setattr("headrace.server.connection.DIRECT_BODY_BYTES_MAX", 1000)
    with echo.socket() as raw:
        assert path_and_body(raw.send(post(b"x" * 1000)).read_response())[0] == "direct"
        assert path_and_body(raw.send(post(b"x" * 1001)).read_response()) == ("long", b"x" * 1001)


def test_client_that_does_not_read_is_throttled(echo):
    """Unread responses fill the socket; then further requests wait."""
    body = b"x" * 100_000
    with echo.socket() as raw:
        raw._socket.setblocking(False)
        sent, request = 0, post(body)
        requested = len(echo.direct.seen)
        with suppress(BlockingIOError):
            while sent < 400 * len(request):
                sent += raw._socket.send(request[sent % len(request) :])
        assert sent < 400 * len(request), "nobody took it any more"
        assert len(echo.direct.seen) - requested < 400


def test_failed_deferred_response_closes_only_its_connection(echo):
    with echo.socket() as raw:
        assert raw.send(post(b"broken", b"/later")).read_to_end() == b""
    with echo.socket() as raw:
        assert path_and_body(raw.send(post(b"x")).read_response())[0] == "direct"


def test_disconnect_cancels_the_deferred_response():
    with running_listener() as opened:
        opened.direct.go = opened.call(asyncio.Event)
        with opened.socket() as raw:
            raw.send(post(b"x", b"/later"))
            wait_until(lambda: opened.direct.begun)
        wait_until(lambda: opened.direct.cancelled == 1)


def test_stop_finishes_running_requests():
    """The response announces the end of the connection."""
    with running_listener() as opened:
        opened.direct.go = go = opened.call(asyncio.Event)
        with opened.socket() as raw, opened.socket() as held:
            raw.send(post(b"x", b"/later"))
            wait_until(lambda: opened.direct.begun)
            # The request has begun but is incomplete; it is finished as well.
            held.send(post(b"held")[:-1])
            wait_until(lambda: any(c() is not None and c()._body_parts for c in opened.made))
            opened.stop_soon()
            wait_until(lambda: len(opened.listener._server.server_state.tasks) == 2)
            assert path_and_body(held.send(b"d").read_response()) == ("long", b"held")
            opened.loop.call_soon_threadsafe(go.set)
            response = raw.read_response()
            assert (path_and_body(response), response.headers["connection"]) == (("direct", b"x"), "close")
            assert raw.read_to_end() == b""


def test_idle_connection_is_closed():
    with running_listener(idle=OverdueWatch(0.05)) as opened, opened.socket() as raw:
        assert path_and_body(raw.send(post(b"x")).read_response())[0] == "direct"
        assert raw.read_to_end() == b""


@for_each("path", [b"/now", b"/elsewhere"])
def test_reset_connection_is_released(path):
    """If the response was finished before the reset, no keep-alive timer keeps the connection."""
    with running_listener() as opened:
        with opened.socket() as raw:
            raw.send(post(b"x", path)).read_response()
            raw._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        (made,) = opened.made
        connections = opened.listener._server.server_state.connections
        wait_until(lambda: not opened.call(connections.copy))

        def gone():
            gc.collect()
            return made() is None

        wait_until(gone)


def test_garbage_after_a_request_is_refused_after_its_response(echo):
    with echo.socket() as raw:
        raw.send(post(b"x"), b"\x00\x01 no http\r\n\r\n")
        assert path_and_body(raw.read_response())[0] == "direct"
        assert raw.read_response().status == 400
        assert raw.read_to_end() == b""


@pytest.mark.parametrize("mutual", [False, True])
def test_tls_and_mutual_tls(pems, mutual):
    """Both paths work under TLS. A client without a required certificate, and plain HTTP, get
    nothing.
    """
    tls = TlsFiles(pems / "server.pem", pems / "server.key", pems / "ca.pem" if mutual else None)

    def asked(context):
        connection = http.client.HTTPSConnection(
            "localhost", opened.listener.port, timeout=WAIT_S, context=context
        )
        try:
            ways = []
            for body in (b"x", b"refused"):
                connection.request("POST", "/now", body)
                response = connection.getresponse()
                ways.append((response.headers["x-way"], response.read()))
            return ways
        finally:
            connection.close()

    with running_listener(tls=tls) as opened:
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
                assert b"HTTP/" not in raw.read_to_end()
