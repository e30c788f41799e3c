"""The registry of workers at its limit."""

import pytest

from headrace.jobs.ledgers import worker_operations
from headrace.jobs.worker_registry import WorkerInfo
from headrace.testing import ManualWallClock, memory_workers
from jobs.ledger_fixtures import LEDGERS


@pytest.mark.parametrize("kind", LEDGERS)
def test_stopped_workers_take_no_place_of_living_ones(kind, request, monkeypatch):
    """A controller counts the listed workers, and would replace those that are missing."""
    for module in (worker_operations, memory_workers):
        monkeypatch.setattr(module, "WORKERS_MAX", 2)
    clock = ManualWallClock()
    ledger = LEDGERS[kind](clock, request.getfixturevalue)()
    ledger.start()
    for name in ("living-1", "living-2", "stopped"):
        ledger.register_worker(WorkerInfo(name))
        clock.advance(1_000)
    ledger.end_worker("stopped")
    assert [record.info.name for record in ledger.workers()] == ["living-1", "living-2"]
    ledger.stop()
