"""What every outbox of notifications must do, as checks that any can be put through.

Each check takes a bench: an empty outbox on a clock that the check moves. It raises AssertionError saying which promise
broke::

    @pytest.mark.parametrize("check", OUTBOX_CHECKS, ids=lambda check: check.__name__)
    def test_my_outbox(check, my_bench):
        check(my_bench)
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace.jobs.delivery import HEALTHY, Again, Dead, Decision, Done, Health
from headrace.jobs.notifier import Notification, WebhookTarget
from headrace.jobs.outbox import Claim, Outbox
from headrace.testing.expect import equal, true

LEASE_MS = 60_000
_MANY = 100
_THREADS = 8
_WAIT_S = 30.0


class OutboxBench(Protocol):
    """An empty outbox, how things get into it, and its time."""

    @property
    def outbox(self) -> Outbox:
        """What is checked."""
        ...

    def add_endpoint(self, target: WebhookTarget) -> None:
        """Make the endpoint known, enabled and in good health."""
        ...

    def put(self, notification: Notification, endpoint_id: str) -> str:
        """Put a delivery in, due now; its id."""
        ...

    def advance(self, ms: int) -> None:
        """Let so much of the outbox's time pass."""
        ...


OutboxCheck = Callable[[OutboxBench], None]


def check_outbox(make: Callable[[], OutboxBench]) -> None:
    """Put an outbox through every check; `make` gives a bench with an empty one each time."""
    for check in OUTBOX_CHECKS:
        check(make())


def check_claiming_once(bench: OutboxBench) -> None:
    """What was put in comes out whole, as attempt 1, to one claimer only."""
    (delivery_id,) = _deliveries(bench, "a")
    (claim,) = _claim(bench)
    equal(claim.delivery_id, delivery_id, "the claimed delivery")
    equal(claim.attempt, 1, "the first attempt's number")
    equal(claim.notification, _notification("a", 0), "the notification")
    equal(claim.target, _target("a"), "the target")
    equal(claim.health, HEALTHY, "the health of a new endpoint")
    equal(_claim(bench), [], "claiming what is claimed")
    equal(_state(bench, delivery_id), "claimed", "the state of what is claimed")


def check_one_per_endpoint(bench: OutboxBench) -> None:
    """An endpoint has one delivery under way, whatever waits for it, and others are not held up by that."""
    first, second, other = _deliveries(bench, "a", "a", "b")
    claims = _claim(bench)
    equal(sorted(c.delivery_id for c in claims), sorted([first, other]), "one delivery each of two endpoints")
    equal(_claim(bench), [], "a second delivery of a busy endpoint")
    _record(bench, _of(claims, first), Done("HTTP 200"))
    equal([c.delivery_id for c in _claim(bench)], [second], "the next delivery of an endpoint")


def check_order_and_limit(bench: OutboxBench) -> None:
    """The longest due come first, and no more than were asked for."""
    ids: list[str] = []
    for endpoint in ("a", "b", "c", "d"):
        ids += _deliveries(bench, endpoint)
        bench.advance(10)
    equal([c.delivery_id for c in bench.outbox.claim(3, LEASE_MS)], ids[:3], "the three longest due")
    equal([c.delivery_id for c in bench.outbox.claim(3, LEASE_MS)], ids[3:], "the rest")


def check_a_lease_that_passes(bench: OutboxBench) -> None:
    """A claim that is never recorded is given again as the next attempt; the old claim writes nothing any more."""
    (delivery_id,) = _deliveries(bench, "a")
    (old,) = _claim(bench)
    bench.advance(LEASE_MS - 1)
    equal(_claim(bench), [], "claiming within the lease")
    bench.advance(1)
    (new,) = _claim(bench)
    equal((new.delivery_id, new.attempt), (delivery_id, 2), "the claim after the lease")
    true(new.fence > old.fence, "the fence did not grow")
    for outcome in (Done("HTTP 200"), Dead("late"), Again(0, "late")):
        true(not bench.outbox.record(old, Decision(outcome, Health(3), "late")), "a late claim was recorded")
    true(not bench.outbox.release(old), "a late claim was given back")
    equal(_state(bench, delivery_id), "claimed", "the state after late records")
    equal(_endpoint(bench, "a"), (HEALTHY, ""), "the endpoint after late records")
    _record(bench, new, Done("HTTP 200"))
    true(not bench.outbox.record(new, Decision(Dead("twice"), HEALTHY)), "a claim was recorded twice")
    equal(_state(bench, delivery_id), "delivered", "the state after a second record")


def check_trying_again(bench: OutboxBench) -> None:
    """What shall be tried again is due at its time, and not before; the number of the attempt goes on."""
    (delivery_id,) = _deliveries(bench, "a")
    for attempt in (1, 2, 3):
        (claim,) = _claim(bench)
        equal(
            (claim.attempt, claim.notification.event_id),
            (attempt, _notification("a", 0).event_id),
            "attempt and event id",
        )
        _record(bench, claim, Again(bench.outbox.now_ms() + 5000, "HTTP 500"))
        known = bench.outbox.delivery(delivery_id)
        true(known is not None and (known.state, known.why) == ("waiting", "HTTP 500"), f"record: {known}")
        bench.advance(4999)
        equal(_claim(bench), [], "claiming before the time")
        bench.advance(1)


def check_the_end(bench: OutboxBench) -> None:
    """What is delivered or dead is never claimed again; the dead are listed with the reason, the latest first."""
    done, dead, later = _deliveries(bench, "a", "b", "c")
    claims = _claim(bench)
    _record(bench, _of(claims, done), Done("HTTP 204"))
    _record(bench, _of(claims, dead), Dead("refused"))
    bench.advance(1000)
    _record(bench, _of(claims, later), Dead("given up"))
    bench.advance(10 * LEASE_MS)
    equal(_claim(bench), [], "claiming what has ended")
    equal(bench.outbox.next_due_at_ms(), None, "when the next is due")
    letters = [(r.delivery_id, r.why, r.attempts) for r in bench.outbox.dead_letters(10)]
    equal(letters, [(later, "given up", 1), (dead, "refused", 1)], "dead letters")
    equal(len(bench.outbox.dead_letters(1)), 1, "dead letters with a limit")
    equal((_state(bench, done), _state(bench, dead)), ("delivered", "dead"), "the states")


def check_health(bench: OutboxBench) -> None:
    """Health comes back with the endpoint's next claim; one that rests gives nothing, and holds nobody up."""
    resting, other = "a", "b"
    _deliveries(bench, resting, resting)
    (claim,) = _claim(bench)
    health = Health(5, bench.outbox.now_ms(), bench.outbox.now_ms() + 30_000)
    _record(bench, claim, Dead("HTTP 500"), health)
    _deliveries(bench, other)
    equal([c.target.endpoint_id for c in _claim(bench)], [other], "claiming while an endpoint rests")
    bench.advance(30_000)
    (claim,) = _claim(bench)
    equal(claim.health, health, "the health after a failure")
    _record(bench, claim, Done("HTTP 200"))
    equal(_endpoint(bench, resting), (HEALTHY, ""), "the health after a delivery")


def check_disabling(bench: OutboxBench) -> None:
    """A disabled endpoint gives nothing and loses nothing; enabled again, it delivers what has waited."""
    outbox = bench.outbox
    first, second = _deliveries(bench, "a", "a")
    (claim,) = _claim(bench)
    true(
        outbox.record(claim, Decision(Dead("HTTP 410"), Health(1, 1, 0), "HTTP 410")), "nothing was recorded"
    )
    equal(_endpoint(bench, "a")[1], "HTTP 410", "why the endpoint is disabled")
    bench.advance(10 * LEASE_MS)
    equal(_claim(bench), [], "claiming of a disabled endpoint")
    equal(outbox.next_due_at_ms(), None, "when a disabled endpoint is due")
    equal(_state(bench, second), "waiting", "what waits at a disabled endpoint")
    true(outbox.enable("a"), "enabling a known endpoint")
    equal(_endpoint(bench, "a"), (HEALTHY, ""), "an endpoint that was enabled")
    equal([c.delivery_id for c in _claim(bench)], [second], "what had waited")
    true(outbox.disable("a", "by hand"), "disabling a known endpoint")
    equal(_endpoint(bench, "a")[1], "by hand", "why the endpoint is disabled by hand")
    equal(_state(bench, first), "dead", "what was given up")
    true(not outbox.enable("z"), "enabling what is not there")
    true(not outbox.disable("z", "?"), "disabling what is not there")


def check_redelivering(bench: OutboxBench) -> None:
    """By hand, what is dead or delivered is due again under its ids, as attempt 1; what is claimed is left alone."""
    dead, done = _deliveries(bench, "a", "b")
    claims = _claim(bench)
    true(not bench.outbox.redeliver(dead), "redelivering what is claimed")
    _record(bench, _of(claims, dead), Dead("given up"))
    _record(bench, _of(claims, done), Done("HTTP 200"))
    equal(_claim(bench), [], "claiming what has ended")
    for delivery_id in (dead, done):
        before = _of(claims, delivery_id)
        true(bench.outbox.redeliver(delivery_id), "redelivering what has ended")
        (again,) = _claim(bench)
        equal((again.delivery_id, again.attempt), (delivery_id, 1), "the claim after redelivering")
        equal(again.notification, before.notification, "the notification after redelivering")
        true(again.fence > before.fence, "the fence did not grow")
    true(not bench.outbox.redeliver("no such delivery"), "redelivering what is not there")


def check_redelivering_what_waits(bench: OutboxBench) -> None:
    """What waits for its next attempt is due at once, and its endpoint rests no more; a disabled one stays so."""
    (delivery_id,) = _deliveries(bench, "a")
    (claim,) = _claim(bench)
    now_ms = bench.outbox.now_ms()
    _record(bench, claim, Again(now_ms + 10**9, "HTTP 500"), Health(5, now_ms, now_ms + 10**9))
    true(bench.outbox.redeliver(delivery_id), "redelivering what waits")
    (claim,) = _claim(bench)
    equal((claim.attempt, claim.health), (1, Health(5, now_ms, 0)), "the claim after redelivering")
    _record(bench, claim, Dead("HTTP 410"))
    bench.outbox.disable("a", "HTTP 410")
    true(bench.outbox.redeliver(delivery_id), "redelivering at a disabled endpoint")
    equal(_claim(bench), [], "claiming of a disabled endpoint after redelivering")


def check_release(bench: OutboxBench) -> None:
    """What is given back is due at once, and was no attempt."""
    _deliveries(bench, "a")
    (claim,) = _claim(bench)
    true(bench.outbox.release(claim), "giving a claim back")
    (again,) = _claim(bench)
    equal(again.attempt, 1, "the attempt after giving back")
    true(again.fence > claim.fence, "the fence did not grow")
    true(not bench.outbox.record(claim, Decision(Done("HTTP 200"), HEALTHY)), "a returned claim was recorded")


def check_next_due(bench: OutboxBench) -> None:
    """When there will be something to claim: now, at the end of a wait, a lease or a rest; None when nothing waits."""
    outbox = bench.outbox
    equal(outbox.next_due_at_ms(), None, "an empty outbox")
    _deliveries(bench, "a")
    due = outbox.next_due_at_ms()
    true(due is not None and due <= outbox.now_ms(), f"what is due is due at {due}")
    (claim,) = _claim(bench)
    equal(outbox.next_due_at_ms(), outbox.now_ms() + LEASE_MS, "while it is claimed")
    at_ms = outbox.now_ms() + 5000
    _record(bench, claim, Again(at_ms, "HTTP 500"))
    equal(outbox.next_due_at_ms(), at_ms, "while it waits")
    bench.advance(5000)
    (claim,) = _claim(bench)
    now_ms = outbox.now_ms()
    _record(bench, claim, Again(now_ms + 5000, "HTTP 503"), Health(5, now_ms, now_ms + 9000))
    equal(outbox.next_due_at_ms(), now_ms + 9000, "while its endpoint rests")


def check_many_claimers(bench: OutboxBench) -> None:
    """Threads that claim at once never get the same delivery, nor two of one endpoint."""
    endpoints = [f"e{number}" for number in range(_MANY // 4)]
    _deliveries(bench, *(endpoints * 4))
    line = threading.Barrier(_THREADS)

    def claim(_: int) -> list[Claim]:
        line.wait(_WAIT_S)
        return list(bench.outbox.claim(7, LEASE_MS))

    with ThreadPoolExecutor(_THREADS) as pool:
        claims = [c for found in pool.map(claim, range(_THREADS)) for c in found]
    # Whoever came at the same time as others may have been given less; nobody may be given what is another's.
    claims += _claim(bench)
    names = [c.target.endpoint_id for c in claims]
    equal(sorted(names), sorted(endpoints), "the endpoints that were claimed")
    for one in claims:
        _record(bench, one, Done("HTTP 200"))
    equal(len(_claim(bench)), len(endpoints), "the next delivery of each")


OUTBOX_CHECKS: tuple[OutboxCheck, ...] = (
    check_claiming_once,
    check_one_per_endpoint,
    check_order_and_limit,
    check_a_lease_that_passes,
    check_trying_again,
    check_the_end,
    check_health,
    check_disabling,
    check_redelivering,
    check_redelivering_what_waits,
    check_release,
    check_next_due,
    check_many_claimers,
)
"""Every check of an outbox."""


def _target(endpoint_id: str) -> WebhookTarget:
    return WebhookTarget(endpoint_id, f"https://{endpoint_id}.example/hook", ("whsec_" + "c2VjcmV0" * 4,))


def _notification(endpoint_id: str, number: int) -> Notification:
    data = {"output_uri": f"s3://b/{number}", "nested": {"n": [1, 2.5, None, "ü"]}}
    return Notification(
        f"evt_{endpoint_id}_{number}", "job.completed", f"job-{number}", 1_700_000_000_123, data
    )


def _deliveries(bench: OutboxBench, *endpoint_ids: str) -> list[str]:
    """One delivery an endpoint's mention; endpoints not known yet are made known."""
    ids: list[str] = []
    for number, endpoint_id in enumerate(endpoint_ids):
        if bench.outbox.endpoint(endpoint_id) is None:
            bench.add_endpoint(_target(endpoint_id))
        ids.append(bench.put(_notification(endpoint_id, number), endpoint_id))
        bench.advance(1)
    return ids


def _claim(bench: OutboxBench) -> list[Claim]:
    return list(bench.outbox.claim(_MANY, LEASE_MS))


def _of(claims: Sequence[Claim], delivery_id: str) -> Claim:
    return next(c for c in claims if c.delivery_id == delivery_id)


def _record(bench: OutboxBench, claim: Claim, outcome: Done | Again | Dead, health: Health = HEALTHY) -> None:
    true(
        bench.outbox.record(claim, Decision(outcome, health)), f"{outcome} of a valid claim was not recorded"
    )


def _state(bench: OutboxBench, delivery_id: str) -> str | None:
    known = bench.outbox.delivery(delivery_id)
    return known.state if known else None


def _endpoint(bench: OutboxBench, endpoint_id: str) -> tuple[Health, str]:
    known = bench.outbox.endpoint(endpoint_id)
    if known is None:
        raise AssertionError(f"endpoint {endpoint_id} is not known")
    return known.health, known.disabled_why
