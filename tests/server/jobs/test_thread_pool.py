"""A thread pool with limits on threads and waiting calls."""

import asyncio
import threading

import pytest

from headrace.core.errors import OverloadedError, StoppedError
from headrace.server.jobs.api import BoundedThreadPool

WAIT_S = 20.0


def test_result_or_error_of_a_call_is_returned():
    async def ask():
        pool = BoundedThreadPool(2)
        assert await pool.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 7, 0)
        await asyncio.to_thread(pool.close)
        with pytest.raises(StoppedError):
            await pool.run(divmod, 7, 2)
        pool.close()

    asyncio.run(ask())


def test_calls_beyond_the_limit_are_refused():
    gate = threading.Event()

    async def ask():
        pool = BoundedThreadPool(1, calls_max=3)
        waiting = [asyncio.create_task(pool.run(gate.wait, WAIT_S)) for _ in range(3)]
        while pool.calls < 3:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await pool.run(gate.wait, WAIT_S)
        gate.set()
        assert await asyncio.gather(*waiting) == [True] * 3
        while pool.calls:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        assert await pool.run(gate.is_set)
        await asyncio.to_thread(pool.close)

    asyncio.run(ask())


def test_cancelled_call_is_finished_and_counted_meanwhile():
    gate, done = threading.Event(), threading.Event()

    def work():
        assert gate.wait(WAIT_S)
        done.set()

    async def ask():
        pool = BoundedThreadPool(1)
        task = asyncio.create_task(pool.run(work))
        while not pool.calls:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.calls == 1
        gate.set()
        while pool.calls:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        await asyncio.to_thread(pool.close)

    asyncio.run(ask())
    assert done.is_set()
