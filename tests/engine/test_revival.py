"""When a dead instance is started again: at once, then ever later, and not for ever."""

import threading

import pytest

from headrace.core.errors import ModelLoadError, StoppedError
from headrace.engine.revival import STARTS_MAX, Revival
from headrace.testing import ManualClock


class _Backend:
    """Fails to start as often as it is told to."""

    def __init__(self, failures=0):
        self.failures = failures
        self.starts = 0

    def restart(self):
        self.starts += 1
        if self.failures:
            self.failures -= 1
            raise ModelLoadError("m", "no weights")


def _revival(backend):
    clock = ManualClock(auto=True)
    return Revival(backend, "m", clock), clock


def _revive(revival, wanted=lambda: True):
    revival.revive(threading.Event(), wanted)


def test_the_first_death_is_answered_at_once():
    backend = _Backend()
    revival, clock = _revival(backend)
    _revive(revival)
    assert (backend.starts, clock.slept_s) == (1, ())


def test_deaths_in_a_row_wait_ever_longer_and_at_most_so_long():
    revival, clock = _revival(_Backend())
    for _ in range(10):
        _revive(revival)
    assert clock.slept_s == pytest.approx((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10))


def test_an_answer_in_between_ends_the_row():
    revival, clock = _revival(_Backend())
    for _ in range(5):
        _revive(revival)
        revival.proved()
    assert clock.slept_s == ()


def test_starts_that_fail_are_tried_again_and_not_for_ever():
    backend = _Backend(STARTS_MAX - 1)
    revival, clock = _revival(backend)
    _revive(revival)
    assert clock.slept_s == pytest.approx((0.1, 0.2, 0.4, 0.8))
    backend.failures, backend.starts = STARTS_MAX, 0
    with pytest.raises(ModelLoadError, match="no weights"):
        _revive(revival)
    assert backend.starts == STARTS_MAX


def test_what_nobody_wants_is_not_started():
    """Asked before each try, and as soon as a wait is cut short."""
    backend = _Backend(STARTS_MAX)
    revival, _ = _revival(backend)
    with pytest.raises(StoppedError):
        _revive(revival, lambda: backend.starts < 2)
    assert backend.starts == 2


def test_a_wait_is_cut_short():
    backend = _Backend(1)
    clock, wake = ManualClock(), threading.Event()
    revival = Revival(backend, "m", clock)
    ended = []

    def run():
        try:
            revival.revive(wake, lambda: not wake.is_set())
        except StoppedError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    clock.wait_for_sleepers()
    wake.set()
    thread.join(30)
    assert len(ended) == 1
