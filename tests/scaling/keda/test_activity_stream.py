"""Streams of the activity of a pool: KEDA's triggers of the type `external-push`."""

import asyncio

import grpc
import pytest

from headrace.server.listener import GrpcMethod, GrpcMethods
from headrace.server.scaling.keda import ExternalScaler
from scaling.keda.keda_client import PATH, IsActive, KedaClient, ScaledObjectRef, remaining
from scaling.keda.scaler_server import DecidedPools, listening
from scaling.pool_bench import unshared
from server.grpc_support import code_of, in_event_loop


@in_event_loop
async def test_stream_sends_the_state_at_once_and_then_changes():
    pools = DecidedPools()
    pools.decide(0)
    async with listening(pools.service) as channel:
        stream = KedaClient(channel).stream()
        assert not (await stream.read()).result
        for wanted, active in ((2, True), (0, False), (1, True)):
            pools.decide(wanted)
            assert (await stream.read()).result == active


@in_event_loop
async def test_stream_sends_nothing_without_a_change():
    pools = DecidedPools()
    pools.decide(3)
    async with listening(pools.service) as channel:
        stream = KedaClient(channel).stream()
        for wanted in (3, 8, 1):
            pools.decide(wanted)
            await pools.readings.wait_for_look()
        pools.decide(0)
        await pools.readings.wait_for_look()
        pools.service.drain()
        assert [each.result for each in await remaining(stream)] == [True, False]


@in_event_loop
async def test_outage_ends_no_stream_and_sends_nothing():
    pools = DecidedPools()
    pools.decide(3)
    async with listening(pools.service) as channel:
        stream = KedaClient(channel).stream()
        seen = [(await stream.read()).result]
        for same in (3, 1):
            pools.ledger.unavailable = True
            await pools.readings.wait_for_look()
            pools.ledger.unavailable = False
            pools.decide(same)
            await pools.readings.wait_for_look()
        pools.ledger.unavailable = True
        await pools.readings.wait_for_look()
        pools.ledger.unavailable = False
        pools.decide(0)
        await pools.readings.wait_for_look()
        pools.end_lease()
        await pools.readings.wait_for_look()
        pools.decide(2)
        await pools.readings.wait_for_look()
        pools.service.drain()
        seen += [each.result for each in await remaining(stream)]
    assert seen == [True, False, True]


@in_event_loop
async def test_unexpected_error_ends_the_stream():
    """KEDA opens a new one, so that a defect does not hide."""
    failing = [False]
    pools = DecidedPools()
    pools.decide(3)

    def read():
        if failing[0]:
            raise ZeroDivisionError
        return pools.ledger.pools()

    async with listening(ExternalScaler(unshared(read), poll_s=0.01)) as channel:
        stream = KedaClient(channel).stream()
        assert (await stream.read()).result
        failing[0] = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert code_of(caught) == "INTERNAL"


@in_event_loop
async def test_drain_ends_a_stream_before_its_next_look():
    pools = DecidedPools()
    pools.decide(3)
    readings = []

    def read():
        readings.append(pools.ledger.pools())
        return readings[-1]

    service = ExternalScaler(unshared(read), poll_s=1000)

    async def request():
        yield ScaledObjectRef().SerializeToString()

    stream = service.methods()[f"{PATH}StreamIsActive"].stream(None, request())
    (first,) = await anext(stream)
    assert IsActive.FromString(first).result
    following = asyncio.create_task(anext(stream, "the end"))
    for _ in range(3):
        await asyncio.sleep(0)
    service.drain()
    assert await following == "the end"
    assert len(readings) == 1


@in_event_loop
async def test_streams_of_a_listener_that_stops_end_without_an_error():
    pools = DecidedPools()
    pools.decide(3)
    async with listening(pools.service) as channel:
        stream = KedaClient(channel).stream()
        assert (await stream.read()).result
        pools.service.drain()
        assert await remaining(stream) == []
        assert (await stream.code()).name == "OK"


class StreamEnds(GrpcMethods):
    """The methods of an external scaler. `ended` is set when a stream has ended on the server."""

    def __init__(self, service):
        self._service = service
        self.ended = asyncio.Event()

    def methods(self):
        methods = self._service.methods()
        stream = methods[f"{PATH}StreamIsActive"].stream

        async def watched(call, messages):
            try:
                async for batch in stream(call, messages):
                    yield batch
            finally:
                self.ended.set()

        return methods | {f"{PATH}StreamIsActive": GrpcMethod(stream=watched)}

    def drain(self):
        self._service.drain()


@in_event_loop
async def test_client_that_cancels_ends_the_stream_on_the_server():
    pools = DecidedPools()
    pools.decide(3)
    watched = StreamEnds(pools.service)
    async with listening(watched) as channel:
        stream = KedaClient(channel).stream()
        assert (await stream.read()).result
        await pools.readings.wait_for_look()
        assert not watched.ended.is_set()
        stream.cancel()
        await watched.ended.wait()


@in_event_loop
async def test_client_opens_a_new_stream_until_the_state_is_known():
    pools = DecidedPools()
    pools.decide(3)
    pools.ledger.unavailable = True
    activities, waits = asyncio.Queue(), []

    async def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            pools.ledger.unavailable = False

    async with listening(pools.service) as channel:
        held = asyncio.create_task(KedaClient(channel).hold_stream(activities.put_nowait, wait))
        assert await activities.get()
        assert waits == [2.0, 4.0, 8.0]
        pools.decide(0)
        assert not await activities.get()
        held.cancel()
        await asyncio.wait([held])
