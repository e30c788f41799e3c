"""Placement of sequences on the best available instance."""

from headrace.batching.sequence_registry import InstancePlacement


def test_instance_with_the_fewest_sequences_is_best():
    placement = InstancePlacement(3)
    assert len(placement) == 3
    assert [placement.assign() for _ in range(4)] == [0, 1, 2, 0]
    placement.release(2)
    assert placement.assign() == 2
    assert [placement.count(instance) for instance in range(3)] == [2, 1, 1]


def test_unavailable_instances_come_later_and_retired_ones_last():
    placement = InstancePlacement(3)
    placement.set_available(0, available=False)
    placement.retire(1)
    assert [placement.assign() for _ in range(3)] == [2, 2, 2]
    placement.set_available(2, available=False)
    assert [placement.assign() for _ in range(4)] == [0, 0, 0, 0]
    placement.retire(0)
    placement.retire(2)
    assert placement.assign() == 1
    assert [placement.count(instance) for instance in range(3)] == [4, 1, 3]


def test_retired_instance_returns_only_when_available():
    placement = InstancePlacement(2)
    placement.retire(0)
    placement.set_available(0, available=False)
    placement.set_available(1, available=False)
    assert placement.assign() == 1
    placement.set_available(0, available=True)
    assert placement.assign() == 0
