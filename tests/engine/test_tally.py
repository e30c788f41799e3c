"""Figures of instances, and their sums."""

import threading

import numpy as np

from headrace.core.predictor import PredictorStatistics
from headrace.core.statistics import BATCH_ROWS_BOUNDS, BatchStatistics, Duration, ModelStatistics
from headrace.engine import tally as tally_module
from headrace.engine.backend import Called
from headrace.engine.tally import Tally, total

BASE = ModelStatistics("m", "1", cancelled=2, refused=3)
OUTPUTS = {"output": np.zeros(1)}


def _called(rows: int, infer_s: float = 0.5) -> Tally:
    tally = Tally()
    tally.calls = 1
    tally.called(rows, Called(OUTPUTS, 0.25, infer_s, 0.125))
    return tally


def test_nothing_is_nothing():
    assert total([], BASE) == BASE
    summed = total([Tally()], BASE)
    assert (summed.success, summed.fail, summed.batches, summed.cancelled) == (Duration(), Duration(), (), 2)


def test_calls_are_counted_by_their_size():
    """The three steps apart, and each size of a batch."""
    tallies = [_called(3), _called(3, 1.5), _called(8)]
    summed = total(tallies, BASE)
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


def test_sizes_are_bounded(monkeypatch):
    """A size beyond the most counts as the largest known."""
    monkeypatch.setattr(tally_module, "_SIZES_MAX", 2)
    tally = Tally()
    for rows in (5, 2, 9, 1, 2):
        tally.called(rows, Called(OUTPUTS))
    assert {size: lasting.count for size, lasting in tally.sizes.items()} == {5: 3, 2: 2}


def test_ends_of_requests_are_told_apart():
    one, other = Tally(), Tally()
    one.waited(0.5)
    one.answered(1.0, rows=3, failed_rows=1)
    one.closed = {"rows": 2, "delay": 1}
    other.waited(0.25)
    other.failed(2.0, rows=6)
    other.expired, other.cancelled = 4, 5
    other.closed = {"rows": 1}
    other.streams, other.stream_items, other.restarts, other.busy_s = 1, 7, 1, 3.0
    summed = total([one, other], BASE)
    assert (summed.rows, summed.failed_rows, summed.error_rows) == (3, 1, 6)
    assert (summed.success, summed.fail) == (Duration(1, 1_000_000_000), Duration(1, 2_000_000_000))
    assert summed.queue == Duration(2, 750_000_000)
    assert (summed.queue_s.total, summed.request_s.total) == (0.75, 3.0)
    assert (summed.cancelled, summed.expired, summed.refused) == (7, 4, 3)
    assert summed.closed == {"rows": 3, "delay": 1}
    assert (summed.streams, summed.stream_items, summed.restarts, summed.busy_s) == (1, 7, 1, 3.0)


def test_a_snapshot_is_what_every_predictor_tells():
    tally = _called(3)
    tally.retries, tally.busy_s, tally.starved_s = 2, 1.0, 3.0
    tally.answered(1.0, rows=2, failed_rows=1)
    assert tally.snapshot() == PredictorStatistics(1, 1, 2, 1, 2, 1.0, 3.0)
    assert tally.snapshot().busy_share == 0.25


def test_sums_can_be_made_while_an_instance_counts():
    """New sizes and reasons come up meanwhile."""
    tally, over = Tally(), threading.Event()

    def count():
        for rows in range(20_000):
            tally.called(rows % 900, Called(OUTPUTS))
            tally.closed[str(rows % 700)] = rows
        over.set()

    thread = threading.Thread(target=count)
    thread.start()
    while not over.is_set():
        total([tally], BASE)
    thread.join()
    assert sum(b.compute.count for b in total([tally], BASE).batches) == 20_000
