"""Sockets: bound at once, refused in plain words, closed gracefully."""

import asyncio
import http.client
import socket

import pytest

from headrace.core.errors import ConfigError
from headrace.server.listen import HttpListener, TlsFiles, bound_socket, new_event_loop


def run(main):
    """A coroutine on the kind of loop that servers run on."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def get(port: int, path: str = "/") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def hello(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def test_it_listens_from_start_to_stop_on_the_port_that_it_tells():
    async def main():
        listener = HttpListener(hello, "127.0.0.1", 0)
        assert listener.address == f"http://127.0.0.1:{listener.port}"
        port = listener.port
        await listener.start()
        assert await asyncio.to_thread(get, port) == (200, b"hi")
        await listener.stop(1)
        with pytest.raises(OSError):
            await asyncio.to_thread(get, port)

    run(main())


def test_what_is_under_way_is_finished_before_it_stops():
    async def main():
        entered, go = asyncio.Event(), asyncio.Event()

        async def slow(scope, receive, send):
            entered.set()
            await go.wait()
            await hello(scope, receive, send)

        listener = HttpListener(slow, "127.0.0.1", 0)
        await listener.start()
        asking = asyncio.ensure_future(asyncio.to_thread(get, listener.port))
        await entered.wait()
        stopping = asyncio.ensure_future(listener.stop(30))
        await asyncio.sleep(0)
        go.set()
        assert await asking == (200, b"hi")
        await stopping

    run(main())


def test_a_second_stop_cuts_off_what_is_under_way():
    async def main():
        entered, cut = asyncio.Event(), asyncio.Event()

        async def endless(_scope, _receive, _send):
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cut.set()

        listener = HttpListener(endless, "127.0.0.1", 0)
        await listener.start()
        asking = asyncio.ensure_future(asyncio.to_thread(get, listener.port))
        await entered.wait()
        first = asyncio.ensure_future(listener.stop(60))
        await asyncio.sleep(0)
        await listener.stop(0)
        await first
        assert cut.is_set()
        await asyncio.gather(asking, return_exceptions=True)

    run(main())


def test_stopping_what_was_never_started_frees_the_port():
    async def main():
        listener = HttpListener(hello, "127.0.0.1", 0)
        port = listener.port
        await listener.stop(0)
        bound_socket("127.0.0.1", port).close()

    run(main())


def test_a_port_that_is_taken_is_refused_by_its_number():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} .* cannot be had"):
            bound_socket("127.0.0.1", port)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="no address of this machine"):
        bound_socket("no.such.host.invalid", 0)


def test_tls_files_that_are_none_are_refused(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigError, match="TLS cannot be set up"):
        HttpListener(hello, "127.0.0.1", 0, TlsFiles(empty, empty))
