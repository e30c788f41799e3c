"""A bounded pipe between threads and event loops: nothing lost, doubled or reordered, and nobody left asleep."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import CancelledRequestError
from headrace.engine.pipe import Pipe

WAIT_S = 30.0


def _in_thread(function: Callable[..., object], *args: object):
    """A future of what a thread of its own comes to."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future


def _from_loop(function):
    """The same side as a coroutine in an event loop of its own."""
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


SIDES = [
    pytest.param(put, get, id=f"{a}-to-{b}")
    for a, put in (("thread", _put_all), ("loop", _from_loop(_aput_all)))
    for b, get in (("thread", _get_all), ("loop", _from_loop(_aget_all)))
]


@pytest.mark.parametrize(("put", "get"), SIDES)
@pytest.mark.parametrize("items_max", [1, 3, 256])
def test_all_items_arrive_in_order_whoever_waits(put, get, items_max):
    """A stress: each side waits for the other thousands of times."""
    pipe = Pipe(items_max)
    producer = _in_thread(put, pipe, 3000, None)
    assert _in_thread(get, pipe, 10**9).result(WAIT_S) == list(range(3000))
    assert producer.result(WAIT_S) == "closed"


@pytest.mark.parametrize(("put", "get"), SIDES)
def test_an_error_is_met_after_the_last_item(put, get):
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


@pytest.mark.parametrize(("put", "get"), SIDES)
def test_a_producer_hears_that_its_consumer_has_gone(put, get):
    """Also where it waits for room: the put that waits raises, not only the next."""
    pipe = Pipe(2)
    producer = _in_thread(put, pipe, 10**6, None)
    _in_thread(get, pipe, 50).result(WAIT_S)
    assert producer.result(WAIT_S) == "abandoned"


@pytest.mark.parametrize("put", [Pipe.put, _from_loop(Pipe.aput)], ids=["thread", "loop"])
def test_a_put_that_waits_for_room_raises_when_abandoned(put):
    pipe = Pipe(1)
    pipe.offer(0)
    putter = _in_thread(put, pipe, 1)
    while pipe._putter is None:
        threading.Event().wait(0.001)
    pipe.abandon()
    assert isinstance(putter.exception(WAIT_S), CancelledRequestError)
    with pytest.raises(CancelledRequestError):
        pipe.offer(2)
    assert pipe.take() == []


def test_a_consumer_that_takes_nothing_bounds_its_producer():
    """One more than there is room for: the one that waits is in the pipe already."""
    pipe, put = Pipe(3), []

    def produce():
        for item in range(10):
            pipe.put(item)
            put.append(item)

    producer = _in_thread(produce)
    while pipe._putter is None:
        threading.Event().wait(0.001)
    assert put == [0, 1]
    assert pipe.take() == [0, 1, 2]
    while len(put) < 10:
        pipe.take()
        threading.Event().wait(0.0005)
    producer.result(WAIT_S)


def test_closing_twice_is_closing_once():
    pipe, error = Pipe(1), ValueError()
    pipe.close(error)
    pipe.close(KeyError())
    pipe.close()
    assert pipe.error is error
    with pytest.raises(ValueError):
        pipe.get()


def test_a_coroutine_that_stopped_waiting_takes_nothing_with_it():
    """What comes later is there for whoever asks next."""

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


@pytest.mark.parametrize("same_thread", [True, False])
def test_whoever_waited_in_a_closed_loop_is_gone(same_thread):
    """And does no harm to the producer."""
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


@settings(deadline=None, max_examples=60)
@given(
    items_max=st.integers(1, 4),
    count=st.integers(0, 60),
    leaves_after=st.one_of(st.none(), st.integers(1, 60)),
    closed_early=st.booleans(),
    sides=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_any_end_at_any_moment(*, items_max, count, leaves_after, closed_early, sides, seed):
    """A prefix arrives, whole unless somebody ended it early, and both sides come to their end."""
    put, get = SIDES[sides].values
    pipe, chance = Pipe(items_max), random.Random(seed)
    producer = _in_thread(put, pipe, count, None)
    consumer = _in_thread(get, pipe, leaves_after or 10**9)
    if closed_early:
        for _ in range(chance.randrange(200)):
            pass
        pipe.close(CancelledRequestError("whoever asked has gone"))
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
