"""A link that breaks, is away for long, or raises what nobody foresaw."""

import logging
import threading

import pytest

from headrace.jobs.dispatchers.connection import AGAIN, Connection
from headrace.jobs.dispatchers.tally import Tally
from headrace.testing import ManualClock
from jobs.dispatchers.memory_broker import MemoryBroker


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto=True)


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def connection(broker, tally, clock) -> Connection:
    return Connection(broker, ["q"], tally, clock, threading.Event())


def _ask(connection: Connection) -> bool | None:
    def act(link) -> bool:
        link.keep_alive()
        return True

    answer = connection.use(act)
    if answer is None:
        connection.wait_again()
    return answer


def test_an_idle_connection_that_was_cut_is_replaced_at_once_and_is_no_outage(
    connection, broker, tally, clock, caplog
):
    assert _ask(connection)
    broker.cut()
    assert _ask(connection)
    assert connection.made == 2
    assert broker.links[0].closed
    assert (clock.slept_s, tally.snapshot(unsent=0).outages, caplog.records) == ((), 0, [])


def test_an_outage_is_waited_for_without_end_and_told_of_twice(connection, broker, tally, clock, caplog):
    broker.away = True
    for _ in range(500):
        assert _ask(connection) is None
    slept_s = clock.slept_s
    assert len(slept_s) == 500
    assert all(AGAIN.first_delay_s / 2 <= each <= AGAIN.delay_max_s for each in slept_s)
    assert min(slept_s[20:]) >= AGAIN.delay_max_s / 2
    assert tally.snapshot(unsent=0).away == 1
    broker.come_back()
    assert _ask(connection)
    told = tally.snapshot(unsent=0)
    assert (told.outages, told.away, told.last_error) == (1, 0, "nobody listens")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "is back after 501 attempts" in caplog.text


def test_after_an_outage_waits_are_short_again(connection, broker, clock):
    broker.away = True
    for _ in range(20):
        _ask(connection)
    broker.come_back()
    assert _ask(connection)
    broker.go_away()
    _ask(connection)
    assert clock.slept_s[-1] <= AGAIN.first_delay_s


def test_what_nobody_foresaw_is_an_outage_with_a_trace_and_ends_nothing(connection, broker, tally, caplog):
    broker.defect = AssertionError("a defect of a client library")
    assert _ask(connection) is None
    assert tally.snapshot(unsent=0).last_error == "AssertionError: a defect of a client library"
    assert caplog.records[0].exc_info is not None
    assert _ask(connection)


def test_stop_cuts_the_wait_short(broker, tally):
    broker.away = True
    stop, clock = threading.Event(), ManualClock()
    connection = Connection(broker, ["q"], tally, clock, stop)
    asking = threading.Thread(target=_ask, args=(connection,))
    asking.start()
    clock.wait_for_sleepers()
    stop.set()
    asking.join(10)
    assert not asking.is_alive()


def test_ended_in_an_outage_it_counts_as_away_no_more(connection, broker, tally):
    broker.away = True
    _ask(connection)
    connection.end()
    assert tally.snapshot(unsent=0).away == 0
