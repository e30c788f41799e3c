"""Streams of a model: one or many requests, plain or async generators, and every way in which they can end."""

import asyncio
import contextlib
import operator
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from engine.support import WAIT_S, on_thread, request, rows, serving, until, values
from headrace.core import InferResponse, Model, Tensor, TensorSpec
from headrace.core.call import current_call
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
from headrace.engine.life import State
from headrace.engine.streams import ITEMS_MAX, AnswerStream, StreamCall
from headrace.testing import EchoModel, ManualClock


class Script(Model):
    """Streams what its function, a generator of requests, yields; echoes batches. Notes how each generator ended."""

    def __init__(self, function, *, asynchronous):
        self.closed: list[str] = []
        self.ended = threading.Semaphore(0)
        self.asked_on = threading.Semaphore(0)
        """Released when an item was taken and the next is asked for."""
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
                # Or a generator that is closed at its yield would leave the inner one to be closed by the loop, some time.
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


ECHOES = [pytest.param(plain_echo, id="plain"), pytest.param(async_echo, id="async")]
COUNTS = [pytest.param(plain_count, id="plain"), pytest.param(async_count, id="async")]
HANGS = [pytest.param(plain_hang, id="plain"), pytest.param(async_hang, id="async")]
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])


def _script(function) -> Script:
    return Script(function, asynchronous=function.__name__.startswith("async"))


def _run(model, use: Callable, **settings):
    """Let a coroutine use an engine around the model, and see that no stream is left open."""

    async def bounded(engine):
        async with asyncio.timeout(WAIT_S):
            result = await use(engine)
            await until(lambda: not engine._life.slots or not engine.model_statistics().open_streams)
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


# What goes in and comes out


@pytest.mark.parametrize("function", [*ECHOES, *COUNTS])
@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_one_request_or_many(function, isolation):
    """In all combinations, wherever the model runs."""
    model = _script(function)

    async def use(engine):
        one = await _all(engine.stream(request(rows(3))))
        many = await _all(engine.stream(request(rows(3)), _requests(2, 1)))
        await engine.ask(request())
        return one, many

    one, many = _run(model, use, isolation=isolation)
    if "echo" in function.__name__:
        assert (one, many) == ([3], [3, 2, 1])
    else:
        assert one == [0, 1, 2]
        assert many == ([0, 1, 2] if function is plain_count else [0, 1, 2, 0, 1, 0])
    assert model.closed == ["ended", "ended"]


@pytest.mark.parametrize("function", ECHOES)
def test_a_reply_comes_before_the_next_request_is_sent(function):
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


def test_the_first_item_arrives_before_the_second_was_made():
    """The model waits for whoever has the first."""
    go_on = threading.Event()

    def plain(_):
        yield 1.0
        assert go_on.wait(WAIT_S)
        yield 2.0

    async def async_(_):
        yield 1.0
        assert await asyncio.to_thread(go_on.wait, WAIT_S)
        yield 2.0

    async def use(engine):
        stream = engine.stream(request())
        first = await anext(stream)
        go_on.set()
        return values(first) + await _all(stream)

    for function in (plain, async_):
        go_on.clear()
        assert _run(_script(function), use) == [1, 2]


@BOTH
@pytest.mark.parametrize(
    ("item", "name", "data"),
    [
        (np.arange(3), "word", [0, 1, 2]),
        ([1.5], "word", [1.5]),
        (2, "word", [2]),
        (np.float32(2), "word", [2.0]),
        ("text", "word", ["text"]),
        (b"bytes", "word", [b"bytes"]),
        (np.array(["a", "bc"]), "word", ["a", "bc"]),
        ({"other": [1, 2]}, "other", [1, 2]),
        ({"other": "text"}, "other", ["text"]),
        (InferResponse((Tensor("raw", np.ones(1)),)), "raw", [1.0]),
    ],
)
def test_whatever_is_yielded_becomes_a_response(asynchronous, item, name, data):
    def plain(_):
        yield item

    async def async_(_):
        yield item

    model = _script(async_ if asynchronous else plain)
    model.outputs = (TensorSpec("word", "BYTES"),)

    async def use(engine):
        engine.version = engine._placement._version = "7"
        await on_thread(engine.stop)
        await on_thread(engine.start)
        return [response async for response in engine.stream(request(id="r"))]

    (response,) = _run(model, use)
    assert [t.name for t in response.outputs] == [name]
    assert response.outputs[0].data.tolist() == data
    assert response.outputs[0].data.dtype.kind not in "US"
    assert (response.model_name, response.model_version, response.id) == ("m", "7", "r")


@BOTH
@pytest.mark.parametrize(
    "item", [None, object(), {1, 2}, {}, {"a": None}, 1j, [[1], [1, 2]], np.datetime64("2020")]
)
def test_what_is_no_response_ends_the_stream(asynchronous, item):
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
        assert await stream.some() == []
        return got

    model = _script(async_ if asynchronous else plain)
    assert _run(model, use) == [1]
    assert model.closed == ["closed"]


def _returns_list(_self, _requests):
    return [1.0]


async def _coroutine(_self, _requests):
    return [1.0]


@pytest.mark.parametrize("method", [_returns_list, _coroutine])
def test_what_is_no_generator_is_told(method):
    model = type("Wrong", (EchoModel,), {"predict_stream": method})

    async def use(engine):
        with pytest.raises(ModelContractError, match="it has no yield"):
            await _all(engine.stream(request()))

    _run(model, use)


def test_an_iterator_needs_no_close():
    """`map` and the like have none."""
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
@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("after", [0, 3])
def test_what_the_model_raises_comes_after_the_items_before_it(asynchronous, error, after):
    """And ends nothing else."""

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
        return values(await engine.ask(request(rows(4))))

    assert _run(_script(async_ if asynchronous else plain), use) == [4]


@pytest.mark.parametrize("function", ECHOES)
@pytest.mark.parametrize("error", [ModelInputError("m", "bad"), OSError("gone"), TimeoutError("slow")])
@pytest.mark.parametrize("deadline", [None, 1e12])
def test_what_the_source_of_requests_raises_ends_the_stream_with_that(function, error, deadline):
    """It is not the model's fault, nor a deadline."""

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


def test_a_model_without_predict_stream_does_not_stream():
    async def use(engine):
        with pytest.raises(UnsupportedError, match="it has no predict_stream"):
            engine.stream(request())

    _run(EchoModel, use)


def test_a_model_that_only_streams_answers_no_batches():
    class Only(Model):
        def predict_stream(self, requests):
            yield 1.0

    async def use(engine):
        assert not engine.metadata.predicts
        with pytest.raises(ModelInputError, match="it only streams"):
            await engine.ask(request())
        return await _all(engine.stream(request()))

    assert _run(Only, use) == [1]


# Ends


@pytest.mark.parametrize("how", ["aclose", "cancel"])
@pytest.mark.parametrize(
    ("function", "more"), [(plain_hang, _never), (async_hang, _never), (async_hang, None)]
)
def test_a_caller_who_goes_closes_the_generator(function, how, more):
    """In time: it waits for what will never come."""
    model = _script(function)

    async def use(engine):
        stream = engine.stream(request(), more and more())
        await anext(stream)
        await on_thread(model.asked_on.acquire)
        if how == "aclose":
            await stream.aclose()
            await stream.aclose()
        else:
            reading = asyncio.create_task(stream.some())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert await stream.some() == []
        assert engine.model_statistics().open_streams == 0
        await on_thread(model.ended.acquire)
        return values(await engine.ask(request(rows(7))))

    assert _run(model, use) == [7]
    assert model.closed == ["CancelledError" if function is async_hang else "CancelledRequestError"]


@pytest.mark.parametrize("function", COUNTS)
def test_a_slow_consumer_bounds_the_producer_and_may_go_while_that_waits(function):
    """ITEMS_MAX items are on the way; the one that waits for room is the last that is made."""
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
        await until(lambda: len(made) >= ITEMS_MAX)
        await asyncio.sleep(0)
        values(await engine.ask(request()))
        assert len(made) == ITEMS_MAX
        assert len(await stream.some()) == ITEMS_MAX
        await until(lambda: len(made) == 2 * ITEMS_MAX)
        await stream.aclose()
        await on_thread(model.ended.acquire)
        assert len(made) == 2 * ITEMS_MAX
        assert engine.model_statistics().stream_items == ITEMS_MAX

    _run(model, use)
    assert model.closed == ["closed"]


@pytest.mark.parametrize("function", ECHOES)
def test_requests_are_bounded_too(function):
    """A source that gives without end waits for a model that takes nothing."""
    given, go_on = [], threading.Event()

    def plain(requests):
        assert go_on.wait(WAIT_S)
        yield from plain_echo(requests)

    async def async_(requests):
        assert await asyncio.to_thread(go_on.wait, WAIT_S)
        async for item in async_echo(requests):
            yield item

    async def more():
        for n in range(1000):
            given.append(n)
            yield request(rows(n))

    async def use(engine):
        stream = engine.stream(request(rows(-1)), more())
        await until(lambda: len(given) >= ITEMS_MAX - 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(given) == ITEMS_MAX - 1
        go_on.set()
        return await _all(stream)

    assert _run(_script(plain if function is plain_echo else async_), use) == list(range(-1, 1000))


@pytest.mark.parametrize("function", HANGS)
def test_a_deadline_ends_the_stream(function):
    model = _script(function)

    async def use(engine):
        deadline = engine._clock.now() + 0.03
        stream = engine.stream(request(deadline=deadline, id="s"), _never())
        assert values(await anext(stream)) == [1]
        with pytest.raises(DeadlineError, match="stream s did not end before its deadline"):
            await anext(stream)
        await on_thread(model.ended.acquire)

    _run(model, use)
    assert model.closed[0] != "ended"


@pytest.mark.parametrize("function", COUNTS)
def test_a_stream_that_is_never_waited_for_is_late_too(function):
    """Items are always there; its time is over all the same."""
    clock = ManualClock()

    async def use(engine):
        stream = engine.stream(request(rows(10**6), deadline=5.0))
        assert len(await stream.some()) > 0
        clock.advance(5.0)
        with pytest.raises(DeadlineError):
            await _all(stream)

    _run(_script(function), use, clock=clock)


def test_streams_are_bounded():
    async def use(engine):
        streams = [engine.stream(request(), _never()) for _ in range(2)]
        with pytest.raises(OverloadedError, match="2 open streams, and no more may be"):
            engine.stream(request())
        await streams[0].aclose()
        streams.append(engine.stream(request(), _never()))
        for stream in streams:
            await stream.aclose()
        figures = engine.model_statistics()
        assert (figures.streams, figures.refused, figures.open_streams) == (3, 1, 0)

    _run(_script(plain_echo), use, streams_max=2)


def test_streams_go_to_the_instance_with_the_fewest():
    async def use(engine):
        streams = [engine.stream(request(), _never()) for _ in range(4)]
        assert [len(s.streams) for s in engine._life.slots] == [2, 2]
        for stream in streams:
            await stream.aclose()

    _run(lambda: _script(plain_echo), use, instances=2)


@pytest.mark.parametrize("function", HANGS)
def test_leaving_before_it_began_leaves_nothing(function):
    """Opened and closed without a turn in between, many times."""
    model = _script(function)

    async def use(engine):
        for _ in range(100):
            await engine.stream(request(), _never()).aclose()
        backend = engine._life.slots[0].backend
        await until(lambda: not backend._streams)
        return await engine.ask(request())

    assert _run(model, use)


def test_the_models_cleaning_up_is_not_broken_into():
    """However often a stream is closed: by its caller, by the engine that stops."""
    cleaned, cleaning, go_on = [], threading.Event(), threading.Event()

    async def async_(_):
        try:
            yield 1.0
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.to_thread(go_on.wait, WAIT_S)
            cleaned.append("generator")

    model = _script(async_)
    model.close = lambda: cleaned.append("model")

    async def use(engine):
        stream = engine.stream(request())
        await anext(stream)
        await stream.aclose()
        await on_thread(cleaning.wait)
        stream._call.cancel()
        stopping = asyncio.create_task(on_thread(lambda: engine.stop(drain=False)))
        await until(lambda: engine._life.slots[0].backend._closed)
        go_on.set()
        await stopping

    _run(model, use)
    assert cleaned == ["generator", "model"]


# Beside each other


@BOTH
def test_many_streams_beside_batches(asynchronous):
    """Fifty streams and as many asks on one instance; the code of plain generators and predict runs one at a time."""
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
            assert values(await engine.ask(request(rows(n)))) == [n]

    async def use(engine):
        await asyncio.gather(*(f(engine, n) for n in range(50) for f in (one_stream, one_ask)))
        figures = engine.model_statistics()
        return figures.streams, figures.stream_items, figures.success.count

    assert _run(model, use) == (50, 1000, 250)
    assert most == [1]


def test_a_plain_stream_that_waits_for_a_request_keeps_nobody_waiting():
    async def use(engine):
        waits = engine.stream(request(rows(1)), _never())
        await anext(waits)
        assert await _all(engine.stream(request(rows(2)))) == [2]
        assert values(await engine.ask(request(rows(3)))) == [3]
        await waits.aclose()

    _run(_script(plain_echo), use)


@BOTH
def test_a_stream_can_ask_about_its_call(asynchronous):
    def told():
        call = current_call()
        return -1.0 if call.deadline_s is None else call.deadline_s

    def plain(_):
        yield told()

    async def async_(_):
        await asyncio.sleep(0)
        yield told()

    async def use(engine):
        return [await _all(engine.stream(request(deadline=d))) for d in (None, 60.0)]

    assert _run(_script(async_ if asynchronous else plain), use, clock=ManualClock(10.0)) == [[-1], [50]]


def test_whether_the_caller_has_gone_can_be_asked():
    clock = ManualClock()
    call = StreamCall(clock, deadline=5.0, id="")
    assert not call.cancelled
    clock.advance(5.0)
    assert call.cancelled
    gone = StreamCall(clock, deadline=None, id="")
    gone.cancel()
    assert gone.cancelled


# Stopping


@pytest.mark.parametrize("function", ECHOES)
def test_a_drain_waits_for_open_streams(function):
    """They go on as if nothing were; no new one is taken."""

    async def use(engine):
        sent: asyncio.Queue[float] = asyncio.Queue()

        async def more():
            while (n := await sent.get()) >= 0:
                yield request(rows(n))

        stream = engine.stream(request(rows(1)), more())
        await anext(stream)
        stopping = asyncio.create_task(on_thread(engine.stop))
        await until(lambda: engine._life.state.name == "STOPPING")
        with pytest.raises(StoppedError):
            engine.stream(request())
        sent.put_nowait(5)
        assert values(await anext(stream)) == [5]
        assert not stopping.done()
        sent.put_nowait(-1)
        assert await _all(stream) == []
        await stopping

    _run(_script(function), use)


@pytest.mark.parametrize("function", HANGS)
@pytest.mark.parametrize("drains_first", [True, False])
def test_stopping_without_drain_ends_streams(function, drains_first):
    """Their callers are told that it was the engine; a stop that drains is cut short."""
    model = _script(function)

    async def use(engine):
        stream = engine.stream(request(), _never())
        await anext(stream)
        stops = []
        if drains_first:
            stops.append(asyncio.create_task(on_thread(engine.stop)))
            await until(lambda: engine._life.state.name == "STOPPING")
        stops.append(asyncio.create_task(on_thread(lambda: engine.stop(drain=False))))
        with pytest.raises(StoppedError, match="while this stream was open"):
            await anext(stream)
        await asyncio.gather(*stops)

    _run(model, use)
    assert model.closed[0] != "ended"


def test_stopping_while_streams_are_opened_leaves_nobody_hanging():
    """A stress: each is refused, or comes to an end."""

    async def opener(engine, over):
        ends = set()
        while not over.is_set():
            try:
                ends.add(len(await _all(engine.stream(request(rows(3))))))
            except (StoppedError, CancelledRequestError) as error:
                ends.add(type(error).__name__)
            await asyncio.sleep(0)
        return ends

    async def use(engine):
        over = asyncio.Event()
        tasks = [asyncio.create_task(opener(engine, over)) for _ in range(6)]
        for turn in range(10):
            await asyncio.sleep(0.002)
            await on_thread(lambda drain=bool(turn % 2): engine.stop(drain=drain))
            await on_thread(engine.start)
        over.set()
        return set().union(*await asyncio.gather(*tasks))

    for function in (plain_count, async_count):
        ends = _run(lambda function=function: _script(function), use, instances=2)
        assert ends - {"StoppedError"} == {3}


def test_a_caller_whose_loop_is_gone_keeps_nobody():
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


def test_a_stream_that_meets_a_stop_is_refused():
    """The stop came between its being asked for and its taking its place: nobody would wait for it."""

    async def use(engine):
        life, backend = engine._running_life("")
        engine._running_life = lambda _: (life, backend)
        state, life.state = life.state, State.STOPPING
        with pytest.raises(StoppedError):
            engine.stream(request())
        life.state = state

    _run(_script(plain_echo), use)


def test_a_task_that_never_had_its_first_step_ends_its_stream():
    """Its caller's loop took it along."""

    async def leave(engine):
        engine.stream(request())
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        await asyncio.wait([task])

    with serving(_script(async_hang), isolation="inline") as engine:
        asyncio.run(leave(engine))
        assert not engine._life.slots[0].backend._streams


def test_items_that_are_there_are_late_too():
    clock = ManualClock()
    call = StreamCall(clock, deadline=5.0, id="")
    call.answers.offer(InferResponse(()))
    clock.advance(5.0)
    closed = []
    with pytest.raises(DeadlineError):
        asyncio.run(AnswerStream(call, None, closed.append).some())
    assert closed == [call]
