"""Running jobs: open attempts, occupied slots, and time limits."""

import threading

import pytest

from headrace.jobs.job import NewJob
from headrace.jobs.kinds import StopReason
from headrace.jobs.worker.running_jobs import RunningJobs
from headrace.testing import ManualClock
from jobs.support import attempt_at


def attempt(job_id="a", lease=1, **changes):
    return attempt_at(NewJob(), job_id=job_id, lease=lease, **changes)


@pytest.fixture
def running_jobs():
    return RunningJobs()


def test_attempt_is_open_until_removed_and_occupies_its_slot_until_it_returns(running_jobs):
    one = attempt()
    running_jobs.add(one)
    running_jobs.begin(one)
    assert running_jobs.attempts() == (one,)
    assert running_jobs.get("a", 1) is one
    assert running_jobs.slots_after() == (1, False)
    running_jobs.remove(one)
    assert (len(running_jobs), running_jobs.get("a", 1), running_jobs.slots_after()) == (0, None, (1, False))
    running_jobs.thread_returned(one)
    assert running_jobs.slots_after() == (0, False)


def test_settling_frees_a_slot_only_after_its_thread_returned(running_jobs):
    one, stuck = attempt("a"), attempt("b")
    for each in (one, stuck):
        running_jobs.add(each)
        running_jobs.begin(each)
    running_jobs.thread_returned(one)
    assert running_jobs.slots_after([("a", 1), ("b", 1)]) == (1, False)


def test_later_lease_stops_the_earlier_attempt_as_lost(running_jobs):
    early, late = attempt(lease=1), attempt(lease=2)
    running_jobs.add(early)
    running_jobs.begin(early)
    running_jobs.add(late)
    assert (early.stopped, late.stopped) == (StopReason.LOST, None)
    assert running_jobs.slots_after() == (2, False)
    running_jobs.remove(early)
    assert running_jobs.attempts() == (late,)
    assert running_jobs.get("a", 2) is late


def test_attempts_under_one_lease_are_distinguished(running_jobs):
    first, second = attempt(), attempt()
    running_jobs.add(first)
    running_jobs.add(second)
    assert first.stopped is StopReason.LOST
    running_jobs.remove(first)
    assert running_jobs.attempts() == (second,)
    assert not running_jobs.mark_finished(first)
    assert running_jobs.mark_finished(second)


def test_mark_finished_is_true_once(running_jobs):
    one = attempt()
    assert not running_jobs.mark_finished(one)
    running_jobs.add(one)
    assert running_jobs.mark_finished(one)
    assert not running_jobs.mark_finished(one)
    running_jobs.remove(one)
    assert not running_jobs.mark_finished(one)


def test_job_that_runs_alone_is_reported_until_settled(running_jobs):
    suspect = attempt(crashes=2)
    running_jobs.add(suspect)
    assert running_jobs.slots_after() == (1, True)
    assert running_jobs.slots_after([("a", 1)]) == (0, False)


def test_overdue_returns_attempts_beyond_their_time_limit(running_jobs):
    one, endless = attempt("a"), attempt("b")
    for each, limit_s in ((one, 5.0), (endless, None)):
        running_jobs.add(each)
        running_jobs.begin(each, limit_s)
    assert running_jobs.next_check_s(0.0, 30.0) == 5.0
    assert running_jobs.overdue(4.9) == ()
    assert running_jobs.overdue(5.0) == (one,)
    one.stop(StopReason.TIME_LIMIT)
    assert running_jobs.overdue(6.0) == ()


def test_attempt_that_ignores_its_stop_becomes_stuck(running_jobs):
    one = attempt()
    running_jobs.add(one)
    running_jobs.begin(one)
    assert running_jobs.stuck(0.0, 30.0) == ()
    one.stop(StopReason.DRAIN)
    assert running_jobs.next_check_s(7.0, 30.0) == 7.0, "it is to be looked at now"
    assert running_jobs.stuck(7.0, 30.0) == ()
    assert running_jobs.next_check_s(8.0, 30.0) == 37.0
    assert running_jobs.stuck(36.9, 30.0) == ()
    assert running_jobs.stuck(37.0, 30.0) == (one,)
    running_jobs.mark_finished(one)
    assert running_jobs.stuck(40.0, 30.0) == ()
    assert running_jobs.next_check_s(40.0, 30.0) is None


def test_empty_means_no_attempt_and_no_claim(running_jobs):
    clock = ManualClock()
    assert running_jobs.empty.is_set()
    running_jobs.begin_claim()
    assert not running_jobs.empty.is_set()
    one = attempt()
    running_jobs.add(one)
    running_jobs.end_claim()
    assert not running_jobs.empty.is_set()
    seen = threading.Thread(target=clock.sleep, args=(1000.0, running_jobs.empty))
    seen.start()
    clock.wait_for_sleepers()
    running_jobs.remove(one)
    seen.join(10.0)
    assert not seen.is_alive()


def test_wait_until_empty_times_out(running_jobs):
    clock = ManualClock(auto=True)
    running_jobs.add(attempt())
    assert not clock.sleep(30.0, running_jobs.empty)
    assert clock.now() == 30.0


def test_stop_all_keeps_the_first_reason(running_jobs):
    one, two = attempt("a"), attempt("b")
    running_jobs.add(one)
    running_jobs.add(two)
    two.stop(StopReason.CANCELLED)
    running_jobs.stop_all(StopReason.DRAIN)
    assert (one.stopped, two.stopped) == (StopReason.DRAIN, StopReason.CANCELLED)


def test_unknown_attempt_changes_nothing(running_jobs):
    stranger = attempt()
    running_jobs.begin(stranger, 1.0)
    running_jobs.thread_returned(stranger)
    running_jobs.remove(stranger)
    assert (len(running_jobs), running_jobs.slots_after(), running_jobs.overdue(9.0)) == (0, (0, False), ())
