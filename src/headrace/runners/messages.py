"""The messages between a run and its workers: plain values, sent as JSON over connections."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import orjson

from headrace.batching.dynamic import CloseReason
from headrace.core import errors
from headrace.core.block import Failure
from headrace.core.errors import HeadraceError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.formats.failures import failure_line, read_failures
from headrace.runs.progress import RunProgress
from headrace.runs.records import Counts, ShardPosition

Message = dict[str, Any]


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
            **more,
        )

    def to_json(self) -> Message:
        """Return the counters as plain values."""
        data: Message = {f.name: getattr(self, f.name) for f in fields(self)}
        data["statistics"] = asdict(self.statistics)
        for name in ("first_failure", "first_broken"):
            data[name] = failure_line(data[name]).decode() if data[name] else None
        return data

    @classmethod
    def from_json(cls, data: Message) -> "WorkerCounters":
        """Return the counters from their plain values."""
        values: Message = {**data, "statistics": msgspec.convert(data["statistics"], PredictorStatistics)}
        for name in ("first_failure", "first_broken"):
            values[name] = next(read_failures([data[name].encode()])) if data[name] else None
        return cls(**values)


_ERRORS: Final[dict[str, type[HeadraceError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HeadraceError)
}
_COUNTED = ("records", "rows_out", "rows_failed", "objects_broken")
_SUMMED = ("bytes_read", "objects_read", *_COUNTED, "batches")


def add_counters(progress: RunProgress, workers: Sequence[WorkerCounters], before: Counts) -> None:
    """Set a run's counters to the sum over all workers and the counts from `before` the run."""
    progress.counts = before.plus(Counts(*(sum(getattr(t, name) for t in workers) for name in _COUNTED)))
    progress.bytes_read = sum(t.bytes_read for t in workers)
    progress.objects_read = sum(t.objects_read for t in workers)
    progress.batches = sum(t.batches for t in workers)
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


def metadata_to_json(metadata: ModelMetadata) -> Message:
    """Return a model's metadata as plain values."""
    return asdict(metadata)


def metadata_from_json(data: Mapping[str, Any]) -> ModelMetadata:
    """Return a model's metadata from its plain values."""
    return msgspec.convert(data, ModelMetadata)


def error_to_json(error: BaseException) -> Message:
    """Return an error as the name of its type and its message."""
    return {"type": type(error).__name__, "message": str(error) or type(error).__name__}


def error_from_json(data: Mapping[str, Any]) -> HeadraceError:
    """Return an error of the same type and message. A foreign error becomes a HeadraceError."""
    kind = _ERRORS.get(data["type"])
    made = HeadraceError.__new__(HeadraceError if kind is None else kind)
    Exception.__init__(made, f"{data['type']}: {data['message']}" if kind is None else data["message"])
    return made
