"""Each broken wakeup broker fails the check of the guarantee that it breaks."""

import threading

import pytest

from headrace.core.errors import ConfigError
from headrace.jobs.brokers.message_wakeup_broker import MessageWakeupBroker, Pace
from headrace.testing import wakeup_broker as suite
from jobs.brokers.memory_broker import MemoryBroker, MemorySession


class Broken(MessageWakeupBroker):
    """A correct wakeup broker; subclasses break one guarantee each."""


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
        """Keep running."""


class WaitsForTheBroker(Broken):
    broker_is_back = threading.Event()

    def announce(self, queue, job_ids):
        super().announce(queue, job_ids)
        if job_ids[0] == "away-0":
            self.broker_is_back.wait(2 * suite.IMMEDIATE_S_MAX)


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch):
    monkeypatch.setattr(suite, "DELIVERY_S_MAX", 0.5)
    monkeypatch.setattr(suite, "SILENCE_S", 0.05)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (RaisesToSubmitters, suite.check_announce_never_raises),
        (ListensToAnything, suite.check_rejects_invalid_queues),
        (ListensToAnything, suite.check_announcement_ends_wait),
        (LosesEverySecond, suite.check_announcement_ends_wait),
        (DropsAtStop, suite.check_drained_stop_sends_announcements),
        (NeverStops, suite.check_lifecycle),
    ],
)
def test_broken_wakeup_broker_fails_its_check(broken, check):
    broker = MemoryBroker()
    made = []

    def make():
        made.append(broken(broker))
        return made[-1]

    try:
        with pytest.raises((AssertionError, ConfigError)):
            check(make, "queue")
    finally:
        for wakeup_broker in made:
            MessageWakeupBroker.stop(wakeup_broker, drain=False)


def _take_all(self, count, timeout_s, _take=MemorySession.take):
    return _take(self, 1000, timeout_s)


def _take_and_leave(self, count, timeout_s, _take=MemorySession.take):
    taken = _take(self, count, timeout_s)
    for _ in range(taken.messages):
        self.broker.queues[self.queues[0]].append(b"again")
    return taken


@pytest.mark.parametrize(
    ("take", "check"),
    [
        (_take_all, suite.check_takes_no_more_than_free_slots),
        (_take_and_leave, suite.check_announcement_ends_wait),
        (_take_and_leave, suite.check_delivers_earlier_announcements),
        (_take_and_leave, suite.check_duplicates_and_reordering),
    ],
)
def test_broken_broker_session_fails_check(take, check, monkeypatch):
    monkeypatch.setattr(MemorySession, "take", take)
    broker = MemoryBroker()
    with pytest.raises(AssertionError):
        check(lambda: MessageWakeupBroker(broker), "queue")


def test_one_wait_for_each_message_fails_check(monkeypatch):
    monkeypatch.setattr(Pace, "count", lambda *_: 1)
    broker = MemoryBroker()
    with pytest.raises(AssertionError, match="60 messages"):
        suite.check_backlog_ends_few_waits(lambda: MessageWakeupBroker(broker), "queue")


def test_blocking_announce_fails_outage_check(monkeypatch):
    monkeypatch.setattr(suite, "IMMEDIATE_S_MAX", 0.1)
    broker = MemoryBroker()
    with pytest.raises(AssertionError, match="announce waits"):
        suite.check_outage(lambda: WaitsForTheBroker(broker), "q", broker.go_away, broker.come_back)


def test_endless_outage_fails_check():
    broker = MemoryBroker()
    with pytest.raises(AssertionError, match="remain unsent after the outage"):
        suite.check_outage(lambda: Broken(broker), "q", broker.go_away, lambda: None)
