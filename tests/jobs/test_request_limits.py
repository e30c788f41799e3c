"""The limit of requests per second: the token bucket, and the buckets of keys."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.errors import OverloadedError
from headrace.jobs.access import Access, ApiKey, Scope, hash_key
from headrace.jobs.access.limits import TokenBucket
from headrace.testing import ManualClock

RATES = st.floats(0.001, 10_000)
STARTS = st.floats(0, 1e6)


def passed(bucket: TokenBucket, times_s: Sequence[float]) -> list[float]:
    """Return the times at which requests pass."""
    return [time_s for time_s in times_s if not bucket.take(time_s)]


@given(RATES, STARTS, st.lists(st.floats(0, 3), max_size=60), st.integers(1, 20))
def test_no_window_passes_more_than_its_share(rate_per_s, start_s, pauses, at_once):
    # Pauses are multiples of the time of one request. Several requests come at each time.
    times_s: list[float] = []
    now_s = start_s
    for pause in pauses:
        now_s += pause / rate_per_s
        times_s += [now_s] * at_once
    bucket = TokenBucket(rate_per_s)
    through = passed(bucket, times_s)
    for first, begin_s in enumerate(through):
        for last in range(first, len(through)):
            share = rate_per_s * (through[last] - begin_s) + bucket.capacity
            assert last - first + 1 <= share + 1e-3


@given(RATES, STARTS, st.integers(1, 200))
@example(0.3, 0.1, 10).via("times that are rounded down")
def test_client_at_the_rate_is_never_refused(rate_per_s, start_s, requests):
    times_s = [start_s + number / rate_per_s for number in range(requests)]
    assert passed(TokenBucket(rate_per_s), times_s) == times_s


@given(RATES, STARTS, st.lists(st.floats(0, 2), max_size=60))
def test_request_after_the_stated_wait_passes(rate_per_s, start_s, pauses):
    bucket, now_s = TokenBucket(rate_per_s), start_s
    for pause in pauses:
        now_s += pause / rate_per_s
        if wait_s := bucket.take(now_s):
            assert wait_s <= 1 / rate_per_s * (1 + 1e-9)  # times are rounded
            now_s += wait_s
            assert bucket.take(now_s) == 0


@pytest.mark.parametrize(("rate_per_s", "burst"), [(0.5, 1), (1, 1), (2.5, 2), (100, 100)])
def test_burst_is_the_share_of_one_second_and_at_least_one_request(rate_per_s, burst):
    bucket = TokenBucket(rate_per_s)
    assert len(passed(bucket, [7.0] * 300)) == burst
    # However long the client was silent, it saves no more than one burst.
    assert len(passed(bucket, [1e6] * 300)) == burst


def test_earlier_time_fills_nothing():
    bucket = TokenBucket(1)
    assert passed(bucket, [10.0, 9.0, 10.5, 11.0]) == [10.0, 11.0]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def access(clock):
    keys = (
        ApiKey("web", "shop", frozenset({Scope.READ}), requests_per_s_max=2),
        ApiKey("ops", "shop", frozenset({Scope.READ}), requests_per_s_max=0.1),
        ApiKey("free", "shop", frozenset({Scope.READ})),
    )
    return Access({hash_key(key.name): key for key in keys}, clock=clock)


def test_each_key_has_its_own_limit(access, clock):
    web, ops, free = (access.find(hash_key(name)) for name in ("web", "ops", "free"))
    for key in (web, web, ops, *[free] * 100):
        access.admit(key)
    with pytest.raises(
        OverloadedError, match=r"API key 'web' has reached its limit of 2 requests per second: .* in 0\.500 s"
    ) as caught:
        access.admit(web)
    assert caught.value.retry_after_s == 0.5
    with pytest.raises(OverloadedError, match=r"'ops' .* 0\.1 requests per second") as caught:
        access.admit(ops)
    assert caught.value.retry_after_s == 10
    clock.advance(0.5)
    access.admit(web)
    with pytest.raises(OverloadedError):
        access.admit(ops)


def test_digests_of_one_key_share_its_limit(clock):
    key = ApiKey("web", "shop", frozenset({Scope.READ}), requests_per_s_max=1)
    access = Access({hash_key("old"): key, hash_key("new"): key}, clock=clock)
    access.admit(access.check("Bearer old", Scope.READ))
    with pytest.raises(OverloadedError):
        access.admit(access.check("Bearer new", Scope.READ))
