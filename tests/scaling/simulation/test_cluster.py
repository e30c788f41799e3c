"""The simulated cluster: its pods behave as workers and as pods do."""

import pytest

from headrace.jobs.state import JobState
from headrace.jobs.worker_registry import WorkerState
from headrace.scaling.settings import PoolSettings
from scaling.simulation.cluster import QUEUE, Cluster
from scaling.simulation.control import (
    ControllerRun,
    CostsActuator,
    PodActuator,
    backlog,
    queued,
    read,
    wanted,
)
from scaling.simulation.loads import bursts, exponential, office_hours, poisson


def counts(cluster):
    found = cluster.ledger.counts(QUEUE)
    return found.due, found.running


def test_pods_claim_after_their_start_and_settle_after_the_run_time():
    cluster = Cluster()
    cluster.submit(100.0, 3)
    cluster.start_pods(2)
    cluster.run_until(29.0)
    assert (counts(cluster), cluster.ledger.workers()) == ((3, 0), [])
    cluster.run_until(30.0)
    assert counts(cluster) == (1, 2)
    cluster.run_until_done(1000.0)
    assert (cluster.makespan_s, cluster.waits_s()) == (230.0, [30.0, 30.0, 130.0])
    assert cluster.worker_hours == pytest.approx(2 * 230 / 3600)


def test_pods_claim_new_jobs_at_once():
    cluster = Cluster(slots=2)
    cluster.start_pods(1)
    cluster.run_until(60.0)
    cluster.submit(100.0, 3)
    cluster.run_until(60.0)
    assert counts(cluster) == (1, 2)


def test_heartbeats_keep_the_leases_of_long_jobs():
    cluster = Cluster()
    cluster.submit(3600.0)
    cluster.start_pods(1)
    cluster.run_until_done(4000.0)
    assert cluster.makespan_s == 3630.0


def test_terminated_pod_completes_jobs_within_its_grace_period():
    cluster = Cluster(grace_s=60.0)
    cluster.submit(100.0, 2)
    cluster.start_pods(1)
    cluster.run_until(90.0)
    cluster.set_replicas(0)
    cluster.run_until(1000.0)
    assert (cluster.killed, cluster.replicas, counts(cluster)) == (0, 0, (1, 0))
    assert cluster.worker_hours == pytest.approx(130 / 3600)
    assert [record.state for record in cluster.ledger.workers()] == [WorkerState.STOPPED]


def test_killed_pod_returns_its_jobs_to_the_queue():
    cluster = Cluster()
    cluster.submit(100.0)
    cluster.start_pods(1)
    cluster.run_until(60.0)
    cluster.set_replicas(0)
    cluster.run_until(90.0)
    assert (cluster.killed, cluster.wasted_s, counts(cluster)) == (1, 60.0, (1, 0))
    cluster.set_replicas(1)
    cluster.run_until_done(300.0)
    assert cluster.makespan_s == 90 + 30 + 100


def test_job_of_a_pod_that_dies_silently_returns_with_the_end_of_its_lease():
    cluster = Cluster(returns_jobs=False)
    cluster.submit(100.0)
    cluster.start_pods(1)
    cluster.run_until(60.0)
    cluster.set_replicas(0)
    cluster.run_until(134.0)
    assert (cluster.killed, counts(cluster)) == (1, (0, 1))
    cluster.run_until(137.0)
    assert counts(cluster) == (1, 0)
    (job,) = cluster.ledger.get_many(["job-000000"]).values()
    assert (job.state, job.crashes) == (JobState.PENDING, 1)


def test_pod_that_drains_claims_nothing_and_confirms_at_once():
    cluster = Cluster()
    cluster.start_pods(1)
    cluster.run_until(40.0)
    cluster.ledger.set_worker_draining("pod-0001", draining=True)
    cluster.submit(10.0)
    cluster.run_until(50.0)
    assert cluster.ledger.worker("pod-0001").state is WorkerState.DRAINED
    assert counts(cluster) == (1, 0)
    cluster.ledger.set_worker_draining("pod-0001", draining=False)
    cluster.run_until_done(70.0)


def test_pods_that_are_not_ready_are_deleted_first():
    cluster = Cluster()
    cluster.start_pods(2)
    cluster.run_until(40.0)
    cluster.set_replicas(4)
    cluster.set_replicas(2)
    assert [pod.name for pod in cluster.active] == ["pod-0001", "pod-0002"]


def test_pods_with_the_lowest_deletion_cost_are_deleted_first():
    cluster = Cluster()
    cluster.start_pods(3)
    cluster.run_until(40.0)
    cluster.active[0].deletion_cost = -1
    cluster.set_replicas(2)
    assert [pod.name for pod in cluster.active] == ["pod-0002", "pod-0003"]


def test_much_younger_pods_are_deleted_before_older_ones():
    cluster = Cluster()
    cluster.start_pods(2)
    cluster.run_until(1000.0)
    cluster.start_pods(2)
    cluster.run_until(1040.0)
    cluster.set_replicas(2)
    assert [pod.name for pod in cluster.active] == ["pod-0001", "pod-0002"]


def test_direction_changes_count_turns_of_the_number_of_pods():
    cluster = Cluster()
    for at_s, count in enumerate([1, 3, 5, 2, 1, 4, 4, 5], start=1):
        cluster.run_until(float(at_s))
        cluster.set_replicas(count)
    assert (cluster.direction_changes, cluster.largest) == (2, 5)


def test_metrics_are_those_of_the_ledger_and_none_in_an_outage():
    cluster = Cluster()
    cluster.submit(100.0, 3)
    cluster.start_pods(1)
    cluster.run_until(60.0)
    assert [read(cluster, metric) for metric in (queued, backlog, wanted)] == [2, 3, None]
    controller = ControllerRun(cluster, PoolSettings(slots=1), CostsActuator(cluster))
    cluster.run_until(61.0)
    assert read(cluster, wanted) == 3
    controller.die()
    cluster.run_until(75.0)
    assert read(cluster, wanted) is None
    cluster.control_ledger.unavailable = True
    assert read(cluster, queued) is None


def test_simulation_is_reproducible():
    def sizes():
        cluster = Cluster(slots=2)
        cluster.submit_at(poisson(1 / 30, 0.0, 3600.0), exponential(200.0))
        ControllerRun(cluster, PoolSettings(slots=2), PodActuator(cluster))
        cluster.run_until_done(7200.0)
        return cluster.sizes, cluster.waits_s(), cluster.worker_hours

    assert sizes() == sizes()


def test_loads_have_their_rates():
    assert len(poisson(0.1, 100.0, 10_100.0)) == pytest.approx(1000, rel=0.1)
    assert bursts(2, 60.0, 120.0) == [0.0, 0.0, 60.0, 60.0, 120.0, 120.0]
    by_day = office_hours(1, 1 / 60)
    assert sum(8 * 3600 <= at_s < 18 * 3600 for at_s in by_day) > 0.9 * len(by_day)
