"""What becomes of a delivery after an attempt: next attempt, done, given up, or the endpoint's end. Pure.

Two clocks run. A delivery has its schedule of attempts; an endpoint has its health, which every delivery to it adds to: after
failures in a row it rests a while, so that a receiver that is down costs little, and after days of nothing but failures it
is disabled until somebody enables it.
"""

from dataclasses import dataclass, replace
from typing import Final

from headrace.core.errors import ConfigError
from headrace.jobs.notifier import Answer, Delivered, Disabled, Refused

SCHEDULE_S: Final = (0, 5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
"""How long each attempt waits after the one before."""
_DAY_S: Final = 24 * 3600


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """How often, how long.

    Args:
        schedule_s: One entry an attempt: seconds after the one before; the first is for the notification itself.
        jitter: Of each wait, this share at most is added.
        retry_after_s_max: The longest wait that a receiver may ask for.
        disable_after_s: An endpoint that has failed for so long, without one delivery in between, is disabled.
        rest_after: So many failures of an endpoint in a row, and it rests.
        rest_s: The first rest; it doubles with each failure more, up to `rest_s_max`.
    """

    schedule_s: tuple[float, ...] = SCHEDULE_S
    jitter: float = 0.1
    retry_after_s_max: float = _DAY_S
    disable_after_s: float = 5 * _DAY_S
    rest_after: int = 5
    rest_s: float = 30.0
    rest_s_max: float = 900.0

    def __post_init__(self) -> None:
        if not self.schedule_s or min(self.schedule_s) < 0 or not 0 <= self.jitter <= 1:
            raise ConfigError(
                "a schedule has an attempt at least, waits of 0 s or more, and a jitter of 0 to 1"
            )
        if self.rest_after < 1 or min(self.rest_s, self.disable_after_s, self.retry_after_s_max) <= 0:
            raise ConfigError("an endpoint rests after 1 failure or more, for more than 0 s")


@dataclass(frozen=True, slots=True)
class Health:
    """What an endpoint has been like: failures in a row, since when, and until when it rests (0: it does not)."""

    failures: int = 0
    failing_since_at_ms: int = 0
    rests_until_at_ms: int = 0


HEALTHY: Final = Health()


@dataclass(frozen=True, slots=True)
class Done:
    """Delivered."""

    how: str


@dataclass(frozen=True, slots=True)
class Again:
    """To be tried at `at_ms`."""

    at_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up: a dead letter, until somebody delivers it again by hand."""

    why: str


Outcome = Done | Again | Dead


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of the delivery, what the endpoint's health is now, and why it is disabled ("": it is not)."""

    outcome: Outcome
    health: Health
    disable_why: str = ""


def decide(
    attempt: int, answer: Answer, health: Health, now_ms: int, *, share: float, policy: DeliveryPolicy
) -> Decision:
    """What follows from an attempt's answer.

    Args:
        attempt: Which one it was, from 1; those that a crash has ended count.
        answer: What the notifier said.
        health: The endpoint's, before.
        now_ms: The outbox's time, since the epoch.
        share: A draw from 0 to 1 for the jitter.
        policy: How often, how long.
    """
    if isinstance(answer, Delivered):
        return Decision(Done(answer.how), HEALTHY)
    if isinstance(answer, Refused):
        # It says nothing about the endpoint: the next notification may be fine.
        return Decision(Dead(answer.why), health)
    failed = _failed(health, now_ms, policy)
    if isinstance(answer, Disabled):
        return Decision(Dead(answer.why), failed, answer.why)
    after_ms = round(min(max(answer.after_s or 0.0, 0.0), policy.retry_after_s_max) * 1000)
    if after_ms or answer.throttled:
        # It has said when, or that it has too much to do: that holds for all that goes there.
        rest_ms = max(after_ms, round(policy.rest_s * 1000) if answer.throttled else 0)
        failed = replace(failed, rests_until_at_ms=max(failed.rests_until_at_ms, now_ms + rest_ms))
    disable_why = _hopeless(failed, now_ms, policy)
    if attempt >= len(policy.schedule_s):
        why = f"given up after {attempt} attempts; the last: {answer.why}"
        return Decision(Dead(why), failed, disable_why)
    wait_ms = max(_wait_ms(policy, attempt, share), after_ms)
    return Decision(Again(now_ms + wait_ms, answer.why), failed, disable_why)


def _failed(health: Health, now_ms: int, policy: DeliveryPolicy) -> Health:
    """The health after one failure more."""
    failures = health.failures + 1
    since_at_ms = health.failing_since_at_ms if health.failures else now_ms
    more = failures - policy.rest_after
    if more < 0:
        return Health(failures, since_at_ms)
    # The exponent is bounded, so that a long outage does not compute 2 ** 1000.
    rest_s = min(policy.rest_s * 2 ** min(more, 30), policy.rest_s_max)
    return Health(failures, since_at_ms, now_ms + round(rest_s * 1000))


def _hopeless(health: Health, now_ms: int, policy: DeliveryPolicy) -> str:
    failing_s = (now_ms - health.failing_since_at_ms) / 1000
    if failing_s < policy.disable_after_s:
        return ""
    return f"nothing but failures for {failing_s / _DAY_S:.1f} days ({health.failures} in a row)"


def _wait_ms(policy: DeliveryPolicy, attempts: int, share: float) -> int:
    return round(policy.schedule_s[attempts] * (1 + policy.jitter * share) * 1000)
