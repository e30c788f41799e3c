"""Pending requests, and the delivery of results to futures and event loops."""

import asyncio
import logging
import threading
from concurrent.futures import Future

import numpy as np

from cases import for_each
from engine.support import pending_request, request
from headrace.core import InferRequest, InferResponse, Tensor
from headrace.core.errors import PredictError
from headrace.engine.pending_request import (
    FutureCallback,
    LoopCallback,
    PendingRequest,
    cancelled_error,
    deliver,
    merge_key,
)

ANSWER = InferResponse(())
ERROR = PredictError("m", "broken")


def _loop_entry(loop, **settings) -> PendingRequest:
    sent = request(**settings)
    return PendingRequest(sent, sent.rows, 0.0, LoopCallback(loop))


# Requests that share a call


def _request(*inputs: tuple[str, str, tuple[int, ...]], **settings) -> InferRequest:
    return InferRequest(tuple(Tensor(n, np.zeros(s, d)) for n, d, s in inputs), **settings)


@for_each(
    ("other", "shares"),
    [
        (_request(("x", "f4", (5, 3))), True),
        (_request(("x", "f4", (0, 3)), id="z", priority=1, deadline=1.0, outputs=("a",)), True),
        (_request(("x", "f4", (2, 4))), False),
        (_request(("x", "f4", (2, 3, 1))), False),
        (_request(("x", "f8", (2, 3))), False),
        (_request(("x", ">f4", (2, 3))), False),
        (_request(("y", "f4", (2, 3))), False),
        (_request(("x", "f4", (2, 3)), ("y", "f4", (2, 3))), False),
    ],
)
def test_merge_key_is_equal_for_joinable_tensors(other, shares):
    """Names, types and row shapes count; rows, ids and named outputs do not."""
    key = merge_key(_request(("x", "f4", (2, 3))).inputs)
    assert (merge_key(other.inputs) == key) == shares
    assert not shares or hash(merge_key(other.inputs)) == hash(key)


def test_merge_key_depends_on_input_order():
    """For a model with positional inputs."""
    x, y = ("x", "f4", (2, 3)), ("y", "f4", (2, 1))
    assert merge_key(_request(x, y).inputs) == merge_key(_request(x, y).inputs)
    assert merge_key(_request(x, y).inputs) != merge_key(_request(y, x).inputs)
    assert merge_key(_request(x, y).inputs) != merge_key(_request(x, ("y", "f4", (2, 2))).inputs)


# Wanted requests


def test_request_is_wanted_until_deadline_or_cancellation():
    waiting = pending_request(request(deadline=5.0))
    assert waiting.is_wanted(4.9)
    assert not waiting.is_wanted(5.0)
    waiting.cancelled = True
    assert not waiting.is_wanted(0.0)
    assert pending_request(request()).is_wanted(1e9)


def test_cancelled_error_names_request():
    assert "request r-1 was cancelled" in str(cancelled_error(request(id="r-1")))
    assert "a request was cancelled" in str(cancelled_error(request()))


class _FailingCallback:
    """A callback that raises."""

    loop = None

    def start(self):
        return True

    def complete(self, answer):
        raise RuntimeError("boom")


def test_failing_callback_harms_no_other(caplog):
    odd, other = PendingRequest(request(), 1, 0.0, _FailingCallback()), pending_request(request())
    deliver([(odd, ANSWER), (other, ANSWER)])
    assert other.callback.future.result(0) is ANSWER
    assert "boom" in caplog.text


# To a future


@for_each("answer", [ANSWER, ERROR])
def test_future_gets_its_result(answer):
    future = Future()
    callback = FutureCallback(future)
    assert callback.start()
    assert callback.start(), "begun once more, after an instance was lost"
    callback.complete(answer)
    assert (future.exception() or future.result()) is answer


def test_future_that_never_began_gets_its_result():
    """A dropped request completes while it waits."""
    future = Future()
    FutureCallback(future).complete(ERROR)
    assert future.exception() is ERROR


def test_cancelled_future_is_not_started_or_completed():
    future = Future()
    future.cancel()
    assert not FutureCallback(future).start()
    dropped = Future()
    dropped.cancel()
    FutureCallback(dropped).complete(ANSWER)
    assert dropped.cancelled()


def test_completed_future_is_not_started():
    """It was abandoned while its instance died."""
    future = Future()
    callback = FutureCallback(future)
    assert callback.start()
    callback.complete(ERROR)
    assert not callback.start()
    callback.complete(ANSWER)
    assert future.exception() is ERROR


def test_cancelled_entry_gets_no_result():
    """`abandon` ends the future, however late the result."""
    entry = pending_request(request())
    entry.callback.start()
    entry.cancelled = True
    deliver([(entry, ANSWER)])
    assert not entry.callback.future.done()


def test_callback_exception_is_logged(caplog):
    def rude(_):
        raise SystemExit(3)

    future = Future()
    future.add_done_callback(rude)
    FutureCallback(future).complete(ANSWER)
    assert future.result() is ANSWER
    assert "a callback of a future raised" in caplog.text


# To an event loop


@for_each("answer", [ANSWER, ERROR])
def test_coroutine_gets_result_from_another_thread(answer):
    async def ask():
        entry = _loop_entry(asyncio.get_running_loop())
        assert entry.callback.start()
        threading.Thread(target=deliver, args=([(entry, answer)],)).start()
        try:
            return await entry.callback.future
        except PredictError as error:
            return error

    assert asyncio.run(ask()) is answer


def test_departed_coroutine_gets_no_result():

    async def leave():
        entry = _loop_entry(asyncio.get_running_loop())
        entry.callback.future.cancel()
        assert not entry.callback.start()
        deliver([(entry, ANSWER)])
        await asyncio.sleep(0)
        assert entry.callback.future.cancelled()

    asyncio.run(leave())


def test_discarded_error_is_not_reported_as_unretrieved():
    unhandled = []

    async def leave():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        for answer in (ERROR, ANSWER, None):
            callback = LoopCallback(loop)
            if answer is not None:
                callback.complete(answer)
            callback.discard()

    asyncio.run(leave())
    assert unhandled == []


def test_results_need_one_hop_per_loop(monkeypatch):
    """A hop costs more than a result."""

    async def ask():
        loop = asyncio.get_running_loop()
        entries = [_loop_entry(loop) for _ in range(5)]
        hops = []
        with monkeypatch.context() as patch:
            hop = loop.call_soon_threadsafe
            patch.setattr(loop, "call_soon_threadsafe", lambda *a: (hops.append(1), hop(*a)))
            deliver([(t, InferResponse((), id=str(n))) for n, t in enumerate(entries)])
        assert [(await t.callback.future).id for t in entries] == list("01234")
        assert len(hops) == 1

    asyncio.run(ask())


def test_closed_loop_does_not_block_other_results(caplog):
    loop = asyncio.new_event_loop()
    lost = _loop_entry(loop)
    loop.close()
    found = pending_request(request())
    with caplog.at_level(logging.DEBUG, "headrace.engine"):
        deliver([(lost, ANSWER), (found, ANSWER)])
    assert found.callback.future.result() is ANSWER
    assert "the event loop of their client is closed" in caplog.text
