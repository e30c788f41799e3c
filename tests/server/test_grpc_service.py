"""The other gRPC methods, through a real server and headrace's own messages."""

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from cases import for_each
from headrace.core.errors import UnauthenticatedError, UnsupportedError
from headrace.jobs.access import Access, Scope
from headrace.protocols.protobuf import file_descriptors, message_class
from headrace.server.grpc_inference import GrpcStreamSettings
from headrace.server.grpc_service import GrpcService
from headrace.testing import ManualClock
from server.grpc_support import (
    ADMIN,
    LIMITED,
    USER,
    FunctionDataplane,
    FunctionModel,
    bidi,
    code_of,
    echo,
    in_event_loop,
    infer_request,
    key_access,
    serving,
    unary,
)
from server.support import key_of

ROWS = np.ones((1, 2), np.float32)
INFERENCE = "inference"
REPOSITORY = "inference.model_repository"
SERVICES = [(INFERENCE, "GRPCInferenceService"), (REPOSITORY, "ModelRepositoryService")]


def plane():
    return FunctionDataplane(m=FunctionModel(echo), other=FunctionModel(echo))


async def ask(channel, method, package=INFERENCE, service="GRPCInferenceService", metadata=None, **fields):
    request = message_class(f"{method}Request", package=package)(**fields)
    response = message_class(f"{method}Response", package=package)
    call = unary(channel, method, response=response, path=f"/{package}.{service}/")
    return await call(request, metadata=metadata)


@in_event_loop
async def test_server_reports_health_and_metadata():
    served = plane()
    async with serving(served) as channel:
        assert (await ask(channel, "ServerLive")).live
        assert (await ask(channel, "ServerReady")).ready
        assert (await ask(channel, "ModelReady", name="m", version="1")).ready
        served.is_ready = False
        assert not (await ask(channel, "ServerReady")).ready
        assert not (await ask(channel, "ModelReady", name="m")).ready
        received = await ask(channel, "ServerMetadata")
        assert (received.name, received.version, list(received.extensions)) == (
            "headrace",
            "1.2",
            ["model_repository", "statistics"],
        )


@in_event_loop
async def test_models_report_metadata_config_and_statistics():
    async with serving(plane()) as channel:
        metadata = await ask(channel, "ModelMetadata", name="m")
        assert (metadata.name, list(metadata.versions), metadata.platform) == ("m", ["1"], "python")
        assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("x", "FP32", [-1, 2])]
        assert (await ask(channel, "ModelConfig", name="m")).config.max_batch_size == 8
        assert [s.name for s in (await ask(channel, "ModelStatistics")).model_stats] == ["m", "other"]
        (one,) = (await ask(channel, "ModelStatistics", name="other")).model_stats
        assert (one.name, one.inference_count, one.inference_stats.success.ns) == ("other", 7, 99)


@for_each("method", ["ModelReady", "ModelMetadata", "ModelConfig"])
@in_event_loop
async def test_unknown_models_and_versions_are_not_found(method):
    async with serving(plane()) as channel:
        for requested in ({"name": "nope"}, {"name": "m", "version": "9"}):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel, method, **requested)
            assert code_of(caught) == "NOT_FOUND"


@for_each(("package", "service"), SERVICES)
@in_event_loop
async def test_both_repository_services_list_load_and_unload(package, service):
    served = plane()
    async with serving(served) as channel:
        index = await ask(channel, "RepositoryIndex", package, service)
        assert [(e.name, e.version, e.state, e.reason) for e in index.models] == [
            ("m", "1", "READY", ""),
            ("other", "1", "READY", ""),
            ("broken", "1", "UNAVAILABLE", "no file"),
        ]
        assert len((await ask(channel, "RepositoryIndex", package, service, ready=True)).models) == 2
        parameter = message_class("ModelRepositoryParameter", package=package)(int64_param=3)
        loaded = await ask(
            channel, "RepositoryModelLoad", package, service, model_name="a", parameters={"p": parameter}
        )
        assert (loaded.model_name, loaded.isLoaded) == ("a", True)
        await ask(channel, "RepositoryModelLoad", package, service, repository_name="as-kserve-has-it")
        await ask(channel, "RepositoryModelUnload", package, service, model_name="a")
    assert served.loaded == [("a", {"p": 3}), ("as-kserve-has-it", {}), ("a", None)]


@in_event_loop
async def test_scopes_are_required():
    async with serving(plane(), access=key_access()) as channel:
        user, admin = ((("authorization", f"Bearer {key}"),) for key in (USER, ADMIN))
        for name, metadata, code in (
            ("ServerMetadata", None, "UNAUTHENTICATED"),
            ("RepositoryIndex", user, "PERMISSION_DENIED"),
            ("RepositoryModelLoad", user, "PERMISSION_DENIED"),
            ("RepositoryModelUnload", user, "PERMISSION_DENIED"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel, name, metadata=metadata)
            assert code_of(caught) == code, name
        assert (await ask(channel, "ServerReady")).ready
        assert len((await ask(channel, "RepositoryIndex", metadata=admin)).models) == 3


@in_event_loop
async def test_calls_of_a_key_are_limited():
    clock = ManualClock()
    key = key_of("slow", USER, Scope.INFER, requests_per_s_max=2)
    sent = (("authorization", f"Bearer {USER}"),)
    async with serving(plane(), access=Access(dict([key]), clock=clock)) as channel:
        await ask(channel, "ServerMetadata", metadata=sent)
        await unary(channel)(infer_request(ROWS), metadata=sent)
        for call in (
            lambda: ask(channel, "ServerMetadata", metadata=sent),
            lambda: unary(channel)(infer_request(ROWS), metadata=sent),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert code_of(caught) == "RESOURCE_EXHAUSTED"
            assert "API key 'slow' has reached its limit of 2 requests per second" in caught.value.details()
            assert dict(caught.value.trailing_metadata())["retry-after-s"] == "0.500"
        assert (await ask(channel, "ServerReady")).ready
        clock.advance(0.5)
        await ask(channel, "ServerMetadata", metadata=sent)


@in_event_loop
async def test_key_limited_to_models_may_name_no_other():
    limited = (("authorization", f"Bearer {LIMITED}"),)
    async with serving(plane(), access=key_access()) as channel:
        for name, field in (
            ("ModelMetadata", "name"),
            ("ModelConfig", "name"),
            ("ModelStatistics", "name"),
            ("RepositoryModelLoad", "model_name"),
            ("RepositoryModelUnload", "model_name"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel, name, metadata=limited, **{field: "m"})
            assert code_of(caught) == "PERMISSION_DENIED", name
        assert not (await ask(channel, "ModelStatistics", metadata=limited)).model_stats


@in_event_loop
async def test_every_method_except_probes_requires_a_key():
    """New methods must check the key, too."""
    probes = ("ServerLive", "ServerReady", "ModelReady", "Health/Check", "Health/Watch")

    class NobodysCall:
        def metadata(self, key):
            return None

        def remaining_s(self):
            return None

    async def nothing():
        return
        yield

    async def first(method):
        if method.unary:
            return await method.unary(NobodysCall(), b"")
        return await anext(method.stream(NobodysCall(), nothing()))

    for path, method in GrpcService(plane(), access=key_access()).methods().items():
        if path.endswith(probes):
            continue
        with pytest.raises((UnauthenticatedError, UnsupportedError)):
            await first(method)


@for_each("name", ["SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "TraceSetting", "LogSettings"])
@in_event_loop
async def test_unsupported_triton_methods_name_the_reason(name):
    async with serving(plane()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"\x0a\x01x")
    assert code_of(caught) == "UNIMPLEMENTED"
    assert "not" in caught.value.details()


@in_event_loop
async def test_methods_match_the_descriptors():
    described = {
        f"/{file.package}.{service.name}/{method.name}"
        for file in file_descriptors()
        if file.package != "externalscaler"
        for service in file.service
        for method in service.method
    }
    methods = GrpcService(plane()).methods()
    assert described <= set(methods)
    assert len(set(methods) - described) == 8
    assert all((method.unary is None) != (method.stream is None) for method in methods.values())


@for_each("version", ["v1", "v1alpha"])
@for_each(("dialect", "answer"), [("mlserver", "ModelInferResponse"), ("triton", "ModelStreamInferResponse")])
@in_event_loop
async def test_reflection_describes_the_services(version, dialect, answer):
    package = f"grpc.reflection.{version}"
    request = message_class("ServerReflectionRequest", package=package)
    response = message_class("ServerReflectionResponse", package=package)
    path = f"/{package}.ServerReflection/"
    requested = [
        request(list_services=""),
        request(file_containing_symbol="inference.GRPCInferenceService"),
        request(file_containing_symbol="inference.ModelMetadataResponse.TensorMetadata"),
        request(file_containing_symbol="grpc.health.v1.HealthCheckResponse.ServingStatus"),
        request(file_by_filename="headrace/health.proto"),
        request(file_by_filename="nope.proto"),
        request(all_extension_numbers_of_type="inference.InferParameter"),
    ]
    async with serving(plane(), streams=GrpcStreamSettings(dialect)) as channel:
        call = bidi(channel, "ServerReflectionInfo", response=response, path=path)(requested)
        responses = [a async for a in call]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bidi(channel, "ServerReflectionInfo", response=response, path=path)([request()]).read()
        assert code_of(caught) == "INVALID_ARGUMENT"
    assert [s.name for s in responses[0].list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "inference.model_repository.ModelRepositoryService",
    ]
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(a.file_descriptor_response.file_descriptor_proto[0])
        for a in responses[1:5]
    ]
    assert [f.package for f in files] == ["inference", "inference", "grpc.health.v1", "grpc.health.v1"]
    (stream,) = (m for m in files[0].service[0].method if m.name == "ModelStreamInfer")
    assert stream.output_type == f".inference.{answer}"
    assert [a.error_response.error_code for a in responses[5:]] == [5, 12]
    assert responses[1].original_request == requested[1]
