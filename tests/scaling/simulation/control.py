"""The autoscalers at work on a cluster: the HPA, KEDA, and the controller of headrace."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from typing_extensions import override

from headrace.core.errors import HeadraceError
from headrace.jobs.pools import published_decision
from headrace.jobs.worker_registry import WorkerRecord, WorkerState
from headrace.scaling.actuator import Actuator, Members
from headrace.scaling.controller import LEASE_S, ScalingController
from headrace.scaling.settings import POOL_DEFAULT, PoolSettings
from scaling.simulation.autoscalers import DOWN, POLL_S, SYNC_S, HorizontalPodAutoscaler, KedaScaler
from scaling.simulation.cluster import QUEUE, Cluster

Metric = Callable[[Cluster], float]
"""Reads a number from the ledger of a cluster. It raises HeadraceError in an outage."""
_GAP_S = 0.2
"""Least seconds between two rounds of a controller, as in `ScalingController`."""
_RENEW_S = LEASE_S / 3


def queued(cluster: Cluster) -> float:
    """Return the queued jobs: the metric of the usual recipe."""
    return cluster.control_ledger.counts(QUEUE).due


def backlog(cluster: Cluster) -> float:
    """Return the queued and running jobs."""
    return cluster.control_ledger.counts(QUEUE).backlog


def wanted(cluster: Cluster) -> float:
    """Return the workers that the controller of headrace wants. It raises without a controller."""
    return published_decision(cluster.control_ledger.pools(), POOL_DEFAULT).wanted


def read(cluster: Cluster, metric: Metric) -> float | None:
    """Return the metric as an autoscaler reads it; None for an error."""
    try:
        return metric(cluster)
    except HeadraceError:
        return None


def following_keda(most: int, window_s: float = 0.0) -> KedaScaler:
    """Return a KEDA that follows `wanted`. It needs no window of its own: the decision has one."""
    return KedaScaler(0, most, 1, cooldown_s=window_s, down=replace(DOWN, window_s=window_s))


def run_hpa(cluster: Cluster, hpa: HorizontalPodAutoscaler, metric: Metric) -> None:
    """Let an HPA scale the pods of the cluster. It starts with its least replicas."""
    cluster.set_replicas(hpa.least)

    def sync() -> None:
        ready = sum(pod.ready_s is not None for pod in cluster.active)
        value = read(cluster, metric)
        cluster.set_replicas(hpa.sync(cluster.now_s, cluster.replicas, value, ready=ready))

    cluster.every(SYNC_S, sync)


def run_keda(cluster: Cluster, keda: KedaScaler, metric: Metric) -> None:
    """Let KEDA and its HPA scale the pods of the cluster, by one trigger."""
    cluster.set_replicas(keda.least)

    def poll() -> None:
        cluster.set_replicas(keda.poll(cluster.now_s, cluster.replicas, read(cluster, metric)))

    def sync() -> None:
        cluster.set_replicas(keda.sync(cluster.now_s, cluster.replicas, read(cluster, metric)))

    cluster.every(POLL_S, poll)
    cluster.every(SYNC_S, sync)


class PodActuator(Actuator):
    """Starts and ends pods one by one, as the actuator of worker processes does."""

    ends_chosen = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @override
    def start(self) -> None:
        """Do nothing: `scale` starts pods."""

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Do nothing: the pods outlive the controller."""

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        active = {pod.name for pod in self._cluster.active}
        registered = tuple(record for record in records if record.info.name in active)
        return Members(registered, len(active) - len(registered))

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        for record in ended:
            self._cluster.terminate(record.info.name)
        self._cluster.start_pods(max(0, workers - self._cluster.replicas))


class ReplicasActuator(PodActuator):
    """Sets the replicas of a Deployment, and gives the pods that are to end the lowest deletion cost."""

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        names = {record.info.name for record in ended}
        for pod in self._cluster.active:
            pod.deletion_cost = -1 if pod.name in names else 0
        self._cluster.set_replicas(workers)


class GroupActuator(PodActuator):
    """Sets the number of pods, and cannot choose those that end: as a command does."""

    ends_chosen = False

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        self._cluster.set_replicas(workers)


class CostsActuator(PodActuator):
    """Only sets the deletion costs of pods, which another autoscaler creates and ends."""

    ends_chosen = False
    scaled_by_others = True

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._registered: dict[str, WorkerRecord] = {}

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        members = super().members(records)
        self._registered = {record.info.name: record for record in members.registered}
        return members

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        if workers < self._cluster.replicas:
            for pod in self._cluster.active:
                pod.deletion_cost = self._cost(pod.name)

    def _cost(self, name: str) -> int:
        record = self._registered.get(name)
        if record is None:
            return -500
        return -1000 if record.state is WorkerState.DRAINED else record.running


class ControllerRun:
    """A controller of headrace that makes its rounds in virtual time, as its thread does, until it dies."""

    def __init__(self, cluster: Cluster, pool: PoolSettings, actuator: Actuator | None = None) -> None:
        self._cluster = cluster
        self._pool = pool
        self._controller = ScalingController(
            cluster.control_ledger, actuator or PodActuator(cluster), pool, clock=cluster.seconds
        )
        self._alive = True
        self._last_s = -_GAP_S
        self._due_s = 0.0
        self._holds_lease = False
        self._next = 0
        """The number of the next step; those that were planned before do not happen."""
        self.rounds = 0
        """Rounds with the lease of the pool."""
        cluster.on_wakeup(self._wake)
        self._plan(0.0)

    def die(self) -> None:
        """End without a word, as a killed process."""
        self._alive = False

    def _wake(self) -> None:
        self._due_s = self._cluster.now_s
        self._plan(max(self._cluster.now_s, self._last_s + _GAP_S))

    def _plan(self, at_s: float) -> None:
        self._next += 1
        self._cluster.at(at_s, lambda number=self._next: self._step(number))

    def _step(self, number: int) -> None:
        if not self._alive or number != self._next:
            return
        self._last_s = self._cluster.now_s
        with suppress(HeadraceError):  # the next step may succeed
            if not self._holds_lease or self._last_s >= self._due_s:
                self._due_s = self._last_s + self._pool.interval_s
                self._holds_lease = self._controller.decide_once()
                self.rounds += self._holds_lease
            else:
                self._holds_lease = self._controller._hold_lease()
        self._plan(self._last_s + min(self._pool.interval_s, _RENEW_S))
