"""The HTTP/2 gRPC listener: address, calls, and stop during a health watch."""

import asyncio

import grpc

from headrace.server.grpc_asgi import GrpcHttp2Server
from headrace.server.grpc_service import GrpcService
from headrace.server.listen import new_event_loop
from server.grpc_support import FunctionDataplane

WAIT_S = 30.0


def test_server_stops_during_a_health_watch():
    async def main():
        server = GrpcHttp2Server(GrpcService(FunctionDataplane()), "127.0.0.1", 0, message_bytes_max=1 << 20)
        assert server.address == f"grpc://127.0.0.1:{server.port}"
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert await live(b"", timeout=WAIT_S) == b"\x08\x01"
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT_S)
            assert await watch.read() == b"\x08\x01"
            stopping = asyncio.ensure_future(server.stop(WAIT_S))
            while await watch.read() is not grpc.aio.EOF:
                pass
        await asyncio.wait_for(stopping, WAIT_S)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
