"""A Deployment of Kubernetes as a pool: one worker in each pod.

The ReplicaSet controller ends the pods with the lowest deletion cost first, so that the costs choose the
pods that go. That is best effort: Kubernetes ends pods first that are pending or not ready, and during a
rollout it ends the pods of the old version. The ``terminationGracePeriodSeconds`` of the pods must
therefore cover the longest job, or the ``--drain-grace-s`` of the workers.

The pods must keep their own host names (no ``hostNetwork``), because the host of a worker's record
names its pod. Nothing else may scale the Deployment, unless the actuator leaves its replicas to KEDA or a
HorizontalPodAutoscaler, and sets the costs alone.
"""

import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from headrace.core.errors import ActuatorError, ConfigError
from headrace.jobs.worker_registry import WorkerRecord, WorkerState
from headrace.scaling.actuator import Actuator, Members
from headrace.scaling.actuators.kubernetes_api import DeploymentApi

COST_OF_ENDED: Final = -1000
COST_WITHOUT_WORKER: Final = -500
"""The cost of a pod whose worker has not registered yet. It goes before any idle worker."""
TIMEOUT_S: Final = 10.0
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_RIGHTS: Final = "allow its account to {} deployments/scale, and to list and patch pods, in namespace {}"


@dataclass(slots=True)
class _Count:
    """The Deployment at the last count of its members."""

    replicas: int
    costs: dict[str, str]
    """The deletion cost by the name of each living pod."""
    workers: Mapping[str, Sequence[WorkerRecord]]
    """The registered workers by the name of their pod."""

    @property
    def drained(self) -> set[str]:
        """The names of the workers that run nothing and claim nothing."""
        return {
            worker.info.name
            for of_pod in self.workers.values()
            for worker in of_pod
            if worker.state is WorkerState.DRAINED
        }


class DeploymentActuator(Actuator):
    """The actuator of the Deployment `name` in `namespace`.

    `scale` lowers the deletion costs of the pods of ended workers, raises those of busy pods, and then
    sets the number of replicas. It never sets fewer replicas than there are pods with workers that are
    not ended. It fails if anything else changed the number since the last call of `members`. A round
    without changes sends only the two reads of `members`.

    Without `sets_replicas`, another autoscaler sets the replicas by the published decision, and the
    actuator cannot choose the workers that end. If there are more replicas than workers are wanted,
    `scale` sets the costs that have changed, before the decision is published: pods of drained workers
    go first, then those without a worker, then idle ones.

    The account needs the verbs get and patch on ``deployments/scale``, and list and patch on ``pods``.
    Without `sets_replicas`, it needs no patch on ``deployments/scale``.

    Args:
        namespace: The namespace of the Deployment.
        name: The name of the Deployment.
        kubeconfig: The path of a kubeconfig. Without one: the credentials of this pod, else the file of
            the variable KUBECONFIG, else ``~/.kube/config``.
        timeout_s: The limit to connect and to wait for data, in seconds. Requests are not retried.
        sets_replicas: False if KEDA or a HorizontalPodAutoscaler scales the Deployment.

    Raises:
        ConfigError: A name is malformed. `start` raises it if there are no credentials.
    """

    call_s_max: float = 60.0

    def __init__(
        self,
        namespace: str,
        name: str,
        *,
        kubeconfig: str | None = None,
        timeout_s: float = TIMEOUT_S,
        sets_replicas: bool = True,
    ) -> None:
        for what, value in (("namespace", namespace), ("Deployment", name)):
            if not _NAME.fullmatch(value):
                raise ConfigError(
                    f"{value!r:.80} is no name of a {what}: use lower-case letters, digits and hyphens"
                )
        self.ends_chosen = sets_replicas
        self.scaled_by_others = not sets_replicas
        if self.scaled_by_others:
            # Two controllers may set costs at once. A pool without a controller wakes late.
            self.call_s_max = timeout_s
        self._namespace = namespace
        self._name = name
        self._rights = _RIGHTS.format("get and patch" if sets_replicas else "get", namespace)
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._open: DeploymentApi | None = None
        self._count: _Count | None = None

    @override
    def start(self) -> None:
        with self._lock:
            if self._open is not None:
                return
            self._open = DeploymentApi(
                self._namespace,
                self._name,
                kubeconfig=self._kubeconfig,
                timeout_s=self._timeout_s,
                rights=self._rights,
            )
            try:
                self._require_access()
            except BaseException:
                self._close()
                raise

    @override
    def stop(self, *, drain: bool = True) -> None:
        with self._lock:
            self._close()

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        self._count = None
        api = self._api()
        scale = api.read_scale()
        pods = api.list_pods(scale.status.selector)
        costs = {pod.metadata.name: pod.cost for pod in pods}
        workers: dict[str, list[WorkerRecord]] = defaultdict(list)
        for record in records:
            if record.info.host in costs:
                workers[record.info.host].append(record)
        self._count = _Count(scale.spec.replicas, costs, workers)
        registered = tuple(record for of_pod in workers.values() for record in of_pod)
        return Members(registered, starting=max(0, scale.spec.replicas - len(workers)))

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        count = self._count
        if count is None:
            raise ActuatorError(f"the pods of {self} were not counted: count the members before scaling")
        if self.scaled_by_others:
            if workers < count.replicas:
                self._set_costs(count, count.drained)
            return
        names = {record.info.name for record in ended}
        replicas = workers
        if workers < count.replicas:
            kept = sum(any(w.info.name not in names for w in of_pod) for of_pod in count.workers.values())
            replicas = min(count.replicas, max(workers, kept))
        self._set_costs(count, names, only_of_ended=replicas >= count.replicas)
        if replicas != count.replicas:
            self._set_replicas(count, replicas)

    @override
    def __str__(self) -> str:
        return f"Deployment {self._namespace}/{self._name}"

    def _close(self) -> None:
        api, self._open = self._open, None
        self._count = None
        if api is not None:
            api.close()

    def _api(self) -> DeploymentApi:
        if self._open is None:
            raise ActuatorError(f"the actuator of {self} is not running: start it")
        return self._open

    def _require_access(self) -> None:
        """Make the reads of a round, and review the rights to patch, without which no pod could go."""
        api = self._api()
        api.list_pods(api.read_scale().status.selector)
        patched = [("", "pods")] if self.scaled_by_others else [("apps", "deployments/scale"), ("", "pods")]
        missing = [
            f"patch {resource}" for group, resource in patched if not api.is_allowed("patch", group, resource)
        ]
        if missing:
            raise ActuatorError(
                f"the API server does not allow the account to {' or '.join(missing)}, which scaling {self} "
                f"needs: {self._rights}"
            )

    def _set_costs(self, count: _Count, ended: set[str], *, only_of_ended: bool = False) -> None:
        # Kubernetes advises against frequent updates of costs. They matter only when pods are to go.
        for pod, before in count.costs.items():
            cost = _cost(count.workers.get(pod, ()), ended)
            if str(cost) == before or (only_of_ended and cost != COST_OF_ENDED):
                continue
            self._api().set_cost(pod, str(cost))
            count.costs[pod] = str(cost)

    def _set_replicas(self, count: _Count, replicas: int) -> None:
        # The version changes with the status too. A version read by `members` would often be outdated.
        scale = self._api().read_scale()
        if scale.spec.replicas != count.replicas:
            raise ActuatorError(
                f"the replicas of {self} changed from {count.replicas} to {scale.spec.replicas} while they "
                f"were to become {replicas}; the next round decides anew. Let nothing else scale it"
            )
        self._api().set_replicas(replicas, scale.metadata.resource_version)
        count.replicas = replicas


def _cost(workers: Sequence[WorkerRecord], ended: set[str]) -> int:
    """Return the deletion cost of a pod with these workers."""
    if not workers:
        return COST_WITHOUT_WORKER
    if all(worker.info.name in ended for worker in workers):
        return COST_OF_ENDED
    return sum(worker.running for worker in workers)
