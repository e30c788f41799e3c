"""A server in a process of its own that keeps its port when it is started again."""

import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.polling import reached


class ServerProcess:
    """Starts one command in a folder, logs to its file ``log``, and waits until it responds.

    A subclass names the command and checks for a response. `named` is for messages.
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
        """Start the process and wait until it responds."""
        self._launch()
        if self._wait_until_ready():
            return
        self.stop()
        raise RuntimeError(f"{self.named} did not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def start_in_background(self) -> threading.Thread:
        """Start the process in a thread. Return the thread, which ends when the server responds."""
        thread = threading.Thread(target=self.start)
        thread.start()
        return thread

    def _launch(self) -> None:
        assert self._process is None, f"{self.named} is already running"
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
        exited = False

        def ready() -> bool:
            nonlocal exited
            exited = self._process.poll() is not None
            return exited or self._answers()

        return reached(ready, timeout_s=self.ready_s, interval_s=self.look_s) and not exited

    def stop(self) -> None:
        """Kill the process and its children, like a power cut. A second call does nothing."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The process leads a session, and with it a process group.
            os.killpg(process.pid, number)
            process.wait(self.ready_s)


def answers_http(url: str) -> bool:
    """Return True if an HTTP server responds with a status below 500."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True
