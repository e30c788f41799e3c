"""Requests on their way, and how answers get back: to futures, and to event loops in one hop."""

import asyncio
import logging
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from engine.support import request, ticket
from headrace.core import InferRequest, InferResponse, Tensor
from headrace.core.errors import PredictError
from headrace.engine.ticket import FutureReply, LoopReply, Ticket, deliver, gone, merge_key

ANSWER = InferResponse(())
ERROR = PredictError("m", "broken")


def _loop_ticket(loop, **settings) -> Ticket:
    asked = request(**settings)
    return Ticket(asked, asked.rows, 0.0, LoopReply(loop))


# Which requests share a call


def _request(*inputs: tuple[str, str, tuple[int, ...]], **settings) -> InferRequest:
    return InferRequest(tuple(Tensor(n, np.zeros(s, d)) for n, d, s in inputs), **settings)


@pytest.mark.parametrize(
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
def test_requests_share_a_call_when_their_tensors_can_be_joined(other, shares):
    """Names, types and the shape of a row count; rows, ids and what is wanted do not."""
    key = merge_key(_request(("x", "f4", (2, 3))).inputs)
    assert (merge_key(other.inputs) == key) == shares
    assert not shares or hash(merge_key(other.inputs)) == hash(key)


def test_the_order_of_inputs_counts():
    """For a model that takes them by position."""
    x, y = ("x", "f4", (2, 3)), ("y", "f4", (2, 1))
    assert merge_key(_request(x, y).inputs) == merge_key(_request(x, y).inputs)
    assert merge_key(_request(x, y).inputs) != merge_key(_request(y, x).inputs)
    assert merge_key(_request(x, y).inputs) != merge_key(_request(x, ("y", "f4", (2, 2))).inputs)


# Who still waits


def test_a_ticket_is_alive_until_its_deadline_or_its_cancellation():
    waiting = ticket(request(deadline=5.0))
    assert waiting.alive(4.9)
    assert not waiting.alive(5.0)
    waiting.cancelled = True
    assert not waiting.alive(0.0)
    assert ticket(request()).alive(1e9)


def test_what_became_of_a_request_whose_caller_left_names_it():
    assert "request r-1 was cancelled" in str(gone(ticket(request(id="r-1"))))
    assert "a request was cancelled" in str(gone(ticket(request())))


class _Odd:
    """A reply that cannot be given."""

    loop = None

    def begin(self):
        return True

    def give(self, answer):
        raise RuntimeError("boom")


def test_an_answer_that_cannot_be_given_keeps_nobody_from_theirs(caplog):
    odd, other = Ticket(request(), 1, 0.0, _Odd()), ticket(request())
    deliver([(odd, ANSWER), (other, ANSWER)])
    assert other.reply.future.result(0) is ANSWER
    assert "boom" in caplog.text


# To a future


@pytest.mark.parametrize("answer", [ANSWER, ERROR])
def test_a_future_gets_its_answer(answer):
    future = Future()
    reply = FutureReply(future)
    assert reply.begin()
    assert reply.begin(), "begun once more, after an instance was lost"
    reply.give(answer)
    assert (future.exception() or future.result()) is answer


def test_a_future_that_never_began_gets_its_answer_too():
    """A dropped request is answered from where it waited."""
    future = Future()
    FutureReply(future).give(ERROR)
    assert future.exception() is ERROR


def test_a_cancelled_future_is_neither_begun_nor_answered():
    future = Future()
    future.cancel()
    assert not FutureReply(future).begin()
    dropped = Future()
    dropped.cancel()
    FutureReply(dropped).give(ANSWER)
    assert dropped.cancelled()


def test_a_future_that_was_ended_by_its_caller_is_not_begun_again():
    """It was abandoned while its instance died."""
    future = Future()
    reply = FutureReply(future)
    assert reply.begin()
    reply.give(ERROR)
    assert not reply.begin()
    reply.give(ANSWER)
    assert future.exception() is ERROR


def test_whoever_left_is_given_nothing():
    """The caller ends what it abandons, however late the answer comes."""
    asked = ticket(request())
    asked.reply.begin()
    asked.cancelled = True
    deliver([(asked, ANSWER)])
    assert not asked.reply.future.done()


def test_what_a_callback_raises_is_logged(caplog):
    def rude(_):
        raise SystemExit(3)

    future = Future()
    future.add_done_callback(rude)
    FutureReply(future).give(ANSWER)
    assert future.result() is ANSWER
    assert "a callback raised" in caplog.text


# To an event loop


@pytest.mark.parametrize("answer", [ANSWER, ERROR])
def test_a_coroutine_gets_its_answer_from_another_thread(answer):
    async def ask():
        asked = _loop_ticket(asyncio.get_running_loop())
        assert asked.reply.begin()
        threading.Thread(target=deliver, args=([(asked, answer)],)).start()
        try:
            return await asked.reply.future
        except PredictError as error:
            return error

    assert asyncio.run(ask()) is answer


def test_a_coroutine_that_left_gets_nothing():
    """Its future is not begun, and a late answer is ignored."""

    async def leave():
        asked = _loop_ticket(asyncio.get_running_loop())
        asked.reply.future.cancel()
        assert not asked.reply.begin()
        deliver([(asked, ANSWER)])
        await asyncio.sleep(0)
        assert asked.reply.future.cancelled()

    asyncio.run(leave())


def test_an_error_for_one_who_left_was_not_overlooked():
    """No log of an exception that was never retrieved."""
    told = []

    async def leave():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        for answer in (ERROR, ANSWER, None):
            reply = LoopReply(loop)
            if answer is not None:
                reply.give(answer)
            reply.forget()

    asyncio.run(leave())
    assert told == []


def test_many_answers_are_one_hop_for_each_loop(monkeypatch):
    """A hop costs more than an answer."""

    async def ask():
        loop = asyncio.get_running_loop()
        tickets = [_loop_ticket(loop) for _ in range(5)]
        hops = []
        with monkeypatch.context() as patch:
            hop = loop.call_soon_threadsafe
            patch.setattr(loop, "call_soon_threadsafe", lambda *a: (hops.append(1), hop(*a)))
            deliver([(t, InferResponse((), id=str(n))) for n, t in enumerate(tickets)])
        assert [(await t.reply.future).id for t in tickets] == list("01234")
        assert len(hops) == 1

    asyncio.run(ask())


def test_a_closed_loop_keeps_nobody_else_from_their_answers(caplog):
    """Whoever waited there is gone."""
    loop = asyncio.new_event_loop()
    lost = _loop_ticket(loop)
    loop.close()
    found = ticket(request())
    with caplog.at_level(logging.DEBUG, "headrace.engine"):
        deliver([(lost, ANSWER), (found, ANSWER)])
    assert found.reply.future.result() is ANSWER
    assert "closed event loop" in caplog.text
