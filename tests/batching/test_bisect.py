"""Bisection finds exactly the bad rows and the bad items, at a small cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.bisect import Bisection
from headrace.core.tensor import RowFailure


def _search(rows: int, bad: set[int], names: frozenset[int] = frozenset()):
    """Run a search of one item against a model that fails on `bad` rows and refuses those in
    `names` by RowError.
    """
    search = Bisection([rows])
    tries: list[list[int]] = []
    kept: list[int] = []
    while (group := search.next()) is not None:
        (piece,) = group
        tried = piece.rows.tolist()
        assert (piece.item, piece.tries) == (0, sum(set(tried) <= set(others) for others in tries))
        tries.append(tried)
        named = {i: f"named {row}" for i, row in enumerate(tried) if row in bad & names}
        if named:
            assert search.mark_refused(named) == {}
        elif bad.intersection(tried):
            assert search.mark_failed(f"failed with {len(tried)}") is None
        else:
            search.mark_succeeded()
            kept += tried
    return search.failures(), kept, tries


def _next(search: Bisection) -> dict[int, list[int]] | None:
    """Return the rows of the next call, by item."""
    group = search.next()
    return None if group is None else {piece.item: piece.rows.tolist() for piece in group}


def _calls_of_good_model(search: Bisection) -> list[dict[int, list[int]]]:
    """Return the rows of all further calls, by item."""
    calls = []
    while (call := _next(search)) is not None:
        calls.append(call)
        search.mark_succeeded()
    return calls


# One item


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
    assert Bisection([]).next() is None


def test_refused_rows_cost_one_more_call():
    """The other rows are tried again together."""
    failures, kept, tries = _search(6, {1, 4}, frozenset({1, 4}))
    assert failures == (RowFailure(1, "named 1"), RowFailure(4, "named 4"))
    assert kept == [0, 2, 3, 5]
    assert tries == [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]]


def test_refusing_only_unknown_rows_is_a_failure():
    """Otherwise the same call would repeat for ever."""
    search = Bisection([2])
    search.next()
    search.mark_refused({7: "no such row", -1: "nor this"})
    assert _next(search) == {0: [0]}
    search.mark_refused({5: "still not"})
    assert search.failures() == (
        RowFailure(0, "the model raised RowError for rows [5] of a batch with rows 0 to 0", 2),
    )


def test_unknown_rows_of_a_row_error_are_ignored():
    search = Bisection([2])
    search.next()
    search.mark_refused({1: "bad", 9: "no such row"})
    assert _calls_of_good_model(search) == [{0: [0]}]
    assert search.failures() == (RowFailure(1, "bad"),)


@pytest.mark.parametrize("verdict", ["mark_succeeded", "mark_failed", "mark_refused", "mark_repeated"])
def test_result_needs_a_call(verdict):
    search = Bisection([2])
    arguments = {"mark_failed": ("x",), "mark_refused": ({0: "x"},)}.get(verdict, ())
    with pytest.raises(AssertionError):
        getattr(search, verdict)(*arguments)


def test_next_call_needs_result_of_last_call():
    search = Bisection([2])
    search.next()
    with pytest.raises(AssertionError):
        search.next()


def test_interrupted_call_is_repeated():
    search = Bisection([3])
    search.next()
    search.mark_repeated()
    (piece,) = search.next()
    assert (piece.rows.tolist(), piece.tries) == ([0, 1, 2], 1)
    search.mark_succeeded()
    assert search.next() is None


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


# Several items


def test_items_share_calls_until_their_call_fails():
    """Items are separated before their rows are."""
    search = Bisection([2, 1, 3])
    assert _next(search) == {0: [0, 1], 1: [0], 2: [0, 1, 2]}
    search.mark_failed("bad")
    assert _next(search) == {0: [0, 1]}
    search.mark_succeeded()
    assert _next(search) == {1: [0], 2: [0, 1, 2]}
    search.mark_failed("bad")
    assert _next(search) == {1: [0]}
    search.mark_failed("of item 1")
    assert _calls_of_good_model(search) == [{2: [0, 1, 2]}]
    assert search.failures(1) == (RowFailure(0, "of item 1", attempts=3),)
    assert search.failures(0) == search.failures(2) == ()


def test_items_without_rows_are_not_called():
    assert _calls_of_good_model(Bisection([0, 2, 0])) == [{1: [0, 1]}]


def test_whole_item_fails_after_one_call_of_its_own():
    """Its rows are not searched."""
    search = Bisection([4, 4], whole={1})
    search.next()
    assert search.mark_failed("bad") is None
    assert _next(search) == {0: [0, 1, 2, 3]}
    search.mark_succeeded()
    assert _next(search) == {1: [0, 1, 2, 3]}
    assert search.mark_failed("bad") == 1
    search.close(1)
    assert search.next() is None
    assert search.failures(1) == ()


def test_whole_item_is_halved_down_to_one_row_on_request():
    """`divide` is for errors about the size of the call, such as a lack of memory."""
    search = Bisection([4], whole={0})
    for expected in ([0, 1, 2, 3], [0, 1]):
        assert _next(search) == {0: expected}
        assert search.mark_failed("too large", divide=True) is None
    assert _next(search) == {0: [0]}
    search.mark_succeeded()
    assert _next(search) == {0: [1]}
    assert search.mark_failed("too large", divide=True) == 0
    search.close(0)
    assert search.next() is None


def test_rows_beyond_limit_are_called_in_order():
    """A large item is cut, and its last rows share their call with the next items that fit."""
    search = Bisection([2, 9, 2, 3], whole={1, 3}, rows_max=4)
    assert _calls_of_good_model(search) == [
        {0: [0, 1]},
        {1: [0, 1, 2, 3]},
        {1: [4, 5, 6, 7]},
        {1: [8], 2: [0, 1]},
        {3: [0, 1, 2]},
    ]


def test_limit_may_change_between_calls():
    search = Bisection([12], rows_max=8)
    search.next()
    search.mark_failed("too large")
    search.rows_max = 2
    assert _next(search) == {0: [0, 1]}
    search.mark_succeeded()
    search.rows_max = None
    assert _calls_of_good_model(search) == [{0: [2, 3]}, {0: [4, 5, 6, 7]}, {0: [8, 9, 10, 11]}]


def test_closed_item_is_called_no_more():
    """Neither its own rows that are left, nor those that would share a call."""
    search = Bisection([6, 2, 1], rows_max=4)
    search.next()
    search.mark_succeeded()
    assert search.open_items() == {0, 1, 2}
    search.close(0)
    search.close(2)
    assert search.open_items() == {1}
    assert _calls_of_good_model(search) == [{1: [0, 1]}]
    assert search.open_items() == set()


def test_search_is_retrying_until_failed_rows_have_results():
    search = Bisection([8], rows_max=4)
    assert not search.is_retrying
    search.next()
    search.mark_failed("bad")
    for _ in range(2):
        assert search.is_retrying
        search.next()
        search.mark_succeeded()
    # The rows from 4 on were not called before.
    assert not search.is_retrying
    assert search.open_items() == {0}


def test_refused_rows_are_reported_by_item():
    """Bad rows of one item fail alone, a whole item fails as a whole; the others are retried together.

    Indices are relative to the item.
    """
    search = Bisection([3, 2, 2, 2], whole={1, 2})
    search.next()
    refused = {1: "a", 4: "b", 9: "no such row"}
    assert search.mark_refused(refused) == {1: {1: "b"}}
    search.close(1)
    assert _calls_of_good_model(search) == [{0: [0, 2], 2: [0, 1], 3: [0, 1]}]
    assert [search.failures(item) for item in range(4)] == [(RowFailure(1, "a"),), (), (), ()]


def test_refused_rows_of_cut_item_are_relative_to_item():
    search = Bisection([6], whole={0}, rows_max=4)
    search.next()
    search.mark_succeeded()
    assert _next(search) == {0: [4, 5]}
    assert search.mark_refused({1: "bad"}) == {0: {5: "bad"}}


def test_refusing_only_unknown_rows_fails_whole_item():
    search = Bisection([2, 2], whole={0, 1})
    search.next()
    assert search.mark_refused({4: "no such row"}) == {}
    assert _next(search) == {0: [0, 1]}
    assert search.mark_refused({4: "no such row"}) == {0: {4: "no such row"}}


@given(st.data())
def test_exactly_the_bad_rows_and_bad_whole_items_fail(data):
    """For any items, limit, bad rows and bad memory, however the model reports them."""
    counts = data.draw(st.lists(st.integers(0, 12), max_size=8))
    items = st.frozensets(st.integers(0, max(len(counts) - 1, 0)))
    every = [(item, row) for item, rows in enumerate(counts) for row in range(rows)]
    some = st.frozensets(st.sampled_from(every)) if every else st.just(frozenset())
    whole, bad, names = data.draw(items), data.draw(some), data.draw(some)
    rows_max = data.draw(st.none() | st.integers(1, 20))
    fits = data.draw(st.integers(1, 20))

    search = Bisection(counts, whole=whole, rows_max=rows_max)
    failed_items: set[int] = set()
    kept: list[tuple[int, int]] = []
    called: list[list[tuple[int, int]]] = []
    while (group := search.next()) is not None:
        tried = [(piece.item, int(row)) for piece in group for row in piece.rows]
        assert tried == sorted(tried)
        assert rows_max is None or len(tried) <= rows_max
        assert failed_items.isdisjoint(item for item, _ in tried)
        called.append(tried)
        named = {at: "named" for at, row in enumerate(tried) if row in bad & names}
        if len(tried) > fits:
            at = search.mark_failed("too large", divide=True)
            assert at is None
        elif named:
            refused = search.mark_refused(named)
            assert {(i, row) for i, by_row in refused.items() for row in by_row} == {
                tried[at] for at in named if tried[at][0] in whole
            }
            for item in refused:
                search.close(item)
            failed_items |= refused.keys()
        elif bad.intersection(tried):
            at = search.mark_failed("bad")
            if at is not None:
                search.close(at)
                failed_items.add(at)
        else:
            search.mark_succeeded()
            kept += tried

    assert failed_items == {item for item, _ in bad} & whole
    failures = {(item, f.row): f.attempts for item in range(len(counts)) for f in search.failures(item)}
    assert failures.keys() == {row for row in bad if row[0] not in whole}
    for row, attempts in failures.items():
        assert attempts == sum(row in tried for tried in called)
    # Of each item, the rows of the successful calls ascend, so callers can join them.
    good = [row for row in every if row not in bad and row[0] not in failed_items]
    assert [row for row in kept if row[0] not in failed_items] == good
