"""Background work: the share that live requests leave, and the pacing by it."""

from math import ceil, inf, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.background import (
    EXCEEDING,
    IDLE_S,
    SHARE_MIN,
    BackgroundBudget,
    BackgroundShare,
    current_share,
)

LIMIT_S = 0.03
FAST_S, SLOW_S = 0.01, 0.05
TICK_S = 0.001
SHARES = st.floats(SHARE_MIN, 0.999)


def _learned(*latencies_s: float) -> BackgroundShare:
    share = BackgroundShare(LIMIT_S)
    for latency_s in latencies_s:
        share.record(latency_s, now=0.0)
    return share


def _value_after(*latencies_s: float) -> float:
    return _learned(*latencies_s).value(now=0.0)


# The share


def test_share_is_one_before_the_first_live_request():
    assert BackgroundShare(LIMIT_S).value(now=0.0) == 1.0


def test_share_begins_at_its_minimum():
    assert _value_after(SLOW_S) == SHARE_MIN
    assert _value_after(FAST_S) == pytest.approx(SHARE_MIN, rel=0.01)


def test_share_doubles_in_199_requests_and_reaches_one_in_1522():
    assert _value_after(*[FAST_S] * 199) == pytest.approx(2 * SHARE_MIN)
    assert _value_after(*[FAST_S] * 1521) < 1.0
    assert _value_after(*[FAST_S] * 1522) == 1.0


def test_request_above_the_limit_halves_the_share():
    assert _value_after(*[FAST_S] * 2000, SLOW_S) == 0.5
    assert _value_after(*[FAST_S] * 2000, SLOW_S, SLOW_S) == 0.25


def test_latency_equal_to_the_limit_keeps_it():
    assert _value_after(*[LIMIT_S] * 2000) == 1.0


def test_equilibrium_exceeds_the_limit_by_the_fraction():
    before = _learned(*[FAST_S] * 800)
    value = before.value(now=0.0)
    rounds = 5
    for latency_s in [*[FAST_S] * round(1 / EXCEEDING - 1), SLOW_S] * rounds:
        before.record(latency_s, now=0.0)
    assert before.value(now=0.0) == pytest.approx(value)


def test_halvings_below_the_minimum_are_remembered_up_to_a_depth():
    """Each of them takes 199 requests to make up for, but not more than 32 of them."""
    assert _value_after(*[SLOW_S] * 3, *[FAST_S] * 597) == pytest.approx(SHARE_MIN)
    assert _value_after(*[SLOW_S] * 3, *[FAST_S] * 796) == pytest.approx(2 * SHARE_MIN)
    assert _value_after(*[SLOW_S] * 5000, *[FAST_S] * 199 * 32) == pytest.approx(SHARE_MIN)
    assert _value_after(*[SLOW_S] * 5000, *[FAST_S] * 199 * 33) == pytest.approx(2 * SHARE_MIN)


def test_share_is_one_without_live_requests_and_kept_for_the_next():
    share = _learned(*[FAST_S] * 2000, SLOW_S)
    assert share.value(now=IDLE_S - TICK_S) == 0.5
    assert share.value(now=IDLE_S) == 1.0
    share.record(SLOW_S, now=2 * IDLE_S)
    assert share.value(now=2 * IDLE_S) == 0.25


def test_current_share_without_any_live_request_is_one():
    assert current_share(SHARE_MIN, -inf, now=0.0) == 1.0


@given(st.lists(st.booleans(), max_size=400))
def test_halvings_above_the_minimum_are_a_fraction_of_the_requests(exceeding):
    """Whatever the order: a halving that takes effect undoes rises."""
    share = BackgroundShare(LIMIT_S)
    halvings = 0
    for slow in exceeding:
        before = share.value(now=0.0)
        share.record(SLOW_S if slow else FAST_S, now=0.0)
        value = share.value(now=0.0)
        assert SHARE_MIN <= value <= 1.0
        halvings += slow and before < 1.0 and value == before / 2 > SHARE_MIN
    assert halvings <= EXCEEDING / (1 - EXCEEDING) * exceeding.count(False)


@given(st.lists(st.integers(0, 300), max_size=12))
def test_share_is_the_product_of_its_steps(gaps):
    """Gaps are numbers of requests below the limit before each one above it."""
    latencies_s = [each for gap in gaps for each in (*[FAST_S] * gap, SLOW_S)]
    exponent = log2(SHARE_MIN)
    for latency_s in latencies_s:
        step = -1 if latency_s > LIMIT_S else EXCEEDING / (1 - EXCEEDING)
        exponent = min(0.0, exponent + step)
    expected = max(SHARE_MIN, 2**exponent) if latencies_s else 1.0
    assert _value_after(*latencies_s) == pytest.approx(expected)


# The budget


def test_full_share_limits_nothing():
    budget = BackgroundBudget()
    assert all(budget.begin(1.0, 1, now=0.0) for _ in range(50))
    assert budget.running == 50
    assert budget.next_s(1.0, 1, now=0.0) == 0.0


def test_request_is_paid_for_before_the_next():
    """A tenth of the time: a call of 1 s every 10 s."""
    budget = BackgroundBudget()
    assert budget.begin(0.1, 1, now=100.0)
    assert not budget.begin(0.1, 1, now=100.5)
    assert budget.next_s(0.1, 1, now=100.5) is None
    budget.end(1.0, now=101.0)
    assert budget.next_s(0.1, 1, now=101.0) == pytest.approx(110.0)
    assert not budget.begin(0.1, 1, now=109.9)
    assert budget.begin(0.1, 1, now=110.0)


def test_pause_saves_nothing_up():
    budget = BackgroundBudget()
    assert budget.begin(0.1, 1, now=0.0)
    budget.end(0.0, now=0.0)
    assert budget.begin(0.1, 1, now=10_000.0)
    budget.end(1.0, now=10_001.0)
    assert not budget.begin(0.1, 1, now=10_001.0)


def test_time_without_a_model_call_is_returned():
    budget = BackgroundBudget()
    budget.begin(0.1, 1, now=0.0)
    budget.end(0.5, now=5.0)
    assert budget.next_s(0.1, 1, now=5.0) == pytest.approx(5.0)
    budget.begin(0.1, 1, now=5.0)
    budget.end(2.0, now=8.0)
    assert budget.next_s(0.1, 1, now=8.0) == pytest.approx(25.0)


def test_slots_are_the_rounded_share_of_the_instances():
    for share, instances, slots in ((0.005, 1, 1), (0.25, 4, 1), (0.26, 4, 2), (0.999, 4, 4), (0.07, 100, 7)):
        budget = BackgroundBudget()
        assert sum(budget.begin(share, instances, now=0.0) for _ in range(10)) == slots


def test_next_time_follows_the_share():
    budget = BackgroundBudget()
    budget.begin(0.01, 1, now=0.0)
    budget.end(1.0, now=1.0)
    assert budget.next_s(0.01, 1, now=1.0) == pytest.approx(100.0)
    assert budget.next_s(0.5, 1, now=1.0) == pytest.approx(2.98)
    assert budget.next_s(1.0, 1, now=1.0) == 1.0


def test_free_slot_waits_for_the_credit_beside_a_running_request():
    """Two slots at a rate of 1.5: both run for 1 s, then one for a second without a second request."""
    budget = BackgroundBudget()
    assert budget.begin(0.75, 2, now=0.0)
    assert budget.begin(0.75, 2, now=0.0)
    budget.end(1.0, now=1.0)
    assert not budget.begin(0.75, 2, now=1.5)
    assert budget.next_s(0.75, 2, now=1.5) == pytest.approx(2.0)
    assert budget.begin(0.75, 2, now=2.0)


def test_requests_that_began_without_a_limit_are_charged_from_the_change_on():
    budget = BackgroundBudget()
    for _ in range(3):
        assert budget.begin(1.0, 1, now=0.0)
    assert not budget.begin(0.5, 1, now=100.0)
    for _ in range(3):
        budget.end(101.0, now=101.0)
    assert budget.running == 0
    assert budget.next_s(0.5, 1, now=101.0) == pytest.approx(106.0)


def test_full_share_forgets_debts():
    budget = BackgroundBudget()
    budget.begin(0.005, 1, now=0.0)
    budget.end(10.0, now=10.0)
    assert budget.begin(1.0, 1, now=10.0)
    budget.end(0.0, now=10.0)
    assert budget.begin(0.005, 1, now=10.0)


def test_earlier_time_of_another_thread_changes_nothing():
    budget = BackgroundBudget()
    budget.begin(0.1, 1, now=10.0)
    assert not budget.begin(0.1, 1, now=5.0)
    budget.end(1.0, now=11.0)
    assert budget.next_s(0.1, 1, now=11.0) == pytest.approx(20.0)


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=60), SHARES)
def test_steady_demand_gets_the_whole_share(calls_s, share):
    budget = BackgroundBudget()
    now = 0.0
    for busy_s in calls_s:
        begins_s = budget.next_s(share, 1, now)
        assert begins_s is not None
        assert begins_s >= now
        now = begins_s
        assert budget.begin(share, 1, now)
        now += busy_s
        budget.end(busy_s, now)
    begins_s = budget.next_s(share, 1, now)
    assert begins_s == pytest.approx(sum(calls_s) / share, rel=0.01, abs=0.1)


@given(st.data(), st.integers(1, 5))
def test_busy_time_keeps_to_the_share(data, instances):
    """From each moment without running requests on, whatever the shares, waits and lengths."""
    budget = BackgroundBudget()
    now = allowed_s = busy_sum_s = longest_s = 0.0
    share = data.draw(SHARES)
    begun_s: list[float] = []
    starts: list[float] = [0.0]
    for _ in range(data.draw(st.integers(1, 60))):
        passed_s = data.draw(st.floats(0.0, 3.0))
        now += passed_s
        allowed_s += share * instances * passed_s
        if begun_s and data.draw(st.booleans()):
            held_s = now - begun_s.pop(data.draw(st.integers(0, len(begun_s) - 1)))
            busy_s = held_s * data.draw(st.sampled_from([0.1, 0.5, 1.0]))
            budget.end(busy_s, now)
            busy_sum_s += busy_s
            longest_s = max(longest_s, held_s)
        else:
            share = data.draw(SHARES)
            while budget.begin(share, instances, now):
                begun_s.append(now)
                assert len(begun_s) <= ceil(share * instances)
        assert budget.running == len(begun_s)
        # Differences, since a limit over all time could hide a burst after a pause.
        assert busy_sum_s - allowed_s <= min(starts) + instances * longest_s + 0.001
        if not begun_s:
            starts.append(busy_sum_s - allowed_s)


@given(st.lists(st.tuples(st.sampled_from([0.01, 0.5, 1.0]), st.floats(0.0, 2.0)), max_size=60), st.data())
def test_changes_of_the_share_keep_the_count_of_running_requests(steps, data):
    budget = BackgroundBudget()
    now, running = 0.0, 0
    for share, passed_s in steps:
        now += passed_s
        if running and data.draw(st.booleans()):
            budget.end(passed_s, now)
            running -= 1
        else:
            begins_s = budget.next_s(share, 2, now)
            begun = budget.begin(share, 2, now)
            assert begun == (begins_s == now)
            running += begun
        assert budget.running == running
    for _ in range(running):
        budget.end(0.0, now)
    budget.next_s(1.0, 2, now)
    assert budget.begin(0.01, 2, now)
