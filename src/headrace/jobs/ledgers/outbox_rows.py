"""Endpoints, claims and deliveries as rows and back."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson

from headrace.jobs.delivery import Health
from headrace.jobs.notifier import EmailTarget, Notification, SnsTarget, Target, WebhookTarget
from headrace.jobs.outbox import Claim, DeliveryRecord, EndpointRecord

_KINDS: Final[dict[str, type[Target]]] = {"webhook": WebhookTarget, "sns": SnsTarget, "email": EmailTarget}


def dump_target(target: Target) -> str:
    """A target as JSON. Secrets are in it: who reads the database may sign."""
    (kind,) = (name for name, cls in _KINDS.items() if isinstance(target, cls))
    told: dict[str, Any] = asdict(target)
    if isinstance(target, SnsTarget):
        told["include_response"] = sorted(target.include_response)
    return orjson.dumps({"kind": kind, **told}).decode()


def target_of(text: str) -> Target:
    """A target, of its JSON."""
    told: dict[str, Any] = orjson.loads(text)
    kind = _KINDS[told.pop("kind")]
    for key, value in told.items():
        if isinstance(value, list):
            told[key] = frozenset(value) if key == "include_response" else tuple(value)  # pyright: ignore[reportUnknownArgumentType]
    return kind(**told)


def claim_of(row: Sequence[Any]) -> Claim:
    """A claim, of a notification that is claimed and its endpoint."""
    delivery_id, fence, attempt, event_id, kind, job_id, at_ms, data, _, target, *health = row
    notification = Notification(event_id, kind, job_id, at_ms, orjson.loads(data))
    return Claim(delivery_id, fence, attempt, notification, target_of(target), Health(*health))


def delivery_of(row: Sequence[Any]) -> DeliveryRecord:
    """What is known of a notification. One that is held waits, as others see it."""
    delivery_id, endpoint_id, event_id, state, attempts, due_at_ms, why = row
    shown = "waiting" if state == "held" else state
    return DeliveryRecord(delivery_id, endpoint_id, event_id, shown, attempts, due_at_ms, why)


def endpoint_of(row: Sequence[Any]) -> EndpointRecord:
    """What is known of an endpoint."""
    endpoint_id, target, failures, since, rests, disabled_why = row
    return EndpointRecord(endpoint_id, target_of(target), Health(failures, since, rests), disabled_why)
