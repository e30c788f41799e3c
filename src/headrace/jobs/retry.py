"""Whether and when a failed attempt is made again, by its cause. Pure: the ledger waits, on its own clock.

=============================  ==================================================================================
cause                          what then
=============================  ==================================================================================
input, cancelled, expired,     never again: it would end as it did
poison
worker_lost, crash, oom,       again after a delay that doubles, until the attempts are used up: it may be the job
timeout, model, storage,       that does this
defect
unavailable, overloaded,       again, and the attempt is not counted: it is not the job's fault, and lasts as long as
drained                        the outage; the job's deadline, or whoever cancels it, ends that
=============================  ==================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from headrace.core.retry import RetryPolicy
from headrace.jobs.cause import Cause

RETRY_AFTER_MAX_S: Final = 3600.0
"""The longest delay, whatever a server asks for."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How attempts that failed of one cause are made again: `counts` says whether such an attempt is used up."""

    counts: bool
    first_delay_s: float
    delay_max_s: float

    def delay_ms(self, attempt: int, share: float = 1.0, retry_after_s: float | None = None) -> int:
        """Until the next attempt; see `RetryPolicy.delay_s`. An attempt that does not count does not make it grow."""
        policy = RetryPolicy(RETRY_AFTER_MAX_S, self.first_delay_s, self.delay_max_s)
        nth = attempt if self.counts else 1
        delay_s = policy.delay_s(nth, RETRY_AFTER_MAX_S, share, retry_after_s=retry_after_s)
        return ceil((delay_s or 0.0) * 1000)


LOST: Final = RetryRule(counts=True, first_delay_s=1.0, delay_max_s=60.0)
"""Once the lease has run out, which has taken its time already."""
_CRASHED: Final = RetryRule(counts=True, first_delay_s=5.0, delay_max_s=300.0)
_FAILED: Final = RetryRule(counts=True, first_delay_s=10.0, delay_max_s=600.0)

RULES: Final[Mapping[Cause, RetryRule | None]] = {
    Cause.INPUT: None,
    Cause.CANCELLED: None,
    Cause.EXPIRED: None,
    Cause.POISON: None,
    Cause.WORKER_LOST: LOST,
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
"""Each cause's rule; None is never again."""


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt in `delay_ms`. `counts`: whether the one that failed is used up (else it is given back)."""

    delay_ms: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No other attempt; `reason` is why, in words fit for whoever submitted the job."""

    reason: str


def decide(
    cause: Cause, attempt: int, attempts_max: int, share: float, retry_after_s: float | None = None
) -> Again | GiveUp:
    """What follows an attempt that failed.

    Args:
        cause: Why it failed.
        attempt: Attempts begun so far, this one included, from 1.
        attempts_max: How many the job has.
        share: Where in the jitter's range (half to all of the delay) to wait, 0 to 1; the caller draws it.
        retry_after_s: What a server asked for; waited at least, up to `RETRY_AFTER_MAX_S`.
    """
    rule = RULES[cause]
    if rule is None:
        return GiveUp(f"another attempt would be no use ({cause.value})")
    if rule.counts and attempt >= attempts_max:
        return GiveUp(f"attempt {attempt} of {attempts_max} failed ({cause.value})")
    return Again(rule.delay_ms(attempt, share, retry_after_s), rule.counts)
