"""The queue between callers and instances: ordered, bounded, and no thread is forgotten in it."""

import threading
from concurrent.futures import Future

import pytest

from headrace.core import InferRequest
from headrace.core.errors import StoppedError
from headrace.engine.channel import Channel, Ticket

WAIT_S = 30.0


def _ticket() -> Ticket:
    return Ticket(InferRequest(()), 1, 0.0, Future())


def test_tickets_leave_in_order():
    """First asked, first answered."""
    channel, tickets = Channel(3), [_ticket() for _ in range(3)]
    for ticket in tickets:
        channel.put(ticket)
    assert [channel.take() for _ in range(3)] == tickets


def test_taking_a_ticket_makes_no_room_but_answering_it_does():
    """Bounded is what is unanswered, not what waits."""
    channel, first, second = Channel(1), _ticket(), _ticket()
    channel.put(first)
    assert channel.take() is first
    through = threading.Event()
    putter = threading.Thread(target=lambda: (channel.put(second), through.set()), daemon=True)
    putter.start()
    assert not through.wait(0.02)
    first.future.set_result(None)
    assert through.wait(WAIT_S)
    assert channel.take() is second


def test_every_taker_hears_of_the_close():
    """Whoever waits gets None, and so does whoever comes later."""
    channel, got = Channel(1), []
    takers = [threading.Thread(target=lambda: got.append(channel.take())) for _ in range(3)]
    for taker in takers:
        taker.start()
    channel.close()
    for taker in takers:
        taker.join(WAIT_S)
    assert got == [None] * 3
    assert channel.take() is None


def test_what_waits_can_be_taken_after_the_close_but_nothing_added():
    """That is draining."""
    channel, ticket = Channel(2), _ticket()
    channel.put(ticket)
    channel.close()
    with pytest.raises(StoppedError):
        channel.put(_ticket())
    assert channel.take() is ticket
    assert channel.take() is None


def test_dropping_gives_back_what_waits():
    """For its owner to fail; cancelling it then is a race that nobody loses."""
    channel, ticket = Channel(2), _ticket()
    channel.put(ticket)
    assert channel.drop() == [ticket]
    assert channel.dropped
    assert channel.take() is None
    ticket.future.cancel()
    assert not ticket.future.set_running_or_notify_cancel()


def test_a_cancelled_ticket_that_was_taken_is_left_to_its_taker():
    """The taker asks the future itself, which may be asked that once only."""
    channel, ticket = Channel(1), _ticket()
    channel.put(ticket)
    assert channel.take() is ticket
    ticket.future.cancel()
    assert not ticket.future.set_running_or_notify_cancel()
    channel.put(_ticket())
