"""Dynamic batching: exact cuts that depend on the rows alone, and delays."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.dynamic import ClosedBatch, CloseReason, DynamicBatcher
from headrace.core.errors import ConfigError

HUGE = 1 << 40


def _batcher(rows_max=4, bytes_max=HUGE, delay_s=None) -> DynamicBatcher[str]:
    return DynamicBatcher(rows_max=rows_max, bytes_max=bytes_max, delay_s=delay_s)


def _cuts(closed: list[ClosedBatch[str]]) -> list[list[tuple[str, int, int]]]:
    return [[(s.item, s.start, s.stop) for s in c.slices] for c in closed]


def _sizes(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)


def test_item_is_cut_at_exact_rows():
    """Ten rows give two batches of four; two rows wait."""
    batcher = _batcher(rows_max=4)
    closed = batcher.add("a", 10, 5, now=1.0)
    assert _cuts(closed) == [[("a", 0, 4)], [("a", 4, 8)]]
    assert [(c.rows, c.nbytes, c.reason, c.opened_s) for c in closed] == [(4, 20, CloseReason.ROWS, 1.0)] * 2
    assert len(batcher) == 2


def test_batch_spans_items():
    """The batch opens with its first row."""
    batcher = _batcher(rows_max=4)
    assert batcher.add("a", 3, 1, now=1.0) == []
    (closed,) = batcher.add("b", 3, _sizes(10, 20, 30), now=2.0)
    assert _cuts([closed]) == [[("a", 0, 3), ("b", 0, 1)]]
    assert (closed.rows, closed.nbytes, closed.opened_s) == (4, 13, 1.0)
    rest = batcher.flush(now=3.0)
    assert _cuts([rest]) == [[("b", 1, 3)]]
    assert (rest.nbytes, rest.reason, rest.opened_s) == (50, CloseReason.FLUSH, 2.0)


def test_byte_limit_closes_before_the_row_that_does_not_fit():
    """A batch of exactly bytes_max still fits."""
    batcher = _batcher(rows_max=100, bytes_max=10)
    closed = batcher.add("a", 5, _sizes(4, 6, 9, 2, 8), now=0.0)
    assert _cuts(closed) == [[("a", 0, 2)], [("a", 2, 3)]]
    assert [(c.nbytes, c.reason) for c in closed] == [(10, CloseReason.BYTES), (9, CloseReason.BYTES)]
    assert len(batcher) == 2


def test_oversized_row_forms_its_own_batch():
    """It also closes the batch before it."""
    batcher = _batcher(rows_max=100, bytes_max=10)
    closed = batcher.add("a", 3, _sizes(1, 11, 1), now=0.0)
    assert _cuts(closed) == [[("a", 0, 1)], [("a", 1, 2)]]
    assert batcher.add("b", 2, 99, now=0.0)[0].slices[0].item == "a"
    assert len(batcher) == 0


def test_empty_rows_fit_a_batch_at_the_byte_limit():
    batcher = _batcher(rows_max=100, bytes_max=10)
    (closed,) = batcher.add("a", 4, _sizes(10, 0, 0, 1), now=0.0)
    assert closed.rows == 3


def test_delay_counts_from_the_first_row():
    """`due_s` is the time of the oldest row. `poll` closes nothing before, everything from then on."""
    batcher = _batcher(rows_max=10, delay_s=0.5)
    assert batcher.due_s() is None
    batcher.add("a", 1, 1, now=1.0)
    batcher.add("b", 1, 1, now=1.4)
    assert batcher.due_s() == 1.5
    assert batcher.poll(now=1.49) is None
    closed = batcher.poll(now=1.5)
    assert (closed.rows, closed.reason) == (2, CloseReason.DELAY)
    assert batcher.due_s() is None
    assert batcher.poll(now=9.0) is None


def test_leftover_rows_open_a_batch_at_their_item_time():
    batcher = _batcher(rows_max=2, delay_s=1.0)
    batcher.add("a", 1, 1, now=5.0)
    batcher.add("b", 2, 1, now=5.5)
    assert batcher.due_s() == 6.5


def test_without_delay_nothing_is_due():
    batcher = _batcher(delay_s=None)
    batcher.add("a", 1, 1, now=0.0)
    assert batcher.due_s() is None
    assert batcher.poll(now=1e9) is None


def test_empty_item_changes_nothing():
    batcher = _batcher(delay_s=1.0)
    assert batcher.add("a", 0, _sizes(), now=0.0) == []
    assert batcher.due_s() is None
    assert batcher.flush(now=0.0) is None


@pytest.mark.parametrize(
    "bounds",
    [
        {"rows_max": 0, "bytes_max": 1},
        {"rows_max": 1, "bytes_max": 0},
        {"rows_max": 1, "bytes_max": 1, "delay_s": -1.0},
    ],
)
def test_limits_out_of_range_are_refused(bounds):
    with pytest.raises(ConfigError):
        DynamicBatcher(**bounds)


def test_number_of_sizes_must_match():
    """A wrong number of sizes would shift every cut."""
    with pytest.raises(ValueError, match="2 sizes for an item of 3 rows"):
        _batcher().add("a", 3, _sizes(1, 2), now=0.0)


def _rows_of(closed: list[ClosedBatch[int]], starts: list[int]) -> list[tuple[int, ...]]:
    """Return each batch as the numbers of its rows in the whole stream."""
    return [tuple(starts[s.item] + r for s in c.slices for r in range(s.start, s.stop)) for c in closed]


def _expected(sizes: list[int], rows_max: int, bytes_max: int) -> list[tuple[int, ...]]:
    """Return the batches according to the rule, one row at a time."""
    batches: list[list[int]] = []
    for row, size in enumerate(sizes):
        last = batches[-1] if batches else []
        held = sum(sizes[r] for r in last)
        # A row beyond bytes_max closes its batch, also before rows without bytes.
        fits = last and len(last) < rows_max and held + size <= bytes_max
        if fits:
            last.append(row)
        else:
            batches.append([row])
    return [tuple(b) for b in batches]


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=9), max_size=9),
    st.integers(1, 6),
    st.integers(1, 20),
)
def test_batches_depend_on_the_rows_alone(items, rows_max, bytes_max):
    """However rows are grouped into items, no row is lost and the batches follow the rule."""
    batcher: DynamicBatcher[int] = DynamicBatcher(rows_max=rows_max, bytes_max=bytes_max)
    closed: list[ClosedBatch[int]] = []
    starts = np.cumsum([0, *(len(i) for i in items)]).tolist()
    for number, sizes in enumerate(items):
        # Rows of one size may be given as one number.
        row_bytes = sizes[0] if sizes and len(set(sizes)) == 1 else _sizes(*sizes)
        closed += batcher.add(number, len(sizes), row_bytes, now=0.0)
    rest = batcher.flush(now=0.0)
    closed += [rest] if rest else []
    every = [size for sizes in items for size in sizes]
    assert _rows_of(closed, starts) == _expected(every, rows_max, bytes_max)
    for batch, rows in zip(closed, _rows_of(closed, starts), strict=True):
        assert batch.rows == len(rows)
        assert batch.nbytes == sum(every[r] for r in rows)


def test_add_runs_no_line_per_row():
    """4,096 rows into batches of 1,024 take as many lines of Python as 64 rows into 16."""
    few = _lines_run(lambda: _batcher(rows_max=16).add("a", 64, np.full(64, 100), now=0.0))
    many = _lines_run(lambda: _batcher(rows_max=1024).add("a", 4096, np.full(4096, 100), now=0.0))
    assert few == many > 0


def _lines_run(call: Callable[[], list[ClosedBatch[str]]]) -> int:
    lines = 0

    def trace(_frame: object, event: str, _argument: object) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        closed = call()
    finally:
        sys.settrace(before)
    assert len(closed) == 4
    return lines
