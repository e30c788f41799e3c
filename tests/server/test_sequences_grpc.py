"""Sequences over gRPC: unary calls and streams in both dialects, over both carriers, of a real engine."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from headrace.core.sequence import SequenceLimits
from headrace.engine.repository import ModelRepository
from headrace.server.dataplane import Dataplane
from server.grpc_support import Request, StreamResponse, bidi, infer_request, ran, serving, unary, values
from server.support import definition
from server.support_sequences import FAILS, GOES_ON, HELD, Dies, RunningSum

CARRIERS = pytest.mark.parametrize("carrier", ["aio", "asgi"])
TRITON = (("headrace-stream-dialect", "triton"),)
KIND = "headrace-error-kind"


@asynccontextmanager
async def sums(carrier="aio", streams=None, **limits):
    """A channel to a server of one running sum, and the model."""
    model = RunningSum()
    model.sequences = SequenceLimits(**{"live_max": 8, "requests_max": 3, **limits})
    async with served(definition(model, "m", isolation="thread"), carrier, streams) as channel:
        try:
            yield channel, model
        finally:
            model.gate.set()


@asynccontextmanager
async def served(model, carrier, streams=None):
    """A channel to a server of one model."""
    repository = ModelRepository([model])
    await asyncio.to_thread(repository.start)
    try:
        async with serving(Dataplane(repository), carrier, streams=streams) as channel:
            channel.engine = repository.engine("m", "")
            yield channel
    finally:
        await asyncio.to_thread(repository.stop, drain=False)


def request(*numbers, id="", **parameters):
    """A request of so many steps; of none without numbers."""
    if numbers:
        made = infer_request(np.array(numbers, np.float32).reshape(-1, 1), id=id)
    else:
        made = Request(model_name="m", id=id)
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(made.parameters[name], field, value)
    return made


def told(response):
    found = {name: getattr(p, p.WhichOneof("parameter_choice")) for name, p in response.parameters.items()}
    found.pop("triton_final_response", None)
    return found


def numbers(response):
    return values(response).ravel().tolist()


async def refused(awaitable):
    """The code, the kind and the rest of what a call that fails is told."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await awaitable
    metadata = dict(error.value.trailing_metadata() or ())
    return error.value.code().name, metadata.get(KIND), error.value.details(), metadata


# Unary


@CARRIERS
@pytest.mark.parametrize("id", [7, "seven"])
@ran
async def test_a_sequence_goes_from_start_to_end(carrier, id):
    async with sums(carrier) as (channel, model):
        infer = unary(channel)
        first = await infer(request(2, sequence_id=id, sequence_start=True))
        assert (numbers(first), told(first)) == ([2], {"sequence_id": id})
        assert numbers(await infer(request(4, 6, sequence_id=id))) == [6, 12]
        last = await infer(request(sequence_id=id, sequence_end=True))
        assert (len(last.outputs), told(last)) == (0, {"sequence_id": id, "sequence_end": True})
        code, kind, details, _ = await refused(infer(request(1, sequence_id=id)))
        assert (code, kind) == ("NOT_FOUND", "sequence_gone")
        assert details.startswith(f"sequence '{id}'")
        await asyncio.to_thread(model.wait_for_end, str(id), "ended")


@CARRIERS
@ran
async def test_whoever_asks_too_much_is_told_when_to_come_back(carrier):
    async with sums(carrier) as (channel, model):
        infer = unary(channel)
        await infer(request(0, sequence_id="a", sequence_start=True))
        asked = [asyncio.ensure_future(infer(request(HELD, sequence_id="a"))) for _ in range(4)]
        await until(lambda: channel.engine.sequences()[0].requests == 4)
        code, kind, _, metadata = await refused(infer(request(1, sequence_id="a")))
        assert (code, kind) == ("RESOURCE_EXHAUSTED", "sequence_full")
        assert float(metadata["retry-after-s"]) > 0
        assert int(metadata["grpc-retry-pushback-ms"]) > 0
        for i in range(7):
            await begin(channel, f"s{i}")
        code, kind, _, metadata = await refused(infer(request(1, sequence_id="more", sequence_start=True)))
        assert (code, kind) == ("UNAVAILABLE", "too_many_sequences")
        assert float(metadata["retry-after-s"]) > 0
        model.gate.set()
        assert sorted([numbers(answer)[0] for answer in await asyncio.gather(*asked)]) == [
            1000,
            2000,
            3000,
            4000,
        ]


async def begin(channel, id):
    """Begin one while the model is busy: asked, not awaited for."""
    unary(channel)(request(1, sequence_id=id, sequence_start=True))
    await until(lambda: any(info.id == id for info in channel.engine.sequences()))


async def until(so):
    """Polls, since what waits is known to the engine alone."""
    for _ in range(3000):
        if so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it is not so")


@CARRIERS
@ran
async def test_a_request_without_inputs_that_ends_nothing_is_malformed(carrier):
    async with sums(carrier) as (channel, _):
        for parameters in (
            {},
            {"sequence_id": 3},
            {"sequence_end": True},
            {"sequence_id": 3, "sequence_end": 1},
        ):
            code, kind, _, _ = await refused(unary(channel)(request(**parameters)))
            assert (code, kind) == ("INVALID_ARGUMENT", None)


@CARRIERS
@ran
async def test_a_state_that_died_with_its_process_is_lost(carrier):
    async with served(definition(Dies, "m", isolation="process"), carrier) as channel:
        infer = unary(channel)
        await infer(request(1, sequence_id="a", sequence_start=True))
        await infer(request(1, sequence_id="b", sequence_start=True))
        assert (await refused(infer(request(-1, sequence_id="b"))))[:2] == ("ABORTED", "sequence_lost")
        assert (await refused(infer(request(1, sequence_id="a"))))[:2] == ("ABORTED", "sequence_lost")
        plain = bidi(channel)([request(1, sequence_id="a")]).read()
        assert (await refused(plain))[:2] == ("ABORTED", "sequence_lost")
        call = bidi(channel, response=StreamResponse)([request(1, sequence_id="a")], metadata=TRITON)
        answer = await call.read()
        assert told(answer.infer_response) == {KIND: "sequence_lost", "sequence_id": "a"}
        assert numbers(await infer(request(5, sequence_id="a", sequence_start=True))) == [5]


# Streams as MLServer's clients have them


@CARRIERS
@ran
async def test_a_stream_that_names_none_is_one_sequence_which_ends_with_it(carrier):
    async with sums(carrier) as (channel, model):
        call = bidi(channel)()
        ids = set()
        for number, sum_ in ((2, [2]), (4, [6]), (GOES_ON, [9, 12]), (1, [13])):
            await call.write(request(number))
            for wanted in sum_:
                answer = await call.read()
                assert numbers(answer) == [wanted]
                ids.add(told(answer)["sequence_id"])
        (id,) = ids
        assert [info.id for info in channel.engine.sequences()] == [id]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert (await call.code()).name == "OK"
        await asyncio.to_thread(model.wait_for_end, id, "ended")


@CARRIERS
@ran
async def test_a_stream_that_is_cancelled_cancels_its_own_sequence_and_no_other(carrier):
    async with sums(carrier) as (channel, model):
        call = bidi(channel)()
        await call.write(request(2))
        id = told(await call.read())["sequence_id"]
        await call.write(request(5, sequence_id="named", sequence_start=True))
        assert numbers(await call.read()) == [5]
        call.cancel()
        await asyncio.to_thread(model.wait_for_end, id, "cancelled")
        # Its client comes back by another way.
        assert numbers(await unary(channel)(request(1, sequence_id="named"))) == [6]


@CARRIERS
@ran
async def test_an_error_of_a_sequence_ends_the_stream_with_its_status(carrier):
    async with sums(carrier) as (channel, _):
        code, kind, details, _ = await refused(bidi(channel)([request(1, sequence_id="no")]).read())
        assert (code, kind) == ("NOT_FOUND", "sequence_gone")
        assert details.startswith("sequence 'no'")
        call = bidi(channel)()
        await call.write(request(1, sequence_id="a", sequence_start=True))
        assert numbers(await call.read()) == [1]
        await call.write(request(1, sequence_id="no"))
        code, kind, _, _ = await refused(call.read())
        assert (code, kind) == ("NOT_FOUND", "sequence_gone")
        assert numbers(await unary(channel)(request(1, sequence_id="a"))) == [2]


@ran
async def test_a_stream_may_hold_many_sequences():
    async with sums() as (channel, _):
        messages = [request(10 * i, sequence_id=f"s{i % 2}", sequence_start=i < 2) for i in range(9)]
        answers = [answer async for answer in bidi(channel)(messages)]
        assert [numbers(a)[0] for a in answers if told(a)["sequence_id"] == "s1"] == [10, 40, 90, 160]
        assert [numbers(a)[0] for a in answers if told(a)["sequence_id"] == "s0"] == [0, 20, 60, 120, 200]


# Streams as Triton's clients have them


@CARRIERS
@pytest.mark.parametrize("ids", [["a", "b", "c"], [1, 2, 3]])
@ran
async def test_messages_of_each_sequence_are_answered_in_their_order(carrier, ids):
    async with sums(carrier, requests_max=64) as (channel, _):
        messages = [
            request(1, id=f"{id}-{i}", sequence_id=id, sequence_start=i == 0, sequence_end=i == 39)
            for i in range(40)
            for id in ids
        ]
        call = bidi(channel, response=StreamResponse)(messages, metadata=TRITON)
        answers = [message async for message in call]
    assert [message.error_message for message in answers] == [""] * 120
    came = {id: [] for id in ids}
    for message in answers:
        came[told(message.infer_response)["sequence_id"]].append(message.infer_response)
    for id, responses in came.items():
        assert [r.id for r in responses] == [f"{id}-{i}" for i in range(40)]
        assert [numbers(r)[0] for r in responses] == list(range(1, 41))
        assert told(responses[-1]) == {"sequence_id": id, "sequence_end": True}


@CARRIERS
@ran
async def test_the_order_holds_for_whoever_reads_late(carrier):
    from headrace.server.grpc_streams import StreamSettings

    settings = StreamSettings(requests_max=64, answers_max=1)
    async with sums(carrier, settings, requests_max=64) as (channel, _):
        payload = [request(1, id=f"{i}", sequence_id=5, sequence_start=i == 0) for i in range(300)]
        call = bidi(channel, response=StreamResponse)(metadata=TRITON)

        async def write():
            for message in payload:
                await call.write(message)
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        came = []
        for i in range(300):
            came.append((await call.read()).infer_response)
            if i % 50 == 0:
                await asyncio.sleep(0.05)
        await writing
        assert [response.id for response in came] == [f"{i}" for i in range(300)]


@CARRIERS
@ran
async def test_an_error_is_one_more_answer_that_says_which_sequence(carrier):
    async with sums(carrier) as (channel, _):
        messages = [
            request(1, id="1", sequence_id="a", sequence_start=True),
            request(1, id="2", sequence_id="no"),
            request(FAILS, id="3", sequence_id="a"),
            request(1, id="4", sequence_id="a"),
        ]
        call = bidi(channel, response=StreamResponse)(messages, metadata=TRITON)
        answers = {m.infer_response.id: m async for m in call}
    assert answers["2"].error_message.startswith("sequence 'no'")
    assert told(answers["2"].infer_response) == {KIND: "sequence_gone", "sequence_id": "no"}
    assert "no such number" in answers["3"].error_message
    assert numbers(answers["4"].infer_response) == [2]


@CARRIERS
@ran
async def test_an_error_ends_the_stream_with_its_status_where_that_is_asked_for(carrier):
    async with sums(carrier) as (channel, _):
        call = bidi(channel, response=StreamResponse)(
            [request(1, sequence_id="no")], metadata=(("triton_grpc_error", "true"),)
        )
        code, kind, _, _ = await refused(call.read())
        assert (code, kind) == ("NOT_FOUND", "sequence_gone")


@CARRIERS
@ran
async def test_a_stream_that_breaks_leaves_the_sequences_that_it_named(carrier):
    async with sums(carrier) as (channel, _):
        call = bidi(channel, response=StreamResponse)(metadata=TRITON)
        await call.write(request(1, sequence_id="a", sequence_start=True))
        assert numbers((await call.read()).infer_response) == [1]
        call.cancel()
        again = bidi(channel, response=StreamResponse)([request(1, sequence_id="a")], metadata=TRITON)
        assert numbers((await again.read()).infer_response) == [2]
