"""Receivers and deliveries as database rows."""

from cases import for_each
from headrace.jobs.ledgers.outbox import claim_of, delivery_of, dump_target, receiver_of, target_of
from headrace.jobs.notify import EmailTarget, SnsTarget, WebhookTarget

TARGETS = [
    WebhookTarget("w", "https://h.example/", ("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",)),
    WebhookTarget("w", "https://h.example/"),
    SnsTarget("s", "arn:a", "arn:b", frozenset({"success", "error"})),
    EmailTarget("e", ("a@h.example", "b@h.example")),
]


@for_each("target", TARGETS)
def test_target_survives_a_round_trip(target):
    assert target_of(dump_target(target)) == target
    assert hash(target_of(dump_target(target))) == hash(target)


def test_claim_has_notification_target_and_health():
    row = (
        "d",
        3,
        2,
        "evt_1",
        "job.completed",
        "j",
        5,
        '{"state":"completed"}',
        "w",
        dump_target(TARGETS[0]),
        1,
        2,
        3,
    )
    claim = claim_of(row)
    assert (claim.delivery_id, claim.fence, claim.attempt) == ("d", 3, 2)
    assert (claim.notification.event_id, claim.notification.data) == ("evt_1", {"state": "completed"})
    assert claim.target == TARGETS[0]
    assert claim.health.failures == 1


def test_held_delivery_is_shown_as_waiting():
    states = {
        state: delivery_of(("d", "e", "v", state, 0, 1, "")).state for state in ("held", "waiting", "dead")
    }
    assert states == {"held": "waiting", "waiting": "waiting", "dead": "dead"}


def test_receiver_has_health_and_disabled_reason():
    record = receiver_of(("e", dump_target(TARGETS[3]), 1, 2, 3, "gone"))
    assert (record.target, record.disabled_why) == (TARGETS[3], "gone")
    assert record.health.failures == 1
