"""The suite for dispatchers goes red for those that break a promise, each in its own way."""

import time

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.dispatchers.brokered import BrokeredDispatcher
from headrace.jobs.dispatchers.pace import Pace
from headrace.testing import dispatcher as suite
from jobs.dispatchers.memory_broker import MemoryBroker, MemoryLink


class Broken(BrokeredDispatcher):
    """Sound until a subclass is not."""


class RaisesToSubmitters(Broken):
    def announce(self, queue, job_ids):
        self._broker.require_queue(queue)
        super().announce(queue, job_ids)


class ListensToAnything(Broken):
    def listener(self, queues):
        return super().listener(["any"])


class LosesEverySecond(Broken):
    calls = 0

    def announce(self, queue, job_ids):
        Broken.calls = getattr(Broken, "calls", 0) + 1
        if Broken.calls % 2:
            super().announce(queue, job_ids)


class DropsAtStop(Broken):
    def stop(self, *, drain=True):
        super().stop(drain=False)


class NeverStops(Broken):
    def stop(self, *, drain=True):
        """It runs on."""


class WaitsForTheBroker(Broken):
    def announce(self, queue, job_ids):
        super().announce(queue, job_ids)
        if job_ids[0] == "away-0":
            time.sleep(suite.NOW_S * 1.2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(suite, "HEARD_S", 1.0)
    monkeypatch.setattr(suite, "QUIET_S", 0.1)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (RaisesToSubmitters, suite.check_never_raises_to_submitters),
        (ListensToAnything, suite.check_refuses_impossible_listeners),
        (ListensToAnything, suite.check_wakes),
        (LosesEverySecond, suite.check_wakes),
        (DropsAtStop, suite.check_stop_sends_what_was_announced),
        (NeverStops, suite.check_life),
    ],
)
def test_a_broken_dispatcher_is_found(broken, check):
    broker = MemoryBroker()
    made = []

    def make():
        made.append(broken(broker))
        return made[-1]

    try:
        with pytest.raises((AssertionError, ConfigError)):
            check(make, "queue")
    finally:
        for dispatcher in made:
            BrokeredDispatcher.stop(dispatcher, drain=False)


def _take_all(self, count, timeout_s, _take=MemoryLink.take):
    return _take(self, 1000, timeout_s)


def _take_and_leave(self, count, timeout_s, _take=MemoryLink.take):
    taken = _take(self, count, timeout_s)
    for _ in range(taken.messages):
        self.broker.queues[self.queues[0]].append(b"again")
    return taken


@pytest.mark.parametrize(
    ("take", "check"),
    [
        (_take_all, suite.check_leaves_the_rest_to_others),
        (_take_and_leave, suite.check_wakes),
        (_take_and_leave, suite.check_hears_what_was_announced_before),
        (_take_and_leave, suite.check_doubled_and_reordered),
    ],
)
def test_a_link_that_takes_wrongly_is_found(take, check, monkeypatch):
    monkeypatch.setattr(MemoryLink, "take", take)
    broker = MemoryBroker()
    with pytest.raises(AssertionError):
        check(lambda: BrokeredDispatcher(broker), "queue")


def test_a_wait_for_each_message_is_found(monkeypatch):
    monkeypatch.setattr(Pace, "count", lambda *_: 1)
    broker = MemoryBroker()
    with pytest.raises(AssertionError, match="60 messages"):
        suite.check_many_messages_end_few_waits(lambda: BrokeredDispatcher(broker), "queue")


def test_announcing_that_waits_for_a_broker_is_found():
    broker = MemoryBroker()
    with pytest.raises(AssertionError, match="announcing waits"):
        suite.check_outage(lambda: WaitsForTheBroker(broker), "q", broker.go_away, broker.come_back)


def test_a_broker_that_never_comes_back_is_found():
    broker = MemoryBroker()
    with pytest.raises(AssertionError, match="unsent after the outage"):
        suite.check_outage(lambda: Broken(broker), "q", broker.go_away, lambda: None)
