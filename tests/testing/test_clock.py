"""The manual clocks."""

import threading

import pytest

from headrace.testing import ManualClock, ManualWallClock


def test_automatic_clock_advances_by_sleeping():
    clock = ManualClock(5, auto=True)
    assert clock.sleep(2.5) is False
    assert (clock.now(), clock.slept_s) == (7.5, (2.5,))


def test_sleep_ends_when_the_clock_has_advanced_far_enough():
    clock, woken = ManualClock(), []
    thread = threading.Thread(target=lambda: woken.append(clock.sleep(10)))
    thread.start()
    clock.wait_for_sleepers()
    clock.advance(9)
    assert woken == []
    clock.advance(1)
    thread.join(10)
    assert woken == [False]


@pytest.mark.parametrize("auto", [True, False])
def test_wake_ends_a_sleep(auto):
    clock, wake = ManualClock(auto=auto), threading.Event()
    wake.set()
    assert clock.sleep(10, wake) is True
    assert clock.now() == 0


def test_wake_ends_a_sleep_in_progress():
    clock, wake, woken = ManualClock(), threading.Event(), []
    thread = threading.Thread(target=lambda: woken.append(clock.sleep(10, wake)))
    thread.start()
    clock.wait_for_sleepers()
    wake.set()
    thread.join(10)
    assert woken == [True]


def test_wait_for_sleepers_times_out():
    with pytest.raises(TimeoutError, match="0 threads"):
        ManualClock().wait_for_sleepers(timeout_s=0.01)


def test_wall_clock_moves_by_advance_only_also_backwards():
    clock = ManualWallClock(1_000)
    assert [clock.now_ms(), clock.advance(500), clock.advance(-700), clock.now_ms()] == [
        1_000,
        1_500,
        800,
        800,
    ]


def test_subscriber_gets_the_time_at_once_and_after_each_move():
    clock, told = ManualWallClock(5), []
    clock.subscribe(told.append)
    clock.advance(2)
    assert told == [5, 7]
