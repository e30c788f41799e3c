"""ModelInfer through a real server over both transports: values, deadlines, cancellation, statuses."""

import asyncio

import grpc
import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import (
    DataError,
    ModelContractError,
    ModelNotReadyError,
    OverloadedError,
    PredictError,
)
from headrace.core.tensor import ModelMetadata, TensorSpec, text_array
from server.grpc_support import (
    LIMITED,
    USER,
    FunctionDataplane,
    FunctionModel,
    code_of,
    echo,
    in_event_loop,
    infer_request,
    key_access,
    serving,
    unary,
    values,
)

CARRIERS = for_each("carrier", ["aio", "asgi"])
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def raises(error):
    def predict(_):
        raise error

    return FunctionModel(predict)


@CARRIERS
@in_event_loop
async def test_response_is_raw_if_the_request_was(carrier):
    async with serving(FunctionDataplane(m=FunctionModel(lambda r: r["x"] * 2)), carrier) as channel:
        for raw in (True, False):
            response = await unary(channel)(infer_request(ROWS, raw=raw, id="7"))
            np.testing.assert_array_equal(values(response), ROWS * 2)
            assert bool(response.raw_output_contents) == raw
            assert (response.model_name, response.model_version, response.id) == ("m", "1", "7")


@CARRIERS
@in_event_loop
async def test_tensors_may_have_no_axes(carrier):
    plane = FunctionDataplane(m=FunctionModel(echo))
    async with serving(plane, carrier) as channel:
        for raw in (True, False):
            response = await unary(channel)(infer_request(np.array(2.5, np.float32), raw=raw))
            assert plane.seen[-1]["x"].shape == ()
            assert (list(response.outputs[0].shape), values(response).tolist()) == ([], 2.5)


@CARRIERS
@in_event_loop
async def test_model_receives_parameters_priority_and_deadline(carrier):
    plane = FunctionDataplane(m=FunctionModel(echo))
    async with serving(plane, carrier) as channel:
        request = infer_request(ROWS)
        request.parameters["priority"].uint64_param = 2
        request.parameters["temperature"].double_param = 0.5
        await unary(channel)(request)
        await unary(channel)(request, timeout=20)
    free, due = plane.seen
    assert (free.priority, free.deadline, dict(free.parameters)) == (2, None, {"temperature": 0.5})
    assert due.deadline is not None


@CARRIERS
@for_each(
    ("error", "code", "why"),
    [
        (DataError("bad bytes"), "INVALID_ARGUMENT", "bad bytes"),
        (ModelNotReadyError("m", "it is loading"), "UNAVAILABLE", "model m: it is loading"),
        (PredictError("m", "größer: 100 %\n"), "INTERNAL", "model m: größer: 100 %\n"),
        (ZeroDivisionError("secret"), "INTERNAL", "internal error"),
    ],
)
@in_event_loop
async def test_errors_have_status_and_message(carrier, error, code, why):
    async with serving(FunctionDataplane(m=raises(error)), carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
    assert (code_of(caught), caught.value.details()) == (code, why)


@CARRIERS
@in_event_loop
async def test_overload_has_a_retry_time(carrier):
    plane = FunctionDataplane(m=raises(OverloadedError("the queue is full", retry_after_s=0.25)))
    async with serving(plane, carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
    assert code_of(caught) == "RESOURCE_EXHAUSTED"
    trailing = dict(caught.value.trailing_metadata())
    assert (trailing["retry-after-s"], trailing["grpc-retry-pushback-ms"]) == ("0.250", "250")


@CARRIERS
@in_event_loop
async def test_unknown_models_methods_and_bytes_are_refused(carrier):
    async with serving(FunctionDataplane(m=FunctionModel(echo)), carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS, model="other"))
        assert code_of(caught) == "NOT_FOUND"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "ModelGuess")(infer_request(ROWS))
        assert code_of(caught) == "UNIMPLEMENTED"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff")
        assert code_of(caught) == "INVALID_ARGUMENT"


@CARRIERS
@in_event_loop
async def test_deadline_and_cancellation_cancel_the_model(carrier):
    begun = asyncio.Queue()

    async def predict(_):
        await begun.put(1)
        await asyncio.Event().wait()

    plane = FunctionDataplane(m=FunctionModel(predict))
    async with serving(plane, carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS), timeout=0.2)
        assert code_of(caught) == "DEADLINE_EXCEEDED"
        await begun.get()
        call = unary(channel)(infer_request(ROWS))
        # The call is sent when it is awaited or read.
        sent = asyncio.ensure_future(call.code())
        await begun.get()
        call.cancel()
        assert (await sent).name == "CANCELLED"
        for _ in range(2):
            await plane.cancellations.get()
        # The connection still works.
        plane.models["m"].predict = echo
        await unary(channel)(infer_request(ROWS))


@CARRIERS
@in_event_loop
async def test_message_size_limit_is_enforced(carrier):
    large = np.random.default_rng(0).random((1024, 1300), np.float32)
    async with serving(
        FunctionDataplane(m=FunctionModel(echo)), carrier, message_bytes_max=6 << 20
    ) as channel:
        assert large.nbytes > 5 << 20, "more than the default limit of grpc"
        np.testing.assert_array_equal(values(await unary(channel)(infer_request(large))), large)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(np.concatenate([large, large])))
        assert code_of(caught) == "RESOURCE_EXHAUSTED"


@CARRIERS
@for_each("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@in_event_loop
async def test_compressed_requests_are_decoded(carrier, compression):
    async with serving(FunctionDataplane(m=FunctionModel(echo)), carrier) as channel:
        response = await unary(channel)(
            infer_request(np.zeros((500, 2), np.float32)), compression=compression
        )
        assert values(response).shape == (500, 2)


@CARRIERS
@in_event_loop
async def test_api_key_is_required(carrier):
    async with serving(FunctionDataplane(m=FunctionModel(echo)), carrier, access=key_access()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
        assert code_of(caught) == "UNAUTHENTICATED"
        await unary(channel)(infer_request(ROWS), metadata=(("authorization", f"Bearer {USER}"),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS), metadata=(("authorization", f"Bearer {LIMITED}"),))
        assert code_of(caught) == "PERMISSION_DENIED"


@in_event_loop
async def test_declared_bf16_outputs_are_encoded_as_bf16():
    metadata = ModelMetadata("m", outputs=(TensorSpec("y", "BF16", (-1, 2)),))
    plane = FunctionDataplane(m=FunctionModel(echo))
    async with serving(plane) as channel:
        before = await unary(channel)(infer_request(ROWS, raw=False))
        # The model is reloaded with other metadata.
        plane.models["m"].metadata = metadata
        response = await unary(channel)(infer_request(ROWS, raw=False))
    assert before.outputs[0].datatype == "FP32"
    assert (response.outputs[0].datatype, len(response.raw_output_contents[0])) == ("BF16", ROWS.size * 2)


@for_each("response", [text_array(["a", 3]), np.ones(1, np.complex64)])
@in_event_loop
async def test_unencodable_response_is_a_model_error(response):
    async with serving(FunctionDataplane(m=FunctionModel(lambda _: response))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
    assert code_of(caught) == "INTERNAL"
    assert "model m: its response cannot be encoded" in caught.value.details()
    assert ModelContractError.__name__ not in caught.value.details()
