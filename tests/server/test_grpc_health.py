"""Health of the server, its services and its models: checks and watches."""

import grpc
import pytest

from headrace.protocols.protobuf import message_class
from headrace.server.health_and_reflection import GrpcHealth
from server.grpc_support import (
    FunctionDataplane,
    FunctionModel,
    bidi,
    code_of,
    echo,
    in_event_loop,
    serving,
    unary,
)

PATH = "/grpc.health.v1.Health/"
Check = message_class("HealthCheckRequest", package="grpc.health.v1")
Checked = message_class("HealthCheckResponse", package="grpc.health.v1")
List = message_class("HealthListRequest", package="grpc.health.v1")
Listed = message_class("HealthListResponse", package="grpc.health.v1")
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@in_event_loop
async def test_check_covers_server_services_and_models():
    plane = FunctionDataplane(m=FunctionModel(echo))
    async with serving(plane) as channel:
        check = unary(channel, "Check", response=Checked, path=PATH)
        for service in ("", "inference.GRPCInferenceService", "m"):
            assert (await check(Check(service=service))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(Check(service="nope"))
        assert code_of(caught) == "NOT_FOUND"
        plane.is_ready = False
        assert (await check(Check())).status == NOT_SERVING
        statuses = (await unary(channel, "List", response=Listed, path=PATH)(List())).statuses
        assert {name: s.status for name, s in statuses.items()} == {
            "": NOT_SERVING,
            "inference.GRPCInferenceService": NOT_SERVING,
            "inference.model_repository.ModelRepositoryService": NOT_SERVING,
        }


@in_event_loop
async def test_watch_reports_every_change():
    plane = FunctionDataplane(m=FunctionModel(echo))
    async with serving(plane) as channel:
        watch = bidi(channel, "Watch", response=Checked, path=PATH)([Check(service="m")])
        assert (await watch.read()).status == SERVING
        plane.is_ready = False
        assert (await watch.read()).status == NOT_SERVING
        del plane.models["m"]
        assert (await watch.read()).status == SERVICE_UNKNOWN


@in_event_loop
async def test_watch_ends_when_the_server_drains():
    health = GrpcHealth(lambda service: SERVING, (), poll_s=1000)

    async def one():
        yield b""

    watch = health.watch(None, one())
    (first,) = await anext(watch)
    assert Checked.FromString(first).status == SERVING
    health.drain()
    assert [Checked.FromString(m).status async for (m,) in watch] == [NOT_SERVING]
