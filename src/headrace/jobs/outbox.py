"""Notifications on their way: the contract of what keeps them until they are delivered.

What is in it survives a crash of whoever delivers. A delivery is one notification to one endpoint. It is claimed under a lease,
and what becomes of it is recorded with the claim's fence: a deliverer that was away too long records nothing. Times are the
outbox's own clock, in milliseconds since the epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.jobs.delivery import Decision, Health
from headrace.jobs.notifier import Notification, Target


@dataclass(frozen=True, slots=True)
class Claim:
    """A delivery in somebody's hands.

    `fence` grows with every claim of the delivery. `attempt` counts from 1, and this one is in it, whether or not the ones
    before were recorded. Delivering again by hand begins at 1 once more.
    """

    delivery_id: str
    fence: int
    attempt: int
    notification: Notification
    target: Target
    health: Health


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """What is known of a delivery. `why` is what the last attempt said, "" before; `due_at_ms` means something while waiting."""

    delivery_id: str
    endpoint_id: str
    event_id: str
    state: Literal["waiting", "claimed", "delivered", "dead"]
    attempts: int
    due_at_ms: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """What is known of an endpoint. `disabled_why` is "" while it is enabled."""

    endpoint_id: str
    target: Target
    health: Health
    disabled_why: str = ""


class Outbox(Protocol):
    """Deliveries and the endpoints that they go to. Safe from any thread, and from several processes at once.

    Guarantees (`headrace.testing.check_outbox` proves them): of one endpoint at most one delivery is claimed at a time, by
    whoever; endpoints that are disabled or rest give nothing; a claim whose lease has passed counts as an attempt, and is
    given to the next who asks. Every verb may raise HeadraceError when what is below cannot be reached.
    """

    def now_ms(self) -> int:
        """The time by which everything here is due."""
        ...

    def claim(self, limit: int, lease_ms: int) -> Sequence[Claim]:
        """Up to `limit` due deliveries, of as many endpoints, the longest due first; nobody else gets them for `lease_ms`."""
        ...

    def next_due_at_ms(self) -> int | None:
        """When `claim` can give something, as far as is known now; None when nothing is waiting.

        Counts what is due, rests and leases; deliveries of disabled endpoints do not wait.
        """
        ...

    def record(self, claim: Claim, decision: Decision) -> bool:
        """Write what became of a claim, and the endpoint's health, in one step, and end the claim.

        False, and nothing is written, when the claim is no longer the last of its delivery.
        """
        ...

    def release(self, claim: Claim) -> bool:
        """Give a claim back whose attempt never began: it is due at once, and the attempt does not count."""
        ...

    def redeliver(self, delivery_id: str) -> bool:
        """Make a dead, delivered or waiting delivery due at once, under the same event id, with the whole schedule before it.

        Its endpoint's rest ends, since somebody means it to be tried now; at a disabled endpoint it waits. False when there is none of that id, or it is claimed just now.
        """
        ...

    def disable(self, endpoint_id: str, why: str) -> bool:
        """Stop delivering there; what waits stays. False when there is no such endpoint."""
        ...

    def enable(self, endpoint_id: str) -> bool:
        """Deliver there again, in good health. False when there is no such endpoint."""
        ...

    def delivery(self, delivery_id: str) -> DeliveryRecord | None:
        """What is known of one; None when there is none."""
        ...

    def endpoint(self, endpoint_id: str) -> EndpointRecord | None:
        """What is known of one; None when there is none."""
        ...

    def dead_letters(self, limit: int) -> Sequence[DeliveryRecord]:
        """Deliveries that were given up, the latest first."""
        ...
