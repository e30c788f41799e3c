"""Readings of a ledger that many readers share."""

import asyncio
import gc
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


class BlockedReading:
    """A reading that blocks until a test lets it end."""

    def __init__(self, error=None):
        self.released = threading.Event()
        self.calls = 0
        self._error = error

    def __call__(self):
        self.calls += 1
        assert self.released.wait(WAIT_S)
        if self._error is not None:
            raise self._error
        return "read"


def test_waits_of_an_event_loop_share_a_reading_and_can_be_cancelled():
    blocked = BlockedReading()
    reading = SharedReading(blocked)

    async def wait():
        waiting = [asyncio.create_task(reading.wait()) for _ in range(50)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        blocked.released.set()
        assert set(await asyncio.gather(*waiting[1:])) == {"read"}
        # A second event loop, or a thread, takes the same reading.
        assert await asyncio.to_thread(reading.result) == "read"

    asyncio.run(wait())
    assert blocked.calls == 1


def test_wait_for_a_hanging_ledger_is_limited():
    blocked = BlockedReading()
    reading = SharedReading(blocked, wait_s=0.01)
    try:
        for _ in range(2):
            with pytest.raises(JobLedgerUnavailableError, match=r"did not respond within 0\.01 s"):
                asyncio.run(reading.wait())
        assert blocked.calls == 1
    finally:
        blocked.released.set()


def test_wait_raises_the_error_of_a_reading():
    def read():
        raise JobLedgerUnavailableError("gone")

    reading = SharedReading(read)
    with pytest.raises(JobLedgerUnavailableError, match="gone"):
        asyncio.run(reading.wait())


def test_error_of_a_reading_without_readers_is_not_logged_by_asyncio():
    blocked = BlockedReading(JobLedgerUnavailableError("gone"))
    reading = SharedReading(blocked)
    logged = []

    async def leave():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: logged.append(context))
        waiting = asyncio.create_task(reading.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        blocked.released.set()
        with pytest.raises(JobLedgerUnavailableError):
            await asyncio.to_thread(reading.result)
        # asyncio logs errors that nobody read when their futures are deleted.
        del waiting
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(leave())
    gc.collect()
    assert logged == []
