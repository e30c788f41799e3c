"""Announcements that wait for a broker."""

import threading

import pytest

from headrace.core.clock import SystemClock
from headrace.jobs.dispatchers.link import KEEP_ALIVE_S, Announcement
from headrace.jobs.dispatchers.publisher import Publisher
from headrace.jobs.dispatchers.tally import Tally
from headrace.testing import ManualClock
from jobs.dispatchers.memory_broker import MemoryBroker


def _jobs(*names: str) -> list[Announcement]:
    return [Announcement("q", name) for name in names]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def tally() -> Tally:
    return Tally()


def test_in_an_outage_the_newest_wait_each_once_and_are_sent_in_order_afterwards(broker, tally):
    broker.away = True
    clock = ManualClock()
    publisher = Publisher(broker, tally, clock, unsent_max=3)
    publisher.announce(_jobs("a", "b", "c"))
    clock.wait_for_sleepers()
    while not tally.snapshot(unsent=0).outages:
        clock.wait_for_sleepers()
    publisher.announce(_jobs("c", "c", "d"))
    assert publisher.unsent == 3
    assert tally.snapshot(unsent=0).dropped == 1
    broker.come_back()
    clock.advance(10.0)
    with broker.changed:
        assert broker.changed.wait_for(lambda: len(broker.queues["q"]) == 3, 10)
    assert list(broker.queues["q"]) == [each.encoded() for each in _jobs("b", "c", "d")]
    publisher.stop(drain=False)


def test_a_stop_without_drain_drops_what_waits(broker, tally):
    broker.away = True
    publisher = Publisher(broker, tally, SystemClock(), unsent_max=10)
    publisher.announce(_jobs("a", "b"))
    publisher.stop(drain=False)
    publisher.announce(_jobs("c"))
    told = tally.snapshot(unsent=publisher.unsent)
    assert (told.sent, told.dropped, told.unsent) == (0, 3, 0)


def test_a_drained_stop_gives_up_on_a_broker_that_is_away(broker, tally):
    broker.away = True
    publisher = Publisher(broker, tally, SystemClock(), unsent_max=10)
    publisher.announce(_jobs("a"))
    stopping = threading.Thread(target=publisher.stop, kwargs={"drain": True})
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    assert tally.snapshot(unsent=0).dropped == 1


def test_an_idle_connection_is_kept_alive(broker, tally):
    clock = ManualClock()
    publisher = Publisher(broker, tally, clock, unsent_max=10)
    publisher.announce(_jobs("a"))
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.queues["q"], 10)
    for count in range(1, 4):
        clock.wait_for_sleepers()
        while broker.links[0].kept_alive < count:
            clock.advance(KEEP_ALIVE_S)
    publisher.stop(drain=True)
    assert broker.links[0].closed
