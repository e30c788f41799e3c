"""A broker connection through breaks, outages and unforeseen errors."""

import logging
import threading

import pytest

from headrace.jobs.brokers.session import RETRY_POLICY, BrokerConnection, BrokerCounters
from headrace.testing import ManualClock
from jobs.brokers.memory_broker import MemoryBroker


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto=True)


@pytest.fixture
def counters() -> BrokerCounters:
    return BrokerCounters()


@pytest.fixture
def connection(broker, counters, clock) -> BrokerConnection:
    return BrokerConnection(broker, ["q"], counters, clock, threading.Event())


def _keep_alive(connection: BrokerConnection) -> bool | None:
    def act(session) -> bool:
        session.keep_alive()
        return True

    alive = connection.use(act)
    if alive is None:
        connection.wait_after_failure()
    return alive


def test_cut_idle_connection_is_replaced_at_once_without_an_outage(
    connection, broker, counters, clock, caplog
):
    assert _keep_alive(connection)
    broker.cut()
    assert _keep_alive(connection)
    assert len(broker.sessions) == 2
    assert broker.sessions[0].closed
    assert (clock.slept_s, counters.snapshot(unsent=0).outages, caplog.records) == ((), 0, [])


def test_outage_is_retried_forever_and_logged_at_start_and_end(connection, broker, counters, clock, caplog):
    broker.away = True
    for _ in range(500):
        assert _keep_alive(connection) is None
    slept_s = clock.slept_s
    assert len(slept_s) == 500
    assert all(RETRY_POLICY.first_delay_s / 2 <= each <= RETRY_POLICY.delay_max_s for each in slept_s)
    assert min(slept_s[20:]) >= RETRY_POLICY.delay_max_s / 2
    assert counters.snapshot(unsent=0).away == 1
    broker.come_back()
    assert _keep_alive(connection)
    statistics = counters.snapshot(unsent=0)
    assert (statistics.outages, statistics.away, statistics.last_error) == (1, 0, "connection refused")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "is available again after 501 attempts" in caplog.text


def test_delays_are_short_again_after_an_outage(connection, broker, clock):
    broker.away = True
    for _ in range(20):
        _keep_alive(connection)
    broker.come_back()
    assert _keep_alive(connection)
    broker.go_away()
    _keep_alive(connection)
    assert clock.slept_s[-1] <= RETRY_POLICY.first_delay_s


def test_unforeseen_error_is_an_outage_with_a_traceback(connection, broker, counters, caplog):
    broker.defect = AssertionError("a defect of a client library")
    assert _keep_alive(connection) is None
    assert counters.snapshot(unsent=0).last_error == "AssertionError: a defect of a client library"
    assert caplog.records[0].exc_info is not None
    assert _keep_alive(connection)


def test_stop_ends_the_wait(broker, counters):
    broker.away = True
    stop, clock = threading.Event(), ManualClock()
    connection = BrokerConnection(broker, ["q"], counters, clock, stop)
    using = threading.Thread(target=_keep_alive, args=(connection,))
    using.start()
    clock.wait_for_sleepers()
    stop.set()
    using.join(10)
    assert not using.is_alive()


def test_end_during_an_outage_ends_the_outage_count(connection, broker, counters):
    broker.away = True
    _keep_alive(connection)
    connection.end()
    assert counters.snapshot(unsent=0).away == 0
