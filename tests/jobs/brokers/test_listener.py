"""A listener's waits for messages, also while sessions break."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.clock import SystemClock
from headrace.jobs.brokers.message_wakeup_broker import BrokerListener
from headrace.jobs.brokers.session import Announcement, BrokerCounters
from jobs.brokers.memory_broker import MemoryBroker

WAIT_S = 20.0


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def listener(broker):
    listener = BrokerListener(broker, ["a", "b", "c"], BrokerCounters(), SystemClock())
    yield listener
    listener.close()


def _send(broker: MemoryBroker, queue: str, count: int = 1) -> None:
    sender = broker.connect(())
    sender.send([Announcement(queue, str(number)) for number in range(count)])


def _connected_queues(broker: MemoryBroker) -> int:
    return sum(len(session.queues) for session in broker.sessions)


def test_queues_beyond_one_session_get_further_sessions(broker, listener):
    for queue in ("a", "c"):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(listener.wait, WAIT_S)
            _send(broker, queue)
            assert waiting.result(WAIT_S)
    assert sorted(tuple(session.queues) for session in broker.sessions if session.queues) == [
        ("a", "b"),
        ("c",),
    ]


def test_listener_connects_at_the_first_wait(broker, listener):
    assert broker.attempts == 0
    assert not listener.wait(0.01)


def test_messages_without_a_waiter_stay_in_the_broker(broker, listener):
    assert not listener.wait(0.01)
    # The receiving threads end their last wait a moment later.
    for session in [each for each in broker.sessions if each.queues]:
        session.interrupt()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.wait, WAIT_S)
        _send(broker, "a", 5)
        assert waiting.result(WAIT_S)
    assert len(broker.queues["a"]) == 4


def test_broken_session_ends_the_wait_because_messages_may_be_lost(broker, listener):
    assert not listener.wait(0.05)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listener.wait, WAIT_S)
        with broker.changed:
            assert broker.changed.wait_for(lambda: _connected_queues(broker) == 3, WAIT_S)
        broker.cut()
        assert waiting.result(WAIT_S / 2)


def test_close_ends_threads_during_an_outage(broker):
    broker.away = True
    listener = BrokerListener(broker, ["a"], BrokerCounters(), SystemClock())
    assert not listener.wait(0.05)
    listener.close()
    assert listener.over.is_set()
