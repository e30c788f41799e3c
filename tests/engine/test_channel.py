"""The queue between callers and instances: ordered, bounded, and no thread is forgotten in it."""

import threading
from concurrent.futures import Future

import pytest

from headrace.batching.adaptive import AdaptiveBatcher, LookAgain
from headrace.core import InferRequest
from headrace.core.errors import StoppedError
from headrace.engine.channel import Channel as EngineChannel
from headrace.engine.channel import ThreadTaker
from headrace.engine.ticket import FutureReply, Ticket
from headrace.testing import ManualClock

WAIT_S = 30.0


def _ticket(rows: int = 1) -> Ticket:
    return Ticket(InferRequest(()), rows, 0.0, FutureReply(Future()))


class Channel:
    """A channel that joins nothing, with one taker for each taking thread."""

    def __init__(self, in_flight_max: int) -> None:
        batcher = AdaptiveBatcher(rows_max=1, delay_s=0.0, merge=False)
        self.channel = EngineChannel(batcher, ManualClock(), in_flight_max=in_flight_max, queue_rows_max=8)
        self.close, self.drop = self.channel.close, self.channel.drop

    @property
    def dropped(self) -> bool:
        return self.channel.dropped

    def put(self, ticket: Ticket) -> None:
        self.channel.put(ticket, ticket.reply.future)

    def take(self) -> Ticket | None:
        work = self.channel.take(ThreadTaker())
        if work is None:
            return None
        self.channel.ended(work)
        (ticket,) = work.items
        return ticket


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
    first.reply.future.set_result(None)
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
    ticket.reply.future.cancel()
    assert not ticket.reply.future.set_running_or_notify_cancel()


def test_a_cancelled_ticket_that_was_taken_is_left_to_its_taker():
    """The taker asks the future itself, which may be asked that once only."""
    channel, ticket = Channel(1), _ticket()
    channel.put(ticket)
    assert channel.take() is ticket
    ticket.reply.future.cancel()
    assert not ticket.reply.future.set_running_or_notify_cancel()
    channel.put(_ticket())


def test_an_unfit_taker_takes_nothing_and_passes_on_what_it_was_woken_for():
    """Its instance died while it waited; somebody else is woken in its place."""
    channel = EngineChannel(
        AdaptiveBatcher(rows_max=1, delay_s=0.0, merge=False),
        ManualClock(),
        in_flight_max=4,
        queue_rows_max=8,
    )
    healthy, dead = ThreadTaker(), ThreadTaker()
    assert isinstance(channel.poll(healthy), LookAgain)
    assert isinstance(channel.poll(dead), LookAgain)
    ticket = _ticket()
    assert channel.offer(ticket)  # wakes the one that came last
    assert isinstance(channel.take(dead, lambda: True), LookAgain)
    assert healthy._set
    assert channel.poll(healthy).items == (ticket,)
    channel.close()
    assert channel.take(dead) is None
