"""Pools and decisions in the tables of real databases: deleted rows, and indexes."""

import pytest

from headrace.jobs.ledger import DAY_MS
from headrace.jobs.ledgers import pool_operations
from headrace.jobs.ledgers.database import Statement, read_statement
from headrace.jobs.pools import DECISIONS_KEPT_DAYS, ScalingDecision
from headrace.testing import ManualWallClock
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS


@pytest.fixture
def clock():
    return ManualWallClock()


@pytest.fixture(params=SQL_LEDGERS)
def ledger(request, clock):
    ledger = LEDGERS[request.param](clock, request.getfixturevalue)()
    ledger.start()
    yield ledger
    ledger.stop()


def column(ledger, text):
    """Return the first column of the rows of a query."""
    statement = Statement(text, text)
    return [row[0] for row in ledger._database.run(lambda t: t.run(statement), read_only=True)]


def decide(ledger, pool, wanted):
    assert ledger.control_pool(pool, "c", 1_000)
    assert ledger.record_decision(ScalingDecision(pool, "c", 0, wanted, ""))


def test_each_decision_deletes_some_old_ones(ledger, clock, monkeypatch):
    monkeypatch.setattr(pool_operations, "_DELETED_MAX", 2)
    for wanted in range(5):
        decide(ledger, "p", wanted)
    clock.advance(DECISIONS_KEPT_DAYS * DAY_MS + 1)
    left = []
    for wanted in range(5, 8):
        decide(ledger, "p", wanted)
        left.append(column(ledger, "SELECT wanted FROM headrace_decision ORDER BY number"))
    assert left == [[2, 3, 4, 5], [4, 5, 6], [5, 6, 7]]


def test_each_lease_deletes_old_pools(ledger, clock):
    decide(ledger, "old", 1)
    clock.advance(1)
    decide(ledger, "kept", 1)
    clock.advance(1_000 + DECISIONS_KEPT_DAYS * DAY_MS)
    decide(ledger, "new", 1)
    assert column(ledger, "SELECT name FROM headrace_pool ORDER BY name") == ["kept", "new"]


def test_decisions_of_a_pool_are_found_by_their_index(ledger):
    ledger.control_pool("idle", "c", 1_000)
    for wanted in range(10):
        decide(ledger, "p", wanted)
    copy = (
        "INSERT INTO headrace_decision (at_ms, pool, controller, workers, wanted, reason, observed) "
        "SELECT one.at_ms, 'p', 'c', 0, 0, '', '{}' FROM headrace_decision AS one, headrace_decision AS two"
    )
    for text in (copy, copy, "ANALYZE headrace_decision"):
        ledger._database.run(lambda t, text=text: t.run(Statement(text, text)))
    values = {"pool": "idle", "before_number": 1_000, "kept_ms": 1_000, "row_limit": 2}
    for name in ("pools", "pool_decisions"):
        statement = read_statement(name)
        plan = Statement(f"EXPLAIN {statement.postgresql}", f"EXPLAIN QUERY PLAN {statement.sqlite}")
        rows = ledger._database.run(lambda t, plan=plan: t.run(plan, **values), read_only=True)
        assert "headrace_decision_pool" in str(rows), name
