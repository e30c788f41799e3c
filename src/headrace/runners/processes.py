"""Run tasks in several processes of this machine, each with its own interpreter and model.

The run assigns tasks and waits: `ProcessRunner`. Workers read, predict, write and commit by themselves;
`ConnectedWorker` is their end of the connection. A worker whose run is gone ends at once: its work can
be resumed.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Final, Self, cast

from typing_extensions import override

from headrace.core.errors import ModelLoadError
from headrace.runners.messages import Assignment, Message, receive, send
from headrace.runners.scheduler import ScheduledRunner, WorkerHandle, any_busy
from headrace.runners.worker import ORPHANED, TaskWorker
from headrace.runs.plan import Task
from headrace.runs.tasks import Locality
from headrace.runs.work import RunWork

_log = logging.getLogger("headrace.runs")

_WAIT_S: Final = 0.5
_STOP_S: Final = 30.0
"""The maximal duration of an idle worker's end."""


@dataclass(slots=True)
class _Process:
    """A worker process and its connection."""

    process: subprocess.Popen[bytes]
    connection: Connection
    handle: WorkerHandle

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


class ProcessRunner(ScheduledRunner):
    """A runner of tasks in worker processes. As a context manager it starts and always ends them.

    Args:
        command: The interpreter arguments of a worker. The connection's file descriptor is appended.
        workers: The number of workers.
        model: The model's name, for errors.
        environ: Additional environment variables of the workers. They may contain credentials, unlike a
            command line.
        locality: The region of the workers.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        *,
        model: str,
        environ: Mapping[str, str] | None = None,
        locality: Locality | None = None,
    ) -> None:
        super().__init__(model, locality)
        self._command = list(command)
        self._environ = None if environ is None else {**os.environ, **environ}
        self._count = workers
        self._workers: list[_Process] = []

    def start(self) -> None:
        """Start the workers and wait until one has loaded the model. Raises the errors of loading."""
        try:
            for _ in range(self._count):
                self._spawn()
            while self._scheduler.loaded is None:
                for worker in self._ready_workers(None):
                    self._on_loading_message(worker)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers: idle ones orderly, busy ones at once."""
        for worker in self._workers:
            try:
                send(worker.connection, {"stop": True})
                idle = worker.handle.ready and not worker.handle.assigned
                worker.process.wait(_STOP_S if idle else 0.0)
            except (OSError, subprocess.TimeoutExpired):
                pass
            worker.kill()
            self._scheduler.release(worker.handle)
        self._workers = []

    def __enter__(self) -> Self:
        """Start the workers."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    @override
    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        """Run the tasks. The workers read their checkpoints from the ledger.

        A task that kills workers is excluded; after all others, InstanceLostError is raised.
        """
        self._scheduler.begin(work, tasks)
        self._assign()
        while any_busy(self._scheduler.handles) or self._may_get_work():
            for worker in self._ready_workers(_WAIT_S):
                try:
                    self._scheduler.on_message(worker.handle, receive(worker.connection))
                except (EOFError, OSError):
                    self._replace_dead(worker)
            self._scheduler.update_progress()
            self._assign()
        return self._scheduler.complete(drained=self._draining)

    @override
    def drain(self) -> None:
        self._draining = True
        for worker in list(self._workers):
            try:
                send(worker.connection, {"drain": True})
            except OSError:
                _log.debug("worker is gone", exc_info=True)

    # Workers

    def _spawn(self) -> None:
        run_end, worker_end = socket.socketpair()
        try:
            # A session of its own, so that Ctrl-C reaches the run only, which drains the worker.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *self._command, str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(worker_end.fileno(),),
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            run_end.close()
            raise ModelLoadError(self._model, f"cannot start a worker: {error}") from error
        finally:
            worker_end.close()
        handle = WorkerHandle(self._locality)
        self._workers.append(_Process(process, Connection(run_end.detach()), handle))
        self._scheduler.handles.append(handle)

    def _ready_workers(self, timeout_s: float | None) -> list[_Process]:
        """Return the workers that have a message or have ended."""
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = wait(list(by_connection), timeout_s)
        return [by_connection[cast("Connection", connection)] for connection in ready]

    def _on_loading_message(self, worker: _Process) -> None:
        """Handle a message of a worker that loads the model."""
        try:
            message = receive(worker.connection)
        except EOFError:
            code = worker.process.wait()
            raise ModelLoadError(
                self._model, f"its worker ended with status {code} while it loaded"
            ) from None
        self._scheduler.on_message(worker.handle, message)

    def _assign(self) -> None:
        """Assign tasks to every idle worker."""
        for worker in [] if self._draining else list(self._workers):
            order = self._scheduler.assign(worker.handle, workers=self._count)
            if order is None:
                continue
            try:
                send(worker.connection, {"do": order.to_json()})
            except OSError:
                self._replace_dead(worker)

    def _replace_dead(self, worker: _Process) -> None:
        """Replace a worker whose process ended."""
        worker.kill()
        self._workers.remove(worker)
        self._scheduler.on_worker_died(worker.handle, f"with status {worker.process.returncode}")
        self._spawn()


class ConnectedWorker:
    """The worker's end of the connection to its run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._orders: list[Assignment | None] = []
        self._ordered = threading.Condition()

    def send(self, message: Message) -> None:
        """Send a message to the run. Ends the process if the run is gone."""
        try:
            send(self._connection, message)
        except OSError:
            os._exit(ORPHANED)

    def run(self, worker: TaskWorker) -> None:
        """Report that the model is loaded, then run each assignment until the run stops the worker."""
        worker.send_ready()
        threading.Thread(target=self._listen, args=[worker], name="headrace-orders", daemon=True).start()
        while (assignment := self._next()) is not None:
            worker.do(assignment)
        worker.send_counters()

    def _listen(self, worker: TaskWorker) -> None:
        """Receive orders in a thread of their own, so that a busy worker notices a drain."""
        while True:
            try:
                message = receive(self._connection)
            except (EOFError, OSError):
                os._exit(ORPHANED)
            if "drain" in message:
                worker.drain()
                continue
            order = None if "stop" in message else Assignment.from_json(message["do"])
            with self._ordered:
                self._orders.append(order)
                self._ordered.notify()
            if order is None:
                return

    def _next(self) -> Assignment | None:
        with self._ordered:
            self._ordered.wait_for(lambda: self._orders)
            return self._orders.pop(0)
