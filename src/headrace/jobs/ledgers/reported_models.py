"""The models that workers have reported, by queue."""

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.jobs.ledger import REPORTED_MODELS_KEPT_DAYS
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK, NOW_MS
from headrace.jobs.ledgers.rows import clean

_KEPT_MS: Final = REPORTED_MODELS_KEPT_DAYS * 86_400_000
_REPORTED: Final = {"worker_queue": "text", "worker_model": "text"}

# The rows are sorted, so that concurrent reports lock them in one order.
_REPORT = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, {dialect.records(_REPORTED)}
INSERT INTO headrace_worker_model (queue, model, reported_at_ms)
SELECT worker_queue, worker_model, now_ms FROM given CROSS JOIN clock WHERE TRUE
ORDER BY worker_queue, worker_model
ON CONFLICT (queue, model) DO UPDATE SET reported_at_ms = excluded.reported_at_ms
"""
    )
)
_FORGET = Statement(
    lambda _: f"DELETE FROM headrace_worker_model WHERE reported_at_ms < {NOW_MS} - {_KEPT_MS}"
)
_ALL = Statement(
    lambda _: f"SELECT queue, model FROM headrace_worker_model WHERE reported_at_ms >= {NOW_MS} - {_KEPT_MS}"
)


def report_models(transaction: Transaction, queues: Sequence[str], models: Sequence[str]) -> None:
    """Implement `JobLedger.report_models`."""
    pairs = {(clean(queue), clean(model)) for queue in queues for model in models}
    rows = [{"worker_queue": queue, "worker_model": model} for queue, model in sorted(pairs)]
    transaction.run(_REPORT, rows)
    transaction.run(_FORGET)


def read_reported_models(transaction: Transaction) -> Mapping[str, frozenset[str]]:
    """Implement `JobLedger.reported_models`."""
    found: dict[str, set[str]] = {}
    for queue, model in transaction.run(_ALL):
        found.setdefault(queue, set()).add(model)
    return {queue: frozenset(models) for queue, models in found.items()}
