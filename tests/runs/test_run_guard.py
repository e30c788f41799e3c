import pytest

from cases import for_each
from headrace.core.errors import LedgerError
from headrace.runs.ledger import Ledger
from headrace.runs.work import CHECK_INTERVAL_S, RunGuard
from headrace.storage.resolve import MemoryStore
from headrace.testing import ManualClock

OUT = "memory://out/"


def begun_ledger() -> Ledger:
    ledger = Ledger(MemoryStore(), OUT)
    ledger.begin({}, "transform")
    return ledger


@pytest.fixture
def ledger() -> Ledger:
    return begun_ledger()


def make_guard(ledger, clock) -> RunGuard:
    name = ledger.run_id()
    assert name
    return RunGuard(ledger, name, clock)


def test_active_run_permits_writes(ledger):
    clock = ManualClock()
    run_guard = make_guard(ledger, clock)
    for _ in range(3):
        run_guard.check()
        clock.advance(CHECK_INTERVAL_S)


def end(ledger) -> None:
    ledger.finish({})


def abandon(ledger) -> None:
    ledger.abandon()


def delete(ledger) -> None:
    ledger.delete()


def begin_anew(ledger) -> None:
    ledger.abandon()
    ledger.delete()
    ledger.begin({}, "transform")


@for_each("over", [end, abandon, delete, begin_anew])
def test_finished_run_forbids_writes(over):
    ledger = begun_ledger()
    clock = ManualClock()
    run_guard = make_guard(ledger, clock)
    run_guard.check()
    over(ledger)
    # The check reads the ledger at intervals, not for each of many small objects.
    run_guard.check()
    clock.advance(CHECK_INTERVAL_S)
    with pytest.raises(LedgerError, match="is over: the worker stops writing"):
        run_guard.check()


def test_first_check_reads_the_ledger(ledger):
    run_guard = make_guard(ledger, ManualClock())
    end(ledger)
    with pytest.raises(LedgerError):
        run_guard.check()
