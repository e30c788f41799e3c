"""Retries on a manual clock."""

import logging
import threading

import pytest

from headrace.core.clock import RetryPolicy, TransientFault
from headrace.core.errors import NotFoundError, UnavailableError
from headrace.storage.retry import Retrier
from headrace.testing import ManualClock


def _failing(times: int, error: Exception | None = None):
    failures_left = [times]

    def attempt() -> str:
        if failures_left[0]:
            failures_left[0] -= 1
            raise error or TransientFault("503")
        return "result"

    return attempt


def test_run_returns_after_failures_and_warns_once(caplog):
    clock = ManualClock(auto=True)
    with caplog.at_level(logging.INFO, "headrace.storage"):
        assert Retrier(clock, RetryPolicy(), seed=1).run("s3://b/k", "reading", _failing(4)) == "result"
    assert len(clock.slept_s) == 4
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO", "INFO", "INFO"]
    assert "s3://b/k: reading failed" in caplog.text


def test_same_seed_gives_same_delays():
    clocks = [ManualClock(auto=True) for _ in range(2)]
    for clock in clocks:
        Retrier(clock, RetryPolicy(), seed=7).run("u", "reading", _failing(5))
    assert clocks[0].slept_s == clocks[1].slept_s


def test_permanent_error_is_raised_at_once():
    clock = ManualClock(auto=True)
    with pytest.raises(NotFoundError):
        Retrier(clock, RetryPolicy()).run("u", "reading", _failing(1, NotFoundError("u", "no")))
    assert clock.slept_s == ()


def test_spent_budget_raises_unavailable_with_its_cause():
    clock = ManualClock(auto=True)
    with pytest.raises(UnavailableError, match=r"u: reading still fails after .* 30.0 s: 503") as raised:
        Retrier(clock, RetryPolicy(retry_s=30)).run("u", "reading", _failing(10**9))
    assert clock.now() == pytest.approx(30)
    assert isinstance(raised.value.__cause__, TransientFault)


def test_zero_budget_means_one_attempt():
    with pytest.raises(UnavailableError, match="after 1 attempts"):
        Retrier(ManualClock(auto=True), RetryPolicy(retry_s=0)).run("u", "reading", _failing(1))


def test_progress_resets_the_budget():
    clock = ManualClock(auto=True)
    attempts = Retrier(clock, RetryPolicy(retry_s=10), seed=1).begin("u", "reading")
    for _ in range(100):
        attempts.record_failure(TransientFault("cut"))
        clock.advance(9)
        attempts.record_progress()
    assert clock.now() > 900


def test_wake_event_ends_the_wait():
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
    assert raised == ["u: reading was abandoned after 1 attempts over 0.0 s, on closing: 503"]
