"""Sequences, promise by promise; all of them together are in test_sequence_reference."""

import gc

import pytest

from batching.sequences import Hand
from headrace.batching.sequence import RETRY_S, LiveSequence
from headrace.batching.sequence_life import SequenceStage
from headrace.core.errors import (
    SequenceFullError,
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    TooManySequencesError,
)

# Order


def test_requests_of_a_sequence_are_answered_in_order_one_step_at_a_time():
    hand = Hand()
    hand.start("a", "one")
    hand.ask("a", "two")
    hand.ask("a", "three")
    assert len(hand.queue) == 1
    sequence = hand.take()
    assert hand.queue == [], "while a step is done no other is"
    assert hand.table.stepped(sequence, 0.0)
    assert [hand.step(), hand.step()] == [("two", True), ("three", True)]
    assert sequence.stage is SequenceStage.IDLE


def test_each_row_is_a_step_and_the_last_ends_the_request():
    hand = Hand()
    sequence = hand.start("a", "rows", 3)
    hand.ask("a", "next")
    assert not sequence.goes_on
    assert [hand.step(), hand.step()] == [("rows", False), ("rows", False)]
    assert sequence.goes_on
    assert [hand.step(), hand.step()] == [("rows", True), ("next", True)]
    assert sequence.steps == 4


def test_a_row_that_goes_on_is_stepped_again():
    hand = Hand()
    sequence, item = hand.ask("a", rows=2, start=True)
    hand.step(goes_on=True)
    assert (item.row, item.again, sequence.goes_on) == (0, True, True)
    hand.step()
    assert (item.row, item.again) == (1, False)
    assert hand.step() == ("a", True)


def test_a_step_that_failed_does_not_count_and_may_end_its_request():
    hand = Hand()
    sequence = hand.start("a", "fails", 3)
    assert hand.step(counts=False, finished=True) == ("fails", True)
    assert (sequence.steps, sequence.stage) == (0, SequenceStage.IDLE)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_request_that_can_be_asked_again_is_over_and_ends_no_sequence(rows):
    hand = Hand()
    sequence = hand.start("a")
    hand.step()
    hand.ask("a", "last", rows, ends=True)
    hand.ask("a", "next")
    assert hand.step(counts=False, finished=True, withdrawn=True) == ("last", True)
    assert (sequence.steps, sequence.why) == (1, None)
    assert hand.step() == ("next", True)
    assert (sequence.steps, sequence.stage) == (2, SequenceStage.IDLE)


def test_requests_that_ask_for_no_step_are_over_in_their_turn():
    hand = Hand()
    hand.start("a", "one")
    hand.ask("a", "none", 0)
    assert hand.over() == []
    hand.step()
    assert hand.over() == [("none", None)]


def test_a_request_for_no_step_keeps_its_sequence_from_being_idle():
    hand = Hand()
    hand.start("a")
    hand.step()
    hand.now = 9.0
    hand.ask("a", "none", 0)
    assert hand.table.next_s() == 19.0


def test_different_sequences_do_not_wait_for_each_other():
    hand = Hand()
    for id in "abc":
        hand.start(id)
    assert [sequence.id for sequence in hand.queue] == ["a", "b", "c"]


def test_what_a_batch_asks_of_a_sequence_is_that_of_its_next_step():
    hand = Hand()
    sequence, item = hand.ask("a", start=True, rows=3)
    item.key, item.priority, hand.now = "k7", 3, 4.0
    assert (sequence.key, sequence.priority, sequence.rows, sequence.asked_s) == ("k7", 3, 1, 0.0)
    hand.step()
    assert sequence.asked_s == 4.0


# Turns


def test_a_request_that_goes_on_lets_others_wait():
    hand = Hand()
    hand.start("a", "long")
    hand.ask("a", "short")
    assert [hand.step(goes_on=True)[0], hand.step(goes_on=True)[0], hand.step()[0]] == ["long"] * 3
    assert hand.step() == ("short", True)


def test_interleaved_they_take_turns():
    hand = Hand(interleave=True)
    hand.start("a", "long")
    hand.ask("a", "other")
    assert [hand.step(goes_on=True)[0] for _ in range(4)] == ["long", "other", "long", "other"]
    assert [hand.step(), hand.step()] == [("long", True), ("other", True)]


def test_the_request_that_ends_a_sequence_waits_for_all_before_it():
    hand = Hand(interleave=True)
    hand.start("a", "long")
    hand.ask("a", "other")
    hand.ask("a", "last", ends=True)
    turns = [hand.step(goes_on=True)[0] for _ in range(4)]
    assert turns == ["long", "other", "long", "other"]
    assert [hand.step(), hand.step(), hand.step()] == [("long", True), ("other", True), ("last", True)]
    assert (hand.over(), hand.ended()) == ([], [("a", "ended")])


def test_a_held_request_lets_another_have_its_turn_once_there_is_room():
    hand = Hand(interleave=True)
    sequence = hand.start("a", "slow")
    hand.ask("a", "other")
    hand.step(goes_on=True, held=True)
    assert hand.queue == []
    hand.table.room(sequence, 0.0)
    assert hand.step() == ("other", True)
    assert hand.step() == ("slow", True)


# Held


def test_a_sequence_whose_caller_is_behind_is_held_until_there_is_room():
    hand = Hand()
    sequence = hand.start("a", rows=2)
    assert hand.step(held=True) == ("a", False)
    assert (hand.queue, sequence.stage) == ([], SequenceStage.HELD)
    hand.table.room(sequence, 0.0)
    hand.table.room(sequence, 0.0)
    assert hand.queue == [sequence]


def test_whoever_is_over_is_not_held():
    hand = Hand()
    hand.start("a", "one")
    hand.ask("a", "two")
    assert hand.step(held=True) == ("one", True)
    assert hand.step(held=True) == ("two", True)


# Beginnings


def test_an_unknown_sequence_must_be_started():
    hand = Hand()
    with pytest.raises(SequenceGoneError, match="no such sequence: begin it with sequence_start"):
        hand.ask("a")
    assert (len(hand.table), hand.table.requests, hand.queue) == (0, 0, [])
    hand.ask("a", auto=True)
    assert hand.table.find("a") is hand.queue[0]
    hand.ask("a", "two", auto=True)
    assert len(hand.table) == 1


def test_a_restart_ends_the_old_one_with_its_requests_and_with_the_step_that_is_done():
    hand = Hand()
    hand.start("a", "old")
    hand.ask("a", "waits")
    old = hand.take()
    new = hand.start("a", "new")
    assert [name for name, _ in hand.over()] == ["old", "waits"]
    assert (old.stage, hand.ended()) == (SequenceStage.ENDING, [])
    assert not hand.table.stepped(old, 0.0)
    assert hand.ended() == [("a", "restarted")]
    assert hand.table.find("a") is new
    assert new.number != old.number
    assert hand.step() == ("new", True)


def test_a_sequence_that_was_asked_for_its_end_is_done_before_its_id_is_another_s():
    hand = Hand()
    hand.start("a", "first")
    hand.ask("a", "last", ends=True)
    new = hand.start("a", "new")
    assert hand.table.find("a") is new
    assert [hand.step()[0] for _ in range(3)] == ["first", "new", "last"]
    assert (hand.over(), hand.ended()) == ([], [("a", "ended")])
    assert hand.table.find("a") is new


def test_a_replaced_sequence_that_is_not_to_end_any_more_ends_since_nobody_can_ask_for_it():
    hand = Hand()
    old = hand.start("a", "first")
    _, last = hand.ask("a", "last", ends=True)
    hand.start("a", "new")
    hand.table.withdraw(old, last, 0.0)
    assert hand.step() == ("first", True)
    assert (len(hand.table), hand.ended()) == (1, [("a", "restarted")])


def test_a_request_by_itself_is_a_sequence_that_ends_with_it():
    hand = Hand()
    sequence, _ = hand.ask(name="alone", rows=2)
    hand.step()
    assert hand.step() == ("alone", True)
    assert (sequence.anonymous, len(hand.table), hand.ended()) == (True, 0, [("", "ended")])
    hand.ask(name="empty", rows=0)
    assert (len(hand.table), hand.over(), hand.ended()) == (0, [("empty", None)], [])


# Bounds


def test_so_many_requests_wait_for_a_sequence():
    hand = Hand(requests_max=2)
    hand.start("a")
    for name in ("one", "two"):
        hand.ask("a", name)
    with pytest.raises(SequenceFullError, match=r"2 of its requests wait.*requests_max") as caught:
        hand.ask("a", "three")
    assert caught.value.retry_after_s == RETRY_S
    assert (hand.table.requests, hand.table.rows) == (3, 3)
    hand.step()
    hand.ask("a", "three")


def test_so_many_sequences_live():
    hand = Hand(live_max=2)
    hand.start("a")
    hand.start("b")
    with pytest.raises(TooManySequencesError, match=r"2 live already.*live_max") as caught:
        hand.start("c")
    assert caught.value.retry_after_s == RETRY_S
    hand.start("a")
    hand.table.cancel("a", 0.0)
    hand.start("c")


def test_the_one_that_was_idle_longest_makes_room():
    hand = Hand(live_max=2, evict_idle_ms=3000)
    for id in "ab":
        hand.start(id)
    hand.step()
    hand.now = 1.0
    hand.step()
    hand.now = 2.9
    with pytest.raises(TooManySequencesError):
        hand.start("c")
    hand.now = 3.0
    hand.start("c")
    assert hand.ended() == [("a", "evicted")]
    hand.now = 3.5
    with pytest.raises(SequenceGoneError, match=r"made room for another one \(live_max\) \(0.5 s ago\)"):
        hand.ask("a")


def test_nothing_is_kept_of_what_has_ended():
    """But for how the last ones did."""
    hand = Hand(live_max=2, time_ms_max=1e9, idle_ms=1e9)
    for number in range(3000):
        hand.start(str(number))
        hand.ask(name="alone")
        hand.step(ends=True)
        hand.step()
    hand.over()
    hand.ended()
    gc.collect()
    assert sum(type(thing) is LiveSequence for thing in gc.get_objects()) < 30
    assert hand.table.ends["ended"] == 6000


# Ends


def test_the_last_request_ends_its_sequence():
    hand = Hand()
    hand.start("a", rows=2, ends=True)
    hand.ask("a", "late")
    hand.step()
    assert hand.step() == ("a", True)
    assert hand.ended() == [("a", "ended")]
    [(name, error)] = hand.over()
    assert name == "late"
    assert "it has ended, as its client or the model said" in str(error)


def test_a_request_for_no_step_can_end_its_sequence_in_its_turn():
    hand = Hand()
    hand.start("a")
    hand.ask("a", "end", 0, ends=True)
    assert len(hand.table) == 1
    hand.step()
    assert (hand.over(), hand.ended(), len(hand.table)) == ([("end", None)], [("a", "ended")], 0)


def test_a_model_ends_a_sequence_whatever_was_asked():
    hand = Hand()
    hand.start("a", "rows", 3)
    hand.ask("a", "late")
    assert hand.step(ends=True, goes_on=True) == ("rows", True)
    assert [name for name, _ in hand.over()] == ["late"]
    assert hand.ended() == [("a", "ended")]


def test_a_cancel_ends_a_sequence_with_all_that_waits():
    hand = Hand()
    hand.start("a", "one")
    hand.ask("a", "two")
    assert hand.table.cancel("a", 0.0)
    assert not hand.table.cancel("a", 0.0)
    assert [name for name, _ in hand.over()] == ["one", "two"]
    assert hand.queue == []
    assert hand.ended() == [], "no step of it was taken, so nobody knows of it"


def test_an_error_is_told_to_one_request_alone():
    """Whoever raises it adds a traceback to it."""
    hand = Hand()
    hand.start("a", "one")
    hand.ask("a", "two")
    hand.table.cancel("a", 0.0)
    one, two = hand.table.over
    assert one.error is not two.error


def test_a_sequence_is_idle_from_its_last_answer_on():
    hand = Hand(idle_ms=10_000)
    hand.start("a")
    hand.now = 50.0
    assert hand.table.next_s() is None, "something is asked of it"
    hand.step()
    assert hand.table.next_s() == 60.0
    hand.table.expire(59.9)
    assert len(hand.table) == 1
    hand.table.expire(60.0)
    assert hand.ended() == [("a", "idle")]
    hand.now = 61.0
    with pytest.raises(SequenceGoneError, match=r"idle_ms \(1.0 s ago\)"):
        hand.ask("a")


def test_a_sequence_lives_no_longer_than_it_may():
    hand = Hand(time_ms_max=5000)
    hand.start("a")
    assert hand.table.next_s() == 5.0
    hand.now = 5.0
    with pytest.raises(SequenceGoneError, match="time_ms_max"):
        hand.ask("a")
    assert [name for name, _ in hand.over()] == ["a"]
    assert hand.queue == []


def test_what_is_over_first_is_why_it_ended():
    hand = Hand(time_ms_max=5000, idle_ms=10_000)
    hand.start("a")
    hand.step()
    hand.table.expire(20.0)
    assert hand.ended() == [("a", "timed_out")]


def test_all_end_when_the_model_is_stopped():
    hand = Hand()
    for id in "abc":
        hand.start(id)
    sequence = hand.take()
    hand.table.stop(0.0)
    assert {type(over.error) for over in hand.table.over} == {StoppedError}
    assert (len(hand.table), hand.queue, hand.ended()) == (0, [], [])
    hand.table.stepped(sequence, 0.0)
    assert hand.ended() == [("a", "stopped")]


# Withdrawals


def test_a_request_that_waits_is_withdrawn_as_if_it_never_was():
    hand = Hand()
    sequence = hand.start("a", "one")
    _, two = hand.ask("a", "two")
    hand.table.withdraw(sequence, two, 0.0)
    hand.table.withdraw(sequence, two, 0.0)
    assert (hand.table.requests, hand.over()) == (1, [])
    assert hand.step() == ("one", True)
    assert sequence.stage is SequenceStage.IDLE


def test_what_was_done_of_a_withdrawn_request_stays_done():
    hand = Hand()
    sequence, item = hand.ask("a", "gone", 3, start=True)
    hand.step()
    hand.table.withdraw(sequence, item, 0.0)
    assert (sequence.steps, sequence.stage, hand.queue) == (1, SequenceStage.IDLE, [])
    hand.table.lost(0, [], 0.0)
    assert hand.ended() == [("a", "instance_lost")], "so it cannot be done again"


def test_a_step_that_is_being_done_is_the_last_of_a_withdrawn_request():
    hand = Hand()
    sequence, item = hand.ask("a", "gone", 3, start=True)
    hand.ask("a", "next")
    hand.take()
    hand.table.withdraw(sequence, item, 0.0)
    assert hand.table.requests == 2
    assert hand.table.stepped(sequence, 0.0, goes_on=True)
    assert hand.step() == ("next", True)


@pytest.mark.parametrize(("rows", "lives"), [(1, False), (2, True)])
def test_a_withdrawn_request_ends_its_sequence_only_by_its_last_step(rows, lives):
    """As if it had been withdrawn between two steps."""
    hand = Hand()
    sequence, item = hand.ask("a", "gone", rows, start=True, ends=True)
    hand.take()
    hand.table.withdraw(sequence, item, 0.0)
    hand.table.stepped(sequence, 0.0)
    assert (len(hand.table) == 1) == lives


def test_a_held_request_that_is_withdrawn_makes_way():
    hand = Hand()
    sequence, item = hand.ask("a", "slow", 2, start=True)
    hand.ask("a", "next")
    hand.step(held=True)
    hand.table.withdraw(sequence, item, 0.0)
    assert hand.step() == ("next", True)


def test_withdrawing_the_one_request_of_a_sequence_ends_it():
    hand = Hand()
    sequence, item = hand.ask(name="alone")
    hand.take()
    hand.table.withdraw(sequence, item, 0.0)
    assert sequence.stage is SequenceStage.ENDING
    hand.table.stepped(sequence, 0.0)
    assert hand.ended() == [("", "cancelled")]


# Places


def test_a_sequence_begins_where_the_fewest_live_and_stays():
    hand = Hand(places=2)
    a, b = hand.start("a"), hand.start("b")
    assert (a.place, b.place) == (0, 1)
    hand.table.cancel("b", 0.0)
    hand.table.up(1, up=False)
    assert hand.start("c").place == 0
    hand.table.up(1, up=True)
    assert hand.start("d").place == 1
    assert a.place == 0


def test_what_nobody_has_seen_is_done_again_when_an_instance_dies():
    hand = Hand()
    sequence, item = hand.ask("a", rows=3, start=True)
    hand.step()
    hand.take()
    hand.table.lost(0, [sequence], 0.0)
    assert (item.row, sequence.steps, hand.queue) == (0, 0, [sequence])
    assert [hand.step()[1] for _ in range(3)] == [False, False, True]


def test_what_was_held_and_is_forgotten_is_held_no_more():
    hand = Hand()
    sequence = hand.start("a", rows=3)
    hand.step(held=True)
    hand.table.lost(0, [], 0.0)
    assert hand.queue == [sequence]


@pytest.mark.parametrize("answered", [False, True])
def test_a_state_that_somebody_has_seen_dies_with_its_instance(answered):
    hand = Hand()
    sequence, item = hand.ask("a", rows=1 if answered else 2, start=True)
    hand.step()
    item.shown = True
    hand.ask("a", "waits")
    hand.take()
    hand.table.lost(0, [sequence], 0.0)
    assert all("no checkpoint" in str(error) for _, error in hand.over())
    assert hand.ended() == [("a", "instance_lost")]
    with pytest.raises(SequenceLostError, match="the process that held its state died"):
        hand.ask("a")


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("stage", ["idle", "waiting", "held", "stepping", "ending", "ended"])
def test_a_state_that_is_spoiled_ends_its_sequence_whatever_it_does(stage, checkpoints):
    """And the step that was taken with it."""
    hand = Hand(checkpoints=checkpoints)
    sequence = hand.start("a")
    hand.step()
    if stage != "idle":
        hand.ask("a", "rows", rows=3)
    if stage == "held":
        hand.step(held=True)
    if stage in ("stepping", "ending"):
        hand.take()
        hand.ask("a", "waits")
    if stage in ("ending", "ended"):
        hand.table.cancel("a", 0.0)
        hand.over()
    assert str(sequence.stage) == stage
    taken = stage in ("stepping", "ending")
    assert hand.table.spoiled(sequence, 0.0, taken=True) is taken
    gone = "cancelled" if stage in ("ending", "ended") else "instance_lost"
    assert hand.ended() == [("a", gone)]
    names = {"idle": [], "waiting": ["rows"], "held": ["rows"], "stepping": ["rows", "waits"]}
    over = hand.over()
    assert [name for name, _ in over] == names.get(stage, [])
    assert all("a defect spoiled it" in error for _, error in over)
    assert (hand.queue, len(hand.table), hand.table.requests, hand.table.rows) == ([], 0, 0, 0)
    assert not hand.table.spoiled(sequence, 0.0, taken=True)


def test_a_spoiled_sequence_whose_next_step_is_being_done_ends_with_that():
    hand = Hand()
    sequence = hand.start("a", rows=2)
    hand.step()
    hand.take()
    assert not hand.table.spoiled(sequence, 0.0, taken=False)
    assert (hand.ended(), sequence.stage) == ([], SequenceStage.ENDING)
    assert not hand.table.stepped(sequence, 0.0)
    assert hand.ended() == [("a", "instance_lost")]


def test_with_a_checkpoint_it_goes_on_where_it_was():
    hand = Hand(checkpoints=True)
    sequence, item = hand.ask("a", rows=2, start=True)
    hand.step()
    item.shown = True
    hand.take()
    hand.table.lost(0, [sequence], 0.0)
    assert (sequence.loaded, hand.queue, item.row) == (False, [sequence], 1)
    hand.take()
    hand.table.found(sequence, 1)
    assert hand.table.stepped(sequence, 0.0)
    assert (sequence.loaded, sequence.steps) == (True, 2)


def test_a_state_that_died_and_has_no_checkpoint_is_lost():
    hand = Hand(checkpoints=True)
    sequence = hand.start("a")
    hand.step()
    hand.table.lost(0, [], 0.0)
    hand.ask("a")
    hand.take()
    assert not hand.table.missing(sequence, 0.0)
    assert hand.ended() == [("a", "instance_lost")]
    [(_, error)] = hand.over()
    assert "the process that held its state died" in str(error)


def test_a_sequence_that_another_process_ended_has_ended():
    hand = Hand(checkpoints=True)
    sequence = hand.start("a")
    hand.step()
    hand.table.unload(sequence)
    hand.ask("a")
    hand.take()
    assert not hand.table.missing(sequence, 0.0)
    assert hand.ended() == [("a", "ended")]


def test_a_sequence_that_lives_nowhere_never_was():
    hand = Hand(checkpoints=True)
    sequence, _ = hand.ask("a")
    assert not sequence.loaded
    hand.take()
    assert not hand.table.missing(sequence, 0.0)
    [(_, error)] = hand.over()
    assert "no such sequence" in str(error)
    assert (hand.ended(), len(hand.table), sum(hand.table.ends.values())) == ([], 0, 0)


def test_where_all_who_ask_would_have_it_so_a_missing_sequence_begins_anew():
    hand = Hand(checkpoints=True)
    sequence, _ = hand.ask("a", auto=True)
    hand.take()
    assert hand.table.missing(sequence, 0.0)
    assert hand.table.stepped(sequence, 0.0)
    hand.table.unload(sequence)
    hand.ask("a", "would", auto=True)
    hand.ask("a", "would not")
    hand.take()
    assert not hand.table.missing(sequence, 0.0)


def test_a_sequence_of_which_only_a_checkpoint_is_left_can_be_ended():
    """Whoever keeps it is told, though no step of it was taken."""
    hand = Hand(checkpoints=True)
    hand.ask("a", "end", 0, ends=True)
    assert (hand.over(), hand.ended()) == ([("end", None)], [("a", "ended")])


def test_what_has_no_state_at_a_place_leaves_it_and_what_has_one_ends():
    hand = Hand(places=2)
    a, _, c = (hand.start(id) for id in "abc")
    hand.step()
    hand.take()
    assert [a.place, c.place] == [0, 0]
    hand.table.vacate(0, 0.0)
    assert hand.ended() == [("a", "instance_lost")]
    assert (c.place, hand.queue) == (1, [c])
    hand.table.vacate(1, 0.0)
    hand.table.up(0, up=True)
    assert hand.start("d").place == 0


def test_with_checkpoints_all_leave_a_place():
    hand = Hand(places=2, checkpoints=True)
    a = hand.start("a")
    hand.step()
    hand.table.vacate(0, 0.0)
    assert (a.place, a.loaded, hand.ended()) == (1, False, [])


def test_a_step_that_is_being_done_at_a_place_that_is_left_is_the_last():
    hand = Hand(places=2, checkpoints=True)
    sequence = hand.start("a")
    hand.take()
    hand.table.vacate(0, 0.0)
    assert sequence.stage is SequenceStage.ENDING
