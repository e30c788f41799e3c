"""`headrace scale` as a process that KEDA and Kubernetes read: ports, a controller that stands by, and TLS."""

import asyncio
import json
import ssl
import urllib.request

import grpc
import pytest

from headrace.jobs.job import NewJob
from headrace.jobs.ledgers import open_ledger
from integration.jobs_process import WAIT_S, CommandProcess
from scaling.keda.keda_client import KedaClient
from servers.polling import wait_until

pytestmark = pytest.mark.slow

METRIC = "headrace_pool_workers_wanted"
GPU = {"pool": "gpu"}


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "headrace-data").mkdir()
    ledger = open_ledger(f"sqlite:///{tmp_path / 'headrace-data' / 'jobs.db'}")
    ledger.start()
    yield ledger
    ledger.stop()


def scale(folder, *arguments):
    pool = ("--pool", "gpu", "--workers", "0..5", "--slots", "1", "--interval-s", "0.3")
    return CommandProcess(folder, "scale", *pool, *arguments)


def channel_to(process):
    return grpc.aio.insecure_channel(process.urls["keda"].removeprefix("grpc://"))


def test_keda_reads_controllers_that_act_and_that_stand_by(tmp_path, ledger):
    async def follow(first, second):
        async with channel_to(first) as acts, channel_to(second) as stands_by:
            clients = [KedaClient(channel, GPU) for channel in (acts, stands_by)]
            streams = [client.stream() for client in clients]
            assert [(await stream.read()).result for stream in streams] == [False, False]
            await asyncio.to_thread(ledger.submit, [NewJob("m", input_uri="mem://x") for _ in range(2)])
            # KEDA wakes the workload by the push of any of them.
            assert [(await stream.read()).result for stream in streams] == [True, True]
            for client in clients:
                wanted = await client.metric_and_activity(f"s0-{METRIC}")
                # The other reading may be a second old.
                assert wanted in {(1.0, True), (2.0, True)}
            assert await asyncio.to_thread(first.terminate) == 0
            assert await streams[0].read() is grpc.aio.EOF
            await asyncio.to_thread(wait_until, lambda: ledger.pools()[0].controlled, "another controller")
            assert await clients[1].is_active()

    with scale(tmp_path, "--keda-port", "0") as first:
        first.wait_until_ready()
        wait_until(ledger.pools, "the first lease")
        with scale(tmp_path, "--keda-port", "0") as second:
            second.wait_until_ready()
            acting = ledger.pools()[0].controller
            asyncio.run(asyncio.wait_for(follow(first, second), WAIT_S))
            assert ledger.pools()[0].controller != acting
            assert second.terminate() == 0


def test_external_metrics_need_a_client_certificate(tmp_path, ledger, pems):
    ledger.submit([NewJob("m", input_uri="mem://x") for _ in range(3)])
    files = ("--tls-certificate", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem")
    files = [name if name.startswith("--") else str(pems / name) for name in files]
    with scale(tmp_path, "--external-metrics-port", "0", *files) as process:
        process.wait_until_ready()
        wait_until(lambda: ledger.decisions(pool="gpu").decisions, "the first decision")
        url = process.urls["external_metrics"].replace("127.0.0.1", "localhost")
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/default/{METRIC}?labelSelector=pool%3Dgpu"
        stranger = ssl.create_default_context(cafile=pems / "ca.pem")
        with pytest.raises(OSError, match=r"certificate required|reset|closed|EOF"):
            urllib.request.urlopen(url + path, context=stranger, timeout=WAIT_S)
        known = ssl.create_default_context(cafile=pems / "ca.pem")
        known.load_cert_chain(pems / "client.pem", pems / "client.key")
        with urllib.request.urlopen(url + path, context=known, timeout=WAIT_S) as response:
            (item,) = json.load(response)["items"]
        assert (item["metricLabels"], item["value"]) == (GPU, "3")
        assert process.terminate() == 0
