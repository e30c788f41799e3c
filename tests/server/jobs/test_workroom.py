"""A bounded number of threads for blocking work, and of calls that wait for one."""

import asyncio
import threading

import pytest

from headrace.core.errors import OverloadedError, StoppedError
from headrace.server.jobs.workroom import Workroom

WAIT_S = 20.0


def test_what_a_call_returns_or_raises_comes_back():
    async def ask():
        room = Workroom(2)
        assert await room.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await room.run(divmod, 7, 0)
        await asyncio.to_thread(room.close)
        with pytest.raises(StoppedError):
            await room.run(divmod, 7, 2)
        room.close()

    asyncio.run(ask())


def test_calls_beyond_the_bound_are_refused():
    gate = threading.Event()

    async def ask():
        room = Workroom(1, calls_max=3)
        waiting = [asyncio.create_task(room.run(gate.wait, WAIT_S)) for _ in range(3)]
        while room.calls < 3:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await room.run(gate.wait, WAIT_S)
        gate.set()
        assert await asyncio.gather(*waiting) == [True] * 3
        while room.calls:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        assert await room.run(gate.is_set)
        await asyncio.to_thread(room.close)

    asyncio.run(ask())


def test_a_call_whose_caller_goes_is_finished_and_counted_until_then():
    gate, done = threading.Event(), threading.Event()

    def work():
        assert gate.wait(WAIT_S)
        done.set()

    async def ask():
        room = Workroom(1)
        task = asyncio.create_task(room.run(work))
        while not room.calls:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert room.calls == 1
        gate.set()
        while room.calls:  # noqa: ASYNC110 - the loop itself must turn
            await asyncio.sleep(0)
        await asyncio.to_thread(room.close)

    asyncio.run(ask())
    assert done.is_set()
