"""A bounded pipe between threads and event loops: nothing lost, doubled or reordered, no lost
wake-up.
"""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import CancelledRequestError
from headrace.engine.pipe import Pipe
from servers.polling import wait_until

WAIT_S = 30.0


def _in_thread(function: Callable[..., object], *args: object):
    """Return a future of a function's result in a thread."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future


def _from_loop(function):
    """Return the same side as a coroutine in an event loop of its own."""
    return lambda *args: asyncio.run(function(*args))


def _put_all(pipe, count, error):
    try:
        for item in range(count):
            pipe.put(item)
    except CancelledRequestError:
        return "abandoned"
    pipe.close(error)
    return "closed"


async def _aput_all(pipe, count, error):
    try:
        for item in range(count):
            await pipe.aput(item)
    except CancelledRequestError:
        return "abandoned"
    pipe.close(error)
    return "closed"


def _get_all(pipe, most):
    got = []
    while items := pipe.get():
        got += items
        if len(got) >= most:
            pipe.abandon()
            break
    return got


async def _aget_all(pipe, most):
    got = []
    while items := await pipe.aget():
        got += items
        if len(got) >= most:
            pipe.abandon()
            break
    return got


SIDES = [(put, get) for put in (_put_all, _from_loop(_aput_all)) for get in (_get_all, _from_loop(_aget_all))]


@for_each(("put", "get"), SIDES)
@for_each("items_max", [1, 3, 256])
def test_items_arrive_in_order(put, get, items_max):
    """A stress: each side waits for the other thousands of times."""
    pipe = Pipe(items_max)
    producer = _in_thread(put, pipe, 3000, None)
    assert _in_thread(get, pipe, 10**9).result(WAIT_S) == list(range(3000))
    assert producer.result(WAIT_S) == "closed"


@for_each(("put", "get"), SIDES)
def test_error_follows_last_item(put, get):
    pipe, error = Pipe(4), ValueError("broken")
    taken = []

    class Seen(Pipe):
        def take(self):
            items = super().take()
            taken.extend(items)
            return items

    pipe = Seen(4)
    producer = _in_thread(put, pipe, 100, error)
    assert _in_thread(get, pipe, 10**9).exception(WAIT_S) is error
    assert taken == list(range(100))
    assert producer.result(WAIT_S) == "closed"


@for_each(("put", "get"), SIDES)
def test_put_after_abandon_raises_cancelled(put, get):
    """Also the put that waits for space, not only the next one."""
    pipe = Pipe(2)
    producer = _in_thread(put, pipe, 10**6, None)
    _in_thread(get, pipe, 50).result(WAIT_S)
    assert producer.result(WAIT_S) == "abandoned"


@for_each("put", [Pipe.put, _from_loop(Pipe.aput)])
def test_waiting_put_raises_when_abandoned(put):
    pipe = Pipe(1)
    pipe.offer(0)
    putter = _in_thread(put, pipe, 1)
    wait_until(lambda: pipe._putter is not None)
    pipe.abandon()
    assert isinstance(putter.exception(WAIT_S), CancelledRequestError)
    with pytest.raises(CancelledRequestError):
        pipe.offer(2)
    assert pipe.take() == []


def test_idle_consumer_bounds_producer():
    """One more than the limit: the item whose put waits is in the pipe already."""
    pipe, put = Pipe(3), []

    def produce():
        for item in range(10):
            pipe.put(item)
            put.append(item)

    producer = _in_thread(produce)
    wait_until(lambda: pipe._putter is not None)
    assert put == [0, 1]
    taken = pipe.take()
    assert taken == [0, 1, 2]
    while len(taken) < 10:
        taken += pipe.get()
    producer.result(WAIT_S)
    assert put == taken == list(range(10))


def test_second_close_does_nothing():
    pipe, error = Pipe(1), ValueError()
    pipe.close(error)
    pipe.close(KeyError())
    pipe.close()
    assert pipe.error is error
    with pytest.raises(ValueError):
        pipe.get()


def test_cancelled_get_loses_no_item():
    """Later items go to the next reader."""

    async def consume():
        pipe = Pipe(4)
        waiting = asyncio.create_task(pipe.aget())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        pipe.offer(1)
        assert await pipe.aget() == [1]
        again = asyncio.create_task(pipe.aget())
        await asyncio.sleep(0)
        pipe.offer(2)
        assert await again == [2]

    asyncio.run(consume())


@for_each("same_thread", [True, False])
def test_wake_up_of_closed_loop_is_ignored(same_thread):
    pipe, loop = Pipe(4), asyncio.new_event_loop()
    waiting = loop.create_task(pipe.aget())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))
    assert pipe._getter is not None
    loop.close()
    if same_thread:
        pipe.offer(1)
    else:
        _in_thread(pipe.offer, 1).result(WAIT_S)
    assert pipe.take() == [1]
    waiting._log_destroy_pending = False


@given(
    items_max=st.integers(1, 4),
    count=st.integers(0, 60),
    leaves_after=st.one_of(st.none(), st.integers(1, 60)),
    closed_early=st.booleans(),
    sides=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_close_and_abandon_at_any_moment(*, items_max, count, leaves_after, closed_early, sides, seed):
    """A prefix arrives, complete unless a side ended early, and both sides end."""
    put, get = SIDES[sides]
    pipe, chance = Pipe(items_max), random.Random(seed)
    producer = _in_thread(put, pipe, count, None)
    consumer = _in_thread(get, pipe, leaves_after or 10**9)
    if closed_early:
        for _ in range(chance.randrange(200)):
            pass
        pipe.close(CancelledRequestError("the client has closed the stream"))
        pipe.abandon()
    assert producer.result(WAIT_S) in ("closed", "abandoned")
    try:
        got = consumer.result(WAIT_S)
    except CancelledRequestError:
        assert closed_early
        return
    assert got == list(range(len(got)))
    if not closed_early:
        assert len(got) >= min(count, leaves_after or count)
