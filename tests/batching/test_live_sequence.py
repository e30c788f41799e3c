"""A single sequence: its stages, the order of its requests, and rewinding."""

import pytest

from batching.sequence_reference import Item
from headrace.batching.live_sequence import LiveSequence, SequenceEvent, SequenceStage, is_started


def _sequence(current: Item | None, *waiting: Item) -> LiveSequence[Item]:
    sequence = LiveSequence[Item]("a", 1, 0, 0.0)
    sequence.current = current
    sequence.waiting.extend(waiting)
    return sequence


def _order(sequence: LiveSequence[Item]) -> list[str]:
    sequence.interleave()
    assert sequence.current is not None
    return [sequence.current.name, *(item.name for item in sequence.waiting)]


def test_impossible_event_is_refused():
    sequence = _sequence(None)
    sequence.apply(SequenceEvent.REQUEST)
    assert sequence.stage is SequenceStage.WAITING
    with pytest.raises(AssertionError, match="event step_done is impossible in stage waiting"):
        sequence.apply(SequenceEvent.STEP_DONE)
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
def test_interleaving_respects_ordered_requests(waiting, turns):
    assert _order(_sequence(Item("now", again=True), *waiting)) == turns


def test_ending_request_does_not_interleave():
    assert _order(_sequence(Item("end", ends=True, again=True), Item("late"))) == ["end", "late"]


def test_rewind_discards_all_started_requests():
    current, begun, later = Item("a", rows=3, row=2), Item("b", again=True), Item("c")
    sequence = _sequence(current, begun, later)
    sequence.steps = 4
    assert sequence.rewind()
    assert [is_started(item) for item in (current, begun, later)] == [False] * 3
    assert sequence.steps == 0


@pytest.mark.parametrize("place", ["current", "waiting", "over"])
def test_delivered_output_prevents_rewind(place):
    current, waiting = Item("a", rows=3, row=1), Item("b", again=True)
    current.output_seen, waiting.output_seen = place == "current", place == "waiting"
    sequence = _sequence(current, waiting)
    sequence.steps, sequence.has_final_steps = 2, place == "over"
    assert not sequence.rewind()
    assert (sequence.steps, current.row, waiting.again) == (2, 1, True)


def test_rewind_ignores_requests_not_started():
    waiting = Item("b")
    waiting.output_seen = True
    sequence = _sequence(Item("a", again=True), waiting)
    assert sequence.rewind()
