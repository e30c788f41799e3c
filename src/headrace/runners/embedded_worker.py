"""A worker inside another engine's process. It runs the engine's assignments and writes its status.

The other end is `headrace.runners.beam`. A process has one worker for all threads of its
engine: the model is loaded once and used by one task at a time. Such engines have no messages, so
statuses are objects next to the ledger's records (`StatusStore`). The ledger has the counts that must
be right; a status is for progress, for figures, and to know what a dead worker was doing.
"""

import os
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import orjson

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import NotFoundError
from headrace.reports.observation import RunObservation
from headrace.runners.messages import Assignment, Message, WorkerCounters
from headrace.runners.worker import Opener, TaskWorker
from headrace.runs.ledger import WORKERS, Ledger

_DRAIN = "drain"
STATUS_INTERVAL_S: Final = 2.0
"""The interval in which a busy worker writes its status and checks for a drain."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of one worker. Each write replaces the one before.

    Attributes:
        worker: The unique name of the worker.
        pipeline: The name of its pipeline.
        host: The host of its process.
        pid: The process id.
        doing: The assigned unfinished tasks, in order.
        done: All tasks that it has finished.
        counters: Its counters.
        observed: Its observation.
        error: The error of its last assignment.
    """

    worker: str
    pipeline: str
    host: str
    pid: int
    doing: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    counters: WorkerCounters = field(default_factory=WorkerCounters)
    observed: Message | None = None
    error: Message | None = None

    def to_json(self) -> bytes:
        """Return the status as JSON."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        del data["counters"]
        return orjson.dumps({**data, "tally": self.counters.to_json()})

    @classmethod
    def from_json(cls, text: bytes) -> "WorkerStatus":
        """Return the status from its JSON."""
        data: dict[str, Any] = orjson.loads(text)
        lists: dict[str, Any] = {name: tuple(data[name]) for name in ("doing", "done")}
        data |= {**lists, "counters": WorkerCounters.from_json(data.pop("tally"))}
        return cls(**data)

    def updated(self, message: Message) -> "WorkerStatus":
        """Return the status with the contents of a worker's message."""
        if "tally" in message:
            return replace(self, counters=WorkerCounters.from_json(message["tally"]))
        if "task" in message:
            number = orjson.loads(message["task"])["task"]
            return replace(self, done=(*self.done, number))
        if "observed" in message:
            return replace(self, observed=_merge_observations(self.observed, message["observed"]))
        if "error" in message:
            return replace(self, error=message["error"], doing=())
        return replace(self, doing=()) if "idle" in message else self


def _merge_observations(before: Message | None, now: Message) -> Message:
    if before is None:
        return now
    both = RunObservation.from_json(before)
    both.add_all(RunObservation.from_json(now))
    return both.to_json()


class StatusStore:
    """The statuses of one run's workers, and the request to drain. Used by one thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._store = ledger.store
        self._folder = ledger.uri(WORKERS)
        self._etags: dict[str, str | None] = {}
        """The ETag of each status that was read, by URI."""

    # A worker's side

    def write(self, status: WorkerStatus) -> None:
        """Write the status of a worker."""
        self._store.put(f"{self._folder}{status.worker}.json", status.to_json())

    def draining(self) -> bool:
        """Return True if workers must not start tasks."""
        return any(info.uri == self._folder + _DRAIN for info in self._store.list(self._folder + _DRAIN))

    # The run's side

    def read(self) -> Sequence[WorkerStatus]:
        """Return the statuses that are new since the last call."""
        statuses: list[WorkerStatus] = []
        for info in self._store.list(self._folder):
            if not info.uri.endswith(".json") or (info.etag and self._etags.get(info.uri) == info.etag):
                continue
            try:
                statuses.append(WorkerStatus.from_json(self._store.get(info.uri)))
            except NotFoundError:
                continue
            self._etags[info.uri] = info.etag
        return statuses

    def request_drain(self) -> None:
        """Request all workers to drain, also those that start later."""
        self._store.put(self._folder + _DRAIN, b"")

    def clear(self) -> None:
        """Remove all statuses and the request."""
        self._etags.clear()
        for info in list(self._store.list(self._folder)):
            self._store.delete(info.uri)


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
