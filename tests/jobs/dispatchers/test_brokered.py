"""The dispatcher over a broker in this process: the conformance suite, an outage, and names no broker takes."""

import pytest

from headrace.jobs.dispatchers.brokered import BrokeredDispatcher
from headrace.testing import DISPATCHER_CHECKS, check_outage
from jobs.dispatchers.memory_broker import MemoryBroker


@pytest.mark.parametrize("check", DISPATCHER_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_every_promise(check):
    broker = MemoryBroker()
    check(lambda: BrokeredDispatcher(broker), "queue")


def test_it_survives_an_outage():
    broker = MemoryBroker()
    check_outage(lambda: BrokeredDispatcher(broker), "queue", broker.go_away, broker.come_back)


def test_a_queue_that_the_broker_cannot_name_is_told_of_once(caplog):
    dispatcher = BrokeredDispatcher(MemoryBroker())
    dispatcher.start()
    for _ in range(3):
        dispatcher.announce("", ["job"])
    dispatcher.stop()
    assert [record.message for record in caplog.records] == [
        "jobs of this queue are not announced, only polled for: a queue needs a name"
    ]
    assert dispatcher.statistics().dropped == 3


def test_it_shows_which_broker_it_is():
    assert repr(BrokeredDispatcher(MemoryBroker())) == "<Dispatcher memory>"
