"""The outbox in SQL: notifications in the database and the transactions of the ledger itself.

``headrace_endpoint``      a target and its health

``headrace_notification``  one event of a job for one endpoint: ``held`` (until the job's end is
published), ``waiting``, ``claimed``, ``delivered`` or ``dead``
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.errors import HeadraceError, LimitError
from headrace.jobs.delivery import DeliveryDecision, Done, RetryDelivery
from headrace.jobs.job import Job, JobProgress, new_job_id
from headrace.jobs.ledgers.database import Database, JobEventWriter, Statement, Transaction
from headrace.jobs.ledgers.dialect import NOW_MS
from headrace.jobs.ledgers.outbox_rows import claim_of, delivery_of, dump_target, endpoint_of
from headrace.jobs.ledgers.rows import clean
from headrace.jobs.notifier import Notification, Target
from headrace.jobs.outbox import Claim, DeliveryRecord, EndpointRecord, Outbox
from headrace.jobs.subscription import (
    PROGRESS,
    Subscription,
    end_event_data,
    progress_event_data,
    read_subscriptions,
)

_NOTES: Final = {
    "new_id": "text",
    "job_id": "text",
    "endpoint_id": "text",
    "event_id": "text",
    "type": "text",
    "data": "text",
    "state": "text",
}
_PUT = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records(_NOTES)}
INSERT INTO headrace_notification (id, job_id, endpoint_id, event_id, type, at_ms, data, state, due_at_ms)
SELECT new_id, job_id, endpoint_id, event_id, type, {NOW_MS}, data, state, {NOW_MS} FROM given
"""
    )
)
_KNOW = Statement(
    lambda _: "INSERT INTO headrace_endpoint (id, target) VALUES (:id, :target) ON CONFLICT (id) DO NOTHING"
)
_REGISTER = Statement(
    lambda _: (
        "INSERT INTO headrace_endpoint (id, target) VALUES (:id, :target) "
        "ON CONFLICT (id) DO UPDATE SET target = excluded.target"
    )
)
_LET_GO = Statement(
    lambda _: (
        f"""
UPDATE headrace_notification SET state = 'waiting', due_at_ms = {NOW_MS}, data = :data
WHERE job_id = :job_id AND state = 'held'
"""
    )
)
_FORGET = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records({"gone_id": "text"})}
DELETE FROM headrace_notification WHERE job_id IN (SELECT gone_id FROM given)
"""
    )
)

# The time at which a delivery can be claimed: a claimed one when its lease has passed.
_FREE_AT: Final = "CASE n.state WHEN 'claimed' THEN n.lease_until_ms ELSE n.due_at_ms END"
_OPEN: Final = "n.state IN ('waiting', 'claimed')"
_BUSY: Final = f"""
SELECT 1 FROM headrace_notification AS n
WHERE n.endpoint_id = endpoint.id AND n.state = 'claimed' AND n.lease_until_ms > {NOW_MS}
"""
_FREE_ENDPOINTS = Statement(
    lambda dialect: (
        f"""
SELECT endpoint.id FROM headrace_endpoint AS endpoint
WHERE endpoint.disabled_why = '' AND endpoint.rests_until_at_ms <= {NOW_MS} AND NOT EXISTS ({_BUSY})
    AND EXISTS (SELECT 1 FROM headrace_notification AS n
        WHERE n.endpoint_id = endpoint.id AND {_OPEN} AND {_FREE_AT} <= {NOW_MS})
ORDER BY (SELECT min(n.due_at_ms) FROM headrace_notification AS n
        WHERE n.endpoint_id = endpoint.id AND {_OPEN} AND {_FREE_AT} <= {NOW_MS}), endpoint.id
LIMIT :row_limit {dialect.locked("endpoint", free=True)}
"""
    )
)
# A separate step, so that it sees what the previous holders of these endpoints wrote.
_CLAIM = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records({"free_id": "text"})}, first AS MATERIALIZED (
    SELECT (SELECT n.id FROM headrace_notification AS n
        WHERE n.endpoint_id = free_id AND {_OPEN} AND {_FREE_AT} <= {NOW_MS}
        ORDER BY n.due_at_ms, n.id LIMIT 1) AS first_id
    FROM given
    WHERE NOT EXISTS (SELECT 1 FROM headrace_notification AS n
        WHERE n.endpoint_id = free_id AND n.state = 'claimed' AND n.lease_until_ms > {NOW_MS})
)
UPDATE headrace_notification SET
    state = 'claimed', attempts = headrace_notification.attempts + 1, fence = headrace_notification.fence + 1,
    lease_until_ms = {NOW_MS} + :lease_ms
FROM first WHERE headrace_notification.id = first_id
RETURNING headrace_notification.id
"""
    )
)
_CLAIMED = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records({"claimed_id": "text"})}
SELECT n.id, n.fence, n.attempts, n.event_id, n.type, n.job_id, n.at_ms, n.data,
    endpoint.id, endpoint.target, endpoint.failures, endpoint.failing_since_at_ms, endpoint.rests_until_at_ms
FROM given JOIN headrace_notification AS n ON n.id = claimed_id
JOIN headrace_endpoint AS endpoint ON endpoint.id = n.endpoint_id
ORDER BY n.due_at_ms, n.id
"""
    )
)
_NEXT = Statement(
    lambda _: (
        f"""
SELECT max(endpoint.rests_until_at_ms),
    coalesce(max(CASE n.state WHEN 'claimed' THEN n.lease_until_ms END), 0), min({_FREE_AT})
FROM headrace_endpoint AS endpoint JOIN headrace_notification AS n ON n.endpoint_id = endpoint.id
WHERE endpoint.disabled_why = '' AND {_OPEN} GROUP BY endpoint.id
"""
    )
)
_RECORD = Statement(
    lambda _: (
        f"""
UPDATE headrace_notification SET state = :state, why = :why,
    due_at_ms = coalesce(CAST(:due_at_ms AS BIGINT), due_at_ms),
    ended_at_ms = CASE WHEN :state = 'waiting' THEN NULL ELSE {NOW_MS} END
WHERE id = :id AND fence = :fence AND state = 'claimed' RETURNING endpoint_id
"""
    )
)
_FARED = Statement(
    lambda _: (
        """
UPDATE headrace_endpoint SET failures = :failures, failing_since_at_ms = :failing_since_at_ms,
    rests_until_at_ms = :rests_until_at_ms,
    disabled_why = CASE disabled_why WHEN '' THEN :disabled_why ELSE disabled_why END
WHERE id = :id
"""
    )
)
_RELEASE = Statement(
    lambda _: (
        """
UPDATE headrace_notification SET state = 'waiting', attempts = attempts - 1
WHERE id = :id AND fence = :fence AND state = 'claimed' RETURNING id
"""
    )
)
_REDELIVER = Statement(
    lambda _: (
        f"""
UPDATE headrace_notification SET state = 'waiting', attempts = 0, due_at_ms = {NOW_MS}, ended_at_ms = NULL
WHERE id = :id AND state IN ('waiting', 'delivered', 'dead') RETURNING endpoint_id
"""
    )
)
_WAKE = Statement(lambda _: "UPDATE headrace_endpoint SET rests_until_at_ms = 0 WHERE id = :id")
_DISABLE = Statement(lambda _: "UPDATE headrace_endpoint SET disabled_why = :why WHERE id = :id RETURNING id")
_ENABLE = Statement(
    lambda _: (
        """
UPDATE headrace_endpoint SET disabled_why = '', failures = 0, failing_since_at_ms = 0, rests_until_at_ms = 0
WHERE id = :id RETURNING id
"""
    )
)
_DELIVERY: Final = (
    "SELECT id, endpoint_id, event_id, state, attempts, due_at_ms, why FROM headrace_notification"
)
_ONE = Statement(lambda _: f"{_DELIVERY} WHERE id = :id")
_DEAD = Statement(
    lambda _: f"{_DELIVERY} WHERE state = 'dead' ORDER BY ended_at_ms DESC, id LIMIT :row_limit"
)
_OF_JOB = Statement(lambda _: f"{_DELIVERY} WHERE job_id = :job_id ORDER BY id")
_ENDPOINT = Statement(
    lambda _: (
        """
SELECT id, target, failures, failing_since_at_ms, rests_until_at_ms, disabled_why
FROM headrace_endpoint WHERE id = :id
"""
    )
)
_NOW = Statement(lambda _: "SELECT headrace_now()")
_SHORT: Final = frozenset({"state", "cause", "queue", "kind", "attempt", "submitted_at_ms", "output_bytes"})

_log = logging.getLogger("headrace.jobs")


class NotificationRows(JobEventWriter):
    """A writer of notification rows in the ledger's transactions."""

    @override
    def jobs_ended(self, transaction: Transaction, jobs: Sequence[Job]) -> None:
        """Write the notifications of ended jobs; held while the job's end is still to be published."""
        events = [(job, job.state.value, end_event_data(job)) for job in jobs if job.spec.notify]
        _put(transaction, events, held=True)

    @override
    def job_published(self, transaction: Transaction, job: Job, uri: str) -> None:
        if job.spec.notify:
            data = orjson.dumps(end_event_data(job, uri)).decode()
            transaction.run(_LET_GO, job_id=job.id, data=data)

    @override
    def job_progressed(self, transaction: Transaction, job: Job, progress: JobProgress) -> None:
        _put(transaction, [(job, PROGRESS, progress_event_data(job, progress))], held=False)

    @override
    def jobs_deleted(self, transaction: Transaction, job_ids: Sequence[str]) -> None:
        transaction.run(_FORGET, [{"gone_id": job_id} for job_id in job_ids])


def _put(transaction: Transaction, events: Sequence[tuple[Job, str, dict[str, Any]]], *, held: bool) -> None:
    rows: list[dict[str, Any]] = []
    for job, event, data in events:
        at_ms = job.ended_at_ms or job.created_at_ms
        # An event has one id for all its endpoints.
        event_id = f"evt_{new_job_id(at_ms)}"
        kind = f"job.{event}"
        for subscription in _subscriptions(job):
            if event not in subscription.events:
                continue
            if subscription.target is not None:
                transaction.run(_KNOW, id=subscription.endpoint_id, target=dump_target(subscription.target))
            rows.append(
                {
                    "new_id": new_job_id(at_ms),
                    "job_id": job.id,
                    "endpoint_id": clean(subscription.endpoint_id),
                    "event_id": event_id,
                    "type": kind,
                    "data": orjson.dumps(_fitting(event_id, kind, job, data)).decode(),
                    "state": "held" if held and job.needs_publication else "waiting",
                }
            )
    if rows:
        transaction.run(_PUT, rows)


def _subscriptions(job: Job) -> tuple[Subscription, ...]:
    """Return a job's subscriptions.

    Invalid ones were refused at submission and must not block its end.
    """
    try:
        # Without a policy: the deliverer handles addresses that a changed policy refuses.
        return read_subscriptions(job.spec.notify)
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


class SqlOutbox(Outbox):
    """The outbox in a ledger's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, target: Target) -> None:
        """Create or replace the endpoint with this id, for jobs that name it."""
        self._database.write(
            lambda transaction: transaction.run(_REGISTER, id=target.endpoint_id, target=dump_target(target))
        )

    def has_endpoint(self, endpoint_id: str) -> bool:
        """Return True if the endpoint exists."""
        return self.endpoint(endpoint_id) is not None

    @override
    def now_ms(self) -> int:
        return self._database.read(lambda transaction: transaction.run(_NOW)[0][0])

    @override
    def claim(self, limit: int, lease_ms: int) -> Sequence[Claim]:
        def work(transaction: Transaction) -> list[Claim]:
            free = [{"free_id": row[0]} for row in transaction.run(_FREE_ENDPOINTS, row_limit=limit)]
            if not free:
                return []
            claimed = [{"claimed_id": row[0]} for row in transaction.run(_CLAIM, free, lease_ms=lease_ms)]
            return [claim_of(row) for row in transaction.run(_CLAIMED, claimed)] if claimed else []

        return self._database.write(work, repeatable=False)

    @override
    def next_due_at_ms(self) -> int | None:
        rows = self._database.read(lambda transaction: transaction.run(_NEXT))
        return min((max(row) for row in rows), default=None)

    @override
    def record(self, claim: Claim, decision: DeliveryDecision) -> bool:
        outcome = decision.outcome
        retry = outcome if isinstance(outcome, RetryDelivery) else None
        state = "waiting" if retry else "delivered" if isinstance(outcome, Done) else "dead"
        why = outcome.how if isinstance(outcome, Done) else outcome.why

        def work(transaction: Transaction) -> bool:
            found = transaction.run(
                _RECORD,
                id=claim.delivery_id,
                fence=claim.fence,
                state=state,
                due_at_ms=retry.at_ms if retry else None,
                why=clean(why),
            )
            if not found:
                return False
            health = asdict(decision.health)
            transaction.run(_FARED, id=found[0][0], disabled_why=clean(decision.disable_why), **health)
            return True

        return self._database.write(work, repeatable=False)

    @override
    def release(self, claim: Claim) -> bool:
        return self._database.write(
            lambda transaction: bool(transaction.run(_RELEASE, id=claim.delivery_id, fence=claim.fence)),
            repeatable=False,
        )

    @override
    def redeliver(self, delivery_id: str) -> bool:
        def work(transaction: Transaction) -> bool:
            found = transaction.run(_REDELIVER, id=delivery_id)
            if found:
                transaction.run(_WAKE, id=found[0][0])
            return bool(found)

        return self._database.write(work)

    @override
    def disable(self, endpoint_id: str, why: str) -> bool:
        return self._database.write(
            lambda transaction: bool(transaction.run(_DISABLE, id=endpoint_id, why=clean(why)))
        )

    @override
    def enable(self, endpoint_id: str) -> bool:
        return self._database.write(lambda transaction: bool(transaction.run(_ENABLE, id=endpoint_id)))

    @override
    def delivery(self, delivery_id: str) -> DeliveryRecord | None:
        rows = self._database.read(lambda transaction: transaction.run(_ONE, id=delivery_id))
        return delivery_of(rows[0]) if rows else None

    def deliveries_of(self, job_id: str) -> list[DeliveryRecord]:
        """Return a job's deliveries, oldest first."""
        rows = self._database.read(lambda transaction: transaction.run(_OF_JOB, job_id=job_id))
        return list(map(delivery_of, rows))

    @override
    def endpoint(self, endpoint_id: str) -> EndpointRecord | None:
        rows = self._database.read(lambda transaction: transaction.run(_ENDPOINT, id=endpoint_id))
        return endpoint_of(rows[0]) if rows else None

    @override
    def dead_letters(self, limit: int) -> Sequence[DeliveryRecord]:
        rows = self._database.read(lambda transaction: transaction.run(_DEAD, row_limit=max(limit, 0)))
        return list(map(delivery_of, rows))
