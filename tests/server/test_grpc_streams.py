"""ModelStreamInfer in both dialects, over both carriers."""

import asyncio

import grpc
import numpy as np
import pytest

from headrace.core.errors import ConfigError, PredictError
from headrace.server.grpc_streams import StreamSettings
from server.grpc_support import (
    FunctionDataplane,
    KeyAccess,
    Served,
    StreamResponse,
    bidi,
    code_of,
    echo,
    infer_request,
    ran,
    serving,
    unary,
    values,
)

CARRIERS = pytest.mark.parametrize("carrier", ["aio", "asgi"])
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
    return FunctionDataplane(**{"m": Served(stream=twice), "unary": Served(echo), **models})


def wrapped(channel, metadata=TRITON):
    return bidi(channel, response=StreamResponse)(metadata=metadata)


async def until_read(call):
    return [message async for message in call]


# MLServer's


@CARRIERS
@pytest.mark.parametrize("model", ["m", "unary"])
@ran
async def test_every_message_is_answered_in_order(carrier, model):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)([infer_request(number(i), model=model, id="first") for i in range(3)])
        answers = await until_read(call)
    assert firsts(answers) == ([0, 100, 1, 101, 2, 102] if model == "m" else [0, 1, 2])
    assert {answer.id for answer in answers} == {"first"}


@CARRIERS
@ran
async def test_answers_come_while_the_caller_still_asks(carrier):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)()
        for i in range(3):
            await call.write(infer_request(number(i)))
            assert firsts([await call.read(), await call.read()]) == [i, i + 100]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@CARRIERS
@ran
async def test_a_stream_without_messages_ends_well(carrier):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)([])
        assert await until_read(call) == []
        assert (await call.code()).name == "OK"


@CARRIERS
@ran
async def test_the_first_message_says_whether_answers_are_raw(carrier):
    async with serving(plane(), carrier) as channel:
        for first in (True, False):
            call = bidi(channel)(
                [infer_request(number(1), raw=first), infer_request(number(2), raw=not first)]
            )
            assert [bool(a.raw_output_contents) for a in await until_read(call)] == [first] * 4


@CARRIERS
@pytest.mark.parametrize("model", ["m", "unary"])
@ran
async def test_another_model_in_a_later_message_is_refused(carrier, model):
    async with serving(plane(), carrier) as channel:
        call = bidi(channel)([infer_request(number(1), model=model), infer_request(number(2), model="else")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(call)
    assert code_of(caught) == "INVALID_ARGUMENT"
    assert "'else'" in caught.value.details()


@CARRIERS
@ran
async def test_a_broken_message_ends_the_stream_whatever_the_model_makes_of_it(carrier):
    async def swallowing(requests):
        try:
            async for request in requests:
                yield request["x"]
        except Exception as error:
            raise PredictError("m", "confused") from error

    async with serving(plane(m=Served(stream=swallowing)), carrier) as channel:
        call = bidi(channel)([infer_request(number(1)), infer_request(number(2), datatype="FP99")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(call)
    assert code_of(caught) == "INVALID_ARGUMENT"
    assert "FP99" in caught.value.details()


@CARRIERS
@ran
async def test_a_model_that_fails_ends_the_stream_after_what_it_gave(carrier):
    async def failing(requests):
        async for request in requests:
            yield request["x"]
            raise PredictError("m", "boom")

    async with serving(plane(m=Served(stream=failing)), carrier) as channel:
        call = bidi(channel)()
        await call.write(infer_request(number(1)))
        assert firsts([await call.read()]) == [1]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert (code_of(caught), caught.value.details()) == ("INTERNAL", "model m: boom")


@CARRIERS
@ran
async def test_unknown_models_and_strangers_are_refused_before_any_answer(carrier):
    async with serving(plane(), carrier, access=KeyAccess()) as channel:
        for metadata, code in (((), "UNAUTHENTICATED"), ((("authorization", "Bearer user"),), "NOT_FOUND")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await until_read(bidi(channel)([infer_request(number(1), model="nope")], metadata=metadata))
            assert code_of(caught) == code


@CARRIERS
@pytest.mark.parametrize("metadata", [(), TRITON])
@ran
async def test_a_caller_who_goes_closes_the_models_stream(carrier, metadata):
    async def endless(requests):
        async for request in requests:
            while True:
                yield request["x"]
                await asyncio.sleep(0)

    served = plane(m=Served(stream=endless))
    async with serving(served, carrier) as channel:
        call = bidi(channel, response=StreamResponse)(metadata=metadata)
        await call.write(infer_request(number(1)))
        await call.read()
        call.cancel()
        await served.cancellations.get()


@ran
async def test_a_slow_reader_holds_the_model_back():
    """At most a few answers are made ahead of what the caller's window takes."""
    made = 0

    async def large(requests):
        nonlocal made
        async for _ in requests:
            for _ in range(500):
                made += 1
                yield np.zeros((1, 1 << 16), np.float32)

    async with serving(plane(m=Served(stream=large))) as channel:
        call = bidi(channel)()
        await call.write(infer_request(number(1)))
        await call.read()
        # Time for all 500, were they not held back.
        for _ in range(100):
            await unary(channel)(infer_request(number(1), model="unary"))
        assert made < 100  # of 500 answers of 256 KiB
        call.cancel()


# Triton's


@CARRIERS
@ran
async def test_one_stream_asks_many_models_at_once(carrier):
    release = asyncio.Event()

    async def slow(request):
        await release.wait()
        return request["x"]

    async with serving(plane(slow=Served(slow)), carrier) as channel:
        call = wrapped(channel)
        await call.write(infer_request(number(1), model="slow", id="s"))
        await call.write(infer_request(number(2), model="unary", id="u"))
        early = (await call.read()).infer_response
        assert (early.id, early.parameters["triton_final_response"].bool_param) == ("u", True)
        release.set()
        assert (await call.read()).infer_response.id == "s"
        await call.write(infer_request(number(3), id="m"))
        answers = [(await call.read()).infer_response for _ in range(2)]
        assert firsts(answers) == [3, 103]
        assert [a.parameters["triton_final_response"].bool_param for a in answers] == [False, False]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@CARRIERS
@ran
async def test_an_error_is_an_answer_and_the_stream_goes_on(carrier):
    async with serving(plane(), carrier) as channel:
        call = wrapped(channel)
        await call.write(infer_request(number(1), model="nope", id="a"))
        answer = await call.read()
        assert "model nope" in answer.error_message
        assert answer.infer_response.id == "a"
        await call.write(infer_request(number(1), datatype="FP99"))
        assert "FP99" in (await call.read()).error_message
        await call.write(infer_request(number(2), model="unary"))
        assert firsts([(await call.read()).infer_response]) == [2]


@CARRIERS
@ran
async def test_a_client_can_have_errors_end_the_stream(carrier):
    async with serving(plane(), carrier) as channel:
        call = wrapped(channel, (("triton_grpc_error", "true"),))
        await call.write(infer_request(number(1), model="unary"))
        assert firsts([(await call.read()).infer_response]) == [1]
        await call.write(infer_request(number(1), model="nope"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert code_of(caught) == "NOT_FOUND"


@CARRIERS
@pytest.mark.parametrize("metadata", [TRITON, ()])
@ran
async def test_an_empty_last_answer_is_sent_where_it_is_wished_for(carrier, metadata):
    """The wish also tells a Triton client from others."""
    async with serving(plane(), carrier) as channel:
        request = infer_request(number(1), id="7")
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        call = bidi(channel, response=StreamResponse)([request], metadata=metadata)
        answers = [message.infer_response for message in await until_read(call)]
    assert [len(a.outputs) for a in answers] == [1, 1, 0]
    assert [a.parameters["triton_final_response"].bool_param for a in answers] == [False, False, True]
    assert {a.id for a in answers} == {"7"}


@ran
async def test_requests_of_one_stream_are_bounded():
    running, most = 0, 0
    release = asyncio.Event()

    async def slow(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return request["x"]

    settings = StreamSettings("triton", requests_max=2, answers_max=1)
    async with serving(plane(slow=Served(slow)), streams=settings) as channel:
        call = bidi(channel, response=StreamResponse)()
        for i in range(9):
            await call.write(infer_request(number(i), model="slow"))
        # Time for all nine to begin, were they not held back.
        for _ in range(50):
            await unary(channel)(infer_request(number(1), model="unary"))
        assert most == 2
        release.set()
        await call.done_writing()
        answers = [await call.read() for _ in range(9)]
        assert await call.read() is grpc.aio.EOF
    assert sorted(firsts([a.infer_response for a in answers])) == list(range(9))
    assert most == 2


@ran
async def test_the_listener_chooses_where_the_caller_does_not():
    async with serving(plane(), streams=StreamSettings("triton")) as channel:
        (first, _) = await until_read(bidi(channel, response=StreamResponse)([infer_request(number(1))]))
        assert firsts([first.infer_response]) == [1]
        plain = (("headrace-stream-dialect", "mlserver"),)
        assert firsts(await until_read(bidi(channel)([infer_request(number(1))], metadata=plain))) == [1, 101]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await until_read(bidi(channel)([], metadata=(("headrace-stream-dialect", "klingon"),)))
        assert code_of(caught) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("wrong", [{"dialect": "x"}, {"requests_max": 0}, {"answers_max": 0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError):
        StreamSettings(**wrong)
