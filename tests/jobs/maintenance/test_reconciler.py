"""The reconciler: overdue pending jobs are announced again."""

import pytest

from headrace.jobs.job import NewJob
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.maintenance import Reconciler
from headrace.testing import ManualWallClock, MemoryJobLedger


@pytest.fixture
def wall():
    return ManualWallClock()


@pytest.fixture
def ledger(wall):
    made = MemoryJobLedger(wall)
    made.start()
    return made


def submit(ledger, count=1, **spec):
    return {s.job.id for s in ledger.submit([NewJob(**spec)] * count)}


def reconciled(ledger, **settings):
    announced: dict[str, list[str]] = {}
    count = Reconciler(ledger, announced.__setitem__, **settings).tick()
    assert count == sum(map(len, announced.values()))
    return {queue: set(ids) for queue, ids in announced.items()}


def test_only_overdue_jobs_are_announced(ledger, wall):
    old = submit(ledger, 2)
    submit(ledger, delay_ms=3_600_000)
    soon = submit(ledger, delay_ms=10_000)
    wall.advance(29_999)
    assert reconciled(ledger) == {}
    wall.advance(1)
    submit(ledger)
    assert reconciled(ledger) == {"default": old}
    wall.advance(10_000)
    assert reconciled(ledger)["default"] >= old | soon


def test_newer_jobs_that_are_not_due_do_not_hide_overdue_ones(ledger, wall):
    """Regression: the 500 newest jobs were announced, due or not."""
    old = submit(ledger, 3)
    submit(ledger, 1_200, delay_ms=3_600_000)
    wall.advance(30_000)
    assert reconciled(ledger) == {"default": old}


def test_round_has_a_limit(ledger, wall):
    submit(ledger, 30)
    wall.advance(30_000)
    assert len(reconciled(ledger, round_jobs=7)["default"]) == 7


def test_paused_queues_are_skipped(ledger, wall):
    submit(ledger)
    other = submit(ledger, queue="other")
    ledger.set_queue(QueueSettings("default", paused=True))
    wall.advance(30_000)
    assert reconciled(ledger) == {"other": other}
