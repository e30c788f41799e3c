"""The suite for outboxes passes the reference and fails each broken outbox."""

from dataclasses import replace

import pytest

from cases import for_each
from headrace.jobs.notify.delivery import HEALTHY
from headrace.testing import OUTBOX_CHECKS, check_outbox
from jobs.memory_outbox import MemoryOutbox


@for_each("check", OUTBOX_CHECKS)
def test_reference_passes(check):
    check(MemoryOutbox())


def test_check_outbox_runs_all_checks():
    opened = []

    def make():
        opened.append(MemoryOutbox())
        return opened[-1]

    check_outbox(make)
    assert len(opened) == len(OUTBOX_CHECKS)


class Unfenced(MemoryOutbox):
    def _claimed(self, claim):
        return self._deliveries[claim.delivery_id]


class Leaseless(MemoryOutbox):
    def claim(self, limit, lease_ms):
        return super().claim(limit, 10**12)


class Crowding(MemoryOutbox):
    """Several claimed deliveries of one receiver at a time."""

    def _claimable_at_ms(self, d):
        if d.record.state != "waiting" or self._receivers[d.receiver_id].disabled_why:
            return None
        return d.record.due_at_ms


class Forgetful(MemoryOutbox):
    def record(self, claim, decision):
        return super().record(claim, replace(decision, health=HEALTHY))


class Unnumbered(MemoryOutbox):
    def claim(self, limit, lease_ms):
        return [replace(c, attempt=1) for c in super().claim(limit, lease_ms)]


class Stubborn(MemoryOutbox):
    def disable(self, receiver_id, why):
        return receiver_id in self._receivers


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


class CountingAll(MemoryOutbox):
    def counts(self, *, limit):
        return super().counts(limit=10**6)


class Untraced(MemoryOutbox):
    def put(self, notification, receiver_id):
        return super().put(replace(notification, trace=""), receiver_id)


class OldestFirst(MemoryOutbox):
    def _claimed_of(self, d, now_ms):
        return 0


@for_each(
    "kind",
    [
        Unfenced,
        OldestFirst,
        Leaseless,
        Crowding,
        Forgetful,
        Unnumbered,
        Stubborn,
        Greedy,
        CountingReturns,
        CountingAll,
        Untraced,
    ],
)
def test_broken_outbox_fails(kind):
    with pytest.raises((AssertionError, ValueError)):
        check_outbox(kind)
