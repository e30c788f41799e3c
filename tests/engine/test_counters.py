"""Counters of instances, and their sums."""

import threading

import numpy as np

from headrace.core.predictor import PredictorStatistics
from headrace.core.statistics import BATCH_ROWS_BOUNDS, BatchStatistics, Duration, Histogram, ModelStatistics
from headrace.engine import counters as counters_module
from headrace.engine.backend import CallResult
from headrace.engine.counters import EngineCounters, HistogramCounter, predictor_statistics, sum_counters

BASE = ModelStatistics("m", "1", cancelled=2, refused=3)
OUTPUTS = {"output": np.zeros(1)}


def _call_result(rows: int, infer_s: float = 0.5) -> EngineCounters:
    counters = EngineCounters()
    counters.calls = 1
    counters.record_call(rows, CallResult(OUTPUTS, 0.25, infer_s, 0.125))
    return counters


def test_new_counters_are_zero():
    assert sum_counters([], BASE) == BASE
    summed = sum_counters([EngineCounters()], BASE)
    assert (summed.success, summed.fail, summed.batches, summed.cancelled) == (Duration(), Duration(), (), 2)


def test_calls_are_counted_by_batch_size():
    all_counters = [_call_result(3), _call_result(3, 1.5), _call_result(8)]
    summed = sum_counters(all_counters, BASE)
    assert summed.calls == 3
    assert summed.compute_input == Duration(3, 750_000_000)
    assert summed.compute_infer == Duration(3, 2_500_000_000)
    assert summed.compute_output == Duration(3, 375_000_000)
    assert summed.batches == (
        BatchStatistics(3, Duration(2, 2_000_000_000)),
        BatchStatistics(8, Duration(1, 500_000_000)),
    )
    counts = dict(zip(BATCH_ROWS_BOUNDS, summed.batch_rows.counts, strict=False))
    assert (counts[4], counts[8], sum(summed.batch_rows.counts)) == (2, 1, 3)
    assert summed.batch_rows.total == 14


def test_batch_sizes_are_bounded(monkeypatch):
    """A further size counts as the largest known."""
    monkeypatch.setattr(counters_module, "_SIZES_MAX", 2)
    counters = EngineCounters()
    for rows in (5, 2, 9, 1, 2):
        counters.record_call(rows, CallResult(OUTPUTS))
    assert {size: lasting.count for size, lasting in counters.sizes.items()} == {5: 3, 2: 2}


def test_results_are_counted_by_kind():
    one, other = EngineCounters(), EngineCounters()
    for counters, seconds in ((one, 0.5), (other, 0.25)):
        counters.queue.count, counters.queue.seconds = 1, seconds
        counters.queue_s.add(seconds)
    one.record_success(1.0, rows=3, failed_rows=1)
    one.close_reasons = {"rows": 2, "delay": 1}
    other.record_failure(2.0, rows=6)
    other.expired, other.cancelled = 4, 5
    other.close_reasons = {"rows": 1}
    other.streams, other.stream_items, other.restarts, other.busy_s = 1, 7, 1, 3.0
    summed = sum_counters([one, other], BASE)
    assert (summed.rows, summed.failed_rows, summed.error_rows) == (3, 1, 6)
    assert (summed.success, summed.fail) == (Duration(1, 1_000_000_000), Duration(1, 2_000_000_000))
    assert summed.queue == Duration(2, 750_000_000)
    assert (summed.queue_s.total, summed.request_s.total) == (0.75, 3.0)
    assert (summed.cancelled, summed.expired, summed.refused) == (7, 4, 3)
    assert summed.close_reasons == {"rows": 3, "delay": 1}
    assert (summed.streams, summed.stream_items, summed.restarts, summed.busy_s) == (1, 7, 1, 3.0)


def test_snapshot_is_predictor_statistics():
    counters = _call_result(3)
    counters.retries, counters.busy_s, counters.starved_s = 2, 1.0, 3.0
    counters.record_success(1.0, rows=2, failed_rows=1)
    assert predictor_statistics([counters], instances=1) == PredictorStatistics(1, 1, 2, 1, 2, 1.0, 3.0)
    assert predictor_statistics([counters], instances=1).busy_share == 0.25


def test_sums_are_safe_while_an_instance_counts():
    """New sizes and reasons are added meanwhile."""
    counters, over = EngineCounters(), threading.Event()

    def count():
        for rows in range(20_000):
            counters.record_call(rows % 900, CallResult(OUTPUTS))
            counters.close_reasons[str(rows % 700)] = rows
        over.set()

    thread = threading.Thread(target=count)
    thread.start()
    while not over.is_set():
        sum_counters([counters], BASE)
    thread.join()
    assert sum(b.compute.count for b in sum_counters([counters], BASE).batches) == 20_000


# Histograms


def test_value_counts_in_the_first_bucket_that_holds_it():
    counter = HistogramCounter((1, 2, 4))
    for value in (1, 2, 3, 4, 5, 0.5):
        counter.add(value)
    assert counter.snapshot() == Histogram((1, 2, 4), (2, 1, 2, 1), 15.5)


def test_snapshot_is_immutable():
    counter = HistogramCounter((1,))
    before = counter.snapshot()
    counter.add(9)
    assert before == Histogram.empty((1,))


def test_busy_time_includes_the_call_in_progress_and_never_falls():
    counters = EngineCounters()
    assert counters.busy_until(9.0) == 0.0
    counters.busy_s, counters.running_call = 2.0, (2.0, 10.0)
    assert counters.busy_until(13.0) == 5.0
    counters.busy_s, counters.running_call = 4.5, None
    assert counters.busy_until(14.0) == 5.0
    counters.busy_s = 7.0
    assert counters.busy_until(20.0) == 7.0
