"""Restarts of a dead instance: at once, then ever later, up to a limit."""

import threading

import pytest

from headrace.core.errors import ModelLoadError, StoppedError
from headrace.engine.instance_worker import STARTS_MAX, RestartPolicy
from headrace.testing import ManualClock


class _Backend:
    """Fails to start as often as the test says."""

    def __init__(self, failures=0):
        self.failures = failures
        self.starts = 0

    def restart(self):
        self.starts += 1
        if self.failures:
            self.failures -= 1
            raise ModelLoadError("m", "no weights")


def _policy(backend):
    clock = ManualClock(auto=True)
    return RestartPolicy(backend.restart, "m", clock), clock


def _restart(restart_policy, wanted=lambda: True):
    restart_policy.restart(threading.Event(), wanted)


def test_first_restart_is_immediate():
    backend = _Backend()
    restart_policy, clock = _policy(backend)
    _restart(restart_policy)
    assert (backend.starts, clock.slept_s) == (1, ())


def test_restart_delays_grow_up_to_limit():
    restart_policy, clock = _policy(_Backend())
    for _ in range(10):
        _restart(restart_policy)
    assert clock.slept_s == pytest.approx((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10))


def test_success_resets_delays():
    restart_policy, clock = _policy(_Backend())
    for _ in range(5):
        _restart(restart_policy)
        restart_policy.deaths = 0
    assert clock.slept_s == ()


def test_failed_starts_are_retried_up_to_limit():
    backend = _Backend(STARTS_MAX - 1)
    restart_policy, clock = _policy(backend)
    _restart(restart_policy)
    assert clock.slept_s == pytest.approx((0.1, 0.2, 0.4, 0.8))
    backend.failures, backend.starts = STARTS_MAX, 0
    with pytest.raises(ModelLoadError, match="no weights"):
        _restart(restart_policy)
    assert backend.starts == STARTS_MAX


def test_unwanted_instance_is_not_restarted():
    """Checked before each try, and as soon as a wait is ended."""
    backend = _Backend(STARTS_MAX)
    restart_policy, _ = _policy(backend)
    with pytest.raises(StoppedError):
        _restart(restart_policy, lambda: backend.starts < 2)
    assert backend.starts == 2


def test_wake_ends_delay():
    backend = _Backend(1)
    clock, wake = ManualClock(), threading.Event()
    restart_policy = RestartPolicy(backend.restart, "m", clock)
    ended = []

    def run():
        try:
            restart_policy.restart(wake, lambda: not wake.is_set())
        except StoppedError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    clock.wait_for_sleepers()
    wake.set()
    thread.join(30)
    assert len(ended) == 1
