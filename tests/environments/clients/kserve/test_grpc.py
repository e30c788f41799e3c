"""KServe's InferenceGRPCClient, and the messages of KServe's own repository calls."""

import asyncio

import grpc
import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

A = np.arange(8, dtype=np.int32).reshape(2, 4)


def with_client(doors, ask):
    async def main():
        async with InferenceGRPCClient(doors["grpc"], timeout=30) as client:
            return await ask(client)

    return asyncio.run(main())


def filled(name, values, datatype, *, raw=True):
    made = InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=raw)
    return made


def infer(doors, model, *inputs, **more):
    return with_client(doors, lambda c: c.infer(InferRequest(model, list(inputs), **more)))


def test_health(doors):
    assert with_client(doors, lambda c: c.is_server_live())
    assert with_client(doors, lambda c: c.is_server_ready())
    assert with_client(doors, lambda c: c.is_model_ready("sum"))
    with pytest.raises(grpc.RpcError) as told:
        with_client(doors, lambda c: c.is_model_ready("nothing"))
    assert told.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("raw", [True, False])
def test_infer(doors, raw):
    response = infer(
        doors, "sum", filled("a", A, "INT32", raw=raw), filled("b", A, "INT32", raw=raw),
        request_id="mine", model_version="1",
    )  # fmt: skip
    assert (response.id, response.model_name, response.model_version) == ("mine", "sum", "1")
    np.testing.assert_array_equal(response.get_output_by_name("sum").as_numpy(), A + A)


def test_half_precision(doors):
    x = np.array([[1.5, -65504]], np.float16)
    response = infer(doors, "echo_FP16", filled("x", x, "FP16"))
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), x)


@pytest.mark.parametrize("raw", [True, False])
def test_text(doors, raw):
    response = infer(doors, "upper", filled("text", np.array(["straße", "b"], object), "BYTES", raw=raw))
    assert [bytes(t).decode() for t in response.outputs[0].as_numpy()] == ["STRASSE", "B"]


def test_parameters_are_taken(doors):
    x = filled("x", np.ones((1, 2), np.float32), "FP32")
    response = infer(doors, "echo_FP32", x, parameters={"mood": "good", "priority": 3, "sure": True})
    assert response.model_name == "echo_FP32"


def test_errors(doors):
    with pytest.raises(grpc.RpcError) as told:
        infer(doors, "fails", filled("x", np.ones((1, 1), np.float32), "FP32"))
    assert (told.value.code(), "out of luck" in told.value.details()) == (grpc.StatusCode.INTERNAL, True)


def test_load_and_unload_as_kserve_sends_them(doors):
    """KServe has the model's name in field 1, where others have the repository's."""
    with grpc.insecure_channel(doors["grpc"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        gone = stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="spare"))
        assert (gone.model_name, gone.isUnloaded) == ("spare", True)
        back = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="spare"))
        assert (back.model_name, back.isLoaded) == ("spare", True)


def test_metadata_by_the_stubs(doors):
    with grpc.insecure_channel(doors["grpc"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "headrace"
        told = stub.ModelMetadata(pb.ModelMetadataRequest(name="sum"))
        assert [(t.name, t.datatype, list(t.shape)) for t in told.inputs] == [
            ("a", "INT32", [-1, 4]),
            ("b", "INT32", [-1, 4]),
        ]
