"""Decisions after delivery attempts: schedule, jitter, rests and disabled receivers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.notify import Delivered, Disabled, Refused, RetryLater
from headrace.jobs.notify.delivery import (
    HEALTHY,
    SCHEDULE_S,
    Dead,
    DeliveryPolicy,
    Done,
    ReceiverHealth,
    RetryDelivery,
    decide,
)

POLICY = DeliveryPolicy()
NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
FAILED = RetryLater("HTTP 500")


def decided(attempt=1, answer=FAILED, health=HEALTHY, now_ms=NOW_MS, *, share=0.0):
    return decide(attempt, answer, health, now_ms, share=share, policy=POLICY)


def test_schedule_is_the_standards():
    waits_s = [(decided(n).outcome.at_ms - NOW_MS) / 1000 for n in range(1, 10)]
    assert waits_s == [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
    last = decided(10)
    assert isinstance(last.outcome, Dead)
    assert last.outcome.why == "given up after 10 attempts; the last: HTTP 500"
    assert last.disable_why == ""


@given(st.integers(1, len(SCHEDULE_S) - 1), st.floats(0, 1))
def test_jitter_adds_at_most_its_share(attempt, share):
    wait_ms = decided(attempt, share=share).outcome.at_ms - NOW_MS
    planned_ms = SCHEDULE_S[attempt] * 1000
    assert planned_ms <= wait_ms <= planned_ms * 1.1 + 1


def test_delivery_resets_the_health():
    decision = decided(3, Delivered("HTTP 200"), ReceiverHealth(7, NOW_MS - DAY_MS, NOW_MS + 5000))
    assert (decision.outcome, decision.health, decision.disable_why) == (Done("HTTP 200"), HEALTHY, "")


def test_refused_notification_is_dead_and_leaves_the_health():
    health = ReceiverHealth(2, NOW_MS - 5)
    assert decided(1, Refused("too large"), health) == decided(9, Refused("too large"), health)
    assert (decided(1, Refused("x"), health).outcome, decided(1, Refused("x"), health).health) == (
        Dead("x"),
        health,
    )


def test_disabled_result_disables_at_once():
    decision = decided(1, Disabled("HTTP 410"))
    assert (decision.outcome, decision.disable_why) == (Dead("HTTP 410"), "HTTP 410")


@for_each(("after_s", "waits_s"), [(3, 5), (5, 5), (60, 60), (10**9, 86_400), (-5, 5)])
def test_retry_after_is_observed_within_a_day(after_s, waits_s):
    decision = decided(1, RetryLater("HTTP 503", after_s=after_s))
    assert decision.outcome == RetryDelivery(NOW_MS + waits_s * 1000, "HTTP 503")
    # The delay also applies to other deliveries of the receiver.
    assert decision.health.rests_until_at_ms == NOW_MS + min(max(after_s, 0), 86_400) * 1000 or after_s <= 0


def test_throttled_receiver_rests():
    assert decided(1, RetryLater("HTTP 429", throttled=True)).health.rests_until_at_ms == NOW_MS + 30_000
    assert decided(1, FAILED).health.rests_until_at_ms == 0


def test_rest_grows_with_failures_up_to_a_limit():
    health, rests_s = HEALTHY, []
    for _ in range(14):
        health = decided(1, FAILED, health).health
        rests_s.append((health.rests_until_at_ms - NOW_MS) / 1000 if health.rests_until_at_ms else 0)
    assert rests_s == [0, 0, 0, 0, 30, 60, 120, 240, 480, 900, 900, 900, 900, 900]
    assert (health.failures, health.failing_since_at_ms) == (14, NOW_MS)
    assert decided(1, FAILED, ReceiverHealth(10**6, NOW_MS)).health.rests_until_at_ms == NOW_MS + 900_000


def test_five_days_of_failures_disable():
    since = ReceiverHealth(3, NOW_MS)
    assert decided(1, FAILED, since, NOW_MS + 5 * DAY_MS - 1).disable_why == ""
    decision = decided(1, FAILED, since, NOW_MS + 5 * DAY_MS)
    assert decision.disable_why == "nothing but failures for 5.0 days (4 in a row)"
    assert isinstance(decision.outcome, RetryDelivery)


def test_one_delivery_restarts_the_five_days():
    better = decided(1, Delivered("HTTP 200"), ReceiverHealth(3, NOW_MS), NOW_MS + 4 * DAY_MS).health
    worse = decided(1, FAILED, better, NOW_MS + 5 * DAY_MS).health
    assert decided(1, FAILED, worse, NOW_MS + 9 * DAY_MS).disable_why == ""
    assert decided(1, FAILED, worse, NOW_MS + 10 * DAY_MS).disable_why


def test_clock_that_jumps_back_disables_nothing():
    assert decided(1, FAILED, ReceiverHealth(3, NOW_MS), NOW_MS - 600_000).disable_why == ""


@for_each(
    "wrong",
    [
        {"schedule_s": ()},
        {"schedule_s": (0, -1)},
        {"jitter": 2},
        {"rest_after": 0},
        {"rest_s": 0},
        {"disable_after_s": 0},
    ],
)
def test_invalid_policy_is_refused(wrong):
    with pytest.raises(ConfigError):
        DeliveryPolicy(**wrong)
