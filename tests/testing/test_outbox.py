"""The suite for outboxes passes a good one, and notifications each promise that a bad one breaks."""

from dataclasses import replace

import pytest

from headrace.jobs.delivery import HEALTHY
from headrace.testing import OUTBOX_CHECKS, check_outbox
from jobs.memory_outbox import MemoryOutbox


@pytest.mark.parametrize("check", OUTBOX_CHECKS, ids=lambda check: check.__name__)
def test_the_reference_keeps_every_promise(check):
    check(MemoryOutbox())


def test_all_checks_are_run():
    made = []

    def make():
        made.append(MemoryOutbox())
        return made[-1]

    check_outbox(make)
    assert len(made) == len(OUTBOX_CHECKS)


class Unfenced(MemoryOutbox):
    def _held(self, claim):
        return self._deliveries[claim.delivery_id]


class Leaseless(MemoryOutbox):
    def claim(self, limit, lease_ms):
        return super().claim(limit, 10**12)


class Crowding(MemoryOutbox):
    """Several deliveries of one endpoint at a time."""

    def _claimable_at_ms(self, d):
        if d.record.state != "waiting" or self._endpoints[d.endpoint_id].disabled_why:
            return None
        return d.record.due_at_ms


class Forgetful(MemoryOutbox):
    def record(self, claim, decision):
        return super().record(claim, replace(decision, health=HEALTHY))


class Unnumbered(MemoryOutbox):
    def claim(self, limit, lease_ms):
        return [replace(c, attempt=1) for c in super().claim(limit, lease_ms)]


class Stubborn(MemoryOutbox):
    def disable(self, endpoint_id, why):
        return endpoint_id in self._endpoints


class Greedy(MemoryOutbox):
    def claim(self, limit, lease_ms):
        return super().claim(limit + 1, lease_ms)


class CountingReturns(MemoryOutbox):
    def release(self, claim):
        released = super().release(claim)
        if released:
            d = self._deliveries[claim.delivery_id]
            d.record = replace(d.record, attempts=d.record.attempts + 1)
        return released


@pytest.mark.parametrize(
    "kind", [Unfenced, Leaseless, Crowding, Forgetful, Unnumbered, Stubborn, Greedy, CountingReturns]
)
def test_what_breaks_a_promise_is_found(kind):
    # With a time limit of its own a check could not hang here: nothing in the suite waits for the outbox.
    with pytest.raises((AssertionError, ValueError)):
        check_outbox(kind)
