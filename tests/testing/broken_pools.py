"""Ledgers with broken pools of workers, and the check that finds each."""

from dataclasses import replace

from headrace.core.errors import DataError
from headrace.jobs.pools import DecisionPage, Pool
from headrace.testing import MemoryJobLedger
from testing.race_window import RaceWindow


class SharesLeases(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        super().control_pool(pool, controller, lease_ms)
        return True


class RefusalsExtendLeases(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        taken = super().control_pool(pool, controller, lease_ms)
        found = self._table.pools[pool]
        self._table.pools[pool] = replace(found, lease_until_ms=self.now_ms() + lease_ms)
        return taken


class LeasesOfOneLedger(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        own = f"{controller} of {id(self)}"
        taken = super().control_pool(pool, own, lease_ms)
        if taken:
            self._table.pools[pool] = replace(self._table.pools[pool], controller=controller)
        return taken


class OneLeaseForAllPools(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        held = any(each.controlled and each.controller != controller for each in self.pools())
        return not held and super().control_pool(pool, controller, lease_ms)


class UnsortedPools(MemoryJobLedger):
    def pools(self):
        return super().pools()[::-1]


class NeverExtends(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        return self._holds_lease(pool, controller) or super().control_pool(pool, controller, lease_ms)


class ExtendsByTheLease(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        before = self._table.pools.get(pool)
        taken = super().control_pool(pool, controller, lease_ms)
        if taken and before and before.controller == controller:
            until_ms = before.lease_until_ms + lease_ms
            self._table.pools[pool] = replace(self._table.pools[pool], lease_until_ms=until_ms)
        return taken


class LeasesNeverExpire(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        found = self._table.pools.get(pool)
        held = found is not None and found.controller != controller
        return not held and super().control_pool(pool, controller, lease_ms)


class LeasesExpireEarly(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        return super().control_pool(pool, controller, lease_ms - 1)


class ReleasesForAnyController(MemoryJobLedger):
    def release_pool(self, pool, controller):
        if (found := self._table.pools.get(pool)) is not None:
            super().release_pool(pool, found.controller)


class ReleasesNothing(MemoryJobLedger):
    def release_pool(self, pool, controller):
        pass


class ReleasesCreatePools(MemoryJobLedger):
    def release_pool(self, pool, controller):
        now_ms = self.now_ms()
        self._table.pools.setdefault(pool, Pool(pool, controller, now_ms, now_ms))
        super().release_pool(pool, controller)


class ReleasesForgetPools(MemoryJobLedger):
    def release_pool(self, pool, controller):
        if self._holds_lease(pool, controller):
            del self._table.pools[pool]


class ReleasesAgain(MemoryJobLedger):
    def release_pool(self, pool, controller):
        found = self._table.pools.get(pool)
        if found and found.controller == controller:
            self._table.pools[pool] = replace(found, lease_until_ms=self.now_ms())


class DecisionsOfAnyController(MemoryJobLedger):
    def record_decision(self, decision):
        found = self._table.pools.get(decision.pool)
        if not found or not self._holds_lease(decision.pool, found.controller):
            return False
        return super().record_decision(replace(decision, controller=found.controller))


class DecisionsAfterLeases(MemoryJobLedger):
    def _holds_lease(self, pool, controller):
        found = self._table.pools.get(pool)
        return found is not None and found.controller == controller


class RecordsRefusedDecisions(MemoryJobLedger):
    def record_decision(self, decision):
        recorded = super().record_decision(decision)
        if not recorded:
            number = len(self._table.decisions) + 1
            self._table.decisions.append(replace(decision, number=number, at_ms=self.now_ms()))
        return recorded


class DecisionsWithoutObservations(MemoryJobLedger):
    def record_decision(self, decision):
        return super().record_decision(replace(decision, observed={}))


class DecisionsOfAllPools(MemoryJobLedger):
    def decisions(self, *, pool="", after="", limit=100):
        return super().decisions(after=after, limit=limit)


class DecisionsOldestFirst(MemoryJobLedger):
    def decisions(self, *, pool="", after="", limit=100):
        found = super().decisions(pool=pool, limit=1_000).decisions[::-1]
        start = int(after or 0)
        more = start + limit < len(found)
        return DecisionPage(found[start : start + limit], str(start + limit) if more else "")


class DecisionPagesByCount(MemoryJobLedger):
    def decisions(self, *, pool="", after="", limit=100):
        found = super().decisions(pool=pool, limit=1_000).decisions
        start = int(after or 0)
        more = start + limit < len(found)
        return DecisionPage(found[start : start + limit], str(start + limit) if more else "")


class DecisionPagesEndEarly(MemoryJobLedger):
    def decisions(self, *, pool="", after="", limit=100):
        return replace(super().decisions(pool=pool, after=after, limit=limit), next_after="")


class AcceptsAnyPosition(MemoryJobLedger):
    def decisions(self, *, pool="", after="", limit=100):
        try:
            return super().decisions(pool=pool, after=after, limit=limit)
        except DataError:
            return super().decisions(pool=pool, limit=limit)


class KeepsAllDecisions(MemoryJobLedger):
    def decisions(self, *, pool="", after="", limit=100):
        self._is_recent = lambda at_ms: True
        try:
            return super().decisions(pool=pool, after=after, limit=limit)
        finally:
            del self._is_recent


class KeepsAllPools(MemoryJobLedger):
    def pools(self):
        return [replace(pool, read_at_ms=self.now_ms()) for _, pool in sorted(self._table.pools.items())]


class ForgetsPoolsEarly(MemoryJobLedger):
    def pools(self):
        return [pool for pool in super().pools() if self._is_recent(pool.lease_until_ms - 1)]


class ForgottenPoolsKeepControllers(MemoryJobLedger):
    def control_pool(self, pool, controller, lease_ms):
        found = self._table.pools.get(pool)
        taken = super().control_pool(pool, controller, lease_ms)
        if taken and found is not None:
            self._table.pools[pool] = replace(self._table.pools[pool], controller=found.controller)
        return taken


class PoolsWithFirstDecisions(MemoryJobLedger):
    def pools(self):
        first = {decision.pool: decision for decision in reversed(self._table.decisions)}
        return [replace(pool, decision=first.get(pool.name)) for pool in super().pools()]


class PoolsWithTheLastDecision(MemoryJobLedger):
    def pools(self):
        last = self._table.decisions[-1] if self._table.decisions else None
        return [replace(pool, decision=last) for pool in super().pools()]


class PoolsKeepOldDecisions(MemoryJobLedger):
    def pools(self):
        last = {decision.pool: decision for decision in self._table.decisions}
        return [replace(pool, decision=last.get(pool.name)) for pool in super().pools()]


class ControlsInTwoTransactions(MemoryJobLedger):
    """Reads the lease and takes it in two transactions."""

    window = RaceWindow()

    def control_pool(self, pool, controller, lease_ms):
        with self._locked() as table:
            found = table.pools.get(pool)
            if found is not None and found.lease_until_ms > self.now_ms():
                return found.controller == controller
        self.window.open()
        with self._locked() as table:
            table.pools[pool] = Pool(pool, controller, self.now_ms() + lease_ms, 0)
            return True


BROKEN_POOLS = [
    (SharesLeases, "check_pool_lease"),
    (RefusalsExtendLeases, "check_pool_lease"),
    (OneLeaseForAllPools, "check_pool_lease"),
    (UnsortedPools, "check_pool_lease"),
    (NeverExtends, "check_extended_pool_lease"),
    (ExtendsByTheLease, "check_extended_pool_lease"),
    (LeasesOfOneLedger, "check_extended_pool_lease"),
    (LeasesNeverExpire, "check_expired_pool_lease"),
    (LeasesExpireEarly, "check_expired_pool_lease"),
    (ReleasesForAnyController, "check_released_pool_lease"),
    (ReleasesNothing, "check_released_pool_lease"),
    (ReleasesCreatePools, "check_released_pool_lease"),
    (ReleasesForgetPools, "check_released_pool_lease"),
    (ReleasesAgain, "check_released_pool_lease"),
    (DecisionsOfAnyController, "check_decision_of_a_controller"),
    (DecisionsAfterLeases, "check_decision_of_a_controller"),
    (RecordsRefusedDecisions, "check_decision_of_a_controller"),
    (DecisionsWithoutObservations, "check_decision_of_a_controller"),
    (DecisionsOfAllPools, "check_decisions"),
    (DecisionsOldestFirst, "check_decisions"),
    (DecisionPagesByCount, "check_decisions"),
    (DecisionPagesEndEarly, "check_decisions"),
    (AcceptsAnyPosition, "check_position_of_decisions"),
    (KeepsAllDecisions, "check_kept_decisions"),
    (DecisionPagesEndEarly, "check_kept_decisions"),
    (KeepsAllPools, "check_kept_pools"),
    (ForgetsPoolsEarly, "check_kept_pools"),
    (ForgottenPoolsKeepControllers, "check_kept_pools"),
    (PoolsWithFirstDecisions, "check_last_decisions_of_pools"),
    (PoolsWithTheLastDecision, "check_last_decisions_of_pools"),
    (PoolsKeepOldDecisions, "check_last_decisions_of_pools"),
    (ControlsInTwoTransactions, "check_pool_race"),
]
