"""The conformance checks of outboxes of notifications.

Each check takes a bench: an empty outbox on a clock that the check moves. It raises AssertionError
with the broken guarantee::

    @pytest.mark.parametrize("check", OUTBOX_CHECKS, ids=lambda check: check.__name__)
    def test_my_outbox(check, my_bench):
        check(my_bench)
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace.jobs.notify import Notification, WebhookTarget
from headrace.jobs.notify.delivery import (
    HEALTHY,
    Claim,
    Dead,
    DeliveryCounts,
    DeliveryDecision,
    Done,
    Outbox,
    ReceiverHealth,
    RetryDelivery,
)
from headrace.testing.expect import equal, true

LEASE_MS = 60_000
_MANY = 100
_THREADS = 8
_WAIT_S = 30.0
_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class OutboxBench(Protocol):
    """An empty outbox with access to its receivers, deliveries and clock."""

    @property
    def outbox(self) -> Outbox:
        """The outbox under test."""
        ...

    def add_receiver(self, target: WebhookTarget, tenant: str = "") -> None:
        """Register the receiver of a tenant ("": of nobody), enabled and healthy."""
        ...

    def put(self, notification: Notification, receiver_id: str) -> str:
        """Add a delivery that is due now, and return its id."""
        ...

    def advance(self, ms: int) -> None:
        """Advance the outbox's time by `ms` milliseconds."""
        ...


OutboxCheck = Callable[[OutboxBench], None]


def check_outbox(make: Callable[[], OutboxBench]) -> None:
    """Run every check on an outbox; `make` returns a bench with an empty outbox each time."""
    for check in OUTBOX_CHECKS:
        check(make())


def check_claim_is_exclusive(bench: OutboxBench) -> None:
    """Check that a claim returns the stored notification, as attempt 1, to one caller only.

    The notification has the trace context that was stored with it.
    """
    (delivery_id,) = _deliveries(bench, "a")
    (claim,) = _claim(bench)
    equal(claim.delivery_id, delivery_id, "the claimed delivery")
    equal(claim.attempt, 1, "the first attempt's number")
    equal(claim.notification, _notification("a", 0), "the notification")
    equal(claim.target, _target("a"), "the target")
    equal(claim.health, HEALTHY, "the health of a new receiver")
    equal(_claim(bench), [], "claiming a claimed delivery")
    equal(_state(bench, delivery_id), "claimed", "the state of a claimed delivery")


def check_one_claim_per_receiver(bench: OutboxBench) -> None:
    """Check that a receiver has at most one claimed delivery.

    It does not delay other receivers.
    """
    first, second, other = _deliveries(bench, "a", "a", "b")
    claims = _claim(bench)
    equal(sorted(c.delivery_id for c in claims), sorted([first, other]), "one delivery each of two receivers")
    equal(_claim(bench), [], "a second delivery of a busy receiver")
    _record(bench, _of(claims, first), Done("HTTP 200"))
    equal([c.delivery_id for c in _claim(bench)], [second], "the next delivery of a receiver")


def check_claim_order_and_limit(bench: OutboxBench) -> None:
    """Check that deliveries are claimed longest due first, up to the limit."""
    ids: list[str] = []
    for receiver in ("a", "b", "c", "d"):
        ids += _deliveries(bench, receiver)
        bench.advance(10)
    equal([c.delivery_id for c in bench.outbox.claim(3, LEASE_MS)], ids[:3], "the three longest due")
    equal([c.delivery_id for c in bench.outbox.claim(3, LEASE_MS)], ids[3:], "the rest")


def check_tenants_take_turns(bench: OutboxBench) -> None:
    """Check that many deliveries of one tenant delay no other tenant."""
    for receiver in ("a1", "a2", "a3", "a4", "b1", "b2"):
        bench.add_receiver(_target(receiver), tenant=receiver[0])
    busy = _deliveries(bench, "a1", "a2", "a3", "a4")
    (first,) = _deliveries(bench, "b1")
    claims = bench.outbox.claim(2, LEASE_MS)
    equal([c.delivery_id for c in claims], [busy[0], first], "one delivery of each tenant")
    (more,) = bench.outbox.claim(1, LEASE_MS)
    equal(more.delivery_id, busy[1], "the next delivery while no other tenant has one")
    (second,) = _deliveries(bench, "b2")
    (next_one,) = bench.outbox.claim(1, LEASE_MS)
    equal(next_one.delivery_id, second, "a delivery of the tenant with fewer claimed ones, before older ones")


def check_expired_lease(bench: OutboxBench) -> None:
    """Check that an expired claim is claimed again as the next attempt.

    The old claim writes nothing.
    """
    (delivery_id,) = _deliveries(bench, "a")
    (old,) = _claim(bench)
    bench.advance(LEASE_MS - 1)
    equal(_claim(bench), [], "claiming within the lease")
    bench.advance(1)
    (new,) = _claim(bench)
    equal((new.delivery_id, new.attempt), (delivery_id, 2), "the claim after the lease")
    true(new.fence > old.fence, "the fence did not grow")
    for outcome in (Done("HTTP 200"), Dead("late"), RetryDelivery(0, "late")):
        true(
            not bench.outbox.record(old, DeliveryDecision(outcome, ReceiverHealth(3), "late")),
            "a late claim was recorded",
        )
    true(not bench.outbox.release(old), "a late claim was released")
    equal(_state(bench, delivery_id), "claimed", "the state after late records")
    equal(_receiver(bench, "a"), (HEALTHY, ""), "the receiver after late records")
    _record(bench, new, Done("HTTP 200"))
    true(not bench.outbox.record(new, DeliveryDecision(Dead("twice"), HEALTHY)), "a claim was recorded twice")
    equal(_state(bench, delivery_id), "delivered", "the state after a second record")


def check_retry(bench: OutboxBench) -> None:
    """Check that a retried delivery is due exactly at its time, and its attempts are counted on."""
    (delivery_id,) = _deliveries(bench, "a")
    for attempt in (1, 2, 3):
        (claim,) = _claim(bench)
        equal(
            (claim.attempt, claim.notification.event_id),
            (attempt, _notification("a", 0).event_id),
            "attempt and event id",
        )
        _record(bench, claim, RetryDelivery(bench.outbox.now_ms() + 5000, "HTTP 500"))
        known = bench.outbox.delivery(delivery_id)
        true(known is not None and (known.state, known.why) == ("waiting", "HTTP 500"), f"record: {known}")
        bench.advance(4999)
        equal(_claim(bench), [], "claiming before the time")
        bench.advance(1)


def check_ended_deliveries(bench: OutboxBench) -> None:
    """Check that delivered and dead deliveries are never claimed again.

    Dead ones are listed with the reason, latest first.
    """
    done, dead, later = _deliveries(bench, "a", "b", "c")
    claims = _claim(bench)
    _record(bench, _of(claims, done), Done("HTTP 204"))
    _record(bench, _of(claims, dead), Dead("refused"))
    bench.advance(1000)
    _record(bench, _of(claims, later), Dead("given up"))
    bench.advance(10 * LEASE_MS)
    equal(_claim(bench), [], "claiming ended deliveries")
    equal(bench.outbox.next_due_at_ms(), None, "next_due_at_ms")
    letters = [(r.delivery_id, r.why, r.attempts) for r in bench.outbox.dead_letters(10)]
    equal(letters, [(later, "given up", 1), (dead, "refused", 1)], "dead letters")
    equal(len(bench.outbox.dead_letters(1)), 1, "dead letters with a limit")
    equal((_state(bench, done), _state(bench, dead)), ("delivered", "dead"), "the states")
    (record,) = bench.outbox.dead_letters(1)
    sent = _of(claims, later).notification
    equal((record.job_id, record.type, record.at_ms), (sent.job_id, sent.type, sent.at_ms), "its event")
    of_job = {r.delivery_id for r in bench.outbox.deliveries_of(sent.job_id)}
    true(later in of_job, "the deliveries of its job do not contain it")
    equal(list(bench.outbox.deliveries_of("another job")), [], "the deliveries of another job")


def check_receiver_health(bench: OutboxBench) -> None:
    """Check that the recorded health is returned with the receiver's next claim.

    A resting receiver is skipped.
    """
    resting, other = "a", "b"
    _deliveries(bench, resting, resting)
    (claim,) = _claim(bench)
    health = ReceiverHealth(5, bench.outbox.now_ms(), bench.outbox.now_ms() + 30_000)
    _record(bench, claim, Dead("HTTP 500"), health)
    _deliveries(bench, other)
    equal([c.target.receiver_id for c in _claim(bench)], [other], "claiming while a receiver rests")
    bench.advance(30_000)
    (claim,) = _claim(bench)
    equal(claim.health, health, "the health after a failure")
    _record(bench, claim, Done("HTTP 200"))
    equal(_receiver(bench, resting), (HEALTHY, ""), "the health after a delivery")


def check_disabling(bench: OutboxBench) -> None:
    """Check that a disabled receiver is skipped and keeps its deliveries.

    They are delivered once it is enabled.
    """
    outbox = bench.outbox
    first, second = _deliveries(bench, "a", "a")
    (claim,) = _claim(bench)
    true(
        outbox.record(claim, DeliveryDecision(Dead("HTTP 410"), ReceiverHealth(1, 1, 0), "HTTP 410")),
        "nothing was recorded",
    )
    equal(_receiver(bench, "a")[1], "HTTP 410", "the reason of the disabled receiver")
    bench.advance(10 * LEASE_MS)
    equal(_claim(bench), [], "claiming of a disabled receiver")
    equal(outbox.next_due_at_ms(), None, "next_due_at_ms of a disabled receiver")
    equal(_state(bench, second), "waiting", "the state of a delivery to a disabled receiver")
    true(outbox.enable("a"), "enabling a known receiver")
    equal(_receiver(bench, "a"), (HEALTHY, ""), "an enabled receiver")
    equal([c.delivery_id for c in _claim(bench)], [second], "the waiting delivery")
    true(outbox.disable("a", "by hand"), "disabling a known receiver")
    equal(_receiver(bench, "a")[1], "by hand", "the reason of a manual disabling")
    failing = [record.receiver_id for record in outbox.failing_receivers(10)]
    equal(failing, ["a"], "the failing receivers")
    equal(list(outbox.failing_receivers(0)), [], "no failing receivers")
    equal(_state(bench, first), "dead", "the dead delivery")
    true(not outbox.enable("z"), "enabling an unknown receiver")
    true(not outbox.disable("z", "?"), "disabling an unknown receiver")


def check_redelivering(bench: OutboxBench) -> None:
    """Check that a manual redelivery is due at once under its ids, as attempt 1.

    A claimed delivery is left alone.
    """
    dead, done = _deliveries(bench, "a", "b")
    claims = _claim(bench)
    true(not bench.outbox.redeliver(dead), "redelivering a claimed delivery")
    _record(bench, _of(claims, dead), Dead("given up"))
    _record(bench, _of(claims, done), Done("HTTP 200"))
    equal(_claim(bench), [], "claiming ended deliveries")
    for delivery_id in (dead, done):
        before = _of(claims, delivery_id)
        true(bench.outbox.redeliver(delivery_id), "redelivering an ended delivery")
        (again,) = _claim(bench)
        equal((again.delivery_id, again.attempt), (delivery_id, 1), "the claim after redelivering")
        equal(again.notification, before.notification, "the notification after redelivering")
        true(again.fence > before.fence, "the fence did not grow")
    true(not bench.outbox.redeliver("no such delivery"), "redelivering an unknown delivery")


def check_redelivering_waiting_delivery(bench: OutboxBench) -> None:
    """Check that a redelivered waiting delivery is due at once, and its receiver stops resting.

    A disabled receiver stays disabled.
    """
    (delivery_id,) = _deliveries(bench, "a")
    (claim,) = _claim(bench)
    now_ms = bench.outbox.now_ms()
    _record(
        bench, claim, RetryDelivery(now_ms + 10**9, "HTTP 500"), ReceiverHealth(5, now_ms, now_ms + 10**9)
    )
    true(bench.outbox.redeliver(delivery_id), "redelivering a waiting delivery")
    (claim,) = _claim(bench)
    equal((claim.attempt, claim.health), (1, ReceiverHealth(5, now_ms, 0)), "the claim after redelivering")
    _record(bench, claim, Dead("HTTP 410"))
    bench.outbox.disable("a", "HTTP 410")
    true(bench.outbox.redeliver(delivery_id), "redelivering at a disabled receiver")
    equal(_claim(bench), [], "claiming of a disabled receiver after redelivering")


def check_release(bench: OutboxBench) -> None:
    """Check that a released claim is due at once and does not count as an attempt."""
    _deliveries(bench, "a")
    (claim,) = _claim(bench)
    true(bench.outbox.release(claim), "releasing a claim")
    (again,) = _claim(bench)
    equal(again.attempt, 1, "the attempt after a release")
    true(again.fence > claim.fence, "the fence did not grow")
    true(
        not bench.outbox.record(claim, DeliveryDecision(Done("HTTP 200"), HEALTHY)),
        "a returned claim was recorded",
    )


def check_next_due(bench: OutboxBench) -> None:
    """Check that `next_due_at_ms` is the end of the wait, the lease or the rest.

    It is None if nothing waits.
    """
    outbox = bench.outbox
    equal(outbox.next_due_at_ms(), None, "an empty outbox")
    _deliveries(bench, "a")
    due = outbox.next_due_at_ms()
    true(due is not None and due <= outbox.now_ms(), f"the due time of a due delivery is {due}")
    (claim,) = _claim(bench)
    equal(outbox.next_due_at_ms(), outbox.now_ms() + LEASE_MS, "while it is claimed")
    at_ms = outbox.now_ms() + 5000
    _record(bench, claim, RetryDelivery(at_ms, "HTTP 500"))
    equal(outbox.next_due_at_ms(), at_ms, "while it waits")
    bench.advance(5000)
    (claim,) = _claim(bench)
    now_ms = outbox.now_ms()
    _record(bench, claim, RetryDelivery(now_ms + 5000, "HTTP 503"), ReceiverHealth(5, now_ms, now_ms + 9000))
    equal(outbox.next_due_at_ms(), now_ms + 9000, "while its receiver rests")


def check_concurrent_claims(bench: OutboxBench) -> None:
    """Check that concurrent claims never return the same delivery or two of one receiver."""
    receivers = [f"e{number}" for number in range(_MANY // 4)]
    _deliveries(bench, *(receivers * 4))
    barrier = threading.Barrier(_THREADS)

    def claim(_: int) -> list[Claim]:
        barrier.wait(_WAIT_S)
        return list(bench.outbox.claim(7, LEASE_MS))

    with ThreadPoolExecutor(_THREADS) as pool:
        claims = [c for found in pool.map(claim, range(_THREADS)) for c in found]
    # A concurrent claim may return fewer deliveries than are due: claim the rest now.
    claims += _claim(bench)
    names = [c.target.receiver_id for c in claims]
    equal(sorted(names), sorted(receivers), "the claimed receivers")
    for one in claims:
        _record(bench, one, Done("HTTP 200"))
    equal(len(_claim(bench)), len(receivers), "the next delivery of each")


def check_delivery_counts(bench: OutboxBench) -> None:
    """Check that open and dead deliveries are counted up to the limit, and delivered ones are not."""
    equal(bench.outbox.counts(limit=9), DeliveryCounts(), "the counts of an empty outbox")
    ids = _deliveries(bench, "a", "b", "c", "d", "d")
    claims = _claim(bench)
    _record(bench, _of(claims, ids[0]), Done("200"))
    _record(bench, _of(claims, ids[1]), Dead("410"))
    _record(bench, _of(claims, ids[2]), Dead("410"))
    equal(bench.outbox.counts(limit=9), DeliveryCounts(2, 2), "the counts of a claim, and of one that waits")
    equal(bench.outbox.counts(limit=1), DeliveryCounts(1, 1), "the counts up to 1")
    bench.outbox.redeliver(ids[1])
    equal(bench.outbox.counts(limit=9), DeliveryCounts(3, 1), "the counts after a redelivery")


OUTBOX_CHECKS: tuple[OutboxCheck, ...] = (
    check_claim_is_exclusive,
    check_one_claim_per_receiver,
    check_claim_order_and_limit,
    check_tenants_take_turns,
    check_expired_lease,
    check_retry,
    check_ended_deliveries,
    check_receiver_health,
    check_disabling,
    check_redelivering,
    check_redelivering_waiting_delivery,
    check_release,
    check_next_due,
    check_concurrent_claims,
    check_delivery_counts,
)
"""Every check of an outbox."""


def _target(receiver_id: str) -> WebhookTarget:
    return WebhookTarget(receiver_id, f"https://{receiver_id}.example/hook", ("whsec_" + "c2VjcmV0" * 4,))


def _notification(receiver_id: str, number: int) -> Notification:
    data = {"output_uri": f"s3://b/{number}", "nested": {"n": [1, 2.5, None, "ü"]}}
    return Notification(
        f"evt_{receiver_id}_{number}", "job.completed", f"job-{number}", 1_700_000_000_123, data, _TRACE
    )


def _deliveries(bench: OutboxBench, *receiver_ids: str) -> list[str]:
    """Add one delivery for each id and return their ids. Unknown receivers are registered first."""
    ids: list[str] = []
    for number, receiver_id in enumerate(receiver_ids):
        if bench.outbox.receiver(receiver_id) is None:
            bench.add_receiver(_target(receiver_id))
        ids.append(bench.put(_notification(receiver_id, number), receiver_id))
        bench.advance(1)
    return ids


def _claim(bench: OutboxBench) -> list[Claim]:
    return list(bench.outbox.claim(_MANY, LEASE_MS))


def _of(claims: Sequence[Claim], delivery_id: str) -> Claim:
    return next(c for c in claims if c.delivery_id == delivery_id)


def _record(
    bench: OutboxBench, claim: Claim, outcome: Done | RetryDelivery | Dead, health: ReceiverHealth = HEALTHY
) -> None:
    true(
        bench.outbox.record(claim, DeliveryDecision(outcome, health)),
        f"{outcome} of a valid claim was not recorded",
    )


def _state(bench: OutboxBench, delivery_id: str) -> str | None:
    known = bench.outbox.delivery(delivery_id)
    return known.state if known else None


def _receiver(bench: OutboxBench, receiver_id: str) -> tuple[ReceiverHealth, str]:
    known = bench.outbox.receiver(receiver_id)
    if known is None:
        raise AssertionError(f"receiver {receiver_id} is not known")
    return known.health, known.disabled_why
