"""Start and control the process of a Beam pipeline. This module does not import Beam."""

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
from headrace.runners.messages import Message, receive, send
from headrace.runners.worker import Opener

_CANCEL_S: Final = 30.0
"""The maximal duration of a cancellation."""
_LINES_SHOWN: Final = 3
_OUTPUT_BYTES_MAX: Final = 64 << 10
"""The size of the retained end of Beam's output."""
_OUTPUT_END_S: Final = 2.0
"""The maximal wait for the end of the output after the pipeline's last message."""
_START: Final = "import sys; from headrace.runners.beam_pipeline import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """The contents of a pipeline.

    `pipeline` is its unique name, `options` are Beam's. If `direct`, Beam's DirectRunner runs it on
    this machine.
    """

    opener: Opener
    pipeline: str
    region: str | None
    assignments: Sequence[Message]
    options: Sequence[str]
    direct: bool


class PipelineProcess:
    """A running pipeline with its local processes. As a context manager it always ends them.

    Args:
        order: The contents of the pipeline.
        environ: Additional environment variables of the pipeline and its local workers.
    """

    def __init__(self, order: PipelineOrder, environ: Mapping[str, str] | None = None) -> None:
        run_end, worker_end = socket.socketpair()
        self._output = bytearray()
        try:
            # A session of its own, so that Ctrl-C reaches the run only, and all processes can be
            # killed.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-c", _START, str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(worker_end.fileno(),),
                env={**os.environ, **(environ or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        except OSError as error:
            run_end.close()
            raise RunnerError(f"cannot start a process for the Beam pipeline: {error}") from error
        finally:
            worker_end.close()
        # Processes that it leaves behind may keep the pipe open; the daemon thread does not block
        # the exit.
        self._collector = threading.Thread(
            target=self._collect_output, name="headrace-beam-says", daemon=True
        )
        self._collector.start()
        self.connection = Connection(run_end.detach())
        self.connection.send_bytes(pickle.dumps(order))

    def receive(self) -> Message:
        """Return the message ``ended``, ``failed`` or ``died``, once `connection` is readable."""
        try:
            return receive(self.connection)
        except (EOFError, OSError):
            return {"died": f"the pipeline's own process ended with status {self._process.wait()}"}

    def _collect_output(self) -> None:
        """Read the process's output, so that it never blocks, and keep the end."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while chunk := output.read(_OUTPUT_BYTES_MAX):
                self._output += chunk
                del self._output[:-_OUTPUT_BYTES_MAX]

    def output_tail(self) -> str:
        """Return the end of Beam's output, after the pipeline has reported its end."""
        self._collector.join(_OUTPUT_END_S)
        lines = [line for line in bytes(self._output).decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-_LINES_SHOWN:])

    def cancel(self) -> None:
        """Cancel the pipeline, also on other machines, and wait for its end."""
        with suppress(OSError, subprocess.TimeoutExpired):
            send(self.connection, {"cancel": True})
            self._process.wait(_CANCEL_S)

    def __enter__(self) -> Self:
        """Return the started process."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the pipeline's local processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        self._collector.join(_OUTPUT_END_S)
