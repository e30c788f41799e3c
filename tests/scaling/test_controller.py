"""The rounds of controllers: the lease of a pool, changes of its workers, and the log of decisions."""

import logging
import threading

import pytest

from cases import for_each
from headrace.core.errors import ActuatorError, ConfigError, JobLedgerUnavailableError, ResourceNotFoundError
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.worker_registry import WorkerInfo, WorkerState
from headrace.scaling.actuator import Members
from headrace.scaling.controller import LEASE_S, ScalingController
from headrace.scaling.settings import PoolSettings
from headrace.testing import ManualWallClock, MemoryJobLedger, check_service
from scaling.pool_bench import LEASE_MS, PoolBench, RegistryWorkers

WINDOW_S = 300.0
WAIT_S = 20.0


@pytest.fixture
def bench():
    return PoolBench()


def pool_of(bench, jobs, **settings):
    """Return a controller with a registered, idle worker for each of the submitted jobs."""
    controller = bench.controller(**settings)
    bench.submit(jobs)
    controller.decide_once()
    bench.workers.register()
    return controller


# Rounds


def test_job_wakes_a_pool_without_workers_in_one_round(bench):
    controller = bench.controller()
    assert controller.decide_once()
    assert bench.workers.scaled == [(0, ())]
    bench.submit()
    assert controller.decide_once()
    assert bench.workers.starting == ["w-01"]


def test_load_of_all_queues_counts_once():
    bench = PoolBench(queues=("a", "b"))
    controller = bench.controller(queues=("a", "b", "a"))
    bench.submit(2, "a")
    bench.submit(1, "b")
    bench.submit(4, "c")
    controller.decide_once()
    assert bench.wanted() == [3]


def test_lost_workers_of_other_pools_take_no_jobs(bench):
    controller = bench.controller()
    bench.ledger.register_worker(WorkerInfo("other", queues=("default",), slots=8, lease_ms=LEASE_MS))
    bench.advance(60.001)
    bench.submit(3)
    controller.decide_once()
    assert bench.wanted() == [3]


def test_jobs_that_free_workers_of_other_pools_leave_count_after_ten_seconds(bench):
    controller = bench.controller()
    bench.ledger.register_worker(WorkerInfo("other", queues=("default",), slots=8, lease_ms=LEASE_MS))
    bench.submit(3)
    for after_s in (0, 9.999, 0.001):
        bench.advance(after_s)
        controller.decide_once()
    assert bench.wanted() == [0, 3]
    assert bench.decisions()[-1].observed["oldest_seconds"] == 10.0


def test_free_workers_of_other_queues_take_no_jobs_of_the_pool(bench):
    controller = bench.controller()
    bench.ledger.register_worker(WorkerInfo("other", queues=("night",), slots=8))
    bench.submit(3)
    controller.decide_once()
    assert bench.wanted() == [3]
    bench.ledger.register_worker(WorkerInfo("other", queues=("night", "default"), slots=8))
    bench.submit(6)
    controller.decide_once()
    assert bench.wanted() == [3]


def test_slots_are_the_setting_until_a_worker_reports_its_own():
    bench = PoolBench(slots=2)
    controller = bench.controller(slots=4)
    bench.submit(8)
    controller.decide_once()
    assert bench.wanted() == [2]
    bench.workers.register()
    controller.decide_once()
    assert bench.decisions()[-1].observed["slots"] == 2
    # The members have 4 free slots, and 8 jobs wait.
    assert bench.wanted() == [2, 4]


def test_paused_queue_wakes_no_worker(bench):
    controller = bench.controller()
    bench.ledger.set_queue(QueueSettings("default", paused=True))
    bench.submit()
    controller.decide_once()
    assert bench.wanted() == [0]
    bench.ledger.set_queue(QueueSettings("default"))
    controller.decide_once()
    assert bench.wanted() == [0, 1]


def test_steady_pool_asks_the_actuator_for_the_same_in_each_round(bench):
    controller = pool_of(bench, 3)
    for _ in range(3):
        bench.advance(5)
        controller.decide_once()
    assert bench.workers.scaled == [(3, ())] * 4


# Removal


def test_idle_surplus_drains_and_ends_once_it_is_drained(bench):
    controller = pool_of(bench, 2)
    first, second = bench.claim("w-01"), bench.claim("w-02")
    controller.decide_once()
    bench.complete(*first)
    bench.advance(WINDOW_S + 0.001)
    controller.decide_once()
    assert bench.draining() == {"w-01": "pool p"}
    controller.decide_once()
    assert bench.workers.registered == ["w-01", "w-02"]
    bench.advance(1)  # The worker confirms that it claims nothing.
    assert bench.ledger.worker("w-01").state is WorkerState.DRAINED
    controller.decide_once()
    assert bench.workers.registered == ["w-02"]
    assert bench.workers.scaled[-1] == (1, ("w-01",))
    bench.complete(*second)


def test_busy_worker_drains_and_ends_after_its_job(bench):
    controller = pool_of(bench, 2)
    jobs = [*bench.claim("w-01"), *bench.claim("w-02")]
    controller.decide_once()
    smaller = bench.controller("0..1")
    controller.stop()
    bench.advance(20)
    assert smaller.decide_once()
    assert bench.draining() == {"w-01": "pool p"}
    for _ in range(3):
        bench.advance(20)
        smaller.decide_once()
    assert bench.workers.registered == ["w-01", "w-02"]
    bench.complete(jobs[0])
    smaller.decide_once()
    assert bench.workers.registered == ["w-02"]
    assert bench.counts().running == 1


def test_load_that_returns_ends_drains_before_workers_start(bench):
    controller = pool_of(bench, 3)
    bench.complete(*bench.claim("w-01", 3))
    bench.advance(1)
    controller.decide_once()
    bench.advance(WINDOW_S + 1)
    controller.decide_once()
    assert set(bench.draining()) == {"w-01", "w-02", "w-03"}
    bench.submit(2)
    controller.decide_once()
    assert len(bench.draining()) == 1
    assert bench.workers.scaled[-1] == (3, ())
    bench.submit(3)
    controller.decide_once()
    assert bench.draining() == {}
    assert (len(bench.workers.registered), len(bench.workers.starting)) == (3, 2)


def test_drain_by_an_operator_is_not_undone_and_its_worker_replaced(bench):
    controller = pool_of(bench, 2)
    bench.claim("w-01")
    bench.ledger.set_worker_draining("w-01", draining=True, by="ops")
    for _ in range(2):
        bench.advance(5)
        controller.decide_once()
    assert bench.draining() == {"w-01": "ops"}
    assert bench.workers.starting == ["w-03"]


def test_worker_that_left_the_registry_stops_no_round(bench):
    ledger = bench.new_ledger()
    controller = pool_of(bench, 2, ledger=ledger)
    bench.complete(*bench.claim("w-01", 2))
    controller.decide_once()
    bench.advance(WINDOW_S + 1)

    def set_worker_draining(name, **order):
        if name == "w-01":
            raise ResourceNotFoundError("worker", name)
        return bench.ledger.set_worker_draining(name, **order)

    ledger.set_worker_draining = set_worker_draining
    controller.decide_once()
    assert bench.draining() == {"w-02": "pool p"}
    assert bench.wanted() == [2, 0]


def test_actuator_that_cannot_choose_gets_the_number_and_no_worker_drains():
    bench = PoolBench(chooses=False)
    controller = pool_of(bench, 3)
    (job,) = bench.claim("w-03")
    bench.complete(*bench.claim("w-01", 2))
    controller.decide_once()
    bench.advance(WINDOW_S + 1)
    controller.decide_once()
    assert bench.draining() == {}
    assert bench.workers.scaled[-1] == (1, ())
    assert bench.decisions()[-1].reason.startswith("0 due and 1 running jobs")
    bench.complete(job)


def test_busy_workers_are_not_removed_if_the_actuator_cannot_choose():
    bench = PoolBench(chooses=False)
    controller = pool_of(bench, 3, scale_in_window_s=0.0)
    bench.claim("w-01")
    bench.claim("w-02")
    bench.claim("w-03")
    controller.decide_once()
    controller._release()
    smaller = bench.controller("0..1", scale_in_window_s=0.0)
    smaller.decide_once()
    assert bench.workers.scaled[-1] == (3, ())


def test_wanted_number_includes_a_worker_that_drains_if_the_actuator_cannot_choose():
    """An autoscaler that follows the number would end another worker in its place."""
    bench = PoolBench(chooses=False)
    controller = pool_of(bench, 2)
    jobs = [*bench.claim("w-01"), *bench.claim("w-02")]
    bench.ledger.set_worker_draining("w-02", draining=True, by="ops")
    controller.decide_once()
    for job in jobs:
        bench.complete(job)
        bench.advance(WINDOW_S + 1)
        controller.decide_once()
    assert [workers for workers, _ in bench.workers.scaled] == [2, 3, 2, 0]
    decisions = [(each.workers, each.wanted, each.reason.partition("; ")[2]) for each in bench.decisions()]
    assert decisions == [
        (0, 2, ""),
        (2, 3, "1 more worker drains"),
        (3, 2, "1 more worker drains"),
        (1, 0, ""),
    ]


def test_reason_has_the_number_of_workers_that_drain(caplog):
    bench = PoolBench(chooses=False)
    controller = pool_of(bench, 3)
    for name in ("w-01", "w-02"):
        bench.claim(name)
        bench.ledger.set_worker_draining(name, draining=True, by="ops")
    with caplog.at_level(logging.INFO, "headrace.scaling"):
        controller.decide_once()
    decision = bench.decisions()[-1]
    assert (decision.workers, decision.wanted, decision.observed["workers"]) == (3, 5, 1)
    assert decision.reason.endswith("for each worker; 2 more workers drain")
    assert f"pool p: 3 workers, 5 wanted: {decision.reason}" in caplog.text


def test_wanted_number_has_no_worker_that_drains_if_the_actuator_chooses(bench):
    controller = pool_of(bench, 2)
    bench.claim("w-01")
    bench.ledger.set_worker_draining("w-01", draining=True, by="ops")
    controller.decide_once()
    bench.submit()
    controller.decide_once()
    assert [(each.workers, each.wanted) for each in bench.decisions()] == [(0, 2), (2, 3)]
    assert "drain" not in bench.decisions()[-1].reason


# The lease


def test_second_controller_stands_by_until_the_lease_has_passed(bench):
    first, second = bench.controller(), bench.controller()
    assert first.decide_once()
    bench.submit()
    assert not second.decide_once()
    bench.advance(LEASE_S - 0.001)
    assert not second.decide_once()
    assert bench.workers.scaled == [(0, ())]
    bench.advance(0.001)
    assert second.decide_once()
    assert bench.workers.scaled == [(0, ()), (1, ())]
    assert not first.decide_once()
    assert not first.decide_once()
    assert len(bench.workers.scaled) == 2
    assert [each.controller for each in bench.ledger.pools()] == [bench.decisions()[-1].controller]


def test_controller_extends_its_lease(bench):
    first, second = bench.controller(), bench.controller()
    for _ in range(6):
        assert first.decide_once()
        bench.advance(first.pool.interval_s)
        assert not second.decide_once()


def test_lease_covers_a_call_of_the_actuator(bench):
    bench.workers.call_s_max = 60.0
    first, second = bench.controller(), bench.controller()
    assert first.decide_once()
    bench.advance(LEASE_S + 60.0 - 0.001)
    assert not second.decide_once()
    bench.advance(0.001)
    assert second.decide_once()


def test_lease_is_extended_once_in_a_third_of_it(bench):
    controller = bench.controller()
    until_ms = []
    for _ in range(11):
        controller.decide_once()
        until_ms.append(bench.ledger.pools()[0].lease_until_ms)
        bench.advance(1)
    assert len(set(until_ms)) == 3


def test_controller_of_another_pool_has_a_lease_of_its_own(bench):
    assert bench.controller().decide_once()
    assert bench.controller(pool="q").decide_once()


def test_controller_that_returns_after_its_lease_acts_as_a_new_one(bench):
    first = pool_of(bench, 2)
    bench.complete(*bench.claim("w-01", 2))
    bench.advance(LEASE_S)
    second = bench.controller()
    assert second.decide_once()
    assert not first.decide_once()
    second._release()
    bench.advance(2 * WINDOW_S)
    assert first.decide_once()
    assert bench.draining() == {}
    bench.advance(WINDOW_S + 1)
    assert first.decide_once()
    assert len(bench.draining()) == 2


def test_new_controller_removes_nothing_for_one_window(bench):
    first = pool_of(bench, 3)
    bench.complete(*bench.claim("w-01", 3))
    bench.advance(WINDOW_S - 1)
    first.decide_once()
    second = bench.controller()
    first._release()
    assert second.decide_once()
    bench.advance(WINDOW_S - 0.001)
    assert second.decide_once()
    assert bench.draining() == {}
    bench.advance(0.001)
    assert second.decide_once()
    assert len(bench.draining()) == 3
    assert bench.wanted() == [3, 0]


def test_decision_of_a_controller_without_its_lease_is_not_recorded(bench):
    first, second = bench.controller(), bench.controller()
    first.decide_once()
    # The ledger's clock is ahead: the first controller does not know yet.
    bench.wall.advance(round(LEASE_S * 1000))
    assert second.decide_once()
    bench.submit()
    assert first.decide_once()
    assert bench.wanted() == [0]
    assert second.decide_once()
    assert bench.wanted() == [0, 1]


def test_refused_decision_is_recorded_when_the_lease_is_back(bench):
    controller = bench.controller()
    controller.decide_once()
    bench.wall.advance(round(LEASE_S * 1000))
    bench.submit()
    controller.decide_once()
    assert bench.wanted() == [0]
    bench.advance(controller.pool.interval_s)
    controller.decide_once()
    assert bench.wanted() == [0, 1]


# The log of decisions


def test_decision_is_recorded_when_the_number_changes_and_only_then(bench):
    controller = bench.controller()
    for submitted in (0, 0, 1, 0, 2, 0):
        bench.submit(submitted)
        controller.decide_once()
        bench.workers.register()
        bench.advance(1)
    assert bench.wanted() == [0, 1, 3]
    assert [decision.workers for decision in bench.decisions()] == [0, 0, 1]
    bench.submit(2)
    controller.decide_once()
    bench.submit(1)
    controller.decide_once()
    assert [(each.workers, each.wanted) for each in bench.decisions()[3:]] == [(3, 5), (5, 6)]


def test_decision_has_its_reason_and_figures(bench):
    controller = bench.controller("0..2")
    bench.advance(1)
    bench.submit(3)
    bench.advance(7)
    controller.decide_once()
    (decision,) = bench.decisions()
    assert (decision.pool, decision.workers, decision.wanted) == ("p", 0, 2)
    assert decision.reason == ("3 due and 0 running jobs, 1 for each worker; limited to the maximum of 2")
    assert decision.observed["due"] == 3
    assert decision.observed["oldest_seconds"] == 7.0
    assert decision.controller == bench.ledger.pools()[0].controller


def test_figures_have_the_rates_of_the_last_minutes(bench):
    controller = bench.controller()
    controller.decide_once()
    bench.submit(4)
    bench.advance(1)
    jobs = bench.claim("w", 4)
    bench.advance(2)
    bench.complete(*jobs)
    bench.advance(6.999)
    bench.submit(1)
    controller.decide_once()
    assert bench.decisions()[-1].observed["run_seconds"] is None
    bench.advance(0.001)
    bench.submit(1)
    controller.decide_once()
    observed = bench.decisions()[-1].observed
    assert (observed["run_seconds"], observed["arrivals_per_second"]) == (2.0, 0.6)


def test_new_controller_does_not_repeat_the_last_decision(bench):
    first = pool_of(bench, 2)
    first._release()
    second = bench.controller()
    second.decide_once()
    assert bench.wanted() == [2]
    bench.submit()
    second.decide_once()
    assert bench.wanted() == [2, 3]


def test_error_of_the_actuator_is_recorded_once_and_the_change_repeated(bench):
    controller = bench.controller()
    bench.submit()
    bench.workers.error = "no GPU is left"
    for _ in range(3):
        assert controller.decide_once()
        bench.advance(5)
    assert [decision.reason for decision in bench.decisions()] == [
        "1 due and 0 running jobs, 1 for each worker; not done: no GPU is left"
    ]
    assert bench.workers.scaled == [(1, ())] * 3
    bench.workers.error = "no disk is left"
    controller.decide_once()
    bench.workers.error = ""
    for _ in range(2):
        controller.decide_once()
    assert bench.wanted() == [1, 1, 1]
    assert [decision.reason.rpartition("; ")[2] for decision in bench.decisions()[1:]] == [
        "not done: no disk is left",
        "1 due and 0 running jobs, 1 for each worker",
    ]
    assert bench.workers.starting == ["w-01"]


def test_error_of_the_actuator_does_not_stop_drains(bench):
    controller = pool_of(bench, 1)
    bench.complete(*bench.claim("w-01"))
    bench.advance(1)
    controller.decide_once()
    bench.advance(WINDOW_S + 1)
    bench.workers.error = "broken"
    controller.decide_once()
    assert bench.draining() == {"w-01": "pool p"}


def test_workers_that_cannot_be_counted_end_the_round(bench):
    controller = bench.controller()
    bench.submit()
    bench.workers.members_error = ActuatorError("the cluster does not respond")
    with pytest.raises(ActuatorError, match="does not respond"):
        controller.decide_once()
    assert (bench.workers.scaled, bench.decisions()) == ([], [])
    bench.workers.members_error = None
    assert controller.decide_once()
    assert bench.wanted() == [1]


def test_change_that_failed_starts_no_cooldown(bench):
    controller = bench.controller(scale_out_cooldown_s=600.0)
    bench.submit()
    bench.workers.error = "no quota"
    controller.decide_once()
    bench.workers.error = ""
    bench.advance(5)
    controller.decide_once()
    assert bench.workers.starting == ["w-01"]
    bench.submit()
    controller.decide_once()
    assert bench.workers.starting == ["w-01"], "the change that was made starts one"


def test_pool_is_prepared_before_its_decision_is_published():
    """An autoscaler that follows the decision may remove workers at once."""
    bench = PoolBench(chooses=False)
    numbers = []
    scale = bench.workers.scale

    def scale_and_look(workers, ended=()):
        numbers.append((workers, bench.wanted()))
        scale(workers, ended)

    bench.workers.scale = scale_and_look
    controller = pool_of(bench, 2)
    bench.complete(*bench.claim("w-01", 2))
    controller.decide_once()
    bench.advance(WINDOW_S + 1)
    controller.decide_once()
    assert numbers == [(2, []), (2, [2]), (0, [2])]
    assert bench.wanted() == [2, 0]


@for_each(("scaled_by_others", "published"), [(True, 2), (False, 0)])
def test_removal_that_is_not_prepared_is_not_published_to_other_autoscalers(scaled_by_others, published):
    bench = PoolBench(chooses=False, scaled_by_others=scaled_by_others)
    controller = pool_of(bench, 2)
    bench.complete(*bench.claim("w-01", 2))
    controller.decide_once()
    bench.advance(WINDOW_S + 1)
    bench.workers.error = "the costs of pods cannot be set"
    controller.decide_once()
    decision = bench.decisions()[-1]
    assert (decision.workers, decision.wanted) == (2, published)
    assert decision.reason.endswith("; not done: the costs of pods cannot be set")
    bench.workers.error = ""
    controller.decide_once()
    assert bench.wanted() == [2, published, 0]


def test_drained_worker_stays_while_the_pool_is_not_prepared():
    bench = PoolBench(chooses=False, scaled_by_others=True)
    controller = pool_of(bench, 3)
    bench.complete(*bench.claim("w-01", 3))
    bench.ledger.set_worker_draining("w-03", draining=True, by="ops")
    bench.advance(1)
    assert bench.ledger.worker("w-03").state is WorkerState.DRAINED
    bench.workers.error = "the costs of pods cannot be set"
    controller.decide_once()
    assert (bench.workers.scaled[-1], bench.wanted()) == ((2, ()), [3, 3])


def test_addition_is_published_although_the_pool_is_not_prepared():
    bench = PoolBench(chooses=False, scaled_by_others=True)
    bench.submit(2)
    bench.workers.error = "the costs of pods cannot be set"
    bench.controller().decide_once()
    assert bench.wanted() == [2]


# Outages of the ledger


def unavailable(*_, **__):
    raise JobLedgerUnavailableError("the ledger does not respond")


@for_each("operation", ["workers", "queue", "counts", "counters", "now_ms", "set_worker_draining"])
def test_outage_of_the_ledger_changes_no_worker(operation):
    bench = PoolBench()
    ledger = bench.new_ledger()
    controller = pool_of(bench, 2, ledger=ledger, interval_s=60.0)
    bench.complete(*bench.claim("w-01", 2))
    bench.advance(1)
    controller.decide_once()
    bench.advance(WINDOW_S + 1)
    scaled, recorded = list(bench.workers.scaled), bench.decisions()
    setattr(ledger, operation, unavailable)
    for _ in range(2):
        with pytest.raises(JobLedgerUnavailableError):
            controller.decide_once()
    assert (bench.workers.scaled, bench.draining(), bench.decisions()) == (scaled, {}, recorded)
    delattr(ledger, operation)
    assert controller.decide_once()
    assert len(bench.draining()) == 2


def test_outage_before_the_lease_changes_no_worker(bench):
    ledger = bench.new_ledger()
    controller = bench.controller(ledger=ledger)
    bench.submit()
    ledger.unavailable = True
    with pytest.raises(JobLedgerUnavailableError):
        controller.decide_once()
    assert bench.workers.scaled == []
    ledger.unavailable = False
    assert controller.decide_once()


def test_decision_that_could_not_be_recorded_is_recorded_later(bench):
    ledger = bench.new_ledger()
    controller = bench.controller(ledger=ledger)
    bench.submit()
    ledger.record_decision = unavailable
    with pytest.raises(JobLedgerUnavailableError):
        controller.decide_once()
    assert bench.workers.starting == ["w-01"]
    del ledger.record_decision
    controller.decide_once()
    assert bench.wanted() == [1]


# The service


def test_thread_makes_a_round_for_a_new_job_at_once(bench):
    controller = bench.controller(interval_s=60.0)
    controller.start()
    bench.workers.wait_for_scale(0)
    bench.clock.wait_for_sleepers()
    bench.submit()
    bench.clock.advance(0.2)
    bench.workers.wait_for_scale(1)
    controller.stop()


def test_thread_leaves_a_gap_between_two_rounds(bench):
    controller = bench.controller(interval_s=60.0)
    controller.start()
    bench.workers.wait_for_scale(0)
    bench.clock.wait_for_sleepers()
    bench.submit()
    bench.clock.advance(0.199)
    controller.stop()
    assert [workers for workers, _ in bench.workers.scaled] == [0]
    assert bench.clock.slept_s == (0.2,)


def test_steady_number_is_recorded_once_a_day(bench):
    """The log keeps decisions for 30 days, and always has the last one of a pool."""
    controller = bench.controller()
    for _ in range(9):
        controller.decide_once()
        bench.advance(86_400 / 4)
    assert bench.wanted() == [0] * 3


def test_slow_rounds_take_a_tenth_of_the_time(bench):
    """A slow ledger is not read all the time, however many jobs arrive."""
    ledger = bench.new_ledger()

    def workers():
        bench.clock.advance(0.1)
        return bench.ledger.workers()

    ledger.workers = workers
    controller = bench.controller(ledger=ledger)
    controller.start()
    bench.workers.wait_for_scale(0)
    bench.clock.wait_for_sleepers()
    controller.stop()
    assert bench.clock.slept_s == (pytest.approx(1.0),)


def test_stopped_controller_gives_its_lease_back(bench):
    first, second = bench.controller(), bench.controller()
    first.start()
    bench.workers.wait_for_scale(0)
    first.stop()
    assert second.decide_once()


def test_stop_ends_the_wait_for_jobs(bench):
    ledger = bench.new_ledger()
    waits = threading.Event()

    def wakeup(queues):
        found = bench.ledger.wakeup(queues)
        wait = found.wait

        def wait_for_jobs(timeout_s):
            waits.set()
            return wait(timeout_s)

        found.wait = wait_for_jobs
        return found

    ledger.wakeup = wakeup
    controller = bench.controller(ledger=ledger, interval_s=60.0)
    controller.start()
    bench.clock.wait_for_sleepers()
    bench.clock.advance(0.2)
    assert waits.wait(WAIT_S)
    controller.stop()
    assert not controller._thread.is_alive()


@for_each(("drain", "last"), [(True, "stop"), (False, "stop at once")])
def test_stop_ends_the_actuator_after_the_rounds(drain, last):
    bench = PoolBench()
    controller = bench.controller()
    controller.start()
    bench.workers.wait_for_scale(0)
    controller.stop(drain=drain)
    assert bench.workers.lifecycle == ["start", last]
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-scaling"]


def test_stop_during_an_outage_succeeds(bench, caplog):
    ledger = bench.new_ledger()
    controller = bench.controller(ledger=ledger)
    controller.start()
    bench.workers.wait_for_scale(0)
    ledger.unavailable = True
    with caplog.at_level(logging.WARNING, "headrace.scaling"):
        controller.stop()
    assert "the lease could not be given back" in caplog.text
    assert bench.workers.lifecycle == ["start", "stop"]


def test_thread_survives_outages_and_faults(bench, caplog):
    ledger = bench.new_ledger()
    controller = bench.controller(ledger=ledger, interval_s=60.0)
    ledger.control_pool = unavailable
    with caplog.at_level(logging.WARNING, "headrace.scaling"):
        controller.start()
        bench.clock.wait_for_sleepers()
        del ledger.control_pool
        failed = threading.Event()
        found = bench.workers.members

        def fail_once(records) -> Members:
            bench.workers.members = found
            failed.set()
            raise RuntimeError("a bug")

        bench.workers.members = fail_once
        bench.submit()
        bench.clock.advance(0.2)
        assert failed.wait(WAIT_S)
        bench.clock.wait_for_sleepers()
        bench.submit()
        bench.clock.advance(0.2)
        bench.workers.wait_for_scale(2)
        controller.stop()
    assert "pool p: the ledger does not respond" in caplog.text
    assert "pool p: the round failed" in caplog.text
    assert "a bug" in caplog.text


def test_start_without_the_ledger_stops_the_actuator(bench):
    ledger = bench.new_ledger()
    ledger.wakeup = unavailable
    controller = bench.controller(ledger=ledger)
    with pytest.raises(JobLedgerUnavailableError):
        controller.start()
    assert bench.workers.lifecycle == ["start", "stop at once"]
    del ledger.wakeup
    controller.start()
    controller.stop()
    assert bench.workers.lifecycle == ["start", "stop at once", "start", "stop"]


def test_waiter_of_the_ledger_is_closed(bench):
    ledger = bench.new_ledger()
    controller = bench.controller(ledger=ledger)
    controller.start()
    assert len(ledger._table.listeners) == 1
    controller.stop()
    assert ledger._table.listeners == []


def test_controller_is_a_service():
    ledger = MemoryJobLedger(ManualWallClock())
    ledger.start()
    check_service(lambda: ScalingController(ledger, RegistryWorkers(ledger), PoolSettings()))


# The actuator of these tests


def test_actuator_of_the_tests_keeps_the_contract(bench):
    check_service(lambda: RegistryWorkers(bench.ledger))
    workers = bench.workers
    workers.scale(3)
    assert workers.members(bench.ledger.workers()) == Members((), 3)
    workers.register(2)
    bench.ledger.register_worker(workers._info("stranger"))
    found = workers.members(bench.ledger.workers())
    assert ([each.info.name for each in found.registered], found.starting) == (["w-01", "w-02"], 1)
    workers.scale(0)
    assert workers.members(bench.ledger.workers()).count == 3
    workers.scale(2, [bench.ledger.worker("w-01")])
    bench.wall.advance(LEASE_MS)
    found = workers.members(bench.ledger.workers())
    assert ([each.info.name for each in found.registered], found.starting) == (["w-02"], 1)
    assert bench.ledger.worker("w-01").state is WorkerState.STOPPED


@for_each("cooldown", ["scale_out_cooldown_s", "scale_in_cooldown_s"])
def test_cooldown_of_a_pool_that_others_scale_is_refused(cooldown):
    """It would keep a number of workers that changes later than the decision."""
    bench = PoolBench(chooses=False)
    bench.controller(**{cooldown: 1.0})
    bench.workers.scaled_by_others = True
    with pytest.raises(ConfigError, match="pool p: cooldowns need a pool that this controller scales"):
        bench.controller(**{cooldown: 1.0})
