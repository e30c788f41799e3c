"""A worker inside another engine's process. It runs the engine's assignments and writes its status.

The other end is `headrace.runs.runners.beam`. A process has one worker for all threads of its
engine: the model is loaded once and used by one task at a time.
"""

import os
import socket
import threading
import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.runs.runners.messages import Assignment, Message
from headrace.runs.runners.status_store import StatusStore, WorkerStatus
from headrace.runs.runners.worker import Opener, TaskWorker

STATUS_INTERVAL_S: Final = 2.0
"""The interval in which a busy worker writes its status and checks for a drain."""


class EmbeddedWorker:
    """The worker of a process. Any thread may call it; assignments run one after another.

    Args:
        opener: Opens the worker.
        pipeline: The name of its pipeline.
        region: The region of the worker.
        clock: The clock of `STATUS_INTERVAL_S`.
    """

    def __init__(
        self, opener: Opener, pipeline: str, region: str | None = None, clock: Clock | None = None
    ) -> None:
        self._opener = opener
        self._region = region
        self._clock = clock or SystemClock()
        self._stack = ExitStack()
        self._worker: TaskWorker | None = None
        self._status_store: StatusStore | None = None
        self._status = WorkerStatus(uuid.uuid4().hex[:12], pipeline, socket.gethostname(), os.getpid())
        self._status_written_s = self._clock.now()
        self._lock = threading.Lock()

    def do(self, assignment: Assignment) -> WorkerStatus:
        """Run the unfinished tasks of an assignment and return the worker's status.

        Raises the errors of loading the model. Errors of the tasks go into the status, for the run
        to raise; the engine would only retry them.
        """
        with self._lock:
            worker = self._opened()
            assert self._status_store is not None, "opened"
            remaining = tuple(worker.remaining_tasks(assignment))
            if not remaining or self._status_store.draining():
                return self._status
            self._status = replace(self._status, doing=remaining)
            self._write()
            worker.do(replace(assignment, tasks=remaining))
            self._write()
            return self._status

    def _opened(self) -> TaskWorker:
        if self._worker is None:
            self._worker = self._stack.enter_context(self._opener(self._on_message, self._region))
            self._status_store = StatusStore(self._worker.ledger)
        return self._worker

    def close(self) -> None:
        """Unload the model after the assignment in progress. Further calls do nothing."""
        with self._lock:
            self._stack.close()
            self._worker = None

    def _on_message(self, message: Message) -> None:
        self._status = self._status.updated(message)
        if self._clock.now() - self._status_written_s >= STATUS_INTERVAL_S:
            self._write()

    def _write(self) -> None:
        assert self._status_store is not None, "opened"
        assert self._worker is not None, "opened"
        self._status_written_s = self._clock.now()
        self._status_store.write(self._status)
        if self._status_store.draining():
            self._worker.drain()
