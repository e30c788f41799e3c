"""How long a call may go on that nobody wants: a time of the clock, once, or its own end."""

import threading

from engine.support import WAIT_S
from headrace.core import SystemClock
from headrace.engine.grace import Grace
from headrace.testing import ManualClock


def test_it_expires_when_its_time_is_over_and_not_before():
    clock, expired = ManualClock(), threading.Event()
    grace = Grace(clock, 5.0, "grace", expired.set)
    clock.wait_for_sleepers()
    clock.advance(4.9)
    assert not expired.is_set()
    clock.advance(0.1)
    assert expired.wait(WAIT_S)
    grace.end()


def test_it_does_not_expire_once_it_has_ended():
    """Its thread is gone by then."""
    before = threading.active_count()
    clock, expired = ManualClock(), []
    grace = Grace(clock, 5.0, "grace", lambda: expired.append(1))
    clock.wait_for_sleepers()
    grace.end()
    assert threading.active_count() == before
    clock.advance(10.0)
    assert expired == []


def test_none_at_all_is_over_at_once():
    expired = threading.Event()
    grace = Grace(SystemClock(), 0.0, "grace", expired.set)
    assert expired.wait(WAIT_S)
    grace.end()
    grace.end()
