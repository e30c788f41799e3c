"""gRPC calls are counted exactly and observed."""

import asyncio
import logging

import grpc
import pytest

from headrace.core.errors import PredictError
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings
from headrace.server.grpc_service import observe_methods
from headrace.server.listener import GrpcMethod
from headrace.server.observation import CURRENT, Observers, ResponseCounters, log_fields

WAIT_S = 30.0


class Noting:
    def __init__(self):
        self.begun, self.ended = [], []

    def begin(self, seen):
        self.begun.append(seen)

    def end(self, seen):
        self.ended.append(log_fields(seen))


class Service:
    """The interface of a service that a transport uses, over plain functions."""

    def __init__(self, noting=None):
        self.response_counters = ResponseCounters("grpc")
        self._observers = None if noting is None else Observers([noting])
        self.current = []

    def drain(self):
        pass

    def methods(self):
        async def echo(call, data):
            self.current.append(CURRENT.get())
            if data == b"bad":
                raise PredictError("m", "it broke")
            if data == b"worse":
                raise KeyError("secret")
            return data

        async def count(call, requests):
            async for data in requests:
                if data == b"bad":
                    raise PredictError("m", "it broke")
                yield data, data

        methods = {"/t.T/Echo": GrpcMethod(unary=echo), "/t.T/Count": GrpcMethod(stream=count)}
        return observe_methods(methods, self.response_counters, self._observers)


def ran(service, test):
    async def main():
        server = GrpcAioServer(service, GrpcAioSettings(host="127.0.0.1", port=0))
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                await asyncio.wait_for(test(channel), WAIT_S)
        finally:
            await server.stop()

    asyncio.run(main())


async def codes(calls):
    found = []
    for call in calls:
        try:
            await call
            found.append("OK")
        except grpc.aio.AioRpcError as error:
            found.append(error.code().name)
    return found


@pytest.mark.parametrize("watched", [True, False])
def test_calls_are_counted_by_their_codes(watched, caplog):
    service = Service(Noting() if watched else None)

    async def test(channel):
        echo = channel.unary_unary("/t.T/Echo")
        found = await codes(echo(data) for data in [b"a"] * 50 + [b"bad"] * 7 + [b"worse"])
        assert found == ["OK"] * 50 + ["INTERNAL"] * 8

    with caplog.at_level(logging.ERROR):
        ran(service, test)
    assert service.response_counters.sent == {("Echo", "OK"): 50, ("Echo", "INTERNAL"): 8}
    assert caplog.text.count("KeyError: 'secret'") == 1  # logged once, with and without observers
    assert [seen is not None for seen in service.current] == [watched] * 58


def test_streams_and_their_items_are_counted():
    noting = Noting()
    service = Service(noting)

    async def test(channel):
        count = channel.stream_stream("/t.T/Count")
        assert [m async for m in count(iter([b"ab", b"cd"]))] == [b"ab", b"ab", b"cd", b"cd"]
        with pytest.raises(grpc.aio.AioRpcError):
            assert [m async for m in count(iter([b"ab", b"bad"]))]

    ran(service, test)
    assert service.response_counters.sent == {("Count", "OK"): 1, ("Count", "INTERNAL"): 1}
    whole, broken = noting.ended
    assert (whole["status"], whole["items"], whole["bytes_out"]) == ("OK", 4, 8)
    assert (broken["status"], broken["items"], broken["error"]) == ("INTERNAL", 2, "PredictError")


def test_observation_reads_call_metadata():
    noting = Noting()
    service = Service(noting)

    async def test(channel):
        await channel.unary_unary("/t.T/Echo")(b"abc", metadata=(("x-request-id", "edge-1"),))

    ran(service, test)
    ((seen,), (line,)) = noting.begun, noting.ended
    assert seen.path == "/t.T/Echo"
    assert (line["request_id"], line["door"], line["action"]) == ("edge-1", "grpc", "Echo")
    assert (line["bytes_in"], line["bytes_out"]) == (3, 3)


def test_cancelled_call_is_counted():
    entered, over = asyncio.Event(), asyncio.Event()
    counters = ResponseCounters("grpc")

    async def hang(call, data):
        entered.set()
        await over.wait()
        return data

    class Call:
        def metadata(self, key):
            return None

    async def main():
        method = observe_methods({"/t.T/Hang": GrpcMethod(unary=hang)}, counters, None)["/t.T/Hang"]
        task = asyncio.ensure_future(method.unary(Call(), b""))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert counters.sent == {("Hang", "CANCELLED"): 1}
