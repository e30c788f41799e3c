"""Pods of rendered manifests as processes: a kubelet for tests, without a cluster.

A pod is the first container of a Deployment, run by `python -m headrace` in place of its image. Several pods
share this host. Each therefore has free ports in place of its container ports, and folders in place of the
paths of its mounts.
"""

import http.client
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

import headrace
from integration.jobs_process import CommandProcess
from scaling.kubernetes_server import KubernetesServer
from servers.polling import INTERVAL_S, reached
from servers.ports import free_ports

Document = Mapping[str, Any]

READY_S = 90.0
"""The limit of a start, if the manifest permits a longer one."""
ADDRESS = "127.0.0.2"
"""The address of all pods. Listeners on headrace's default address, 127.0.0.1, do not get its connections."""
HOST = "10.1.2.3"
"""The name by which HTTP probes call a pod: its address in a cluster."""
IMAGE_ENVIRON = {"HEADRACE_CACHE": "/var/cache/headrace", "HOME": "/var/lib/headrace", "TMPDIR": "/tmp"}
"""Variables of the image, and the folder for temporary files. The root of a pod is read-only."""
_START = """
import os, socket
socket.gethostname = lambda: os.environ["HOSTNAME"]
"""
"""Run at the start of Python: each pod has its own host name."""
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_REQUESTS = (
    ("apps", "deployments", "get"),
    ("apps", "deployments", "patch"),
    ("apps", "deployments/scale", "get"),
    ("apps", "deployments/scale", "patch"),
    ("", "pods", "get"),
    ("", "pods", "list"),
    ("", "pods", "patch"),
)
"""The requests that `KubernetesServer` serves, by group, resource and verb."""


@dataclass(frozen=True)
class KubernetesNamespace:
    """The objects of one namespace.

    Args:
        objects: The objects of the manifests.
        secrets: The texts of the keys of each Secret.
        config_maps: The texts of the keys of each ConfigMap.
        kubeconfig: The credentials of pods with the token of a service account.
    """

    objects: Sequence[Document]
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kubeconfig: Path | None = None

    def all(self, kind: str) -> Iterator[Document]:
        """Yield the objects of a kind."""
        return (each for each in self.objects if each["kind"] == kind)

    def one(self, kind: str, name: str) -> Document:
        """Return the only object of a kind and name."""
        found = [each for each in self.all(kind) if each["metadata"]["name"] == name]
        assert len(found) == 1, f"there are {len(found)} objects {kind} {name}"
        return found[0]

    def permits(self, account: str, group: str, resource: str, verb: str, name: str) -> bool:
        """Return True if the Roles of a service account permit a request about the object `name`."""
        for binding in self.all("RoleBinding"):
            space = binding["metadata"]["namespace"]
            subject = {"kind": "ServiceAccount", "name": account, "namespace": space}
            if subject not in binding["subjects"]:
                continue
            assert binding["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
            for rule in self.one(binding["roleRef"]["kind"], binding["roleRef"]["name"])["rules"]:
                names = rule.get("resourceNames")
                if (
                    group in rule["apiGroups"]
                    and resource in rule["resources"]
                    and verb in rule["verbs"]
                    and (names is None or name in names)
                ):
                    return True
        return False

    @contextmanager
    def api_server(self, controller: str, scaled: str) -> Iterator[KubernetesServer]:
        """Run an API server with the Deployment `scaled`, and write `kubeconfig`.

        It permits only the requests that the Roles of the Deployment `controller` permit.
        """
        account = self.one("Deployment", controller)["spec"]["template"]["spec"]["serviceAccountName"]
        self.one("ServiceAccount", account)
        deployment = self.one("Deployment", scaled)
        server = KubernetesServer(deployment["metadata"]["namespace"], scaled)
        server.labels = dict(deployment["spec"]["selector"]["matchLabels"])
        server.forbidden = {
            (verb, resource)
            for group, resource, verb in _REQUESTS
            if not self.permits(account, group, resource, verb, scaled)
        }
        assert self.kubeconfig is not None
        with server:
            server.write_kubeconfig(self.kubeconfig)
            yield server


class PodProcess(CommandProcess):
    """A pod of a Deployment in a namespace, with files below `folder`.

    Args:
        namespace: The objects of the namespace.
        deployment: The name of the Deployment.
        folder: The parent of the pod's folder.
        name: The name of the pod, which is also its host name.
    """

    def __init__(self, namespace: KubernetesNamespace, deployment: str, folder: Path, name: str = "") -> None:
        document = namespace.one("Deployment", deployment)
        self.name = name or f"{deployment}-0"
        self.labels: Mapping[str, str] = document["spec"]["template"]["metadata"]["labels"]
        spec = document["spec"]["template"]["spec"]
        self._container: Document = spec["containers"][0]
        hook = self._container.get("lifecycle", {}).get("preStop", {})
        # The hook of the end, which is not carried out here, uses a part of the grace period.
        self.grace_s: float = spec["terminationGracePeriodSeconds"] - hook.get("sleep", {}).get("seconds", 0)
        declared = self._container.get("ports", [])
        self._ports = {each["name"]: each["containerPort"] for each in declared}
        self._host_ports = dict(zip(self._ports.values(), free_ports(len(declared)), strict=True))
        self._root = folder / self.name
        self._root.mkdir()
        self._paths = self._mount(namespace, spec.get("volumes", []))
        environ = self._environ(namespace, document)
        account = namespace.one("ServiceAccount", spec["serviceAccountName"])
        if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
            environ["KUBECONFIG"] = str(namespace.kubeconfig)
        arguments = [
            self._on_this_host(_expanded(text, environ), ports=True) for text in self._container["args"]
        ]
        self._terminated_s: float | None = None
        working = self._root / "working"
        working.mkdir()
        inherited = {**self._image_environ(), "HOSTNAME": self.name, **environ}
        super().__init__(working, *arguments, inherited=inherited)

    def address(self, service: Document, port: int | str) -> str:
        """Return the host and port of this pod behind a port of a Service."""
        selector = service["spec"]["selector"]
        assert selector.items() <= self.labels.items(), f"the Service does not select {self.name}"
        found = [each for each in service["spec"]["ports"] if port in (each["port"], each["name"])]
        assert len(found) == 1, f"the Service has {len(found)} ports {port}"
        return f"{ADDRESS}:{self._host_port(found[0].get('targetPort', found[0]['port']))}"

    def failure(self, probe: str) -> str:
        """Carry out a probe, such as ``readinessProbe``. Return the reason of its failure, or ""."""
        settings = self._container[probe]
        timeout_s = settings.get("timeoutSeconds", 1)
        if action := settings.get("httpGet"):
            return _get(self._host_port(action["port"]), action["path"], timeout_s)
        if action := settings.get("grpc"):
            return _check(self._host_port(action["port"]), action.get("service", ""), timeout_s)
        return _connect(self._host_port(settings["tcpSocket"]["port"]), timeout_s)

    @property
    def is_ready(self) -> bool:
        """True if all probes pass. Raise AssertionError if the process has ended."""
        return not any(self.failures())

    def failures(self) -> list[str]:
        """Return the reason of each probe, or "". Raise AssertionError if the process has ended."""
        assert self.exited is None, self._report("ended")
        return [self.failure(name) for name in _PROBES if name in self._container]

    def wait_until_ready(self) -> Self:
        """Wait until the pod's own probes pass. The limit is that of the manifest, or `READY_S`."""
        # Without a probe of the start, the liveness has a limit from the beginning.
        for name in _PROBES:
            if (settings := self._container.get(name)) is None:
                continue
            limit_s = READY_S
            if name != "readinessProbe":
                limit_s = settings.get("periodSeconds", 10) * settings.get("failureThreshold", 3)
            passed = reached(
                lambda name=name: self.exited is not None or not self.failure(name),
                timeout_s=min(READY_S, limit_s),
                interval_s=5 * INTERVAL_S,
            )
            assert self.exited is None, self._report("ended")
            assert passed, self._report(f"failed its {name}: {self.failure(name)}")
        return self

    @property
    def exited(self) -> int | None:
        """The exit status of the process, or None while it runs."""
        return self._process.poll()

    @property
    def is_ending(self) -> bool:
        """True after `begin_end`."""
        return self._terminated_s is not None

    def begin_end(self) -> None:
        """Send SIGTERM, as Kubernetes does after the pod's preStop hook."""
        assert self.exited is None, self._report("ended")
        self._terminated_s = time.monotonic()
        self._process.send_signal(signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        """True if the process ended after SIGTERM.

        Raise AssertionError if its grace period is over, its status is not 0, or it wrote into its
        working directory, which is read-only in a pod.
        """
        assert self._terminated_s is not None
        if self.exited is None:
            assert time.monotonic() < self._terminated_s + self.grace_s, self._report("outlived its grace")
            return False
        assert self.exited == 0, self._report("failed at its end")
        assert not list(self.folder.iterdir()), self._report("wrote into its working directory")
        return True

    def end(self) -> None:
        """End the pod, which must still be alive, and wait until it has ended."""
        if "livenessProbe" in self._container:
            assert not (reason := self.failure("livenessProbe")), self._report(f"is not alive: {reason}")
        self.begin_end()
        self.wait_until_ended()

    def wait_until_ended(self) -> None:
        """Wait until the pod has ended within its grace period."""
        assert reached(lambda: self.has_ended, timeout_s=2 * self.grace_s)

    def _report(self, what: str) -> str:
        return "\n".join([f"{self.name} {what} (exit status {self.exited})", *self.log])

    def _host_port(self, port: int | str) -> int:
        assert isinstance(port, int) or port in self._ports, f"{self.name} has no port {port}"
        number = self._ports[port] if isinstance(port, str) else port
        return self._host_ports.get(number, number)

    def _mount(self, namespace: KubernetesNamespace, volumes: Sequence[Document]) -> dict[str, Path]:
        """Make the volumes. Return the folders by the paths of their mounts."""
        folders: dict[str, Path] = {}
        for volume in volumes:
            folder = folders[volume["name"]] = self._root / volume["name"]
            folder.mkdir()
            settings = volume.get("projected") or volume.get("secret") or volume.get("configMap")
            if settings is None:
                assert "emptyDir" in volume, f"an unknown kind of volume: {volume}"
                continue
            for source in settings.get("sources", [volume]):
                if "secret" in source:
                    name = source["secret"].get("secretName") or source["secret"]["name"]
                    files = namespace.secrets[name]
                else:
                    files = namespace.config_maps[source["configMap"]["name"]]
                _write_files(folder, files, settings["defaultMode"])
        return {each["mountPath"]: folders[each["name"]] for each in self._container["volumeMounts"]}

    def _on_this_host(self, text: str, *, ports: bool = False) -> str:
        """Replace paths of mounts and, at the end of an option, container ports."""
        paths = "|".join(sorted(map(re.escape, self._paths), key=len, reverse=True)) or "$."
        text = re.sub(rf"(?<![\w.-])({paths})(?![\w.-])", lambda match: str(self._paths[match[1]]), text)
        if ports and (found := re.fullmatch(r"(--[a-z-]*port=)(\d+)", text)):
            return f"{found[1]}{self._host_port(int(found[2]))}"
        return text

    def _image_environ(self) -> dict[str, str]:
        """Return the environment of the image, and of Python outside of an image."""
        # A path below a file: no user can write there.
        read_only = self._root / "read-only"
        read_only.touch()
        # Python would choose another folder, which is read-only in a pod. Models may need this one.
        assert IMAGE_ENVIRON["TMPDIR"] in self._paths, f"{self.name} has no folder for temporary files"
        environ: dict[str, str] = {}
        for name, path in IMAGE_ENVIRON.items():
            mounted = self._on_this_host(path)
            environ[name] = f"{read_only}{path}" if mounted == path else mounted
        start = self._root / "start"
        start.mkdir()
        (start / "sitecustomize.py").write_text(_START)
        source = Path(headrace.__file__).parent.parent
        return {**environ, "PATH": os.environ["PATH"], "PYTHONPATH": f"{start}{os.pathsep}{source}"}

    def _environ(self, namespace: KubernetesNamespace, document: Document) -> dict[str, str]:
        """Return the environment of the manifest."""
        environ: dict[str, str] = {}
        for each in self._container.get("envFrom", []):
            environ |= namespace.secrets[each["secretRef"]["name"]]
        fields = {"metadata.namespace": document["metadata"]["namespace"], "metadata.name": self.name}
        for each in self._container.get("env", []):
            if "value" in each:
                environ[each["name"]] = _expanded(each["value"], environ)
            else:
                environ[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return environ


def service_of(namespace: KubernetesNamespace, address: str) -> tuple[Document, int]:
    """Return the Service and the port of an address as ``NAME.NAMESPACE.svc:PORT``."""
    host, _, port = address.partition(":")
    name, _, domain = host.partition(".")
    service = namespace.one("Service", name)
    assert domain == f"{service['metadata']['namespace']}.svc", address
    return service, int(port)


class DeploymentPods:
    """The pods of the Deployment of an API server, as processes.

    Args:
        server: The API server, whose controller creates and deletes the pods.
        start: Starts the process of a pod by its name.
    """

    def __init__(self, server: KubernetesServer, start: Callable[[str], PodProcess]) -> None:
        self._server = server
        self._start = start
        self.running: dict[str, PodProcess] = {}
        self.ended: list[str] = []
        """The names of the pods that have ended, in this order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.kill()

    @property
    def ready(self) -> list[str]:
        """The names of the pods that are ready."""
        return [name for name, pod in self._server.pods.items() if pod.ready and not pod.deleting]

    def sync(self) -> None:
        """Start, probe and end processes once, without waiting for any of them."""
        for name, pod in list(self._server.pods.items()):
            process = self.running.get(name)
            if pod.deleting:
                self._end(name, process)
            elif process is None:
                self.running[name] = self._start(name)
            elif not pod.ready and process.is_ready:
                self._server.run_pod(name)

    def sync_until(self, condition: Callable[[], Any], what: str) -> None:
        """Synchronize until `condition` returns something true."""

        def done() -> bool:
            self.sync()
            return bool(condition())

        if not reached(done, interval_s=5 * INTERVAL_S):
            reports = [
                "\n".join([f"{name}: {process.failures()}", *process.log])
                for name, process in self.running.items()
            ]
            raise AssertionError("\n".join([f"{what} was not reached", *reports]))

    def _end(self, name: str, process: PodProcess | None) -> None:
        if process is None:
            self._server.remove_pod(name)
        elif not process.is_ending:
            process.begin_end()
        elif process.has_ended:
            process.kill()
            del self.running[name]
            self.ended.append(name)
            self._server.remove_pod(name)


def _write_files(folder: Path, files: Mapping[str, str], mode: int) -> None:
    """Write files as a kubelet does, which replaces all of them at once by one link."""
    data = folder / "..2026_11_29"
    data.mkdir(exist_ok=True)
    if not (folder / "..data").is_symlink():
        (folder / "..data").symlink_to(data.name)
    for name, text in files.items():
        (data / name).write_text(text)
        (data / name).chmod(mode)
        (folder / name).symlink_to(f"..data/{name}")


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Replace $(NAME) by variables. Unknown ones stay, and $$ is a dollar sign."""
    return re.sub(
        r"\$\$|\$\(([\w.-]+)\)",
        lambda match: environ.get(match[1], match[0]) if match[1] else "$",
        text,
    )


def _get(port: int, path: str, timeout_s: float) -> str:
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=timeout_s)
    headers = {"Host": f"{HOST}:{port}", "User-Agent": "kube-probe/1.37", "Connection": "close"}
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        return "" if 200 <= response.status < 400 else f"status {response.status}: {body!r}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()


def _check(port: int, service: str, timeout_s: float) -> str:
    name = service.encode()
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    with grpc.insecure_channel(f"{ADDRESS}:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            response = check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return repr(error)
    return "" if response == b"\x08\x01" else f"not SERVING: {response!r}"


def _connect(port: int, timeout_s: float) -> str:
    try:
        socket.create_connection((ADDRESS, port), timeout=timeout_s).close()
    except OSError as error:
        return repr(error)
    return ""
