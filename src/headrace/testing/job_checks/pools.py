"""Checks of pools of workers: the leases of their controllers, and the log of decisions."""

from dataclasses import replace
from functools import partial
from typing import Final

from headrace.core.errors import DataError
from headrace.jobs.ledger import DAY_MS, JobLedger
from headrace.jobs.pools import DECISIONS_KEPT_DAYS, Pool, ScalingDecision
from headrace.testing.expect import equal, raises, true
from headrace.testing.job_checks.bench import LEASE_MS, LedgerBench, run_concurrently

_KEPT_MS: Final = DECISIONS_KEPT_DAYS * DAY_MS
_RACE_THREADS: Final = 4
_RACE_ROUNDS: Final = 3
_PAGES_MAX: Final = 50


def check_pool_lease(bench: LedgerBench) -> None:
    """Check that one controller at a time holds the lease of a pool, for all ledgers."""
    equal(bench.ledger.pools(), [], "the pools of a new ledger")
    now_ms = bench.advance(5)
    other = bench.start_ledger()
    equal(bench.ledger.control_pool("p", "a", LEASE_MS), True, "the lease of an unknown pool")
    pool = Pool("p", "a", now_ms + LEASE_MS, now_ms)
    true(pool.controlled, "a pool with a lease is not controlled")
    bench.advance(1)
    for ledger in (bench.ledger, other):
        equal(ledger.control_pool("p", "b", 9 * LEASE_MS), False, "the lease of a controlled pool")
        equal(ledger.pools(), [replace(pool, read_at_ms=now_ms + 1)], "the pool after a refusal")
    equal(other.control_pool("o", "b", LEASE_MS), True, "the lease of another pool")
    names = [(each.name, each.controller) for each in bench.ledger.pools()]
    equal(names, [("o", "b"), ("p", "a")], "the pools by name, with their controllers")


def check_extended_pool_lease(bench: LedgerBench) -> None:
    """Check that a controller extends its lease from the current time, through any ledger."""
    bench.ledger.control_pool("p", "a", LEASE_MS)
    now_ms = bench.advance(LEASE_MS - 1)
    equal(bench.start_ledger().control_pool("p", "a", LEASE_MS), True, "the extension of a lease")
    equal(_pool(bench.ledger), Pool("p", "a", now_ms + LEASE_MS, now_ms), "the pool after an extension")
    bench.advance(LEASE_MS - 1)
    equal(bench.ledger.control_pool("p", "b", LEASE_MS), False, "the lease of another controller")


def check_expired_pool_lease(bench: LedgerBench) -> None:
    """Check that a lease ends by the ledger's clock, and that another controller takes it then."""
    bench.ledger.control_pool("p", "a", LEASE_MS)
    bench.advance(LEASE_MS - 1)
    equal(bench.ledger.control_pool("p", "b", LEASE_MS), False, "the lease in its last millisecond")
    now_ms = bench.advance(1)
    expired = Pool("p", "a", now_ms, now_ms)
    equal((_pool(bench.ledger), expired.controlled), (expired, False), "the pool after its lease")
    equal(bench.ledger.control_pool("p", "b", LEASE_MS), True, "the expired lease")
    equal(_pool(bench.ledger), Pool("p", "b", now_ms + LEASE_MS, now_ms), "the pool of another controller")
    equal(bench.ledger.control_pool("p", "a", LEASE_MS), False, "the lease that passed on")


def check_released_pool_lease(bench: LedgerBench) -> None:
    """Check that the holder ends its lease at once, and that others end none."""
    now_ms = bench.advance(0)
    bench.ledger.release_pool("unknown", "a")
    bench.ledger.control_pool("p", "a", LEASE_MS)
    bench.ledger.control_pool("o", "a", LEASE_MS)
    bench.ledger.release_pool("p", "b")
    held = [Pool(name, "a", now_ms + LEASE_MS, now_ms) for name in ("o", "p")]
    equal(bench.ledger.pools(), held, "the pools after a release by another controller")
    now_ms = bench.advance(5)
    bench.ledger.release_pool("p", "a")
    released = [replace(held[0], read_at_ms=now_ms), Pool("p", "a", now_ms, now_ms)]
    equal(bench.ledger.pools(), released, "the pools after a release")
    bench.advance(5)
    bench.ledger.release_pool("p", "a")
    equal(_pool(bench.ledger).lease_until_ms, now_ms, "the end of a lease that was released again")
    equal(bench.ledger.control_pool("p", "b", LEASE_MS), True, "the lease after its release")
    bench.ledger.release_pool("p", "a")
    equal(bench.ledger.control_pool("p", "a", LEASE_MS), False, "the lease after a late release")


def check_decision_of_a_controller(bench: LedgerBench) -> None:
    """Check that only the holder of a pool's lease records decisions about it."""
    decision = ScalingDecision("p", "a", 2, 5, "7 jobs wait", {"due": 7, "jobs": [1.5, None]})
    ledger = bench.ledger
    equal(ledger.record_decision(decision), False, "a decision about an unknown pool")
    ledger.control_pool("p", "a", LEASE_MS)
    ledger.control_pool("o", "b", LEASE_MS)
    equal(ledger.record_decision(replace(decision, controller="b")), False, "one of another controller")
    equal(ledger.record_decision(replace(decision, pool="o")), False, "one about another pool")
    now_ms = bench.advance(LEASE_MS - 1)
    equal(bench.start_ledger().record_decision(decision), True, "a decision of the controller")
    recorded = _decisions(ledger)
    numbers = [each.number for each in recorded]
    wanted = [replace(decision, number=number, at_ms=now_ms) for number in numbers]
    equal((len(recorded), recorded), (1, wanted), "the recorded decision")
    bench.advance(1)
    equal(ledger.record_decision(decision), False, "a decision after the lease")
    ledger.control_pool("p", "a", LEASE_MS)
    ledger.release_pool("p", "a")
    equal(ledger.record_decision(decision), False, "a decision after the release")
    ledger.control_pool("p", "b", LEASE_MS)
    equal(ledger.record_decision(decision), False, "a decision of an earlier controller")
    equal(_decisions(ledger), recorded, "the decisions after refused ones")


def check_decisions(bench: LedgerBench) -> None:
    """Check that pages have all decisions, or those of a pool, newest first."""
    equal(bench.ledger.decisions().decisions, (), "the decisions of a new ledger")
    ledgers = (bench.ledger, bench.start_ledger())
    for number in range(7):
        _decide(ledgers[number % 2], "ab"[number % 3 == 0], f"r{number}")
        bench.advance(number % 2)
    equal(_reasons(bench.ledger), ["r6", "r5", "r4", "r3", "r2", "r1", "r0"], "all decisions")
    equal(_reasons(bench.ledger, "b"), ["r6", "r3", "r0"], "the decisions of a pool")
    equal(_reasons(bench.ledger, "c"), [], "the decisions of an unknown pool")
    first = bench.ledger.decisions(limit=2)
    _decide(bench.ledger, "a", "r7")
    second = bench.ledger.decisions(after=first.next_after, limit=2)
    equal([each.reason for each in second.decisions], ["r4", "r3"], "a page after a new decision")


def check_position_of_decisions(bench: LedgerBench) -> None:
    """Check that a position that no page returned is refused."""
    _decide(bench.ledger, "p", "r")
    for after in ("x", "-1", "1.5", "9" * 19, "9" * 5_000):
        raises(DataError, partial(bench.ledger.decisions, after=after), f"the page after {after:.20}")


def check_kept_decisions(bench: LedgerBench) -> None:
    """Check that a decision leaves the log after `DECISIONS_KEPT_DAYS`."""
    for reason in ("r0", "r1", "r2"):
        _decide(bench.ledger, "p", reason)
    bench.advance(1)
    _decide(bench.ledger, "p", "r3")
    bench.advance(_KEPT_MS - 1)
    equal(_reasons(bench.ledger), ["r3", "r2", "r1", "r0"], "the decisions on the last day")
    bench.advance(1)
    for pool in ("", "p"):
        equal(_reasons(bench.ledger, pool), ["r3"], "the decisions after that")
    _decide(bench.ledger, "p", "r4")
    equal(_reasons(bench.ledger), ["r4", "r3"], "the decisions after another one")


def check_kept_pools(bench: LedgerBench) -> None:
    """Check that a pool is forgotten `DECISIONS_KEPT_DAYS` after the end of its last lease."""
    bench.ledger.control_pool("old", "a", LEASE_MS)
    bench.ledger.control_pool("kept", "a", LEASE_MS + 1)
    bench.advance(LEASE_MS + _KEPT_MS)
    equal([pool.name for pool in bench.ledger.pools()], ["kept", "old"], "the pools on the last day")
    now_ms = bench.advance(1)
    equal([pool.name for pool in bench.ledger.pools()], ["kept"], "the pools after that")
    bench.ledger.control_pool("new", "a", LEASE_MS)
    equal([pool.name for pool in bench.ledger.pools()], ["kept", "new"], "the pools after another lease")
    equal(bench.ledger.control_pool("old", "b", LEASE_MS), True, "the lease of a forgotten pool")
    pools = {pool.name: pool for pool in bench.ledger.pools()}
    equal(pools["old"], Pool("old", "b", now_ms + LEASE_MS, now_ms), "the pool that was created again")


def check_last_decisions_of_pools(bench: LedgerBench) -> None:
    """Check that each pool has its last decision while that is kept."""
    for pool, reason in (("a", "a0"), ("b", "b0"), ("a", "a1"), ("b", "b1"), ("a", "a2")):
        _decide(bench.ledger, pool, reason)
    bench.ledger.control_pool("c", "ctl", LEASE_MS)
    equal(_last_reasons(bench.ledger), {"a": "a2", "b": "b1", "c": None}, "the last decisions of the pools")
    last = bench.ledger.decisions(pool="b").decisions[:1]
    equal(tuple(pool.decision for pool in bench.ledger.pools())[1:2], last, "the last decision of a pool")
    bench.advance(_KEPT_MS)
    _decide(bench.ledger, "b", "b2")
    equal(
        _last_reasons(bench.ledger), {"a": "a2", "b": "b2", "c": None}, "the last decisions on the last day"
    )
    bench.advance(1)
    equal(_last_reasons(bench.ledger), {"a": None, "b": "b2", "c": None}, "the last decisions after that")


def check_pool_race(bench: LedgerBench) -> None:
    """Check that one of several concurrent controllers takes the lease, and alone records decisions."""
    ledgers = (bench.ledger, bench.start_ledger())
    names = [f"c{number}" for number in range(_RACE_THREADS)]
    for number in range(_RACE_ROUNDS):
        taken = run_concurrently(
            partial(ledgers[each % 2].control_pool, "p", name, LEASE_MS) for each, name in enumerate(names)
        )
        equal(sum(taken), 1, "the number of controllers that took one lease")
        winner = names[taken.index(True)]
        equal(_pool(bench.ledger).controller, winner, "the controller that took the lease")
        recorded = run_concurrently(
            partial(ledgers[each % 2].record_decision, ScalingDecision("p", name, 0, number, ""))
            for each, name in enumerate(names)
        )
        equal(recorded, taken, "the controllers that recorded a decision")
        bench.advance(LEASE_MS)
    equal([each.wanted for each in _decisions(bench.ledger)], [2, 1, 0], "the decisions of all leases")


def _decide(ledger: JobLedger, pool: str, reason: str) -> None:
    """Take the lease of a pool and record a decision."""
    ledger.control_pool(pool, "ctl", LEASE_MS)
    recorded = ledger.record_decision(ScalingDecision(pool, "ctl", 1, 2, reason))
    true(recorded, "a decision of the controller was refused")


def _pool(ledger: JobLedger, name: str = "p") -> Pool:
    found = [pool for pool in ledger.pools() if pool.name == name]
    equal(len(found), 1, f"the number of pools {name}")
    return found[0]


def _last_reasons(ledger: JobLedger) -> dict[str, str | None]:
    return {pool.name: pool.decision and pool.decision.reason for pool in ledger.pools()}


def _reasons(ledger: JobLedger, pool: str = "") -> list[str]:
    return [decision.reason for decision in _decisions(ledger, pool)]


def _decisions(ledger: JobLedger, pool: str = "") -> list[ScalingDecision]:
    """Return the decisions of a pool, or all, after a check that pages of any size have them too."""
    listed: list[list[ScalingDecision]] = []
    for limit in (100, 2, 1):
        found: list[ScalingDecision] = []
        after = ""
        for _ in range(_PAGES_MAX):
            page = ledger.decisions(pool=pool, after=after, limit=limit)
            true(len(page.decisions) <= limit, f"a page of {limit} has {len(page.decisions)} decisions")
            found += page.decisions
            after = page.next_after
            if not after:
                break
        listed.append(found)
    equal(listed[1:], [listed[0], listed[0]], "the decisions in pages of 2 and 1")
    return listed[0]
