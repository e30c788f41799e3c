"""The messages between a run and its workers: plain values, as JSON.

They are sent over connections. The workers of an engine without messages write a `WorkerStatus` next to
the ledger's records instead. The ledger has the counts that must be right; a status is for progress, for
figures, and to know what a dead worker was doing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import orjson

from headrace.batching.dynamic import CloseReason
from headrace.core import errors
from headrace.core.block import Failure
from headrace.core.errors import HeadraceError, NotFoundError, PredictError
from headrace.core.model_traceback import TRACEBACKS_MAX, ModelTraceback
from headrace.core.predictor import PredictorStatistics
from headrace.formats.failures import failure_line, read_failures
from headrace.reports.observation import RunObservation
from headrace.runs.ledger import WORKERS, Ledger
from headrace.runs.records import Counts, ShardPosition
from headrace.runs.work import RunProgress

Message = dict[str, Any]
_DRAIN = "drain"


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    """Send a message. Raises OSError if the other end is closed."""
    try:
        data = orjson.dumps(message)
    except TypeError:
        # The error message contains a name that is not UTF-8, as archive members may have.
        data = json.dumps(message).encode()
    connection.send_bytes(data)


def receive(connection: Connection) -> Message:
    """Receive a message. Raises EOFError if the other end is closed."""
    data = connection.recv_bytes()
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Numbers of tasks to run, with the known starts of their ranges.

    `run_id` is the id of the run, None for a run without one. `observed_since_s` is the start time
    of the observation that the worker sends; None: no observation. If `checkpoint_all`, the worker
    writes a checkpoint of every batch.
    """

    tasks: tuple[int, ...]
    range_starts: Mapping[tuple[int, int], ShardPosition] = field(
        default_factory=dict[tuple[int, int], ShardPosition]
    )
    replaces: bool = False
    observed_since_s: float | None = None
    checkpoint_all: bool = False
    run_id: str | None = None

    def to_json(self) -> Message:
        """Return the assignment as plain values."""
        range_starts = [
            [*key, position.byte, position.record, position.line]
            for key, position in self.range_starts.items()
        ]
        return {
            "tasks": list(self.tasks),
            "begins": range_starts,
            "replaces": self.replaces,
            "observed_since_s": self.observed_since_s,
            "keep_all": self.checkpoint_all,
            "run": self.run_id,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Assignment":
        """Return the assignment from its plain values."""
        range_starts = {(b[0], b[1]): ShardPosition(*b[2:]) for b in data["begins"]}
        return cls(
            tuple(data["tasks"]),
            range_starts,
            replaces=data["replaces"],
            observed_since_s=data.get("observed_since_s"),
            checkpoint_all=data["keep_all"],
            run_id=data.get("run"),
        )


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """The cumulative counters of one worker."""

    bytes_read: int = 0
    objects_read: int = 0
    records: int = 0
    rows_out: int = 0
    rows_failed: int = 0
    objects_broken: int = 0
    batches: int = 0
    closed_by: Mapping[str, int] = field(default_factory=dict[str, int])
    statistics: PredictorStatistics = field(default_factory=PredictorStatistics)
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    reading: str = ""
    first_failure: Failure | None = None
    first_broken: Failure | None = None
    failed_bytes: int = 0
    tracebacks: Sequence[ModelTraceback] = ()

    @classmethod
    def from_progress(cls, progress: Sequence[RunProgress], **more: Any) -> "WorkerCounters":
        """Return the sum of several runs of one worker."""
        closed_by: dict[str, int] = {}
        for one in progress:
            for reason, count in list(one.closed_by.items()):
                closed_by[reason.value] = closed_by.get(reason.value, 0) + count
        sums: dict[str, Any] = {name: sum(getattr(one, name) for one in progress) for name in _SUMMED}
        return cls(
            **sums,
            closed_by=closed_by,
            first_failure=next((p.first_failure for p in progress if p.first_failure), None),
            first_broken=next((p.first_broken for p in progress if p.first_broken), None),
            tracebacks=_first_tracebacks(list(p.tracebacks.values()) for p in progress),
            **more,
        )

    def to_json(self) -> Message:
        """Return the counters as plain values."""
        data: Message = {f.name: getattr(self, f.name) for f in fields(self)}
        data["statistics"] = asdict(self.statistics)
        for name in ("first_failure", "first_broken"):
            data[name] = failure_line(data[name]).decode() if data[name] else None
        data["tracebacks"] = [traceback.to_json() for traceback in self.tracebacks]
        return data

    @classmethod
    def from_json(cls, data: Message) -> "WorkerCounters":
        """Return the counters from their plain values."""
        values: Message = {**data, "statistics": msgspec.convert(data["statistics"], PredictorStatistics)}
        for name in ("first_failure", "first_broken"):
            values[name] = next(read_failures([data[name].encode()])) if data[name] else None
        values["tracebacks"] = tuple(map(ModelTraceback.from_json, data["tracebacks"]))
        return cls(**values)


_ERRORS: Final[dict[str, type[HeadraceError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HeadraceError)
}
_COUNTED = ("records", "rows_out", "rows_failed", "objects_broken")
_SUMMED = ("bytes_read", "objects_read", *_COUNTED, "batches", "failed_bytes")


def _first_tracebacks(workers: Iterable[Sequence[ModelTraceback]]) -> tuple[ModelTraceback, ...]:
    """Return the first traceback of each kind, up to TRACEBACKS_MAX."""
    found: dict[tuple[str, str, int], ModelTraceback] = {}
    for traceback in chain.from_iterable(workers):
        if len(found) < TRACEBACKS_MAX:
            found.setdefault(traceback.key, traceback)
    return tuple(found.values())


def add_counters(progress: RunProgress, workers: Sequence[WorkerCounters], before: Counts) -> None:
    """Set a run's counters to the sum over all workers and the counts from `before` the run."""
    progress.counts = before.plus(Counts(*(sum(getattr(t, name) for t in workers) for name in _COUNTED)))
    progress.bytes_read = sum(t.bytes_read for t in workers)
    progress.objects_read = sum(t.objects_read for t in workers)
    progress.batches = sum(t.batches for t in workers)
    progress.failed_bytes = sum(t.failed_bytes for t in workers)
    progress.tracebacks = {t.key: t for t in _first_tracebacks(t.tracebacks for t in workers)}
    progress.closed_by.clear()
    for counters in workers:
        for reason, count in counters.closed_by.items():
            progress.closed_by[CloseReason(reason)] += count
    progress.first_failure = next((t.first_failure for t in workers if t.first_failure), None)
    progress.first_broken = next((t.first_broken for t in workers if t.first_broken), None)


def statistics_of(workers: Sequence[WorkerCounters]) -> PredictorStatistics:
    """Return the sum of all workers' statistics."""
    sums: dict[str, Any] = {
        f.name: sum(getattr(t.statistics, f.name) for t in workers) for f in fields(PredictorStatistics)
    }
    return PredictorStatistics(**sums)


def error_to_json(error: BaseException) -> Message:
    """Return an error as the name of its type, its message, and the traceback of the model if any."""
    data: Message = {"type": type(error).__name__, "message": str(error) or type(error).__name__}
    if isinstance(error, PredictError) and error.traceback is not None:
        data["traceback"] = error.traceback.to_json()
    return data


def error_from_json(data: Mapping[str, Any]) -> HeadraceError:
    """Return an error of the same type and message. A foreign error becomes a HeadraceError."""
    kind = _ERRORS.get(data["type"])
    made = HeadraceError.__new__(HeadraceError if kind is None else kind)
    Exception.__init__(made, f"{data['type']}: {data['message']}" if kind is None else data["message"])
    if isinstance(made, PredictError):
        made.traceback = ModelTraceback.from_json(data["traceback"]) if "traceback" in data else None
    return made


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
