"""An API server of Kubernetes on loopback, with one Deployment, its pods, and failures on demand.

It plays the part of the API that scales a Deployment, and the controller that creates and deletes pods.
"""

import itertools
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from servers.http_server import HttpServerThread, QuietHttpServer

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
TOKEN = "token-of-the-tests"
CREATED = "2026-11-28T00:00:00Z"
PATCH_TYPES = ("application/strategic-merge-patch+json", "application/merge-patch+json")


@dataclass
class Pod:
    """A pod of the Deployment. A larger `number` is newer."""

    name: str
    number: int
    annotations: dict[str, str] = field(default_factory=dict)
    phase: str = "Running"
    ready: bool = True
    deleting: bool = False
    """True while the pod shuts down: it has a time of deletion."""

    @property
    def cost(self) -> int:
        return int(self.annotations.get(DELETION_COST, "0"))

    @property
    def active(self) -> bool:
        return not self.deleting and self.phase not in ("Failed", "Succeeded")

    def document(self, namespace: str, labels: dict[str, str]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": namespace,
            "labels": labels,
            "creationTimestamp": CREATED,
            "resourceVersion": str(self.number),
        }
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        if self.deleting:
            metadata |= {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 30}
        condition = {"type": "Ready", "status": str(self.ready)}
        return {
            "metadata": metadata,
            # A field of a future version.
            "spec": {"containers": [{"name": "worker", "image": "worker"}], "spinsPerSecond": 3},
            "status": {"phase": self.phase, "conditions": [condition]},
        }


@dataclass(frozen=True)
class Fault:
    """The treatment of one request instead of a good response."""

    status: int = 0
    """Answer with this status."""
    hang: bool = False
    """Send no response until the server is closed."""
    body: bytes | None = None
    """Answer with status 200, or `status`, and this body."""
    after: bool = False
    """Carry out the request first."""


class _ApiServer(QuietHttpServer):
    def process_request(self, request, client_address) -> None:
        """Use threads with a name that `check_service` does not take for threads of the service."""
        threading.Thread(
            name="ThreadPoolExecutor of the API server",
            target=self.process_request_thread,
            args=(request, client_address),
            daemon=True,
        ).start()


class KubernetesServer(HttpServerThread):
    """Serves the Deployment `name` in `namespace` with its pods.

    Unless `lagging`, the controller runs after each change of the replicas. Deleted pods stay in the
    list, with a time of deletion, until `remove_deleted`.

    `faults` has treatments by method and end of the path, such as ``("PATCH", "/scale")``; each is used
    once. `forbidden` has pairs of verb and resource, such as ``("patch", "pods")``.
    """

    server_class = _ApiServer

    def __init__(
        self,
        namespace: str = "ml",
        name: str = "workers",
        *,
        replicas: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.namespace, self.name = namespace, name
        self.labels = {"app": name}
        self.replicas = 0
        self.version = 100
        """The resource version of the Deployment."""
        self.pods: dict[str, Pod] = {}
        self.others: dict[str, Pod] = {}
        """Pods of the namespace that do not belong to the Deployment."""
        self.requests: list[str] = []
        """The method and path of each request."""
        self.faults: dict[tuple[str, str], list[Fault]] = {}
        self.forbidden: set[tuple[str, str]] = set()
        self.lagging = False
        self.reviews = True
        """False if the server does not review rights."""
        self.on_scale_patch: Callable[[], object] | None = None
        """Called before a change of the scale is carried out."""
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        super().__init__(tls=tls)
        self.set_replicas(replicas)
        for pod in self.pods.values():
            pod.phase, pod.ready = "Running", True

    def write_kubeconfig(self, path: Path, *, token: str = TOKEN) -> Path:
        """Write a kubeconfig for this server, and return its path."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "headrace"}}],
            "clusters": [{"name": "tests", "cluster": {"server": self.url}}],
            "users": [{"name": "headrace", "user": {"token": token}}],
        }
        path.write_text(json.dumps(document))  # JSON is YAML
        return path

    @property
    def active(self) -> list[str]:
        """The names of the pods that neither ended nor shut down, oldest first."""
        with self._lock:
            return [pod.name for pod in self.pods.values() if pod.active]

    def fail(self, method: str, end: str, *faults: Fault) -> None:
        """Treat the next requests of a method, for paths with that end, by these faults."""
        with self._lock:
            self.faults.setdefault((method, end), []).extend(faults)

    def set_replicas(self, replicas: int) -> None:
        """Scale by hand."""
        with self._lock:
            self.replicas = replicas
            self.version += 1
            if not self.lagging:
                self.reconcile()

    def reconcile(self) -> None:
        """Create and delete pods, as the ReplicaSet controller does.

        New pods are pending until `run_pods`.
        """
        with self._lock:
            surplus = len(self.active) - self.replicas
            for _ in range(-surplus):
                number = next(self._numbers)
                name = f"{self.name}-6d4b75cb6d-{number:05}"
                self.pods[name] = Pod(name, number, phase="Pending", ready=False)
            if surplus > 0:
                active = [self.pods[name] for name in self.active]
                # The order of ActivePodsWithRanks, without nodes and restarts.
                active.sort(key=lambda pod: (pod.phase != "Pending", pod.ready, pod.cost, -pod.number))
                for pod in active[:surplus]:
                    pod.deleting = True
            self.version += 1  # the status of the Deployment changes

    def run_pods(self) -> None:
        """Let pending pods run."""
        with self._lock:
            for pod in self.pods.values():
                if pod.phase == "Pending":
                    pod.phase, pod.ready = "Running", True
            self.version += 1

    def run_pod(self, name: str) -> None:
        """Let one pod run."""
        with self._lock:
            self.pods[name].phase, self.pods[name].ready = "Running", True
            self.version += 1

    def remove_pod(self, name: str) -> None:
        """Complete the deletion of one pod."""
        with self._lock:
            self.pods = {other: pod for other, pod in self.pods.items() if other != name}

    def remove_deleted(self) -> None:
        """Complete the deletion of pods that shut down."""
        with self._lock:
            self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def _take_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for (of_method, end), faults in self.faults.items():
                if of_method == method and path.endswith(end) and faults:
                    return faults.pop(0)
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with server._lock:
                    server.requests.append(f"{self.command} {path}")
                fault = server._take_fault(self.command, path)
                if fault is None or fault.after:
                    with server._lock:
                        status, document = server._answer(
                            self.command, path, parse_qs(query), self.headers, body
                        )
                if fault and fault.hang:
                    server.closing.wait(30)
                    self.close_connection = True
                    return
                if fault:
                    status, document = _failure(fault.status or 200, "the fault of a test")
                data = json.dumps(document).encode()
                if fault and fault.body is not None:
                    data = fault.body
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PATCH = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(
        self, method: str, path: str, query: dict[str, list[str]], headers: Message, body: bytes
    ) -> tuple[int, dict[str, Any]]:
        if headers.get("Authorization", "").lower() != f"bearer {TOKEN}":
            return _failure(401, "Unauthorized")
        if method == "PATCH" and headers.get("Content-Type") not in PATCH_TYPES:
            return _failure(415, "the body of the request was in an unknown format")
        document = json.loads(body) if body else {}
        deployment = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" and method == "POST":
            return self._review(document)
        verb = {"GET": "get", "PATCH": "patch"}.get(method, method)
        if path in (deployment, f"{deployment}/scale"):
            resource = "deployments" + path.removeprefix(deployment)
            return self._refusal(verb, resource) or self._serve_deployment(verb, resource, document)
        if path == pods and method == "GET":
            return self._refusal("list", "pods") or self._list(query)
        if path.startswith(f"{pods}/") and method in ("GET", "PATCH"):
            return self._refusal(verb, "pods") or self._serve_pod(verb, path.rpartition("/")[2], document)
        return _failure(404, f"the server could not find the requested resource {path}")

    def _refusal(self, verb: str, resource: str) -> tuple[int, dict[str, Any]] | None:
        if (verb, resource) not in self.forbidden:
            return None
        return _failure(403, f'User "headrace" cannot {verb} resource "{resource}" in the namespace')

    def _review(self, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not self.reviews:
            return _failure(403, "selfsubjectaccessreviews is forbidden")
        asked = document["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (asked["resource"], asked.get("subresource")) if part)
        group = {"deployments/scale": "apps", "pods": ""}[resource]
        allowed = asked["namespace"] == self.namespace and asked["group"] == group
        allowed = allowed and (asked["verb"], resource) not in self.forbidden
        return 201, {**document, "status": {"allowed": allowed}}

    def _serve_deployment(
        self, verb: str, resource: str, document: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if verb == "patch":
            if self.on_scale_patch:
                self.on_scale_patch()
            version = document.get("metadata", {}).get("resourceVersion")
            if version not in (None, str(self.version)):
                return _failure(409, f'Operation cannot be fulfilled on deployments "{self.name}"')
            self.set_replicas(document["spec"]["replicas"])
        metadata = {"name": self.name, "namespace": self.namespace, "resourceVersion": str(self.version)}
        # The API leaves out 0.
        spec: dict[str, Any] = {"replicas": self.replicas} if self.replicas else {}
        status: dict[str, Any] = {"replicas": len(self.active)}
        if resource == "deployments":
            spec["selector"] = {"matchLabels": self.labels}
            return 200, {"apiVersion": "apps/v1", "kind": "Deployment", **_parts(metadata, spec, status)}
        status["selector"] = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return 200, {"apiVersion": "autoscaling/v1", "kind": "Scale", **_parts(metadata, spec, status)}

    def _list(self, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        selected = [item.split("=") for item in query.get("labelSelector", [""])[0].split(",") if item]
        own = all(self.labels.get(key) == value for key, value in selected)
        pods = list(self.pods.values()) if own else []
        documents = [pod.document(self.namespace, self.labels) for pod in pods]
        if not selected:
            documents += [pod.document(self.namespace, {}) for pod in self.others.values()]
        begin = int(query.get("continue", ["0"])[0])
        end = begin + int(query["limit"][0]) if "limit" in query else len(documents)
        metadata = {"resourceVersion": str(self.version)}
        if end < len(documents):
            metadata["continue"] = str(end)
        return 200, {
            "apiVersion": "v1",
            "kind": "PodList",
            "metadata": metadata,
            "items": documents[begin:end] or None,  # Go writes an empty list as null
        }

    def _serve_pod(self, verb: str, name: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        pod = self.pods.get(name)
        if pod is None:
            return _failure(404, f'pods "{name}" not found')
        if verb == "patch":
            pod.annotations |= document["metadata"]["annotations"]
        return 200, {"apiVersion": "v1", "kind": "Pod", **pod.document(self.namespace, self.labels)}


def _parts(
    metadata: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    return {"metadata": metadata, "spec": spec, "status": status}


def _failure(status: int, message: str) -> tuple[int, dict[str, Any]]:
    document = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status, "message": message}
    return status, {**document, "metadata": {}}
