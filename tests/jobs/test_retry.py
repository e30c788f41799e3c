"""Retry decisions: causes that end a job, causes that use up attempts, and delays."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.jobs import state as cause
from headrace.jobs.state import RETRY_AFTER_MAX_S, RULES, Cause, GiveUp, RetryAttempt, decide

NEVER = {Cause.INPUT, Cause.CANCELLED, Cause.EXPIRED, Cause.POISON, Cause.PREREQUISITE}
NOT_COUNTED = {Cause.UNAVAILABLE, Cause.OVERLOADED, Cause.DRAINED, Cause.NO_MODEL}
COUNTED = set(Cause) - NEVER - NOT_COUNTED

causes = st.sampled_from(Cause)
attempts = st.integers(1, 10_000)
shares = st.floats(0, 1)
requested_delays = st.none() | st.floats(allow_nan=False)


def test_every_cause_has_a_rule_and_is_documented():
    assert set(RULES) == set(Cause)
    table = (cause.__doc__ or "").split("\n===")[2]
    listed = re.findall(r"[a-z_]+", " ".join(line[:31] for line in table.splitlines()[1:]))
    never, counted, rest = (
        listed[: len(NEVER)],
        listed[len(NEVER) : -len(NOT_COUNTED)],
        listed[-len(NOT_COUNTED) :],
    )
    assert (set(never), set(counted), set(rest)) == (NEVER, COUNTED, NOT_COUNTED)
    assert len(listed) == len(Cause)


def test_documentation_page_has_every_rule():
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| [^|]+ \| ([^|]+) \| (yes|no|-) \|$", page, re.MULTILINE)
    assert {cause: (after, uses_up) for cause, after, uses_up in rows} == {
        cause.value: _table_cells(rule) for cause, rule in RULES.items()
    }
    assert len(rows) == len(Cause)


def _table_cells(rule):
    if rule is None:
        return "never", "-"
    first, last = f"{rule.first_delay_s:g} s", f"{rule.delay_max_s:g} s"
    return first if first == last else f"{first} to {last}", "yes" if rule.counts else "no"


@given(causes, attempts, attempts, shares, requested_delays)
def test_decision_follows_the_rule(cause, attempt, attempts_max, share, retry_after_s):
    decided = decide(cause, attempt, attempts_max, share, retry_after_s)
    if cause in NEVER or (cause in COUNTED and attempt >= attempts_max):
        assert isinstance(decided, GiveUp)
        assert cause.value in decided.reason
        return
    assert isinstance(decided, RetryAttempt)
    assert decided.counts is (cause in COUNTED)
    # The delay is a whole number of milliseconds. It is at least the requested delay, and at most
    # one hour.
    assert isinstance(decided.delay_ms, int)
    least_s = min(max(retry_after_s or 0.0, 0.0), RETRY_AFTER_MAX_S)
    assert least_s * 1000 <= decided.delay_ms <= RETRY_AFTER_MAX_S * 1000


@given(causes, st.integers(1, 100), shares)
def test_counted_failures_end_the_job(cause, attempts_max, share):
    """Each counted failure uses up one attempt, and a job has `attempts_max` attempts."""
    attempt = 1
    while attempt <= attempts_max:
        decided = decide(cause, attempt, attempts_max, share)
        if isinstance(decided, GiveUp):
            break
        if not decided.counts:
            assert cause in NOT_COUNTED
            return
        attempt += 1
    assert isinstance(decided, GiveUp)
    assert attempt == (1 if cause in NEVER else attempts_max)


@for_each("cause", sorted(COUNTED))
def test_delays_double_up_to_a_limit(cause):
    rule = RULES[cause]
    delays = [decide(cause, attempt, 100, 1.0).delay_ms for attempt in range(1, 12)]
    expected = [min(rule.first_delay_s * 2**n, rule.delay_max_s) * 1000 for n in range(11)]
    assert delays == expected
    assert decide(cause, 1, 100, 0.0).delay_ms == expected[0] / 2


@for_each("cause", sorted(NOT_COUNTED - {Cause.NO_MODEL}))
def test_retries_of_an_outage_keep_their_interval(cause):
    assert decide(cause, 1, 1, 0.5) == decide(cause, 50, 1, 0.5, times=50)


def test_job_that_no_worker_can_load_fails_after_ten_workers():
    delays = [decide(Cause.NO_MODEL, 1, 1, 1.0, times=times).delay_ms for times in range(1, 10)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    for times in (10, 11):
        expected = GiveUp(f"attempts failed {times} times in a row (no_model)")
        assert decide(Cause.NO_MODEL, 1, 100, 0.5, times=times) == expected


def test_drained_attempt_is_retried_at_once():
    assert decide(Cause.DRAINED, 3, 3, 1.0) == RetryAttempt(0, counts=False)


def test_requested_delay_is_observed_within_limits():
    assert decide(Cause.OVERLOADED, 1, 3, 1.0, 42.0).delay_ms == 42_000
    assert decide(Cause.OVERLOADED, 1, 3, 1.0, 1.0).delay_ms == 10_000
    assert decide(Cause.OVERLOADED, 1, 3, 1.0, 1e9).delay_ms == RETRY_AFTER_MAX_S * 1000


def test_reason_names_the_attempts():
    assert decide(Cause.CRASH, 3, 3, 0.5) == GiveUp("attempt 3 of 3 failed (crash)")
    assert decide(Cause.INPUT, 1, 3, 0.5) == GiveUp("a retry would be pointless (input)")
