"""KServe's InferenceGRPCClient, and the messages of KServe's own repository calls."""

import asyncio

import grpc
import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

A = np.arange(8, dtype=np.int32).reshape(2, 4)


def with_client(addresses, call):
    async def main():
        async with InferenceGRPCClient(addresses["grpc"], timeout=30) as client:
            return await call(client)

    return asyncio.run(main())


def make_input(name, values, datatype, *, raw=True):
    tensor = InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=raw)
    return tensor


def infer(addresses, model, *inputs, **more):
    return with_client(addresses, lambda c: c.infer(InferRequest(model, list(inputs), **more)))


def test_health(addresses):
    assert with_client(addresses, lambda c: c.is_server_live())
    assert with_client(addresses, lambda c: c.is_server_ready())
    assert with_client(addresses, lambda c: c.is_model_ready("sum"))
    with pytest.raises(grpc.RpcError) as raised:
        with_client(addresses, lambda c: c.is_model_ready("nothing"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("raw", [True, False])
def test_infer(addresses, raw):
    response = infer(
        addresses, "sum", make_input("a", A, "INT32", raw=raw), make_input("b", A, "INT32", raw=raw),
        request_id="mine", model_version="1",
    )  # fmt: skip
    assert (response.id, response.model_name, response.model_version) == ("mine", "sum", "1")
    np.testing.assert_array_equal(response.get_output_by_name("sum").as_numpy(), A + A)


def test_half_precision(addresses):
    x = np.array([[1.5, -65504]], np.float16)
    response = infer(addresses, "echo_FP16", make_input("x", x, "FP16"))
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), x)


@pytest.mark.parametrize("raw", [True, False])
def test_text(addresses, raw):
    response = infer(
        addresses, "upper", make_input("text", np.array(["straße", "b"], object), "BYTES", raw=raw)
    )
    assert [bytes(t).decode() for t in response.outputs[0].as_numpy()] == ["STRASSE", "B"]


def test_parameters_are_accepted(addresses):
    x = make_input("x", np.ones((1, 2), np.float32), "FP32")
    response = infer(addresses, "echo_FP32", x, parameters={"mood": "good", "priority": 3, "sure": True})
    assert response.model_name == "echo_FP32"


def test_errors(addresses):
    with pytest.raises(grpc.RpcError) as raised:
        infer(addresses, "fails", make_input("x", np.ones((1, 1), np.float32), "FP32"))
    assert (raised.value.code(), "out of luck" in raised.value.details()) == (grpc.StatusCode.INTERNAL, True)


def test_load_and_unload_with_kserve_messages(addresses):
    """KServe has the model's name in field 1, where others have the repository's."""
    with grpc.insecure_channel(addresses["grpc"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        unloaded = stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="spare"))
        assert (unloaded.model_name, unloaded.isUnloaded) == ("spare", True)
        loaded = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="spare"))
        assert (loaded.model_name, loaded.isLoaded) == ("spare", True)


def test_metadata_with_generated_stubs(addresses):
    with grpc.insecure_channel(addresses["grpc"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "headrace"
        metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="sum"))
        assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
            ("a", "INT32", [-1, 4]),
            ("b", "INT32", [-1, 4]),
        ]
