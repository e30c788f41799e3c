"""The contract of the outbox: notifications that wait for delivery.

The outbox survives a crash of the deliverer. A delivery is one notification to one endpoint. It is
claimed under a lease and recorded with the claim's fencing number, so that a deliverer with an
expired lease records nothing. Times are the outbox's own, in milliseconds since the epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.jobs.delivery import DeliveryDecision, EndpointHealth
from headrace.jobs.notifier import Notification, Target


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
    health: EndpointHealth


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """The state of a delivery.

    `why` is the last attempt's result, "" before the first. `due_at_ms` is valid in the state
    ``waiting``.
    """

    delivery_id: str
    endpoint_id: str
    event_id: str
    state: Literal["waiting", "claimed", "delivered", "dead"]
    attempts: int
    due_at_ms: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """The state of an endpoint. `disabled_why` is "" while it is enabled."""

    endpoint_id: str
    target: Target
    health: EndpointHealth
    disabled_why: str = ""


class Outbox(Protocol):
    """Deliveries and their endpoints. Safe from any thread and from several processes at once.

    Guarantees, verified by `headrace.testing.check_outbox`: an endpoint has at most one claimed
    delivery at a time. Disabled and resting endpoints have none. A claim with an expired lease
    counts as an attempt and can be claimed again. Every method may raise HeadraceError if the
    storage is unavailable.
    """

    def now_ms(self) -> int:
        """Return the outbox's time, in milliseconds since the epoch."""
        ...

    def claim(self, limit: int, lease_ms: int) -> Sequence[Claim]:
        """Claim at most `limit` due deliveries for `lease_ms`, one per endpoint, oldest first."""
        ...

    def next_due_at_ms(self) -> int | None:
        """Return the time at which `claim` can next return a delivery; None if none is waiting.

        The time considers due times, resting endpoints and leases. Deliveries to disabled endpoints
        are not waiting.
        """
        ...

    def record(self, claim: Claim, decision: DeliveryDecision) -> bool:
        """Record the result of a claim and the endpoint's health in one step, and end the claim.

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

        The endpoint stops resting; a disabled endpoint stays disabled. Return False if the delivery
        does not exist or is claimed.
        """
        ...

    def disable(self, endpoint_id: str, why: str) -> bool:
        """Stop deliveries to an endpoint; waiting ones stay.

        Return False if the endpoint does not exist.
        """
        ...

    def enable(self, endpoint_id: str) -> bool:
        """Resume deliveries to an endpoint, with reset health.

        Return False if the endpoint does not exist.
        """
        ...

    def delivery(self, delivery_id: str) -> DeliveryRecord | None:
        """Return the state of a delivery, or None if it does not exist."""
        ...

    def endpoint(self, endpoint_id: str) -> EndpointRecord | None:
        """Return the state of an endpoint, or None if it does not exist."""
        ...

    def dead_letters(self, limit: int) -> Sequence[DeliveryRecord]:
        """Return deliveries that were given up, the latest first."""
        ...
