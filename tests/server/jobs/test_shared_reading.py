"""Readings of a ledger that many readers share."""

import threading

import pytest

from headrace.core.errors import JobLedgerUnavailableError
from headrace.server.jobs.shared_reading import SHARED_S, SharedReading
from headrace.testing import ManualClock

WAIT_S = 30.0


def test_readers_share_a_reading_for_some_seconds():
    clock, readings = ManualClock(), iter(range(9))
    reading = SharedReading(lambda: next(readings), clock=clock)
    assert [reading.latest(), reading.latest()] == [0, 0]
    clock.advance(SHARED_S - 0.1)
    assert reading.latest() == 0
    clock.advance(0.1)
    assert reading.latest() == 1


def test_slow_reading_is_shared_for_longer():
    clock, readings = ManualClock(), iter(range(9))

    def read():
        clock.advance(3.0)
        return next(readings)

    reading = SharedReading(read, clock=clock)
    assert reading.latest() == 0
    clock.advance(29.9)
    assert reading.latest() == 0
    clock.advance(0.1)
    assert reading.latest() == 1


def test_hanging_ledger_costs_a_reader_a_limited_wait_and_one_thread():
    entered, released = threading.Semaphore(0), threading.Event()

    def read():
        entered.release()
        assert released.wait(WAIT_S)
        return "read"

    reading = SharedReading(read, wait_s=0.01)
    try:
        assert [reading.latest() for _ in range(3)] == [None] * 3
        with pytest.raises(JobLedgerUnavailableError, match=r"did not respond within 0\.01 s"):
            reading.result()
        assert entered.acquire(timeout=WAIT_S)
        assert not entered.acquire(blocking=False), "a second reading began beside the first"
    finally:
        released.set()
    patient = SharedReading(read)
    assert patient.latest() == "read"


def test_success_of_a_reading_is_remembered():
    clock, unavailable = ManualClock(), []

    def read():
        if unavailable:
            raise JobLedgerUnavailableError("gone")

    reading = SharedReading(read, clock=clock)
    assert not reading.succeeded_within(60)
    reading.latest()
    unavailable.append(True)
    clock.advance(60)
    reading.latest()
    assert reading.succeeded_within(60)
    clock.advance(0.1)
    assert not reading.succeeded_within(60)


def test_readers_get_the_error_of_a_reading():
    def read():
        raise JobLedgerUnavailableError("gone")

    reading = SharedReading(read)
    for _ in range(2):
        with pytest.raises(JobLedgerUnavailableError, match="gone"):
            reading.result()


def test_reading_is_shared_for_the_given_time():
    clock, readings = ManualClock(), iter(range(9))
    reading = SharedReading(lambda: next(readings), shared_s=1.0, clock=clock)
    assert reading.result() == 0
    clock.advance(0.9)
    assert reading.result() == 0
    clock.advance(0.1)
    assert reading.result() == 1
