"""open-inference-grpc: stubs generated from the Open Inference Protocol."""

import grpc
import pytest
from open_inference.grpc.protocol import (
    ModelInferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from open_inference.grpc.service import GRPCInferenceServiceStub


@pytest.fixture
def stub(addresses):
    with grpc.insecure_channel(addresses["grpc"]) as channel:
        yield GRPCInferenceServiceStub(channel)


def sum_request(**more):
    tensor = {"datatype": "INT32", "shape": [1, 4], "contents": {"int_contents": [1, 2, 3, 4]}}
    return ModelInferRequest(
        model_name="sum", inputs=[{"name": "a", **tensor}, {"name": "b", **tensor}], **more
    )


def test_health_and_metadata(stub):
    assert stub.ServerLive(ServerLiveRequest()).live
    assert stub.ServerReady(ServerReadyRequest()).ready
    assert stub.ModelReady(ModelReadyRequest(name="sum")).ready
    assert stub.ModelReady(ModelReadyRequest(name="sum", version="1")).ready
    assert stub.ServerMetadata(ServerMetadataRequest()).name == "headrace"
    metadata = stub.ModelMetadata(ModelMetadataRequest(name="sum"))
    assert (list(metadata.versions), dict(metadata.properties)) == (["1", "2"], {})
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("sum", "INT32", [-1, 4]),
        ("difference", "INT32", [-1, 4]),
    ]


def test_typed_contents(stub):
    response = stub.ModelInfer(sum_request(id="mine", model_version="1"))
    assert (response.id, response.model_name, response.model_version) == ("mine", "sum", "1")
    assert list(response.outputs[0].contents.int_contents) == [2, 4, 6, 8]
    assert list(response.outputs[1].contents.int_contents) == [0, 0, 0, 0]


def test_raw_contents(stub):
    request = ModelInferRequest(
        model_name="echo_FP16",
        inputs=[{"name": "x", "datatype": "FP16", "shape": [1, 2]}],
        raw_input_contents=[b"\x00\x3c\x00\xc0"],
    )
    response = stub.ModelInfer(request)
    assert list(response.raw_output_contents) == [b"\x00\x3c\x00\xc0"]
    assert response.outputs[0].datatype == "FP16"


def test_requested_outputs_and_parameters(stub):
    request = sum_request(outputs=[{"name": "difference"}])
    request.parameters["priority"].uint64_param = 1
    request.parameters["scale"].double_param = 0.5
    assert [o.name for o in stub.ModelInfer(request).outputs] == ["difference"]


def test_errors(stub):
    request = sum_request()
    request.model_name = "nothing"
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    assert "nothing" in raised.value.details()
