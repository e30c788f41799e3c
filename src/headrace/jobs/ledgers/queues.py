"""Queues: their settings and counts."""

from collections import Counter
from collections.abc import Collection
from typing import Final

from headrace.jobs.ledger import QueueCounts, QueueSettings
from headrace.jobs.ledgers.database import Row, Statement, Transaction
from headrace.jobs.ledgers.dialect import NOW_MS

_NAMES: Final = {"queue_name": "text"}

_MAKE = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records(_NAMES)}
INSERT INTO headrace_queue (name) SELECT queue_name FROM given WHERE TRUE ORDER BY queue_name
ON CONFLICT DO NOTHING RETURNING name
"""
    )
)
_ALL = Statement(lambda _: "SELECT name, paused, draining, pending_max FROM headrace_queue ORDER BY name")
_ONE = Statement(
    lambda _: "SELECT name, paused, draining, pending_max FROM headrace_queue WHERE name = :name"
)
_SET = Statement(
    lambda _: (
        """
INSERT INTO headrace_queue (name, paused, draining, pending_max)
VALUES (:name, :paused, :draining, :pending_max)
ON CONFLICT (name) DO UPDATE
SET paused = excluded.paused, draining = excluded.draining, pending_max = excluded.pending_max
"""
    )
)
# Jobs with a later due time stay marked as asleep until maintenance, even after that time.
_COUNTS = Statement(
    lambda _: (
        f"""
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms)
SELECT
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep),
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep AND job.due_at_ms <= {NOW_MS}),
    (SELECT count(*) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep AND job.due_at_ms > {NOW_MS}),
    (SELECT count(*) FROM headrace_job AS job WHERE job.queue = :name AND job.state = 'running'),
    (SELECT min(job.due_at_ms) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep),
    (SELECT min(job.due_at_ms) FROM headrace_job AS job
        WHERE job.queue = :name AND job.state = 'pending' AND job.asleep),
    now_ms
FROM clock
"""
    )
)
# By the index of regions; sleeping jobs by theirs.
_BY_REGION = Statement(
    lambda _: (
        f"""
SELECT job.region, count(*) FROM headrace_job AS job
WHERE job.queue = :name AND job.state = 'pending' AND NOT job.asleep
    AND length(job.region) >= 0 AND job.region > ''
GROUP BY job.region
UNION ALL
SELECT job.region, count(*) FROM headrace_job AS job
WHERE job.queue = :name AND job.state = 'pending' AND job.asleep
    AND job.due_at_ms <= {NOW_MS} AND job.region || '' <> ''
GROUP BY job.region
"""
    )
)
_PENDING_OF = Statement(
    lambda _: (
        """
SELECT count(*) FROM (
    SELECT 1 FROM headrace_job AS job WHERE job.tenant = :tenant AND job.state = 'pending' LIMIT :at_most
) AS waiting
"""
    )
)


def make_queues(transaction: Transaction, names: Collection[str]) -> int:
    """Create unknown queues. Return their number."""
    return len(transaction.run(_MAKE, [{"queue_name": name} for name in sorted(names)]))


def read_queues(transaction: Transaction) -> list[QueueSettings]:
    """Implement `JobLedger.queues`."""
    return [_settings_of(row) for row in transaction.run(_ALL)]


def read_queue(transaction: Transaction, name: str) -> QueueSettings:
    """Implement `JobLedger.queue`."""
    found = transaction.run(_ONE, name=name)
    return _settings_of(found[0]) if found else QueueSettings(name)


def set_queue(transaction: Transaction, settings: QueueSettings) -> None:
    """Implement `JobLedger.set_queue`."""
    transaction.run(
        _SET,
        name=settings.name,
        paused=settings.paused,
        draining=settings.draining,
        pending_max=settings.pending_max,
    )
    transaction.notice.queues.add(settings.name)


def count(transaction: Transaction, name: str) -> QueueCounts:
    """Implement `JobLedger.counts`."""
    awake, woken, later, running, *dues, now_ms = transaction.run(_COUNTS, name=name)[0]
    waits = [now_ms - due_at_ms for due_at_ms in dues if due_at_ms is not None and due_at_ms <= now_ms]
    due = awake + woken
    by_region: Counter[str] = Counter()
    for region, jobs in transaction.run(_BY_REGION, name=name):
        by_region[region] += jobs
    return QueueCounts(due, later, running, max(waits, default=0 if due else None), dict(by_region))


def count_pending(transaction: Transaction, tenant: str, at_most: int) -> int:
    """Implement `JobLedger.count_pending`."""
    return transaction.run(_PENDING_OF, tenant=tenant, at_most=max(at_most, 0))[0][0]


def _settings_of(row: Row) -> QueueSettings:
    name, paused, draining, pending_max = row
    return QueueSettings(name, bool(paused), bool(draining), pending_max)
