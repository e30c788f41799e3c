"""The limit of requests per second of an API key: a token bucket per key, in each server process."""

import threading
from collections.abc import Mapping
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import OverloadedError

_ROUNDING: Final = 1e-6
"""The part of a request that a bucket may lack, so that rounded times refuse no client at its rate."""


class TokenBucket:
    """A limit of `rate_per_s` requests per second, after a burst of one second's worth.

    Within any T seconds, at most ``rate_per_s * T + capacity`` requests pass. The caller passes the
    time, on one clock. Not thread-safe.
    """

    def __init__(self, rate_per_s: float) -> None:
        self.rate_per_s: Final = rate_per_s
        self.capacity: Final = max(1.0, rate_per_s)
        self._tokens = self.capacity
        self._filled_s = float("-inf")

    def take(self, now_s: float) -> float:
        """Let a request pass and return 0; or return the seconds until the next one may pass."""
        if now_s > self._filled_s:
            gained = (now_s - self._filled_s) * self.rate_per_s
            self._tokens = min(self.capacity, self._tokens + gained)
            self._filled_s = now_s
        if self._tokens < 1 - _ROUNDING:
            return (1 - self._tokens) / self.rate_per_s
        # A lacking part is a debt, so that the rate stays exact.
        self._tokens -= 1
        return 0.0


class RequestLimiter:
    """The request limits of keys by name, which are the rates per second. Thread-safe."""

    def __init__(self, rates_per_s: Mapping[str, float], clock: Clock | None = None) -> None:
        self._buckets = {name: TokenBucket(rate) for name, rate in rates_per_s.items()}
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    def admit(self, name: str) -> None:
        """Count a request of a key. Raise OverloadedError if it exceeds the limit of the key.

        Keys without a limit always pass.
        """
        bucket = self._buckets.get(name)
        if bucket is None:
            return
        with self._lock:
            wait_s = bucket.take(self._clock.now())
        if wait_s:
            raise OverloadedError(
                f"API key {name!r} has reached its limit of {bucket.rate_per_s:g} requests per second: "
                f"send the next one in {wait_s:.3f} s",
                retry_after_s=wait_s,
            )
