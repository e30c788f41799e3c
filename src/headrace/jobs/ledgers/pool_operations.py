"""The operations on pools of workers and on the log of decisions about them."""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.jobs.ledger import DAY_MS, JobLedger
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Row,
    Transaction,
    read_statement,
    reading,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.rows import clean, dump
from headrace.jobs.log_position import number_before
from headrace.jobs.pools import DECISIONS_KEPT_DAYS, DecisionPage, Pool, ScalingDecision

_DELETED_MAX: Final = 100
"""The number of old decisions that each new one deletes."""
_KEPT_MS: Final = DECISIONS_KEPT_DAYS * DAY_MS

_CONTROL: Final = read_statement("control_pool")
_RELEASE: Final = read_statement("release_pool")
_DELETE_OLD_POOLS: Final = read_statement("delete_old_pools")
_INSERT: Final = read_statement("insert_decision")
_DELETE_OLD: Final = read_statement("delete_old_decisions")
_POOLS: Final = read_statement("pools")
_DECISIONS: Final = read_statement("decisions")
_OF_POOL: Final = read_statement("pool_decisions")


class PoolOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger on pools of workers."""

    @override
    @writing
    def control_pool(self, transaction: Transaction, pool: str, controller: str, lease_ms: int) -> bool:
        rows = transaction.run(_CONTROL, name=clean(pool), controller=clean(controller), lease_ms=lease_ms)
        if rows:
            transaction.run(_DELETE_OLD_POOLS, kept_ms=_KEPT_MS)
        return bool(rows)

    @override
    @writing
    def release_pool(self, transaction: Transaction, pool: str, controller: str) -> None:
        transaction.run(_RELEASE, name=clean(pool), controller=clean(controller))

    @override
    @writing_once
    def record_decision(self, transaction: Transaction, decision: ScalingDecision) -> bool:
        rows = transaction.run(
            _INSERT,
            pool=clean(decision.pool),
            controller=clean(decision.controller),
            workers=decision.workers,
            wanted=decision.wanted,
            reason=clean(decision.reason),
            observed=dump(dict(decision.observed)),
        )
        if rows:
            transaction.run(_DELETE_OLD, kept_ms=_KEPT_MS, row_limit=_DELETED_MAX)
        return bool(rows)

    @override
    @reading
    def pools(self, transaction: Transaction) -> list[Pool]:
        return list(map(_pool_of, transaction.run(_POOLS, kept_ms=_KEPT_MS)))

    @override
    @reading
    def decisions(
        self, transaction: Transaction, *, pool: str = "", after: str = "", limit: int = 100
    ) -> DecisionPage:
        """Return a page of decisions. Raise DataError for an invalid `after`."""
        page_max = max(limit, 0)
        wanted: dict[str, Any] = {
            "before_number": number_before(after),
            "kept_ms": _KEPT_MS,
            "row_limit": page_max + 1,
        }
        if pool:
            rows = transaction.run(_OF_POOL, pool=clean(pool), **wanted)
        else:
            rows = transaction.run(_DECISIONS, **wanted)
        read = [(_decision_of(columns), kept) for *columns, kept in rows[:page_max]]
        decisions = tuple(decision for decision, kept in read if kept)
        return DecisionPage(decisions, str(read[-1][0].number) if len(rows) > page_max > 0 else "")


def _pool_of(row: Row) -> Pool:
    name, controller, lease_until_ms, read_at_ms, *columns = row
    decision = None if columns[0] is None else _decision_of(columns)
    return Pool(name, controller, lease_until_ms, read_at_ms, decision)


def _decision_of(columns: Sequence[Any]) -> ScalingDecision:
    pool, controller, workers, wanted, reason, observed, number, at_ms = columns
    return ScalingDecision(pool, controller, workers, wanted, reason, orjson.loads(observed), number, at_ms)
