"""Autoscalers over hours of work: waking, steady load, bursts, office hours, targets, and failures."""

from functools import partial

import pytest

from headrace.jobs.worker_registry import WorkerInfo, WorkerState
from headrace.scaling.actuators.publish import PublishOnly
from headrace.scaling.settings import PoolSettings, WorkerRange
from scaling.simulation.autoscalers import POLL_S, SYNC_S, KedaScaler
from scaling.simulation.cluster import HEARTBEAT_S, LEASE_MS, QUEUE, Cluster
from scaling.simulation.control import (
    ControllerRun,
    CostsActuator,
    GroupActuator,
    PodActuator,
    ReplicasActuator,
    backlog,
    following_keda,
    queued,
    read,
    run_keda,
    wanted,
)
from scaling.simulation.loads import HOUR_S, bursts, exponential, office_hours, poisson

MOST = 20
STARTUP_S = 30.0
WINDOW_S = 300.0
RUN_S = 300.0
"""Mean run time of the jobs."""
MINUTE_S = 60.0
ROUND_GAP_S = 0.2
"""Least seconds between two rounds of a controller."""


def steady():
    return poisson(1 / MINUTE_S, 0.0, 4 * HOUR_S)


def bursts_of_12(from_s=0.0):
    return bursts(12, 20 * MINUTE_S, 4 * HOUR_S, from_s=from_s)


def pool_of(cluster_slots, *, most=MOST, **settings):
    return PoolSettings(workers=WorkerRange(0, most), slots=cluster_slots, **settings)


def finish(cluster, *, limit_s=30 * HOUR_S):
    """Run until all jobs have completed, and the pool had the time to shrink."""
    cluster.run_until_done(limit_s)
    cluster.run_until(cluster.now_s + 2 * WINDOW_S)


def run_headrace(times_s, *, slots=1, actuator=PodActuator, run_s=RUN_S, **settings):
    """Return the cluster after a run with the controller of headrace."""
    cluster = Cluster(slots=slots)
    cluster.submit_at(times_s, exponential(run_s))
    ControllerRun(cluster, pool_of(slots, **settings), actuator(cluster))
    finish(cluster)
    return cluster


def run_with_keda(times_s, metric, *, slots=1, **options):
    """Return the cluster after a run with KEDA, with a target of the slots."""
    cluster = Cluster(slots=slots, **options)
    cluster.submit_at(times_s, exponential(RUN_S))
    run_keda(cluster, KedaScaler(0, MOST, slots), metric)
    finish(cluster)
    return cluster


# KEDA over the numbers of headrace


def test_keda_wakes_the_pool_from_zero_within_one_poll():
    cluster = Cluster()
    run_keda(cluster, KedaScaler(0, MOST, 1), backlog)
    cluster.run_until(1_001.0)
    assert cluster.largest == 0
    cluster.submit(60.0, 5)
    cluster.run_until(1_001.0 + POLL_S)
    assert cluster.replicas >= 1


def test_keda_does_not_oscillate_under_steady_load():
    """Arrivals of Poisson make the load itself turn. The recipe makes the pool turn far more often."""
    counted = run_with_keda(steady(), backlog, busy_costs=True)
    recipe = run_with_keda(steady(), queued, busy_costs=True)
    assert (counted.killed, counted.replicas) == (0, 0)
    assert counted.direction_changes <= 4 * HOUR_S / WINDOW_S
    assert recipe.direction_changes > 1.5 * counted.direction_changes
    assert recipe.killed > 50


def test_keda_with_deletion_costs_and_a_target_of_the_slots_kills_no_busy_worker():
    for times_s in (steady(), bursts_of_12()):
        cluster = run_with_keda(times_s, backlog, busy_costs=True)
        assert (cluster.killed, cluster.wasted_s) == (0, 0.0)
        assert cluster.largest <= MOST


def test_keda_without_deletion_costs_kills_busy_workers():
    assert run_with_keda(steady(), backlog).killed > 10


def test_keda_by_queued_jobs_never_completes_a_job_longer_than_its_cooldown():
    """A job that runs is no longer queued, so KEDA ends its pod (keda#5948)."""
    cluster = Cluster()
    run_keda(cluster, KedaScaler(0, MOST, 1), queued)
    cluster.submit(20 * MINUTE_S)
    cluster.run_until(6 * HOUR_S)
    assert not cluster.is_done()
    assert cluster.killed > 20


@pytest.mark.parametrize("with_jobs", [True, False])
def test_keda_leaves_the_replicas_alone_in_an_outage_of_the_ledger(with_jobs):
    cluster = Cluster()
    run_keda(cluster, KedaScaler(0, MOST, 1), backlog)
    cluster.submit(HOUR_S if with_jobs else 10.0, 5)
    cluster.run_until(150.0)
    before = cluster.replicas
    cluster.control_ledger.unavailable = True
    cluster.run_until(2_000.0)
    assert before == cluster.replicas == 5
    cluster.control_ledger.unavailable = False
    cluster.run_until(2_000.0 + 2 * WINDOW_S)
    assert cluster.replicas == (5 if with_jobs else 0)


# KEDA by the decision of headrace


def follow(cluster, *, pool=None, actuator=None, window_s=0.0):
    """Let KEDA scale a cluster by the decisions of a controller. Return the controller."""
    controller = ControllerRun(cluster, pool or pool_of(cluster.slots), actuator or CostsActuator(cluster))
    run_keda(cluster, following_keda(MOST, window_s), wanted)
    return controller


def run_following(times_s, *, slots=1, actuator=None, window_s=0.0, seed=1):
    """Return the cluster after a run with KEDA by the decisions of headrace."""
    cluster = Cluster(slots=slots, seed=seed)
    cluster.submit_at(times_s, exponential(RUN_S, seed=seed + 1))
    follow(cluster, actuator=actuator, window_s=window_s)
    finish(cluster)
    cluster.run_until(cluster.now_s + window_s)
    return cluster


def test_keda_by_the_decision_wakes_the_pool_from_zero_within_one_poll():
    cluster = Cluster()
    follow(cluster)
    cluster.run_until(1_001.0)
    assert cluster.largest == 0
    cluster.submit(60.0, 5)
    cluster.run_until(1_001.0 + POLL_S)
    assert cluster.replicas >= 1
    cluster.run_until(1_001.0 + POLL_S + SYNC_S)
    assert cluster.replicas == 5


@pytest.mark.parametrize("window_s", [0.0, WINDOW_S])
@pytest.mark.parametrize("slots", [1, 4])
def test_keda_by_the_decision_kills_no_worker_under_steady_load_and_does_not_oscillate(slots, window_s):
    cluster = run_following(steady(), slots=slots, window_s=window_s)
    assert (cluster.killed, cluster.wasted_s, cluster.replicas) == (0, 0.0, 0)
    assert cluster.direction_changes <= 4 * HOUR_S / WINDOW_S
    assert cluster.largest <= MOST


@pytest.mark.parametrize("window_s", [0.0, WINDOW_S])
@pytest.mark.parametrize("slots", [1, 4])
def test_keda_by_the_decision_kills_no_worker_of_a_burst(slots, window_s):
    """The bursts come at various times between two decisions of KEDA and its HPA."""
    for seed, from_s in enumerate((0.001, 4.0, 14.999), start=1):
        times_s = bursts_of_12(from_s)
        cluster = run_following(times_s, slots=slots, window_s=window_s, seed=seed)
        assert (cluster.killed, cluster.wasted_s, cluster.replicas) == (0, 0.0, 0)
        assert cluster.direction_changes <= 2 * len(set(times_s))
        assert cluster.largest <= MOST


def test_keda_by_the_decision_kills_busy_workers_without_deletion_costs():
    assert run_following(bursts_of_12(4.0), slots=4, actuator=PublishOnly()).killed > 10


@pytest.mark.parametrize(
    ("earlier_s", "grace_s", "killed"), [(0.0, 30.0, 1), (0.0, HOUR_S, 0), (ROUND_GAP_S, 30.0, 0)]
)
def test_job_that_begins_in_the_moment_of_a_removal_needs_the_grace_period(earlier_s, grace_s, killed):
    """No published number can be new enough for a job that begins after KEDA has read it."""
    cluster = Cluster(grace_s=grace_s)
    follow(cluster)
    cluster.submit(100.0)
    removed_s = 480.0
    cluster.submit_at([removed_s - earlier_s], lambda: 600.0)
    cluster.run_until(removed_s - 1.0)
    assert (cluster.replicas, read(cluster, wanted)) == (1, 0)
    finish(cluster)
    assert (cluster.killed, cluster.replicas) == (killed, 0)


def test_worker_that_an_operator_drains_is_replaced_and_ends_after_its_job():
    cluster = Cluster()
    follow(cluster, pool=pool_of(1, most=3))
    cluster.submit(HOUR_S, 4)
    cluster.run_until(120.0)
    drained = next(pod for pod in cluster.active if pod.running).name
    cluster.ledger.set_worker_draining(drained, draining=True, by="ops")
    cluster.run_until(300.0)
    assert (cluster.replicas, len(cluster.waits_s())) == (4, 4)
    cluster.run_until(HOUR_S + 2 * MINUTE_S)
    assert drained not in [pod.name for pod in cluster.active]
    finish(cluster)
    assert (cluster.killed, cluster.largest, cluster.replicas) == (0, 4, 0)


def test_keda_keeps_its_replicas_after_the_controller_died_and_follows_the_next_one():
    cluster = Cluster()
    controller = follow(cluster)
    cluster.submit(100.0, 5)
    cluster.run_until(200.0)
    controller.die()
    cluster.run_until(HOUR_S)
    assert (cluster.is_done(), cluster.replicas, read(cluster, wanted)) == (True, 5, None)
    ControllerRun(cluster, pool_of(1), CostsActuator(cluster))
    cluster.submit(100.0, 7)
    cluster.run_until(HOUR_S + POLL_S)
    assert cluster.replicas == 7
    finish(cluster)
    assert (cluster.killed, cluster.replicas) == (0, 0)


def test_controller_that_dies_while_keda_follows_is_replaced_after_its_lease():
    cluster = Cluster()
    first = follow(cluster)
    second = ControllerRun(cluster, pool_of(1), CostsActuator(cluster))
    cluster.submit(HOUR_S, 3)
    cluster.run_until(600.0)
    first.die()
    cluster.submit(MINUTE_S, 4)
    cluster.run_until(600.0 + 9.0)
    assert (second.rounds, read(cluster, wanted)) == (0, 3)
    cluster.run_until(600.0 + 10.0 + POLL_S)
    assert (second.rounds > 0, read(cluster, wanted), cluster.replicas) == (True, 7, 7)
    finish(cluster)
    assert (cluster.killed, cluster.replicas) == (0, 0)


@pytest.mark.parametrize("with_jobs", [True, False])
def test_keda_by_the_decision_leaves_the_replicas_alone_in_an_outage_of_the_ledger(with_jobs):
    cluster = Cluster()
    follow(cluster)
    cluster.submit(HOUR_S if with_jobs else 10.0, 5)
    cluster.run_until(150.0)
    cluster.control_ledger.unavailable = True
    cluster.run_until(2_000.0)
    assert cluster.replicas == 5
    cluster.control_ledger.unavailable = False
    cluster.run_until(2_000.0 + 2 * WINDOW_S)
    assert (cluster.killed, cluster.replicas) == (0, 5 if with_jobs else 0)


# The controller of headrace


@pytest.mark.parametrize("interval_s", [5.0, 60.0])
def test_controller_wakes_the_pool_from_zero_at_once(interval_s):
    cluster = Cluster()
    ControllerRun(cluster, pool_of(1, interval_s=interval_s))
    cluster.run_until(1_001.0)
    assert cluster.largest == 0
    cluster.submit(60.0, 5)
    cluster.run_until(1_002.0)
    assert cluster.replicas == 5
    finish(cluster)
    assert (cluster.waits_s()[-1] <= STARTUP_S + 1.0, cluster.replicas) == (True, 0)


def test_last_worker_goes_a_window_after_the_last_job():
    cluster = Cluster()
    ControllerRun(cluster, pool_of(1))
    cluster.submit(60.0)
    cluster.run_until_done(HOUR_S)
    ended_s = cluster.now_s
    cluster.run_until(ended_s + WINDOW_S - 6.0)
    assert cluster.replicas == 1
    cluster.run_until(ended_s + WINDOW_S + 11.0)
    assert cluster.replicas == 0


@pytest.mark.parametrize("actuator", [PodActuator, ReplicasActuator])
@pytest.mark.parametrize("slots", [1, 4])
def test_steady_load_makes_no_oscillation_and_kills_no_worker(slots, actuator):
    cluster = run_headrace(steady(), slots=slots, actuator=actuator)
    assert (cluster.killed, cluster.wasted_s, cluster.replicas) == (0, 0.0, 0)
    assert cluster.direction_changes <= 4 * HOUR_S / WINDOW_S
    assert cluster.largest <= MOST
    assert cluster.waits_s()[-1] <= STARTUP_S + 1.0


@pytest.mark.parametrize("actuator", [PodActuator, ReplicasActuator])
@pytest.mark.parametrize("slots", [1, 4])
def test_each_burst_turns_the_pool_at_most_twice(slots, actuator):
    times_s = bursts_of_12()
    cluster = run_headrace(times_s, slots=slots, actuator=actuator)
    assert (cluster.killed, cluster.wasted_s, cluster.replicas) == (0, 0.0, 0)
    assert cluster.direction_changes <= 2 * len(set(times_s))
    assert cluster.largest <= MOST


def test_draining_workers_claim_again_before_new_ones_start():
    cluster = Cluster(slots=2)
    ControllerRun(cluster, pool_of(2))
    for run_s in (HOUR_S, 10.0, HOUR_S, 10.0):
        cluster.submit(run_s)
    cluster.run_until(WINDOW_S + 60.0)
    states = sorted(record.state for record in cluster.ledger.workers())
    assert (states, cluster.replicas) == ([WorkerState.DRAINING, WorkerState.RUNNING], 2)
    cluster.submit(10.0, 4)
    cluster.run_until(WINDOW_S + 61.0)
    states = [record.state for record in cluster.ledger.workers()]
    assert (states, cluster.replicas) == ([WorkerState.RUNNING] * 2, 3)


def test_burst_above_the_maximum_uses_exactly_the_maximum():
    cluster = run_headrace([0.0] * 70, slots=1)
    assert (cluster.largest, cluster.killed, cluster.replicas) == (MOST, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 4])
def test_office_hours_keep_few_workers_at_night(slots):
    cluster = run_headrace(office_hours(1, 1 / MINUTE_S), slots=slots, interval_s=20.0)
    assert (cluster.killed, cluster.wasted_s, cluster.replicas) == (0, 0.0, 0)
    assert cluster.largest <= MOST
    assert cluster.direction_changes <= 24 * HOUR_S / WINDOW_S / 2
    offered_hours = len(cluster.jobs) * RUN_S / 3600 / slots
    assert cluster.worker_hours <= (1.7 if slots == 1 else 2.2) * offered_hours


def test_deployment_kills_no_worker_although_it_prefers_pods_that_start():
    """A ReplicaSet ends pods that start before drained ones. They are started again if they are needed."""
    cluster = Cluster(startup_s=120.0)
    cluster.submit_at(bursts(6, 130.0, HOUR_S), exponential(60.0))
    ControllerRun(cluster, pool_of(1, scale_in_window_s=10.0), ReplicasActuator(cluster))
    finish(cluster)
    assert (cluster.killed, cluster.replicas) == (0, 0)


def test_pool_that_cannot_choose_never_has_fewer_workers_than_busy_ones():
    numbers = []

    class Recorded(GroupActuator):
        def scale(self, workers, ended=()):
            assert ended == ()
            numbers.append((workers, sum(bool(pod.running) for pod in cluster.active)))
            super().scale(workers)

    cluster = Cluster(slots=4)
    cluster.submit_at(bursts_of_12(), exponential(RUN_S))
    ControllerRun(cluster, pool_of(4), Recorded(cluster))
    finish(cluster)
    assert all(workers >= busy for workers, busy in numbers)
    assert cluster.replicas == 0


# Targets of waiting times

TARGETS = {
    "steady": (partial(steady), 1, RUN_S, 600.0),
    "steady, 4 slots": (partial(steady), 4, RUN_S, 600.0),
    "bursts": (partial(bursts_of_12), 1, RUN_S, 600.0),
    "bursts, 4 slots": (partial(bursts_of_12), 4, RUN_S, 600.0),
    "short jobs": (partial(poisson, 1 / 10, 0.0, 2 * HOUR_S), 1, MINUTE_S, 600.0),
    "short target": (partial(steady), 1, RUN_S, MINUTE_S),
}
SLOW_TARGETS = sorted(TARGETS.keys() - {"steady, 4 slots"})


@pytest.mark.parametrize(
    "case", ["steady, 4 slots", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_TARGETS)]
)
def test_target_wait_is_met_with_fewer_worker_hours_than_the_default(case):
    load, slots, run_s, target_s = TARGETS[case]
    default = run_headrace(load(), slots=slots, run_s=run_s)
    targeted = run_headrace(load(), slots=slots, run_s=run_s, target_wait_s=target_s)
    waits_s = targeted.waits_s()
    assert waits_s[int(0.95 * len(waits_s))] <= target_s + STARTUP_S
    share = 0.85 if target_s == 600.0 else 0.97
    assert targeted.worker_hours <= share * default.worker_hours
    assert (targeted.killed, targeted.replicas) == (0, 0)
    assert targeted.largest <= default.largest


def test_target_wait_follows_a_load_that_grows_tenfold():
    times_s = [*poisson(1 / 300, 0.0, HOUR_S), *poisson(1 / 30, HOUR_S, 3 * HOUR_S)]
    cluster = run_headrace(times_s, target_wait_s=600.0)
    waits_s = cluster.waits_s()
    assert waits_s[int(0.95 * len(waits_s))] <= 600.0 + STARTUP_S
    assert cluster.largest <= MOST


# Failures


def test_controller_that_dies_is_replaced_after_its_lease():
    cluster = Cluster()
    pool = pool_of(1)
    first, second = (ControllerRun(cluster, pool) for _ in range(2))
    cluster.submit(HOUR_S, 3)
    cluster.run_until(600.0)
    assert (first.rounds > 50, second.rounds, cluster.replicas) == (True, 0, 3)
    first.die()
    cluster.submit(60.0, 4)
    cluster.run_until(600.0 + 10.0 + 5.0)
    assert (second.rounds > 0, cluster.replicas) == (True, 7)
    finish(cluster)
    assert (cluster.killed, cluster.replicas) == (0, 0)


def test_new_controller_removes_nothing_for_one_window():
    cluster = Cluster()
    pool = pool_of(1)
    first = ControllerRun(cluster, pool)
    cluster.submit(60.0, 5)
    cluster.run_until_done(HOUR_S)
    first.die()
    cluster.run_until(cluster.now_s + HOUR_S)
    assert cluster.replicas == 5
    ControllerRun(cluster, pool)
    began_s = cluster.now_s
    cluster.run_until(began_s + WINDOW_S - 10.0)
    assert cluster.replicas == 5
    cluster.run_until(began_s + WINDOW_S + 30.0)
    assert cluster.replicas == 0


def test_controller_changes_no_worker_in_an_outage_of_the_ledger():
    cluster = Cluster()
    ControllerRun(cluster, pool_of(1))
    cluster.submit(10.0, 5)
    cluster.run_until(150.0)
    cluster.control_ledger.unavailable = True
    cluster.run_until(2_000.0)
    assert cluster.replicas == 5
    cluster.control_ledger.unavailable = False
    cluster.run_until(2_000.0 + 2 * WINDOW_S)
    assert cluster.replicas == 0


def test_killed_workers_are_replaced_and_their_jobs_complete():
    cluster = Cluster()
    ControllerRun(cluster, pool_of(1))
    cluster.submit(600.0, 5)
    cluster.run_until(300.0)
    for pod in cluster.active[:3]:
        cluster.crash(pod.name)
    finish(cluster, limit_s=300.0 + 600.0 + 2 * 60.0 + STARTUP_S)
    assert cluster.replicas == 0


UNCLAIMED_S = 10.0 + STARTUP_S + 6.0
"""Waiting time of jobs that other workers seem to have slots for, and do not take."""


def test_slots_of_dead_workers_delay_no_new_worker_until_their_leases_end():
    cluster = Cluster()
    ControllerRun(cluster, pool_of(1))
    cluster.submit(10.0, 5)
    cluster.run_until(100.0)
    for pod in cluster.active:
        cluster.crash(pod.name)
    cluster.submit(10.0, 5)
    finish(cluster)
    assert cluster.waits_s()[-1] <= UNCLAIMED_S


def test_slots_of_workers_that_end_slowly_delay_no_new_worker():
    """A rollout ends a worker, which completes its job first: it takes no others."""
    cluster = Cluster(slots=8, grace_s=HOUR_S)
    ControllerRun(cluster, pool_of(8))
    cluster.submit(1_200.0)
    cluster.run_until(100.0)
    cluster.terminate(cluster.active[0].name)
    cluster.submit(10.0, 7)
    finish(cluster)
    assert cluster.waits_s()[-1] <= UNCLAIMED_S
    assert cluster.killed == 0


def test_slots_of_workers_of_another_region_delay_no_new_worker():
    cluster = Cluster()
    abroad = WorkerInfo("abroad", queues=(QUEUE,), slots=8, region="us-east-1")
    cluster.ledger.register_worker(abroad)
    cluster.every(HEARTBEAT_S, lambda: cluster.ledger.heartbeat("abroad", [], LEASE_MS))
    ControllerRun(cluster, pool_of(1))
    cluster.submit(10.0, 5)
    finish(cluster, limit_s=HOUR_S)
    assert cluster.waits_s()[-1] <= UNCLAIMED_S
