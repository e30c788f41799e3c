"""`headrace scale` as a process that KEDA and Kubernetes read: several controllers, outages and TLS."""

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


def wait_for_decision(ledger):
    wait_until(lambda: ledger.decisions(pool="gpu").decisions, "the first decision")


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
        wait_for_decision(ledger)
        with scale(tmp_path, "--keda-port", "0") as second:
            second.wait_until_ready()
            acting = ledger.pools()[0].controller
            asyncio.run(asyncio.wait_for(follow(first, second), WAIT_S))
            assert ledger.pools()[0].controller != acting
            assert second.terminate() == 0


def test_database_that_is_down_is_an_error_and_never_zero(tmp_path, postgres, postgres_url):
    url = postgres_url.replace("postgresql+psycopg", "postgresql")
    ledger = open_ledger(url)
    ledger.start()
    ledger.submit([NewJob("m", input_uri="mem://x") for _ in range(3)])

    async def read(client):
        """Return the value of the metric, or the code of the error."""
        try:
            value, active = await client.metric_and_activity(f"s0-{METRIC}")
        except grpc.aio.AioRpcError as error:
            return error.code().name
        assert active
        return value

    async def wait_for_change(client, value):
        """Wait until reads return another value, and return that."""
        loop, seen = asyncio.get_running_loop(), []

        def changed():
            seen.append(asyncio.run_coroutine_threadsafe(read(client), loop).result(WAIT_S))
            return seen[-1] != value

        await asyncio.to_thread(wait_until, changed, "another value")
        return seen[-1]

    async def follow(process):
        async with channel_to(process) as channel:
            client = KedaClient(channel, GPU)
            stream = client.stream()
            assert (await stream.read()).result
            assert await read(client) == 3.0
            await asyncio.to_thread(postgres.kill)
            assert await wait_for_change(client, 3.0) == "UNAVAILABLE"
            await asyncio.to_thread(postgres.start)
            assert await wait_for_change(client, "UNAVAILABLE") == 3.0
            assert not stream.done()
            stream.cancel()

    with scale(tmp_path, "--keda-port", "0", "--ledger", url) as process:
        process.wait_until_ready()
        wait_for_decision(ledger)
        ledger.stop()
        try:
            asyncio.run(asyncio.wait_for(follow(process), 2 * WAIT_S))
        finally:
            if not postgres.running:
                postgres.start()
        assert process.terminate() == 0


def test_both_ports_require_a_client_certificate(tmp_path, ledger, pems):
    ledger.submit([NewJob("m", input_uri="mem://x") for _ in range(3)])
    files = {"certificate": "server.pem", "key": "server.key", "client-ca": "ca.pem"}
    tls = [argument for name, file in files.items() for argument in (f"--tls-{name}", str(pems / file))]
    with scale(tmp_path, "--external-metrics-port", "0", "--keda-port", "0", *tls) as process:
        process.wait_until_ready()
        wait_for_decision(ledger)
        (item,) = external_metric(process.urls["external_metrics"], pems, client=True)
        assert (item["metricLabels"], item["value"]) == (GPU, "3")
        with pytest.raises(OSError, match=r"certificate required|reset|closed|EOF"):
            external_metric(process.urls["external_metrics"], pems, client=False)
        assert asyncio.run(keda_activity(process.urls["keda"], pems, client=True))
        with pytest.raises(grpc.aio.AioRpcError):
            asyncio.run(keda_activity(process.urls["keda"], pems, client=False))
        assert process.terminate() == 0


def external_metric(url, pems, *, client):
    """Return the values of the pool, as the API server of Kubernetes reads them."""
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/default/{METRIC}?labelSelector=pool%3Dgpu"
    context = ssl.create_default_context(cafile=pems / "ca.pem")
    if client:
        context.load_cert_chain(pems / "client.pem", pems / "client.key")
    address = url.replace("127.0.0.1", "localhost")
    with urllib.request.urlopen(address + path, context=context, timeout=WAIT_S) as response:
        return json.load(response)["items"]


async def keda_activity(url, pems, *, client):
    """Return the activity of the pool, as KEDA reads it with the certificates of a TriggerAuthentication."""
    key, chain = ((pems / f"client.{end}").read_bytes() for end in ("key", "pem")) if client else (None, None)
    credentials = grpc.ssl_channel_credentials((pems / "ca.pem").read_bytes(), key, chain)
    address = url.removeprefix("grpcs://").replace("127.0.0.1", "localhost")
    async with grpc.aio.secure_channel(address, credentials) as channel:
        return await KedaClient(channel, GPU).is_active()
