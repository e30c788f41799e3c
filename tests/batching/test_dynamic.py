"""The batcher cuts exactly, by the rows alone, and says when it wants to be asked again."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.dynamic import Closed, CloseReason, DynamicBatcher
from headrace.core.errors import ConfigError

HUGE = 1 << 40


def _batcher(rows_max=4, bytes_max=HUGE, delay_s=None) -> DynamicBatcher[str]:
    return DynamicBatcher(rows_max=rows_max, bytes_max=bytes_max, delay_s=delay_s)


def _cuts(closed: list[Closed[str]]) -> list[list[tuple[str, int, int]]]:
    return [[(s.item, s.start, s.stop) for s in c.slices] for c in closed]


def _sizes(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)


def test_one_item_is_cut_into_exact_batches():
    """Ten rows at four a batch are two batches, and two rows wait."""
    batcher = _batcher(rows_max=4)
    closed = batcher.add("a", 10, 5, now=1.0)
    assert _cuts(closed) == [[("a", 0, 4)], [("a", 4, 8)]]
    assert [(c.rows, c.nbytes, c.reason, c.opened) for c in closed] == [(4, 20, CloseReason.ROWS, 1.0)] * 2
    assert len(batcher) == 2


def test_a_batch_spans_items():
    """The rest of one item and the start of the next are one batch, which opened with the first."""
    batcher = _batcher(rows_max=4)
    assert batcher.add("a", 3, 1, now=1.0) == []
    (closed,) = batcher.add("b", 3, _sizes(10, 20, 30), now=2.0)
    assert _cuts([closed]) == [[("a", 0, 3), ("b", 0, 1)]]
    assert (closed.rows, closed.nbytes, closed.opened) == (4, 13, 1.0)
    rest = batcher.flush(now=3.0)
    assert _cuts([rest]) == [[("b", 1, 3)]]
    assert (rest.nbytes, rest.reason, rest.opened) == (50, CloseReason.FLUSH, 2.0)


def test_bytes_close_a_batch_before_the_row_that_does_not_fit():
    """The most rows within bytes_max; exactly bytes_max still fits."""
    batcher = _batcher(rows_max=100, bytes_max=10)
    closed = batcher.add("a", 5, _sizes(4, 6, 9, 2, 8), now=0.0)
    assert _cuts(closed) == [[("a", 0, 2)], [("a", 2, 3)]]
    assert [(c.nbytes, c.reason) for c in closed] == [(10, CloseReason.BYTES), (9, CloseReason.BYTES)]
    assert len(batcher) == 2


def test_a_row_larger_than_a_batch_goes_alone():
    """It closes what waits before it, and then itself."""
    batcher = _batcher(rows_max=100, bytes_max=10)
    closed = batcher.add("a", 3, _sizes(1, 11, 1), now=0.0)
    assert _cuts(closed) == [[("a", 0, 1)], [("a", 1, 2)]]
    assert batcher.add("b", 2, 99, now=0.0)[0].slices[0].item == "a"
    assert len(batcher) == 0


def test_rows_of_no_bytes_fit_a_full_batch():
    """Bytes alone decide, also at the very edge."""
    batcher = _batcher(rows_max=100, bytes_max=10)
    (closed,) = batcher.add("a", 4, _sizes(10, 0, 0, 1), now=0.0)
    assert closed.rows == 3


def test_delay_counts_from_the_first_row():
    """`due` is the oldest row's; polling before it closes nothing, at it closes all."""
    batcher = _batcher(rows_max=10, delay_s=0.5)
    assert batcher.due() is None
    batcher.add("a", 1, 1, now=1.0)
    batcher.add("b", 1, 1, now=1.4)
    assert batcher.due() == 1.5
    assert batcher.poll(now=1.49) is None
    closed = batcher.poll(now=1.5)
    assert (closed.rows, closed.reason) == (2, CloseReason.DELAY)
    assert batcher.due() is None
    assert batcher.poll(now=9.0) is None


def test_rows_left_over_wait_from_when_their_batch_opened():
    """What an item leaves behind opens a batch at that item's time."""
    batcher = _batcher(rows_max=2, delay_s=1.0)
    batcher.add("a", 1, 1, now=5.0)
    batcher.add("b", 2, 1, now=5.5)
    assert batcher.due() == 6.5


def test_no_delay_never_falls_due():
    """Without a delay only rows, bytes and the end close a batch."""
    batcher = _batcher(delay_s=None)
    batcher.add("a", 1, 1, now=0.0)
    assert batcher.due() is None
    assert batcher.poll(now=1e9) is None


def test_nothing_adds_nothing():
    """An item without rows opens no batch, and an empty batcher flushes nothing."""
    batcher = _batcher(delay_s=1.0)
    assert batcher.add("a", 0, _sizes(), now=0.0) == []
    assert batcher.due() is None
    assert batcher.flush(now=0.0) is None


@pytest.mark.parametrize(
    "bounds",
    [
        {"rows_max": 0, "bytes_max": 1},
        {"rows_max": 1, "bytes_max": 0},
        {"rows_max": 1, "bytes_max": 1, "delay_s": -1.0},
    ],
)
def test_bounds_without_room_are_refused(bounds):
    """A batch that can hold nothing would never close."""
    with pytest.raises(ConfigError):
        DynamicBatcher(**bounds)


def test_sizes_must_be_those_of_the_rows():
    """A wrong number of sizes would shift every cut."""
    with pytest.raises(ValueError, match="2 sizes for an item of 3 rows"):
        _batcher().add("a", 3, _sizes(1, 2), now=0.0)


def _rows_of(closed: list[Closed[int]], starts: list[int]) -> list[tuple[int, ...]]:
    """Each batch as the numbers of its rows in the whole sequence."""
    return [tuple(starts[s.item] + r for s in c.slices for r in range(s.start, s.stop)) for c in closed]


def _expected(sizes: list[int], rows_max: int, bytes_max: int) -> list[tuple[int, ...]]:
    """The rule, one row at a time."""
    batches: list[list[int]] = []
    for row, size in enumerate(sizes):
        last = batches[-1] if batches else []
        held = sum(sizes[r] for r in last)
        # A row beyond bytes_max closes its batch with itself, also before rows of no bytes.
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
    """However rows are grouped into items, the batches are those of the row-by-row rule, and nothing is lost."""
    batcher: DynamicBatcher[int] = DynamicBatcher(rows_max=rows_max, bytes_max=bytes_max)
    closed: list[Closed[int]] = []
    starts = np.cumsum([0, *(len(i) for i in items)]).tolist()
    for number, sizes in enumerate(items):
        # Rows of one size may be told by one number.
        told = sizes[0] if sizes and len(set(sizes)) == 1 else _sizes(*sizes)
        closed += batcher.add(number, len(sizes), told, now=0.0)
    rest = batcher.flush(now=0.0)
    closed += [rest] if rest else []
    every = [size for sizes in items for size in sizes]
    assert _rows_of(closed, starts) == _expected(every, rows_max, bytes_max)
    for batch, rows in zip(closed, _rows_of(closed, starts), strict=True):
        assert batch.rows == len(rows)
        assert batch.nbytes == sum(every[r] for r in rows)


def test_adding_many_rows_costs_no_python_per_row():
    """A 4,096-row item into batches of 1,024: far below a microsecond a row, even on a busy machine."""
    sizes = np.full(4096, 100, np.int64)
    best_s = 1.0
    for _ in range(50):
        batcher = _batcher(rows_max=1024, bytes_max=HUGE)
        began = time.perf_counter()
        closed = batcher.add("a", 4096, sizes, now=0.0)
        best_s = min(best_s, time.perf_counter() - began)
        assert len(closed) == 4
    assert best_s < 400e-6
