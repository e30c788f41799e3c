"""The readiness of a model with a checkpoint store: by probes, without a client's request."""

import logging
import threading

import pytest

from engine.sequences.sum_model import WAIT_S, FaultyStore, engine, sums
from headrace.core.errors import UnavailableError
from headrace.engine.sequences.sequence_store import PROBE_S, MonitoredStore
from headrace.testing import ManualClock


class ProbedStore(FaultyStore):
    """A store that a test waits for: until the next probe has ended, and the prober sleeps again."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.manual = clock

    def wait_for_probe(self):
        self.manual.wait_for_sleepers()
        probes = self.calls["probe"]
        self.manual.advance(PROBE_S)
        while self.calls["probe"] == probes:
            pass
        self.manual.wait_for_sleepers()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return ProbedStore(clock)


def test_readiness_follows_the_store_without_requests(store, clock, caplog):
    caplog.set_level(logging.INFO, "headrace.engine")
    with engine(store, clock=clock) as only:
        assert only.ready
        store.faults["probe"] = "before"
        store.wait_for_probe()
        assert (only.ready, only.alive) == (False, True)
        store.wait_for_probe()
        store.faults.clear()
        store.wait_for_probe()
        assert only.ready
    assert not only.ready
    messages = [record.message for record in caplog.records if "reached" in record.message]
    assert messages == [
        "the checkpoint store can be reached",
        "the checkpoint store cannot be reached: the model is not ready until it can",
        "the checkpoint store can be reached",
    ]


def test_model_starts_not_ready_while_the_store_is_down(store, clock):
    store.faults["probe"] = "before"
    with engine(store, clock=clock) as only:
        assert not only.ready
        assert sums(only, 1) == [1], "it serves requests that need no store"
        store.faults.clear()
        store.wait_for_probe()
        assert only.ready


def test_failed_call_is_followed_by_a_probe(store, clock):
    with engine(store, clock=clock) as only:
        probed = threading.Event()

        def fail():
            probed.set()
            raise UnavailableError("memory:", "it does not answer")

        clock.wait_for_sleepers()
        store.faults.update(save="before", probe=fail)
        assert sums(only, 1, sequence_id="s", sequence_start=True) == "UnavailableError"
        assert probed.wait(WAIT_S), "without any time that passes"
        clock.wait_for_sleepers()
        assert not only.ready


def test_failed_save_leaves_a_reachable_store_ready(store, clock):
    """For example, while its disk is full."""
    with engine(store, clock=clock) as only:
        store.faults["save"] = "before"
        assert sums(only, 1, sequence_id="s", sequence_start=True) == "UnavailableError"
        store.wait_for_probe()
        assert only.ready


def test_defect_of_a_store_is_not_ready(store, clock, caplog):
    def fail():
        raise ZeroDivisionError

    store.faults["probe"] = fail
    with engine(store, clock=clock) as only:
        assert not only.ready
    assert "a probe of the checkpoint store failed" in caplog.text


def test_closed_store_is_not_probed(store, clock):
    monitored = MonitoredStore(store, clock, model="m")
    monitored.start()
    monitored.start()
    thread = monitored._thread
    monitored.close()
    monitored.close()
    assert not thread.is_alive()
    late = MonitoredStore(store, clock, model="m")
    late.close()
    late.start()
    assert late._thread is None
