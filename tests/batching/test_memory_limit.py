"""The number of rows that fit into memory: lowered after a failure, raised again with care."""

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.batching.bisect import PROBE_CALLS, PROBE_CALLS_MAX, MemoryLimit


def _run_out(limit: MemoryLimit, *rows: int) -> int | None:
    """Record calls of these rows that ran out of memory; return the conclusion."""
    for each in rows:
        limit.record_out_of_memory(each)
    assert limit.is_unsettled
    lowered = limit.settle()
    assert not limit.is_unsettled
    return lowered


def _full_calls_until_raised(limit: MemoryLimit) -> int:
    """Return the number of full calls after which the limit is raised."""
    before, calls = limit.rows, 0
    while limit.rows == before:
        limit.record_success(limit.rows)
        calls += 1
        assert calls <= PROBE_CALLS_MAX
    return calls


def test_limit_is_half_of_call_that_ran_out_of_memory():
    limit = MemoryLimit(64)
    assert not limit.is_unsettled
    assert (_run_out(limit, 64), limit.rows) == (32, 32)


def test_limit_is_half_of_smallest_call_that_failed():
    """The larger ones were halved on the way to it. In any order."""
    for failed in ([64, 32, 16], [16, 64, 32], [32, 16, 16]):
        limit = MemoryLimit(64)
        assert (_run_out(limit, *failed), limit.rows) == (8, 8)


def test_limit_is_never_below_one_row():
    for failed in (2, 3):
        limit = MemoryLimit(64)
        assert (_run_out(limit, failed), limit.rows) == (1, 1)


@for_each("failed", [(1,), (64, 32, 16, 8, 4, 2, 1), (1, 2)])
def test_row_that_fails_alone_does_not_lower_limit(failed):
    """That row is guilty, whatever else its calls held."""
    limit = MemoryLimit(64)
    assert (_run_out(limit, *failed), limit.rows) == (None, 64)
    # The next conclusion is drawn from later calls only.
    assert _run_out(limit, 64) == 32


def test_settle_without_failed_call_changes_nothing():
    limit = MemoryLimit(64)
    _run_out(limit, 64)
    assert (limit.settle(), limit.rows) == (None, 32)


def test_failure_above_limit_says_nothing_new():
    limit = MemoryLimit(64)
    _run_out(limit, 16)
    assert (_run_out(limit, 64), limit.rows) == (None, 8)


def test_limit_recovers_after_full_calls():
    """It doubles each time, up to `rows_max`."""
    limit = MemoryLimit(50)
    _run_out(limit, 16)
    raised = []
    while limit.rows < 50:
        assert _full_calls_until_raised(limit) == PROBE_CALLS
        raised.append(limit.rows)
    assert raised == [16, 32, 50]


def test_smaller_calls_are_no_reason_to_raise_limit():
    """A call below the limit shows nothing about a larger one."""
    limit = MemoryLimit(64)
    _run_out(limit, 64)
    for _ in range(2 * PROBE_CALLS):
        limit.record_success(31)
    assert limit.rows == 32


def test_unreduced_limit_is_never_raised():
    limit = MemoryLimit(64)
    for _ in range(2 * PROBE_CALLS):
        limit.record_success(64)
    assert limit.rows == 64


def test_interval_doubles_after_each_failed_attempt():
    """Up to a limit, so that the limit of rows can always recover."""
    limit = MemoryLimit(64)
    _run_out(limit, 64)
    intervals = []
    for _ in range(9):
        intervals.append(_full_calls_until_raised(limit))
        assert limit.rows == 64
        assert _run_out(limit, 64) == 32
    assert intervals == [min(PROBE_CALLS * 2**n, PROBE_CALLS_MAX) for n in range(9)]


def test_interval_is_kept_when_limit_was_lowered_twice():
    """The second failure was no attempt to raise the limit."""
    limit = MemoryLimit(64)
    _run_out(limit, 64)
    _run_out(limit, 32)
    assert _full_calls_until_raised(limit) == PROBE_CALLS


def test_lowering_restarts_count_of_full_calls():
    limit = MemoryLimit(64)
    _run_out(limit, 64)
    for _ in range(PROBE_CALLS - 1):
        limit.record_success(32)
    _run_out(limit, 32)
    assert _full_calls_until_raised(limit) == PROBE_CALLS


@given(
    st.integers(1, 100),
    st.lists(
        st.tuples(
            st.sampled_from(["fits", "fails", "settle"]), st.integers(0, 1), st.integers(1, PROBE_CALLS)
        ),
        max_size=50,
    ),
)
def test_limit_moves_within_bounds(rows_max, events):
    """For any history: at least 1, never above `rows_max`; raised by full calls only, and lowered by
    `settle` only, to half of a call that failed.
    """
    limit = MemoryLimit(rows_max)
    failed = []
    for kind, below, times in events:
        for _ in range(times):
            before, rows = limit.rows, max(1, limit.rows - below)
            if kind == "fits":
                limit.record_success(rows)
                assert limit.rows == before or (rows == before and limit.rows == min(2 * before, rows_max))
            elif kind == "fails":
                limit.record_out_of_memory(rows)
                failed.append(rows)
                assert limit.rows == before
            else:
                lowered = limit.settle()
                assert limit.rows == (before if lowered is None else lowered)
                assert lowered is None or (1 not in failed and lowered == min(failed) // 2 < before)
                failed = []
            assert 1 <= limit.rows <= rows_max
            assert limit.is_unsettled == bool(failed)
