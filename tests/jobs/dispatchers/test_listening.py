"""Waiting for messages, while links break and others wait too."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.clock import SystemClock
from headrace.jobs.dispatchers.link import Announcement
from headrace.jobs.dispatchers.listening import BrokerListener
from headrace.jobs.dispatchers.tally import Tally
from jobs.dispatchers.memory_broker import MemoryBroker

WAIT_S = 20.0


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def listener(broker):
    listener = BrokerListener(broker, ["a", "b", "c"], Tally(), SystemClock())
    yield listener
    listener.close()


def _send(broker: MemoryBroker, queue: str, count: int = 1) -> None:
    sender = broker.connect(())
    sender.send([Announcement(queue, str(number)) for number in range(count)])


def test_queues_beyond_what_a_link_can_take_get_links_of_their_own(broker, listener):
    for queue in ("a", "c"):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(listener.wait, WAIT_S)
            _send(broker, queue)
            assert waiting.result(WAIT_S)
    assert sorted(tuple(link.queues) for link in broker.links if link.queues) == [("a", "b"), ("c",)]


def test_nothing_is_connected_to_until_somebody_waits(broker, listener):
    assert broker.attempts == 0
    assert not listener.wait(0.01)


def test_what_comes_when_nobody_waits_stays_with_the_broker(broker, listener):
    assert not listener.wait(0.01)
    # The takers' last look ends a moment later.
    for link in [each for each in broker.links if each.queues]:
        link.interrupt()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.wait, WAIT_S)
        _send(broker, "a", 5)
        assert waiting.result(WAIT_S)
    assert len(broker.queues["a"]) == 4


def test_a_link_that_breaks_ends_the_wait_since_messages_may_be_lost(broker, listener):
    assert not listener.wait(0.05)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.wait, WAIT_S)
        while sum(len(link.queues) for link in broker.links) < 3:
            """Until both links are there."""
        broker.cut()
        assert waiting.result(WAIT_S / 2)


def test_closing_ends_the_threads_of_a_broker_that_is_away(broker):
    broker.away = True
    listener = BrokerListener(broker, ["a"], Tally(), SystemClock())
    assert not listener.wait(0.05)
    listener.close()
    assert listener.closed
