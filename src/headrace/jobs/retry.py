"""The retry rules of failed attempts, by cause. Pure: the ledger waits on its own clock.

=============================  ==================================================================
cause                          rule
=============================  ==================================================================
input, cancelled, expired,     no retry: it would fail again
poison
worker_lost, crash, oom,       retry after a delay that doubles, while attempts are left: the job
timeout, model, storage,       may be the reason
defect
unavailable, overloaded,       retry without counting the attempt: the job is not the reason, and
drained                        the outage may be long; the deadline or a cancellation ends it
=============================  ==================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from headrace.core.retry import RetryPolicy
from headrace.jobs.cause import Cause

RETRY_AFTER_MAX_S: Final = 3600.0
"""The longest delay, whatever a server requests."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The delays between attempts that failed of one cause. `counts`: a failed attempt is used up."""

    counts: bool
    first_delay_s: float
    delay_max_s: float

    def delay_ms(self, attempt: int, share: float = 1.0, retry_after_s: float | None = None) -> int:
        """Return the delay before the next attempt; `RetryPolicy.delay_s` defines it.

        An attempt that does not count does not increase the delay.
        """
        policy = RetryPolicy(RETRY_AFTER_MAX_S, self.first_delay_s, self.delay_max_s)
        nth = attempt if self.counts else 1
        delay_s = policy.delay_s(nth, RETRY_AFTER_MAX_S, share, retry_after_s=retry_after_s)
        return ceil((delay_s or 0.0) * 1000)


WORKER_LOST_RULE: Final = RetryRule(counts=True, first_delay_s=1.0, delay_max_s=60.0)
"""The rule after an expired lease, which has taken its time already."""
_CRASHED: Final = RetryRule(counts=True, first_delay_s=5.0, delay_max_s=300.0)
_FAILED: Final = RetryRule(counts=True, first_delay_s=10.0, delay_max_s=600.0)

RULES: Final[Mapping[Cause, RetryRule | None]] = {
    Cause.INPUT: None,
    Cause.CANCELLED: None,
    Cause.EXPIRED: None,
    Cause.POISON: None,
    Cause.WORKER_LOST: WORKER_LOST_RULE,
    Cause.CRASH: _CRASHED,
    Cause.OOM: _CRASHED,
    Cause.TIMEOUT: _FAILED,
    Cause.MODEL: _FAILED,
    Cause.STORAGE: _FAILED,
    Cause.DEFECT: _FAILED,
    Cause.UNAVAILABLE: RetryRule(counts=False, first_delay_s=60.0, delay_max_s=60.0),
    Cause.OVERLOADED: RetryRule(counts=False, first_delay_s=10.0, delay_max_s=10.0),
    Cause.DRAINED: RetryRule(counts=False, first_delay_s=0.0, delay_max_s=0.0),
}
"""The rule of each cause; None: never retry."""


@dataclass(frozen=True, slots=True)
class RetryAttempt:
    """Another attempt in `delay_ms`.

    `counts`: the failed attempt is used up; otherwise it is returned.
    """

    delay_ms: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt. `reason` is worded for the client that submitted the job."""

    reason: str


def decide(
    cause: Cause, attempt: int, attempts_max: int, share: float, retry_after_s: float | None = None
) -> RetryAttempt | GiveUp:
    """Return whether and when a failed attempt is followed by another.

    Args:
        cause: The cause of the failure.
        attempt: Attempts begun so far, including this one, from 1.
        attempts_max: The job's limit of attempts.
        share: The jitter's position from 0 to 1, drawn by the caller: half to all of the delay.
        retry_after_s: A server's requested delay, observed up to `RETRY_AFTER_MAX_S`.
    """
    rule = RULES[cause]
    if rule is None:
        return GiveUp(f"a retry would be pointless ({cause.value})")
    if rule.counts and attempt >= attempts_max:
        return GiveUp(f"attempt {attempt} of {attempts_max} failed ({cause.value})")
    return RetryAttempt(rule.delay_ms(attempt, share, retry_after_s), rule.counts)
