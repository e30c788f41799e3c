"""The reference outbox in memory, for the conformance suite and the tests of the deliverer."""

import threading
from dataclasses import dataclass, field, replace

from headrace.jobs.notify.delivery import (
    HEALTHY,
    Claim,
    DeliveryCounts,
    DeliveryDecision,
    DeliveryRecord,
    Done,
    ReceiverRecord,
    RetryDelivery,
)
from headrace.testing import ManualClock


@dataclass
class _Delivery:
    notification: object
    receiver_id: str
    record: DeliveryRecord
    fence: int = 0
    lease_until_at_ms: int = 0
    ended_at_ms: int = 0


@dataclass
class MemoryOutbox:
    """An outbox in memory on a manual clock."""

    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self):
        self._lock = threading.Condition()
        self._deliveries: dict[str, _Delivery] = {}
        self._receivers: dict[str, ReceiverRecord] = {}
        self._tenants: dict[str, str] = {}
        self._fences = 0
        self.most_claimed = 0
        """The largest number of deliveries claimed at the same time."""
        self.decisions: list[tuple[Claim, DeliveryDecision]] = []

    # Controls of the test

    @property
    def outbox(self):
        return self

    def advance(self, ms):
        self.clock.advance(ms / 1000)

    def add_receiver(self, target, tenant=""):
        with self._lock:
            self._tenants[target.receiver_id] = tenant
            self._receivers[target.receiver_id] = ReceiverRecord(target.receiver_id, target, HEALTHY)

    def put(self, notification, receiver_id):
        with self._lock:
            delivery_id = f"dlv_{len(self._deliveries)}"
            record = DeliveryRecord(
                delivery_id,
                receiver_id,
                notification.event_id,
                "waiting",
                0,
                self.now_ms(),
                job_id=notification.job_id,
                type=notification.type,
                at_ms=notification.at_ms,
            )
            self._deliveries[delivery_id] = _Delivery(notification, receiver_id, record)
            return delivery_id

    def wait_for_decisions(self, count, timeout_s=20.0):
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.decisions) >= count, timeout_s), self.decisions
            return self.decisions[:count]

    # The contract of an outbox

    def now_ms(self):
        return round(self.clock.now() * 1000)

    def _claimable_at_ms(self, d):
        """Return the time from which the delivery may be claimed, None if it cannot be."""
        receiver = self._receivers[d.receiver_id]
        if d.record.state in {"delivered", "dead"} or receiver.disabled_why:
            return None
        busy = [
            other.lease_until_at_ms
            for other in self._deliveries.values()
            if other.receiver_id == d.receiver_id and other.record.state == "claimed"
        ]
        return max([d.record.due_at_ms, receiver.health.rests_until_at_ms, *busy])

    def _next_claimable(self, now_ms):
        """Return the oldest due delivery of the tenant with the fewest claimed ones, None without any."""
        due = [
            d
            for d in self._deliveries.values()
            if (at_ms := self._claimable_at_ms(d)) is not None and at_ms <= now_ms
        ]
        return min(due, key=lambda d: (self._claimed_of(d, now_ms), d.record.due_at_ms), default=None)

    def _claimed_of(self, d, now_ms):
        tenant = self._tenants[d.receiver_id]
        return sum(
            other.record.state == "claimed"
            and other.lease_until_at_ms > now_ms
            and self._tenants[other.receiver_id] == tenant
            for other in self._deliveries.values()
        )

    def claim(self, limit, lease_ms):
        with self._lock:
            now_ms, claims = self.now_ms(), []
            while len(claims) < limit and (d := self._next_claimable(now_ms)) is not None:
                self._fences += 1
                d.fence, d.lease_until_at_ms = self._fences, now_ms + lease_ms
                d.record = replace(d.record, state="claimed", attempts=d.record.attempts + 1)
                receiver = self._receivers[d.receiver_id]
                claims.append(
                    Claim(
                        d.record.delivery_id,
                        d.fence,
                        d.record.attempts,
                        d.notification,
                        receiver.target,
                        receiver.health,
                    )
                )
            claimed = sum(d.record.state == "claimed" for d in self._deliveries.values())
            self.most_claimed = max(self.most_claimed, claimed)
            return claims

    def next_due_at_ms(self):
        with self._lock:
            times = [self._claimable_at_ms(d) for d in self._deliveries.values()]
            return min((t for t in times if t is not None), default=None)

    def _claimed(self, claim):
        d = self._deliveries[claim.delivery_id]
        return d if d.fence == claim.fence and d.record.state == "claimed" else None

    def record(self, claim, decision):
        with self._lock:
            d = self._claimed(claim)
            if d is None:
                return False
            match decision.outcome:
                case Done(how):
                    d.record = replace(d.record, state="delivered", why=how)
                case RetryDelivery(at_ms, why):
                    d.record = replace(d.record, state="waiting", due_at_ms=at_ms, why=why)
                case dead:
                    d.record = replace(d.record, state="dead", why=dead.why)
            d.ended_at_ms = self.now_ms()
            receiver = self._receivers[d.receiver_id]
            why = receiver.disabled_why or decision.disable_why
            self._receivers[d.receiver_id] = replace(receiver, health=decision.health, disabled_why=why)
            self.decisions.append((claim, decision))
            self._lock.notify_all()
            return True

    def release(self, claim):
        with self._lock:
            d = self._claimed(claim)
            if d is None:
                return False
            d.record = replace(d.record, state="waiting", attempts=d.record.attempts - 1)
            return True

    def redeliver(self, delivery_id):
        with self._lock:
            d = self._deliveries.get(delivery_id)
            if d is None or d.record.state == "claimed":
                return False
            d.record = replace(d.record, state="waiting", attempts=0, due_at_ms=self.now_ms())
            receiver = self._receivers[d.receiver_id]
            rested = replace(receiver.health, rests_until_at_ms=0)
            self._receivers[d.receiver_id] = replace(receiver, health=rested)
            return True

    def disable(self, receiver_id, why):
        return self._change(receiver_id, disabled_why=why)

    def enable(self, receiver_id):
        return self._change(receiver_id, disabled_why="", health=HEALTHY)

    def _change(self, receiver_id, **changes):
        with self._lock:
            if receiver_id not in self._receivers:
                return False
            self._receivers[receiver_id] = replace(self._receivers[receiver_id], **changes)
            return True

    def counts(self, *, limit):
        with self._lock:
            states = [d.record.state for d in self._deliveries.values()]
            is_open = sum(state in {"waiting", "claimed"} for state in states)
            return DeliveryCounts(min(is_open, limit), min(states.count("dead"), limit))

    def delivery(self, delivery_id):
        with self._lock:
            d = self._deliveries.get(delivery_id)
            return d.record if d else None

    def receiver(self, receiver_id):
        with self._lock:
            return self._receivers.get(receiver_id)

    def failing_receivers(self, limit):
        with self._lock:
            found = [r for _, r in sorted(self._receivers.items()) if r.disabled_why or r.health.failures]
            return found[:limit]

    def deliveries_of(self, job_id):
        with self._lock:
            return [d.record for d in self._deliveries.values() if d.record.job_id == job_id]

    def dead_letters(self, limit):
        with self._lock:
            dead = [d for d in self._deliveries.values() if d.record.state == "dead"]
            return [d.record for d in sorted(dead, key=lambda d: -d.ended_at_ms)[:limit]]
