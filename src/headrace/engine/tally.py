"""What is counted while an engine runs: one tally for each instance, so that each has one writer."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.errors import CancelledRequestError, DeadlineError
from headrace.core.predictor import PredictorStatistics
from headrace.core.statistics import (
    BATCH_ROWS_BOUNDS,
    QUEUE_S_BOUNDS,
    BatchStatistics,
    Counted,
    Duration,
    Histogram,
    ModelStatistics,
    SequenceStatistics,
)
from headrace.core.tensor import InferResponse
from headrace.engine.backend import Called
from headrace.engine.stepper import Stepped
from headrace.engine.ticket import Answer, Ticket

_SIZES_MAX = 1024
"""Batch sizes that are counted apart; what goes beyond counts as the largest."""


# What is counted for every request is added in place: a method for it would cost more than the addition.


class _Lasting:
    """How often, and how long in all."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


class _Compute:
    """Calls that returned, and how long their three steps took in all."""

    __slots__ = ("count", "infer_s", "input_s", "output_s")

    def __init__(self) -> None:
        self.count = 0
        self.input_s = 0.0
        self.infer_s = 0.0
        self.output_s = 0.0


class Tally:
    """One instance's figures so far; written by its own thread, read by any."""

    def __init__(self) -> None:
        self.calls = 0
        self.rows = 0
        self.failed_rows = 0
        self.error_rows = 0
        self.retries = 0
        self.busy_s = 0.0
        self.starved_s = 0.0
        self.ended_s: float | None = None
        """When its last request ended."""
        self.success = _Lasting()
        self.fail = _Lasting()
        self.cancelled = 0
        self.expired = 0
        self.queue = _Lasting()
        self.compute = _Compute()
        self.sizes: dict[int, _Lasting] = {}
        self.batch_rows = Counted(BATCH_ROWS_BOUNDS)
        self.queue_s = Counted(QUEUE_S_BOUNDS)
        self.request_s = Counted(QUEUE_S_BOUNDS)
        self.closed: dict[str, int] = {}
        self.steps = 0
        self.interval_s = Counted(QUEUE_S_BOUNDS)
        """Between the ends of two steps of a request that goes on."""
        self.streams = 0
        self.stream_items = 0
        self.restarts = 0

    def called(self, rows: int, called: Called | Stepped) -> None:
        """One call of the model that returned."""
        compute, infer_s = self.compute, called.infer_s
        compute.count += 1
        compute.input_s += called.input_s
        compute.infer_s += infer_s
        compute.output_s += called.output_s
        lasting = self.sizes.get(rows) or self._size(rows)
        lasting.count += 1
        lasting.seconds += infer_s
        self.batch_rows.add(rows)

    def _size(self, rows: int) -> _Lasting:
        """Where calls of a size that is new are counted."""
        size = rows if len(self.sizes) < _SIZES_MAX else max(self.sizes)
        return self.sizes.setdefault(size, _Lasting())

    def ended_at_once(self, rows: int, infer_s: float, ended_s: float) -> None:
        """One request that waited for nothing, was called by itself, and answered."""
        self.calls += 1
        self.called(rows, Called({}, infer_s=infer_s))
        self.waited(0.0)
        self.answered(infer_s, rows=rows, failed_rows=0)
        self.busy_s += infer_s
        self.ended_s = ended_s

    def waited(self, seconds: float) -> None:
        """One request that was begun after so long."""
        queue = self.queue
        queue.count += 1
        queue.seconds += seconds
        self.queue_s.add(seconds)

    def answered(self, seconds: float, *, rows: int, failed_rows: int) -> None:
        """One request that got a response, so long after it was asked."""
        success = self.success
        success.count += 1
        success.seconds += seconds
        self.request_s.add(seconds)
        self.rows += rows
        self.failed_rows += failed_rows

    def failed(self, seconds: float, *, rows: int) -> None:
        """One request that got an error."""
        self.fail.count += 1
        self.fail.seconds += seconds
        self.request_s.add(seconds)
        self.error_rows += rows

    def ended(self, ticket: Ticket, answer: Answer, began_s: float, ended_s: float) -> None:
        """One request that was begun, and what it came to; nothing but its wait of one that was withdrawn meanwhile."""
        asked_s, times = ticket.asked_s, ticket.times
        self.waited(began_s - asked_s)
        if times is not None:
            times.asked_s, times.began_s, times.ended_s = asked_s, began_s, ended_s
        if not ticket.ended:
            return
        if isinstance(answer, InferResponse):
            failed_rows = len(answer.failures)
            self.answered(ended_s - asked_s, rows=ticket.rows - failed_rows, failed_rows=failed_rows)
        elif isinstance(answer, DeadlineError):
            self.expired += 1
        elif isinstance(answer, CancelledRequestError):
            self.cancelled += 1
        else:
            self.failed(ended_s - asked_s, rows=ticket.rows)

    def stepped(self, again_s: float | None) -> None:
        """One step that was done, so long after the last one of its request, if there was one."""
        self.steps += 1
        if again_s is not None:
            self.interval_s.add(again_s)

    def snapshot(self) -> PredictorStatistics:
        """What every predictor tells."""
        return PredictorStatistics(
            instances=1,
            calls=self.calls,
            rows=self.rows,
            failed_rows=self.failed_rows,
            retries=self.retries,
            busy_s=self.busy_s,
            starved_s=self.starved_s,
        )


def total(tallies: Sequence[Tally], base: ModelStatistics) -> ModelStatistics:
    """Sums over tallies, on top of what `base` tells."""
    return replace(
        base,
        rows=sum(t.rows for t in tallies),
        failed_rows=sum(t.failed_rows for t in tallies),
        error_rows=sum(t.error_rows for t in tallies),
        calls=sum(t.calls for t in tallies),
        retries=sum(t.retries for t in tallies),
        success=_sum([t.success for t in tallies]),
        fail=_sum([t.fail for t in tallies]),
        cancelled=base.cancelled + sum(t.cancelled for t in tallies),
        expired=base.expired + sum(t.expired for t in tallies),
        queue=_sum([t.queue for t in tallies]),
        compute_input=_duration([(t.compute.count, t.compute.input_s) for t in tallies]),
        compute_infer=_duration([(t.compute.count, t.compute.infer_s) for t in tallies]),
        compute_output=_duration([(t.compute.count, t.compute.output_s) for t in tallies]),
        batches=_batches(tallies),
        batch_rows=_histogram([t.batch_rows for t in tallies], BATCH_ROWS_BOUNDS),
        queue_s=_histogram([t.queue_s for t in tallies], QUEUE_S_BOUNDS),
        request_s=_histogram([t.request_s for t in tallies], QUEUE_S_BOUNDS),
        closed=_closed(tallies),
        streams=sum(t.streams for t in tallies),
        stream_items=sum(t.stream_items for t in tallies),
        restarts=sum(t.restarts for t in tallies),
        busy_s=sum(t.busy_s for t in tallies),
        sequences=None if base.sequences is None else _sequences(tallies, base.sequences),
    )


def _sequences(tallies: Sequence[Tally], base: SequenceStatistics) -> SequenceStatistics:
    steps = sum(t.steps for t in tallies)
    return replace(base, steps=steps, interval_s=_histogram([t.interval_s for t in tallies], QUEUE_S_BOUNDS))


def _sum(lasting: Sequence[_Lasting]) -> Duration:
    return _duration([(one.count, one.seconds) for one in lasting])


def _duration(counted: Sequence[tuple[int, float]]) -> Duration:
    return Duration(sum(count for count, _ in counted), round(sum(seconds for _, seconds in counted) * 1e9))


def _batches(tallies: Sequence[Tally]) -> tuple[BatchStatistics, ...]:
    # Copies: the instance's thread may add a size meanwhile.
    copies = [dict(t.sizes) for t in tallies]
    sizes = sorted({size for copy in copies for size in copy})
    return tuple(BatchStatistics(size, _sum([c[size] for c in copies if size in c])) for size in sizes)


def _histogram(counted: Sequence[Counted], bounds: tuple[float, ...]) -> Histogram:
    snapshots = [c.snapshot() for c in counted]
    if not snapshots:
        return Histogram.empty(bounds)
    counts = tuple(map(sum, zip(*(s.counts for s in snapshots), strict=True)))
    return Histogram(bounds, counts, sum(s.total for s in snapshots))


def _closed(tallies: Sequence[Tally]) -> dict[str, int]:
    closed: dict[str, int] = {}
    for tally in tallies:
        for why, count in dict(tally.closed).items():
            closed[why] = closed.get(why, 0) + count
    return closed
