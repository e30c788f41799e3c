"""Ends of sequences that are reported after their checkpoints are deleted."""

import threading

import pytest

from engine.sequences.sum_model import FaultyStore
from headrace.checkpoints.store import SequenceCheckpoint
from headrace.core.errors import PredictError, SequenceGoneError, UnavailableError
from headrace.core.sequence import SequenceControl
from headrace.engine.sequences.sequence_store import BATCH_MAX, PendingStateDeletes, StateDelete


class Bench:
    """Deletes over a store, and their results by name."""

    def __init__(self):
        self.store = FaultyStore()
        self.results = []
        self.stored = set()
        self.deletes = PendingStateDeletes(
            self.store, self.results.extend, self.stored.__contains__, model="m", idle_ms=float("inf")
        )

    def keep(self, *ids, mark=7):
        self.store.save([SequenceCheckpoint(id, mark, b"state", 0) for id in ids])

    def delete(self, id, *, was_live=True):
        assert self.deletes.add(StateDelete(SequenceControl(id), was_live, lambda error: (id, error)))

    def finish(self):
        """Wait for all deletes and return their results."""
        self.deletes.close()
        return {id: error if error is None else type(error) for id, error in self.results}


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.deletes.close()


def test_checkpoint_is_deleted_before_report(bench):
    bench.keep("a", "b", "c")
    bench.delete("a")
    bench.delete("b", was_live=False)
    assert bench.finish() == {"a": None, "b": None}
    assert bench.store.ids == ["c"]


def test_unknown_sequence_is_reported_gone(bench):
    bench.delete("a", was_live=False)
    bench.delete("b", was_live=True)
    assert bench.finish() == {"a": SequenceGoneError, "b": None}


def test_live_checkpoint_stays(bench):
    bench.keep("a")
    bench.stored.add("a")
    bench.delete("a")
    assert bench.finish() == {"a": None}
    assert bench.store.ids == ["a"]


@pytest.mark.parametrize("name", ["load", "delete"])
def test_unavailable_store_fails_all_deletes(bench, name):
    bench.keep("a")
    bench.store.faults[name] = "before"
    bench.delete("a")
    assert bench.finish() == {"a": UnavailableError}
    assert not bench.deletes.pending("a")


def test_store_error_is_reported_and_next_delete_runs(bench):
    def odd():
        bench.store.faults.clear()
        raise RuntimeError("boom")

    bench.keep("a", "b")
    bench.store.faults["load"] = odd
    bench.delete("a")
    bench.deletes._thread.submit(int).result(10)
    bench.delete("b")
    assert bench.finish() == {"a": PredictError, "b": None}
    assert bench.store.ids == ["a"]


def test_delete_without_client_reports_nothing(bench):
    bench.keep("a")
    assert bench.deletes.add(StateDelete(SequenceControl("a"), was_live=True))
    assert bench.finish() == {}
    assert bench.store.ids == []


def test_deletes_are_pending_until_done_and_batched(bench):
    loading, release = threading.Event(), threading.Event()

    def wait():
        loading.set()
        assert release.wait(20)

    bench.store.faults["load"] = wait
    bench.delete("first")
    assert loading.wait(20)
    for number in range(BATCH_MAX + 1):
        bench.delete(f"s{number}", was_live=False)
    assert bench.deletes.waiting == BATCH_MAX + 1
    assert bench.deletes.pending("first")
    assert bench.deletes.pending("s0")
    assert not bench.deletes.pending("other")
    release.set()
    assert len(bench.finish()) == BATCH_MAX + 2
    assert bench.store.calls["load"] == 3
    assert (bench.deletes.waiting, bench.deletes.pending("first"), bench.deletes.pending("s0")) == (
        0,
        False,
        False,
    )


def test_close_finishes_and_refuses_deletes(bench):
    bench.delete("a")
    bench.deletes.close()
    assert [id for id, _ in bench.results] == ["a"]
    assert not bench.deletes.add(StateDelete(SequenceControl("b"), was_live=True))
    assert not bench.deletes.pending("b")
