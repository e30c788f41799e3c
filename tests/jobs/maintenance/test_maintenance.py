"""Maintenance tasks: own intervals, own threads, and a pause after a ledger outage."""

import logging
import threading

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError
from headrace.jobs.maintenance.maintenance import Maintenance, MaintenanceTask
from headrace.testing import ManualClock, check_service

WAIT_S = 20.0


class Counted:
    """A task that counts its rounds. `answers` are the results or errors of the first rounds."""

    def __init__(self, *answers):
        self.rounds = threading.Semaphore(0)
        self._answers = iter(answers)

    def __call__(self) -> int:
        answer = next(self._answers, 0)
        self.rounds.release()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def was_done(self) -> bool:
        return self.rounds.acquire(timeout=WAIT_S)

    def was_not(self) -> bool:
        return not self.rounds.acquire(blocking=False)


@pytest.fixture
def clock():
    return ManualClock()


def keeping(clock, *chores, **given):
    upkeep = Maintenance(chores, clock=clock, seed=1, **{"hold_off_s": 60.0, **given})
    upkeep.start()
    clock.wait_for_sleepers(len(chores))
    return upkeep


def test_maintenance_is_a_service():
    check_service(
        lambda: Maintenance(
            [MaintenanceTask("a", 5.0, lambda: 0), MaintenanceTask("b", 5.0, lambda: 0)], hold_off_s=1.0
        )
    )


def test_task_runs_at_its_interval(clock):
    do = Counted()
    upkeep = keeping(clock, MaintenanceTask("a", 100.0, do))
    for _ in range(4):
        assert do.was_not()
        clock.advance(125.0)
        assert do.was_done()
        clock.wait_for_sleepers()
    assert all(75.0 <= s <= 125.0 for s in clock.slept_s[1:])
    assert 0.0 <= clock.slept_s[0] <= 100.0
    upkeep.stop()


def test_full_round_is_repeated_at_once(clock):
    do = Counted(10, 10, 3)
    upkeep = keeping(clock, MaintenanceTask("a", 100.0, do, full=10))
    clock.advance(100.0)
    for _ in range(3):
        assert do.was_done()
    clock.wait_for_sleepers()
    assert do.was_not()
    upkeep.stop()


@pytest.mark.parametrize("error", [ConfigError("no"), ZeroDivisionError()])
def test_failed_round_is_repeated_at_its_next_time(clock, error, caplog):
    caplog.set_level(logging.CRITICAL)
    do = Counted(error)
    upkeep = keeping(clock, MaintenanceTask("a", 100.0, do))
    clock.advance(100.0)
    assert do.was_done()
    clock.wait_for_sleepers()
    clock.advance(125.0)
    assert do.was_done()
    upkeep.stop()


def test_hanging_task_does_not_block_others(clock):
    """Regression: all tasks shared one thread, so a hanging store kept expired leases for hours."""
    held, begun, other = threading.Event(), threading.Event(), Counted()

    def hang():
        begun.set()
        assert held.wait(WAIT_S)
        return 0

    upkeep = keeping(clock, MaintenanceTask("publisher", 5.0, hang), MaintenanceTask("reaper", 5.0, other))
    clock.advance(5.0)
    assert begun.wait(WAIT_S)
    for _ in range(3):
        assert other.was_done()
        clock.wait_for_sleepers()
        clock.advance(6.25)
    held.set()
    upkeep.stop()


def test_unavailable_ledger_pauses_all_tasks(clock):
    away, other = Counted(JobLedgerUnavailableError("away")), Counted()
    upkeep = keeping(
        clock, MaintenanceTask("a", 1.0, away), MaintenanceTask("b", 50.0, other), hold_off_s=1000.0
    )
    clock.advance(1.0)
    assert away.was_done()
    clock.wait_for_sleepers(2)
    clock.advance(900.0)
    threading.Event().wait(0)
    assert away.was_not()
    clock.wait_for_sleepers(2)
    assert other.was_not()
    clock.advance(1000.0)
    assert away.was_done()
    assert other.was_done()
    upkeep.stop()


def test_stop_does_not_wait_forever_for_a_round(clock, caplog):
    held, begun = threading.Event(), threading.Event()

    def hang():
        begun.set()
        held.wait(WAIT_S)
        return 0

    upkeep = keeping(clock, MaintenanceTask("sweeper", 5.0, hang), stop_s=0.0)
    clock.advance(5.0)
    assert begun.wait(WAIT_S)
    upkeep.stop()
    assert "headrace-sweeper" in caplog.text
    held.set()
