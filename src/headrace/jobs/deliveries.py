"""The notifications of jobs as clients and operators see them: deliveries, and receivers that fail."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.access import CHANGE_SCOPES, ApiKey, Scope
from headrace.jobs.audit_log import AuditLog
from headrace.jobs.ledger import JobLedger
from headrace.jobs.notify import TARGET_KINDS, EmailTarget, SnsTarget, Target, WebhookTarget
from headrace.jobs.notify.delivery import DeliveryRecord, Outbox, ReceiverRecord

DELIVERIES_MAX: Final = 500


class Deliveries:
    """The operations on deliveries and receivers. Every operation first checks the client's key.

    Without an outbox there are no deliveries. Changes are recorded in the audit log.
    """

    def __init__(self, ledger: JobLedger, outbox: Outbox | None, audit: AuditLog) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._audit = audit

    def of_job(self, key: ApiKey, job_id: str) -> Sequence[DeliveryRecord]:
        """Return a job's deliveries, oldest first. Raise JobNotFoundError."""
        key.require(Scope.READ)
        self._ledger.get(job_id, tenant=key.visible_tenant)
        return self._outbox.deliveries_of(job_id) if self._outbox else ()

    def dead(self, key: ApiKey, *, limit: int) -> Sequence[DeliveryRecord]:
        """Return deliveries that were given up, of all jobs, the latest first."""
        key.require(Scope.OPERATE)
        return self._outbox.dead_letters(min(limit, DELIVERIES_MAX)) if self._outbox else ()

    def redeliver(self, key: ApiKey, delivery_id: str) -> DeliveryRecord:
        """Make a delivery due at once, with all its attempts. Return its state afterwards.

        A delivery that is being attempted stays as it is. Raise ResourceNotFoundError, also for a
        delivery of another tenant's job.
        """
        key.require(*CHANGE_SCOPES)
        outbox = self._outbox
        found = None if outbox is None else outbox.delivery(delivery_id)
        if outbox is None or found is None or not self._may_see(key, found.job_id):
            raise ResourceNotFoundError("delivery", delivery_id)
        outbox.redeliver(delivery_id)
        self._audit.record(key, "delivery.redeliver", delivery_id, {"job": found.job_id})
        return outbox.delivery(delivery_id) or found

    def failing_receivers(self, key: ApiKey, *, limit: int) -> Sequence[ReceiverRecord]:
        """Return the receivers that are disabled, or failed last, by id."""
        key.require(Scope.OPERATE)
        return self._outbox.failing_receivers(min(limit, DELIVERIES_MAX)) if self._outbox else ()

    def enable_receiver(self, key: ApiKey, receiver_id: str) -> ReceiverRecord:
        """Resume deliveries to a receiver. Raise ResourceNotFoundError."""
        key.require(Scope.OPERATE)
        outbox = self._outbox
        found = outbox.receiver(receiver_id) if outbox and outbox.enable(receiver_id) else None
        if found is None:
            raise ResourceNotFoundError("receiver", receiver_id)
        self._audit.record(key, "receiver.enable", receiver_id)
        return found

    def _may_see(self, key: ApiKey, job_id: str) -> bool:
        tenant, job = key.visible_tenant, self._ledger.get_many([job_id]).get(job_id)
        return tenant is None or (job is not None and job.spec.tenant == tenant)


def delivery_document(record: DeliveryRecord) -> dict[str, Any]:
    """Return a delivery as JSON."""
    document = asdict(record)
    return {"id": document.pop("delivery_id"), "receiver": document.pop("receiver_id"), **document}


def receiver_document(record: ReceiverRecord) -> dict[str, Any]:
    """Return a receiver as JSON, without its secrets."""
    return {
        "receiver": record.receiver_id,
        "kind": TARGET_KINDS[type(record.target)],
        "address": _address(record.target),
        **asdict(record.health),
        "disabled_why": record.disabled_why,
    }


def _address(target: Target) -> str:
    match target:
        case WebhookTarget():
            return target.url
        case SnsTarget():
            return ", ".join(dict.fromkeys(filter(None, (target.success_topic, target.error_topic))))
        case EmailTarget():
            return ", ".join(target.to)
