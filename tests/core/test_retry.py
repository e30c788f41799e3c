"""Delays between retries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.clock import RetryPolicy, retry_after_s


@given(st.integers(1, 10_000), st.floats(1e-6, 1e6), st.floats(0, 1), st.none() | st.floats(0, 1e6))
def test_delay_respects_the_budget_and_the_requested_delay(attempt, left_s, share, requested_s):
    policy = RetryPolicy(first_delay_s=0.1, delay_max_s=5.0)
    delay_s = policy.delay_s(attempt, left_s, share, retry_after_s=requested_s)
    assert 0 <= delay_s <= left_s
    assert delay_s <= max(5.0, requested_s or 0)
    assert delay_s >= min(left_s, requested_s or 0)


def test_delays_double_up_to_the_limit():
    policy = RetryPolicy(first_delay_s=0.1, delay_max_s=1.0)
    delays = [policy.delay_s(n, 100, 1.0) for n in range(1, 7)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert policy.delay_s(3, 100, 0.0) == pytest.approx(0.2)  # at least half of the full delay


def test_no_delay_when_the_budget_is_spent():
    assert RetryPolicy().delay_s(1, 0.0, 0.5) is None
    assert RetryPolicy().delay_s(1, -1.0, 0.5, retry_after_s=9) is None


@for_each(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("Sat, 21 Nov 2026 08:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 07:00:00 GMT", 0.0),
        ("-3", None),
        ("soon", None),
        ("9" * 400, None),
        ("Mon, 01 Jan 0001 00:00:00 -0000", None),
    ],
)
def test_retry_after_as_seconds_or_date(value, seconds):
    assert retry_after_s(value, 1795248000.0) in (seconds, 0.0 if value and "0001" in value else seconds)
