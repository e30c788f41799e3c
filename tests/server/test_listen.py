"""Sockets: bound at once, refused with a clear message, closed gracefully."""

import asyncio
import http.client
import socket
import ssl
import threading
from contextlib import suppress

import pytest

from headrace.core.errors import ConfigError
from headrace.server.listen import HttpListener, ListenerThread, TlsFiles, bind_socket, new_event_loop


def run(main):
    """Run a coroutine in the kind of event loop that servers use."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def get(port: int, path: str = "/") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def hello(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def test_listener_serves_its_address_until_stop():
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


def test_stop_finishes_running_requests():
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


def test_second_stop_cancels_running_requests():
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


def test_stop_before_start_frees_the_port():
    async def main():
        listener = HttpListener(hello, "127.0.0.1", 0)
        port = listener.port
        await listener.stop(0)
        bind_socket("127.0.0.1", port).close()

    run(main())


def test_stop_closes_tls_connections_whose_clients_do_not_answer(pems):
    """An open connection could keep the event loop from closing."""

    async def main():
        listener = HttpListener(hello, "127.0.0.1", 0, TlsFiles(pems / "server.pem", pems / "server.key"))
        await listener.start()
        context = ssl.create_default_context(cafile=pems / "ca.pem")
        connection = http.client.HTTPSConnection("localhost", listener.port, timeout=10, context=context)

        def ask():
            connection.request("GET", "/")
            return connection.getresponse().read()

        assert await asyncio.to_thread(ask) == b"hi"
        await listener.stop(0)
        with socket.socket(fileno=connection.sock.detach()) as raw:
            raw.settimeout(10)
            await asyncio.to_thread(read_to_end, raw)

    run(main())


def read_to_end(raw):
    with suppress(ConnectionResetError):
        while raw.recv(4096):
            pass


def test_listener_thread_serves_until_stop():
    listener = HttpListener(hello, "127.0.0.1", 0)
    thread = ListenerThread(listener)
    port = listener.port
    thread.start()
    assert get(port) == (200, b"hi")
    for _ in range(2):
        thread.stop()
    with pytest.raises(ConnectionRefusedError):
        get(port)
    assert not any(each.name == "headrace-listener" for each in threading.enumerate())


def test_listener_thread_that_never_started_frees_its_port():
    listener = HttpListener(hello, "127.0.0.1", 0)
    port = listener.port
    ListenerThread(listener).stop()
    bind_socket("127.0.0.1", port).close()


def test_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot bind port {port} "):
            bind_socket("127.0.0.1", port)


def test_invalid_address_is_refused():
    with pytest.raises(ConfigError, match="not an address of this machine"):
        bind_socket("no.such.host.invalid", 0)


def test_invalid_tls_files_are_refused(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigError, match="TLS cannot be set up"):
        HttpListener(hello, "127.0.0.1", 0, TlsFiles(empty, empty))
