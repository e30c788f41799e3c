"""The process that a Beam pipeline runs in, as its run sees it. Nothing of Beam is imported here."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, Self

from headrace.core.errors import RunnerError
from headrace.transforms.runners.messages import Message, receive, send
from headrace.transforms.runners.worker import Opener

_CANCEL_S: Final = 30.0
"""How long a pipeline may take to end once it is told to."""
_LINES_SHOWN: Final = 3
_SAID_MAX_BYTES: Final = 64 << 10
"""Of what Beam says, so much of its end is kept."""
_SAID_S: Final = 2.0
"""How long the end of what a pipeline said may take to arrive, once it has told how it ended."""
_START: Final = "import sys; from headrace.transforms.runners.beam_pipeline import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """What a pipeline does. `pipeline` is its own name, `options` are Beam's own; `direct`: on this machine, by Beam's DirectRunner."""

    opener: Opener
    pipeline: str
    region: str | None
    assignments: Sequence[Message]
    options: Sequence[str]
    direct: bool


class PipelineProcess:
    """One pipeline under way, and all processes that it starts on this machine; ended whatever happens, as a context manager.

    Args:
        order: What it does.
        environ: Of the pipeline and its workers here, beside what this process has.
    """

    def __init__(self, order: PipelineOrder, environ: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._said = bytearray()
        try:
            # Of its own session: a Ctrl-C at the terminal is for the run, and all of it can be killed at once.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-c", _START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **(environ or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise RunnerError(f"a process for Beam's pipeline cannot be started: {error}") from error
        finally:
            theirs.close()
        # What it starts elsewhere may hold the pipe open when it is gone itself: that is waited for by nobody.
        self._listener = threading.Thread(target=self._listen, name="headrace-beam-says", daemon=True)
        self._listener.start()
        self.connection = Connection(ours.detach())
        self.connection.send_bytes(pickle.dumps(order))

    def receive(self) -> Message:
        """What it tells, once `connection` is readable: ``ended``, ``failed`` or ``died``."""
        try:
            return receive(self.connection)
        except (EOFError, OSError):
            return {"died": f"the pipeline's own process ended with status {self._process.wait()}"}

    def _listen(self) -> None:
        """Take what it says, so that it need not wait, and keep the end."""
        assert self._process.stdout is not None
        with self._process.stdout as said:
            while words := said.read(_SAID_MAX_BYTES):
                self._said += words
                del self._said[:-_SAID_MAX_BYTES]

    def last_words(self) -> str:
        """The end of what Beam has said, once it has told how it ended."""
        self._listener.join(_SAID_S)
        lines = [line for line in bytes(self._said).decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-_LINES_SHOWN:])

    def cancel(self) -> None:
        """Have its runner end it, also where that is on other machines; waits for that."""
        with suppress(OSError, subprocess.TimeoutExpired):
            send(self.connection, {"cancel": True})
            self._process.wait(_CANCEL_S)

    def __enter__(self) -> Self:
        """It has been started."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what of it is on this machine."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        self._listener.join(_SAID_S)
