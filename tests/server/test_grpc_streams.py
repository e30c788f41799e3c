"""ModelStreamInfer in both formats over both transports."""

import asyncio

import grpc
import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ConfigError, PredictError
from headrace.jobs.access import Access, Scope
from headrace.server.grpc_inference import GrpcStreamSettings
from headrace.testing import ManualClock
from server.grpc_support import (
    LIMITED,
    USER,
    FunctionDataplane,
    FunctionModel,
    StreamResponse,
    bidi,
    code_of,
    echo,
    in_event_loop,
    infer_request,
    key_access,
    serving,
    unary,
    values,
)
from server.support import key_of

CARRIERS = for_each("carrier", ["aio", "asgi"])
TRITON = (("headrace-stream-dialect", "triton"),)


def number(value):
    return np.array([[value, value]], np.float32)


async def twice(requests):
    async for request in requests:
        yield request["x"]
        yield request["x"] + 100


def firsts(responses):
    return [float(values(response)[0, 0]) for response in responses]


def plane(**models):
    return FunctionDataplane(**{"m": FunctionModel(stream=twice), "unary": FunctionModel(echo), **models})


def wrapped(channel, metadata=TRITON):
    return bidi(channel, response=StreamResponse)(metadata=metadata)


async def until_read(call):
    return [message async for message in call]


class Overtaken:
    """A model whose first request gets its response after the second one has got its own."""

    def __init__(self):
        self.second = asyncio.Event()

    async def predict(self, request):
        if request["x"][0, 0] == 0:
            await self.second.wait()
        self.second.set()
        return request["x"]

    async def stream(self, requests):
        async for request in requests:
            yield await self.predict(request)


# MLServer's format


@CARRIERS
@for_each("model", ["m", "unary"])
@in_event_loop
async def test_messages_are_answered_in_order(carrier, model):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)([infer_request(number(i), model=model, id="first") for i in range(3)])
        responses = await until_read(call)
    assert firsts(responses) == ([0, 100, 1, 101, 2, 102] if model == "m" else [0, 1, 2])
    assert {response.id for response in responses} == {"first"}


@CARRIERS
@in_event_loop
async def test_responses_arrive_before_the_last_request(carrier):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)()
        for i in range(3):
            await call.write(infer_request(number(i)))
            assert firsts([await call.read(), await call.read()]) == [i, i + 100]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@CARRIERS
@in_event_loop
async def test_stream_without_messages_ends_ok(carrier):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)([])
        assert await until_read(call) == []
        assert (await call.code()).name == "OK"


@CARRIERS
@in_event_loop
async def test_first_message_selects_raw_responses(carrier):
    async with serving(plane(), carrier) as channel:
        for first in (True, False):
            call = bidi(channel)(
                [infer_request(number(1), raw=first), infer_request(number(2), raw=not first)]
            )
            assert [bool(a.raw_output_contents) for a in await until_read(call)] == [first] * 4


@CARRIERS
@for_each("model", ["m", "unary"])
@in_event_loop
async def test_another_model_in_a_later_message_is_refused(carrier, model):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)([infer_request(number(1), model=model), infer_request(number(2), model="else")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(call)
    assert code_of(caught) == "INVALID_ARGUMENT"
    assert "'else'" in caught.value.details()


@CARRIERS
@in_event_loop
async def test_malformed_message_ends_the_stream(carrier):
    async def swallowing(requests):
        try:
            async for request in requests:
                yield request["x"]
        except Exception as error:
            raise PredictError("m", "confused") from error

    async with serving(plane(m=FunctionModel(stream=swallowing)), carrier) as channel:
        call = bidi(channel)([infer_request(number(1)), infer_request(number(2), datatype="FP99")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(call)
    assert code_of(caught) == "INVALID_ARGUMENT"
    assert "FP99" in caught.value.details()


@CARRIERS
@in_event_loop
async def test_model_error_ends_the_stream_after_earlier_responses(carrier):
    async def failing(requests):
        async for request in requests:
            yield request["x"]
            raise PredictError("m", "boom")

    async with serving(plane(m=FunctionModel(stream=failing)), carrier) as channel:
        call = bidi(channel)()
        await call.write(infer_request(number(1)))
        assert firsts([await call.read()]) == [1]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert (code_of(caught), caught.value.details()) == ("INTERNAL", "model m: boom")


@CARRIERS
@in_event_loop
async def test_unknown_model_or_key_is_refused_before_any_response(carrier):
    async with serving(plane(), carrier, access=key_access()) as channel:
        for metadata, code in (
            ((("authorization", f"Bearer {USER}"),), "NOT_FOUND"),
            ((("authorization", f"Bearer {LIMITED}"),), "PERMISSION_DENIED"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await until_read(bidi(channel)([infer_request(number(1), model="nope")], metadata=metadata))
            assert code_of(caught) == code


@CARRIERS
@in_event_loop
async def test_missing_key_is_refused_before_any_message(carrier):
    async with serving(plane(), carrier, access=key_access()) as channel:
        # This client writes nothing: where a write meets the refusal, grpcio's client reports INTERNAL.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bidi(channel)().read()
        assert code_of(caught) == "UNAUTHENTICATED"


def slow_key(requests_per_s_max):
    """Return the keys of a server with one key, and the metadata of its client."""
    key = key_of("slow", USER, Scope.INFER, requests_per_s_max=requests_per_s_max)
    return Access(dict([key]), clock=ManualClock()), (("authorization", f"Bearer {USER}"),)


async def hiding(requests):
    """A model that replaces the error of a message by its own."""
    try:
        async for request in requests:
            yield request["x"]
    except Exception as error:
        raise PredictError("hiding", "confused") from error


@CARRIERS
@for_each("model", ["m", "unary", "hiding"])
@in_event_loop
async def test_every_message_counts_as_a_request_of_the_key(carrier, model):
    access, sent = slow_key(2)
    async with serving(plane(hiding=FunctionModel(stream=hiding)), carrier, access=access) as channel:
        call = bidi(channel)((infer_request(number(i), model=model) for i in range(3)), metadata=sent)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(call)
    assert code_of(caught) == "RESOURCE_EXHAUSTED"
    assert "API key 'slow' has reached its limit" in caught.value.details()


@in_event_loop
async def test_every_triton_message_counts_as_a_request_of_the_key():
    access, sent = slow_key(2)
    async with serving(plane(), access=access) as channel:
        call = bidi(channel, response=StreamResponse)(
            (infer_request(number(i), model="unary") for i in range(3)), metadata=(*sent, *TRITON)
        )
        errors = [response.error_message for response in await until_read(call)]
    assert [bool(error) for error in sorted(errors)] == [False, False, True]


@CARRIERS
@for_each("metadata", [(), TRITON])
@in_event_loop
async def test_cancelled_call_closes_the_models_stream(carrier, metadata):
    async def endless(requests):
        async for request in requests:
            while True:
                yield request["x"]
                await asyncio.sleep(0)

    served = plane(m=FunctionModel(stream=endless))
    async with serving(served, carrier) as channel:
        call = bidi(channel, response=StreamResponse)(metadata=metadata)
        await call.write(infer_request(number(1)))
        await call.read()
        call.cancel()
        await served.cancellations.get()


@in_event_loop
async def test_slow_reader_throttles_the_model():
    """Only a few responses are made ahead of the flow-control window."""
    made = 0

    async def large(requests):
        nonlocal made
        async for _ in requests:
            for _ in range(500):
                made += 1
                yield np.zeros((1, 1 << 16), np.float32)

    async with serving(plane(m=FunctionModel(stream=large))) as channel:
        call = bidi(channel)()
        await call.write(infer_request(number(1)))
        await call.read()
        # These calls take the time in which all 500 would be made without throttling.
        for _ in range(100):
            await unary(channel)(infer_request(number(1), model="unary"))
        assert made < 100  # of 500 responses of 256 KiB
        call.cancel()


# Triton's format


@CARRIERS
@for_each("kind", ["predict", "stream"])
@for_each(
    ("ids", "order"),
    [(("s", "s"), [0, 1]), ((7, 7), [0, 1]), ((7, "7"), [0, 1]), (("", ""), [1, 0]), (("a", "b"), [1, 0])],
)
@in_event_loop
async def test_responses_of_a_sequence_have_the_order_of_its_requests(carrier, kind, ids, order):
    model = FunctionModel(**{kind: getattr(Overtaken(), kind)})
    messages = [infer_request(number(i)) for i in range(2)]
    for message, id in zip(messages, ids, strict=True):
        field = "int64_param" if isinstance(id, int) else "string_param"
        setattr(message.parameters["sequence_id"], field, id)
    async with serving(plane(m=model), carrier) as channel:
        call = bidi(channel, response=StreamResponse)(messages, metadata=TRITON)
        answers = [each.infer_response for each in await until_read(call)]
    assert firsts(each for each in answers if each.outputs) == order


@CARRIERS
@in_event_loop
async def test_triton_stream_calls_models_concurrently(carrier):
    release = asyncio.Event()

    async def slow(request):
        await release.wait()
        return request["x"]

    async with serving(plane(slow=FunctionModel(slow)), carrier) as channel:
        call = wrapped(channel)
        await call.write(infer_request(number(1), model="slow", id="s"))
        await call.write(infer_request(number(2), model="unary", id="u"))
        early = (await call.read()).infer_response
        assert (early.id, early.parameters["triton_final_response"].bool_param) == ("u", True)
        release.set()
        assert (await call.read()).infer_response.id == "s"
        await call.write(infer_request(number(3), id="m"))
        responses = [(await call.read()).infer_response for _ in range(2)]
        assert firsts(responses) == [3, 103]
        assert [a.parameters["triton_final_response"].bool_param for a in responses] == [False, False]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@CARRIERS
@in_event_loop
async def test_triton_stream_continues_after_an_error(carrier):
    async with serving(plane(), carrier) as channel:
        call = wrapped(channel)
        await call.write(infer_request(number(1), model="nope", id="a"))
        response = await call.read()
        assert "model nope" in response.error_message
        assert response.infer_response.id == "a"
        await call.write(infer_request(number(1), datatype="FP99"))
        assert "FP99" in (await call.read()).error_message
        await call.write(infer_request(number(2), model="unary"))
        assert firsts([(await call.read()).infer_response]) == [2]


@CARRIERS
@in_event_loop
async def test_triton_client_can_let_errors_end_the_stream(carrier):
    async with serving(plane(), carrier) as channel:
        call = wrapped(channel, (("triton_grpc_error", "true"),))
        await call.write(infer_request(number(1), model="unary"))
        assert firsts([(await call.read()).infer_response]) == [1]
        await call.write(infer_request(number(1), model="nope"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert code_of(caught) == "NOT_FOUND"


@CARRIERS
@for_each("metadata", [TRITON, ()])
@in_event_loop
async def test_empty_final_response_is_sent_on_request(carrier, metadata):
    """The parameter also identifies Triton clients."""
    async with serving(plane(), carrier) as channel:
        request = infer_request(number(1), id="7")
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        call = bidi(channel, response=StreamResponse)([request], metadata=metadata)
        responses = [message.infer_response for message in await until_read(call)]
    assert [len(a.outputs) for a in responses] == [1, 1, 0]
    assert [a.parameters["triton_final_response"].bool_param for a in responses] == [False, False, True]
    assert {a.id for a in responses} == {"7"}


@in_event_loop
async def test_concurrent_requests_of_a_stream_are_limited():
    running, most = 0, 0
    release = asyncio.Event()

    async def slow(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return request["x"]

    settings = GrpcStreamSettings("triton", requests_max=2, responses_max=1)
    async with serving(plane(slow=FunctionModel(slow)), streams=settings) as channel:
        call = bidi(channel, response=StreamResponse)()
        for i in range(9):
            await call.write(infer_request(number(i), model="slow"))
        # These calls take the time in which all nine would begin without the limit.
        for _ in range(50):
            await unary(channel)(infer_request(number(1), model="unary"))
        assert most == 2
        release.set()
        await call.done_writing()
        responses = [await call.read() for _ in range(9)]
        assert await call.read() is grpc.aio.EOF
    assert sorted(firsts([a.infer_response for a in responses])) == list(range(9))
    assert most == 2


@in_event_loop
async def test_listener_setting_is_the_default_format():
    async with serving(plane(), streams=GrpcStreamSettings("triton")) as channel:
        (first, _) = await until_read(bidi(channel, response=StreamResponse)([infer_request(number(1))]))
        assert firsts([first.infer_response]) == [1]
        plain = (("headrace-stream-dialect", "mlserver"),)
        assert firsts(await until_read(bidi(channel)([infer_request(number(1))], metadata=plain))) == [1, 101]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(bidi(channel)([], metadata=(("headrace-stream-dialect", "klingon"),)))
        assert code_of(caught) == "INVALID_ARGUMENT"


@for_each("wrong", [{"dialect": "x"}, {"requests_max": 0}, {"responses_max": 0}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        GrpcStreamSettings(**wrong)
