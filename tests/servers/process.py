"""A server as a process of its own, on a port of loopback that stays its own when it is started again."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path


class ServerProcess:
    """Starts one command in a folder, whose file ``log`` has what it says, and waits until it answers.

    A subclass says what is started, and when it answers. `named` is for messages.
    """

    named = "the server"
    ready_s = 20.0
    look_s = 0.02

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _cwd(self) -> Path:
        return self.folder

    def _process_environ(self) -> Mapping[str, str] | None:
        return None

    def start(self) -> None:
        """Start it; returns when it answers."""
        self._launch()
        if self._wait_until_ready():
            return
        self.stop()
        raise RuntimeError(f"{self.named} does not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def _launch(self) -> None:
        assert self._process is None, f"{self.named} runs already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                list(self._command()),
                cwd=self._cwd(),
                env=self._process_environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_ready(self) -> bool:
        until = time.monotonic() + self.ready_s
        while time.monotonic() < until and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(self.look_s)
        return False

    def stop(self) -> None:
        """Kill it and what it has started, as a power cut would. Twice does nothing."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            # It leads a session, and with it a group, of its own.
            os.killpg(process.pid, number)
            process.wait(self.ready_s)


def answers_http(url: str) -> bool:
    """Whether somebody answers there, with anything but a fault of his own."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True
