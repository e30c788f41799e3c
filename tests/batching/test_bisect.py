"""Bisection blames the guilty rows, only them, at a cost that stays small."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.bisect import Bisection
from headrace.core.tensor import RowFailure


def _search(rows: int, guilty: set[int], names: frozenset[int] = frozenset()):
    """Run a search against a model that fails on `guilty` rows, and names those in `names` itself."""
    search = Bisection(rows)
    tries: list[list[int]] = []
    kept: list[int] = []
    while (indices := search.next()) is not None:
        tried = indices.tolist()
        tries.append(tried)
        named = {i: f"named {row}" for i, row in enumerate(tried) if row in guilty & names}
        if named:
            search.refused(named)
        elif guilty.intersection(tried):
            search.failed(f"failed with {len(tried)}")
        else:
            search.succeeded()
            kept += tried
    return search.failures, kept, tries


def test_a_batch_that_succeeds_is_tried_once():
    """No search where nothing failed."""
    assert _search(5, set()) == ((), [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]])


def test_one_guilty_row_is_found_and_its_mates_are_kept():
    """Halves, lower rows first; the guilty row's own error is the one that is told."""
    failures, kept, tries = _search(4, {2})
    assert failures == (RowFailure(2, "failed with 1", attempts=3),)
    assert kept == [0, 1, 3]
    assert tries == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]


def test_a_single_row_is_its_own_verdict():
    """One row that fails needs no second try."""
    failures, _, tries = _search(1, {0})
    assert failures == (RowFailure(0, "failed with 1", attempts=1),)
    assert tries == [[0]]


def test_no_rows_need_no_try():
    """An empty batch has no verdicts to find."""
    assert _search(0, set()) == ((), [], [])


def test_rows_that_the_model_names_cost_one_more_try():
    """The others are tried again together, not halved."""
    failures, kept, tries = _search(6, {1, 4}, frozenset({1, 4}))
    assert failures == (RowFailure(1, "named 1"), RowFailure(4, "named 4"))
    assert kept == [0, 2, 3, 5]
    assert tries == [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]]


def test_naming_only_rows_that_were_not_given_is_a_failure_like_any_other():
    """Otherwise the same batch would be tried for ever."""
    search = Bisection(2)
    search.next()
    search.refused({7: "no such row", -1: "nor this"})
    assert search.next().tolist() == [0]
    search.refused({5: "still not"})
    assert search.failures == (RowFailure(0, "RowError names rows [5] of a batch that has rows 0 to 0", 2),)


def test_rows_that_were_not_given_do_not_excuse_those_that_were():
    """What can be understood of a RowError counts."""
    search = Bisection(2)
    search.next()
    search.refused({1: "bad", 9: "no such row"})
    assert search.next().tolist() == [0]
    search.succeeded()
    assert search.next() is None
    assert search.failures == (RowFailure(1, "bad"),)


@pytest.mark.parametrize("verdict", ["succeeded", "failed", "refused"])
def test_a_verdict_needs_a_try(verdict):
    """A verdict without a try would be about nothing."""
    search = Bisection(2)
    arguments = {"succeeded": (), "failed": ("x",), "refused": ({0: "x"},)}[verdict]
    with pytest.raises(AssertionError):
        getattr(search, verdict)(*arguments)


@given(st.data())
def test_exactly_the_guilty_fail(data):
    """For any guilty set, and whichever of them the model names itself."""
    rows = data.draw(st.integers(0, 70))
    some = st.frozensets(st.integers(0, max(rows - 1, 0)), max_size=rows)
    guilty = data.draw(some)
    names = data.draw(some)
    failures, kept, tries = _search(rows, set(guilty), names)
    assert [f.row for f in failures] == sorted(guilty)
    # In row order without any sorting: what is kept can be joined as it comes.
    assert kept == [row for row in range(rows) if row not in guilty]
    assert len(tries) <= max(2 * rows - 1, 0)
    for failure in failures:
        assert failure.attempts == sum(failure.row in tried for tried in tries)


@given(st.integers(1, 5000), st.data())
def test_one_guilty_row_costs_about_two_log_n(rows, data):
    """The promise in the module's docstring."""
    row = data.draw(st.integers(0, rows - 1))
    _, _, tries = _search(rows, {row})
    assert len(tries) <= 2 * math.ceil(math.log2(rows)) + 1
