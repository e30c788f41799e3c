"""Deliveries of notifications: the contract of the outbox, and the decision after an attempt.

The outbox survives a crash of the deliverer. A delivery is one notification to one receiver. It is
claimed under a lease and recorded with the claim's fencing number, so that a deliverer with an
expired lease records nothing. Times are the outbox's own, in milliseconds since the epoch.

The decision (`decide`) is pure. A delivery has its schedule of attempts. A receiver has a health
that all its deliveries affect. After several failures in a row it rests for a while, so that an
unavailable receiver costs little. After days of nothing but failures it is disabled until it is
enabled manually.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from headrace.core.errors import ConfigError
from headrace.jobs.notify import Delivered, DeliveryResult, Disabled, Notification, Refused, Target

SCHEDULE_S: Final = (0, 5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
"""Seconds between attempts."""
_DAY_S: Final = 24 * 3600


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """The schedule and limits of deliveries.

    Args:
        schedule_s: Seconds from one attempt to the next; the first entry is for the event itself.
        jitter: The largest share of a delay that is added to it at random.
        retry_after_s_max: The longest delay that a receiver may request.
        disable_after_s: Seconds of failures without one delivery after which a receiver is
            disabled.
        rest_after: Failures in a row after which a receiver rests.
        rest_s: The first rest. It doubles with each further failure, up to `rest_s_max`.
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
                "schedule_s needs at least one entry, no negative ones, and jitter must be from 0 to 1"
            )
        if self.rest_after < 1 or min(self.rest_s, self.disable_after_s, self.retry_after_s_max) <= 0:
            raise ConfigError(
                "rest_after must be at least 1, and rest_s, disable_after_s and retry_after_s_max above 0"
            )


@dataclass(frozen=True, slots=True)
class ReceiverHealth:
    """A receiver's failures in a row, the time of the first, and the end of its rest (0: none)."""

    failures: int = 0
    failing_since_at_ms: int = 0
    rests_until_at_ms: int = 0


HEALTHY: Final = ReceiverHealth()


@dataclass(frozen=True, slots=True)
class Done:
    """The delivery succeeded."""

    how: str


@dataclass(frozen=True, slots=True)
class RetryDelivery:
    """The delivery is retried at `at_ms`."""

    at_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The delivery was given up. It stays as a dead letter until it is redelivered manually."""

    why: str


Outcome = Done | RetryDelivery | Dead


@dataclass(frozen=True, slots=True)
class DeliveryDecision:
    """The delivery's outcome, the receiver's new health, and the reason to disable it ("": none)."""

    outcome: Outcome
    health: ReceiverHealth
    disable_why: str = ""


def decide(
    attempt: int,
    result: DeliveryResult,
    health: ReceiverHealth,
    now_ms: int,
    *,
    share: float,
    policy: DeliveryPolicy,
) -> DeliveryDecision:
    """Return the decision that follows from the result of an attempt.

    Args:
        attempt: The attempt's number, from 1, including attempts ended by a crash.
        result: The notifier's result.
        health: The receiver's health before the attempt.
        now_ms: The outbox's time, since the epoch.
        share: A random number from 0 to 1 for the jitter.
        policy: The schedule and limits.
    """
    if isinstance(result, Delivered):
        return DeliveryDecision(Done(result.how), HEALTHY)
    if isinstance(result, Refused):
        # A refusal says nothing about the receiver: the next notification may succeed.
        return DeliveryDecision(Dead(result.why), health)
    failed = _failed(health, now_ms, policy)
    if isinstance(result, Disabled):
        return DeliveryDecision(Dead(result.why), failed, result.why)
    after_ms = round(min(max(result.after_s or 0.0, 0.0), policy.retry_after_s_max) * 1000)
    if after_ms or result.throttled:
        # The receiver named a delay or is overloaded: that holds for all its deliveries.
        rest_ms = max(after_ms, round(policy.rest_s * 1000) if result.throttled else 0)
        failed = replace(failed, rests_until_at_ms=max(failed.rests_until_at_ms, now_ms + rest_ms))
    disable_why = _hopeless(failed, now_ms, policy)
    if attempt >= len(policy.schedule_s):
        why = f"given up after {attempt} attempts; the last: {result.why}"
        return DeliveryDecision(Dead(why), failed, disable_why)
    wait_ms = max(_wait_ms(policy, attempt, share), after_ms)
    return DeliveryDecision(RetryDelivery(now_ms + wait_ms, result.why), failed, disable_why)


def _failed(health: ReceiverHealth, now_ms: int, policy: DeliveryPolicy) -> ReceiverHealth:
    """Return the health after one more failure."""
    failures = health.failures + 1
    since_at_ms = health.failing_since_at_ms if health.failures else now_ms
    more = failures - policy.rest_after
    if more < 0:
        return ReceiverHealth(failures, since_at_ms)
    # The exponent is bounded, so that a long outage does not compute 2 ** 1000.
    rest_s = min(policy.rest_s * 2 ** min(more, 30), policy.rest_s_max)
    return ReceiverHealth(failures, since_at_ms, now_ms + round(rest_s * 1000))


def _hopeless(health: ReceiverHealth, now_ms: int, policy: DeliveryPolicy) -> str:
    failing_s = (now_ms - health.failing_since_at_ms) / 1000
    if failing_s < policy.disable_after_s:
        return ""
    return f"nothing but failures for {failing_s / _DAY_S:.1f} days ({health.failures} in a row)"


def _wait_ms(policy: DeliveryPolicy, attempts: int, share: float) -> int:
    return round(policy.schedule_s[attempts] * (1 + policy.jitter * share) * 1000)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed delivery.

    `fence` grows with each claim of the delivery. `attempt` counts from 1 and includes this
    attempt, whether or not the earlier ones were recorded. A manual redelivery starts again at 1.
    """

    delivery_id: str
    fence: int
    attempt: int
    notification: Notification
    target: Target
    health: ReceiverHealth


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """The state of a delivery: of the event `type` of a job, which happened at `at_ms`.

    `why` is the last attempt's result, "" before the first. `due_at_ms` is valid in the state
    ``waiting``.
    """

    delivery_id: str
    receiver_id: str
    event_id: str
    state: Literal["waiting", "claimed", "delivered", "dead"]
    attempts: int
    due_at_ms: int
    why: str = ""
    job_id: str = ""
    type: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReceiverRecord:
    """The state of a receiver. `disabled_why` is "" while it is enabled."""

    receiver_id: str
    target: Target
    health: ReceiverHealth
    disabled_why: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """Numbers of deliveries that wait or are being sent, and of those that were given up."""

    open: int = 0
    dead: int = 0


class Outbox(Protocol):
    """Deliveries and their receivers. Safe from any thread and from several processes at once.

    Guarantees, verified by `headrace.testing.check_outbox`: a receiver has at most one claimed
    delivery at a time. Disabled and resting receivers have none. A claim with an expired lease
    counts as an attempt and can be claimed again. Every method may raise HeadraceError if the
    storage is unavailable.
    """

    def now_ms(self) -> int:
        """Return the outbox's time, in milliseconds since the epoch."""
        ...

    def claim(self, limit: int, lease_ms: int) -> Sequence[Claim]:
        """Claim at most `limit` due deliveries for `lease_ms`, one per receiver.

        Those of the tenant with the fewest claimed deliveries come first, and among them the oldest.
        """
        ...

    def next_due_at_ms(self) -> int | None:
        """Return the time at which `claim` can next return a delivery; None if none is waiting.

        The time considers due times, resting receivers and leases. Deliveries to disabled receivers
        are not waiting.
        """
        ...

    def record(self, claim: Claim, decision: DeliveryDecision) -> bool:
        """Record the result of a claim and the receiver's health in one step, and end the claim.

        Return False, and write nothing, if the claim is not the last one of its delivery.
        """
        ...

    def release(self, claim: Claim) -> bool:
        """Return a claim whose attempt never began.

        The delivery is due at once, and the attempt does not count.
        """
        ...

    def redeliver(self, delivery_id: str) -> bool:
        """Make a dead, delivered or waiting delivery due at once, with the whole schedule.

        Its event id stays the same.

        The receiver stops resting; a disabled receiver stays disabled. Return False if the delivery
        does not exist or is claimed.
        """
        ...

    def disable(self, receiver_id: str, why: str) -> bool:
        """Stop deliveries to a receiver; waiting ones stay.

        Return False if the receiver does not exist.
        """
        ...

    def enable(self, receiver_id: str) -> bool:
        """Resume deliveries to a receiver, with reset health.

        Return False if the receiver does not exist.
        """
        ...

    def counts(self, *, limit: int) -> DeliveryCounts:
        """Return the numbers of open and of dead deliveries, each counted up to `limit`."""
        ...

    def delivery(self, delivery_id: str) -> DeliveryRecord | None:
        """Return the state of a delivery, or None if it does not exist."""
        ...

    def receiver(self, receiver_id: str) -> ReceiverRecord | None:
        """Return the state of a receiver, or None if it does not exist."""
        ...

    def failing_receivers(self, limit: int) -> Sequence[ReceiverRecord]:
        """Return the receivers that are disabled, or whose last delivery failed, by id."""
        ...

    def deliveries_of(self, job_id: str) -> Sequence[DeliveryRecord]:
        """Return a job's deliveries, oldest first."""
        ...

    def dead_letters(self, limit: int) -> Sequence[DeliveryRecord]:
        """Return deliveries that were given up, the latest first."""
        ...
