"""When to try again: the pure decision, and the loop on a manual clock."""

import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import NotFoundError, UnavailableError
from headrace.storage.retry import Retrier, RetryPolicy, TransientFault
from headrace.testing import ManualClock

_seconds = st.floats(0, 1e6)


@given(st.integers(1, 10_000), _seconds, st.floats(0, 1), st.none() | _seconds, st.floats(0.1, 1e4))
def test_delays_stay_within_what_is_left_and_end_with_it(attempt, elapsed_s, share, retry_after_s, retry_s):
    delay_s = RetryPolicy(retry_s=retry_s).delay_s(attempt, elapsed_s, share, retry_after_s=retry_after_s)
    if elapsed_s >= retry_s:
        assert delay_s is None
    else:
        assert 0 <= delay_s <= retry_s - elapsed_s


def test_delays_double_up_to_their_longest():
    policy = RetryPolicy(retry_s=1e9, first_delay_s=0.1, delay_max_s=5)
    assert [policy.delay_s(n, 0, 1.0) for n in range(1, 9)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    )
    assert policy.delay_s(5, 0, 0.25) == pytest.approx(0.4)


def test_what_the_server_asks_for_is_waited_within_the_budget():
    policy = RetryPolicy(retry_s=60)
    assert policy.delay_s(1, 0, 0.5, retry_after_s=20) == 20
    assert policy.delay_s(1, 55, 0.5, retry_after_s=20) == 5


def _failing(times: int, error: Exception | None = None):
    left = [times]

    def attempt() -> str:
        if left[0]:
            left[0] -= 1
            raise error or TransientFault("503")
        return "answer"

    return attempt


def test_run_answers_after_failures_and_warns_once(caplog):
    clock = ManualClock(auto=True)
    with caplog.at_level(logging.INFO, "headrace.storage"):
        assert Retrier(clock, RetryPolicy(), seed=1).run("s3://b/k", "reading", _failing(4)) == "answer"
    assert len(clock.slept_s) == 4
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO", "INFO", "INFO"]
    assert "s3://b/k: reading failed" in caplog.text


def test_the_same_seed_waits_the_same():
    clocks = [ManualClock(auto=True) for _ in range(2)]
    for clock in clocks:
        Retrier(clock, RetryPolicy(), seed=7).run("u", "reading", _failing(5))
    assert clocks[0].slept_s == clocks[1].slept_s


def test_what_does_not_pass_is_raised_at_once():
    clock = ManualClock(auto=True)
    with pytest.raises(NotFoundError):
        Retrier(clock, RetryPolicy()).run("u", "reading", _failing(1, NotFoundError("u", "no")))
    assert clock.slept_s == ()


def test_the_budget_ends_in_unavailable_with_its_cause():
    clock = ManualClock(auto=True)
    with pytest.raises(UnavailableError, match=r"u: reading still fails after .* 30.0 s: 503") as raised:
        Retrier(clock, RetryPolicy(retry_s=30)).run("u", "reading", _failing(10**9))
    assert clock.now() == pytest.approx(30)
    assert isinstance(raised.value.__cause__, TransientFault)


def test_no_budget_means_one_attempt():
    with pytest.raises(UnavailableError, match="after 1 attempts"):
        Retrier(ManualClock(auto=True), RetryPolicy(retry_s=0)).run("u", "reading", _failing(1))


def test_progress_gives_the_whole_budget_back():
    clock = ManualClock(auto=True)
    attempts = Retrier(clock, RetryPolicy(retry_s=10), seed=1).begin("u", "reading")
    for _ in range(100):
        attempts.failed(TransientFault("cut"))
        clock.advance(9)
        attempts.progressed()
    assert clock.now() > 900


def test_a_closing_owner_ends_the_wait():
    wake, clock, raised = threading.Event(), ManualClock(), []

    def work():
        try:
            Retrier(clock, RetryPolicy(), wake=wake).run("u", "reading", _failing(10**9))
        except UnavailableError as error:
            raised.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    clock.wait_for_sleepers()
    wake.set()
    thread.join(10)
    assert raised == ["u: reading was given up after 1 attempts over 0.0 s: 503"]
