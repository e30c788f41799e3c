import pytest

from headrace.core.errors import LedgerError
from headrace.storage.memory import MemoryStore
from headrace.testing import ManualClock
from headrace.transforms.fence import LOOKED_EVERY_S, Fence
from headrace.transforms.ledger import TransformLedger

OUT = "memory://out/"


@pytest.fixture
def ledger() -> TransformLedger:
    made = TransformLedger(MemoryStore(), OUT)
    made.begin({}, ())
    return made


def fence_of(ledger, clock) -> Fence:
    name = ledger.run()
    assert name
    return Fence(ledger, name, clock)


def test_while_its_run_goes_on_a_worker_writes(ledger):
    clock = ManualClock()
    fence = fence_of(ledger, clock)
    for _ in range(3):
        fence.check()
        clock.advance(LOOKED_EVERY_S)


def end(ledger) -> None:
    ledger.finish({})


def abandon(ledger) -> None:
    ledger.abandon()


def delete(ledger) -> None:
    ledger.delete()


def begin_anew(ledger) -> None:
    ledger.abandon()
    ledger.delete()
    ledger.begin({}, ())


@pytest.mark.parametrize("over", [end, abandon, delete, begin_anew])
def test_when_its_run_is_over_it_writes_nothing(ledger, over):
    clock = ManualClock()
    fence = fence_of(ledger, clock)
    fence.check()
    over(ledger)
    # It looks once in a while, not before each of many small objects.
    fence.check()
    clock.advance(LOOKED_EVERY_S)
    with pytest.raises(LedgerError, match="is over; it writes nothing more"):
        fence.check()


def test_one_that_was_never_asked_before_looks_at_once(ledger):
    fence = fence_of(ledger, ManualClock())
    end(ledger)
    with pytest.raises(LedgerError):
        fence.check()
