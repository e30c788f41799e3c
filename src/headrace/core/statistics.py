"""How served models fare: frozen snapshots, from which statistics documents and metrics are both made."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

BATCH_ROWS_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper bounds of the classes in which batch sizes are counted; one more class is above the last."""
QUEUE_S_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds, in seconds, of the classes in which waits and durations are counted."""


class ModelState(StrEnum):
    """Where a model version is in its life, in the words of the model repository protocol."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class ModelIndexEntry:
    """One version of one model, as a repository lists it; `reason` says why it is unavailable."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long that took in all."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by class, not cumulative: class i is up to ``bounds[i]``, and the last is above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Histogram":
        """Nothing counted yet."""
        return cls(bounds, (0,) * (len(bounds) + 1), 0.0)


class Counted:
    """A histogram that is being counted; one writer at a time, snapshots from anywhere."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Histogram:
        """What is counted so far."""
        return Histogram(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Calls of the model that had exactly `rows` rows."""

    rows: int
    compute: Duration = field(default_factory=Duration)


@dataclass(frozen=True, slots=True)
class SequenceStatistics:
    """The sequences of one model version that has a `step`, since it was loaded; those without an id are among them."""

    live: int = 0
    """Sequences that live now."""
    live_max: int = 0
    ends: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many ended, by the reason (`headrace.SequenceEnd`)."""
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    """Requests that no sequence took, by the kind of the error (`headrace.core.errors.SequenceError.kind`)."""
    steps: int = 0
    """Steps that were done; those that failed are not."""
    interval_s: Histogram = field(default_factory=lambda: Histogram.empty(QUEUE_S_BOUNDS))
    """Of requests whose step goes on: from the end of one step to the end of the next."""


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """One model version since it was loaded. A request counts once it has ended.

    `queue` is the time from arrival to the begin of the call, `compute_input` making the batch, `compute_infer` the
    model itself, `compute_output` checking and splitting what it returned; each counts requests, except `compute_*`,
    which count calls.
    """

    name: str
    version: str
    instances: int = 0
    last_inference_ms: int = 0
    """Milliseconds since the epoch; 0 before the first."""
    rows: int = 0
    failed_rows: int = 0
    """Rows that failed in requests that got a response."""
    error_rows: int = 0
    """Rows of requests that got an error."""
    calls: int = 0
    retries: int = 0
    """Calls that looked for the guilty rows of a failed batch."""
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    """Requests that were turned away since the queue was full."""
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: tuple[BatchStatistics, ...] = ()
    batch_rows: Histogram = field(default_factory=lambda: Histogram.empty(BATCH_ROWS_BOUNDS))
    queue_s: Histogram = field(default_factory=lambda: Histogram.empty(QUEUE_S_BOUNDS))
    request_s: Histogram = field(default_factory=lambda: Histogram.empty(QUEUE_S_BOUNDS))
    closed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Batches by the reason for which they closed."""
    streams: int = 0
    """Streams that were begun."""
    stream_items: int = 0
    restarts: int = 0
    """Instances that died and were started again."""
    busy_s: float = 0.0
    """Time in which instances were calling the model, summed over them."""
    uptime_s: float = 0.0
    """Time since the model was ready."""
    sequences: SequenceStatistics | None = None
    """None of a model without a `step`."""
    # What is going on now:
    waiting_requests: int = 0
    waiting_rows: int = 0
    oldest_waiting_s: float = 0.0
    in_flight: int = 0
    """Requests that are waiting or in a call."""
    open_streams: int = 0
