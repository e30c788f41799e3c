"""The deadline queue against a sorted list, and its memory."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import levels
from headrace.batching.sequence_ends import DeadlineQueue

ITEMS = st.sampled_from("abcdef")
TIMES = st.integers(0, 20).map(float) | st.just(float("inf"))


class AgainstASortedList(RuleBasedStateMachine):
    """Entries of the list: time, order of adding, item. Equal times keep the order of adding."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = DeadlineQueue[str]()
        self.list: list[tuple[float, int, str]] = []
        self.added = 0

    def forget(self, item: str) -> None:
        self.list = [entry for entry in self.list if entry[2] != item]

    @rule(item=ITEMS, at_s=TIMES)
    def add(self, item, at_s):
        self.queue.add(item, at_s)
        self.forget(item)
        self.added += 1
        self.list = sorted([*self.list, (at_s, self.added, item)])

    @rule(item=ITEMS)
    def discard(self, item):
        self.queue.discard(item)
        self.forget(item)

    @rule(now=TIMES)
    def pop(self, now):
        first = self.list.pop(0)[2] if self.list and self.list[0][0] <= now else None
        assert self.queue.pop(now) == first

    @precondition(lambda self: self.list)
    @rule()
    def pop_when_it_says_so(self):
        at_s = self.queue.next_due_s()
        assert at_s is not None
        assert self.queue.pop(at_s) == self.list.pop(0)[2]

    @invariant()
    def it_is_as_the_list(self):
        assert len(self.queue) == len(self.list)
        assert self.queue.next_due_s() == (self.list[0][0] if self.list else None)


AgainstASortedList.TestCase.settings = settings(max_examples=levels.examples(2), stateful_step_count=40)
test_it_is_a_sorted_list = AgainstASortedList.TestCase


class Tracked:
    """An item that counts its instances."""

    held = 0

    def __init__(self) -> None:
        Tracked.held += 1

    def __del__(self) -> None:
        Tracked.held -= 1


def test_discarded_items_are_released_soon():
    """Even if their deadline is far away."""
    queue = DeadlineQueue[Tracked]()
    for _ in range(3):
        items = [Tracked() for _ in range(1000)]
        for item in items:
            queue.add(item, 1e9)
        for item in items:
            queue.discard(item)
        del items, item
        assert Tracked.held < 20
    assert len(queue) == 0
    assert queue.next_due_s() is None


def test_postponed_item_is_held_once():
    queue = DeadlineQueue[str]()
    for at in range(1000):
        queue.add("a", 1e9 + at)
    assert len(queue) == 1
    assert len(queue._heap) < 20
    assert queue.next_due_s() == 1e9 + 999


def test_items_need_not_be_comparable():
    queue = DeadlineQueue[object]()
    first, second = object(), object()
    queue.add(first, 1.0)
    queue.add(second, 1.0)
    assert queue.pop(0.5) is None
    assert (queue.pop(1.0), queue.pop(1.0), queue.pop(1.0)) == (first, second, None)
