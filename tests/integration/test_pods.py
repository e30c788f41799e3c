"""The pods of the manifests for Kubernetes, run as processes over a real PostgreSQL and S3 server."""

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme

from deploy.manifests import charted
from headrace.jobs.client import Client
from headrace.jobs.job import NewJob
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.state import JobState
from integration.command import headrace
from integration.jobs_process import WAIT_S, wait_completed, wait_for_state
from integration.pods import DeploymentPods, KubernetesNamespace, PodProcess, service_of
from scaling.keda.keda_client import KedaClient
from servers.polling import wait_until

pytest.importorskip("helm_python")  # part of the dev extra, as the client of Kubernetes is
pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.s3, pytest.mark.timeout(300)]

NAMESPACE = "predictions"
API, SERVER, WORKER, SCALE = (f"headrace-{name}" for name in ("api", "server", "worker", "scale"))
SLOTS = 8
"""The jobs that a worker of the manifests runs at once."""

MODEL = """
import os, time
from headrace import Model, TensorSpec

class Double(Model):
    max_batch_rows = 8
    inputs = (TensorSpec("x", "FP64", (-1, 1)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)

    def predict(self, x):
        # A negative number waits for its file.
        for number in x[x < 0]:
            while not os.path.exists(f"FOLDER/go{-number:.0f}"):
                time.sleep(0.005)
        return x[:, 0] * 2
"""
POOL = """
[pools.default]
scale_in_window_s = 0
interval_s = 0.5
"""


@dataclass
class Installation:
    """The database, the bucket with the models, and the Secrets of an installation."""

    folder: Path
    """A folder for the files of the pods."""
    bucket: str
    secrets: dict[str, dict[str, str]]
    config_maps: dict[str, dict[str, str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """The keys of the API by their scope."""

    def apply(self, **scaling: str) -> KubernetesNamespace:
        """Return the namespace with the objects of the chart for these values of `scaling`."""
        values = {
            "models": [f"s3://{self.bucket}/models/"],
            "scaling": scaling,
            "serviceMonitor": {"enabled": True},
        }
        objects = charted(values, "headrace", NAMESPACE)
        return KubernetesNamespace(objects, self.secrets, self.config_maps, self.folder / "kubeconfig")

    def submit(self, *, workers: int, pod: PodProcess) -> None:
        """Submit jobs for this number of workers, and wait until the controller in the pod wants it."""
        ledger = open_ledger(self.secrets["headrace-environment"]["HEADRACE_LEDGER"])
        ledger.start()
        try:
            ledger.submit([NewJob("double", input_uri="mem://x") for _ in range(SLOTS * workers)])

            def is_wanted() -> bool:
                found = [pool.decision.wanted for pool in ledger.pools() if pool.decision]
                return pod.is_ready and found == [workers]

            wait_until(is_wanted, "the decision")
        finally:
            ledger.stop()

    def release(self, number: int) -> None:
        """Let requests with this negative number continue."""
        (self.folder / f"go{number}").touch()


@pytest.fixture
def installation(tmp_path, postgres_url, s3_server):
    bucket = s3_server.bucket()
    files = {
        "model.toml": 'name = "double"\nmodel = "double.py"\n[serve]\nisolation = "process"\n',
        "double.py": MODEL.replace("FOLDER", str(tmp_path)),
    }
    for name, text in files.items():
        s3_server.client().put_object(Bucket=bucket, Key=f"models/double/{name}", Body=text.encode())
    jobs, infer, monitor = (new_key(*scopes) for scopes in (("submit", "read"), ("infer",), ("monitor",)))
    credentials = {name: value for name, value in s3_server.environ.items() if name.startswith("AWS_")}
    secrets = {
        "headrace-environment": {
            "HEADRACE_LEDGER": postgres_url.replace("postgresql+psycopg", "postgresql"),
            "HEADRACE_STORE": f"s3://{bucket}/own/",
            **credentials,
        },
        "headrace-settings": {
            "jobs.toml": jobs["toml"] + monitor["toml"] + POOL,
            "keys.toml": infer["toml"],
            "encryption.key": base64.b64encode(bytes(range(32))).decode() + "\n",
        },
    }
    keys = {"jobs": jobs["key"], "infer": infer["key"], "monitor": monitor["key"]}
    return Installation(tmp_path, bucket, secrets, keys=keys)


def new_key(*scopes: str) -> Mapping[str, str]:
    """Create an API key. Return its text and its entry."""
    done = headrace("keys", "new", scopes[0], "--json", *(f"--scope={scope}" for scope in scopes))
    return json.loads(done.out)


def url_of(pod: PodProcess, namespace: KubernetesNamespace, service: str, port: int | str) -> str:
    """Return the URL of a pod behind a port of a Service."""
    return f"http://{pod.address(namespace.one('Service', service), port)}"


def infer(url: str, number: float, key: str = "") -> httpx.Response:
    """Send a request to the model."""
    tensor = {"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [number]}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(
        f"{url}/v2/models/double/infer",
        json={"inputs": [tensor]},
        headers=headers,
        timeout=WAIT_S,
        trust_env=False,
    )


def result_of(response: httpx.Response) -> Any:
    """Return the result of a request to the model."""
    assert response.status_code == 200, response.text
    return response.json()["outputs"][0]["data"]


def test_jobs_start_worker_pods_and_the_idle_one_ends_first(installation):
    namespace = installation.apply()

    def start_worker(name):
        return PodProcess(namespace, WORKER, installation.folder, name)

    with (
        namespace.api_server(SCALE, WORKER) as kubernetes,
        PodProcess(namespace, API, installation.folder) as api,
        PodProcess(namespace, SCALE, installation.folder) as scale,
        DeploymentPods(kubernetes, start_worker) as workers,
    ):
        api.wait_until_ready()
        url = url_of(api, namespace, API, 8090)
        wanted = 'headrace_pool_workers_wanted{pool="default"} 0.0'
        wait_until(
            lambda: scale.is_ready and wanted in metrics_of(api, namespace, API, installation),
            "the first decision",
        )
        assert kubernetes.replicas == 0
        with Client(url, api_key=installation.keys["jobs"]) as client:
            last = client.submit("double", {"x": [[-2]]})
            others = [client.submit("double", {"x": [[-1]]}) for _ in range(SLOTS)]
            workers.sync_until(lambda: len(workers.ready) == 2, "two workers")
            # The name of a worker begins with its host, which is the name of its pod.
            busy = wait_for_state(client, last.id, JobState.RUNNING).worker.rsplit("-", 2)[0]
            assert busy in workers.ready
            worker = workers.running[busy]
            assert 'model="double"' in metrics_of(worker, namespace, WORKER, installation)
            installation.release(1)
            workers.sync_until(lambda: workers.ended, "the end of the idle worker")
            assert workers.ready == [busy]
            installation.release(2)
            for job in (last, *others):
                wait_completed(client, job.id)
            assert json.loads(client.result(last.id))["outputs"][0]["data"] == [-4.0]
            workers.sync_until(lambda: not workers.running, "no worker")
            assert workers.ended[1:] == [busy]
            assert kubernetes.replicas == 0
        scale.end()
        api.end()


def metrics_of(
    pod: PodProcess, namespace: KubernetesNamespace, service: str, installation: Installation
) -> str:
    """Return the metrics of a pod, as Prometheus reads them by the ServiceMonitor."""
    (endpoint,) = namespace.one("ServiceMonitor", "headrace")["spec"]["endpoints"]
    headers = {}
    if "authorization" in endpoint:
        headers["Authorization"] = f"Bearer {installation.keys['monitor']}"
    url = f"{url_of(pod, namespace, service, endpoint['port'])}/metrics"
    response = httpx.get(url, headers=headers, timeout=WAIT_S, trust_env=False)
    assert response.status_code == 200, response.text
    return response.text


def test_server_pod_drains_within_its_grace_period(installation):
    namespace = installation.apply()
    key = installation.keys["infer"]
    with ThreadPoolExecutor() as threads, PodProcess(namespace, SERVER, installation.folder) as pod:
        pod.wait_until_ready()
        url = url_of(pod, namespace, SERVER, 8080)
        assert infer(url, 3).status_code == 401
        assert result_of(infer(url, 3, key)) == [6.0]
        assert 'model="double"' in metrics_of(pod, namespace, SERVER, installation)
        held = threads.submit(infer, url, -1, key)
        pod.begin_end()
        wait_until(lambda: pod.failure("readinessProbe"), "a probe of the readiness that fails")
        late = threads.submit(infer, url, 4, key)
        wait_until(lambda: "refused" in pod.failure("readinessProbe"), "the end of the notice")
        assert not held.done()
        installation.release(1)
        assert result_of(held.result(WAIT_S)) == [-2.0]
        assert result_of(late.result(WAIT_S)) == [8.0]
        pod.wait_until_ended()


def test_keda_reads_the_wanted_workers_at_the_address_of_its_trigger(installation):
    namespace = installation.apply(by="keda")
    (trigger,) = namespace.one("ScaledObject", WORKER)["spec"]["triggers"]
    metadata = trigger["metadata"]
    service, port = service_of(namespace, metadata["scalerAddress"])

    async def read(address):
        async with grpc.aio.insecure_channel(address) as channel:
            client = KedaClient(channel, metadata)
            ((metric, target),) = await client.specs()
            return (await client.stream().read()).result, target, await client.metric_and_activity(metric)

    with (
        namespace.api_server(SCALE, WORKER),
        PodProcess(namespace, SCALE, installation.folder) as pod,
    ):
        pod.wait_until_ready()
        installation.submit(workers=3, pod=pod)
        address = pod.address(service, port)
        assert asyncio.run(asyncio.wait_for(read(address), WAIT_S)) == (True, 1.0, (3.0, True))
        pod.end()


def test_autoscaler_reads_its_external_metric_from_the_service_of_the_api(installation):
    authority, front_proxy = trustme.CA(), trustme.CA()
    namespace = installation.apply(by="hpa", caBundle=base64.b64encode(authority.cert_pem.bytes()).decode())
    api = namespace.one("APIService", "v1beta1.external.metrics.k8s.io")["spec"]
    host = f"{api['service']['name']}.{api['service']['namespace']}.svc"
    issued = authority.issue_cert(host)
    installation.secrets["headrace-scale-tls"] = {
        "tls.crt": issued.cert_chain_pems[0].bytes().decode(),
        "tls.key": issued.private_key_pem.bytes().decode(),
    }
    installation.config_maps["headrace-front-proxy-ca"] = {"ca.crt": front_proxy.cert_pem.bytes().decode()}
    context = ssl.create_default_context(cadata=base64.b64decode(api["caBundle"]).decode())
    front_proxy.issue_cert("front-proxy-client").configure_cert(context)

    with (
        namespace.api_server(SCALE, WORKER),
        PodProcess(namespace, SCALE, installation.folder) as pod,
        httpx.Client(verify=context, timeout=WAIT_S, trust_env=False) as client,
    ):
        pod.wait_until_ready()
        installation.submit(workers=3, pod=pod)
        service, port = service_of(namespace, f"{host}:{api['service']['port']}")
        response = client.get(
            f"https://{pod.address(service, port)}{metric_path(namespace, api)}",
            headers={"Host": host},
            extensions={"sni_hostname": host},
        )
        assert response.status_code == 200, response.text
        assert [item["value"] for item in response.json()["items"]] == ["3"]
        pod.end()


def metric_path(namespace: KubernetesNamespace, api: Mapping[str, Any]) -> str:
    """Return the path that the HorizontalPodAutoscaler of the workers reads."""
    autoscaler = namespace.one("HorizontalPodAutoscaler", WORKER)
    (metric,) = (each["external"]["metric"] for each in autoscaler["spec"]["metrics"])
    selector = ",".join(f"{name}={value}" for name, value in metric["selector"]["matchLabels"].items())
    query = httpx.QueryParams({"labelSelector": selector})
    group = f"/apis/{api['group']}/{api['version']}"
    return f"{group}/namespaces/{autoscaler['metadata']['namespace']}/{metric['name']}?{query}"
