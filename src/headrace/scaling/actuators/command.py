"""A command of the operator as an actuator, for pools of machines in a cloud.

The command receives the wanted number of workers. Most commands pass it to the cloud, as
``aws autoscaling set-desired-capacity --desired-capacity {workers} ...`` does.
"""

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ActuatorError, ConfigError
from headrace.jobs.worker_registry import WorkerRecord
from headrace.scaling.actuator import Actuator, Members

PLACEHOLDER: Final = "{workers}"
WORKERS_VARIABLE: Final = "HEADRACE_WORKERS"
POOL_VARIABLE: Final = "HEADRACE_POOL"
OUTPUT_BYTES_MAX: Final = 4096
"""The bytes of a command's output that an error shows, from its end."""
TIMEOUT_S: Final = 60.0
REPEAT_S: Final = 300.0
START_S: Final = 600.0
_POLL_S: Final = 0.05
_READ_BYTES: Final = 65_536
"""The usual capacity of a pipe."""


class CommandActuator(Actuator):
    """An actuator that scales a pool by a command, which runs without a shell.

    In the arguments of the command, ``{workers}`` stands for the wanted number of workers. The
    environment variables HEADRACE_WORKERS and HEADRACE_POOL have that number and the name of the pool.

    The command runs when the number changes, again after a failure, and again every `repeat_s`
    seconds. So it must be harmless with the number that the pool already has. It cannot choose which
    workers end: machines need a termination hook that waits for the drain of a worker.

    Args:
        command: The program and its arguments, split as a POSIX shell splits them.
        pool: The name of the pool.
        timeout_s: The time after which the command's process group is killed.
        repeat_s: Seconds after which the command runs again with the same number, to restore a pool
            that was changed by hand.
        start_s: Seconds after a change for which missing workers count as starting.
        clock: The clock of `repeat_s` and `start_s`.

    Raises:
        ConfigError: The command is empty or malformed, or its program does not exist.
    """

    def __init__(
        self,
        command: str,
        *,
        pool: str,
        timeout_s: float = TIMEOUT_S,
        repeat_s: float = REPEAT_S,
        start_s: float = START_S,
        clock: Clock | None = None,
    ) -> None:
        self._arguments = _split(command)
        self._pool = pool
        self._timeout_s = self.call_s_max = timeout_s
        self._repeat_s = repeat_s
        self._start_s = start_s
        self._clock = clock or SystemClock()
        self._workers: int | None = None
        """The number of the last run that succeeded."""
        self._changed_s = 0.0
        self._succeeded_s = 0.0
        self._failed = False

    @override
    def start(self) -> None:
        pass

    @override
    def stop(self, *, drain: bool = True) -> None:
        pass

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        starting = 0
        # A machine may never come up. Without this limit the pool would wait for it forever.
        if self._workers is not None and self._clock.now() - self._changed_s < self._start_s:
            starting = max(0, self._workers - len(records))
        return Members(tuple(records), starting)

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        changes = workers != self._workers
        is_recent = self._clock.now() - self._succeeded_s < self._repeat_s
        if not changes and not self._failed and is_recent:
            return
        # A command that fails may have changed the pool before: the old number is repeated too.
        self._failed = True
        self._run(workers)
        self._failed = False
        self._workers = workers
        self._succeeded_s = self._clock.now()
        if changes:
            self._changed_s = self._succeeded_s

    def _run(self, workers: int) -> None:
        arguments = [argument.replace(PLACEHOLDER, str(workers)) for argument in self._arguments]
        environ = {**os.environ, WORKERS_VARIABLE: str(workers), POOL_VARIABLE: self._pool}
        try:
            status, output = _run_bounded(arguments, environ, self._timeout_s)
        except OSError as error:
            raise self._error(workers, f"did not start: {error}") from error
        if status is None:
            raise self._error(workers, f"ran for {self._timeout_s:g} s and was killed", output)
        if status < 0:
            raise self._error(workers, f"was ended by signal {-status}", output)
        if status:
            raise self._error(workers, f"failed with exit status {status}", output)

    def _error(self, workers: int, what: str, output: bytes = b"") -> ActuatorError:
        # Arguments may have secrets, so that only the program is named.
        shown = output.decode(errors="replace").strip() or "(no output)"
        return ActuatorError(
            f"the command {self._arguments[0]} {what} when it was to bring pool {self._pool} to {workers} "
            f"workers; it runs again in the next round. The end of its output: {shown}"
        )


def _split(command: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"the scaling command cannot be split into arguments: {error}: check its quotes"
        ) from error
    if not arguments:
        raise ConfigError("the scaling command is empty: name a program, and pass it {workers}")
    if shutil.which(arguments[0]) is None:
        raise ConfigError(
            f"the scaling command's program {arguments[0]!r} does not exist or is not executable: "
            "install it, or correct its path"
        )
    return arguments


def _run_bounded(
    arguments: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> tuple[int | None, bytes]:
    """Run a program. Return its exit status, or None if it was killed, and the end of its output.

    A process that the program leaves running may keep the output open; the end of the program counts.
    """
    until_s = time.monotonic() + timeout_s
    with (
        subprocess.Popen(  # noqa: S603 - the operator's command, without a shell
            arguments,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        selector.register(descriptor, selectors.EVENT_READ)
        tail, is_open = b"", True
        try:
            while True:
                ended = process.poll() is not None
                left_s = until_s - time.monotonic()
                if not ended and left_s <= 0:
                    return None, tail
                wait_s = 0.0 if ended else min(_POLL_S, left_s)
                if is_open:
                    if selector.select(wait_s):
                        data = os.read(descriptor, _READ_BYTES)
                        is_open = bool(data)
                        tail = (tail + data)[-OUTPUT_BYTES_MAX:]
                elif not ended:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(wait_s)
                if ended:
                    return process.returncode, tail
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
