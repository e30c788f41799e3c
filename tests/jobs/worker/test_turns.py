"""The worker's talk with the ledger: nothing is settled twice, lost, or claimed beyond the room there is."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.errors import StorageError
from headrace.jobs.attempt import Attempt
from headrace.jobs.cause import Cause
from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest, QueueSettings
from headrace.jobs.state import JobState
from headrace.jobs.worker.roster import Roster
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.turns import Turns, unsecured
from headrace.testing import ManualClock, ManualWallClock
from jobs.worker.faulty import FaultyLedger, Times, cut


class Desk:
    """Turns over a ledger; it runs in the test's own thread, until `enough` says that it has seen enough."""

    def __init__(self, *, concurrency: int = 3, poll_s: float = 5.0, **settings: Any) -> None:
        self.wall = ManualWallClock()
        self.ledger = FaultyLedger(self.wall)
        self.ledger.start()
        self.roster, self.clock = Roster(), ManualClock(auto=True)
        self.begun: list[str] = []
        self.told: list[tuple[Settlement, bool]] = []
        self.most = 0
        self.enough = lambda: False
        self.secure = lambda settlements: settlements
        self.may_claim = lambda: True
        self.turns = Turns(
            self.ledger,
            WorkerSettings(name="w1", concurrency=concurrency, poll_s=poll_s, **settings),
            self.roster,
            begin=self._begin,
            secure=self._secure,
            settled=self._settled,
            may_claim=self._may_claim,
            clock=self.clock,
            share=lambda: 0.5,
        )

    def _secure(self, settlements):
        return self.secure(settlements)

    def _may_claim(self) -> bool:
        return self.may_claim()

    def _begin(self, job) -> None:
        self.roster.add(Attempt(job))
        self.begun.append(job.id)
        self.most = max(self.most, len(self.roster))
        self._look()

    def _settled(self, settlement: Settlement, counted: bool) -> None:
        self.told.append((settlement, counted))
        attempt = self.roster.get(settlement.job_id, settlement.lease)
        assert attempt is not None, "it was in hand until it was answered"
        self.roster.remove(attempt)
        self._look()

    def _look(self) -> None:
        if self.enough():
            self.turns.end()

    def submit(self, count: int = 1, **spec) -> list[str]:
        return [s.job.id for s in self.ledger.submit([NewJob(**spec)] * count)]

    def claim(self, count: int = 1) -> list[Attempt]:
        """Jobs in hand, as if an earlier turn had claimed them."""
        self.submit(count)
        jobs = self.ledger.turn([], ClaimRequest("w1", ("default",), count, 60_000)).claimed
        self.ledger.log.clear()
        attempts = [Attempt(job) for job in jobs]
        for attempt in attempts:
            self.roster.add(attempt)
        return attempts

    def settle(self, attempt: Attempt, outcome=None) -> Settlement:
        job = attempt.job
        done = Settlement(
            job.id, job.lease, outcome or Completed(ResultRef(f"memory://s/{job.id}/{job.lease}"))
        )
        self.turns.settle(done)
        return done

    def last(self) -> None:
        """Settle what waits, and return."""
        self.turns.end()
        self.turns.run()

    def state(self, attempt: Attempt) -> JobState:
        return self.ledger.get(attempt.job.id).state


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_gathered_is_settled_in_one_turn_and_room_is_claimed_in_the_same(desk):
    one, two = desk.claim(2)
    new = desk.submit(5)
    settled = [desk.settle(one), desk.settle(two)]
    desk.enough = lambda: len(desk.begun) == 3
    desk.turns.run()
    assert len(desk.ledger.log) == 1
    settlements, claim = desk.ledger.log[0]
    assert list(settlements) == settled
    assert claim == ClaimRequest("w1", ("default",), 3, 60_000)
    assert desk.told == [(s, True) for s in settled]
    assert desk.begun == sorted(new)[:3]


def test_no_more_is_claimed_than_there_is_room_for(desk):
    desk.claim(2)
    desk.submit(5)
    desk.enough = lambda: len(desk.begun) == 1
    desk.turns.run()
    assert [claim.jobs_max for _, claim in desk.ledger.log] == [1]
    assert desk.most == 3


def test_a_slot_whose_thread_is_stuck_is_no_room(desk):
    (stuck,) = desk.claim(1)
    desk.roster.begin(stuck)
    desk.roster.remove(stuck)
    desk.submit(5)
    desk.enough = lambda: len(desk.begun) == 2
    desk.turns.run()
    assert desk.ledger.log[0][1].jobs_max == 2


def test_a_claim_whose_answer_was_lost_leaves_no_room_for_another(desk):
    """Regression: the next claim was of the room there had been before it was known what the lost one had brought."""
    desk.submit(10)
    desk.ledger.after = Times(1, cut)
    desk.enough = lambda: len(desk.begun) == 3
    desk.turns.run()
    assert desk.most == 3
    assert desk.ledger.counts("default").running == 3
    assert len(desk.ledger.log) == 1


def test_nothing_is_claimed_beside_one_that_must_be_alone(desk):
    (suspect,) = desk.claim(1)
    desk.roster.remove(suspect)
    desk.roster.add(Attempt(replace(suspect.job, crashes=2)))
    desk.submit(5)
    looks = iter(range(3))
    desk.may_claim = lambda: next(looks, None) is not None or desk.turns.end() is not None
    desk.turns.run()
    assert not desk.ledger.log


def test_the_queues_are_looked_at_now_and_then_although_nothing_was_announced(desk):
    waits = iter(range(3))

    def see(_settlements, claim):
        if claim and next(waits, None) is None:
            desk.submit(1)

    desk.ledger.before = see
    desk.enough = lambda: len(desk.begun) == 1
    desk.turns.run()
    assert len(desk.ledger.log) == 4
    assert all(3.75 <= s <= 5.0 for s in desk.clock.slept_s)


def test_the_queues_are_looked_at_also_by_a_worker_that_is_never_idle(desk):
    """Regression: every settlement put the look off, so that jobs nobody had announced waited for a pause."""
    desk.settle(desk.claim(1)[0])
    rounds = 0

    def busy(_settlements, _claim):
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            desk.submit(1)  # and its announcement is lost
        assert rounds < 10, "a worker that is busy never looks"

    def again(*_):
        if not desk.begun:
            desk.clock.advance(1.0)
            other = desk.ledger
            job = other.submit([NewJob(queue="mine")])[0].job
            (job,) = MEMORY_TURN(other, [], ClaimRequest("w1", ("mine",), 1, 60_000)).claimed
            attempt = Attempt(job)
            desk.roster.add(attempt)
            desk.settle(attempt)

    desk.ledger.before, desk.ledger.after = busy, again
    desk.enough = lambda: bool(desk.begun)
    desk.turns.run()
    assert desk.begun


MEMORY_TURN = FaultyLedger.__mro__[1].turn


def test_a_job_that_is_due_later_is_claimed_then(desk):
    desk.submit(1, delay_ms=2_000)
    desk.ledger.before = Times(1, lambda *_: desk.wall.advance(2_000), lambda *_: desk.clock.now() >= 2.0)
    desk.enough = lambda: len(desk.begun) == 1
    desk.turns.run()
    assert desk.clock.now() == pytest.approx(2.0)


def test_a_due_job_that_cannot_be_had_is_not_asked_for_without_a_pause(desk):
    """Regression: where another transaction holds it, the ledger was asked as fast as it answered."""
    ledger, answers = desk.ledger, iter(range(5))

    class Held:
        def __getattr__(self, name):
            return getattr(ledger, name)

        def turn(self, settlements, claim=None):
            if next(answers, None) is None:
                desk.turns.end()
            return replace(ledger.turn(settlements, claim), due_in_ms=0)

    desk.turns._ledger = Held()
    desk.turns.run()
    assert desk.clock.slept_s
    assert min(desk.clock.slept_s[:4]) > 0


def test_a_closed_one_claims_nothing_and_settles_on(desk):
    (one,) = desk.claim(1)
    desk.submit(3)
    desk.turns.close()
    desk.settle(one)
    desk.enough = lambda: bool(desk.told)
    desk.turns.run()
    assert [claim for _, claim in desk.ledger.log] == [None]


def test_what_was_claimed_by_a_turn_under_way_is_expected_until_it_is_in_hand(desk):
    seen: list[bool] = []
    desk.submit(1)
    desk.ledger.before = lambda *_: (
        desk.turns.close(),
        seen.append(desk.roster.wait_until_empty(desk.clock, 0)),
    )
    desk.enough = lambda: bool(desk.begun)
    desk.turns.run()
    assert seen == [False]


def test_a_closed_one_finds_out_what_a_claim_without_an_answer_brought(desk):
    """Regression: its jobs ran out of their leases, and were counted as crashes."""
    desk.submit(2)
    desk.ledger.after = Times(1, lambda *_: (desk.turns.close(), cut()))
    desk.enough = lambda: len(desk.begun) == 2
    desk.turns.run()
    assert len(desk.begun) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_settlement_counts_once_whether_or_not_the_answer_was_lost(desk, when):
    (one,) = desk.claim(1)
    setattr(desk.ledger, when, Times(1, cut))
    done = desk.settle(one)
    desk.last()
    assert desk.told == [(done, True)]
    assert desk.state(one) is JobState.COMPLETED


def test_a_settlement_whose_lease_was_lost_does_not_count(desk):
    (one,) = desk.claim(1)
    desk.wall.advance(60_001)
    desk.ledger.maintain(10)
    done = desk.settle(one)
    desk.last()
    assert desk.told == [(done, False)]


@pytest.mark.parametrize("requeue", [True, False])
def test_of_an_answer_that_was_lost_a_result_that_the_ledger_has_not_does_not_count(desk, requeue):
    (one,) = desk.claim(1)

    def meanwhile(*_):
        if requeue:
            desk.ledger.requeue(one.job.id)
        else:
            desk.ledger.delete(one.job.id)
        cut()

    desk.ledger.after = Times(1, meanwhile)
    done = desk.settle(one)
    desk.last()
    assert desk.told == [(done, False)]


def test_one_that_leaves_asks_a_ledger_that_is_away_a_few_times_more(desk):
    (one,) = desk.claim(1)
    desk.ledger.away = True
    desk.settle(one)
    desk.last()
    assert desk.told == []
    assert 1 <= len(desk.clock.slept_s) <= 5


def test_one_that_leaves_after_a_long_outage_asks_once_more_at_least(desk):
    """Regression: failures from before were counted, and it left without a word to a ledger that was back."""
    (one,) = desk.claim(1)
    desk.ledger.before = Times(6, cut)
    desk.settle(one)
    calls = iter(range(5))
    sleep = desk.clock.sleep

    def leave_later(seconds, wake=None):
        if next(calls, None) is None:
            desk.turns.end()
        return sleep(seconds, wake)

    desk.clock.sleep = leave_later
    desk.turns.run()
    assert [counted for _, counted in desk.told] == [True]


def test_a_settlement_that_the_ledger_fails_over_keeps_no_others_waiting(desk, caplog):
    """Regression: all were settled together, and failed together, for ever."""
    poison, *others = desk.claim(3)

    def fail(settlements, _claim):
        if any(isinstance(s.outcome, Completed) and s.job_id == poison.job.id for s in settlements):
            raise ValueError("Object of type complex is not JSON serializable")

    desk.ledger.before = fail
    desk.settle(poison)
    for other in others:
        desk.settle(other)
    caplog.set_level(logging.CRITICAL)
    desk.enough = lambda: len(desk.told) >= 3
    new = desk.submit(8)
    desk.turns.run()
    assert [desk.state(other) for other in others] == [JobState.COMPLETED] * 2
    assert set(desk.begun) & set(new)
    # Something plain is settled in its place.
    failed = desk.ledger.get(poison.job.id)
    assert failed.failure.cause is Cause.DEFECT
    assert failed.state is JobState.PENDING


def test_a_ledger_that_fails_over_everything_costs_no_result(desk, caplog):
    caplog.set_level(logging.CRITICAL)
    attempts = desk.claim(3)

    def fail(*_):
        raise OSError("disk full")

    desk.ledger.before = Times(40, fail)
    for attempt in attempts:
        desk.settle(attempt)
    desk.enough = lambda: len(desk.told) == 3
    desk.turns.run()
    assert [desk.state(attempt) for attempt in attempts] == [JobState.COMPLETED] * 3


def test_what_cannot_be_made_durable_is_settled_as_failed_and_told_as_that(desk, caplog):
    caplog.set_level(logging.CRITICAL)
    one, two = desk.claim(2)

    def broken(_settlements):
        raise StorageError("/store", "Input/output error")

    desk.secure = broken
    desk.settle(one)
    released = desk.settle(two, Failed(JobFailure(Cause.INPUT, "no")))
    desk.last()
    job = desk.ledger.get(one.job.id)
    assert (job.state, job.failure.cause, job.attempt) == (JobState.PENDING, Cause.STORAGE, 1)
    assert job.due_at_ms - desk.wall.now_ms() == 10_000, "not at once: the disk would have no time to recover"
    assert isinstance(desk.told[0][0].outcome, Failed), "told as it was settled, not as it had been"
    assert desk.told[1] == (released, True)


@pytest.mark.parametrize("wrong", [lambda s: s[:1], lambda s: s[::-1], lambda _s: ()])
def test_what_was_secured_must_be_what_was_to_be_settled(desk, wrong, caplog):
    caplog.set_level(logging.CRITICAL)
    attempts = desk.claim(2)
    desk.secure = wrong
    for attempt in attempts:
        desk.settle(attempt)
    desk.last()
    assert [desk.state(attempt) for attempt in attempts] == [JobState.PENDING] * 2


def test_only_what_has_completed_is_unsecured():
    cancelled = Settlement("a", 1, Failed(JobFailure(Cause.INPUT, "no")))
    assert unsecured(cancelled) is cancelled


def test_a_begin_that_raises_costs_neither_the_thread_nor_the_other_jobs(desk, caplog):
    """Regression: the thread ended, and the worker lived on without claiming or settling anything."""
    caplog.set_level(logging.CRITICAL)
    begin, failing = desk.turns._begin, iter(range(1))

    def refuse(job):
        if next(failing, None) is not None:
            raise RuntimeError("can't start new thread")
        begin(job)

    desk.turns._begin = refuse
    desk.submit(3)
    desk.enough = lambda: len(desk.begun) == 3
    desk.turns.run()
    assert len(set(desk.begun)) == 3


def test_queues_that_are_paused_are_not_claimed_from(desk):
    desk.ledger.set_queue(QueueSettings("default", paused=True))
    desk.submit(1)
    desk.ledger.before = Times(
        1, lambda *_: desk.ledger.set_queue(QueueSettings("default")), lambda *_: desk.clock.now() > 20.0
    )
    desk.enough = lambda: bool(desk.begun)
    desk.turns.run()
    assert desk.clock.now() > 20.0


def test_a_worker_takes_its_own_regions_jobs_first_and_then_others():
    desk = Desk(region="eu", concurrency=1)
    far = desk.submit(region="us", priority=0)
    own = desk.submit(2, region="eu")

    def begun():
        if len(desk.begun) == 3:
            return True
        if desk.begun and (held := desk.roster.get(desk.begun[-1], 1)):
            desk.settle(held)
        return False

    desk.enough = begun
    desk.turns.run()
    assert desk.begun == [*sorted(own), *far]
    assert {claim.region for _, claim in desk.ledger.log if claim} == {"eu"}


def test_a_worker_that_has_something_leaves_other_regions_alone_until_it_is_done():
    """Without any news: that it is idle is reason enough to look."""
    desk = Desk(region="eu", poll_s=1_000.0)
    (busy,) = desk.claim(1)
    far = desk.submit(region="us")
    looks = []

    def sleep(seconds, wake=None):
        looks.append(len(desk.ledger.log))
        if len(looks) == 1:
            desk.settle(busy)
        elif len(looks) > 5:
            desk.turns.end()
        return True

    desk.clock.sleep = sleep
    desk.enough = lambda: bool(desk.begun)
    desk.turns.run()
    claims = [claim for _, claim in desk.ledger.log]
    assert [claim.other_regions for claim in claims] == [False, True]
    assert desk.begun == far


def test_a_worker_that_may_not_never_asks_for_other_regions():
    desk = Desk(region="eu", other_regions="never")
    desk.submit(2, region="us")
    (own,) = desk.submit(region="eu")
    desk.enough = lambda: bool(desk.begun)
    desk.turns.run()
    assert desk.begun == [own]
    assert not any(claim.other_regions for _, claim in desk.ledger.log)


def test_a_thread_that_comes_free_wakes_who_passed_other_regions_over(desk):
    desk = Desk(region="eu")
    desk.turns._news, desk.turns._passed_over = False, True
    desk.turns._wake.clear()
    desk.turns.room()
    assert desk.turns._wake.is_set()
