"""Counters of a running engine, one set per instance, so that each has one writer."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from headrace.core.errors import CancelledRequestError, DeadlineError
from headrace.core.predictor import PredictorStatistics
from headrace.core.statistics import (
    BATCH_ROWS_BOUNDS,
    QUEUE_S_BOUNDS,
    BatchStatistics,
    Duration,
    Histogram,
    ModelStatistics,
    SequenceStatistics,
)
from headrace.core.tensor import InferResponse
from headrace.engine.backend import CallResult
from headrace.engine.live_traffic import LatencyMonitor
from headrace.engine.pending_request import PendingRequest, RequestResult

_PLAIN_COUNTERS = (
    "rows",
    "failed_rows",
    "error_rows",
    "calls",
    "retries",
    "expired",
    "streams",
    "stream_items",
    "restarts",
    "busy_s",
)
"""Counters whose sum is a statistic of the same name."""
_SIZES_MAX = 1024
"""Limit of batch sizes that are counted apart. Further sizes count as the largest."""


class HistogramCounter:
    """A mutable histogram for one writer at a time. Any thread may take snapshots."""

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
        """Return the counts so far."""
        return Histogram(self._bounds, tuple(self._counts), self._total)


# The hot-path counters are incremented in place: a method call would cost more than the addition.


class _DurationSum:
    """A number of events and the sum of their seconds."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


class _ComputeSum:
    """A number of calls that returned, and the sums of their three steps in seconds."""

    __slots__ = ("count", "infer_s", "input_s", "output_s")

    def __init__(self) -> None:
        self.count = 0
        self.input_s = 0.0
        self.infer_s = 0.0
        self.output_s = 0.0


class EngineCounters:
    """The cumulative counters of one instance, written by its own thread, read by any.

    `monitor` gets the latencies of live requests.
    """

    def __init__(self, monitor: LatencyMonitor | None = None) -> None:
        self._monitor = monitor
        self.calls = 0
        self.rows = 0
        self.failed_rows = 0
        self.error_rows = 0
        self.retries = 0
        self.busy_s = 0.0
        self.running_call: tuple[float, float] | None = None
        """`busy_s` before the call in progress, and its begin; None without one."""
        self._reported_busy_s = 0.0
        self.starved_s = 0.0
        self.ended_s: float | None = None
        """Time at which the last request ended."""
        self.success = _DurationSum()
        self.fail = _DurationSum()
        self.cancelled = 0
        self.expired = 0
        self.queue = _DurationSum()
        self.compute = _ComputeSum()
        self.sizes: dict[int, _DurationSum] = {}
        self.batch_rows = HistogramCounter(BATCH_ROWS_BOUNDS)
        self.queue_s = HistogramCounter(QUEUE_S_BOUNDS)
        self.request_s = HistogramCounter(QUEUE_S_BOUNDS)
        self.close_reasons: dict[str, int] = {}
        self.steps = 0
        self.interval_s = HistogramCounter(QUEUE_S_BOUNDS)
        """Seconds between the ends of two steps of a rescheduled request."""
        self.streams = 0
        self.stream_items = 0
        self.restarts = 0

    def busy_until(self, now: float) -> float:
        """Return the busy time in seconds, with the call in progress so far. It never falls. Any thread."""
        running = self.running_call
        busy_s = self.busy_s if running is None else running[0] + now - running[1]
        # The end of a call may lie before `now`.
        self._reported_busy_s = max(self._reported_busy_s, busy_s)
        return self._reported_busy_s

    def record_call(self, rows: int, called: CallResult) -> None:
        """Count one call of the model that returned."""
        compute, infer_s = self.compute, called.infer_s
        compute.count += 1
        compute.input_s += called.input_s
        compute.infer_s += infer_s
        compute.output_s += called.output_s
        duration = self.sizes.get(rows) or self._size_duration(rows)
        duration.count += 1
        duration.seconds += infer_s
        self.batch_rows.add(rows)

    def _size_duration(self, rows: int) -> _DurationSum:
        """Return the sum for calls of a new batch size."""
        size = rows if len(self.sizes) < _SIZES_MAX else max(self.sizes)
        return self.sizes.setdefault(size, _DurationSum())

    def record_inline(self, rows: int, infer_s: float, ended_s: float) -> None:
        """Count one request that was called alone, without waiting, and got a response."""
        self.calls += 1
        self.record_call(rows, CallResult({}, infer_s=infer_s))
        self.queue.count += 1
        self.queue_s.add(0.0)
        self.record_success(infer_s, rows=rows, failed_rows=0)
        if self._monitor is not None:
            self._monitor.record(infer_s)
        self.busy_s += infer_s
        self.ended_s = ended_s

    def record_success(self, seconds: float, *, rows: int, failed_rows: int) -> None:
        """Count one response, this many seconds after its request arrived."""
        success = self.success
        success.count += 1
        success.seconds += seconds
        self.request_s.add(seconds)
        self.rows += rows
        self.failed_rows += failed_rows

    def record_failure(self, seconds: float, *, rows: int) -> None:
        """Count one request that got an error."""
        self.fail.count += 1
        self.fail.seconds += seconds
        self.request_s.add(seconds)
        self.error_rows += rows

    def record_result(
        self, entry: PendingRequest, result: RequestResult, began_s: float, ended_s: float
    ) -> None:
        """Count one request that was begun, by its result.

        A withdrawn request counts its wait only.
        """
        arrived_s, times = entry.arrived_s, entry.times
        queue, waited_s = self.queue, began_s - arrived_s
        queue.count += 1
        queue.seconds += waited_s
        self.queue_s.add(waited_s)
        if times is not None:
            times.arrived_s, times.began_s, times.ended_s = arrived_s, began_s, ended_s
        if not entry.ended:
            return
        self.record_latency(entry, ended_s)
        if not isinstance(result, BaseException):
            failed_rows = len(result.failures) if isinstance(result, InferResponse) else 0
            self.record_success(ended_s - arrived_s, rows=entry.rows - failed_rows, failed_rows=failed_rows)
        elif isinstance(result, DeadlineError):
            self.expired += 1
        elif isinstance(result, CancelledRequestError):
            self.cancelled += 1
        else:
            self.record_failure(ended_s - arrived_s, rows=entry.rows)

    def record_latency(self, entry: PendingRequest, ended_s: float) -> None:
        """Report the latency of a live request to the monitor, if there is one."""
        if self._monitor is not None and entry.is_live:
            self._monitor.record(ended_s - entry.arrived_s)

    def record_step(self, interval_s: float | None) -> None:
        """Count one step that was done, and the seconds since the last step of its request, if any."""
        self.steps += 1
        if interval_s is not None:
            self.interval_s.add(interval_s)


def predictor_statistics(all_counters: Sequence[EngineCounters], *, instances: int) -> PredictorStatistics:
    """Return the sums of the statistics that every predictor has."""
    names = [field.name for field in fields(PredictorStatistics) if field.name != "instances"]
    return PredictorStatistics(instances=instances, **_sums(all_counters, names))


def _sums(all_counters: Sequence[EngineCounters], names: Sequence[str]) -> dict[str, Any]:
    """Return the sums of these plain counters by name."""
    return {name: sum(getattr(counters, name) for counters in all_counters) for name in names}


def sum_counters(all_counters: Sequence[EngineCounters], base: ModelStatistics) -> ModelStatistics:
    """Return `base` with the sums of all counters."""
    return replace(
        base,
        **_sums(all_counters, _PLAIN_COUNTERS),
        success=_sum_durations([t.success for t in all_counters]),
        fail=_sum_durations([t.fail for t in all_counters]),
        cancelled=base.cancelled + sum(t.cancelled for t in all_counters),
        queue=_sum_durations([t.queue for t in all_counters]),
        compute_input=_duration([(t.compute.count, t.compute.input_s) for t in all_counters]),
        compute_infer=_duration([(t.compute.count, t.compute.infer_s) for t in all_counters]),
        compute_output=_duration([(t.compute.count, t.compute.output_s) for t in all_counters]),
        batches=_sum_batches(all_counters),
        batch_rows=_sum_histograms([t.batch_rows for t in all_counters], BATCH_ROWS_BOUNDS),
        queue_s=_sum_histograms([t.queue_s for t in all_counters], QUEUE_S_BOUNDS),
        request_s=_sum_histograms([t.request_s for t in all_counters], QUEUE_S_BOUNDS),
        close_reasons=dict(sum((Counter(t.close_reasons) for t in all_counters), Counter[str]())),
        sequences=None if base.sequences is None else _sum_sequences(all_counters, base.sequences),
    )


def _sum_sequences(all_counters: Sequence[EngineCounters], base: SequenceStatistics) -> SequenceStatistics:
    steps = sum(t.steps for t in all_counters)
    return replace(
        base, steps=steps, interval_s=_sum_histograms([t.interval_s for t in all_counters], QUEUE_S_BOUNDS)
    )


def _sum_durations(duration: Sequence[_DurationSum]) -> Duration:
    return _duration([(each.count, each.seconds) for each in duration])


def _duration(counted: Sequence[tuple[int, float]]) -> Duration:
    return Duration(sum(count for count, _ in counted), round(sum(seconds for _, seconds in counted) * 1e9))


def _sum_batches(all_counters: Sequence[EngineCounters]) -> tuple[BatchStatistics, ...]:
    # Copies, since the thread of the instance may add a size meanwhile.
    snapshots = [dict(t.sizes) for t in all_counters]
    sizes = sorted({size for snapshot in snapshots for size in snapshot})
    return tuple(
        BatchStatistics(size, _sum_durations([c[size] for c in snapshots if size in c])) for size in sizes
    )


def _sum_histograms(counted: Sequence[HistogramCounter], bounds: tuple[float, ...]) -> Histogram:
    snapshots = [c.snapshot() for c in counted]
    if not snapshots:
        return Histogram.empty(bounds)
    counts = tuple(map(sum, zip(*(s.counts for s in snapshots), strict=True)))
    return Histogram(bounds, counts, sum(s.total for s in snapshots))
