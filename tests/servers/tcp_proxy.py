"""A TCP proxy that delays, holds, cuts and resets connections on demand."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, Self

DONE_IN_S = 10.0
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset instead of a FIN."""
_READ_BYTES = 1 << 16


class Way(StrEnum):
    """The direction of bytes."""

    UP = "up"
    """From the client to the server."""
    DOWN = "down"
    """From the server to the client."""


class _Connection:
    """A client's connection and, once it is open, the server's."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]

    def reset(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):  # it is closed already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class TcpProxy:
    """A proxy before the server at `port` of loopback, on a free port of `host`.

    Each call has taken effect when it returns. Bytes arrive in order, each once, or the connection
    ends.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.delay_s = 0.0
        """The delay of each later piece and connection, in seconds."""
        self.opened = 0
        """The number of all connections so far."""
        self.passed_bytes = dict.fromkeys(Way, 0)
        self._upstream_port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._free = {way: asyncio.Event() for way in Way}
        self._waiting = dict.fromkeys(Way, 0)
        self._left: dict[Way, int | None] = dict.fromkeys(Way)
        self._changed = threading.Condition()
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._heal())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def hold(self, *ways: Way) -> None:
        """Forward nothing in these directions (default: both), not even the end of a connection.

        New connections are accepted, as by a kernel, and receive nothing. `heal` forwards the held
        bytes.
        """
        self._do(self._hold(ways or tuple(Way)))

    def cut_after(self, count: int, way: Way) -> None:
        """Forward `count` more bytes in this direction, over all connections, then reset one
        connection.

        Only the connection with the next byte is reset; later bytes pass.
        """
        self._do(self._set_left(way, count))

    def reset(self) -> None:
        """Reset all open connections; new ones are served."""
        self._do(self._reset())

    def refuse(self) -> None:
        """Reset all connections and refuse new ones: the port is closed."""
        self._do(self._refuse())

    def heal(self) -> None:
        """End all faults and delays: held bytes pass, new connections are served, on the same port."""
        self.delay_s = 0.0
        self._do(self._heal())

    def wait_until_held(self, *ways: Way) -> None:
        """Wait until a piece of a connection is held in one of these directions (default: both)."""
        with self._changed:
            found = self._changed.wait_for(lambda: any(self._waiting[way] for way in ways or Way), DONE_IN_S)
        assert found, f"nothing is held: {self._waiting}"

    def wait_until_open(self, count: int) -> None:
        """Wait until exactly `count` connections are open."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self._open) == count, DONE_IN_S)
        assert found, f"{len(self._open)} connections are open, not {count}"

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DONE_IN_S)

    async def _hold(self, ways: tuple[Way, ...]) -> None:
        for way in ways:
            self._free[way].clear()

    async def _set_left(self, way: Way, count: int) -> None:
        self._left[way] = count

    async def _reset(self) -> None:
        for connection in self._open:
            connection.reset()

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._reset()

    async def _heal(self) -> None:
        self._left = dict.fromkeys(Way)
        for free in self._free.values():
            free.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        connection = _Connection(client)
        with self._changed:
            self.opened += 1
            self._open.add(connection)
            self._changed.notify_all()
        try:
            await self._gate(Way.UP)
            answers, server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            connection.writers.append(server)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server, Way.UP))
                pumps.create_task(self._pump(answers, client, Way.DOWN))
        except* OSError:  # one side is closed, or the server is unreachable: the other side is reset
            connection.reset()
        finally:
            for writer in connection.writers:
                writer.close()
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        while data := await reader.read(_READ_BYTES):
            await self._gate(way)
            part = self._allowed(data, way)
            writer.write(part)
            await writer.drain()
            if len(part) < len(data):
                await self._flushed(writer)
                raise ConnectionResetError
        await self._gate(way)
        if writer.can_write_eof():
            writer.write_eof()

    def _allowed(self, data: bytes, way: Way) -> bytes:
        """Return the bytes that may pass, and count them before they do."""
        left = self._left[way]
        part = data if left is None else data[:left]
        self.passed_bytes[way] += len(part)
        if left is not None:
            self._left[way] = left - len(part) if len(part) == len(data) else None
        return part

    async def _flushed(self, writer: asyncio.StreamWriter) -> None:
        """Hand all bytes to the kernel: a reset drops those that the transport still has."""
        writer.transport.set_write_buffer_limits(0)
        await writer.drain()

    async def _gate(self, way: Way) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self._free[way].is_set():
            return
        with self._changed:
            self._waiting[way] += 1
            self._changed.notify_all()
        try:
            await self._free[way].wait()
        finally:
            with self._changed:
                self._waiting[way] -= 1
