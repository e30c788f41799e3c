"""Heartbeats: leases, progress, cancellations, and time limits of attempts."""

import logging
import os
import threading
from typing import Self

import pytest

from headrace.jobs.job import Cancelled, JobProgress, NewJob, Settlement
from headrace.jobs.kinds import Attempt, StopReason
from headrace.jobs.ledger import REPORTED_MODELS_KEPT_DAYS, ClaimRequest
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.registration import REGISTER_S, Registration, worker_info
from headrace.jobs.worker.running_jobs import Heartbeats, RunningJobs
from headrace.jobs.worker_registry import WorkerReport, WorkerState
from headrace.testing import ManualClock, ManualWallClock
from jobs.worker.faulty_ledger import WAIT_S, FaultyLedger, Times, cut
from servers.polling import wait_until


class HeartbeatBench:
    """The heartbeat thread on a manual clock.

    `after` and `now` return when the thread sleeps again.
    """

    def __init__(self) -> None:
        self.wall = ManualWallClock()
        self.ledger = FaultyLedger(self.wall)
        self.ledger.start()
        self.running_jobs, self.clock = RunningJobs(), ManualClock()
        self.given_up: list[Attempt] = []
        settings = WorkerSettings(name="w1", lease_s=60.0, heartbeat_s=15.0, stop_s=30.0)
        self.report = WorkerReport
        self.resumed: list[float] = []
        self.registration = Registration(
            self.ledger,
            worker_info(settings, ("m", "m@1"), "1.2.3"),
            read_report=self._read_report,
            is_claiming=lambda: self.running_jobs.claiming,
            resumed=lambda: self.resumed.append(self.clock.now()),
            clock=self.clock,
        )
        self.heartbeats = Heartbeats(
            self.ledger,
            settings,
            self.running_jobs,
            give_up=self._give_up,
            clock=self.clock,
            registration=self.registration,
        )
        self._thread = threading.Thread(target=self.heartbeats.run)

    def _read_report(self) -> WorkerReport:
        return self.report()

    def _give_up(self, attempt: Attempt) -> None:
        if self.running_jobs.mark_finished(attempt):
            self.given_up.append(attempt)

    def __enter__(self) -> Self:
        self._thread.start()
        self.clock.wait_for_sleepers()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeats.end()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def after(self, seconds: float) -> None:
        """Advance both clocks, and wait until the thread has handled the due work."""
        before = len(self.clock.slept_s)
        self.wall.advance(round(seconds * 1000))
        self.clock.advance(seconds)
        self._until_asleep_again(before)

    def now(self, do) -> None:
        """Call `do`, which wakes the thread, and wait until the thread sleeps again."""
        before = len(self.clock.slept_s)
        do()
        self._until_asleep_again(before)

    def _until_asleep_again(self, before: int) -> None:
        wait_until(lambda: len(self.clock.slept_s) > before, "an action of the heartbeat thread")
        self.clock.wait_for_sleepers()

    def claim(self, limit_s: float | None = None, **spec) -> Attempt:
        self.ledger.submit([NewJob(**spec)])
        (job,) = self.ledger.settle_and_claim([], ClaimRequest("w1", ("default",), 1, 60_000)).claimed
        attempt = Attempt(job)
        self.running_jobs.add(attempt)
        self.running_jobs.begin(attempt, None if limit_s is None else self.clock.now() + limit_s)
        self.heartbeats.attempt_began(limit_s)
        return attempt


@pytest.fixture
def bench():
    with HeartbeatBench() as made:
        yield made


def test_heartbeat_extends_leases_and_reports_progress(bench):
    one, two = bench.claim(), bench.claim()
    one.set_progress_source(lambda: JobProgress(3, 10, "records"))
    two.cursor = {"at": 7}
    bench.after(15.0)
    assert bench.ledger.get(one.job.id).progress == JobProgress(3, 10, "records")
    assert bench.ledger.get(two.job.id).cursor == {"at": 7}
    for _ in range(8):
        bench.after(15.0)
    assert bench.ledger.maintain(10).total == 0, "no lease has run out"


def test_models_are_registered_at_once_and_then_now_and_again(bench):
    assert bench.ledger.reported_models() == {}
    bench.registration.register()
    kept_s = REPORTED_MODELS_KEPT_DAYS * 86_400
    for passed_s in (REGISTER_S, kept_s - 60.0):
        assert bench.ledger.reported_models() == {"default": {"m", "m@1"}}
        bench.after(passed_s)
    bench.wall.advance(60_001)
    assert bench.ledger.reported_models() == {"default": {"m", "m@1"}}


def test_registration_is_repeated_after_an_outage(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    bench.ledger.unavailable = True
    bench.registration.register()
    bench.ledger.unavailable = False
    assert bench.ledger.reported_models() == {}
    bench.after(15.0)
    assert bench.ledger.reported_models() == {"default": {"m", "m@1"}}


def test_failing_progress_does_not_stop_heartbeats(bench, caplog):
    """Regression: one failing progress source stopped the heartbeats of all attempts."""
    caplog.set_level(logging.CRITICAL)
    one, two = bench.claim(), bench.claim()
    one.set_progress_source(lambda: 1 // 0)
    for _ in range(5):
        bench.after(15.0)
    assert bench.ledger.maintain(10).total == 0
    assert (one.stopped, two.stopped) == (None, None)


def test_unavailable_ledger_is_retried_soon_and_stops_nothing(bench):
    one = bench.claim()
    bench.ledger.before_heartbeat = Times(3, cut)
    bench.after(15.0)
    assert bench.heartbeats.may_claim()
    for _ in range(3):
        bench.after(1.0)
    assert len(bench.ledger.heartbeats) == 4
    assert one.stopped is None


def test_unexpected_ledger_error_does_not_end_heartbeats(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    bench.claim()

    def odd():
        raise ValueError("an unexpected error")

    bench.ledger.before_heartbeat = Times(2, odd)
    bench.after(15.0)
    bench.after(1.0)
    bench.after(1.0)
    assert len(bench.ledger.heartbeats) == 3


def test_heartbeats_are_overdue_after_half_a_lease_with_open_attempts(bench):
    bench.after(100.0)
    assert bench.heartbeats.may_claim()
    bench.claim()
    assert bench.heartbeats.may_claim(), "the lease is new"
    bench.ledger.unavailable = True
    bench.after(30.0)
    assert bench.heartbeats.may_claim()
    bench.after(1.0)
    assert not bench.heartbeats.may_claim()
    bench.ledger.unavailable = False
    bench.after(1.0)
    assert bench.heartbeats.may_claim()


def test_cancelled_expired_and_lost_attempts_are_stopped(bench):
    cancelled, expired, lost, other = (
        bench.claim(),
        bench.claim(deadline_s=10.0),
        bench.claim(),
        bench.claim(),
    )
    bench.ledger.cancel(cancelled.job.id)
    bench.ledger.settle_and_claim([Settlement(lost.job.id, lost.job.lease, Cancelled())])
    bench.after(15.0)
    assert [a.stopped for a in (cancelled, expired, lost, other)] == [
        StopReason.CANCELLED,
        StopReason.EXPIRED,
        StopReason.LOST,
        None,
    ]


def test_reply_for_one_lease_does_not_stop_a_later_one(bench):
    """Regression: replies name jobs without leases, so a late reply stopped the new attempt."""
    early = bench.claim()
    later: list[Attempt] = []

    def meanwhile(_reply):
        bench.running_jobs.remove(early)
        bench.wall.advance(3_600_000)
        later.append(claim_again(bench))

    bench.ledger.after_heartbeat = Times(1, meanwhile)
    # The reply reports the lost lease. The worker claims the job again before the reply arrives.
    bench.wall.advance(60_001)
    bench.ledger.maintain(10)
    bench.after(15.0)
    assert bench.ledger.heartbeats[0][0].lease == early.job.lease
    assert (early.stopped, later[0].stopped) == (StopReason.LOST, None)


def claim_again(bench: HeartbeatBench) -> Attempt:
    bench.ledger.maintain(10)
    (job,) = bench.ledger.settle_and_claim([], ClaimRequest("w1", ("default",), 1, 60_000)).claimed
    attempt = Attempt(job)
    bench.running_jobs.add(attempt)
    return attempt


def test_lost_lease_gets_no_heartbeat(bench):
    lost, other = bench.claim(), bench.claim()
    lost.stop(StopReason.LOST)
    bench.after(15.0)
    assert [heartbeat.job_id for heartbeat in bench.ledger.heartbeats[0]] == [other.job.id]


def test_changes_trigger_rate_limited_cancellation_checks(bench):
    one = bench.claim()
    checked_s: list[float] = []
    worker_orders = bench.ledger.worker_orders
    bench.ledger.worker_orders = lambda worker: (
        checked_s.append(bench.clock.now()),
        worker_orders(worker),
    )[1]
    bench.wall.advance(1)
    bench.now(
        lambda: (
            bench.clock.advance(0.2),
            bench.ledger.cancel(one.job.id),
            bench.heartbeats.check_orders(),
        )
    )
    assert one.stopped is StopReason.CANCELLED
    bench.now(bench.heartbeats.check_orders)
    assert checked_s == [0.2]
    bench.after(0.1)
    assert checked_s == [0.2, pytest.approx(0.3)]


def test_cancellation_check_does_not_stop_later_attempts(bench):
    early = bench.claim()
    later: list[Attempt] = []
    worker_orders = bench.ledger.worker_orders

    def meanwhile(worker):
        found = worker_orders(worker)
        bench.ledger.settle_and_claim([Settlement(early.job.id, early.job.lease, Cancelled())])
        bench.ledger.requeue(early.job.id)
        bench.running_jobs.remove(early)
        later.append(claim_again(bench))
        return found

    bench.ledger.worker_orders = meanwhile
    bench.ledger.cancel(early.job.id)
    bench.clock.advance(0.2)
    bench.now(bench.heartbeats.check_orders)
    assert later[0].job.lease == 2
    assert later[0].stopped is None


def test_cancellation_missed_in_an_outage_comes_with_the_next_heartbeat(bench):
    one = bench.claim()
    bench.ledger.cancel(one.job.id)
    bench.ledger.unavailable = True
    bench.clock.advance(0.2)
    bench.now(bench.heartbeats.check_orders)
    assert one.stopped is None
    bench.ledger.unavailable = False
    bench.after(15.0)
    assert one.stopped is StopReason.CANCELLED


def test_attempt_is_stopped_at_its_time_limit(bench):
    one = None

    def claim():
        nonlocal one
        one = bench.claim(limit_s=4.0)

    bench.now(claim)
    assert bench.clock.slept_s[-1] == pytest.approx(4.0)
    bench.after(4.0)
    assert one.stopped is StopReason.TIME_LIMIT


def test_attempt_that_ignores_its_stop_is_given_up_once(bench):
    one = bench.claim()
    bench.now(lambda: (one.stop(StopReason.CANCELLED), bench.heartbeats.attempts_stopped()))
    bench.after(15.0)
    assert bench.given_up == []
    assert len(bench.ledger.heartbeats[-1]) == 1, "the attempt was given up too early"
    bench.after(15.0)
    assert bench.given_up == [one]
    bench.after(15.0)
    assert bench.given_up == [one]


def test_raising_stop_callback_does_not_affect_other_attempts(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    one, two = bench.claim(), bench.claim()
    one.add_stop_callback(lambda: 1 // 0)
    for each in (one, two):
        bench.ledger.cancel(each.job.id)
    bench.after(15.0)
    assert (one.stopped, two.stopped) == (StopReason.CANCELLED, StopReason.CANCELLED)


# The registry


def record(bench):
    return bench.ledger.worker("w1")


def test_worker_registers_with_its_properties_and_figures(bench):
    bench.report = lambda: WorkerReport(memory_bytes=7)
    bench.registration.register()
    info = record(bench).info
    assert (info.name, info.version, info.queues, info.models) == ("w1", "1.2.3", ("default",), ("m", "m@1"))
    assert (info.slots, info.lease_ms, info.pid) == (8, 60_000, os.getpid())
    assert info.host
    assert info.start_id
    assert record(bench).report == WorkerReport(memory_bytes=7)


def test_idle_worker_reports_at_each_heartbeat(bench):
    bench.registration.register()
    bench.report = lambda: WorkerReport(memory_bytes=8)
    for _ in range(10):
        bench.after(15.0)
    assert record(bench).report.memory_bytes == 8
    assert record(bench).state is WorkerState.RUNNING


def test_failing_figures_lose_no_lease(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    bench.report = lambda: WorkerReport(memory_bytes=7)
    bench.registration.register()
    one = bench.claim()
    bench.report = lambda: 1 // 0
    for _ in range(5):
        bench.after(15.0)
    assert bench.ledger.maintain(10).total == 0
    assert (one.stopped, record(bench).report.memory_bytes) == (None, 7)


def test_forgotten_worker_registers_again(bench):
    bench.registration.register()
    bench.ledger._table.workers.clear()
    bench.after(15.0)
    assert record(bench).state is WorkerState.RUNNING


def test_unavailable_ledger_does_not_prevent_the_end(bench, caplog):
    caplog.set_level(logging.CRITICAL)
    bench.registration.register()
    bench.ledger.unavailable = True
    bench.registration.end()
    bench.ledger.unavailable = False
    assert record(bench).state is WorkerState.RUNNING
    bench.registration.end()
    assert record(bench).state is WorkerState.STOPPED


def test_drain_is_followed_after_a_notification_and_confirmed_soon(bench):
    bench.registration.register()
    bench.clock.advance(2.0)
    bench.ledger.set_worker_draining("w1", draining=True)
    assert bench.heartbeats.may_claim()
    bench.now(bench.heartbeats.check_orders)
    assert not bench.heartbeats.may_claim()
    assert record(bench).state is WorkerState.DRAINING
    bench.after(0.1)
    assert record(bench).state is WorkerState.DRAINED
    bench.after(15.0)
    assert record(bench).state is WorkerState.DRAINED
    bench.ledger.set_worker_draining("w1", draining=False)
    bench.now(bench.heartbeats.check_orders)
    assert bench.heartbeats.may_claim()
    assert len(bench.resumed) == 1


def test_drain_is_followed_without_a_notification(bench):
    bench.registration.register()
    one = bench.claim()
    bench.ledger.set_worker_draining("w1", draining=True)
    bench.after(15.0)
    assert not bench.heartbeats.may_claim()
    bench.after(0.1)
    assert (record(bench).report.claims, record(bench).state) == (False, WorkerState.DRAINING)
    assert one.stopped is None
    bench.ledger.set_worker_draining("w1", draining=False)
    bench.after(15.0)
    assert bench.heartbeats.may_claim()
    assert len(bench.resumed) == 1


def test_drain_is_not_confirmed_during_a_claim(bench):
    """The claim began before the order, so that it may still bring jobs."""
    bench.registration.register()
    bench.running_jobs.begin_claim()
    bench.ledger.set_worker_draining("w1", draining=True)
    bench.after(15.0)
    for _ in range(3):
        bench.after(0.1)
        assert record(bench).state is WorkerState.DRAINING
    bench.running_jobs.end_claim()
    bench.after(0.1)
    assert record(bench).state is WorkerState.DRAINED


def test_idle_worker_reads_its_orders_once_a_second(bench):
    read_s: list[float] = []
    orders = bench.ledger.worker_orders
    bench.ledger.worker_orders = lambda worker: (read_s.append(bench.clock.now()), orders(worker))[1]
    bench.clock.advance(1.0)
    bench.now(bench.heartbeats.check_orders)
    bench.now(bench.heartbeats.check_orders)
    assert (read_s, bench.clock.slept_s[-1]) == ([1.0], 1.0)
    bench.after(1.0)
    assert read_s == [1.0, 2.0]
