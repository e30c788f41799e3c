"""Streams of a model: one or many requests, plain or async generators, and all of their ends."""

import asyncio
import contextlib
import operator
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from cases import for_each
from engine.support import WAIT_S, in_thread, request, rows, serving, values, wait_until
from headrace.core import InferResponse, Model, Tensor, TensorSpec
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    ModelContractError,
    ModelInputError,
    OverloadedError,
    PredictError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import current_call
from headrace.engine.admission import ResponseStream, open_stream
from headrace.engine.session import SessionState
from headrace.engine.streams import ITEMS_MAX, StreamCall
from headrace.testing import EchoModel, ManualClock


class Script(Model):
    """Streams what its function, a generator of requests, yields; echoes batches. Records the ends."""

    def __init__(self, function, *, asynchronous):
        self.closed: list[str] = []
        self.ended = threading.Semaphore(0)
        self.asked_on = threading.Semaphore(0)
        """Released when an item was taken and the next one is requested."""
        if asynchronous:
            self.predict_stream = self._async(function)
        else:
            self.predict_stream = self._plain(function)

    def predict(self, x):
        return x

    def _note(self, how):
        self.closed.append(how)
        self.ended.release()

    def _plain(self, function):
        def predict_stream(requests):
            try:
                for item in function(requests):
                    yield item
                    self.asked_on.release()
            except GeneratorExit:
                self._note("closed")
                raise
            except BaseException as error:
                self._note(type(error).__name__)
                raise
            else:
                self._note("ended")

        return predict_stream

    def _async(self, function):
        async def predict_stream(requests):
            try:
                # Otherwise the event loop would close the inner generator, at any time.
                async with contextlib.aclosing(function(requests)) as items:
                    async for item in items:
                        yield item
                        self.asked_on.release()
            except BaseException as error:
                self._note("closed" if isinstance(error, GeneratorExit) else type(error).__name__)
                raise
            else:
                self._note("ended")

        return predict_stream


def plain_echo(requests):
    for one in requests:
        yield one["x"]


async def async_echo(requests):
    async for one in requests:
        yield one["x"]


def plain_count(requests):
    for n in range(int(next(requests)["x"][0, 0])):
        yield float(n)


async def async_count(requests):
    async for one in requests:
        for n in range(int(one["x"][0, 0])):
            yield float(n)


def plain_hang(requests):
    yield 1.0
    while True:
        next(requests)


async def async_hang(requests):
    yield 1.0
    await asyncio.Event().wait()


ECHOES = [plain_echo, async_echo]
COUNTS = [plain_count, async_count]
HANGS = [plain_hang, async_hang]
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])


def _script(function) -> Script:
    return Script(function, asynchronous=function.__name__.startswith("async"))


def _run(model, use: Callable, **settings):
    """Run a coroutine with an engine around the model, and assert that no stream is left open."""

    async def bounded(engine):
        async with asyncio.timeout(WAIT_S):
            result = await use(engine)
            await wait_until(lambda: not engine._session.slots or not engine.model_statistics().open_streams)
            return result

    with serving(model, **settings) as engine:
        return asyncio.run(bounded(engine))


async def _all(stream) -> list[float]:
    return [values(item)[0] async for item in stream]


async def _into(got: list[float], stream) -> None:
    async for item in stream:
        got += values(item)


async def _requests(*many):
    for one in many:
        yield request(rows(one))


async def _never():
    await asyncio.Event().wait()
    yield request()


# Requests and responses


@pytest.mark.parametrize("function", [*ECHOES, *COUNTS])
@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_one_or_many_requests_and_responses(function, isolation):
    """In all combinations, wherever the model runs."""
    model = _script(function)

    async def use(engine):
        one = await _all(engine.stream(request(rows(3))))
        many = await _all(engine.stream(request(rows(3)), _requests(2, 1)))
        await engine.infer(request())
        return one, many

    one, many = _run(model, use, isolation=isolation)
    if "echo" in function.__name__:
        assert (one, many) == ([3], [3, 2, 1])
    else:
        assert one == [0, 1, 2]
        assert many == ([0, 1, 2] if function is plain_count else [0, 1, 2, 0, 1, 0])
    assert model.closed == ["ended", "ended"]


@for_each("function", ECHOES)
def test_response_arrives_before_next_request(function):
    """Either side can wait for the other."""

    async def use(engine):
        answered: asyncio.Queue[float] = asyncio.Queue()

        async def more():
            for n in range(1, 20):
                assert await answered.get() == n - 1
                yield request(rows(n))

        stream = engine.stream(request(rows(0)), more())
        got = []
        async for item in stream:
            got.append(values(item)[0])
            answered.put_nowait(got[-1])
        return got

    assert _run(_script(function), use) == list(range(20))


def test_first_item_arrives_before_second_is_made():
    """The model waits until the first item has arrived."""
    release = threading.Event()

    def plain(_):
        yield 1.0
        assert release.wait(WAIT_S)
        yield 2.0

    async def async_(_):
        yield 1.0
        assert await asyncio.to_thread(release.wait, WAIT_S)
        yield 2.0

    async def use(engine):
        stream = engine.stream(request())
        first = await anext(stream)
        release.set()
        return values(first) + await _all(stream)

    for function in (plain, async_):
        release.clear()
        assert _run(_script(function), use) == [1, 2]


@BOTH
@for_each(
    ("item", "name", "data"),
    [
        (np.arange(3), "word", [0, 1, 2]),
        ([1.5], "word", [1.5]),
        (2, "word", [2]),
        (np.float32(2), "word", [2.0]),
        ("text", "word", ["text"]),
        (b"bytes", "word", [b"bytes"]),
        (np.array(["a", "bc"]), "word", ["a", "bc"]),
        (np.array(2.5), "word", 2.5),
        ({"other": np.array("text")}, "other", "text"),
        (np.array(b"bytes", object), "word", b"bytes"),
        ({"other": [1, 2]}, "other", [1, 2]),
        ({"other": "text"}, "other", ["text"]),
        (InferResponse((Tensor("raw", np.ones(1)),)), "raw", [1.0]),
    ],
)
def test_yielded_values_become_responses(asynchronous, item, name, data):
    def plain(_):
        yield item

    async def async_(_):
        yield item

    model = _script(async_ if asynchronous else plain)
    model.outputs = (TensorSpec("word", "BYTES"),)

    async def use(engine):
        engine.version = engine._backend_factory._version = "7"
        await in_thread(engine.stop)
        await in_thread(engine.start)
        return [response async for response in engine.stream(request(id="r"))]

    (response,) = _run(model, use)
    assert [t.name for t in response.outputs] == [name]
    assert response.outputs[0].data.tolist() == data
    assert response.outputs[0].data.dtype.kind not in "US"
    assert (response.model_name, response.model_version, response.id) == ("m", "7", "r")


@BOTH
@for_each("item", [None, object(), {1, 2}, {}, {"a": None}, 1j, [[1], [1, 2]], np.datetime64("2020")])
def test_invalid_item_ends_stream(asynchronous, item):
    """After the items before it; the generator is closed."""

    def plain(_):
        yield 1.0
        yield item

    async def async_(_):
        yield 1.0
        yield item

    async def use(engine):
        stream = engine.stream(request())
        got = values(await anext(stream))
        with pytest.raises(ModelContractError, match="model m: predict_stream yielded"):
            await anext(stream)
        assert await stream.next_batch() == []
        return got

    model = _script(async_ if asynchronous else plain)
    assert _run(model, use) == [1]
    assert model.closed == ["closed"]


def _returns_list(_self, _requests):
    return [1.0]


async def _coroutine(_self, _requests):
    return [1.0]


@for_each("method", [_returns_list, _coroutine])
def test_predict_stream_must_be_generator(method):
    model = type("Wrong", (EchoModel,), {"predict_stream": method})

    async def use(engine):
        with pytest.raises(ModelContractError, match="has no yield"):
            await _all(engine.stream(request()))

    _run(model, use)


def test_iterator_without_close_is_accepted():
    """Such as `map`."""
    model = type(
        "Mapped",
        (EchoModel,),
        {"predict_stream": lambda _, requests: map(operator.itemgetter("x"), requests)},
    )

    async def use(engine):
        return await _all(engine.stream(request(rows(1)), _requests(2)))

    assert _run(model, use) == [1, 2]


# Errors


@BOTH
@for_each("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@for_each("after", [0, 3])
def test_model_error_follows_its_items(asynchronous, error, after):
    """No other stream ends."""

    def plain(requests):
        for _ in range(int(next(requests)["x"][0, 0])):
            yield 1.0
        raise error

    async def async_(requests):
        async for one in requests:
            for _ in range(int(one["x"][0, 0])):
                yield 1.0
            raise error

    async def use(engine):
        for _ in range(2):
            got = []
            with pytest.raises(PredictError, match=type(error).__name__) as caught:
                await _into(got, engine.stream(request(rows(after))))
            assert caught.value.__cause__ is error
            assert got == [1.0] * after
        return values(await engine.infer(request(rows(4))))

    assert _run(_script(async_ if asynchronous else plain), use) == [4]


@for_each("function", ECHOES)
@for_each("error", [ModelInputError("m", "bad"), OSError("gone"), TimeoutError("slow")])
@for_each("deadline", [None, 1e12])
def test_request_source_error_ends_stream(function, error, deadline):
    """It is neither the model's fault nor a deadline."""

    async def more():
        yield request(rows(2))
        raise error

    async def use(engine):
        got = []
        with pytest.raises(type(error)) as caught:
            await _into(got, engine.stream(request(rows(1), deadline=deadline), more()))
        assert caught.value is error
        return got

    assert _run(_script(function), use) == [1, 2]


def test_model_without_predict_stream_cannot_stream():
    async def use(engine):
        with pytest.raises(UnsupportedError, match="it has no predict_stream"):
            engine.stream(request())

    _run(EchoModel, use)


def test_stream_only_model_refuses_batches():
    class Only(Model):
        def predict_stream(self, requests):
            yield 1.0

    async def use(engine):
        assert not engine.metadata.can_predict
        with pytest.raises(ModelInputError, match="has a predict_stream but no predict"):
            await engine.infer(request())
        return await _all(engine.stream(request()))

    assert _run(Only, use) == [1]


# Ends


@for_each("how", ["aclose", "cancel"])
@for_each(("function", "more"), [(plain_hang, _never), (async_hang, _never), (async_hang, None)])
def test_departed_client_closes_generator(function, how, more):
    """Although it waits for ever."""
    model = _script(function)

    async def use(engine):
        stream = engine.stream(request(), more and more())
        await anext(stream)
        await in_thread(model.asked_on.acquire)
        if how == "aclose":
            await stream.aclose()
            await stream.aclose()
        else:
            reading = asyncio.create_task(stream.next_batch())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert await stream.next_batch() == []
        assert engine.model_statistics().open_streams == 0
        await in_thread(model.ended.acquire)
        return values(await engine.infer(request(rows(7))))

    assert _run(model, use) == [7]
    assert model.closed == ["CancelledError" if function is async_hang else "CancelledRequestError"]


@for_each("function", COUNTS)
def test_slow_consumer_bounds_producer_and_may_leave(function):
    """ITEMS_MAX items are in transit; the item whose put waits is the last that is made."""
    made = []

    def counted(n):
        made.append(n)
        return n

    def plain(requests):
        for n in plain_count(requests):
            yield counted(n)

    async def async_(requests):
        async for n in async_count(requests):
            yield counted(n)

    model = _script(plain if function is plain_count else async_)

    async def use(engine):
        stream = engine.stream(request(rows(10**6)))
        await wait_until(lambda: len(made) >= ITEMS_MAX)
        await asyncio.sleep(0)
        values(await engine.infer(request()))
        assert len(made) == ITEMS_MAX
        assert len(await stream.next_batch()) == ITEMS_MAX
        await wait_until(lambda: len(made) == 2 * ITEMS_MAX)
        await stream.aclose()
        await in_thread(model.ended.acquire)
        assert len(made) == 2 * ITEMS_MAX
        assert engine.model_statistics().stream_items == ITEMS_MAX

    _run(model, use)
    assert model.closed == ["closed"]


@for_each("function", ECHOES)
def test_requests_are_bounded(function):
    """An endless source waits for a model that takes nothing."""
    given, release = [], threading.Event()

    def plain(requests):
        assert release.wait(WAIT_S)
        yield from plain_echo(requests)

    async def async_(requests):
        assert await asyncio.to_thread(release.wait, WAIT_S)
        async for item in async_echo(requests):
            yield item

    async def more():
        for n in range(1000):
            given.append(n)
            yield request(rows(n))

    async def use(engine):
        stream = engine.stream(request(rows(-1)), more())
        await wait_until(lambda: len(given) >= ITEMS_MAX - 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(given) == ITEMS_MAX - 1
        release.set()
        return await _all(stream)

    assert _run(_script(plain if function is plain_echo else async_), use) == list(range(-1, 1000))


@for_each("function", HANGS)
def test_deadline_ends_stream(function):
    model = _script(function)

    async def use(engine):
        deadline = engine._clock.now() + 0.03
        stream = engine.stream(request(deadline=deadline, id="s"), _never())
        assert values(await anext(stream)) == [1]
        with pytest.raises(DeadlineError, match="stream s did not end before its deadline"):
            await anext(stream)
        await in_thread(model.ended.acquire)

    _run(model, use)
    assert model.closed[0] != "ended"


@for_each("function", COUNTS)
def test_stream_without_waiting_meets_deadline(function):
    """Items are always there."""
    clock = ManualClock()

    async def use(engine):
        stream = engine.stream(request(rows(10**6), deadline=5.0))
        assert len(await stream.next_batch()) > 0
        clock.advance(5.0)
        with pytest.raises(DeadlineError):
            await _all(stream)

    _run(_script(function), use, clock=clock)


def test_open_streams_are_bounded():
    async def use(engine):
        streams = [engine.stream(request(), _never()) for _ in range(2)]
        with pytest.raises(OverloadedError, match="2 streams are open, the limit"):
            engine.stream(request())
        await streams[0].aclose()
        streams.append(engine.stream(request(), _never()))
        for stream in streams:
            await stream.aclose()
        figures = engine.model_statistics()
        assert (figures.streams, figures.refused, figures.open_streams) == (3, 1, 0)

    _run(_script(plain_echo), use, streams_max=2)


def test_stream_goes_to_instance_with_fewest():
    async def use(engine):
        streams = [engine.stream(request(), _never()) for _ in range(4)]
        assert [len(s.streams) for s in engine._session.slots] == [2, 2]
        for stream in streams:
            await stream.aclose()

    _run(lambda: _script(plain_echo), use, instances=2)


@for_each("function", HANGS)
def test_close_before_begin_leaves_nothing(function):
    """Opened and closed without a turn in between, many times."""
    model = _script(function)

    async def use(engine):
        for _ in range(100):
            await engine.stream(request(), _never()).aclose()
        backend = engine._session.slots[0].backend
        await wait_until(lambda: not backend._stream_model._open)
        return await engine.infer(request())

    assert _run(model, use)


def test_model_clean_up_is_not_interrupted():
    """However often a stream is closed: by its client, by a stop."""
    cleaned, cleaning, release = [], threading.Event(), threading.Event()

    async def async_(_):
        try:
            yield 1.0
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.to_thread(release.wait, WAIT_S)
            cleaned.append("generator")

    model = _script(async_)
    model.close = lambda: cleaned.append("model")

    async def use(engine):
        stream = engine.stream(request())
        await anext(stream)
        await stream.aclose()
        await in_thread(cleaning.wait)
        stream._call.cancel()
        stopping = asyncio.create_task(in_thread(lambda: engine.stop(drain=False)))
        await wait_until(lambda: engine._session.slots[0].backend._stream_model._end_error is not None)
        release.set()
        await stopping

    _run(model, use)
    assert cleaned == ["generator", "model"]


# Concurrency


@BOTH
def test_many_streams_besides_batches(asynchronous):
    """Fifty streams and as many requests on one instance; plain generators and `predict` run one at
    a time.
    """
    inside, most = [0], [0]

    def step():
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0)
        inside[0] -= 1

    def plain(requests):
        for one in requests:
            for n in range(10):
                step()
                yield one["x"] + n

    async def async_(requests):
        async for one in requests:
            for n in range(10):
                step()
                await asyncio.sleep(0)
                yield one["x"] + n

    model = _script(async_ if asynchronous else plain)

    def predict(x):
        step()
        return x

    model.predict = predict

    async def one_stream(engine, n):
        got = await _all(engine.stream(request(rows(n)), _requests(n + 100)))
        assert got == [*range(n, n + 10), *range(n + 100, n + 110)]

    async def one_ask(engine, n):
        for _ in range(5):
            assert values(await engine.infer(request(rows(n)))) == [n]

    async def use(engine):
        await asyncio.gather(*(f(engine, n) for n in range(50) for f in (one_stream, one_ask)))
        figures = engine.model_statistics()
        return figures.streams, figures.stream_items, figures.success.count

    assert _run(model, use) == (50, 1000, 250)
    assert most == [1]


def test_waiting_plain_stream_blocks_no_other():
    async def use(engine):
        waits = engine.stream(request(rows(1)), _never())
        await anext(waits)
        assert await _all(engine.stream(request(rows(2)))) == [2]
        assert values(await engine.infer(request(rows(3)))) == [3]
        await waits.aclose()

    _run(_script(plain_echo), use)


@BOTH
def test_stream_sees_its_current_call(asynchronous):
    def call_values():
        call = current_call()
        return -1.0 if call.deadline_s is None else call.deadline_s

    def plain(_):
        yield call_values()

    async def async_(_):
        await asyncio.sleep(0)
        yield call_values()

    async def use(engine):
        return [await _all(engine.stream(request(deadline=d))) for d in (None, 60.0)]

    assert _run(_script(async_ if asynchronous else plain), use, clock=ManualClock(10.0)) == [[-1], [50]]


def test_stream_sees_departed_client():
    clock = ManualClock()
    call = StreamCall(clock, deadline=5.0, id="")
    assert not call.cancelled
    clock.advance(5.0)
    assert call.cancelled
    gone = StreamCall(clock, deadline=None, id="")
    gone.cancel()
    assert gone.cancelled


# Stopping


@for_each("function", ECHOES)
def test_drain_waits_for_open_streams(function):
    """They continue; no new stream is accepted."""

    async def use(engine):
        sent: asyncio.Queue[float] = asyncio.Queue()

        async def more():
            while (n := await sent.get()) >= 0:
                yield request(rows(n))

        stream = engine.stream(request(rows(1)), more())
        await anext(stream)
        stopping = asyncio.create_task(in_thread(engine.stop))
        await wait_until(lambda: engine._session.state.name == "STOPPING")
        with pytest.raises(StoppedError):
            engine.stream(request())
        sent.put_nowait(5)
        assert values(await anext(stream)) == [5]
        assert not stopping.done()
        sent.put_nowait(-1)
        assert await _all(stream) == []
        await stopping

    _run(_script(function), use)


@for_each("function", HANGS)
@for_each("drains_first", [True, False])
def test_stop_without_drain_ends_streams(function, drains_first):
    """Their clients get StoppedError; a draining stop is cut short."""
    model = _script(function)

    async def use(engine):
        stream = engine.stream(request(), _never())
        await anext(stream)
        stops = []
        if drains_first:
            stops.append(asyncio.create_task(in_thread(engine.stop)))
            await wait_until(lambda: engine._session.state.name == "STOPPING")
        stops.append(asyncio.create_task(in_thread(lambda: engine.stop(drain=False))))
        with pytest.raises(StoppedError, match="while this stream was open"):
            await anext(stream)
        await asyncio.gather(*stops)

    _run(model, use)
    assert model.closed[0] != "ended"


def test_stop_during_stream_opening_ends_every_stream():
    """A stress: each is refused, or ends."""

    finished = [0]

    async def opener(engine, over):
        ends = set()
        while not over.is_set():
            try:
                ends.add(len(await _all(engine.stream(request(rows(3))))))
            except (StoppedError, CancelledRequestError) as error:
                ends.add(type(error).__name__)
            finished[0] += 1
            await asyncio.sleep(0)
        return ends

    async def use(engine):
        over = asyncio.Event()
        tasks = [asyncio.create_task(opener(engine, over)) for _ in range(6)]
        for turn in range(10):
            enough = finished[0] + 6 + 5 * turn
            await wait_until(lambda enough=enough: finished[0] >= enough)
            await in_thread(lambda drain=bool(turn % 2): engine.stop(drain=drain))
            await in_thread(engine.start)
        over.set()
        return set().union(*await asyncio.gather(*tasks))

    for function in (plain_count, async_count):
        ends = _run(lambda function=function: _script(function), use, instances=2)
        assert ends - {"StoppedError"} == {3}


def test_client_with_closed_loop_blocks_no_other():
    """Its task was cancelled with the loop, and the stream with it; the engine stops."""

    async def leave(engine):
        stream = engine.stream(request(), _never())
        await anext(stream)
        asyncio.get_running_loop().call_later(0, asyncio.current_task().cancel)
        await anext(stream)

    for isolation in ("thread", "inline"):
        with serving(_script(async_hang), isolation=isolation) as engine:
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(leave(engine))
            engine.stop()


def test_stream_opened_during_stop_is_refused():
    """The stop happens between the call and the reservation of its slot."""

    async def use(engine):
        session = engine._session
        backend = session.slots[0].backend
        state, session.state = session.state, SessionState.STOPPING
        with pytest.raises(StoppedError):
            open_stream(session, backend, request(), None, 1)
        session.state = state

    _run(_script(plain_echo), use)


def test_unstarted_task_ends_its_stream():
    """The client's event loop closed before its first step."""

    async def leave(engine):
        engine.stream(request())
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        await asyncio.wait([task])

    with serving(_script(async_hang), isolation="inline") as engine:
        asyncio.run(leave(engine))
        assert not engine._session.slots[0].backend._stream_model._open


def test_arrived_items_meet_deadline():
    clock = ManualClock()
    call = StreamCall(clock, deadline=5.0, id="")
    call.responses.offer(InferResponse(()))
    clock.advance(5.0)
    closed = []
    with pytest.raises(DeadlineError):
        asyncio.run(ResponseStream(call, None, closed.append).next_batch())
    assert closed == [call]
