"""The queue of announcements that wait for the message broker."""

import threading

import pytest

from headrace.core.clock import SystemClock
from headrace.jobs.brokers.message_wakeup_broker import AnnouncementPublisher
from headrace.jobs.brokers.session import KEEP_ALIVE_S, Announcement, BrokerCounters
from headrace.testing import ManualClock
from jobs.brokers.memory_broker import MemoryBroker


def _jobs(*names: str) -> list[Announcement]:
    return [Announcement("q", name) for name in names]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def counters() -> BrokerCounters:
    return BrokerCounters()


def test_newest_announcements_survive_an_outage_once_each_and_in_order(broker, counters):
    broker.away = True
    clock = ManualClock()
    publisher = AnnouncementPublisher(broker, counters, clock, unsent_max=3)
    publisher.announce(_jobs("a", "b", "c"))
    clock.wait_for_sleepers()
    while not counters.snapshot(unsent=0).outages:
        clock.wait_for_sleepers()
    publisher.announce(_jobs("c", "c", "d"))
    assert publisher.unsent == 3
    assert counters.snapshot(unsent=0).dropped == 1
    broker.come_back()
    clock.advance(10.0)
    with broker.changed:
        assert broker.changed.wait_for(lambda: len(broker.queues["q"]) == 3, 10)
    assert list(broker.queues["q"]) == [each.encoded() for each in _jobs("b", "c", "d")]
    publisher.stop(drain=False)


def test_stop_without_drain_drops_waiting_announcements(broker, counters):
    broker.away = True
    publisher = AnnouncementPublisher(broker, counters, SystemClock(), unsent_max=10)
    publisher.announce(_jobs("a", "b"))
    publisher.stop(drain=False)
    publisher.announce(_jobs("c"))
    statistics = counters.snapshot(unsent=publisher.unsent)
    assert (statistics.sent, statistics.dropped, statistics.unsent) == (0, 3, 0)


def test_drain_gives_up_on_an_unavailable_broker(broker, counters):
    broker.away = True
    publisher = AnnouncementPublisher(broker, counters, SystemClock(), unsent_max=10)
    publisher.announce(_jobs("a"))
    stopping = threading.Thread(target=publisher.stop, kwargs={"drain": True})
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    assert counters.snapshot(unsent=0).dropped == 1


def test_idle_connection_is_kept_alive(broker, counters):
    clock = ManualClock()
    publisher = AnnouncementPublisher(broker, counters, clock, unsent_max=10)
    publisher.announce(_jobs("a"))
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.queues["q"], 10)
    for count in range(1, 4):
        clock.wait_for_sleepers()
        while broker.sessions[0].kept_alive < count:
            clock.advance(KEEP_ALIVE_S)
    publisher.stop(drain=True)
    assert broker.sessions[0].closed
