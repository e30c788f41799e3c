"""What the store in memory does beside what every store must; the suite is in tests/conformance/."""

from headrace.checkpoints.memory import MemoryCheckpointStore
from headrace.checkpoints.store import Checkpoint
from headrace.testing import ManualClock


def test_memory_is_flat_while_sequences_come_and_go():
    clock = ManualClock()
    store = MemoryCheckpointStore("m", clock=clock)
    for n in range(5000):
        store.save([Checkpoint(f"s-{n}", 1, b"x", 0)])
        clock.advance(1)
        store.purge(idle_ms_max=10_000, count_max=10)
        assert len(store._kept) <= 11


def test_its_time_is_its_clock_and_needs_none():
    store = MemoryCheckpointStore("m")
    store.save([Checkpoint("a", 1, b"x", 0)])
    assert store.load(["a"], idle_ms_max=60_000) == [(1, b"x")]


def test_purging_stops_at_the_first_that_is_young():
    """However many there are: whoever purges does so between steps."""

    class Counted(dict):
        looked = 0

        def items(self):
            for item in super().items():
                self.looked += 1
                yield item

    clock = ManualClock()
    store = MemoryCheckpointStore("m", clock=clock)
    store._kept = Counted()
    store.save([Checkpoint("old", 1, b"x", 0), Checkpoint("was old", 1, b"x", 0)])
    clock.advance(10)
    store.save([Checkpoint(f"s-{n}", 1, b"x", 0) for n in range(1000)])
    store.save([Checkpoint("was old", 2, b"x", 1)])
    assert store.purge(idle_ms_max=5000, count_max=100) == 1
    assert store._kept.looked == 2
