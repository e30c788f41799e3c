"""Signs of life: every lease is prolonged in time, and what must end is told so."""

import logging
import threading
from typing import Self

import pytest

from headrace.jobs.attempt import Attempt, StopReason
from headrace.jobs.job import Cancelled, NewJob, Progress, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.worker.beats import Beats
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings
from headrace.testing import ManualClock, ManualWallClock
from jobs.worker.faulty import PATIENCE_S, FaultyLedger, Times, cut


class Pulse:
    """Beats in a thread, on a clock that the test moves; each `after` returns when it waits again."""

    def __init__(self) -> None:
        self.wall = ManualWallClock()
        self.ledger = FaultyLedger(self.wall)
        self.ledger.start()
        self.roster, self.clock = Roster(), ManualClock()
        self.given_up: list[Attempt] = []
        settings = WorkerSettings(name="w1", lease_s=60.0, beat_s=15.0, stop_s=30.0)
        self.beats = Beats(self.ledger, settings, self.roster, give_up=self._give_up, clock=self.clock)
        self._thread = threading.Thread(target=self.beats.run)

    def _give_up(self, attempt: Attempt) -> None:
        if self.roster.answer(attempt):
            self.given_up.append(attempt)

    def __enter__(self) -> Self:
        self._thread.start()
        self.clock.wait_for_sleepers()
        return self

    def __exit__(self, *_: object) -> None:
        self.beats.end()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def after(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        before = len(self.clock.slept_s)
        self.wall.advance(round(seconds * 1000))
        self.clock.advance(seconds)
        self._until_asleep_again(before)

    def now(self, do) -> None:
        """Do what wakes it, and wait until it sleeps again."""
        before = len(self.clock.slept_s)
        do()
        self._until_asleep_again(before)

    def _until_asleep_again(self, before: int) -> None:
        for _ in range(round(PATIENCE_S / 0.001)):
            if len(self.clock.slept_s) > before:
                self.clock.wait_for_sleepers()
                return
            threading.Event().wait(0.001)
        raise AssertionError("the beats' thread did nothing")

    def claim(self, limit_s: float | None = None, **spec) -> Attempt:
        self.ledger.submit([NewJob(**spec)])
        (job,) = self.ledger.turn([], ClaimRequest("w1", ("default",), 1, 60_000)).claimed
        attempt = Attempt(job)
        self.roster.add(attempt)
        self.roster.begin(attempt, None if limit_s is None else self.clock.now() + limit_s)
        self.beats.began(limit_s)
        return attempt


@pytest.fixture
def pulse():
    with Pulse() as made:
        yield made


def test_every_lease_is_prolonged_with_what_its_attempt_tells(pulse):
    one, two = pulse.claim(), pulse.claim()
    one.report(lambda: Progress(3, 10, "records"))
    two.cursor = {"at": 7}
    pulse.after(15.0)
    assert pulse.ledger.get(one.job.id).progress == Progress(3, 10, "records")
    assert pulse.ledger.get(two.job.id).cursor == {"at": 7}
    for _ in range(8):
        pulse.after(15.0)
    assert pulse.ledger.maintain(10).total == 0, "no lease has run out"


def test_an_attempt_that_cannot_tell_how_far_it_is_costs_nobody_a_lease(pulse, caplog):
    """Regression: the sign of life of all was lost with it."""
    caplog.set_level(logging.CRITICAL)
    one, two = pulse.claim(), pulse.claim()
    one.report(lambda: 1 // 0)
    for _ in range(5):
        pulse.after(15.0)
    assert pulse.ledger.maintain(10).total == 0
    assert (one.stopped, two.stopped) == (None, None)


def test_a_ledger_that_does_not_answer_is_asked_again_soon_and_stops_nothing(pulse):
    one = pulse.claim()
    pulse.ledger.before_beat = Times(3, cut)
    pulse.after(15.0)
    assert not pulse.beats.late
    for _ in range(3):
        pulse.after(1.0)
    assert len(pulse.ledger.beats) == 4
    assert one.stopped is None


def test_an_odd_error_of_the_ledger_does_not_end_the_signs_of_life(pulse, caplog):
    caplog.set_level(logging.CRITICAL)
    pulse.claim()

    def odd():
        raise ValueError("what is this")

    pulse.ledger.before_beat = Times(2, odd)
    pulse.after(15.0)
    pulse.after(1.0)
    pulse.after(1.0)
    assert len(pulse.ledger.beats) == 3


def test_it_is_late_when_half_a_lease_went_without_an_answer_and_not_when_nothing_is_in_hand(pulse):
    pulse.after(100.0)
    assert not pulse.beats.late
    pulse.claim()
    assert not pulse.beats.late, "its lease is new"
    pulse.ledger.away = True
    pulse.after(30.0)
    assert not pulse.beats.late
    pulse.after(1.0)
    assert pulse.beats.late
    pulse.ledger.away = False
    pulse.after(1.0)
    assert not pulse.beats.late


def test_what_is_cancelled_expired_or_lost_is_told_so(pulse):
    cancelled, expired, lost, other = (
        pulse.claim(),
        pulse.claim(deadline_s=10.0),
        pulse.claim(),
        pulse.claim(),
    )
    pulse.ledger.cancel(cancelled.job.id)
    pulse.ledger.turn([Settlement(lost.job.id, lost.job.lease, Cancelled())])
    pulse.after(15.0)
    assert [a.stopped for a in (cancelled, expired, lost, other)] == [
        StopReason.CANCELLED,
        StopReason.EXPIRED,
        StopReason.LOST,
        None,
    ]


def test_a_reply_about_one_lease_stops_no_attempt_under_a_later_one(pulse):
    """Regression: replies name jobs, and whatever was in hand under that id was stopped."""
    early = pulse.claim()
    later: list[Attempt] = []

    def meanwhile(_reply):
        pulse.roster.remove(early)
        pulse.wall.advance(3_600_000)
        later.append(pulse_claim_again(pulse))

    pulse.ledger.after_beat = Times(1, meanwhile)
    # The lease is lost, so that the reply says so; and the job is ours again before it arrives.
    pulse.wall.advance(60_001)
    pulse.ledger.maintain(10)
    pulse.after(15.0)
    assert pulse.ledger.beats[0][0].lease == early.job.lease
    assert (early.stopped, later[0].stopped) == (StopReason.LOST, None)


def pulse_claim_again(pulse: Pulse) -> Attempt:
    pulse.ledger.maintain(10)
    (job,) = pulse.ledger.turn([], ClaimRequest("w1", ("default",), 1, 60_000)).claimed
    attempt = Attempt(job)
    pulse.roster.add(attempt)
    return attempt


def test_what_is_lost_is_not_beaten_for_any_more(pulse):
    lost, other = pulse.claim(), pulse.claim()
    lost.stop(StopReason.LOST)
    pulse.after(15.0)
    assert [beat.job_id for beat in pulse.ledger.beats[0]] == [other.job.id]


def test_news_has_cancellations_looked_for_at_once_but_not_all_the_time(pulse):
    one = pulse.claim()
    asked: list[float] = []
    cancel_requests = pulse.ledger.cancel_requests
    pulse.ledger.cancel_requests = lambda worker: (asked.append(pulse.clock.now()), cancel_requests(worker))[
        1
    ]
    pulse.wall.advance(1)
    pulse.now(lambda: (pulse.clock.advance(0.2), pulse.ledger.cancel(one.job.id), pulse.beats.look()))
    assert one.stopped is StopReason.CANCELLED
    pulse.now(pulse.beats.look)
    assert asked == [0.2]
    pulse.after(0.1)
    assert asked == [0.2, pytest.approx(0.3)]


def test_a_cancellation_stops_no_attempt_that_began_after_it_was_asked_for(pulse):
    early = pulse.claim()
    later: list[Attempt] = []
    cancel_requests = pulse.ledger.cancel_requests

    def meanwhile(worker):
        found = cancel_requests(worker)
        pulse.ledger.turn([Settlement(early.job.id, early.job.lease, Cancelled())])
        pulse.ledger.requeue(early.job.id)
        pulse.roster.remove(early)
        later.append(pulse_claim_again(pulse))
        return found

    pulse.ledger.cancel_requests = meanwhile
    pulse.ledger.cancel(early.job.id)
    pulse.clock.advance(0.2)
    pulse.now(pulse.beats.look)
    assert later[0].job.lease == 2
    assert later[0].stopped is None


def test_a_ledger_that_is_away_when_there_is_news_tells_with_the_next_sign_of_life(pulse):
    one = pulse.claim()
    pulse.ledger.cancel(one.job.id)
    pulse.ledger.away = True
    pulse.clock.advance(0.2)
    pulse.now(pulse.beats.look)
    assert one.stopped is None
    pulse.ledger.away = False
    pulse.after(15.0)
    assert one.stopped is StopReason.CANCELLED


def test_an_attempt_is_stopped_when_its_time_is_over_and_not_before(pulse):
    one = None

    def claim():
        nonlocal one
        one = pulse.claim(limit_s=4.0)

    pulse.now(claim)
    assert pulse.clock.slept_s[-1] == pytest.approx(4.0)
    pulse.after(4.0)
    assert one.stopped is StopReason.TIME_LIMIT


def test_one_that_does_not_listen_is_given_up_after_its_time_and_once(pulse):
    one = pulse.claim()
    pulse.now(lambda: (one.stop(StopReason.CANCELLED), pulse.beats.told()))
    pulse.after(15.0)
    assert pulse.given_up == []
    assert len(pulse.ledger.beats[-1]) == 1, "it is ours until it is given up"
    pulse.after(15.0)
    assert pulse.given_up == [one]
    pulse.after(15.0)
    assert pulse.given_up == [one]


def test_a_listener_that_raises_keeps_no_other_attempt_from_being_told(pulse, caplog):
    caplog.set_level(logging.CRITICAL)
    one, two = pulse.claim(), pulse.claim()
    one.on_stop(lambda: 1 // 0)
    for each in (one, two):
        pulse.ledger.cancel(each.job.id)
    pulse.after(15.0)
    assert (one.stopped, two.stopped) == (StopReason.CANCELLED, StopReason.CANCELLED)
