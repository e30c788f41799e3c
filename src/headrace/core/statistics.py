"""Statistics of served models: immutable snapshots, for statistics documents and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

BATCH_ROWS_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper bounds of the batch size buckets, in rows. One more bucket is above the last bound."""
QUEUE_S_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the duration buckets, in seconds."""


class ModelState(StrEnum):
    """The state of a model version, in the terms of the model repository protocol."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class ModelIndexEntry:
    """One version of one model in a repository's index. `reason` says why it is unavailable."""

    name: str
    version: str
    state: ModelState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InstanceDeath:
    """The death of an instance of a model that was not intended.

    `cause` is that of `InstanceLostError`, or "" if it is unknown. `at_ms` is milliseconds since the
    epoch.
    """

    model: str
    cause: str
    message: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Duration:
    """The number of events of one kind, and their total duration in nanoseconds."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bucket, not cumulative.

    Bucket i is up to ``bounds[i]``; the last bucket is above all bounds. `total` is the sum of all
    values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Histogram":
        """Return a histogram without values."""
        return cls(bounds, (0,) * (len(bounds) + 1), 0.0)


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Model calls with exactly `rows` rows."""

    rows: int
    compute: Duration = field(default_factory=Duration)


@dataclass(frozen=True, slots=True)
class SequenceStatistics:
    """Sequences of one model version with a `step`, since its load.

    Anonymous sequences are included.
    """

    live: int = 0
    """Number of live sequences."""
    live_max: int = 0
    ends: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of ended sequences, by reason (`headrace.SequenceEnd`)."""
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of refused requests, by `headrace.core.errors.SequenceError.kind`."""
    steps: int = 0
    """Number of successful steps."""
    interval_s: Histogram = field(default_factory=lambda: Histogram.empty(QUEUE_S_BOUNDS))
    """Time from the end of one step to the end of the next, for rescheduled requests."""


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The numbers of instances of one model version."""

    name: str
    version: str
    instances: int
    """Number of instances that serve, or will once they have loaded."""
    ready: int
    """Instances among them that can take requests."""
    draining: int
    """Number of removed instances that finish their requests, streams and sequences."""
    instances_min: int
    """Smallest number of instances: see `instances_max`."""
    instances_max: int | None = None
    """Largest number of instances, if they are added and removed by load; None if their number is fixed."""


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Statistics of one model version since its load. A request counts once it has ended.

    `queue` is the time from the arrival of a request to its call. `compute_input` is the assembly
    of the batch, `compute_infer` the model call, `compute_output` the check and split of its
    outputs. `compute_*` count calls; the other durations count requests.
    """

    name: str
    version: str
    instances: int = 0
    last_inference_ms: int = 0
    """Time of the last inference in milliseconds since the epoch; 0 before the first."""
    rows: int = 0
    failed_rows: int = 0
    """Number of failed rows in requests with a response."""
    error_rows: int = 0
    """Number of rows in requests with an error."""
    calls: int = 0
    retries: int = 0
    """Number of calls that searched for the bad rows of a failed batch."""
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    """Number of requests refused because the queue was full."""
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: tuple[BatchStatistics, ...] = ()
    batch_rows: Histogram = field(default_factory=lambda: Histogram.empty(BATCH_ROWS_BOUNDS))
    queue_s: Histogram = field(default_factory=lambda: Histogram.empty(QUEUE_S_BOUNDS))
    request_s: Histogram = field(default_factory=lambda: Histogram.empty(QUEUE_S_BOUNDS))
    close_reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of batches, by the reason for which they closed."""
    streams: int = 0
    """Number of started streams."""
    stream_items: int = 0
    restarts: int = 0
    """Number of instances that died and were restarted."""
    busy_s: float = 0.0
    """Time of model calls, summed over the instances; calls in progress count so far."""
    uptime_s: float = 0.0
    """Time since the model was ready."""
    sequences: SequenceStatistics | None = None
    """None for a model without a `step`."""
    # Current values:
    waiting_requests: int = 0
    waiting_rows: int = 0
    oldest_waiting_s: float = 0.0
    in_flight: int = 0
    """Number of requests that wait or are in a call."""
    held_requests: int = 0
    """Number of requests of jobs and runs that wait for their share of the time, besides these."""
    background_share: float = 1.0
    """Share of the time that jobs and runs may use beside live requests."""
    open_streams: int = 0
