"""Tasks in several processes on this machine: each has its own interpreter and its own copy of the model.

The run hands out tasks and waits; workers read, predict, write and commit by themselves.
"""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Final, Self, cast

from headrace.core.errors import ModelLoadError
from headrace.transforms.locality import Locality
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.runners.dispatch import Hand, busy
from headrace.transforms.runners.dispatched import DispatchedRunner
from headrace.transforms.runners.messages import receive, send
from headrace.transforms.work import Work

_log = logging.getLogger("headrace.transform")

_WAIT_S: Final = 0.5
_STOP_S: Final = 30.0
"""How long a worker may take to end once it is told to."""


@dataclass(slots=True)
class _Process:
    """One worker, and the way to it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    hand: Hand

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


class ProcessRunner(DispatchedRunner):
    """Workers, each a process of its own; as a context manager it starts them, and ends them whatever happens.

    Args:
        command: What a worker is started with; the number of its connection's file descriptor is added.
        workers: How many.
        model: The model's name, for errors.
        environ: Of the workers, beside what this process has; it may hold credentials, which a command line would show.
        locality: Where they are.
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
        super().__init__(model)
        self._command = list(command)
        self._environ = None if environ is None else {**os.environ, **environ}
        self._count = workers
        self._locality = locality or Locality()
        self._workers: list[_Process] = []
        self._draining = False

    def start(self) -> None:
        """Start the workers, and wait until one has loaded the model. Raises what loading raises."""
        try:
            for _ in range(self._count):
                self._spawn()
            while self._dispatcher.metadata is None:
                for worker in self._heard(None):
                    self._loaded(worker)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers: those that idle by themselves, any other at once."""
        for worker in self._workers:
            try:
                send(worker.connection, {"stop": True})
                idle = worker.hand.ready and not worker.hand.assigned
                worker.process.wait(_STOP_S if idle else 0.0)
            except (OSError, subprocess.TimeoutExpired):
                pass
            worker.kill()
            self._dispatcher.released(worker.hand)
        self._workers = []

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The workers' process numbers."""
        return [worker.process.pid for worker in self._workers]

    def run(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint],
    ) -> bool:
        """See `Runner.run`. Checkpoints are read by the workers themselves, from the ledger.

        A task that kills workers is left out; once all others are done, it raises InstanceLostError.
        """
        self._dispatcher.begin(work, tasks, begins, checkpoints)
        self._assign()
        while busy(self._dispatcher.hands) or self._waits():
            for worker in self._heard(_WAIT_S):
                try:
                    self._dispatcher.heard(worker.hand, receive(worker.connection))
                except (EOFError, OSError):
                    self._died(worker)
            self._dispatcher.told()
            self._assign()
        return self._dispatcher.complete(drained=self._draining)

    def drain(self) -> None:
        """See `Runner.drain`."""
        self._draining = True
        for worker in list(self._workers):
            try:
                send(worker.connection, {"drain": True})
            except OSError:
                _log.debug("worker has gone", exc_info=True)

    # Workers

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            # Of its own session: a Ctrl-C at the terminal is for the run, which then drains it.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *self._command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ModelLoadError(self._model, f"a worker cannot be started: {error}") from error
        finally:
            theirs.close()
        hand = Hand(self._locality)
        self._workers.append(_Process(process, Connection(ours.detach()), hand))
        self._dispatcher.hands.append(hand)

    def _heard(self, timeout_s: float | None) -> list[_Process]:
        """The workers that have something to say, or have gone."""
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = wait(list(by_connection), timeout_s)
        return [by_connection[cast("Connection", connection)] for connection in ready]

    def _loaded(self, worker: _Process) -> None:
        """What a worker says of its loading."""
        try:
            message = receive(worker.connection)
        except EOFError:
            code = worker.process.wait()
            raise ModelLoadError(
                self._model, f"its worker ended with status {code} while it loaded"
            ) from None
        self._dispatcher.heard(worker.hand, message)

    def _waits(self) -> bool:
        """Whether a task waits for a worker that may do it, or may turn out to."""
        if self._draining or not self._dispatcher.left:
            return False
        return not all(worker.hand.ready for worker in self._workers)

    def _assign(self) -> None:
        """Give every idle worker something to do."""
        for worker in [] if self._draining else list(self._workers):
            order = self._dispatcher.assign(worker.hand, of=self._count)
            if order is None:
                continue
            try:
                send(worker.connection, {"do": order.to_json()})
            except OSError:
                self._died(worker)

    def _died(self, worker: _Process) -> None:
        """A worker has gone: another one takes its place."""
        worker.kill()
        self._workers.remove(worker)
        self._dispatcher.died(worker.hand, f"with status {worker.process.returncode}")
        self._spawn()
