"""The outbox in SQL: notifications in the database and the transactions of the ledger itself.

``headrace_receiver``      a target and its health

``headrace_notification``  one event of a job for one receiver: ``held`` (until the job's end is
published), ``waiting``, ``claimed``, ``delivered`` or ``dead``
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, cast

import orjson
from typing_extensions import override

from headrace.core.errors import HeadraceError, LimitError
from headrace.jobs.job import Job, JobProgress, new_job_id
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    JobEventWriter,
    Transaction,
    read_statement,
    reading,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.rows import clean
from headrace.jobs.notify import TARGET_KINDS, Notification, SnsTarget, Target
from headrace.jobs.notify.delivery import (
    Claim,
    DeliveryCounts,
    DeliveryDecision,
    DeliveryRecord,
    Done,
    Outbox,
    ReceiverHealth,
    ReceiverRecord,
    RetryDelivery,
)
from headrace.jobs.notify.subscription import (
    PROGRESS,
    Subscription,
    end_event_data,
    progress_event_data,
    read_subscriptions,
)

_KINDS: Final = {name: kind for kind, name in TARGET_KINDS.items()}
_INSERT: Final = read_statement("insert_notifications")
_ADD_RECEIVER: Final = read_statement("add_receiver")
_SET_RECEIVER: Final = read_statement("set_receiver")
_RELEASE_HELD: Final = read_statement("release_held")
_DELETE: Final = read_statement("delete_notifications")
_FREE_RECEIVERS: Final = read_statement("free_receivers")
_CLAIM: Final = read_statement("claim_deliveries")
_CLAIMED: Final = read_statement("claimed_deliveries")
_NEXT: Final = read_statement("next_deliveries")
_RECORD: Final = read_statement("record_delivery")
_RECORD_HEALTH: Final = read_statement("record_health")
_RELEASE: Final = read_statement("release_delivery")
_REDELIVER: Final = read_statement("redeliver")
_WAKE: Final = read_statement("wake_receiver")
_DISABLE: Final = read_statement("disable_receiver")
_ENABLE: Final = read_statement("enable_receiver")
_COUNT: Final = read_statement("count_deliveries")
_DELIVERY: Final = read_statement("delivery")
_DEAD: Final = read_statement("dead_deliveries")
_OF_JOB: Final = read_statement("deliveries_of_job")
_RECEIVER: Final = read_statement("receiver")
_FAILING_RECEIVERS: Final = read_statement("failing_receivers")
_TRACE: Final = "traceparent"
"""The member of a row's data that is no part of the notification's body."""
_SHORT: Final = frozenset({"state", "cause", "queue", "kind", "attempt", "submitted_at_ms", "output_bytes"})

_log = logging.getLogger("headrace.jobs")


class NotificationRows(JobEventWriter):
    """A writer of notification rows in the ledger's transactions."""

    @override
    def jobs_ended(self, transaction: Transaction, jobs: Sequence[Job]) -> None:
        """Write the notifications of ended jobs; held while the job's end is still to be published."""
        events = [(job, job.state.value, end_event_data(job)) for job in jobs]
        _put(transaction, events, held=True)

    @override
    def job_published(self, transaction: Transaction, job: Job, uri: str) -> None:
        if job.spec.notify:
            data = dump_event(end_event_data(job, uri), job.spec.trace)
            transaction.run(_RELEASE_HELD, job_id=job.id, data=data)

    @override
    def job_progressed(self, transaction: Transaction, job: Job, progress: JobProgress) -> None:
        _put(transaction, [(job, PROGRESS, progress_event_data(job, progress))], held=False)

    @override
    def jobs_deleted(self, transaction: Transaction, job_ids: Sequence[str]) -> None:
        transaction.run(_DELETE, [{"deleted_id": job_id} for job_id in job_ids])


def _put(transaction: Transaction, events: Sequence[tuple[Job, str, dict[str, Any]]], *, held: bool) -> None:
    rows: list[dict[str, Any]] = []
    for job, event, data in events:
        at_ms = job.ended_at_ms or job.created_at_ms
        # An event has one id for all its receivers.
        event_id = f"evt_{new_job_id(at_ms)}"
        kind = f"job.{event}"
        for subscription in _subscriptions(job):
            if event not in subscription.events:
                continue
            if subscription.target is not None:
                transaction.run(
                    _ADD_RECEIVER,
                    id=subscription.receiver_id,
                    target=dump_target(subscription.target),
                    tenant=clean(job.spec.tenant),
                )
            rows.append(
                {
                    "new_id": new_job_id(at_ms),
                    "job_id": job.id,
                    "receiver_id": clean(subscription.receiver_id),
                    "event_id": event_id,
                    "type": kind,
                    "data": dump_event(_fitting(event_id, kind, job, data), job.spec.trace),
                    "state": "held" if held and job.needs_publication else "waiting",
                }
            )
    if rows:
        transaction.run(_INSERT, rows)


def _subscriptions(job: Job) -> tuple[Subscription, ...]:
    """Return a job's subscriptions.

    Invalid ones were refused at submission and must not block its end.
    """
    try:
        # Without a policy: the deliverer handles addresses that a changed policy refuses.
        return read_subscriptions(job.spec.notify, tenant=job.spec.tenant)
    except HeadraceError:
        _log.exception("a job's notifications are invalid, nobody is notified", extra={"job": job.id})
        return ()


def _fitting(event_id: str, kind: str, job: Job, data: dict[str, Any]) -> dict[str, Any]:
    """Return the event data, reduced if it is too long; the referenced job has it all."""
    try:
        Notification(event_id, kind, job.id, 0, data)
    except LimitError:
        return {key: value for key, value in data.items() if key in _SHORT}
    return data


def dump_event(data: Mapping[str, Any], trace: str) -> str:
    """Return the data of an event as its row has it, with the job's trace context."""
    return orjson.dumps({**data, _TRACE: trace} if trace else dict(data)).decode()


class SqlOutbox(DatabaseOperations, Outbox):
    """The outbox in a ledger's database."""

    @writing
    def register(self, transaction: Transaction, target: Target) -> None:
        """Create or replace the receiver with this id, for jobs that name it."""
        transaction.run(_SET_RECEIVER, id=target.receiver_id, target=dump_target(target))

    @override
    @writing_once
    def claim(self, transaction: Transaction, limit: int, lease_ms: int) -> Sequence[Claim]:
        free = [{"free_id": row[0]} for row in transaction.run(_FREE_RECEIVERS, row_limit=limit)]
        if not free:
            return []
        claimed = [{"claimed_id": row[0]} for row in transaction.run(_CLAIM, free, lease_ms=lease_ms)]
        return [claim_of(row) for row in transaction.run(_CLAIMED, claimed)] if claimed else []

    @override
    @reading
    def next_due_at_ms(self, transaction: Transaction) -> int | None:
        return min((max(row) for row in transaction.run(_NEXT)), default=None)

    @override
    @writing_once
    def record(self, transaction: Transaction, claim: Claim, decision: DeliveryDecision) -> bool:
        outcome = decision.outcome
        retry = outcome if isinstance(outcome, RetryDelivery) else None
        rows = transaction.run(
            _RECORD,
            id=claim.delivery_id,
            fence=claim.fence,
            state="waiting" if retry else "delivered" if isinstance(outcome, Done) else "dead",
            due_at_ms=retry.at_ms if retry else None,
            why=clean(outcome.how if isinstance(outcome, Done) else outcome.why),
        )
        if not rows:
            return False
        health = asdict(decision.health)
        transaction.run(_RECORD_HEALTH, id=rows[0][0], disabled_why=clean(decision.disable_why), **health)
        return True

    @override
    @writing_once
    def release(self, transaction: Transaction, claim: Claim) -> bool:
        return bool(transaction.run(_RELEASE, id=claim.delivery_id, fence=claim.fence))

    @override
    @writing
    def redeliver(self, transaction: Transaction, delivery_id: str) -> bool:
        rows = transaction.run(_REDELIVER, id=delivery_id)
        if rows:
            transaction.run(_WAKE, id=rows[0][0])
        return bool(rows)

    @override
    @writing
    def disable(self, transaction: Transaction, receiver_id: str, why: str) -> bool:
        return bool(transaction.run(_DISABLE, id=receiver_id, why=clean(why)))

    @override
    @writing
    def enable(self, transaction: Transaction, receiver_id: str) -> bool:
        return bool(transaction.run(_ENABLE, id=receiver_id))

    @override
    @reading
    def counts(self, transaction: Transaction, *, limit: int) -> DeliveryCounts:
        return DeliveryCounts(*transaction.run(_COUNT, row_limit=limit)[0])

    @override
    @reading
    def delivery(self, transaction: Transaction, delivery_id: str) -> DeliveryRecord | None:
        rows = transaction.run(_DELIVERY, id=delivery_id)
        return delivery_of(rows[0]) if rows else None

    @override
    @reading
    def deliveries_of(self, transaction: Transaction, job_id: str) -> Sequence[DeliveryRecord]:
        return list(map(delivery_of, transaction.run(_OF_JOB, job_id=job_id)))

    @override
    @reading
    def receiver(self, transaction: Transaction, receiver_id: str) -> ReceiverRecord | None:
        rows = transaction.run(_RECEIVER, id=receiver_id)
        return receiver_of(rows[0]) if rows else None

    @override
    @reading
    def failing_receivers(self, transaction: Transaction, limit: int) -> Sequence[ReceiverRecord]:
        return list(map(receiver_of, transaction.run(_FAILING_RECEIVERS, row_limit=max(limit, 0))))

    @override
    @reading
    def dead_letters(self, transaction: Transaction, limit: int) -> Sequence[DeliveryRecord]:
        return list(map(delivery_of, transaction.run(_DEAD, row_limit=max(limit, 0))))


def dump_target(target: Target) -> str:
    """Return a target as JSON, with its secrets as they are: encrypted, except in tests."""
    values: dict[str, Any] = asdict(target)
    if isinstance(target, SnsTarget):
        values["include_response"] = sorted(target.include_response)
    return orjson.dumps({"kind": TARGET_KINDS[type(target)], **values}).decode()


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
    """Return the claim of a claimed notification and its receiver."""
    delivery_id, fence, attempt, event_id, kind, job_id, at_ms, data, _, target, *health = row
    values: dict[str, Any] = orjson.loads(data)
    # Rows of earlier versions have no trace context.
    trace = values.pop(_TRACE, "")
    notification = Notification(event_id, kind, job_id, at_ms, values, trace)
    return Claim(delivery_id, fence, attempt, notification, target_of(target), ReceiverHealth(*health))


def delivery_of(row: Sequence[Any]) -> DeliveryRecord:
    """Return the delivery of a notification. A held one is shown as waiting."""
    delivery_id, receiver_id, event_id, state, *values = row
    return DeliveryRecord(
        delivery_id, receiver_id, event_id, "waiting" if state == "held" else state, *values
    )


def receiver_of(row: Sequence[Any]) -> ReceiverRecord:
    """Return the receiver of a row."""
    receiver_id, target, failures, since, rests, disabled_why = row
    return ReceiverRecord(
        receiver_id, target_of(target), ReceiverHealth(failures, since, rests), disabled_why
    )
