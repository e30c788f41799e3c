"""The requests about a Deployment and its pods to the API of Kubernetes. Adapter module of kubernetes."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from typing_extensions import override

from headrace.core.errors import ActuatorError, ConfigError, MissingExtraError
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

PODS_MAX: Final = 5000
"""The limit of pods of a Deployment."""
PODS_PER_PAGE: Final = 250
RESPONSE_BYTES_MAX: Final = 64 << 20
_REASON_CHARACTERS: Final = 500
_KUBECONFIG: Final = "KUBECONFIG"
_KUBECONFIG_DEFAULT: Final = "~/.kube/config"

_ObjectT = TypeVar("_ObjectT", bound=ApiObject)


class DeploymentApi:
    """A client of an API server for one Deployment. All requests raise ActuatorError; none is repeated.

    Args:
        namespace: The namespace of the Deployment.
        name: The name of the Deployment.
        kubeconfig: The path of a kubeconfig; None for the credentials of this pod, or the usual files.
        timeout_s: The limit to connect and to wait for data, in seconds.
        rights: The advice for a refused request: the rights that the account needs.

    Raises:
        ConfigError: There are no credentials.
    """

    def __init__(
        self, namespace: str, name: str, *, kubeconfig: str | None, timeout_s: float, rights: str
    ) -> None:
        configuration = _credentials(kubeconfig)
        self._namespace = namespace
        self._name = name
        self._timeout_s = timeout_s
        self._rights = rights
        self._host = configuration.host
        self._client = kubernetes.client.ApiClient(configuration)
        self._apps = kubernetes.client.AppsV1Api(self._client)
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._authorization = kubernetes.client.AuthorizationV1Api(self._client)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @override
    def __str__(self) -> str:
        return f"Deployment {self._namespace}/{self._name}"

    def is_allowed(self, verb: str, group: str, resource: str) -> bool:
        """Return False if the account lacks a right; True also if the cluster does not review rights."""
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
            self._authorization.create_self_subject_access_review,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
            ignored=(403, 404),  # a cluster may forbid these reviews
        )
        return review is None or review.status.allowed

    def read_scale(self) -> DeploymentScale:
        """Return the number of replicas and the selector of the pods."""
        scale = self._request(
            DeploymentScale,
            "read the scale of",
            self._apps.read_namespaced_deployment_scale,
            self._name,
            self._namespace,
        )
        assert scale is not None
        if not scale.status.selector:
            # An empty selector would list every pod of the namespace.
            raise ActuatorError(f"the scale of {self} has no selector of pods: check the Deployment")
        return scale

    def list_pods(self, selector: str) -> list[Pod]:
        """Return the living pods of a selector."""
        pods: list[Pod] = []
        page = ""
        while True:
            found = self._request(
                PodList,
                "list the pods of",
                self._core.list_namespaced_pod,
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

    def set_cost(self, pod: str, cost: str) -> None:
        """Set the deletion cost of a pod, unless it has gone."""
        self._request(
            ApiObject,
            f"set the deletion cost of pod {pod} of",
            self._core.patch_namespaced_pod,
            pod,
            self._namespace,
            {"metadata": {"annotations": {DELETION_COST: cost}}},
            ignored=(404,),  # the pod has gone
        )

    def set_replicas(self, replicas: int, resource_version: str) -> None:
        """Set the replicas, if the Deployment still has this version."""
        self._request(
            DeploymentScale,
            f"set {replicas} replicas of",
            self._apps.patch_namespaced_deployment_scale,
            self._name,
            self._namespace,
            {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}},
        )

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
            403: self._rights,
            404: "check the name and the namespace",
            409: "something else changed it at the same time; the next round repeats it",
        }.get(error.status, "the next round repeats it")
        try:
            reason = msgspec.json.decode(error.body or "", type=FailureStatus).message
        except msgspec.MsgspecError:
            reason = ""
        shown = f"{error.status} {error.reason}: {reason}" if reason else f"{error.status} {error.reason}"
        return ActuatorError(f"cannot {action} {self}: {shown:.{_REASON_CHARACTERS}}; {advice}")


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
