"""The grpc.aio listener: start and stop, port, TLS and limits."""

import asyncio

import grpc
import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings
from headrace.server.grpc_service import GrpcService
from headrace.server.listener import TlsFiles
from server.grpc_support import (
    FunctionDataplane,
    FunctionModel,
    code_of,
    echo,
    in_event_loop,
    infer_request,
    serving,
    unary,
    values,
)

ROWS = np.ones((1, 2), np.float32)


def server(plane=None, **settings):
    service = GrpcService(plane or FunctionDataplane(m=FunctionModel(echo)))
    return GrpcAioServer(service, GrpcAioSettings(**{"port": 0, **settings}))


@in_event_loop
async def test_stop_before_start_and_twice_does_nothing():
    made = server()
    await made.stop()
    await made.start()
    assert made.port > 0
    await made.stop()
    await made.stop()
    assert made.port == 0


@in_event_loop
async def test_port_in_use_is_refused():
    first = server()
    await first.start()
    try:
        with pytest.raises(ConfigError, match="if the port is in use"):
            await server(port=first.port).start()
    finally:
        await first.stop()


@in_event_loop
async def test_running_calls_finish_within_the_grace_period():
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(request):
        begun.set()
        await release.wait()
        return request["x"]

    made = server(FunctionDataplane(m=FunctionModel(slow)))
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
        call = asyncio.ensure_future(unary(channel)(infer_request(ROWS)).code())
        await begun.wait()
        stopping = asyncio.ensure_future(made.stop(20))
        release.set()
        await stopping
        assert (await call).name == "OK"


@in_event_loop
async def test_calls_beyond_the_limit_are_refused():
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(request):
        begun.set()
        await release.wait()
        return request["x"]

    async with serving(FunctionDataplane(m=FunctionModel(slow)), calls_max=1) as channel:
        first = asyncio.ensure_future(unary(channel)(infer_request(ROWS)).code())
        await begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
        assert code_of(caught) == "RESOURCE_EXHAUSTED"
        release.set()
        assert (await first).name == "OK"


def credentials(pems, *, client: bool):
    key, chain = ((pems / f"client.{end}").read_bytes() for end in ("key", "pem")) if client else (None, None)
    return grpc.ssl_channel_credentials((pems / "ca.pem").read_bytes(), key, chain)


@pytest.mark.parametrize("mutual", [False, True])
@in_event_loop
async def test_tls_and_mutual_tls(pems, mutual):
    tls = TlsFiles(pems / "server.pem", pems / "server.key", pems / "ca.pem" if mutual else None)
    made = server(tls=tls)
    await made.start()
    try:
        async with grpc.aio.secure_channel(
            f"localhost:{made.port}", credentials(pems, client=mutual)
        ) as channel:
            np.testing.assert_array_equal(values(await unary(channel)(infer_request(ROWS))), ROWS)
        if mutual:
            stranger = grpc.aio.secure_channel(f"localhost:{made.port}", credentials(pems, client=False))
            async with stranger as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await unary(channel)(infer_request(ROWS))
            assert code_of(caught) == "UNAVAILABLE"
        async with grpc.aio.insecure_channel(f"localhost:{made.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await unary(channel)(infer_request(ROWS))
    finally:
        await made.stop()


@in_event_loop
async def test_missing_or_invalid_tls_files_are_refused(pems, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        await server(tls=TlsFiles(pems / "server.pem", tmp_path / "none.key")).start()
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ConfigError):
        await server(tls=TlsFiles(tmp_path / "bad.pem", pems / "server.key")).start()


@for_each("name", ["message_bytes_max", "calls_max", "streams_max", "keepalive_s"])
def test_non_positive_limits_are_refused(name):
    with pytest.raises(ConfigError, match=name):
        GrpcAioSettings(**{name: 0})
