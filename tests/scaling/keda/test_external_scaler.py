"""The calls of KEDA for the state of a pool, through a real server."""

import asyncio
import threading

import grpc
import pytest

from cases import for_each
from headrace.core.errors import JobLedgerUnavailableError
from headrace.server.scaling.keda import ExternalScaler
from scaling.keda.keda_client import MESSAGES, PATH, KedaClient
from scaling.keda.scaler_server import DecidedPools, listening
from scaling.pool_bench import unshared
from server.grpc_support import code_of, in_event_loop

METRIC = "s0-headrace_pool_workers_wanted"
CALLS = {
    "IsActive": lambda client: client.is_active(),
    "GetMetrics": lambda client: client.values(METRIC),
    "StreamIsActive": lambda client: client.stream().read(),
}


async def status_of(call):
    """Return the status and the text of a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return code_of(caught), caught.value.details()


@in_event_loop
async def test_one_metric_has_a_target_of_one_worker_for_each_pod():
    pools = DecidedPools()
    pools.ledger.unavailable = True
    async with listening(pools.service) as channel:
        assert await KedaClient(channel, index=3).specs() == [("s3-headrace_pool_workers_wanted", 1.0)]
        response = await channel.unary_unary(f"{PATH}GetMetricSpec")(b"")
    # Older versions of KEDA read the integer alone.
    (spec,) = MESSAGES["GetMetricSpecResponse"].FromString(response).metricSpecs
    assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
    assert pools.readings.count == 0


@for_each("wanted", [1, 7, 1000])
@in_event_loop
async def test_metric_is_the_decision_in_both_fields(wanted):
    pools = DecidedPools()
    async with listening(pools.service) as channel:
        client = KedaClient(channel)
        pools.decide(wanted)
        (value,) = await client.values(METRIC)
        assert value.metricName == "headrace_pool_workers_wanted"
        assert (value.metricValue, value.metricValueFloat) == (wanted, float(wanted))
        assert await client.metric_and_activity(METRIC) == (float(wanted), True)


@in_event_loop
async def test_zero_workers_are_zero_and_inactive():
    pools = DecidedPools()
    async with listening(pools.service) as channel:
        client = KedaClient(channel)
        pools.decide(5)
        pools.decide(0)
        (value,) = await client.values(METRIC)
        assert (value.metricValue, value.metricValueFloat) == (0, 0.0)
        assert await client.metric_and_activity(METRIC) == (0.0, False)


@in_event_loop
async def test_metadata_names_the_pool():
    pools = DecidedPools()
    pools.decide(0)
    pools.decide(4, "gpu")
    async with listening(pools.service) as channel:
        other = {"other": "gpu", "scalerAddress": "headrace:9090"}
        for metadata, expected in (({}, 0), (other, 0), ({"pool": "default"}, 0), ({"pool": "gpu"}, 4)):
            client = KedaClient(channel, metadata)
            assert await client.metric_and_activity(METRIC) == (expected, expected > 0)
            assert (await client.stream().read()).result == (expected > 0)


@for_each("name", list(CALLS))
@in_event_loop
async def test_unknown_pool_is_not_found(name):
    pools = DecidedPools()
    pools.decide(4)
    async with listening(pools.service) as channel:
        for pool in ("gpu", ""):
            code, text = await status_of(CALLS[name](KedaClient(channel, {"pool": pool})))
            assert (code, f"no pool {pool!r}" in text) == ("NOT_FOUND", True)


@for_each("name", list(CALLS))
@in_event_loop
async def test_pool_without_a_controller_is_unavailable(name):
    pools = DecidedPools()
    async with listening(pools.service) as channel:
        call = CALLS[name]
        pools.ledger.control_pool("default", "c-1", 1_000)
        code, text = await status_of(call(KedaClient(channel)))
        assert (code, "no decision yet" in text) == ("UNAVAILABLE", True)
        pools.decide(0)
        await call(KedaClient(channel))
        pools.end_lease()
        code, text = await status_of(call(KedaClient(channel)))
        assert (code, "no controller" in text) == ("UNAVAILABLE", True)


@for_each("name", list(CALLS))
@in_event_loop
async def test_outage_of_the_ledger_is_unavailable(name):
    pools = DecidedPools()
    pools.decide(0)
    async with listening(pools.service) as channel:
        pools.ledger.unavailable = True
        assert (await status_of(CALLS[name](KedaClient(channel))))[0] == "UNAVAILABLE"
        pools.ledger.unavailable = False
        await CALLS[name](KedaClient(channel))


@for_each("metric", ["", "s0-headrace_pool_workers_wanted", "other", "headrace_pool_workers_wanted2"])
@in_event_loop
async def test_unknown_metric_is_not_found(metric):
    pools = DecidedPools()
    pools.decide(4)
    async with listening(pools.service) as channel:
        code, text = await status_of(KedaClient(channel, index=1).values(metric))
    assert (code, f"no metric {metric!r}" in text) == ("NOT_FOUND", True)
    assert pools.readings.count == 0


@for_each("method", ["IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"])
@in_event_loop
async def test_malformed_message_is_an_invalid_argument(method):
    pools = DecidedPools()
    pools.decide(4)
    async with listening(pools.service) as channel:
        if method == "StreamIsActive":
            call = channel.unary_stream(PATH + method)(b"\x0a\x7fm").read()
        else:
            call = channel.unary_unary(PATH + method)(b"\x0a\x7fm")
        assert (await status_of(call))[0] == "INVALID_ARGUMENT"


@in_event_loop
async def test_streams_of_metric_specs_are_unimplemented():
    """KEDA then calls GetMetricSpec."""
    async with listening(DecidedPools().service) as channel:
        call = channel.unary_stream(f"{PATH}StreamMetricSpec")(b"")
        assert (await status_of(call.read()))[0] == "UNIMPLEMENTED"


class BlockedReading:
    """A reading that blocks until a test lets it end."""

    def __init__(self, read):
        self._read = read
        self.released = threading.Event()
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if not self.released.wait(30):
            raise JobLedgerUnavailableError("the test does not end the reading")
        return self._read()


@in_event_loop
async def test_concurrent_calls_share_one_reading():
    pools = DecidedPools()
    pools.decide(4)
    reading = BlockedReading(pools.ledger.pools)
    call = ExternalScaler(unshared(reading)).methods()[f"{PATH}IsActive"].unary
    calls = [asyncio.create_task(call(None, b"")) for _ in range(50)]
    await asyncio.sleep(0)
    # A client that disconnects takes no reading from the others.
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    reading.released.set()
    assert set(await asyncio.gather(*calls[1:])) == {b"\x08\x01"}
    assert reading.calls == 1
    pools.decide(0)
    assert await call(None, b"") == b""
    assert reading.calls == 2
