"""The ledger loop: settlements count once, and claims never exceed the free slots."""

import logging
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.errors import StorageError
from headrace.jobs.job import Completed, Failed, JobFailure, NewJob, ResultRef, Settlement
from headrace.jobs.kinds import Attempt
from headrace.jobs.lanes import ClaimLimit
from headrace.jobs.ledger import ClaimRequest, QueueSettings
from headrace.jobs.state import Cause, JobState
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.ledger_loop import LedgerLoop, not_durable
from headrace.jobs.worker.running_jobs import RunningJobs
from headrace.testing import ManualClock, ManualWallClock
from jobs.worker.faulty_ledger import FaultyLedger, Times, cut


class LoopBench:
    """A ledger loop in the test's own thread.

    The loop ends when `enough` returns True.
    """

    def __init__(self, *, concurrency: int = 3, poll_s: float = 5.0, **settings: Any) -> None:
        self.wall = ManualWallClock()
        self.ledger = FaultyLedger(self.wall)
        self.ledger.start()
        self.running_jobs, self.clock = RunningJobs(), ManualClock(auto=True)
        self.begun: list[str] = []
        self.settled: list[tuple[Settlement, bool]] = []
        self.running_max = 0
        self.enough = lambda: False
        self.secure = lambda settlements: settlements
        self.may_claim = lambda: True
        self.ledger_loop = LedgerLoop(
            self.ledger,
            WorkerSettings(name="w1", concurrency=concurrency, poll_s=poll_s, **settings),
            self.running_jobs,
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
        self.running_jobs.add(Attempt(job))
        self.begun.append(job.id)
        self.running_max = max(self.running_max, len(self.running_jobs))
        self._check_enough()

    def _settled(self, settlement: Settlement, counted: bool) -> None:
        self.settled.append((settlement, counted))
        attempt = self.running_jobs.get(settlement.job_id, settlement.lease)
        assert attempt is not None, "the settled attempt is not among the running jobs"
        self.running_jobs.remove(attempt)
        self._check_enough()

    def _check_enough(self) -> None:
        if self.enough():
            self.ledger_loop.end()

    def submit(self, count: int = 1, **spec) -> list[str]:
        return [s.job.id for s in self.ledger.submit([NewJob(**spec)] * count)]

    def claim(self, count: int = 1, **spec) -> list[Attempt]:
        """Return attempts at new jobs, as if an earlier round of the loop had claimed the jobs."""
        self.submit(count, **spec)
        jobs = self.ledger.settle_and_claim([], ClaimRequest("w1", ("default",), count, 60_000)).claimed
        self.ledger.log.clear()
        attempts = [Attempt(job) for job in jobs]
        for attempt in attempts:
            self.running_jobs.add(attempt)
        return attempts

    def settle(self, attempt: Attempt, outcome=None) -> Settlement:
        job = attempt.job
        done = Settlement(
            job.id, job.lease, outcome or Completed(ResultRef(f"memory://s/{job.id}/{job.lease}"))
        )
        self.ledger_loop.settle(done)
        return done

    def last(self) -> None:
        """Settle the waiting outcomes, and end the loop."""
        self.ledger_loop.end()
        self.ledger_loop.run()

    def state(self, attempt: Attempt) -> JobState:
        return self.ledger.get(attempt.job.id).state


@pytest.fixture
def bench() -> LoopBench:
    return LoopBench()


def test_model_that_was_left_is_claimed_again_after_a_minute(bench):
    bench.ledger_loop.leave_model("m")
    missing, other = bench.submit(model="m"), bench.submit(model="n")
    bench.enough = lambda: len(bench.begun) == 2
    bench.ledger_loop.run()
    assert bench.begun == [*other, *missing]
    assert 60 <= bench.clock.now() < 66
    claims = [claim.without_models for _, claim in bench.ledger.log if claim]
    assert claims == sorted(claims, key=len, reverse=True)
    assert {*claims} == {frozenset({"m"}), frozenset()}


def test_settlements_and_claim_share_one_transaction(bench):
    one, two = bench.claim(2)
    new = bench.submit(5)
    settled = [bench.settle(one), bench.settle(two)]
    bench.enough = lambda: len(bench.begun) == 3
    bench.ledger_loop.run()
    assert len(bench.ledger.log) == 1
    settlements, claim = bench.ledger.log[0]
    assert list(settlements) == settled
    assert claim == ClaimRequest("w1", ("default",), 3, 60_000)
    assert bench.settled == [(s, True) for s in settled]
    assert bench.begun == sorted(new)[:3]


def test_claim_is_limited_to_free_slots(bench):
    bench.claim(2)
    bench.submit(5)
    bench.enough = lambda: len(bench.begun) == 1
    bench.ledger_loop.run()
    assert [claim.jobs_max for _, claim in bench.ledger.log] == [1]
    assert bench.running_max == 3


def test_slot_of_a_stuck_thread_is_not_free(bench):
    (stuck,) = bench.claim(1)
    bench.running_jobs.begin(stuck)
    bench.running_jobs.remove(stuck)
    bench.submit(5)
    bench.enough = lambda: len(bench.begun) == 2
    bench.ledger_loop.run()
    assert bench.ledger.log[0][1].jobs_max == 2


def test_claim_with_a_lost_reply_occupies_slots(bench):
    """Regression: the next claim ignored the jobs of a claim whose reply was lost."""
    bench.submit(10)
    bench.ledger.after = Times(1, cut)
    bench.enough = lambda: len(bench.begun) == 3
    bench.ledger_loop.run()
    assert bench.running_max == 3
    assert bench.ledger.counts("default").running == 3
    assert len(bench.ledger.log) == 1


def test_nothing_is_claimed_beside_a_job_that_runs_alone(bench):
    (suspect,) = bench.claim(1)
    bench.running_jobs.remove(suspect)
    bench.running_jobs.add(Attempt(replace(suspect.job, crashes=2)))
    bench.submit(5)
    polls = iter(range(3))
    bench.may_claim = lambda: next(polls, None) is not None or bench.ledger_loop.end() is not None
    bench.ledger_loop.run()
    assert not bench.ledger.log


def test_queues_are_polled_without_notifications(bench):
    waits = iter(range(3))

    def see(_settlements, claim):
        if claim and next(waits, None) is None:
            bench.submit(1)

    bench.ledger.before = see
    bench.enough = lambda: len(bench.begun) == 1
    bench.ledger_loop.run()
    assert len(bench.ledger.log) == 4
    assert all(3.75 <= s <= 5.0 for s in bench.clock.slept_s)


def test_busy_worker_polls_the_queues(bench):
    """Regression: each settlement postponed the next poll.

    Jobs without an announcement waited until the worker was idle.
    """
    bench.settle(bench.claim(1)[0])
    rounds = 0

    def busy(_settlements, _claim):
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            bench.submit(1)  # without an announcement
        assert rounds < 10, "a busy worker never polls"

    def again(*_):
        if not bench.begun:
            bench.clock.advance(1.0)
            other = bench.ledger
            job = other.submit([NewJob(queue="mine")])[0].job
            (job,) = MEMORY_SETTLE_AND_CLAIM(other, [], ClaimRequest("w1", ("mine",), 1, 60_000)).claimed
            attempt = Attempt(job)
            bench.running_jobs.add(attempt)
            bench.settle(attempt)

    bench.ledger.before, bench.ledger.after = busy, again
    bench.enough = lambda: bool(bench.begun)
    bench.ledger_loop.run()
    assert bench.begun


MEMORY_SETTLE_AND_CLAIM = FaultyLedger.__mro__[1].settle_and_claim


def test_later_job_is_claimed_when_due(bench):
    bench.submit(1, delay_ms=2_000)
    bench.ledger.before = Times(1, lambda *_: bench.wall.advance(2_000), lambda *_: bench.clock.now() >= 2.0)
    bench.enough = lambda: len(bench.begun) == 1
    bench.ledger_loop.run()
    assert bench.clock.now() == pytest.approx(2.0)


def test_unclaimable_due_job_is_polled_with_a_pause(bench):
    """Regression: while another transaction locked the job, the loop polled without a pause."""
    ledger, answers = bench.ledger, iter(range(5))

    class LockedJobLedger:
        def __getattr__(self, name):
            return getattr(ledger, name)

        def settle_and_claim(self, settlements, claim=None):
            if next(answers, None) is None:
                bench.ledger_loop.end()
            return replace(ledger.settle_and_claim(settlements, claim), due_in_ms=0)

    bench.ledger_loop._ledger = LockedJobLedger()
    bench.ledger_loop.run()
    assert bench.clock.slept_s
    assert min(bench.clock.slept_s[:4]) > 0


def test_settlement_claims_the_job_that_waits_for_its_limit(bench):
    bench.ledger.set_limits("model", [ClaimLimit("model", "m", 1)])
    bench.submit(3, model="m")

    begin = bench.ledger_loop._begin

    def begin_and_settle(job):
        begin(job)
        bench.settle(bench.running_jobs.get(job.id, job.lease))

    bench.ledger_loop._begin = begin_and_settle
    bench.enough = lambda: len(bench.begun) == 3
    bench.ledger_loop.run()
    assert bench.clock.now() == 0.0


def test_job_that_waits_for_another_workers_job_is_polled_every_second(bench):
    bench.ledger.set_limits("model", [ClaimLimit("model", "m", 1)])
    bench.submit(2, model="m")
    claim = ClaimRequest("other", ("default",), 1, 60_000)
    (job,) = MEMORY_SETTLE_AND_CLAIM(bench.ledger, [], claim).claimed

    def end_other(*_):
        if bench.clock.now() >= 2.0:
            done = Settlement(job.id, job.lease, Completed(ResultRef("memory://s/r")))
            MEMORY_SETTLE_AND_CLAIM(bench.ledger, [done], None)

    bench.ledger.before = end_other
    bench.enough = lambda: bool(bench.begun)
    bench.ledger_loop.run()
    assert bench.clock.now() == pytest.approx(2.0)
    assert all(0.9 <= s <= 1.0 for s in bench.clock.slept_s)


def test_closed_loop_settles_without_claiming(bench):
    (one,) = bench.claim(1)
    bench.submit(3)
    bench.ledger_loop.close()
    bench.settle(one)
    bench.enough = lambda: bool(bench.settled)
    bench.ledger_loop.run()
    assert [claim for _, claim in bench.ledger.log] == [None]


def test_running_claim_keeps_running_jobs_not_empty(bench):
    seen: list[bool] = []
    bench.submit(1)
    bench.ledger.before = lambda *_: (
        bench.ledger_loop.close(),
        seen.append(bench.running_jobs.empty.is_set()),
    )
    bench.enough = lambda: bool(bench.begun)
    bench.ledger_loop.run()
    assert seen == [False]


def test_closed_loop_resolves_a_claim_without_a_reply(bench):
    """Regression: the leases of the claimed jobs expired, and counted as crashes."""
    bench.submit(2)
    bench.ledger.after = Times(1, lambda *_: (bench.ledger_loop.close(), cut()))
    bench.enough = lambda: len(bench.begun) == 2
    bench.ledger_loop.run()
    assert len(bench.begun) == 2


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("output_uri", ["", "memory://out/"])
def test_settlement_counts_once_despite_a_lost_reply(bench, when, output_uri):
    (one,) = bench.claim(1, output_uri=output_uri)
    setattr(bench.ledger, when, Times(1, cut))
    done = bench.settle(one)
    bench.last()
    assert bench.settled == [(done, True)]
    assert bench.state(one) is (JobState.PUBLISHING if output_uri else JobState.COMPLETED)


def test_settlement_of_a_lost_lease_does_not_count(bench):
    (one,) = bench.claim(1)
    bench.wall.advance(60_001)
    bench.ledger.maintain(10)
    done = bench.settle(one)
    bench.last()
    assert bench.settled == [(done, False)]


@pytest.mark.parametrize("requeue", [True, False])
def test_unrecorded_result_of_a_lost_reply_does_not_count(bench, requeue):
    (one,) = bench.claim(1)

    def meanwhile(*_):
        if requeue:
            bench.ledger.requeue(one.job.id)
        else:
            bench.ledger.delete(one.job.id)
        cut()

    bench.ledger.after = Times(1, meanwhile)
    done = bench.settle(one)
    bench.last()
    assert bench.settled == [(done, False)]


def test_stopping_worker_retries_an_unavailable_ledger_a_few_times(bench):
    (one,) = bench.claim(1)
    bench.ledger.unavailable = True
    bench.settle(one)
    bench.last()
    assert bench.settled == []
    assert 1 <= len(bench.clock.slept_s) <= 5


def test_stopping_worker_tries_at_least_once_after_an_outage(bench):
    """Regression: earlier failures counted, so the worker did not try the recovered ledger."""
    (one,) = bench.claim(1)
    bench.ledger.before = Times(6, cut)
    bench.settle(one)
    calls = iter(range(5))
    sleep = bench.clock.sleep

    def leave_later(seconds, wake=None):
        if next(calls, None) is None:
            bench.ledger_loop.end()
        return sleep(seconds, wake)

    bench.clock.sleep = leave_later
    bench.ledger_loop.run()
    assert [counted for _, counted in bench.settled] == [True]


def test_failing_settlement_does_not_block_others(bench, caplog):
    """Regression: one failing settlement made all settlements of its transaction fail forever."""
    poison, *others = bench.claim(3)

    def fail(settlements, _claim):
        if any(isinstance(s.outcome, Completed) and s.job_id == poison.job.id for s in settlements):
            raise ValueError("Object of type complex is not JSON serializable")

    bench.ledger.before = fail
    bench.settle(poison)
    for other in others:
        bench.settle(other)
    caplog.set_level(logging.CRITICAL)
    bench.enough = lambda: len(bench.settled) >= 3
    new = bench.submit(8)
    bench.ledger_loop.run()
    assert [bench.state(other) for other in others] == [JobState.COMPLETED] * 2
    assert set(bench.begun) & set(new)
    # The loop records a plain failure in place of the result.
    failed = bench.ledger.get(poison.job.id)
    assert failed.failure.cause is Cause.DEFECT
    assert failed.state is JobState.PENDING


def test_failing_ledger_loses_no_result(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    attempts = bench.claim(3)

    def fail(*_):
        raise OSError("disk full")

    bench.ledger.before = Times(40, fail)
    for attempt in attempts:
        bench.settle(attempt)
    bench.enough = lambda: len(bench.settled) == 3
    bench.ledger_loop.run()
    assert [bench.state(attempt) for attempt in attempts] == [JobState.COMPLETED] * 3


def test_result_that_is_not_durable_is_settled_as_failed(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    one, two = bench.claim(2)

    def broken(_settlements):
        raise StorageError("/store", "Input/output error")

    bench.secure = broken
    bench.settle(one)
    released = bench.settle(two, Failed(JobFailure(Cause.INPUT, "no")))
    bench.last()
    job = bench.ledger.get(one.job.id)
    assert (job.state, job.failure.cause, job.attempt) == (JobState.PENDING, Cause.STORAGE, 1)
    assert job.due_at_ms - bench.wall.now_ms() == 10_000, (
        "an immediate retry gives the disk no time to recover"
    )
    assert isinstance(bench.settled[0][0].outcome, Failed), (
        "the callback did not receive the recorded settlement"
    )
    assert bench.settled[1] == (released, True)


@pytest.mark.parametrize("wrong", [lambda s: s[:1], lambda s: s[::-1], lambda _s: ()])
def test_secure_must_return_the_same_settlements(bench, wrong, caplog):
    caplog.set_level(logging.CRITICAL)
    attempts = bench.claim(2)
    bench.secure = wrong
    for attempt in attempts:
        bench.settle(attempt)
    bench.last()
    assert [bench.state(attempt) for attempt in attempts] == [JobState.PENDING] * 2


def test_only_completed_settlements_become_not_durable():
    cancelled = Settlement("a", 1, Failed(JobFailure(Cause.INPUT, "no")))
    assert not_durable(cancelled) is cancelled


def test_raising_begin_does_not_affect_other_jobs(bench, caplog):
    """Regression: the thread ended, and the worker neither claimed nor settled any more."""
    caplog.set_level(logging.CRITICAL)
    begin, failing = bench.ledger_loop._begin, iter(range(1))

    def refuse(job):
        if next(failing, None) is not None:
            raise RuntimeError("can't start new thread")
        begin(job)

    bench.ledger_loop._begin = refuse
    bench.submit(3)
    bench.enough = lambda: len(bench.begun) == 3
    bench.ledger_loop.run()
    assert len(set(bench.begun)) == 3


def test_paused_queues_are_not_claimed_from(bench):
    bench.ledger.set_queue(QueueSettings("default", paused=True))
    bench.submit(1)
    bench.ledger.before = Times(
        1, lambda *_: bench.ledger.set_queue(QueueSettings("default")), lambda *_: bench.clock.now() > 20.0
    )
    bench.enough = lambda: bool(bench.begun)
    bench.ledger_loop.run()
    assert bench.clock.now() > 20.0


def test_worker_claims_its_own_region_first():
    bench = LoopBench(region="eu", concurrency=1)
    far = bench.submit(region="us", priority=0)
    own = bench.submit(2, region="eu")

    def begun():
        if len(bench.begun) == 3:
            return True
        if bench.begun and (held := bench.running_jobs.get(bench.begun[-1], 1)):
            bench.settle(held)
        return False

    bench.enough = begun
    bench.ledger_loop.run()
    assert bench.begun == [*sorted(own), *far]
    assert {claim.region for _, claim in bench.ledger.log if claim} == {"eu"}


def test_busy_worker_skips_other_regions():
    """A worker that becomes idle claims from other regions without an announcement."""
    bench = LoopBench(region="eu", poll_s=1_000.0)
    (busy,) = bench.claim(1)
    far = bench.submit(region="us")
    polls = []

    def sleep(seconds, wake=None):
        polls.append(len(bench.ledger.log))
        if len(polls) == 1:
            bench.settle(busy)
        elif len(polls) > 5:
            bench.ledger_loop.end()
        return True

    bench.clock.sleep = sleep
    bench.enough = lambda: bool(bench.begun)
    bench.ledger_loop.run()
    claims = [claim for _, claim in bench.ledger.log]
    assert [claim.other_regions for claim in claims] == [False, True]
    assert bench.begun == far


def test_worker_with_other_regions_never_claims_no_other_region():
    bench = LoopBench(region="eu", other_regions="never")
    bench.submit(2, region="us")
    (own,) = bench.submit(region="eu")
    bench.enough = lambda: bool(bench.begun)
    bench.ledger_loop.run()
    assert bench.begun == [own]
    assert not any(claim.other_regions for _, claim in bench.ledger.log)


def test_freed_slot_wakes_a_loop_that_skipped_regions(bench):
    bench = LoopBench(region="eu")
    bench.ledger_loop._may_have_jobs, bench.ledger_loop._skipped_regions = False, True
    bench.ledger_loop._wake.clear()
    bench.ledger_loop.slot_freed()
    assert bench.ledger_loop._wake.is_set()


def test_order_to_claim_nothing_counts_also_after_the_claim_is_announced(bench):
    """A draining worker reports that it claims no more once no claim is announced."""
    bench.submit()
    bench.may_claim = lambda: not bench.running_jobs.claiming
    bench.ledger_loop.notify()
    bench.ledger_loop._settle_and_claim()
    assert bench.begun == []
    assert not bench.running_jobs.claiming
    assert bench.ledger.log == deque()
