"""One instance, as its sequences see it: when it is woken, and what it is to do then."""

import pytest

from batching.sequence_reference import Item
from headrace.batching.adaptive import LookAgain
from headrace.batching.live_sequence import LiveSequence
from headrace.core.sequence import SequenceEnd
from headrace.engine.stepper import Ending
from headrace.engine.steps.place import StepPlace

ENDING = Ending(1, "a", 3, SequenceEnd.IDLE)


class Taker:
    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


def sequence(name, *, asked_s=0.0, again=False):
    """One whose next step can be done."""
    made = LiveSequence(name, 1, 0, 0.0)
    made.current = Item(name, rows=2)
    made.current.again = again
    made.asked_s = asked_s
    return made


@pytest.fixture
def place():
    made = StepPlace()
    made.resize(rows_max=2, delay_s=1.0)
    return made


def ids(batch):
    return [item.id for item in batch.items]


def test_a_lone_step_waits_for_nobody_and_what_is_left_of_a_full_call_is_in_the_next(place):
    for name in "abc":
        place.add(sequence(name))
    assert place.full
    assert ids(place.next(0.0, flush=False)) == ["a", "b"]
    assert not place.full
    assert ids(place.next(0.0, flush=True)) == ["c"]
    assert place.next(0.0, flush=True) == LookAgain()


@pytest.mark.parametrize("goes_on", [False, True])
def test_company_is_waited_for_but_not_by_a_step_that_goes_on(place, goes_on):
    for name in "ab":
        place.add(sequence(name))
    place.taken(place.next(0.0, flush=False))
    place.awake()
    place.call_ended(0.5)
    place.add(sequence("a", asked_s=0.5, again=goes_on))
    found = place.next(0.5, flush=False)
    assert ids(found) == ["a"] if goes_on else found == LookAgain(1.5, 2, 2)


def test_only_a_full_call_is_taken_ahead(place):
    place.add(sequence("a"))
    assert place.next_full(0.0) is None
    place.add(sequence("b"))
    assert ids(place.next_full(0.0)) == ["a", "b"]
    assert len(place) == 0


def test_whoever_sleeps_is_woken_once_for_what_it_waits_for(place):
    taker = Taker()
    place.sleeps(taker, LookAgain(9.0, rows=2, requests=2))
    place.add(sequence("a"))
    assert (taker.woken, place.asleep) == (0, True)
    place.add(sequence("b"))
    place.add(sequence("c"))
    assert (taker.woken, place.asleep) == (1, False)


@pytest.mark.parametrize("does", [lambda p: p.add(sequence("a", again=True)), lambda p: p.ended(ENDING)])
def test_for_what_cannot_wait_it_is_woken_at_once(place, does):
    taker = Taker()
    place.sleeps(taker, LookAgain(9.0, rows=2, requests=2))
    does(place)
    assert taker.woken == 1


def test_the_model_is_told_of_each_end_once(place):
    place.ended(ENDING)
    assert place.taken(None) == (ENDING,)
    assert place.taken(None) == ()
    assert place.running == 0


def test_what_was_taken_runs_until_somebody_says_what_came_of_it(place):
    for name in "ab":
        place.add(sequence(name, asked_s=3.0))
    assert place.oldest_s == 3.0
    place.taken(place.next(3.0, flush=False))
    assert (place.running, len(place), place.oldest_s) == (2, 0, None)
