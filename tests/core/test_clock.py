import threading

from headrace.core.clock import SystemClock


def test_time_is_monotonic():
    clock = SystemClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_sleep_returns_true_if_woken():
    clock, wake = SystemClock(), threading.Event()
    assert clock.sleep(0.001, wake) is False
    assert clock.sleep(0.001) is False
    wake.set()
    began_s = clock.now()
    assert clock.sleep(60, wake) is True
    assert clock.now() - began_s < 30
