"""The sequence table, one guarantee at a time. test_sequence_reference covers their combinations."""

import gc

import pytest

from batching.sequences import TableDriver
from headrace.batching.live_sequence import SequenceStage
from headrace.batching.sequence import RETRY_S, LiveSequence
from headrace.core.errors import (
    SequenceFullError,
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    TooManySequencesError,
)
from headrace.core.sequence import SequenceEnd


def _count_live_sequences() -> int:
    gc.collect()
    return sum(type(thing) is LiveSequence for thing in gc.get_objects())


# Order


def test_requests_of_a_sequence_run_in_order_one_step_at_a_time():
    driver = TableDriver()
    driver.start("a", "one")
    driver.request("a", "two")
    driver.request("a", "three")
    assert len(driver.queue) == 1
    sequence = driver.take()
    assert driver.queue == [], "only one step runs at a time"
    assert driver.table.end_step(sequence, 0.0)
    assert [driver.step(), driver.step()] == [("two", True), ("three", True)]
    assert sequence.stage is SequenceStage.IDLE


def test_each_row_is_a_step():
    driver = TableDriver()
    sequence = driver.start("a", "rows", 3)
    driver.request("a", "next")
    assert not sequence.request_started
    assert [driver.step(), driver.step()] == [("rows", False), ("rows", False)]
    assert sequence.request_started
    assert [driver.step(), driver.step()] == [("rows", True), ("next", True)]
    assert sequence.steps == 4


def test_equal_ids_of_two_namespaces_are_two_sequences():
    driver = TableDriver(live_max=4)
    none = driver.start("a")
    shop, _ = driver.request("a", namespace="shop", start=True)
    farm, _ = driver.request("a", namespace="farm", auto=True)
    assert len({none, shop, farm}) == len(driver.table) == 3
    assert driver.request("a", "second", namespace="shop")[0] is shop
    again, _ = driver.request("a", namespace="farm", start=True)
    assert farm.end_reason is SequenceEnd.RESTARTED
    assert driver.table.cancel("shop/a", 0.0)
    assert [s.end_reason for s in (none, shop, again)] == [None, SequenceEnd.CANCELLED, None]
    with pytest.raises(SequenceGoneError, match=r"sequence 'a': it was cancelled"):
        driver.request("a", namespace="shop")
    with pytest.raises(SequenceGoneError, match=r"sequence 'a': there is no such sequence"):
        driver.request("a", namespace="mill")
    assert driver.table.find("a") is none


def test_rescheduled_row_gets_another_step():
    driver = TableDriver()
    sequence, item = driver.request("a", rows=2, start=True)
    driver.step(reschedule=True)
    assert (item.row, item.again, sequence.request_started) == (0, True, True)
    driver.step()
    assert (item.row, item.again) == (1, False)
    assert driver.step() == ("a", True)


def test_failed_step_does_not_count():
    driver = TableDriver()
    sequence = driver.start("a", "fails", 3)
    assert driver.step(state_changed=False, finish_request=True) == ("fails", True)
    assert (sequence.steps, sequence.stage) == (0, SequenceStage.IDLE)


@pytest.mark.parametrize("rows", [1, 3])
def test_withdrawn_request_does_not_end_its_sequence(rows):
    driver = TableDriver()
    sequence = driver.start("a")
    driver.step()
    driver.request("a", "last", rows, ends=True)
    driver.request("a", "next")
    assert driver.step(state_changed=False, finish_request=True, withdraw_request=True) == ("last", True)
    assert (sequence.steps, sequence.end_reason) == (1, None)
    assert driver.step() == ("next", True)
    assert (sequence.steps, sequence.stage) == (2, SequenceStage.IDLE)


def test_request_without_steps_ends_in_order():
    driver = TableDriver()
    driver.start("a", "one")
    driver.request("a", "none", 0)
    assert driver.request_ends() == []
    driver.step()
    assert driver.request_ends() == [("none", None)]


def test_request_without_steps_restarts_the_idle_time():
    driver = TableDriver()
    driver.start("a")
    driver.step()
    driver.now = 9.0
    driver.request("a", "none", 0)
    assert driver.table.next_expiry_s() == 19.0


def test_sequences_are_independent():
    driver = TableDriver()
    for id in "abc":
        driver.start(id)
    assert [sequence.id for sequence in driver.queue] == ["a", "b", "c"]


def test_batching_attributes_are_those_of_the_next_step():
    driver = TableDriver()
    sequence, item = driver.request("a", start=True, rows=3)
    item.key, item.priority, driver.now = "k7", 3, 4.0
    assert (sequence.key, sequence.priority, sequence.rows, sequence.arrived_s) == ("k7", 3, 1, 0.0)
    driver.step()
    assert sequence.arrived_s == 4.0


# Interleaving


def test_rescheduled_request_blocks_later_ones():
    driver = TableDriver()
    driver.start("a", "long")
    driver.request("a", "short")
    assert [driver.step(reschedule=True)[0], driver.step(reschedule=True)[0], driver.step()[0]] == [
        "long"
    ] * 3
    assert driver.step() == ("short", True)


def test_interleaved_requests_alternate():
    driver = TableDriver(interleave=True)
    driver.start("a", "long")
    driver.request("a", "other")
    assert [driver.step(reschedule=True)[0] for _ in range(4)] == ["long", "other", "long", "other"]
    assert [driver.step(), driver.step()] == [("long", True), ("other", True)]


def test_ending_request_waits_for_earlier_ones():
    driver = TableDriver(interleave=True)
    driver.start("a", "long")
    driver.request("a", "other")
    driver.request("a", "last", ends=True)
    turns = [driver.step(reschedule=True)[0] for _ in range(4)]
    assert turns == ["long", "other", "long", "other"]
    assert [driver.step(), driver.step(), driver.step()] == [("long", True), ("other", True), ("last", True)]
    assert (driver.request_ends(), driver.ended_sequences()) == ([], [("a", "ended")])


def test_resume_interleaves_a_held_request():
    driver = TableDriver(interleave=True)
    sequence = driver.start("a", "slow")
    driver.request("a", "other")
    driver.step(reschedule=True, hold=True)
    assert driver.queue == []
    driver.table.resume(sequence, 0.0)
    assert driver.step() == ("other", True)
    assert driver.step() == ("slow", True)


# Holding


def test_held_sequence_waits_for_resume():
    driver = TableDriver()
    sequence = driver.start("a", rows=2)
    assert driver.step(hold=True) == ("a", False)
    assert (driver.queue, sequence.stage) == ([], SequenceStage.HELD)
    driver.table.resume(sequence, 0.0)
    driver.table.resume(sequence, 0.0)
    assert driver.queue == [sequence]


def test_finished_request_is_not_held():
    driver = TableDriver()
    driver.start("a", "one")
    driver.request("a", "two")
    assert driver.step(hold=True) == ("one", True)
    assert driver.step(hold=True) == ("two", True)


# Starts


def test_unknown_sequence_must_be_started():
    driver = TableDriver()
    with pytest.raises(SequenceGoneError, match="no such sequence: start one with sequence_start"):
        driver.request("a")
    assert (len(driver.table), driver.table.requests, driver.queue) == (0, 0, [])
    driver.request("a", auto=True)
    assert driver.table.find("a") is driver.queue[0]
    driver.request("a", "two", auto=True)
    assert len(driver.table) == 1


def test_restart_ends_the_old_sequence_after_its_step():
    driver = TableDriver()
    driver.start("a", "old")
    driver.request("a", "waits")
    old = driver.take()
    new = driver.start("a", "new")
    assert [name for name, _ in driver.request_ends()] == ["old", "waits"]
    assert (old.stage, driver.ended_sequences()) == (SequenceStage.ENDING, [])
    assert not driver.table.end_step(old, 0.0)
    assert driver.ended_sequences() == [("a", "restarted")]
    assert driver.table.find("a") is new
    assert new.number != old.number
    assert driver.step() == ("new", True)


def test_ending_sequence_finishes_beside_its_replacement():
    driver = TableDriver()
    driver.start("a", "first")
    driver.request("a", "last", ends=True)
    new = driver.start("a", "new")
    assert driver.table.find("a") is new
    assert [driver.step()[0] for _ in range(3)] == ["first", "new", "last"]
    assert (driver.request_ends(), driver.ended_sequences()) == ([], [("a", "ended")])
    assert driver.table.find("a") is new


def test_replaced_sequence_ends_without_its_ending_request():
    driver = TableDriver()
    old = driver.start("a", "first")
    _, last = driver.request("a", "last", ends=True)
    driver.start("a", "new")
    driver.table.withdraw(old, last, 0.0)
    assert driver.step() == ("first", True)
    assert (len(driver.table), driver.ended_sequences()) == (1, [("a", "restarted")])


def test_anonymous_sequence_ends_with_its_request():
    driver = TableDriver()
    sequence, _ = driver.request(name="alone", rows=2)
    driver.step()
    assert driver.step() == ("alone", True)
    assert (sequence.anonymous, len(driver.table), driver.ended_sequences()) == (True, 0, [("", "ended")])
    driver.request(name="empty", rows=0)
    assert (len(driver.table), driver.request_ends(), driver.ended_sequences()) == (0, [("empty", None)], [])


# Limits


def test_limit_of_waiting_requests():
    driver = TableDriver(requests_max=2)
    driver.start("a")
    for name in ("one", "two"):
        driver.request("a", name)
    with pytest.raises(SequenceFullError, match=r"2 requests are waiting.*requests_max") as caught:
        driver.request("a", "three")
    assert caught.value.retry_after_s == RETRY_S
    assert (driver.table.requests, driver.table.rows) == (3, 3)
    driver.step()
    driver.request("a", "three")


def test_limit_of_live_sequences():
    driver = TableDriver(live_max=2)
    driver.start("a")
    driver.start("b")
    with pytest.raises(TooManySequencesError, match=r"2 sequences are live.*live_max") as caught:
        driver.start("c")
    assert caught.value.retry_after_s == RETRY_S
    driver.start("a")
    driver.table.cancel("a", 0.0)
    driver.start("c")


def test_longest_idle_sequence_is_evicted():
    driver = TableDriver(live_max=2, evict_idle_ms=3000)
    for id in "ab":
        driver.start(id)
    driver.step()
    driver.now = 1.0
    driver.step()
    driver.now = 2.9
    with pytest.raises(TooManySequencesError):
        driver.start("c")
    driver.now = 3.0
    driver.start("c")
    assert driver.ended_sequences() == [("a", "evicted")]
    driver.now = 3.5
    with pytest.raises(SequenceGoneError, match=r"evicted for a new sequence \(live_max\) \(0.5 s ago\)"):
        driver.request("a")


def test_saved_idle_sequence_makes_place():
    """The longest idle one of those that continue from a checkpoint."""
    driver = TableDriver(live_max=4, checkpoints=True)
    for id in ("unsaved", "deleted", "a", "b"):
        driver.start(id)
        driver.step(state_changed=id != "unsaved")
    driver.deleting.add("deleted")
    driver.start("c")
    driver.start("d")
    assert driver.ended_sequences() == [("a", "evicted"), ("b", "evicted")]
    with pytest.raises(TooManySequencesError):
        driver.start("e")
    driver.step()
    sequence, _ = driver.request("a")
    assert not sequence.loaded, "its state is loaded before its step"
    assert driver.ended_sequences() == [("c", "evicted")]


def test_sequence_whose_state_waits_in_the_store_makes_place():
    """Its load failed, or its client withdrew the request."""
    driver = TableDriver(live_max=1, checkpoints=True)
    sequence, item = driver.request("a")
    driver.table.withdraw(sequence, item, driver.now)
    driver.start("b")
    assert driver.table.find("a") is None


def test_ended_sequences_are_released():
    """Only their recent ends are remembered."""
    driver = TableDriver(live_max=2, time_ms_max=1e9, idle_ms=1e9)
    before = _count_live_sequences()
    for number in range(1000):
        driver.start(str(number))
        driver.request(name="alone")
        driver.step(end_sequence=True)
        driver.step()
    driver.request_ends()
    driver.ended_sequences()
    assert _count_live_sequences() - before < 30
    assert driver.table.end_counts["ended"] == 2000


# Ends


def test_ending_request_ends_its_sequence():
    driver = TableDriver()
    driver.start("a", rows=2, ends=True)
    driver.request("a", "late")
    driver.step()
    assert driver.step() == ("a", True)
    assert driver.ended_sequences() == [("a", "ended")]
    [(name, error)] = driver.request_ends()
    assert name == "late"
    assert "its client or the model ended it" in str(error)


def test_request_without_steps_can_end_its_sequence():
    driver = TableDriver()
    driver.start("a")
    driver.request("a", "end", 0, ends=True)
    assert len(driver.table) == 1
    driver.step()
    assert (driver.request_ends(), driver.ended_sequences(), len(driver.table)) == (
        [("end", None)],
        [("a", "ended")],
        0,
    )


def test_model_can_end_a_sequence():
    driver = TableDriver()
    driver.start("a", "rows", 3)
    driver.request("a", "late")
    assert driver.step(end_sequence=True, reschedule=True) == ("rows", True)
    assert [name for name, _ in driver.request_ends()] == ["late"]
    assert driver.ended_sequences() == [("a", "ended")]


def test_cancel_ends_all_waiting_requests():
    driver = TableDriver()
    driver.start("a", "one")
    driver.request("a", "two")
    assert driver.table.cancel("a", 0.0)
    assert not driver.table.cancel("a", 0.0)
    assert [name for name, _ in driver.request_ends()] == ["one", "two"]
    assert driver.queue == []
    assert driver.ended_sequences() == [], "without a step, no instance knows the sequence"


def test_each_request_gets_its_own_error():
    """Raising an error adds a traceback to it."""
    driver = TableDriver()
    driver.start("a", "one")
    driver.request("a", "two")
    driver.table.cancel("a", 0.0)
    one, two = driver.table.request_ends
    assert one.error is not two.error


def test_idle_timeout_starts_at_the_last_response():
    driver = TableDriver(idle_ms=10_000)
    driver.start("a")
    driver.now = 50.0
    assert driver.table.next_expiry_s() is None, "a request is open"
    driver.step()
    assert driver.table.next_expiry_s() == 60.0
    driver.table.expire(59.9)
    assert len(driver.table) == 1
    driver.table.expire(60.0)
    assert driver.ended_sequences() == [("a", "idle")]
    driver.now = 61.0
    with pytest.raises(SequenceGoneError, match=r"idle_ms \(1.0 s ago\)"):
        driver.request("a")


def test_lifetime_limit():
    driver = TableDriver(time_ms_max=5000)
    driver.start("a")
    assert driver.table.next_expiry_s() == 5.0
    driver.now = 5.0
    with pytest.raises(SequenceGoneError, match="time_ms_max"):
        driver.request("a")
    assert [name for name, _ in driver.request_ends()] == ["a"]
    assert driver.queue == []


def test_first_timeout_is_the_reason():
    driver = TableDriver(time_ms_max=5000, idle_ms=10_000)
    driver.start("a")
    driver.step()
    driver.table.expire(20.0)
    assert driver.ended_sequences() == [("a", "timed_out")]


def test_stop_ends_all_sequences():
    driver = TableDriver()
    for id in "abc":
        driver.start(id)
    sequence = driver.take()
    driver.table.stop(0.0)
    assert {type(over.error) for over in driver.table.request_ends} == {StoppedError}
    assert (len(driver.table), driver.queue, driver.ended_sequences()) == (0, [], [])
    driver.table.end_step(sequence, 0.0)
    assert driver.ended_sequences() == [("a", "stopped")]


# Withdrawals


def test_withdrawing_a_waiting_request_leaves_no_trace():
    driver = TableDriver()
    sequence = driver.start("a", "one")
    _, two = driver.request("a", "two")
    driver.table.withdraw(sequence, two, 0.0)
    driver.table.withdraw(sequence, two, 0.0)
    assert (driver.table.requests, driver.request_ends()) == (1, [])
    assert driver.step() == ("one", True)
    assert sequence.stage is SequenceStage.IDLE


def test_steps_of_a_withdrawn_request_stay_done():
    driver = TableDriver()
    sequence, item = driver.request("a", "gone", 3, start=True)
    driver.step()
    driver.table.withdraw(sequence, item, 0.0)
    assert (sequence.steps, sequence.stage, driver.queue) == (1, SequenceStage.IDLE, [])
    driver.table.instance_lost(0, [], 0.0)
    assert driver.ended_sequences() == [("a", "instance_lost")], "the steps cannot run again"


def test_running_step_is_the_last_of_a_withdrawn_request():
    driver = TableDriver()
    sequence, item = driver.request("a", "gone", 3, start=True)
    driver.request("a", "next")
    driver.take()
    driver.table.withdraw(sequence, item, 0.0)
    assert driver.table.requests == 2
    assert driver.table.end_step(sequence, 0.0, reschedule=True)
    assert driver.step() == ("next", True)


@pytest.mark.parametrize(("rows", "lives"), [(1, False), (2, True)])
def test_withdrawn_request_ends_its_sequence_only_by_its_last_step(rows, lives):
    """As if it had been withdrawn between two steps."""
    driver = TableDriver()
    sequence, item = driver.request("a", "gone", rows, start=True, ends=True)
    driver.take()
    driver.table.withdraw(sequence, item, 0.0)
    driver.table.end_step(sequence, 0.0)
    assert (len(driver.table) == 1) == lives


def test_withdrawing_a_held_request_unblocks_the_next():
    driver = TableDriver()
    sequence, item = driver.request("a", "slow", 2, start=True)
    driver.request("a", "next")
    driver.step(hold=True)
    driver.table.withdraw(sequence, item, 0.0)
    assert driver.step() == ("next", True)


def test_withdrawing_an_anonymous_request_ends_its_sequence():
    driver = TableDriver()
    sequence, item = driver.request(name="alone")
    driver.take()
    driver.table.withdraw(sequence, item, 0.0)
    assert sequence.stage is SequenceStage.ENDING
    driver.table.end_step(sequence, 0.0)
    assert driver.ended_sequences() == [("", "cancelled")]


# Instances


def test_sequence_stays_on_the_instance_with_the_fewest():
    driver = TableDriver(instances=2)
    a, b = driver.start("a"), driver.start("b")
    assert (a.instance, b.instance) == (0, 1)
    driver.table.cancel("b", 0.0)
    driver.table.set_available(1, available=False)
    assert driver.start("c").instance == 0
    driver.table.set_available(1, available=True)
    assert driver.start("d").instance == 1
    assert a.instance == 0


def test_undelivered_steps_run_again_after_instance_loss():
    driver = TableDriver()
    sequence, item = driver.request("a", rows=3, start=True)
    driver.step()
    driver.take()
    driver.table.instance_lost(0, [sequence], 0.0)
    assert (item.row, sequence.steps, driver.queue) == (0, 0, [sequence])
    assert [driver.step()[1] for _ in range(3)] == [False, False, True]


def test_rewound_sequence_is_not_held():
    driver = TableDriver()
    sequence = driver.start("a", rows=3)
    driver.step(hold=True)
    driver.table.instance_lost(0, [], 0.0)
    assert driver.queue == [sequence]


@pytest.mark.parametrize("answered", [False, True])
def test_delivered_state_is_lost_with_its_instance(answered):
    driver = TableDriver()
    sequence, item = driver.request("a", rows=1 if answered else 2, start=True)
    driver.step()
    item.output_seen = True
    driver.request("a", "waits")
    driver.take()
    driver.table.instance_lost(0, [sequence], 0.0)
    assert all("without a checkpoint" in str(error) for _, error in driver.request_ends())
    assert driver.ended_sequences() == [("a", "instance_lost")]
    with pytest.raises(SequenceLostError, match="its state was lost"):
        driver.request("a")


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("stage", ["idle", "waiting", "held", "stepping", "ending", "ended"])
def test_corrupted_state_ends_its_sequence_in_any_stage(stage, checkpoints):
    """The running step ends with it."""
    driver = TableDriver(checkpoints=checkpoints)
    sequence = driver.start("a")
    driver.step()
    if stage != "idle":
        driver.request("a", "rows", rows=3)
    if stage == "held":
        driver.step(hold=True)
    if stage in ("stepping", "ending"):
        driver.take()
        driver.request("a", "waits")
    if stage in ("ending", "ended"):
        driver.table.cancel("a", 0.0)
        driver.request_ends()
    assert str(sequence.stage) == stage
    taken = stage in ("stepping", "ending")
    assert driver.table.state_corrupted(sequence, 0.0, stepping=True) is taken
    gone = "cancelled" if stage in ("ending", "ended") else "instance_lost"
    assert driver.ended_sequences() == [("a", gone)]
    names = {"idle": [], "waiting": ["rows"], "held": ["rows"], "stepping": ["rows", "waits"]}
    over = driver.request_ends()
    assert [name for name, _ in over] == names.get(stage, [])
    assert all("a defect corrupted it" in error for _, error in over)
    assert (driver.queue, len(driver.table), driver.table.requests, driver.table.rows) == ([], 0, 0, 0)
    assert not driver.table.state_corrupted(sequence, 0.0, stepping=True)


def test_corrupted_sequence_ends_after_its_next_running_step():
    driver = TableDriver()
    sequence = driver.start("a", rows=2)
    driver.step()
    driver.take()
    assert not driver.table.state_corrupted(sequence, 0.0, stepping=False)
    assert (driver.ended_sequences(), sequence.stage) == ([], SequenceStage.ENDING)
    assert not driver.table.end_step(sequence, 0.0)
    assert driver.ended_sequences() == [("a", "instance_lost")]


def test_checkpointed_sequence_continues_after_instance_loss():
    driver = TableDriver(checkpoints=True)
    sequence, item = driver.request("a", rows=2, start=True)
    driver.step()
    item.output_seen = True
    driver.take()
    driver.table.instance_lost(0, [sequence], 0.0)
    assert (sequence.loaded, driver.queue, item.row) == (False, [sequence], 1)
    driver.take()
    driver.table.state_loaded(sequence, 1)
    assert driver.table.end_step(sequence, 0.0)
    assert (sequence.loaded, sequence.steps) == (True, 2)


def test_missing_checkpoint_after_instance_loss_is_lost():
    driver = TableDriver(checkpoints=True)
    sequence = driver.start("a")
    driver.step()
    driver.table.instance_lost(0, [], 0.0)
    driver.request("a")
    driver.take()
    assert not driver.table.state_missing(sequence, 0.0)
    assert driver.ended_sequences() == [("a", "instance_lost")]
    [(_, error)] = driver.request_ends()
    assert "its state was lost" in str(error)


def test_checkpoint_deleted_elsewhere_ends_the_sequence():
    driver = TableDriver(checkpoints=True)
    sequence = driver.start("a")
    driver.step()
    driver.table.unload_state(sequence)
    driver.request("a")
    driver.take()
    assert not driver.table.state_missing(sequence, 0.0)
    assert driver.ended_sequences() == [("a", "ended")]


def test_sequence_without_checkpoint_leaves_no_trace():
    driver = TableDriver(checkpoints=True)
    sequence, _ = driver.request("a")
    assert not sequence.loaded
    driver.take()
    assert not driver.table.state_missing(sequence, 0.0)
    [(_, error)] = driver.request_ends()
    assert "no such sequence" in str(error)
    assert (driver.ended_sequences(), len(driver.table), sum(driver.table.end_counts.values())) == ([], 0, 0)


def test_auto_restart_needs_all_open_requests():
    driver = TableDriver(checkpoints=True)
    sequence, _ = driver.request("a", auto=True)
    driver.take()
    assert driver.table.state_missing(sequence, 0.0)
    assert driver.table.end_step(sequence, 0.0)
    driver.table.unload_state(sequence)
    driver.request("a", "would", auto=True)
    driver.request("a", "would not")
    driver.take()
    assert not driver.table.state_missing(sequence, 0.0)


def test_checkpointed_sequence_can_be_ended_without_a_step():
    """The caller learns of the end to delete the checkpoint."""
    driver = TableDriver(checkpoints=True)
    driver.request("a", "end", 0, ends=True)
    assert (driver.request_ends(), driver.ended_sequences()) == ([("end", None)], [("a", "ended")])


def test_retiring_moves_sequences_without_state_and_ends_others():
    driver = TableDriver(instances=2)
    a, _, c = (driver.start(id) for id in "abc")
    driver.step()
    driver.take()
    assert [a.instance, c.instance] == [0, 0]
    driver.table.retire_instance(0, 0.0)
    assert driver.ended_sequences() == [("a", "instance_lost")]
    assert (c.instance, driver.queue) == (1, [c])
    driver.table.retire_instance(1, 0.0)
    driver.table.set_available(0, available=True)
    assert driver.start("d").instance == 0


def test_retiring_moves_checkpointed_sequences():
    driver = TableDriver(instances=2, checkpoints=True)
    a = driver.start("a")
    driver.step()
    driver.table.retire_instance(0, 0.0)
    assert (a.instance, a.loaded, driver.ended_sequences()) == (1, False, [])


def test_running_step_on_a_retired_instance_is_the_last():
    driver = TableDriver(instances=2, checkpoints=True)
    sequence = driver.start("a")
    driver.take()
    driver.table.retire_instance(0, 0.0)
    assert sequence.stage is SequenceStage.ENDING
