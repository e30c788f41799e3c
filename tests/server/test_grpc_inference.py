"""ModelInfer through a real server of either carrier: values, deadlines, cancellation, statuses."""

import asyncio

import grpc
import numpy as np
import pytest

from headrace.core.errors import (
    DataError,
    ModelContractError,
    ModelNotReadyError,
    OverloadedError,
    PredictError,
)
from headrace.core.tensor import ModelMetadata, TensorSpec, text_array
from server.grpc_support import (
    FunctionDataplane,
    KeyAccess,
    Served,
    code_of,
    echo,
    infer_request,
    ran,
    serving,
    unary,
    values,
)

CARRIERS = pytest.mark.parametrize("carrier", ["aio", "asgi"])
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def raises(error):
    def predict(_):
        raise error

    return Served(predict)


@CARRIERS
@ran
async def test_an_answer_is_raw_where_the_request_was(carrier):
    async with serving(FunctionDataplane(m=Served(lambda r: r["x"] * 2)), carrier) as channel:
        for raw in (True, False):
            response = await unary(channel)(infer_request(ROWS, raw=raw, id="7"))
            np.testing.assert_array_equal(values(response), ROWS * 2)
            assert bool(response.raw_output_contents) == raw
            assert (response.model_name, response.model_version, response.id) == ("m", "1", "7")


@CARRIERS
@ran
async def test_a_model_sees_parameters_priority_and_deadline(carrier):
    plane = FunctionDataplane(m=Served(echo))
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
@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (DataError("bad bytes"), "INVALID_ARGUMENT", "bad bytes"),
        (ModelNotReadyError("m", "it is loading"), "UNAVAILABLE", "model m: it is loading"),
        (PredictError("m", "größer: 100 %\n"), "INTERNAL", "model m: größer: 100 %\n"),
        (ZeroDivisionError("secret"), "INTERNAL", "internal error"),
    ],
)
@ran
async def test_errors_have_their_status_and_their_words(carrier, error, code, why):
    async with serving(FunctionDataplane(m=raises(error)), carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
    assert (code_of(caught), caught.value.details()) == (code, why)


@CARRIERS
@ran
async def test_an_overload_says_when_to_come_back(carrier):
    plane = FunctionDataplane(m=raises(OverloadedError("the queue is full", retry_after_s=0.25)))
    async with serving(plane, carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
    assert code_of(caught) == "RESOURCE_EXHAUSTED"
    trailing = dict(caught.value.trailing_metadata())
    assert (trailing["retry-after-s"], trailing["grpc-retry-pushback-ms"]) == ("0.250", "250")


@CARRIERS
@ran
async def test_unknown_models_methods_and_bytes_are_refused(carrier):
    async with serving(FunctionDataplane(m=Served(echo)), carrier) as channel:
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
@ran
async def test_a_callers_deadline_and_leaving_cancel_the_model(carrier):
    begun = asyncio.Queue()

    async def predict(_):
        await begun.put(1)
        await asyncio.Event().wait()

    plane = FunctionDataplane(m=Served(predict))
    async with serving(plane, carrier) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS), timeout=0.2)
        assert code_of(caught) == "DEADLINE_EXCEEDED"
        await begun.get()
        call = unary(channel)(infer_request(ROWS))
        # Sent once the call is awaited or read.
        sent = asyncio.ensure_future(call.code())
        await begun.get()
        call.cancel()
        assert (await sent).name == "CANCELLED"
        for _ in range(2):
            await plane.cancellations.get()
        # The connection goes on.
        plane.models["m"].predict = echo
        await unary(channel)(infer_request(ROWS))


@CARRIERS
@ran
async def test_large_messages_pass_and_too_large_ones_are_refused(carrier):
    large = np.random.default_rng(0).random((1024, 4100), np.float32)
    async with serving(FunctionDataplane(m=Served(echo)), carrier, message_bytes_max=17 << 20) as channel:
        assert large.nbytes > 16 << 20
        np.testing.assert_array_equal(values(await unary(channel)(infer_request(large))), large)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(np.concatenate([large, large])))
        assert code_of(caught) == "RESOURCE_EXHAUSTED"


@CARRIERS
@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@ran
async def test_compressed_requests_are_read(carrier, compression):
    async with serving(FunctionDataplane(m=Served(echo)), carrier) as channel:
        response = await unary(channel)(
            infer_request(np.zeros((500, 2), np.float32)), compression=compression
        )
        assert values(response).shape == (500, 2)


@CARRIERS
@ran
async def test_keys_are_asked_for(carrier):
    async with serving(FunctionDataplane(m=Served(echo)), carrier, access=KeyAccess()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
        assert code_of(caught) == "UNAUTHENTICATED"
        await unary(channel)(infer_request(ROWS), metadata=(("authorization", "Bearer user"),))


@ran
async def test_outputs_declared_as_bf16_leave_as_such():
    metadata = ModelMetadata("m", outputs=(TensorSpec("y", "BF16", (-1, 2)),))
    plane = FunctionDataplane(m=Served(echo))
    async with serving(plane) as channel:
        before = await unary(channel)(infer_request(ROWS, raw=False))
        # Loaded again, as another.
        plane.models["m"].metadata = metadata
        response = await unary(channel)(infer_request(ROWS, raw=False))
    assert before.outputs[0].datatype == "FP32"
    assert (response.outputs[0].datatype, len(response.raw_output_contents[0])) == ("BF16", ROWS.size * 2)


@pytest.mark.parametrize("answer", [text_array(["a", 3]), np.ones(1, np.complex64)])
@ran
async def test_an_answer_that_cannot_be_sent_is_the_models_fault(answer):
    async with serving(FunctionDataplane(m=Served(lambda _: answer))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(infer_request(ROWS))
    assert code_of(caught) == "INTERNAL"
    assert "model m: its answer cannot be sent" in caught.value.details()
    assert ModelContractError.__name__ not in caught.value.details()
