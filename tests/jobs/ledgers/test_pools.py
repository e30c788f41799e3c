"""Old pools and decisions in the tables of real databases."""

import pytest

from headrace.jobs.ledger import DAY_MS
from headrace.jobs.ledgers import pool_operations
from headrace.jobs.ledgers.database import Statement
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
