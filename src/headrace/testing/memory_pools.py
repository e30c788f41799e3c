"""The pools of workers of the ledger in memory."""

from abc import ABC
from dataclasses import replace
from typing import Final

from typing_extensions import override

from headrace.jobs.ledger import DAY_MS
from headrace.jobs.log_position import number_before
from headrace.jobs.pools import DECISIONS_KEPT_DAYS, DecisionPage, Pool, ScalingDecision
from headrace.testing.memory_jobs import MemoryJobs

_KEPT_MS: Final = DECISIONS_KEPT_DAYS * DAY_MS


class MemoryPools(MemoryJobs, ABC):
    """The pools of workers of a ledger in memory."""

    @override
    def control_pool(self, pool: str, controller: str, lease_ms: int) -> bool:
        with self._locked() as table:
            now_ms = self.now_ms()
            found = table.pools.get(pool)
            if found is not None and found.controller != controller and found.lease_until_ms > now_ms:
                return False
            table.pools[pool] = Pool(pool, controller, now_ms + lease_ms, now_ms)
            return True

    @override
    def release_pool(self, pool: str, controller: str) -> None:
        with self._locked() as table:
            if self._holds_lease(pool, controller):
                table.pools[pool] = replace(table.pools[pool], lease_until_ms=self.now_ms())

    @override
    def record_decision(self, decision: ScalingDecision) -> bool:
        with self._locked() as table:
            if not self._holds_lease(decision.pool, decision.controller):
                return False
            number = len(table.decisions) + 1
            table.decisions.append(replace(decision, number=number, at_ms=self.now_ms()))
            return True

    @override
    def pools(self) -> list[Pool]:
        with self._locked() as table:
            now_ms = self.now_ms()
            last = {
                decision.pool: decision for decision in table.decisions if self._is_recent(decision.at_ms)
            }
            kept = [pool for pool in table.pools.values() if self._is_recent(pool.lease_until_ms)]
            return [
                replace(pool, read_at_ms=now_ms, decision=last.get(pool.name))
                for pool in sorted(kept, key=lambda pool: pool.name)
            ]

    @override
    def decisions(self, *, pool: str = "", after: str = "", limit: int = 100) -> DecisionPage:
        with self._locked() as table:
            before = number_before(after)
            found = [
                decision
                for decision in reversed(table.decisions)
                if self._is_recent(decision.at_ms)
                and pool in ("", decision.pool)
                and decision.number < before
            ]
            more = len(found) > limit > 0
            return DecisionPage(tuple(found[:limit]), str(found[limit - 1].number) if more else "")

    def _holds_lease(self, pool: str, controller: str) -> bool:
        found = self._table.pools.get(pool)
        return found is not None and found.controller == controller and found.lease_until_ms > self.now_ms()

    def _is_recent(self, at_ms: int) -> bool:
        return at_ms >= self.now_ms() - _KEPT_MS
