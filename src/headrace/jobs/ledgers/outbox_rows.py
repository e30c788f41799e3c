"""Endpoints, claims and deliveries as database rows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, cast

import orjson

from headrace.jobs.delivery import EndpointHealth
from headrace.jobs.notifier import EmailTarget, Notification, SnsTarget, Target, WebhookTarget
from headrace.jobs.outbox import Claim, DeliveryRecord, EndpointRecord

_KINDS: Final[dict[str, type[Target]]] = {"webhook": WebhookTarget, "sns": SnsTarget, "email": EmailTarget}


def dump_target(target: Target) -> str:
    """Return a target as JSON. It contains secrets: a reader of the database can sign."""
    (kind,) = (name for name, cls in _KINDS.items() if isinstance(target, cls))
    values: dict[str, Any] = asdict(target)
    if isinstance(target, SnsTarget):
        values["include_response"] = sorted(target.include_response)
    return orjson.dumps({"kind": kind, **values}).decode()


def target_of(text: str) -> Target:
    """Return the target of its JSON."""
    values: dict[str, Any] = orjson.loads(text)
    kind = _KINDS[values.pop("kind")]
    for key, value in values.items():
        if isinstance(value, list):
            items = cast("list[Any]", value)
            values[key] = frozenset(items) if key == "include_response" else tuple(items)
    return kind(**values)


def claim_of(row: Sequence[Any]) -> Claim:
    """Return the claim of a claimed notification and its endpoint."""
    delivery_id, fence, attempt, event_id, kind, job_id, at_ms, data, _, target, *health = row
    notification = Notification(event_id, kind, job_id, at_ms, orjson.loads(data))
    return Claim(delivery_id, fence, attempt, notification, target_of(target), EndpointHealth(*health))


def delivery_of(row: Sequence[Any]) -> DeliveryRecord:
    """Return the delivery of a notification. A held one is shown as waiting."""
    delivery_id, endpoint_id, event_id, state, attempts, due_at_ms, why = row
    shown = "waiting" if state == "held" else state
    return DeliveryRecord(delivery_id, endpoint_id, event_id, shown, attempts, due_at_ms, why)


def endpoint_of(row: Sequence[Any]) -> EndpointRecord:
    """Return the endpoint of a row."""
    endpoint_id, target, failures, since, rests, disabled_why = row
    return EndpointRecord(
        endpoint_id, target_of(target), EndpointHealth(failures, since, rests), disabled_why
    )
