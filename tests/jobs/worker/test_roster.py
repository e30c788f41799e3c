"""What is in hand, what takes up a slot, and whose time is over."""

import threading

import pytest

from headrace.jobs.attempt import StopReason
from headrace.jobs.job import NewJob
from headrace.jobs.worker.roster import Roster
from headrace.testing import ManualClock
from jobs.support import attempt_at


def attempt(job_id="a", lease=1, **changes):
    return attempt_at(NewJob(), job_id=job_id, lease=lease, **changes)


@pytest.fixture
def roster():
    return Roster()


def test_an_attempt_is_in_hand_until_it_is_removed_and_takes_its_slot_until_it_returns(roster):
    one = attempt()
    roster.add(one)
    roster.begin(one)
    assert roster.held() == (one,)
    assert roster.get("a", 1) is one
    assert roster.staying() == (1, False)
    roster.remove(one)
    assert (len(roster), roster.get("a", 1), roster.staying()) == (0, None, (1, False))
    roster.returned(one)
    assert roster.staying() == (0, False)


def test_what_is_about_to_be_settled_leaves_room_but_not_while_its_thread_goes_on(roster):
    one, stuck = attempt("a"), attempt("b")
    for each in (one, stuck):
        roster.add(each)
        roster.begin(each)
    roster.returned(one)
    assert roster.staying([("a", 1), ("b", 1)]) == (1, False)


def test_a_later_lease_of_the_same_job_makes_the_earlier_attempt_a_lost_one(roster):
    early, late = attempt(lease=1), attempt(lease=2)
    roster.add(early)
    roster.begin(early)
    roster.add(late)
    assert (early.stopped, late.stopped) == (StopReason.LOST, None)
    assert roster.staying() == (2, False)
    roster.remove(early)
    assert roster.held() == (late,)
    assert roster.get("a", 2) is late


def test_another_attempt_under_the_same_lease_is_not_taken_for_the_first(roster):
    first, second = attempt(), attempt()
    roster.add(first)
    roster.add(second)
    assert first.stopped is StopReason.LOST
    roster.remove(first)
    assert roster.held() == (second,)
    assert not roster.answer(first)
    assert roster.answer(second)


def test_only_the_first_says_what_it_came_to(roster):
    one = attempt()
    assert not roster.answer(one)
    roster.add(one)
    assert roster.answer(one)
    assert not roster.answer(one)
    roster.remove(one)
    assert not roster.answer(one)


def test_one_that_must_be_alone_is_told_of_until_it_is_settled(roster):
    suspect = attempt(crashes=2)
    roster.add(suspect)
    assert roster.staying() == (1, True)
    assert roster.staying([("a", 1)]) == (0, False)


def test_whose_time_is_over(roster):
    one, endless = attempt("a"), attempt("b")
    for each, limit_s in ((one, 5.0), (endless, None)):
        roster.add(each)
        roster.begin(each, limit_s)
    assert roster.next_look_s(0.0, 30.0) == 5.0
    assert roster.overdue(4.9) == ()
    assert roster.overdue(5.0) == (one,)
    one.stop(StopReason.TIME_LIMIT)
    assert roster.overdue(6.0) == ()


def test_one_that_does_not_listen_is_stuck_from_when_that_was_seen(roster):
    one = attempt()
    roster.add(one)
    roster.begin(one)
    assert roster.stuck(0.0, 30.0) == ()
    one.stop(StopReason.DRAIN)
    assert roster.next_look_s(7.0, 30.0) == 7.0, "it is to be looked at now"
    assert roster.stuck(7.0, 30.0) == ()
    assert roster.next_look_s(8.0, 30.0) == 37.0
    assert roster.stuck(36.9, 30.0) == ()
    assert roster.stuck(37.0, 30.0) == (one,)
    roster.answer(one)
    assert roster.stuck(40.0, 30.0) == ()
    assert roster.next_look_s(40.0, 30.0) is None


def test_it_is_empty_when_nothing_is_in_hand_and_nothing_expected(roster):
    clock = ManualClock()
    assert roster.wait_until_empty(clock, 0.0)
    roster.expect()
    assert not roster.wait_until_empty(clock, 0.0)
    one = attempt()
    roster.add(one)
    roster.expect_nothing()
    assert not roster.wait_until_empty(clock, 0.0)
    seen = threading.Thread(target=roster.wait_until_empty, args=(clock, 1000.0))
    seen.start()
    clock.wait_for_sleepers()
    roster.remove(one)
    seen.join(10.0)
    assert not seen.is_alive()


def test_waiting_ends_with_its_time(roster):
    clock = ManualClock(auto=True)
    roster.add(attempt())
    assert not roster.wait_until_empty(clock, 30.0)
    assert clock.now() == 30.0


def test_all_are_told_and_a_second_reason_changes_nothing(roster):
    one, two = attempt("a"), attempt("b")
    roster.add(one)
    roster.add(two)
    two.stop(StopReason.CANCELLED)
    roster.stop_all(StopReason.DRAIN)
    assert (one.stopped, two.stopped) == (StopReason.DRAIN, StopReason.CANCELLED)


def test_what_was_never_added_changes_nothing(roster):
    stranger = attempt()
    roster.begin(stranger, 1.0)
    roster.returned(stranger)
    roster.remove(stranger)
    assert (len(roster), roster.staying(), roster.overdue(9.0)) == (0, (0, False), ())
