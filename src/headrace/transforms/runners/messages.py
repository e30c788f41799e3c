"""What a transform's run and its workers tell each other: plain values, as JSON where they go over a connection."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from multiprocessing.connection import Connection
from typing import Any, Final

import orjson

from headrace.batching.dynamic import CloseReason
from headrace.core import errors
from headrace.core.block import Failure
from headrace.core.errors import HeadraceError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.failures import failure_line, read_failures
from headrace.pipeline.ledger import Counts
from headrace.pipeline.progress import Progress
from headrace.transforms.records import Spot

Message = dict[str, Any]


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    """Send one message. OSError when nobody is there any more."""
    try:
        data = orjson.dumps(message)
    except TypeError:
        # A name that is not UTF-8, as an archive's member may have, is in the words of an error.
        data = json.dumps(message).encode()
    connection.send_bytes(data)


def receive(connection: Connection) -> Message:
    """The next message. EOFError when the other side has gone."""
    data = connection.recv_bytes()
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tasks to do, by number, and where some of their ranges are known to begin.

    `run` is the name of the run that they are of; None where it has none. `observed_since_s`: the worker is to tell what it observes, counted from then; None: it need not look. `keep_all`: it
    is to keep a checkpoint of every batch.
    """

    tasks: tuple[int, ...]
    begins: Mapping[tuple[int, int], Spot] = field(default_factory=dict[tuple[int, int], Spot])
    replaces: bool = False
    observed_since_s: float | None = None
    keep_all: bool = False
    run: str | None = None

    def to_json(self) -> Message:
        """As plain values."""
        begins = [[*key, spot.byte, spot.record, spot.line] for key, spot in self.begins.items()]
        return {
            "tasks": list(self.tasks),
            "begins": begins,
            "replaces": self.replaces,
            "observed_since_s": self.observed_since_s,
            "keep_all": self.keep_all,
            "run": self.run,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Assignment":
        """Read back."""
        begins = {(b[0], b[1]): Spot(*b[2:]) for b in data["begins"]}
        return cls(
            tuple(data["tasks"]),
            begins,
            replaces=data["replaces"],
            observed_since_s=data.get("observed_since_s"),
            keep_all=data["keep_all"],
            run=data.get("run"),
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What one worker has come to since it began."""

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
    def of(cls, progress: Sequence[Progress], **more: Any) -> "Tally":
        """The counters of several runs of one worker together."""
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
        """As plain values."""
        data: Message = {f.name: getattr(self, f.name) for f in fields(self)}
        data["statistics"] = asdict(self.statistics)
        for name in ("first_failure", "first_broken"):
            data[name] = failure_line(data[name]).decode() if data[name] else None
        return data

    @classmethod
    def from_json(cls, data: Message) -> "Tally":
        """Read back."""
        says: Message = {**data, "statistics": PredictorStatistics(**data["statistics"])}
        for name in ("first_failure", "first_broken"):
            says[name] = next(read_failures([data[name].encode()])) if data[name] else None
        return cls(**says)


_ERRORS: Final[dict[str, type[HeadraceError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HeadraceError)
}
_SUMMED = ("bytes_read", "objects_read", "records", "rows_out", "rows_failed", "objects_broken", "batches")


def counts_of(progress: Progress) -> Counts:
    """What a run has come to."""
    return Counts(progress.records, progress.rows_out, progress.rows_failed, progress.objects_broken)


def add_up(progress: Progress, tallies: Sequence[Tally], before: Counts) -> None:
    """Set a run's counters to what all workers have come to, and what was there `before` they began."""
    progress.records = before.records_in + sum(t.records for t in tallies)
    progress.rows_out = before.rows_out + sum(t.rows_out for t in tallies)
    progress.rows_failed = before.rows_failed + sum(t.rows_failed for t in tallies)
    progress.objects_broken = before.objects_broken + sum(t.objects_broken for t in tallies)
    progress.bytes_read = sum(t.bytes_read for t in tallies)
    progress.objects_read = sum(t.objects_read for t in tallies)
    progress.batches = sum(t.batches for t in tallies)
    progress.closed_by.clear()
    for tally in tallies:
        for reason, count in tally.closed_by.items():
            progress.closed_by[CloseReason(reason)] += count
    progress.first_failure = next((t.first_failure for t in tallies if t.first_failure), None)
    progress.first_broken = next((t.first_broken for t in tallies if t.first_broken), None)


def statistics_of(tallies: Sequence[Tally]) -> PredictorStatistics:
    """All workers' together."""
    sums: dict[str, Any] = {
        f.name: sum(getattr(t.statistics, f.name) for t in tallies) for f in fields(PredictorStatistics)
    }
    return PredictorStatistics(**sums)


def metadata_json(metadata: ModelMetadata) -> Message:
    """A model's metadata as plain values."""
    return asdict(metadata)


def metadata_of(data: Mapping[str, Any]) -> ModelMetadata:
    """What `metadata_json` told."""
    says: dict[str, Any] = {**data, "inputs": _specs(data["inputs"]), "outputs": _specs(data["outputs"])}
    return ModelMetadata(**says)


def _specs(values: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(v["name"], v["datatype"], None if v["shape"] is None else tuple(v["shape"]))
        for v in values
    )


def error_json(error: BaseException) -> Message:
    """An error as its type's name and its words."""
    return {"type": type(error).__name__, "message": str(error) or type(error).__name__}


def error_of(data: Mapping[str, Any]) -> HeadraceError:
    """An error of the same type, with the same words; what is no error of headrace's own is a HeadraceError."""
    kind = _ERRORS.get(data["type"])
    made = HeadraceError.__new__(HeadraceError if kind is None else kind)
    Exception.__init__(made, f"{data['type']}: {data['message']}" if kind is None else data["message"])
    return made
