"""The memory store, beyond the conformance suite in tests/conformance/."""

from headrace.checkpoints.store import MemoryCheckpointStore, SequenceCheckpoint
from headrace.testing import ManualClock


def test_purge_bounds_the_memory():
    clock = ManualClock()
    store = MemoryCheckpointStore("m", clock=clock)
    for n in range(5000):
        store.save([SequenceCheckpoint(f"s-{n}", 1, b"x", 0)])
        clock.advance(1)
        store.purge(idle_ms_max=10_000, count_max=10)
        assert len(store._states) <= 11


def test_default_clock():
    store = MemoryCheckpointStore("m")
    store.save([SequenceCheckpoint("a", 1, b"x", 0)])
    assert store.load(["a"], idle_ms_max=60_000) == [(1, b"x")]


def test_purge_stops_at_the_first_young_checkpoint():
    """A purge runs between steps, so it must not scan all checkpoints."""

    class Counted(dict):
        looked = 0

        def items(self):
            for item in super().items():
                self.looked += 1
                yield item

    clock = ManualClock()
    store = MemoryCheckpointStore("m", clock=clock)
    store._states = Counted()
    store.save([SequenceCheckpoint("old", 1, b"x", 0), SequenceCheckpoint("was old", 1, b"x", 0)])
    clock.advance(10)
    store.save([SequenceCheckpoint(f"s-{n}", 1, b"x", 0) for n in range(1000)])
    store.save([SequenceCheckpoint("was old", 2, b"x", 1)])
    assert store.purge(idle_ms_max=5000, count_max=100) == 1
    assert store._states.looked == 2
