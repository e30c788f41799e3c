"""A Deployment of Kubernetes as a pool: one worker in each pod. Adapter module of kubernetes.

The ReplicaSet controller ends the pods with the lowest deletion cost first, so that the costs choose the
pods that go. That is best effort: Kubernetes ends pods first that are pending or not ready, and during a
rollout it ends the pods of the old version. The ``terminationGracePeriodSeconds`` of the pods must
therefore cover the longest job, or the ``--drain-grace-s`` of the workers.

The pods must keep their own host names (no ``hostNetwork``), because the host of a worker's record
names its pod. Nothing else, such as a HorizontalPodAutoscaler, may scale the Deployment.
"""

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from typing_extensions import override

from headrace.core.errors import ActuatorError, ConfigError, MissingExtraError
from headrace.jobs.worker_registry import WorkerRecord
from headrace.scaling.actuator import Actuator, Members
from headrace.scaling.actuators.kubernetes_objects import (
    DELETION_COST,
    AccessReview,
    ApiObject,
    DeploymentScale,
    FailureStatus,
    Pod,
    PodList,
)

try:
    import kubernetes as _kubernetes
    from urllib3.exceptions import HTTPError  # the errors of its connections
except ImportError as _error:
    raise MissingExtraError("kubernetes", "a pool of a Kubernetes Deployment") from _error

kubernetes: Any = _kubernetes  # its types lack the raw responses

COST_OF_ENDED: Final = -1000
COST_WITHOUT_WORKER: Final = -500
"""The cost of a pod whose worker has not registered yet. It goes before any idle worker."""
TIMEOUT_S: Final = 10.0
PODS_MAX: Final = 5000
"""The limit of pods of a Deployment."""
PODS_PER_PAGE: Final = 250
RESPONSE_BYTES_MAX: Final = 64 << 20
_REASON_CHARACTERS: Final = 500
_KUBECONFIG: Final = "KUBECONFIG"
_KUBECONFIG_DEFAULT: Final = "~/.kube/config"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_RIGHTS: Final = (
    "allow its account to get and patch deployments/scale, and to list and patch pods, in namespace {}"
)

_ObjectT = TypeVar("_ObjectT", bound=ApiObject)


@dataclass(slots=True)
class _Count:
    """The Deployment at the last count of its members."""

    replicas: int
    costs: dict[str, str]
    """The deletion cost by the name of each living pod."""
    workers: Mapping[str, Sequence[WorkerRecord]]
    """The registered workers by the name of their pod."""


class _Apis:
    """A client of an API server."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.apps = kubernetes.client.AppsV1Api(client)
        self.core = kubernetes.client.CoreV1Api(client)
        self.authorization = kubernetes.client.AuthorizationV1Api(client)


class DeploymentActuator(Actuator):
    """The actuator of the Deployment `name` in `namespace`.

    `scale` lowers the deletion costs of the pods of ended workers, raises those of busy pods, and then
    sets the number of replicas. It never sets fewer replicas than there are pods with workers that are
    not ended. It fails if anything else changed the number since the last call of `members`. A round
    without changes sends only the two reads of `members`.

    The account needs the verbs get and patch on ``deployments/scale``, and list and patch on ``pods``.

    Args:
        namespace: The namespace of the Deployment.
        name: The name of the Deployment.
        kubeconfig: The path of a kubeconfig. Without one: the credentials of this pod, else the file of
            the variable KUBECONFIG, else ``~/.kube/config``.
        timeout_s: The limit to connect and to wait for data, in seconds. Requests are not retried.

    Raises:
        ConfigError: A name is malformed. `start` raises it if there are no credentials.
    """

    ends_chosen: bool = True
    call_s_max: float = 60.0

    def __init__(
        self, namespace: str, name: str, *, kubeconfig: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        for what, value in (("namespace", namespace), ("Deployment", name)):
            if not _NAME.fullmatch(value):
                raise ConfigError(
                    f"{value!r:.80} is no name of a {what}: use lower-case letters, digits and hyphens"
                )
        self._namespace = namespace
        self._name = name
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._open: _Apis | None = None
        self._host = ""
        self._count: _Count | None = None

    @override
    def start(self) -> None:
        with self._lock:
            if self._open is not None:
                return
            configuration = _credentials(self._kubeconfig)
            self._host = configuration.host
            self._open = _Apis(kubernetes.client.ApiClient(configuration))
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
        scale = self._read_scale()
        pods = self._list_pods(scale.status.selector)
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
        names = {record.info.name for record in ended}
        costs = {pod: _cost(count.workers.get(pod, ()), names) for pod in count.costs}
        replicas = workers
        if workers < count.replicas:
            kept = sum(any(w.info.name not in names for w in of_pod) for of_pod in count.workers.values())
            replicas = min(count.replicas, max(workers, kept))
        for pod, cost in costs.items():
            # Kubernetes advises against frequent updates of costs. They matter only when pods are to go.
            if replicas < count.replicas or cost == COST_OF_ENDED:
                self._set_cost(count, pod, str(cost))
        if replicas != count.replicas:
            self._set_replicas(count, replicas)

    @override
    def __str__(self) -> str:
        return f"Deployment {self._namespace}/{self._name}"

    def _close(self) -> None:
        apis, self._open = self._open, None
        self._count = None
        if apis is not None:
            apis.client.close()

    def _apis(self) -> _Apis:
        if self._open is None:
            raise ActuatorError(f"the actuator of {self} is not running: start it")
        return self._open

    def _require_access(self) -> None:
        """Read what each round reads, and ask for the right to patch, without which no pod could go."""
        self._list_pods(self._read_scale().status.selector)
        missing = [
            f"{verb} {resource}"
            for verb, group, resource in (("patch", "apps", "deployments/scale"), ("patch", "", "pods"))
            if not self._is_allowed(verb, group, resource)
        ]
        if missing:
            raise ActuatorError(
                f"the API server does not allow the account to {' or '.join(missing)}, which scaling {self} "
                f"needs: {_RIGHTS.format(self._namespace)}"
            )

    def _is_allowed(self, verb: str, group: str, resource: str) -> bool:
        resource, _, subresource = resource.partition("/")
        attributes = {
            "namespace": self._namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
        }
        review = self._request(
            AccessReview,
            "review the rights to scale",
            self._apis().authorization.create_self_subject_access_review,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
            ignored=(403, 404),  # a cluster may forbid these reviews
        )
        return review is None or review.status.allowed

    def _read_scale(self) -> DeploymentScale:
        scale = self._request(
            DeploymentScale,
            "read the scale of",
            self._apis().apps.read_namespaced_deployment_scale,
            self._name,
            self._namespace,
        )
        assert scale is not None
        if not scale.status.selector:
            # An empty selector would list every pod of the namespace.
            raise ActuatorError(f"the scale of {self} has no selector of pods: check the Deployment")
        return scale

    def _list_pods(self, selector: str) -> list[Pod]:
        pods: list[Pod] = []
        page = ""
        while True:
            found = self._request(
                PodList,
                "list the pods of",
                self._apis().core.list_namespaced_pod,
                self._namespace,
                label_selector=selector,
                limit=PODS_PER_PAGE,
                _continue=page or None,
            )
            assert found is not None
            pods += found.items or []
            if len(pods) > PODS_MAX:
                raise ActuatorError(f"{self} has more than {PODS_MAX} pods: divide the pool")
            page = found.metadata.next_page
            if not page:
                return [pod for pod in pods if pod.lives]

    def _set_cost(self, count: _Count, pod: str, cost: str) -> None:
        if count.costs[pod] == cost:
            return
        self._request(
            ApiObject,
            f"set the deletion cost of pod {pod} of",
            self._apis().core.patch_namespaced_pod,
            pod,
            self._namespace,
            {"metadata": {"annotations": {DELETION_COST: cost}}},
            ignored=(404,),  # the pod has gone
        )
        count.costs[pod] = cost

    def _set_replicas(self, count: _Count, replicas: int) -> None:
        # The version changes with the status too. A version read by `members` would often be outdated.
        scale = self._read_scale()
        if scale.spec.replicas != count.replicas:
            raise ActuatorError(
                f"the replicas of {self} changed from {count.replicas} to {scale.spec.replicas} while they "
                f"were to become {replicas}; the next round decides anew. Let nothing else scale it"
            )
        self._request(
            DeploymentScale,
            f"set {replicas} replicas of",
            self._apis().apps.patch_namespaced_deployment_scale,
            self._name,
            self._namespace,
            {
                "metadata": {"resourceVersion": scale.metadata.resource_version},
                "spec": {"replicas": replicas},
            },
        )
        count.replicas = replicas

    def _request(
        self,
        kind: type[_ObjectT],
        action: str,
        method: Callable[..., Any],
        *arguments: Any,
        ignored: Sequence[int] = (),
        **options: Any,
    ) -> _ObjectT | None:
        """Send one request and return its response, or None for an `ignored` status.

        The response is parsed here. The models of the client reject fields that they do not know.
        """
        try:
            response = method(
                *arguments,
                _preload_content=False,
                # To connect, and to read. Older clients ignore a single number that is not whole.
                _request_timeout=(self._timeout_s, self._timeout_s),
                **options,
            )
            data = response.read(RESPONSE_BYTES_MAX + 1)
            if len(data) > RESPONSE_BYTES_MAX:
                response.close()
                raise ActuatorError(
                    f"cannot {action} {self}: the response has more than {RESPONSE_BYTES_MAX} bytes"
                )
            response.release_conn()
            return msgspec.json.decode(data, type=kind)
        except kubernetes.client.ApiException as error:
            if error.status in ignored:
                return None
            raise self._response_error(action, error) from error
        except msgspec.MsgspecError as error:
            raise ActuatorError(
                f"cannot {action} {self}: {self._host} sent no object of Kubernetes: {error}: "
                "check the server of the kubeconfig"
            ) from error
        # The client reads and renews credentials during requests.
        except (HTTPError, OSError, kubernetes.config.ConfigException) as error:
            raise ActuatorError(
                f"cannot {action} {self}: {self._host} did not respond (limit "
                f"{self._timeout_s:g} s): {error!s:.{_REASON_CHARACTERS}}; the next round repeats it"
            ) from error

    def _response_error(self, action: str, error: Any) -> ActuatorError:
        advice = {
            401: "renew the credentials",
            403: _RIGHTS.format(self._namespace),
            404: "check the name and the namespace",
            409: "something else changed it at the same time; the next round repeats it",
        }.get(error.status, "the next round repeats it")
        try:
            reason = msgspec.json.decode(error.body or "", type=FailureStatus).message
        except msgspec.MsgspecError:
            reason = ""
        shown = f"{error.status} {error.reason}: {reason}" if reason else f"{error.status} {error.reason}"
        return ActuatorError(f"cannot {action} {self}: {shown:.{_REASON_CHARACTERS}}; {advice}")


def _cost(workers: Sequence[WorkerRecord], ended: set[str]) -> int:
    """Return the deletion cost of a pod with these workers."""
    if not workers:
        return COST_WITHOUT_WORKER
    if all(worker.info.name in ended for worker in workers):
        return COST_OF_ENDED
    return sum(worker.running for worker in workers)


def _credentials(kubeconfig: str | None) -> Any:
    """Return a configuration of the client, or raise ConfigError."""
    configuration = kubernetes.client.Configuration()
    # The controller repeats failed rounds; repeated requests would multiply the time limit.
    configuration.retries = False
    if kubeconfig is None:
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        except kubernetes.config.ConfigException:
            pass
        else:
            return configuration
    # The client reads the variable only when it is imported.
    paths = kubeconfig or os.environ.get(_KUBECONFIG) or _KUBECONFIG_DEFAULT
    try:
        kubernetes.config.load_kube_config(paths, client_configuration=configuration, persist_config=False)
    except Exception as error:  # also those of its YAML parser and of programs that print credentials
        raise ConfigError(
            f"no credentials for Kubernetes: the kubeconfig {paths} cannot be used: {error}: name another by "
            f"{_KUBECONFIG}, or run in a pod with a service account"
        ) from error
    return configuration
