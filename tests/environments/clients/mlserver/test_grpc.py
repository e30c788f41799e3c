"""MLServer's own stubs and converters over gRPC: unary calls, bidirectional streams, the
repository.
"""

import asyncio

import grpc
import numpy as np
import pytest
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.grpc import converters
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc import model_repository_pb2 as repository_pb
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.grpc.model_repository_pb2_grpc import ModelRepositoryServiceStub
from mlserver.types import Datatype, InferenceRequest, RequestOutput

A = np.arange(8, dtype=np.int32).reshape(2, 4)


@pytest.fixture
def channel(addresses):
    with grpc.insecure_channel(addresses["grpc"]) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return GRPCInferenceServiceStub(channel)


def encode(request, model, version="", *, raw=False):
    return converters.ModelInferRequestConverter.from_types(
        request, model_name=model, model_version=version, use_raw=raw
    )


def infer(stub, request, model, version="", *, raw=False):
    response = stub.ModelInfer(encode(request, model, version, raw=raw), timeout=30)
    assert bool(response.raw_output_contents) == raw
    return converters.ModelInferResponseConverter.to_types(response)


def sum_request(**more):
    return InferenceRequest(inputs=[NumpyCodec.encode_input("a", A), NumpyCodec.encode_input("b", A)], **more)


def text_request(text, **more):
    return InferenceRequest(inputs=[StringCodec.encode_input("text", [text])], **more)


def words_of(responses):
    return [
        StringCodec.decode_output(converters.ModelInferResponseConverter.to_types(a).outputs[0])[0]
        for a in responses
    ]


def test_health_and_metadata(stub):
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="sum", version="1")).ready
    server = converters.ServerMetadataResponseConverter.to_types(
        stub.ServerMetadata(pb.ServerMetadataRequest())
    )
    assert server.name == "headrace"
    model = converters.ModelMetadataResponseConverter.to_types(
        stub.ModelMetadata(pb.ModelMetadataRequest(name="sum"))
    )
    assert model.versions == ["1", "2"]
    assert [(t.name, t.shape) for t in model.inputs] == [("a", [-1, 4]), ("b", [-1, 4])]


@pytest.mark.parametrize("raw", [False, True])
def test_response_is_raw_if_the_request_is(stub, raw):
    response = infer(stub, sum_request(id="mine"), "sum", "1", raw=raw)
    assert (response.id, response.model_name, response.model_version) == ("mine", "sum", "1")
    np.testing.assert_array_equal(NumpyCodec.decode_output(response.outputs[0]), A + A)
    np.testing.assert_array_equal(NumpyCodec.decode_output(response.outputs[1]), A - A)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [
        np.bool_,
        np.uint8,
        np.uint16,
        np.uint32,
        np.uint64,
        np.int8,
        np.int16,
        np.int64,
        np.float32,
        np.float64,
    ],
)
def test_every_number_round_trips(stub, dtype, raw):
    x = NumpyCodec.encode_input("x", np.array([[0, 1], [1, 1]], dtype))
    response = infer(stub, InferenceRequest(inputs=[x]), f"echo_{Datatype(x.datatype).value}", raw=raw)
    np.testing.assert_array_equal(NumpyCodec.decode_output(response.outputs[0]), [[0, 1], [1, 1]])


@pytest.mark.parametrize("raw", [False, True])
def test_text(stub, raw):
    response = infer(stub, text_request("straße"), "upper", raw=raw)
    assert StringCodec.decode_output(response.outputs[0]) == ["STRASSE"]


def test_requested_outputs(stub):
    response = infer(stub, sum_request(outputs=[RequestOutput(name="difference")]), "sum")
    assert [o.name for o in response.outputs] == ["difference"]


@pytest.mark.parametrize("raw", [False, True])
def test_stream_of_one_request(stub, raw):
    """Responses are MLServer's messages without a wrapper, the default of this listener."""
    responses = list(
        stub.ModelStreamInfer(iter([encode(text_request("to be or", id="1"), "words", raw=raw)]))
    )
    assert words_of(responses) == ["to", "be", "or"]
    assert {a.id for a in responses} == {"1"}


def test_bidirectional_stream(addresses):
    """Each request is sent after the response to the previous one was read."""

    async def main():
        async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
            call = GRPCInferenceServiceStub(channel).ModelStreamInfer()
            responses = []
            for word in ("one", "two", "three"):
                await call.write(encode(text_request(word), "words"))
                responses.append(await call.read())
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            return words_of(responses)

    assert asyncio.run(main()) == ["one", "two", "three"]


def test_stream_to_a_unary_model(stub):
    requests = [encode(text_request(word), "upper") for word in ("a", "b", "c")]
    assert words_of(stub.ModelStreamInfer(iter(requests))) == ["A", "B", "C"]


def test_stream_without_request_ends(stub):
    assert list(stub.ModelStreamInfer(iter([]))) == []


def test_error_ends_the_stream_with_a_status(stub):
    responses = stub.ModelStreamInfer(iter([encode(text_request("good !"), "words")]))
    assert words_of([next(responses)]) == ["good"]
    with pytest.raises(grpc.RpcError) as raised:
        next(responses)
    assert (raised.value.code(), "no word: !" in raised.value.details()) == (grpc.StatusCode.INTERNAL, True)


def test_cancelled_stream_reaches_the_model(stub):
    def count(event):
        response = infer(stub, text_request(event), "held")
        return StringCodec.decode_output(response.outputs[0])[0]

    before = count("closed")
    responses = stub.ModelStreamInfer(iter([encode(text_request("hold"), "held")]))
    assert words_of([next(responses)]) == ["held"]
    responses.cancel()
    while count("closed") == before:  # pytest's timeout bounds this loop.
        pass


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("nothing", grpc.StatusCode.NOT_FOUND, "nothing"),
        ("fails", grpc.StatusCode.INVALID_ARGUMENT, "input 'x' is missing"),
    ],
)
def test_errors(stub, model, code, message):
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(encode(sum_request(), model))
    assert raised.value.code() == code
    assert message in raised.value.details()


def test_repository_service(channel, stub):
    for control in (ModelRepositoryServiceStub(channel), stub):

        def states(control=control):
            index = control.RepositoryIndex(
                repository_pb.RepositoryIndexRequest() if control is not stub else pb.RepositoryIndexRequest()
            )
            return {m.name: m.state for m in index.models}

        messages = repository_pb if control is not stub else pb
        control.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="spare"))
        assert states()["spare"] == "UNAVAILABLE"
        control.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="spare"))
        assert states()["spare"] == "READY"
