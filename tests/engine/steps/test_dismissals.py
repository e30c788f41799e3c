"""Ends that are told once nothing is kept: by what, to whom, and when."""

import threading

import pytest

from engine.steps.counted import Shared
from headrace.checkpoints.store import Checkpoint
from headrace.core.errors import PredictError, SequenceGoneError, UnavailableError
from headrace.engine.steps.dismissals import BATCH_MAX, Dismissal, Dismissals


class Bench:
    """Dismissals over a store, and what was told: each one's name with what it came to."""

    def __init__(self):
        self.store = Shared()
        self.told = []
        self.lasting = set()
        self.of = Dismissals(
            self.store, self.told.extend, self.lasting.__contains__, model="m", idle_ms=float("inf")
        )

    def keep(self, *ids, mark=7):
        self.store.save([Checkpoint(id, mark, b"state", 0) for id in ids])

    def dismiss(self, id, *, lived=True):
        assert self.of.add(Dismissal(id, lived, lambda error: (id, error)))

    def came(self):
        """What they came to, when all are done."""
        self.of.close()
        return {id: error if error is None else type(error) for id, error in self.told}


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.of.close()


def test_what_is_kept_is_deleted_and_whoever_asked_is_told(bench):
    bench.keep("a", "b", "c")
    bench.dismiss("a")
    bench.dismiss("b", lived=False)
    assert bench.came() == {"a": None, "b": None}
    assert bench.store.ids == ["c"]


def test_what_lived_nowhere_is_told_to_be_gone(bench):
    bench.dismiss("a", lived=False)
    bench.dismiss("b", lived=True)
    assert bench.came() == {"a": SequenceGoneError, "b": None}


def test_what_lasts_stays(bench):
    bench.keep("a")
    bench.lasting.add("a")
    bench.dismiss("a")
    assert bench.came() == {"a": None}
    assert bench.store.ids == ["a"]


@pytest.mark.parametrize("name", ["load", "delete"])
def test_a_store_that_does_not_answer_is_told_to_all(bench, name):
    bench.keep("a")
    bench.store.faults[name] = "before"
    bench.dismiss("a")
    assert bench.came() == {"a": UnavailableError}
    assert not bench.of.pending("a")


def test_whatever_a_store_raises_is_told_and_others_are_done_after_it(bench):
    def odd():
        bench.store.faults.clear()
        raise RuntimeError("boom")

    bench.keep("a", "b")
    bench.store.faults["load"] = odd
    bench.dismiss("a")
    bench.of._thread.submit(int).result(10)
    bench.dismiss("b")
    assert bench.came() == {"a": PredictError, "b": None}
    assert bench.store.ids == ["a"]


def test_nobody_is_told_who_did_not_ask(bench):
    bench.keep("a")
    assert bench.of.add(Dismissal("a", lived=True))
    assert bench.came() == {}
    assert bench.store.ids == []


def test_until_it_is_done_it_is_pending_and_many_are_done_at_once(bench):
    loading, go_on = threading.Event(), threading.Event()

    def wait():
        loading.set()
        assert go_on.wait(20)

    bench.store.faults["load"] = wait
    bench.dismiss("first")
    assert loading.wait(20)
    for number in range(BATCH_MAX + 1):
        bench.dismiss(f"s{number}", lived=False)
    assert bench.of.waiting == BATCH_MAX + 1
    assert bench.of.pending("first")
    assert bench.of.pending("s0")
    assert not bench.of.pending("other")
    go_on.set()
    assert len(bench.came()) == BATCH_MAX + 2
    assert bench.store.asked["load"] == 3
    assert (bench.of.waiting, bench.of.pending("first"), bench.of.pending("s0")) == (0, False, False)


def test_what_is_closed_takes_nothing_and_has_done_all(bench):
    bench.dismiss("a")
    bench.of.close()
    assert [id for id, _ in bench.told] == ["a"]
    assert not bench.of.add(Dismissal("b", lived=True))
    assert not bench.of.pending("b")
