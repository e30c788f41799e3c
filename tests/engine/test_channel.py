"""The queue between callers and instances: ordered, bounded, and no thread is forgotten in it."""

import random
import threading
from collections import Counter
from concurrent.futures import Future

import pytest

from headrace.batching.adaptive import AdaptiveBatcher, LookAgain
from headrace.core import InferRequest, InferResponse
from headrace.core.clock import SystemClock
from headrace.core.errors import StoppedError
from headrace.engine.channel import Channel as EngineChannel
from headrace.engine.channel import ThreadTaker
from headrace.engine.ticket import FutureReply, Ticket
from headrace.testing import ManualClock

WAIT_S = 30.0
ANSWER = InferResponse(())


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


# Several instances, callers who can be told, company


class _Taker:
    """A taker in the test's own hand: it notes that it was woken."""

    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def _merging(clock=None, **settings) -> EngineChannel:
    batcher = AdaptiveBatcher(rows_max=settings.pop("rows_max", 4), delay_s=1.0)
    return EngineChannel(
        batcher, clock or ManualClock(), **{"in_flight_max": 8, "queue_rows_max": 8, **settings}
    )


def _expecting(requests: int, clock=None, **settings) -> EngineChannel:
    """One that has reason to expect so many requests."""
    channel = _merging(clock, **settings)
    for _ in range(requests):
        channel.offer(_ticket())
    work = channel.poll(_Taker())
    assert len(work.items) == min(requests, 4)
    channel.ended(work)
    return channel


def test_an_offer_is_refused_when_as_many_rows_wait():
    channel = _merging()
    assert channel.offer(_ticket(5))
    assert not channel.offer(_ticket(4))
    assert channel.offer(_ticket(3))
    assert not channel.offer(_ticket(1))
    assert channel.waiting()[:2] == (2, 8)


def test_offers_of_no_rows_are_bounded_too():
    channel = _merging()
    assert [channel.offer(_ticket(0)) for _ in range(9)] == [True] * 8 + [False]


def test_an_offer_after_the_close_is_told():
    channel = _merging()
    channel.close()
    with pytest.raises(StoppedError):
        channel.offer(_ticket())


def test_a_withdrawn_ticket_leaves_at_once():
    """It makes room; once it was taken it stays with its taker, and once it has ended it is what it was."""
    channel = _merging()
    waits, other = _ticket(8), _ticket(8)
    channel.offer(waits)
    assert channel.withdraw(waits)
    assert waits.cancelled
    assert channel.offer(other)
    assert channel.poll(_Taker()).items == (other,)
    assert not channel.withdraw(other)
    assert other.cancelled
    channel.settle([other])
    assert not other.ended
    third = _ticket()
    channel.settle([third])
    assert not channel.withdraw(third)
    assert (third.ended, third.cancelled) == (True, False)


def test_one_taker_is_woken_for_one_ticket_and_the_next_for_what_is_left():
    """The one that began to wait last; no second one while the first is on its way."""
    channel, first, second = _merging(rows_max=1), _Taker(), _Taker()
    assert isinstance(channel.poll(first), LookAgain)
    assert isinstance(channel.poll(second), LookAgain)
    channel.offer(_ticket())
    channel.offer(_ticket())
    assert (first.woken, second.woken) == (0, 1)
    assert len(channel.poll(second).items) == 1
    assert (first.woken, second.woken) == (1, 1)
    assert len(channel.poll(first).items) == 1


def test_one_taker_waits_for_company_and_the_others_sleep():
    """The armed one is woken when all are there, not before; it alone has a time to look again."""
    channel, first, second = _expecting(4), _Taker(), _Taker()
    assert channel.poll(first) == LookAgain()
    assert channel.poll(second) == LookAgain()
    channel.offer(_ticket())
    assert (first.woken, second.woken) == (0, 1)
    assert channel.poll(second) == LookAgain(1.0, rows=4, requests=4)
    assert channel.poll(first) == LookAgain()
    channel.offer(_ticket())
    channel.offer(_ticket())
    assert (first.woken, second.woken) == (0, 1)
    channel.offer(_ticket())
    assert (first.woken, second.woken) == (0, 2)
    assert len(channel.poll(second).items) == 4


def test_a_second_idle_instance_gets_what_is_more_than_one_batch():
    """Six wait where four fit."""
    channel, first, second = _expecting(4), _Taker(), _Taker()
    channel.poll(first)
    channel.poll(second)
    for _ in range(6):
        channel.offer(_ticket())
    assert len(channel.poll(second).items) == 4
    assert first.woken == 1
    assert len(channel.poll(first).items) == 2


def test_the_delay_ends_the_waiting_for_company():
    clock = ManualClock()
    channel, taker = _expecting(4, clock), _Taker()
    channel.poll(taker)
    channel.offer(_ticket())
    assert channel.poll(taker).at_s == 1.0
    clock.advance(1.0)
    assert channel.poll(taker).reason == "delay"


def test_whoever_comes_after_all_left_is_waited_for_anew():
    """The armed taker's time has come, but the ticket that it waited with was withdrawn."""
    clock = ManualClock()
    channel, taker, ticket = _expecting(4, clock), _Taker(), _ticket()
    channel.poll(taker)
    channel.offer(ticket)
    assert channel.poll(taker).at_s == 1.0
    channel.withdraw(ticket)
    clock.advance(1.0)
    assert channel.poll(taker) == LookAgain()
    channel.offer(_ticket())
    assert taker.woken == 2
    assert channel.poll(taker) is not None


def test_tickets_of_a_dead_instance_go_before_their_equals():
    """Also when it is closing."""
    channel, taker = _merging(), _Taker()
    lost = [_ticket(), _ticket()]
    for ticket in lost:
        ticket.key = ticket
    channel.offer(_ticket())
    channel.close()
    channel.again(lost)
    taken = [channel.poll(taker).items for _ in range(3)]
    assert {lost[0], lost[1]} <= {items[0] for items in taken}
    assert channel.poll(taker) is None


def test_a_sleeping_taker_hears_of_tickets_that_come_back():
    channel, taker = _merging(), _Taker()
    channel.poll(taker)
    channel.again([_ticket()])
    assert taker.woken == 1


def test_all_who_are_expected_wake_the_armed_taker_however_few_their_rows():
    channel, taker = _merging(), _Taker()
    channel.offer(_ticket(2))
    channel.offer(_ticket(2))
    channel.ended(channel.poll(taker))
    channel.poll(taker)
    channel.offer(_ticket())
    assert channel.poll(taker) == LookAgain(1.0, rows=4, requests=2)
    assert taker.woken == 1
    channel.offer(_ticket())
    assert taker.woken == 2
    assert len(channel.poll(taker).items) == 2


def test_what_is_dropped_and_what_comes_later_cannot_pass_each_other():
    """A drop closes in the same step: whatever is in after it, somebody would have to answer."""
    for _ in range(50):
        channel = _merging(queue_rows_max=10**6)
        offered, over = [], threading.Event()

        def offer(channel=channel, offered=offered, over=over):
            try:
                while not over.is_set():
                    ticket = _ticket()
                    channel.offer(ticket)
                    offered.append(ticket)
            except StoppedError:
                return

        thread = threading.Thread(target=offer)
        thread.start()
        while len(offered) < 20:
            pass
        dropped = channel.drop()
        assert channel.waiting()[0] == 0
        over.set()
        thread.join(WAIT_S)
        assert len(dropped) == len(offered)


def test_cancelled_futures_are_counted():
    channel, ticket = Channel(2), _ticket()
    channel.put(ticket)
    ticket.reply.future.cancel()
    assert channel.channel.cancelled == 1
    assert channel.channel.waiting()[0] == 0


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("merge", [True, False])
def test_nobody_is_forgotten_whoever_comes_and_goes(end, merge):
    """A stress: takers, putters, offers and withdrawals at once, ended at some moment.

    Every ticket that got in comes to exactly one end, and every thread to its own.
    """
    for seed in range(4):
        _stress(random.Random(seed), end, merge=merge)


def _stress(chance: random.Random, end: str, *, merge: bool) -> None:
    clock = SystemClock()
    batcher = AdaptiveBatcher(rows_max=4, delay_s=0.0005, merge=merge)
    channel = EngineChannel(batcher, clock, in_flight_max=5, queue_rows_max=16)
    entered: list[Ticket] = []
    ends: list[tuple[str, Ticket]] = []
    most_waiting = [0]

    def taking():
        taker = ThreadTaker()
        while (work := channel.take(taker)) is not None:
            assert work.rows == sum(t.rows for t in work.items)
            assert work.rows <= 4 or len(work.items) == 1
            most_waiting[0] = max(most_waiting[0], len(channel._put))
            for ticket in work.items:
                if ticket.reply.begin():
                    ends.append(("taken", ticket))
                    ticket.reply.give(ANSWER)
            channel.ended(work)

    def putting(seed):
        mine = random.Random(seed)
        for _ in range(60):
            ticket = _ticket(mine.randrange(1, 6))
            try:
                channel.put(ticket, ticket.reply.future)
            except StoppedError:
                return
            entered.append(ticket)
            if not mine.randrange(3) and ticket.reply.future.cancel():
                ends.append(("cancelled", ticket))

    def offering(seed):
        mine = random.Random(seed)
        for _ in range(60):
            ticket = _ticket(mine.randrange(1, 6))
            try:
                if not channel.offer(ticket):
                    continue
            except StoppedError:
                return
            entered.append(ticket)
            if not mine.randrange(3) and channel.withdraw(ticket):
                ends.append(("withdrawn", ticket))

    callers = [
        threading.Thread(target=side, args=(chance.random(),), daemon=True)
        for side in (putting, offering, putting, offering)
    ]
    takers = [threading.Thread(target=taking, daemon=True) for _ in range(3)]
    for thread in [*takers, *callers]:
        thread.start()
    until = chance.choice((5, 40, 10**9))
    while len(entered) < until and any(t.is_alive() for t in callers):
        pass
    if end == "drop":
        for ticket in channel.drop():
            if ticket.reply.begin():
                ends.append(("dropped", ticket))
    channel.close()
    for thread in [*callers, *takers]:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert Counter(map(id, (t for _, t in ends))) == Counter(map(id, entered))
    assert most_waiting[0] <= 5
    assert channel.waiting() == (0, 0, 0.0, 0)


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


def test_what_was_abandoned_is_neither_kept_nor_queued_again():
    """Once; what has ended cannot be abandoned, and of what is not here nothing is known."""
    channel, tickets = Channel(4), [_ticket() for _ in range(3)]
    for ticket in tickets:
        channel.put(ticket)
    begun, waiting, answered = tickets
    assert channel.take() is begun
    inner = channel.channel
    assert inner.abandon(begun.reply.future) is begun
    assert inner.abandon(begun.reply.future) is None
    assert inner.abandon(waiting.reply.future) is waiting
    inner.settle([answered])
    assert inner.abandon(answered.reply.future) is None
    assert inner.abandon(Future()) is None
    assert inner.waiting()[0] == 1
    inner.again([begun, waiting])
    assert inner.waiting()[0] == 1
    assert channel.take() is answered
