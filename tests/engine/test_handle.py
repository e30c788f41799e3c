"""Opaque requests: batched by their number, each with a response of its own."""

import asyncio
import gc
import threading
from contextlib import aclosing

import pytest

from cases import for_each
from engine.handle_models import Both, Twice, TwiceAsync
from engine.support import WAIT_S, request, serving, wait_until
from headrace.core import HandleRequest, HandleResponse, Model
from headrace.core.errors import (
    DeadlineError,
    ModelContractError,
    ModelLoadError,
    OverloadedError,
    PredictError,
    RefusedRowsError,
    UnsupportedError,
)
from headrace.core.model import current_call
from headrace.engine import Engine
from headrace.engine.backend import CallInputs
from headrace.engine.process.wire import FrameKind, Wire
from headrace.testing import ManualClock


def opaque(body=b"", **settings):
    return HandleRequest({"body": body}, **settings)


async def body_of(engine, sent):
    """Return the response to a request and its body."""
    async with asyncio.timeout(WAIT_S):
        response, chunks = await engine.handle(sent)
        if chunks is None:
            return response, response.body
        async with aclosing(chunks):
            return response, [chunk async for chunk in chunks]


def responses(engine, *sent):
    """Return the response or the error of requests that are sent at once."""

    async def ask():
        return await asyncio.gather(*(body_of(engine, each) for each in sent), return_exceptions=True)

    return asyncio.run(ask())


PLACES = [(Twice, "thread"), (Twice, "inline"), (Twice, "process"), (TwiceAsync, "thread")]


@pytest.fixture(params=PLACES, ids=["thread", "inline", "process", "async"])
def engine(request):
    kind, isolation = request.param
    with serving(kind, isolation=isolation) as engine:
        yield engine


def test_each_request_gets_its_response(engine):
    """Bytes, text, status and headers; also after failures in the same call."""
    found = responses(
        engine,
        *(opaque(b) for b in (b"a", b"fail", b"text", b"number")),
        opaque(b"status", headers={"kind": "x"}),
    )
    assert found[0] == (HandleResponse(b"aa"), b"aa")
    assert isinstance(found[1], PredictError)
    assert found[2][0] == HandleResponse("grüße".encode(), content_type="text/plain; charset=utf-8")
    assert isinstance(found[3], ModelContractError)
    assert found[4][0] == HandleResponse(b"teapot", 418, "text/plain", {"X-Kind": "x"})


def test_parts_keep_names_and_order(engine):
    parts = {"body": b"parts", "b": b"\0\xff", "a": b""}
    assert responses(engine, HandleRequest(parts))[0][1] == b"body=parts,b=\0\xff,a="


def test_chunks_arrive_in_order(engine):
    (found,) = responses(engine, opaque(b"chunks"))
    assert (found[0].content_type, found[1]) == ("text/x", [b"c0", b"c1", b"c2"])
    assert engine.model_statistics().open_streams == 0


def test_generator_is_closed_when_client_leaves(engine):
    """Its place for a stream is free again."""

    async def leave():
        _, chunks = await engine.handle(opaque(b"endless"))
        assert (await anext(chunks))[:1] == b"x"
        await chunks.aclose()
        await wait_until(lambda: not engine.model_statistics().open_streams)

    asyncio.run(leave())
    assert responses(engine, opaque(b"a"))[0][1] == b"aa"


def test_failing_generator_ends_body_with_error(engine):
    (found,) = responses(engine, opaque(b"broken chunks"))
    assert isinstance(found, PredictError)
    assert "no more" in str(found)


def test_unread_chunks_are_dropped_in_process(monkeypatch):
    """The client may leave before the body is opened."""
    posted = []
    post = Wire.post

    def record(wire, kind, *arguments):
        posted.append(kind)
        post(wire, kind, *arguments)

    monkeypatch.setattr(Wire, "post", record)
    with serving(Twice, isolation="process") as engine:
        backend = engine._session.slots[0].backend
        backend.call(CallInputs((), 1, requests=(opaque(b"endless"),)), current_call())
        gc.collect()
        assert FrameKind.DROP_BODY in posted


class Held(Model):
    """Waits for a gate in its first call, and keeps the sizes of its calls."""

    max_batch_rows = 4

    def __init__(self):
        self.gate, self.began, self.sizes = threading.Event(), threading.Event(), []

    def handle(self, requests):
        self.sizes.append(len(requests))
        self.began.set()
        self.gate.wait(WAIT_S)
        if any(r.body == b"bad" for r in requests):
            raise ValueError("bad")
        return [r.body for r in requests]


async def start_behind_first(engine, model, *bodies):
    """Return tasks of requests that wait while the model is busy with the first one."""
    tasks = [asyncio.create_task(body_of(engine, opaque(b"first")))]
    await wait_until(model.began.is_set)
    tasks += [asyncio.create_task(body_of(engine, opaque(body))) for body in bodies]
    await wait_until(lambda: engine.model_statistics().waiting_requests == len(bodies))
    return tasks


def test_requests_are_batched_by_number():
    model = Held()

    async def ask(engine):
        tasks = await start_behind_first(engine, model, *(b"%d" % n for n in range(6)))
        model.gate.set()
        return [body for _, body in await asyncio.gather(*tasks)]

    with serving(model) as engine:
        assert asyncio.run(ask(engine)) == [b"first", *(b"%d" % n for n in range(6))]
    assert model.sizes == [1, 4, 2]


def test_failing_request_fails_alone():
    model = Held()

    async def ask(engine):
        tasks = await start_behind_first(engine, model, b"1", b"bad", b"3", b"4")
        model.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with serving(model) as engine:
        found = asyncio.run(ask(engine))
    assert isinstance(found[2], PredictError)
    assert [each[1] for at, each in enumerate(found) if at != 2] == [b"first", b"1", b"3", b"4"]


def test_refused_requests_fail_without_another_call():
    Twice.batch_sizes.clear()
    with serving(Twice) as engine:
        found = responses(engine, opaque(b"a"), opaque(b"bad"), opaque(b"b"))
    assert [type(each) is RefusedRowsError for each in found] == [False, True, False]
    assert "it is bad" in str(found[1])


def test_cancelled_request_leaves_queue():
    model = Held()

    async def ask(engine):
        tasks = await start_behind_first(engine, model, b"1", b"2")
        tasks[1].cancel()
        await asyncio.wait(tasks[1:2])
        model.gate.set()
        return await asyncio.gather(tasks[0], tasks[2])

    with serving(model) as engine:
        assert [body for _, body in asyncio.run(ask(engine))] == [b"first", b"2"]
        assert engine.model_statistics().cancelled == 1
    assert model.sizes == [1, 1]


def test_expired_request_is_not_called():
    with serving(Twice, clock=ManualClock()) as engine:
        assert isinstance(responses(engine, opaque(b"a", deadline=0.0))[0], DeadlineError)
        assert responses(engine, opaque(b"deadline", deadline=5.0))[0][1] == b"True"


def test_opaque_requests_share_no_call_with_rows():
    with serving(Both) as engine:
        assert engine.metadata.can_handle
        assert engine.submit(request()).result(WAIT_S).outputs[0].data.tolist() == [[1.0]]
        assert responses(engine, opaque())[0][1] == b"1"


def test_model_without_handle_is_unsupported():
    class Plain(Model):
        def predict(self, x):
            return x

    with serving(Plain) as engine:
        assert isinstance(responses(engine, opaque())[0], UnsupportedError)


def test_full_queue_and_open_streams_are_limits():
    with serving(Twice, streams_max=1) as engine:

        async def ask():
            _, chunks = await engine.handle(opaque(b"endless"))
            async with aclosing(chunks):
                with pytest.raises(OverloadedError):
                    await engine.handle(opaque(b"chunks"))
            return await body_of(engine, opaque(b"chunks"))

        assert asyncio.run(ask())[1] == [b"c0", b"c1", b"c2"]


def test_step_and_handle_are_refused():
    class Wrong(Model):
        def step(self, states, x):
            return x

        def handle(self, requests):
            return []

    with pytest.raises(ModelLoadError, match="both step and handle"):
        Engine(Wrong, name="m").start()


@for_each(
    "returned",
    [
        (None, "returned a NoneType"),
        (b"text", "returned a bytes"),
        ([b"a", b"b"], "2 responses for 1 requests"),
        ([HandleResponse(status=99)], "status 99"),
        ([HandleResponse(b"a", status=204)], "body with the status 204"),
        ([HandleResponse(headers={"a b": "c"})], "invalid header"),
        ([HandleResponse(headers={"a": "b\r\nc: d"})], "invalid header"),
        ([HandleResponse(headers={"Content-Length": "3"})], "the server sets it"),
        ([HandleResponse(7)], "body of type int"),
    ],
)
def test_invalid_response_is_model_error(returned):
    value, text = returned

    class Wrong(Model):
        def handle(self, requests):
            return value

    with serving(Wrong) as engine:
        (found,) = responses(engine, opaque())
    assert isinstance(found, ModelContractError)
    assert text in str(found)
