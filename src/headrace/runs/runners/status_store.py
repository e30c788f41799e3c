"""Exchange the status of remote workers through objects next to the ledger's records.

For engines without messages. The ledger has the counts that must be right; the status is for
progress, for figures, and to know what a dead worker was doing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson

from headrace.core.errors import NotFoundError
from headrace.runs.ledger import WORKERS, Ledger
from headrace.runs.observation import RunObservation
from headrace.runs.runners.messages import Message, WorkerCounters

_DRAIN = "drain"


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
