"""Maintenance tasks: own intervals, own threads, and a pause after a ledger outage."""

import logging
import threading

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError
from headrace.jobs.maintenance import Maintenance, MaintenanceTask
from headrace.testing import ManualClock, check_service

WAIT_S = 20.0


class CountedTask:
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

    def ran(self) -> bool:
        return self.rounds.acquire(timeout=WAIT_S)

    def did_not_run(self) -> bool:
        return not self.rounds.acquire(blocking=False)


@pytest.fixture
def clock():
    return ManualClock()


def start_maintenance(clock, *tasks, **settings):
    maintenance = Maintenance(tasks, clock=clock, seed=1, **{"hold_off_s": 60.0, **settings})
    maintenance.start()
    clock.wait_for_sleepers(len(tasks))
    return maintenance


def test_maintenance_is_a_service():
    check_service(
        lambda: Maintenance(
            [MaintenanceTask("a", 5.0, lambda: 0), MaintenanceTask("b", 5.0, lambda: 0)], hold_off_s=1.0
        )
    )


def test_task_runs_at_its_interval(clock):
    task = CountedTask()
    maintenance = start_maintenance(clock, MaintenanceTask("a", 100.0, task))
    for _ in range(4):
        assert task.did_not_run()
        clock.advance(125.0)
        assert task.ran()
        clock.wait_for_sleepers()
    assert all(75.0 <= s <= 125.0 for s in clock.slept_s[1:])
    assert 0.0 <= clock.slept_s[0] <= 100.0
    maintenance.stop()


def test_full_round_is_repeated_at_once(clock):
    task = CountedTask(10, 10, 3)
    maintenance = start_maintenance(clock, MaintenanceTask("a", 100.0, task, full=10))
    clock.advance(100.0)
    for _ in range(3):
        assert task.ran()
    clock.wait_for_sleepers()
    assert task.did_not_run()
    maintenance.stop()


@pytest.mark.parametrize("error", [ConfigError("no"), ZeroDivisionError()])
def test_failed_round_is_repeated_at_its_next_time(clock, error, caplog):
    caplog.set_level(logging.CRITICAL)
    task = CountedTask(error)
    maintenance = start_maintenance(clock, MaintenanceTask("a", 100.0, task))
    clock.advance(100.0)
    assert task.ran()
    clock.wait_for_sleepers()
    clock.advance(125.0)
    assert task.ran()
    maintenance.stop()


def test_hanging_task_does_not_block_others(clock):
    """Regression: all tasks shared one thread, so a hanging store kept expired leases for hours."""
    held, begun, other = threading.Event(), threading.Event(), CountedTask()

    def hang():
        begun.set()
        assert held.wait(WAIT_S)
        return 0

    maintenance = start_maintenance(
        clock, MaintenanceTask("publisher", 5.0, hang), MaintenanceTask("reaper", 5.0, other)
    )
    clock.advance(5.0)
    assert begun.wait(WAIT_S)
    for _ in range(3):
        assert other.ran()
        clock.wait_for_sleepers()
        clock.advance(6.25)
    held.set()
    maintenance.stop()


def test_unavailable_ledger_pauses_all_tasks(clock):
    failing, other = CountedTask(JobLedgerUnavailableError("unavailable")), CountedTask()
    maintenance = start_maintenance(
        clock, MaintenanceTask("a", 1.0, failing), MaintenanceTask("b", 50.0, other), hold_off_s=1000.0
    )
    clock.advance(1.0)
    assert failing.ran()
    clock.wait_for_sleepers(2)
    clock.advance(900.0)
    assert failing.did_not_run()
    clock.wait_for_sleepers(2)
    assert other.did_not_run()
    clock.advance(1000.0)
    assert failing.ran()
    assert other.ran()
    maintenance.stop()


def test_stop_does_not_wait_forever_for_a_round(clock, caplog):
    held, begun = threading.Event(), threading.Event()

    def hang():
        begun.set()
        held.wait(WAIT_S)
        return 0

    maintenance = start_maintenance(clock, MaintenanceTask("sweeper", 5.0, hang), stop_s=0.0)
    clock.advance(5.0)
    assert begun.wait(WAIT_S)
    maintenance.stop()
    assert "headrace-sweeper" in caplog.text
    held.set()
