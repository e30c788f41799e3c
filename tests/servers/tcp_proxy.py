"""Between any client and a server: passes bytes on until it is told to cut, to refuse, or to swallow them."""

import contextlib
import select
import socket
import threading
from typing import Self

_POLL_S = 0.05
_CHUNK = 1 << 16


class TcpProxy:
    """In front of the server at 127.0.0.1:`port`.

    `cut` ends every connection. While `refusing`, new ones end at once. While `swallowing`, bytes vanish both ways and no
    connection breaks: what a network does when it is parted. `passed` counts the connections that were let through.
    """

    def __init__(self, port: int) -> None:
        self.refusing = False
        self.swallowing = False
        self.passed = 0
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(_POLL_S)
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    @property
    def port(self) -> int:
        return self._listening.getsockname()[1]

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in (one for pair in pairs for one in pair):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _begin(self, act, *arguments) -> None:
        thread = threading.Thread(target=act, args=arguments, name="tcp-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listening.accept()
            except TimeoutError:
                continue
            server = None
            with contextlib.suppress(OSError):
                server = None if self.refusing else socket.create_connection(("127.0.0.1", self._to), 5)
            if server is None:
                client.close()
                continue
            self.passed += 1
            with self._lock:
                self._pairs.append((client, server))
            self._begin(self._pump, client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with client, server, contextlib.suppress(OSError):
            while not self._over.is_set():
                for ready in select.select([client, server], [], [], _POLL_S)[0]:
                    data = ready.recv(_CHUNK)
                    if not data:
                        return
                    if not self.swallowing:
                        other[ready].sendall(data)
