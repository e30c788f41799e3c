"""What is due first: as a sorted list would have it, and without holding on to what was dropped."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.batching.due import Due

THINGS = st.sampled_from("abcdef")
TIMES = st.integers(0, 20).map(float) | st.just(float("inf"))


class AsASortedList(RuleBasedStateMachine):
    """Beside each thing its time, and when it was added: of two that are due at once, the first comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.due = Due[str]()
        self.list: list[tuple[float, int, str]] = []
        self.added = 0

    def forget(self, thing: str) -> None:
        self.list = [entry for entry in self.list if entry[2] != thing]

    @rule(thing=THINGS, at_s=TIMES)
    def add(self, thing, at_s):
        self.due.add(thing, at_s)
        self.forget(thing)
        self.added += 1
        self.list = sorted([*self.list, (at_s, self.added, thing)])

    @rule(thing=THINGS)
    def drop(self, thing):
        self.due.drop(thing)
        self.forget(thing)

    @rule(now=TIMES)
    def pop(self, now):
        first = self.list.pop(0)[2] if self.list and self.list[0][0] <= now else None
        assert self.due.pop(now) == first

    @precondition(lambda self: self.list)
    @rule()
    def pop_when_it_says_so(self):
        at_s = self.due.next_s()
        assert at_s is not None
        assert self.due.pop(at_s) == self.list.pop(0)[2]

    @invariant()
    def it_is_as_the_list(self):
        assert len(self.due) == len(self.list)
        assert self.due.next_s() == (self.list[0][0] if self.list else None)


AsASortedList.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_it_is_a_sorted_list = AsASortedList.TestCase


class Thing:
    """Counts how many of it there are."""

    held = 0

    def __init__(self) -> None:
        Thing.held += 1

    def __del__(self) -> None:
        Thing.held -= 1


def test_what_was_dropped_is_not_held_for_long():
    """However far away its time is."""
    due = Due[Thing]()
    for _ in range(3):
        things = [Thing() for _ in range(1000)]
        for thing in things:
            due.add(thing, 1e9)
        for thing in things:
            due.drop(thing)
        del things, thing
        assert Thing.held < 20
    assert len(due) == 0
    assert due.next_s() is None


def test_what_is_put_off_is_held_once():
    due = Due[str]()
    for at in range(1000):
        due.add("a", 1e9 + at)
    assert len(due) == 1
    assert len(due._heap) < 20
    assert due.next_s() == 1e9 + 999


def test_a_thing_need_not_be_comparable():
    due = Due[object]()
    first, second = object(), object()
    due.add(first, 1.0)
    due.add(second, 1.0)
    assert due.pop(0.5) is None
    assert (due.pop(1.0), due.pop(1.0), due.pop(1.0)) == (first, second, None)
