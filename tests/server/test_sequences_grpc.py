"""Sequences over gRPC with a real engine: unary calls and both stream formats, over both
transports.
"""

import asyncio
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest

from cases import for_each
from headrace.core.sequence import SequenceLimits
from headrace.engine.repository import ModelRepository
from headrace.jobs.access import Access, Scope
from headrace.server.dataplane import Dataplane
from server.grpc_support import (
    Request,
    StreamResponse,
    bidi,
    in_event_loop,
    infer_request,
    serving,
    unary,
    values,
)
from server.support import Linear, definition, key_of
from server.support_sequences import BLOCKED, FAILS, RESCHEDULED, DyingSum, RunningSum

CARRIERS = for_each("carrier", ["aio", "asgi"])
TRITON = (("headrace-stream-dialect", "triton"),)
KIND = "headrace-error-kind"


@asynccontextmanager
async def sums(carrier="aio", streams=None, access=None, **limits):
    """Serve a running sum, and return a channel and the model."""
    model = RunningSum()
    model.sequences = SequenceLimits(**{"live_max": 8, "requests_max": 3, **limits})
    async with served(definition(model, "m", isolation="thread"), carrier, streams, access) as channel:
        try:
            yield channel, model
        finally:
            model.gate.set()


@asynccontextmanager
async def served(model, carrier, streams=None, access=None):
    """Serve one model, and return a channel."""
    repository = ModelRepository([model])
    await asyncio.to_thread(repository.start)
    try:
        async with serving(Dataplane(repository), carrier, streams=streams, access=access) as channel:
            channel.engine = repository.engine("m", "")
            yield channel
    finally:
        await asyncio.to_thread(repository.stop, drain=False)


def request(*numbers, id="", **parameters):
    """Return a request with these numbers, or without a tensor."""
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


# Zero rows


@CARRIERS
@in_event_loop
async def test_zero_rows_return_outputs_of_zero_rows(carrier):
    """Of a model without states, and of one with a step."""
    for raw in (True, False):
        async with served(definition(Linear, "m", isolation="thread"), carrier) as channel:
            response = await unary(channel)(infer_request(np.zeros((0, 4), np.float32), raw=raw))
            assert (response.outputs[0].name, values(response).shape) == ("y", (0, 1))
        async with sums(carrier) as (channel, _):
            none = infer_request(np.zeros((0, 1), np.float32), raw=raw)
            assert values(await unary(channel)(none)).shape == (0, 1)


# Values


async def refused(awaitable):
    """Return code, kind, details and metadata of a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await awaitable
    metadata = dict(error.value.trailing_metadata() or ())
    return error.value.code().name, metadata.get(KIND), error.value.details(), metadata


# Unary


@CARRIERS
@for_each("id", [7, "seven"])
@in_event_loop
async def test_sequence_runs_from_start_to_end(carrier, id):
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
@in_event_loop
async def test_tenants_have_sequences_of_their_own(carrier):
    """By unary calls, and by streams of both formats."""
    keys = {"shop": "key-of-the-shop-0123456789", "farm": "key-of-the-farm-0123456789"}
    shop, farm = ((("authorization", f"Bearer {key}"),) for key in keys.values())
    access = Access(dict(key_of(name, key, Scope.INFER) for name, key in keys.items()))
    async with sums(carrier, access=access) as (channel, _):
        infer, stream = unary(channel), bidi(channel)
        triton = bidi(channel, response=StreamResponse)
        first = request(1, sequence_id="a", sequence_start=True)
        assert numbers(await infer(first, metadata=shop)) == [1]
        code, kind, details, _ = await refused(infer(request(1, sequence_id="a"), metadata=farm))
        assert (code, kind) == ("NOT_FOUND", "sequence_gone")
        assert details.startswith("sequence 'a': there is no such sequence")
        call = stream([request(1, sequence_id="a")], metadata=farm)
        assert (await refused(call.read()))[:2] == (code, kind)
        (response,) = [r async for r in triton([request(1, sequence_id="a")], metadata=(*farm, *TRITON))]
        assert told(response.infer_response) == {KIND: "sequence_gone", "sequence_id": "a"}
        assert numbers(await infer(first, metadata=farm)) == [1]
        (response,) = [r async for r in stream([request(1, sequence_id="a")], metadata=shop)]
        assert numbers(response) == [2]


@CARRIERS
@in_event_loop
async def test_refused_step_has_a_retry_time(carrier):
    async with sums(carrier) as (channel, model):
        infer = unary(channel)
        await infer(request(0, sequence_id="a", sequence_start=True))
        requested = [asyncio.ensure_future(infer(request(BLOCKED, sequence_id="a"))) for _ in range(4)]
        await wait_for(lambda: channel.engine.sequences()[0].requests == 4)
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
        assert sorted([numbers(response)[0] for response in await asyncio.gather(*requested)]) == [
            1000,
            2000,
            3000,
            4000,
        ]


async def begin(channel, id):
    """Start a sequence while the model is busy, without waiting for the response."""
    unary(channel)(request(1, sequence_id=id, sequence_start=True))
    await wait_for(lambda: any(info.id == id for info in channel.engine.sequences()))


async def wait_for(condition):
    """Let the event loop run until the condition holds; `in_event_loop` limits the time."""
    for _ in range(10_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition was not reached")


@CARRIERS
@in_event_loop
async def test_request_without_inputs_must_end_a_sequence(carrier):
    async with sums(carrier) as (channel, _):
        for parameters in (
            {},
            {"sequence_id": 3},
            {"sequence_end": True},
            {"sequence_id": 3, "sequence_end": 1},
        ):
            code, kind, _, _ = await refused(unary(channel)(request(**parameters)))
            assert (code, kind) == ("INVALID_ARGUMENT", None)


@pytest.mark.slow
@CARRIERS
@in_event_loop
async def test_state_of_a_dead_process_is_lost(carrier):
    async with served(definition(DyingSum, "m", isolation="process"), carrier) as channel:
        infer = unary(channel)
        await infer(request(1, sequence_id="a", sequence_start=True))
        await infer(request(1, sequence_id="b", sequence_start=True))
        assert (await refused(infer(request(-1, sequence_id="b"))))[:2] == ("ABORTED", "sequence_lost")
        assert (await refused(infer(request(1, sequence_id="a"))))[:2] == ("ABORTED", "sequence_lost")
        plain = bidi(channel)([request(1, sequence_id="a")]).read()
        assert (await refused(plain))[:2] == ("ABORTED", "sequence_lost")
        call = bidi(channel, response=StreamResponse)([request(1, sequence_id="a")], metadata=TRITON)
        response = await call.read()
        assert told(response.infer_response) == {KIND: "sequence_lost", "sequence_id": "a"}
        assert numbers(await infer(request(5, sequence_id="a", sequence_start=True))) == [5]


# Streams in MLServer's format


@CARRIERS
@in_event_loop
async def test_stream_without_ids_is_one_sequence(carrier):
    async with sums(carrier) as (channel, model):
        call = bidi(channel)()
        ids = set()
        for number, sum_ in ((2, [2]), (4, [6]), (RESCHEDULED, [9, 12]), (1, [13])):
            await call.write(request(number))
            for wanted in sum_:
                response = await call.read()
                assert numbers(response) == [wanted]
                ids.add(told(response)["sequence_id"])
        (id,) = ids
        assert [info.id for info in channel.engine.sequences()] == [id]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert (await call.code()).name == "OK"
        await asyncio.to_thread(model.wait_for_end, id, "ended")


@CARRIERS
@in_event_loop
async def test_cancelled_stream_cancels_only_its_own_sequence(carrier):
    async with sums(carrier) as (channel, model):
        call = bidi(channel)()
        await call.write(request(2))
        id = told(await call.read())["sequence_id"]
        await call.write(request(5, sequence_id="named", sequence_start=True))
        assert numbers(await call.read()) == [5]
        call.cancel()
        await asyncio.to_thread(model.wait_for_end, id, "cancelled")
        # The client continues with a unary call.
        assert numbers(await unary(channel)(request(1, sequence_id="named"))) == [6]


@CARRIERS
@in_event_loop
async def test_sequence_error_ends_the_stream_with_its_status(carrier):
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


@in_event_loop
async def test_stream_may_have_many_sequences():
    async with sums() as (channel, _):
        messages = [request(10 * i, sequence_id=f"s{i % 2}", sequence_start=i < 2) for i in range(9)]
        responses = [response async for response in bidi(channel)(messages)]
        assert [numbers(a)[0] for a in responses if told(a)["sequence_id"] == "s1"] == [10, 40, 90, 160]
        assert [numbers(a)[0] for a in responses if told(a)["sequence_id"] == "s0"] == [0, 20, 60, 120, 200]


# Streams in Triton's format


@CARRIERS
@for_each("ids", [["a", "b", "c"], [1, 2, 3]])
@in_event_loop
async def test_messages_of_a_sequence_are_answered_in_order(carrier, ids):
    async with sums(carrier, requests_max=64) as (channel, _):
        messages = [
            request(1, id=f"{id}-{i}", sequence_id=id, sequence_start=i == 0, sequence_end=i == 39)
            for i in range(40)
            for id in ids
        ]
        call = bidi(channel, response=StreamResponse)(messages, metadata=TRITON)
        answers = [message async for message in call]
    assert [message.error_message for message in answers] == [""] * 120
    received = {id: [] for id in ids}
    for message in answers:
        received[told(message.infer_response)["sequence_id"]].append(message.infer_response)
    for id, responses in received.items():
        assert [r.id for r in responses] == [f"{id}-{i}" for i in range(40)]
        assert [numbers(r)[0] for r in responses] == list(range(1, 41))
        assert told(responses[-1]) == {"sequence_id": id, "sequence_end": True}


@CARRIERS
@in_event_loop
async def test_order_is_kept_for_slow_readers(carrier):
    from headrace.server.grpc_inference import GrpcStreamSettings

    settings = GrpcStreamSettings(requests_max=64, responses_max=1)
    async with sums(carrier, settings, requests_max=64) as (channel, _):
        payload = [request(1, id=f"{i}", sequence_id=5, sequence_start=i == 0) for i in range(150)]
        call = bidi(channel, response=StreamResponse)(metadata=TRITON)

        async def write():
            for message in payload:
                await call.write(message)
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        received = []
        for i in range(150):
            received.append((await call.read()).infer_response)
            if i % 50 == 0:
                # Requests of another sequence take the time in which the queue of responses fills.
                for step in range(10):
                    await unary(channel)(request(1, sequence_id="clock", sequence_start=i == step == 0))
        await writing
        assert [response.id for response in received] == [f"{i}" for i in range(150)]


@CARRIERS
@in_event_loop
async def test_error_response_names_the_sequence(carrier):
    async with sums(carrier) as (channel, _):
        messages = [
            request(1, id="1", sequence_id="a", sequence_start=True),
            request(1, id="2", sequence_id="no"),
            request(FAILS, id="3", sequence_id="a"),
            request(1, id="4", sequence_id="a"),
        ]
        call = bidi(channel, response=StreamResponse)(messages, metadata=TRITON)
        responses = {m.infer_response.id: m async for m in call}
    assert responses["2"].error_message.startswith("sequence 'no'")
    assert told(responses["2"].infer_response) == {KIND: "sequence_gone", "sequence_id": "no"}
    assert "no such number" in responses["3"].error_message
    assert numbers(responses["4"].infer_response) == [2]


@CARRIERS
@in_event_loop
async def test_error_ends_the_stream_on_request(carrier):
    async with sums(carrier) as (channel, _):
        call = bidi(channel, response=StreamResponse)(
            [request(1, sequence_id="no")], metadata=(("triton_grpc_error", "true"),)
        )
        code, kind, _, _ = await refused(call.read())
        assert (code, kind) == ("NOT_FOUND", "sequence_gone")


@CARRIERS
@in_event_loop
async def test_broken_stream_keeps_named_sequences(carrier):
    async with sums(carrier) as (channel, _):
        call = bidi(channel, response=StreamResponse)(metadata=TRITON)
        await call.write(request(1, sequence_id="a", sequence_start=True))
        assert numbers((await call.read()).infer_response) == [1]
        call.cancel()
        again = bidi(channel, response=StreamResponse)([request(1, sequence_id="a")], metadata=TRITON)
        assert numbers((await again.read()).infer_response) == [2]
