"""Health checks and reflection of an external scaler."""

import grpc
import pytest

from cases import for_each
from headrace.protocols.protobuf import message_class
from scaling.keda.keda_client import remaining
from scaling.keda.scaler_server import DecidedPools, listening
from server.grpc_support import bidi, code_of, in_event_loop, unary

HEALTH = "/grpc.health.v1.Health/"
Check = message_class("HealthCheckRequest", package="grpc.health.v1")
Checked = message_class("HealthCheckResponse", package="grpc.health.v1")
Listed = message_class("HealthListResponse", package="grpc.health.v1")
SERVICE = "externalscaler.ExternalScaler"
SERVING, NOT_SERVING = 1, 2


@in_event_loop
async def test_health_needs_no_ledger():
    pools = DecidedPools()
    pools.ledger.unavailable = True
    async with listening(pools.service) as channel:
        check = unary(channel, "Check", response=Checked, path=HEALTH)
        for service in ("", SERVICE):
            assert (await check(Check(service=service))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(Check(service="inference.GRPCInferenceService"))
        assert code_of(caught) == "NOT_FOUND"
        listed = await unary(channel, "List", response=Listed, path=HEALTH)(Check())
        assert {name: each.status for name, each in listed.statuses.items()} == {"": 1, SERVICE: 1}
    assert pools.readings.count == 0


@in_event_loop
async def test_health_after_drain_is_not_serving():
    pools = DecidedPools()
    async with listening(pools.service) as channel:
        watch = channel.unary_stream(f"{HEALTH}Watch", response_deserializer=Checked.FromString)(b"")
        assert (await watch.read()).status == SERVING
        pools.service.drain()
        assert [each.status for each in await remaining(watch)] == [NOT_SERVING]
        check = unary(channel, "Check", response=Checked, path=HEALTH)
        assert (await check(Check())).status == NOT_SERVING


@for_each("version", ["v1", "v1alpha"])
@in_event_loop
async def test_reflection_describes_only_the_services_of_the_listener(version):
    package = f"grpc.reflection.{version}"
    request = message_class("ServerReflectionRequest", package=package)
    response = message_class("ServerReflectionResponse", package=package)
    requested = [
        request(list_services=""),
        request(file_containing_symbol=f"{SERVICE}.GetMetrics"),
        request(file_by_filename="headrace/inference.proto"),
        request(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    async with listening(DecidedPools().service) as channel:
        call = bidi(channel, "ServerReflectionInfo", response=response, path=f"/{package}.ServerReflection/")(
            requested
        )
        services, described, *others = [each async for each in call]
    assert [each.name for each in services.list_services_response.service] == [
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    assert len(described.file_descriptor_response.file_descriptor_proto) == 1
    assert [each.error_response.error_code for each in others] == [5, 5]
