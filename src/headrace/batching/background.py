"""The share of model time that background work may use beside live traffic, and its pacing.

A *live* request has a client that waits. *Background* requests carry rows of jobs and runs. A model
call cannot be interrupted, so a live request that meets a background call waits for its rest.
`BackgroundShare` learns how often that may happen without breaking the latency limit of a model.
`BackgroundBudget` begins the background requests of one engine so that they keep to the share.

Both are pure: the caller passes `now`, and guards them with its own lock.
"""

from math import ceil
from typing import Final

EXCEEDING: Final = 0.005
"""Fraction of the live requests that may exceed the limit: half of what a p99 allows."""
SHARE_MIN: Final = 0.005
"""The smallest share, so that background work never stops for ever."""
IDLE_S: Final = 60.0
"""Seconds without a live request after which background work has the whole machine."""
_FALL: Final = 0.5
_RISE: Final = 2.0 ** (EXCEEDING / (1.0 - EXCEEDING))
_DEPTH: Final = 32
"""Halvings below `SHARE_MIN` that are remembered."""
_LEARNED_MIN: Final = SHARE_MIN * _FALL**_DEPTH
_ROUNDING_S: Final = 1e-6
"""Model time that counts as none, since sums of times are not exact."""


def current_share(share: float, live_s: float, now: float) -> float:
    """Return a learned share, or 1.0 if the last live request, at `live_s`, is `IDLE_S` ago."""
    return share if now - live_s < IDLE_S else 1.0


class BackgroundShare:
    """The share of background work that a latency limit of live requests leaves, learned from them.

    A stochastic approximation of a quantile (Robbins and Monro, 1951) in the logarithm of the share,
    with steps of constant size, so that the share follows changes. A request above the limit halves the
    share. Any other request multiplies it by ``2 ** (q / (1 - q))``, where q is `EXCEEDING`. In
    equilibrium, rises and falls cancel out. Then a fraction q of the requests exceeds the limit:
    ``(1 - q) * log2(rise) == q * 1``. So the limit is the 99.5th percentile, and the p99 is below it.
    No model of the load or of the calls is needed.

    The share begins at `SHARE_MIN`, because nothing is known yet. A halving undoes earlier rises, so
    that n requests bring at most ``q / (1 - q) * n`` halvings above `SHARE_MIN`, from the first request
    on. A begin at 1.0 would cost up to ``log2(1 / SHARE_MIN)``, eight more requests above the limit. The
    price is time: the share doubles in ``(1 - q) / q``, 199 requests, and reaches 1.0 after 1,522.

    At `SHARE_MIN`, a live request meets a background call with probability 0.005, which is q. One call
    delays several requests in a row. If the learned share stopped at `SHARE_MIN`, most of these halvings
    would have no effect, and 1.1 % of requests would exceed the limit in a simulation, in place of 0.5 %.
    So `_DEPTH` further halvings are remembered. After a time above the limit, `SHARE_MIN` applies for
    up to ``199 * _DEPTH``, 6,368 requests.

    The share cannot keep a limit that live requests exceed without background work. It cannot keep one
    either if each background call delays more than `_DEPTH` requests: calls of many seconds, or a server
    that live requests keep busy for most of the time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._learned = SHARE_MIN
        self.live_s = float("-inf")
        """Time at which the last live request ended."""

    def record(self, latency_s: float, now: float) -> None:
        """Learn from a live request that has ended."""
        self.live_s = now
        if latency_s > self._limit_s:
            self._learned = max(_LEARNED_MIN, self._learned * _FALL)
        else:
            self._learned = min(1.0, self._learned * _RISE)

    def value(self, now: float) -> float:
        """Return the share, from `SHARE_MIN` to 1.0.

        It is 1.0 after `IDLE_S` without a live request. The learned share applies again after the next one.
        """
        return current_share(max(SHARE_MIN, self._learned), self.live_s, now)


class BackgroundBudget:
    """The pacing of background requests in one engine, so that they keep to a share of its time.

    Below a share of 1.0, ``share * instances`` is the rate: seconds of model time that background
    requests may use in each second. At most ``ceil(rate)`` of them run at once. A credit of model time
    grows at the rate and falls by the time for which requests run. It never exceeds 0, so a pause
    saves nothing up. A request may begin at a credit of 0. Over any time below a share of 1.0, background
    requests use at most ``rate * time``, and one request for each slot.

    At a share of 1.0, nothing is limited or charged, and debts are forgotten. Requests that began then
    are charged for their time from the change of the share on. A share is in force until the next one is
    passed.
    """

    def __init__(self) -> None:
        self.running = 0
        """Number of background requests that run."""
        self._rate: float | None = None
        """Seconds of model time for each second; None without a limit."""
        self._credit_s = 0.0
        self._held_s = 0.0
        """Time charged to running requests. While others run, it includes the waits of ended ones."""
        self._updated_s = 0.0

    def begin(self, share: float, instances: int, now: float) -> bool:
        """Return True if a background request may begin now. It counts as running until `end`."""
        self._update(now)
        self._set_rate(share, instances)
        if not self._has_slot() or self._credit_s < -_ROUNDING_S:
            return False
        self.running += 1
        return True

    def end(self, busy_s: float, now: float) -> None:
        """End a background request that used this much model time.

        Until it ends, a request is charged for the time since `begin`. The part without a model call
        is returned when no other request runs.
        """
        self._update(now)
        self.running -= 1
        self._held_s = max(0.0, self._held_s - busy_s)
        if self.running == 0:
            self._credit_s += self._held_s
            self._held_s = 0.0

    def next_s(self, share: float, instances: int, now: float) -> float | None:
        """Return the time at which the next request may begin at the latest, if the share does not fall.

        Return None if a running request must end first. A higher share brings an earlier time.
        """
        self._update(now)
        self._set_rate(share, instances)
        if not self._has_slot():
            return None
        if self._rate is None or self._credit_s >= -_ROUNDING_S:
            return now
        # A free slot means that the rate exceeds the number of running requests.
        return now - self._credit_s / (self._rate - self.running)

    def _has_slot(self) -> bool:
        return self._rate is None or self.running < ceil(self._rate - _ROUNDING_S)

    def _set_rate(self, share: float, instances: int) -> None:
        if share < 1.0:
            self._rate = share * max(1, instances)
        else:
            self._rate = None
            self._credit_s = self._held_s = 0.0

    def _update(self, now: float) -> None:
        # Threads may take the lock in another order than they read the clock.
        passed_s = max(0.0, now - self._updated_s)
        self._updated_s += passed_s
        if self._rate is None:
            return
        self._credit_s = min(0.0, self._credit_s + (self._rate - self.running) * passed_s)
        self._held_s += self.running * passed_s
