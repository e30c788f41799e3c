"""The timer of unwanted calls: it expires once, or is cancelled."""

import threading

from engine.support import WAIT_S
from headrace.core import SystemClock
from headrace.engine.process.contained_process import KillTimer
from headrace.testing import ManualClock


def test_timer_expires_at_its_time():
    clock, expired = ManualClock(), threading.Event()
    kill_timer = KillTimer(clock, 5.0, "grace", expired.set)
    clock.wait_for_sleepers()
    clock.advance(4.9)
    assert not expired.is_set()
    clock.advance(0.1)
    assert expired.wait(WAIT_S)
    kill_timer.cancel()


def test_cancelled_timer_does_not_expire():
    """Its thread has ended by then."""
    before = threading.active_count()
    clock, expired = ManualClock(), []
    kill_timer = KillTimer(clock, 5.0, "grace", lambda: expired.append(1))
    clock.wait_for_sleepers()
    kill_timer.cancel()
    assert threading.active_count() == before
    clock.advance(10.0)
    assert expired == []


def test_zero_grace_expires_at_once():
    expired = threading.Event()
    kill_timer = KillTimer(SystemClock(), 0.0, "grace", expired.set)
    assert expired.wait(WAIT_S)
    kill_timer.cancel()
    kill_timer.cancel()
