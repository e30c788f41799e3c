"""The wakeup broker over a message broker in this process."""

import pytest

from headrace.jobs.brokers.message_wakeup_broker import MessageWakeupBroker
from headrace.testing import WAKEUP_BROKER_CHECKS, check_outage
from headrace.testing import wakeup_broker as checks
from jobs.brokers.memory_broker import MemoryBroker


@pytest.fixture(autouse=True)
def short_silence(monkeypatch):
    """Shorten the pauses that detect unexpected messages: this broker delivers at once."""
    monkeypatch.setattr(checks, "SILENCE_S", 0.02)


@pytest.mark.parametrize("check", WAKEUP_BROKER_CHECKS, ids=lambda check: check.__name__)
def test_wakeup_broker_meets_its_contract(check):
    broker = MemoryBroker()
    check(lambda: MessageWakeupBroker(broker), "queue")


def test_wakeup_broker_survives_an_outage():
    broker = MemoryBroker()
    check_outage(lambda: MessageWakeupBroker(broker), "queue", broker.go_away, broker.come_back)


def test_invalid_queue_name_is_logged_once(caplog):
    wakeup_broker = MessageWakeupBroker(MemoryBroker())
    wakeup_broker.start()
    for _ in range(3):
        wakeup_broker.announce("", ["job"])
    wakeup_broker.stop()
    assert [record.message for record in caplog.records] == [
        "jobs of this queue are polled for, not announced: a queue needs a name"
    ]
    assert wakeup_broker.statistics().dropped == 3


def test_repr_names_the_broker():
    assert repr(MessageWakeupBroker(MemoryBroker())) == "<WakeupBroker memory>"
