"""One sequence by itself: its stages, whose turn it is, and what can be forgotten."""

import pytest

from batching.sequence_reference import Item
from headrace.batching.live_sequence import LiveSequence, was_begun
from headrace.batching.sequence_life import SequenceEvent, SequenceStage


def _sequence(current: Item | None, *waiting: Item) -> LiveSequence[Item]:
    sequence = LiveSequence[Item]("a", 1, 0, 0.0)
    sequence.current = current
    sequence.waiting.extend(waiting)
    return sequence


def _turns(sequence: LiveSequence[Item]) -> list[str]:
    sequence.take_turns()
    assert sequence.current is not None
    return [sequence.current.name, *(item.name for item in sequence.waiting)]


def test_the_stage_follows_the_table_and_nothing_else_can_happen():
    sequence = _sequence(None)
    sequence.happened(SequenceEvent.REQUEST)
    assert sequence.stage is SequenceStage.WAITING
    with pytest.raises(AssertionError, match="that is waiting cannot meet stepped"):
        sequence.happened(SequenceEvent.STEPPED)
    assert sequence.stage is SequenceStage.WAITING


@pytest.mark.parametrize(
    ("waiting", "turns"),
    [
        ([], ["now"]),
        ([Item("b"), Item("c")], ["b", "c", "now"]),
        ([Item("end", ends=True)], ["now", "end"]),
        ([Item("none", rows=0), Item("b")], ["now", "none", "b"]),
        ([Item("b"), Item("none", rows=0), Item("c")], ["b", "now", "none", "c"]),
        ([Item("b"), Item("c"), Item("end", ends=True), Item("late")], ["b", "c", "now", "end", "late"]),
    ],
)
def test_nothing_passes_what_has_to_be_in_order(waiting, turns):
    assert _turns(_sequence(Item("now", again=True), *waiting)) == turns


def test_the_last_request_gives_no_turn_away():
    assert _turns(_sequence(Item("end", ends=True, again=True), Item("late"))) == ["end", "late"]


def test_all_that_was_begun_is_forgotten_together():
    current, begun, later = Item("a", rows=3, row=2), Item("b", again=True), Item("c")
    sequence = _sequence(current, begun, later)
    sequence.steps = 4
    assert sequence.rewind()
    assert [was_begun(item) for item in (current, begun, later)] == [False] * 3
    assert sequence.steps == 0


@pytest.mark.parametrize("who", ["current", "waiting", "over"])
def test_nothing_is_forgotten_that_somebody_has_seen(who):
    current, waiting = Item("a", rows=3, row=1), Item("b", again=True)
    current.shown, waiting.shown = who == "current", who == "waiting"
    sequence = _sequence(current, waiting)
    sequence.steps, sequence.settled = 2, who == "over"
    assert not sequence.rewind()
    assert (sequence.steps, current.row, waiting.again) == (2, 1, True)


def test_a_request_that_was_not_begun_is_not_asked_whether_it_can_be_again():
    waiting = Item("b")
    waiting.shown = True
    sequence = _sequence(Item("a", again=True), waiting)
    assert sequence.rewind()
