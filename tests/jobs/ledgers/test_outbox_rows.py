"""Endpoints and deliveries as rows, and back."""

import pytest

from headrace.jobs.ledgers.outbox_rows import claim_of, delivery_of, dump_target, endpoint_of, target_of
from headrace.jobs.notifier import EmailTarget, SnsTarget, WebhookTarget

TARGETS = [
    WebhookTarget("w", "https://h.example/", ("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",)),
    WebhookTarget("w", "https://h.example/"),
    SnsTarget("s", "arn:a", "arn:b", frozenset({"success", "error"})),
    EmailTarget("e", ("a@h.example", "b@h.example")),
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_comes_back_as_it_was(target):
    assert target_of(dump_target(target)) == target
    assert hash(target_of(dump_target(target))) == hash(target)


def test_a_claim_has_its_notice_its_target_and_its_endpoints_health():
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


def test_what_is_held_waits_as_others_see_it():
    states = {
        state: delivery_of(("d", "e", "v", state, 0, 1, "")).state for state in ("held", "waiting", "dead")
    }
    assert states == {"held": "waiting", "waiting": "waiting", "dead": "dead"}


def test_an_endpoint_has_its_health_and_why_it_is_disabled():
    record = endpoint_of(("e", dump_target(TARGETS[3]), 1, 2, 3, "gone"))
    assert (record.target, record.disabled_why) == (TARGETS[3], "gone")
    assert record.health.failures == 1
