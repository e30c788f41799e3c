"""Workers as processes of this machine: ``headrace up MODEL --workers 0..8``."""

import logging
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ActuatorError
from headrace.jobs.worker_registry import WorkerRecord
from headrace.scaling.actuator import Actuator, Members

_SHORT_LIFE_S: Final = 10.0
"""A worker that ends by itself sooner counts as a failed start."""
_PAUSE_S_MAX: Final = 60.0
"""The longest pause before the next start, after failed ones."""
_KILL_S: Final = 5.0
_log = logging.getLogger("headrace.scaling")


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    started_s: float
    registered: bool = False
    ended_s: float | None = None
    """The time of the order to end."""

    def signal(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self.process.send_signal(number)


class ProcessActuator(Actuator):
    """Starts and ends worker processes of this machine.

    The standard input of each worker is a pipe that nothing is written to. It ends with this process,
    however that dies, and then the worker drains and ends, too. After a worker that failed to start, a
    single one is started after a pause, which doubles up to a minute. Until one has registered, `scale`
    raises ActuatorError.

    `stop` has all workers drain, and kills those that need longer than `stop_s`. Without `drain` they
    return their jobs to the queues at once.

    Args:
        command: The command of a worker, which drains at the end of its standard input.
        environ: The environment of a worker; None for that of this process.
        stop_s: Seconds that a worker may need to drain, at most.
        clock: The clock of pauses and lives.
    """

    ends_chosen: bool = True

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        stop_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._command = list(command)
        self._environ = environ
        self._stop_s = stop_s
        self._clock = clock or SystemClock()
        self._host = socket.gethostname()
        self._lock = threading.Lock()
        """Guards the workers: `stop` may run beside `scale`."""
        self._stopped = False
        self._workers: list[_Worker] = []
        self._failures = 0
        self._failed_s = 0.0
        self._failure = ""
        self._next_start_s = 0.0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run."""
        with self._lock:
            return [worker.process.pid for worker in self._workers if worker.process.poll() is None]

    @override
    def start(self) -> None:
        """Do nothing: `scale` starts workers."""

    @override
    def stop(self, *, drain: bool = True) -> None:
        """End all workers. A second call, without `drain`, hurries a running one."""
        with self._lock:
            self._stopped = True
            workers = list(self._workers)
        signals = (signal.SIGTERM,) if drain else (signal.SIGTERM, signal.SIGINT)
        for worker in workers:
            # A second signal of another number counts as the second one of any.
            worker.signal(*signals)
        until_s = time.monotonic() + (self._stop_s if drain else _KILL_S)
        for worker in workers:
            _wait_or_kill(worker.process, max(0.0, until_s - time.monotonic()))

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        with self._lock:
            self._reap()
            by_pid = {each.process.pid: each for each in self._workers if each.ended_s is None}
            registered = [
                record for record in records if record.info.host == self._host and record.info.pid in by_pid
            ]
            for record in registered:
                worker = by_pid[record.info.pid]
                worker.registered = True
                if worker.started_s >= self._failed_s:
                    self._failures = 0
            return Members(tuple(registered), max(0, len(by_pid) - len(registered)))

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        """Bring the pool to `workers` processes.

        Raises:
            ActuatorError: Workers failed to start, and none has registered since; or the command cannot
                be run. `ended` are ended all the same.
        """
        with self._lock:
            pids = {record.info.pid for record in ended}
            now_s = self._clock.now()
            for worker in self._workers:
                if worker.process.pid in pids and worker.ended_s is None:
                    worker.ended_s = now_s
                    worker.signal(signal.SIGTERM)
                elif worker.ended_s is not None and now_s - worker.ended_s > self._stop_s:
                    worker.process.kill()
            self._reap()
            if self._stopped:
                return
            missing = workers - sum(worker.ended_s is None for worker in self._workers)
            if missing > 0:
                self._start(missing)
            # The error is the same while the next worker starts, so that the log has it once.
            starting = any(not worker.registered for worker in self._workers)
            if self._failures and (missing > 0 or starting):
                raise ActuatorError(f"{self._failure}: its log says why. The next one starts after a pause")

    def _start(self, count: int) -> None:
        """Start workers, but only one after failures, and none during a pause."""
        now_s = self._clock.now()
        if self._failures:
            if now_s < self._next_start_s:
                return
            count = 1
            # It fails or registers before, unless it is slow or hangs.
            self._next_start_s = now_s + _PAUSE_S_MAX
        for _ in range(count):
            try:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    self._command,
                    stdin=subprocess.PIPE,
                    env=self._environ,
                    # A session of its own, so that Ctrl-C reaches this process only, which drains it.
                    start_new_session=True,
                )
            except OSError as error:
                raise ActuatorError(f"a worker cannot be started: {error}") from error
            self._workers.append(_Worker(process, now_s))

    def _reap(self) -> None:
        """Forget the workers that have ended."""
        running: list[_Worker] = []
        for worker in self._workers:
            status = worker.process.poll()
            if status is None:
                running.append(worker)
                continue
            _close(worker.process)
            if worker.ended_s is None:
                self._on_exit(worker, status)
        self._workers = running

    def _on_exit(self, worker: _Worker, status: int) -> None:
        now_s = self._clock.now()
        _log.warning("worker process %d ended with status %d", worker.process.pid, status)
        if worker.registered and now_s - worker.started_s >= _SHORT_LIFE_S:
            return
        # Workers that started together and fail together are one failure.
        if not self._failures or worker.started_s > self._failed_s:
            self._failures += 1
        self._failed_s = now_s
        self._failure = f"a worker ended with status {status} soon after its start"
        self._next_start_s = now_s + min(_PAUSE_S_MAX, 2.0 ** min(self._failures - 1, 10))


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _log.warning("worker process %d did not end in time: it is killed", process.pid)
        process.kill()
        process.wait()
    _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
