"""Bisection finds exactly the bad rows, at a small cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.bisect import Bisection
from headrace.core.tensor import RowFailure


def _search(rows: int, bad: set[int], names: frozenset[int] = frozenset()):
    """Run a search against a model that fails on `bad` rows and refuses those in `names` by
    RowError.
    """
    search = Bisection(rows)
    tries: list[list[int]] = []
    kept: list[int] = []
    while (indices := search.next()) is not None:
        tried = indices.tolist()
        tries.append(tried)
        named = {i: f"named {row}" for i, row in enumerate(tried) if row in bad & names}
        if named:
            search.mark_refused(named)
        elif bad.intersection(tried):
            search.mark_failed(f"failed with {len(tried)}")
        else:
            search.mark_succeeded()
            kept += tried
    return search.failures, kept, tries


def test_successful_batch_is_called_once():
    assert _search(5, set()) == ((), [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]])


def test_one_bad_row_is_found():
    """Lower halves first. The failure has the error of the row's own call."""
    failures, kept, tries = _search(4, {2})
    assert failures == (RowFailure(2, "failed with 1", attempts=3),)
    assert kept == [0, 1, 3]
    assert tries == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]


def test_single_row_needs_one_call():
    failures, _, tries = _search(1, {0})
    assert failures == (RowFailure(0, "failed with 1", attempts=1),)
    assert tries == [[0]]


def test_empty_batch_needs_no_call():
    assert _search(0, set()) == ((), [], [])


def test_refused_rows_cost_one_more_call():
    """The other rows are tried again together."""
    failures, kept, tries = _search(6, {1, 4}, frozenset({1, 4}))
    assert failures == (RowFailure(1, "named 1"), RowFailure(4, "named 4"))
    assert kept == [0, 2, 3, 5]
    assert tries == [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]]


def test_refusing_only_unknown_rows_is_a_failure():
    """Otherwise the same call would repeat for ever."""
    search = Bisection(2)
    search.next()
    search.mark_refused({7: "no such row", -1: "nor this"})
    assert search.next().tolist() == [0]
    search.mark_refused({5: "still not"})
    assert search.failures == (
        RowFailure(0, "the model raised RowError for rows [5] of a batch with rows 0 to 0", 2),
    )


def test_unknown_rows_of_a_row_error_are_ignored():
    search = Bisection(2)
    search.next()
    search.mark_refused({1: "bad", 9: "no such row"})
    assert search.next().tolist() == [0]
    search.mark_succeeded()
    assert search.next() is None
    assert search.failures == (RowFailure(1, "bad"),)


@pytest.mark.parametrize("verdict", ["mark_succeeded", "mark_failed", "mark_refused"])
def test_result_needs_a_call(verdict):
    search = Bisection(2)
    arguments = {"mark_succeeded": (), "mark_failed": ("x",), "mark_refused": ({0: "x"},)}[verdict]
    with pytest.raises(AssertionError):
        getattr(search, verdict)(*arguments)


@given(st.data())
def test_exactly_the_bad_rows_fail(data):
    """For any set of bad rows, and any subset that the model refuses by RowError."""
    rows = data.draw(st.integers(0, 70))
    some = st.frozensets(st.integers(0, max(rows - 1, 0)), max_size=rows)
    bad = data.draw(some)
    names = data.draw(some)
    failures, kept, tries = _search(rows, set(bad), names)
    assert [f.row for f in failures] == sorted(bad)
    # Successful rows arrive in row order, so callers can join them without sorting.
    assert kept == [row for row in range(rows) if row not in bad]
    assert len(tries) <= max(2 * rows - 1, 0)
    for failure in failures:
        assert failure.attempts == sum(failure.row in tried for tried in tries)


@given(st.integers(1, 5000), st.data())
def test_one_bad_row_costs_two_log_n(rows, data):
    """The bound in the module's docstring."""
    row = data.draw(st.integers(0, rows - 1))
    _, _, tries = _search(rows, {row})
    assert len(tries) <= 2 * math.ceil(math.log2(rows)) + 1
