"""An HPA scales pods of the model server by metrics that a real Prometheus scrapes."""

import fcntl
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.manifests import charted
from deploy.prometheus_adapter import labels_of, query_of, read_rules
from integration.command import headrace
from integration.jobs_process import WAIT_S, CommandProcess
from integration.pods import KubernetesNamespace, PodProcess
from scaling.simulation.autoscalers import SYNC_S, HorizontalPodAutoscaler, sum_of_pods
from servers.polling import wait_until
from servers.ports import free_port

pytest.importorskip("helm_python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"),
]

NAMESPACE = "predictions"
SERVER = "headrace-server"
REQUESTS = "headrace_in_flight_requests"
BUSY = "headrace_busy_share"
PODS = [f"{SERVER}-0", f"{SERVER}-1"]
MODELS = ("a", "b")
TARGET = 4
LEAST = 2
AVERAGE_S = 60.0
"""The range of the rules."""
MODEL = """
import fcntl
from headrace import Model, TensorSpec

class Held(Model):
    isolation = "thread"
    max_batch_rows = 2
    inputs = (TensorSpec("x", "FP64", (-1, 1)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)

    def predict(self, x):
        with open("FOLDER/lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return x[:, 0]
"""
# The labels that the Prometheus operator adds to the target of a ServiceMonitor.
RELABELINGS = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "service"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
]


class ServerPods:
    """Pods of the model server, with a lock that holds all calls of their models."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        values = {
            "models": [f"{name}=/etc/headrace/held.py" for name in MODELS],
            "server": {
                "autoscaling": {"by": "requests", "inFlightRequests": TARGET, "minReplicas": LEAST},
                "options": {"instances": 2},
            },
            "serviceMonitor": {"enabled": True},
        }
        self._lock = folder / "lock"
        self._lock.touch()
        key = json.loads(headrace("keys", "new", "infer", "--json", "--scope=infer").out)
        self._key: str = key["key"]
        secrets = {
            "headrace-environment": {},
            "headrace-settings": {
                "keys.toml": key["toml"],
                "held.py": MODEL.replace("FOLDER", str(folder)),
            },
        }
        self.namespace = KubernetesNamespace(charted(values, "headrace", NAMESPACE), secrets)
        self._pods = {
            name: stack.enter_context(PodProcess(self.namespace, SERVER, folder, name)) for name in PODS
        }
        self._threads = stack.enter_context(ThreadPoolExecutor(32))
        for pod in self._pods.values():
            pod.wait_until_ready()

    def address(self, pod: str, port: str) -> str:
        """Return the host and port of a pod behind a port of its Service."""
        return self._pods[pod].address(self.namespace.one("Service", SERVER), port)

    @contextmanager
    def held(self, requests: Mapping[str, int]) -> Iterator[None]:
        """Keep numbers of requests in flight at the pods. All of them succeed at the end."""
        responses: list[Future[httpx.Response]] = []
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for pod, count in requests.items():
                url = f"http://{self.address(pod, 'rest')}"
                responses += [
                    self._threads.submit(infer, url, MODELS[n % len(MODELS)], self._key) for n in range(count)
                ]
            try:
                wait_until(lambda: self._in_flight() == requests, "the requests in flight")
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
        for response in responses:
            assert response.result(WAIT_S).status_code == 200

    def _in_flight(self) -> dict[str, float]:
        found = {}
        for pod in PODS:
            url = f"http://{self.address(pod, 'metrics')}/metrics"
            lines = httpx.get(url, timeout=WAIT_S, trust_env=False).text.splitlines()
            found[pod] = sum(float(line.split()[-1]) for line in lines if line.startswith(f"{REQUESTS}{{"))
        return found


def infer(url: str, model: str, key: str) -> httpx.Response:
    """Send a request of one row."""
    tensor = {"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [1.0]}
    return httpx.post(
        f"{url}/v2/models/{model}/infer",
        json={"inputs": [tensor]},
        headers={"Authorization": f"Bearer {key}"},
        timeout=WAIT_S,
        trust_env=False,
    )


class Prometheus:
    """A Prometheus that scrapes pods as the ServiceMonitor says, but more often."""

    def __init__(self, folder: Path, servers: ServerPods, stack: ExitStack) -> None:
        (endpoint,) = servers.namespace.one("ServiceMonitor", "headrace")["spec"]["endpoints"]
        targets = [
            {
                "targets": [servers.address(pod, endpoint["port"])],
                "labels": {
                    "__meta_kubernetes_namespace": NAMESPACE,
                    "__meta_kubernetes_service_name": SERVER,
                    "__meta_kubernetes_pod_name": pod,
                },
            }
            for pod in PODS
        ]
        job = {"job_name": "headrace", "static_configs": targets, "relabel_configs": RELABELINGS}
        config = {"global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        data = f"--storage.tsdb.path={folder / 'prometheus'}"
        arguments = (f"--config.file={folder / 'prometheus.yml'}", data, f"--web.listen-address={address}")
        stack.enter_context(CommandProcess(folder, *arguments, program=("prometheus",)))
        self._http = stack.enter_context(
            httpx.Client(base_url=f"http://{address}/api/v1", timeout=WAIT_S, trust_env=False)
        )

    def get(self, path: str, **parameters: str | float) -> Any:
        """Return the data of a response; an empty list until the process listens."""
        try:
            response = self._http.get(path, params=parameters)
        except httpx.ConnectError:
            return []
        return response.raise_for_status().json()["data"] if response.status_code != 503 else []

    def values(self, metric: str, at_s: float) -> dict[str, float]:
        """Return a metric of each pod, as the adapter reads it by the rule.

        A rate is that of the last two samples, since the minute of the rule has two in a cluster.
        """
        rule = read_rules()[metric]
        found: Sequence[Mapping[str, str]] = self.get("/series", **{"match[]": rule["seriesQuery"]})
        labels = labels_of(rule)
        series = {each["__name__"] for each in found if set(labels.values()) <= each.keys()}
        if not series:
            return {}
        query = query_of(rule, series.pop(), NAMESPACE, PODS).replace("rate(", "irate(")
        assert not series
        vector = self.get("/query", query=query, time=at_s)["result"]
        return {each["metric"][labels["pod"]]: float(each["value"][1]) for each in vector}

    def wait_for(self, metric: str, expected: Mapping[str, float], at_s: float | None = None) -> None:
        """Wait until a metric has these values, now or at a later time."""
        wait_until(
            lambda: self.values(metric, time.time() if at_s is None else at_s) == expected,
            f"{metric} {expected}",
        )


def test_requests_in_flight_add_pods_and_idle_ones_go(tmp_path):
    with ExitStack() as stack:
        servers = ServerPods(tmp_path, stack)
        hpa = HorizontalPodAutoscaler.from_manifest(servers.namespace.one("HorizontalPodAutoscaler", SERVER))
        busy = {PODS[0]: 3 * TARGET, PODS[1]: 1}
        with servers.held(busy):
            # It has no samples of the time before.
            prometheus = Prometheus(tmp_path, servers, stack)
            prometheus.wait_for(REQUESTS, busy)
            # No call has ended since the first sample. One of two instances of the last pod is busy.
            prometheus.wait_for(BUSY, pytest.approx({PODS[0]: 1.0, PODS[1]: 0.5}, rel=0.1))
            replicas = hpa.sync(0.0, LEAST, sum_of_pods(list(busy.values()), TARGET))
        assert replicas == 4
        released_s = time.time()
        idle = dict.fromkeys(PODS, 0.0)
        # All samples of the last minute will be of the time since.
        prometheus.wait_for(REQUESTS, idle, released_s + AVERAGE_S)
        seen = []
        for number in range(1, 120):
            values = [*idle.values(), *[None] * (replicas - len(PODS))]
            replicas = hpa.sync(number * SYNC_S, replicas, sum_of_pods(values, TARGET))
            seen.append(replicas)
        assert seen[: round(600 / SYNC_S) - 1] == [4] * (round(600 / SYNC_S) - 1)
        assert seen[-1] == LEAST
