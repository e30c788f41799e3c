"""Callers in event loops: everybody gets their own answer, or error, and nobody harms who shares their call."""

import asyncio
import gc
import random
import threading

import numpy as np
import pytest

from engine.support import WAIT_S, on_thread, request, rows, serving, until, values
from headrace.core import InferRequest, InferResponse, Model, RowError, Tensor, TensorSpec
from headrace.core.call import current_call
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
    OverloadedError,
    PredictError,
    RefusedRowsError,
    StoppedError,
)
from headrace.core.tensor import text_array
from headrace.engine import Engine
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, HeldModel, ManualClock, PickyModel

X_SPEC = (TensorSpec("x", "FP32", (-1, 1)),)


class Notes(Model):
    """Doubles, once released; notes the rows of each call, and does as told on some values."""

    max_batch_rows = 8

    def __init__(self, misdeed=None, *, held=False):
        self.calls = []
        self.misdeed = misdeed or (lambda x: None)
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        if not held:
            self.gate.set()

    def predict(self, x):
        self.calls.append(x[:, 0].tolist())
        self.entered.release()
        assert self.gate.wait(WAIT_S)
        done = self.misdeed(x)
        return x * 2 if done is None else done


async def _first_runs(engine, model, *more, **settings):
    """Tasks of which the first is in the model's call and the others wait behind it, so that they share the next."""
    first = asyncio.create_task(engine.ask(request(rows(0), **settings)))
    await on_thread(model.entered.acquire)
    others = [asyncio.create_task(engine.ask(asked)) for asked in more]
    await until(lambda: engine.model_statistics().waiting_requests == len(more))
    return [first, *others]


async def _ends(tasks):
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)


def _ended(engine) -> dict[str, int]:
    figures = engine.model_statistics()
    return {
        "success": figures.success.count,
        "fail": figures.fail.count,
        "cancelled": figures.cancelled,
        "expired": figures.expired,
        "refused": figures.refused,
    }


def _only(**counts: int) -> dict[str, int]:
    return {"success": 0, "fail": 0, "cancelled": 0, "expired": 0, "refused": 0, **counts}


# Everybody their own


@pytest.mark.parametrize("instances", [1, 3])
def test_many_coroutines_get_their_own_answers(instances):
    """Of several event loops at once, in batches; crossed answers would show."""

    class Slow(EchoModel):
        max_batch_rows = 16

    async def caller(engine, number):
        chance = random.Random(number)
        for step in range(30):
            own = [number * 1000.0 + step + n / 8 for n in range(chance.randrange(1, 5))]
            response = await engine.ask(request(rows(*own), id=f"{number}-{step}"))
            assert (response.id, values(response)) == (f"{number}-{step}", own)

    async def callers(engine, loop):
        await asyncio.gather(*(caller(engine, loop * 100 + n) for n in range(16)))

    with serving(Slow, instances=instances) as engine:
        raised = []

        def run(loop):
            try:
                asyncio.run(callers(engine, loop))
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=run, args=(loop,)) for loop in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert raised == []
        assert _ended(engine) == _only(success=3 * 16 * 30)
        figures = engine.model_statistics()
        assert figures.calls < figures.success.count
        assert sum(b.rows * b.compute.count for b in figures.batches) == figures.rows
        assert sum(figures.closed.values()) == figures.calls
        assert figures.last_inference_ms > 1_600_000_000_000


def test_answers_over_shared_calls_are_those_of_single_ones():
    """Also for requests of no rows, for some outputs only, and in another order of inputs."""

    class Sums(Model):
        def predict(self, *tensors):
            first, second = tensors
            return {"difference": first - second, "text": np.array([f"{v}" for v in first[:, 0]])}

    def asked(x, y, *names, **settings):
        tensors = {"x": x, "y": y}
        made = request(x)
        kind = type(made.inputs[0])
        return type(made)(tuple(kind(n, tensors[n]) for n in names), **settings)

    requests = [
        asked(rows(1, 2), rows(5, 6), "x", "y"),
        asked(rows(1, 2), rows(5, 6), "y", "x"),
        asked(rows(3), rows(4), "x", "y", outputs=("text",)),
        asked(rows(3), rows(4), "x", "y", outputs=("nothing",)),
        asked(rows()[:0], rows()[:0], "x", "y"),
        asked(rows(7).astype("f8"), rows(4), "x", "y"),
        asked(rows(8, 9, 10), rows(1, 1, 1), "x", "y", id="r"),
    ]

    def told(end):
        if isinstance(end, BaseException):
            return type(end).__name__, str(end)
        return end.id, [(t.name, t.data.dtype.name, t.data.tolist()) for t in end.outputs]

    async def together(engine):
        return await _ends([engine.ask(r) for r in requests])

    async def alone(engine):
        return [(await _ends([engine.ask(r)]))[0] for r in requests]

    with serving(Sums) as engine:
        singles = [told(e) for e in asyncio.run(alone(engine))]
        assert engine.model_statistics().calls == 6
        assert singles[0][1][0] == ("difference", "float32", [[-4.0], [-4.0]])
        assert singles[1][1][0] == ("difference", "float32", [[4.0], [4.0]])
        assert singles[3][0] == "ModelInputError"
        assert singles[4] == ("", [])
        for _ in range(10):
            assert [told(e) for e in asyncio.run(together(engine))] == singles
        assert engine.model_statistics().calls < 6 * 11


def test_what_does_not_fit_is_refused_without_a_call():
    async def ask(engine):
        await engine.ask(request(rows(1).astype("f8")))

    class Spec(EchoModel):
        inputs = X_SPEC

    with serving(Spec) as engine:
        with pytest.raises(ModelInputError, match="takes FP32"):
            asyncio.run(ask(engine))
        assert _ended(engine) == _only()


# A request that fails, fails alone


def _raise(error):
    raise error


def _misdeeds():
    def guilty(x):
        return x[:, 0] == 3

    def short(x):
        return x[:1] if len(x) > 1 else None

    return {
        "raises on a value": (
            lambda x: _raise(ValueError("three")) if guilty(x).any() else None,
            "ValueError: three",
        ),
        "names the row": (
            lambda x: (
                _raise(RowError({int(i): "is three" for i in guilty(x).nonzero()[0]}))
                if guilty(x).any()
                else None
            ),
            "row 0: is three",
        ),
        "exits": (lambda x: _raise(SystemExit(3)) if guilty(x).any() else None, "SystemExit: 3"),
        "cancels itself": (
            lambda x: _raise(asyncio.CancelledError()) if guilty(x).any() else None,
            "CancelledError",
        ),
        "too large for memory": (lambda x: _raise(MemoryError) if len(x) > 2 else None, None),
        "too few rows": (short, None),
        "breaks its contract": (lambda x: "no" if guilty(x).any() else None, "has one value for 1 rows"),
        "names no row of these": (lambda x: _raise(RowError(99, "?")) if guilty(x).any() else None, "row 99"),
    }


@pytest.mark.parametrize("misdeed", _misdeeds())
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failing_request_fails_alone(misdeed, asynchronous):
    """Its mates get their answers, whatever the model does."""
    done, why = _misdeeds()[misdeed]
    model = Notes(done, held=True)
    if asynchronous:
        plain = model.predict

        async def predict(x):
            return plain(x)

        model.predict = predict

    async def ask(engine):
        tasks = await _first_runs(engine, model, *(request(rows(float(v))) for v in range(1, 8)))
        model.gate.set()
        return await _ends(tasks)

    with serving(model) as engine:
        ends = asyncio.run(ask(engine))
        assert model.calls[1] == [1, 2, 3, 4, 5, 6, 7]
        bad = [n for n, end in enumerate(ends) if isinstance(end, BaseException)]
        assert bad == ([3] if why else [])
        assert [values(end) for n, end in enumerate(ends) if n not in bad] == [
            [2.0 * n] for n in range(8) if n not in bad
        ]
        if why:
            assert isinstance(ends[3], PredictError | RefusedRowsError | ModelContractError)
            assert why in str(ends[3])
        assert _ended(engine) == _only(success=8 - len(bad), fail=len(bad))
        assert engine.model_statistics().rows == 8 - len(bad)


def test_a_model_that_names_one_guilty_row_at_a_time_may_have_many():
    """Each costs calls, but no depth of Python's stack."""

    class First(Model):
        max_batch_rows = 1024

        def predict(self, x):
            if (x < 0).any():
                raise RowError(int((x[:, 0] < 0).argmax()), "negative")
            return x

    async def ask(engine):
        return await _ends([engine.ask(request(rows(-1.0 if n % 2 else 1.0))) for n in range(800)])

    with serving(First) as engine:
        ends = asyncio.run(ask(engine))
        assert [isinstance(end, RefusedRowsError) for end in ends] == [bool(n % 2) for n in range(800)]


def test_a_request_of_several_rows_fails_as_a_whole_and_names_its_row():
    """As whoever asked counts them, not as they stood in the batch."""
    model = Notes(
        lambda x: _raise(RowError({int(i): "bad" for i in (x < 0).nonzero()[0]})) if (x < 0).any() else None
    )

    async def ask(engine):
        return await _ends([engine.ask(request(rows(*v))) for v in ((1, 2), (3, -4), (5, 6))])

    with serving(model) as engine:
        good, bad, other = asyncio.run(ask(engine))
        assert (values(good), values(other)) == ([2, 4], [10, 12])
        assert str(bad) == "model m: row 1: bad"


# Leaving


def test_leaving_before_the_call_takes_the_request_out():
    model = Notes(held=True)

    async def ask(engine):
        tasks = await _first_runs(engine, model, request(rows(1)), request(rows(2)))
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert engine.model_statistics().waiting_requests == 1
        model.gate.set()
        return await _ends(tasks)

    with serving(model) as engine:
        first, left, other = asyncio.run(ask(engine))
        assert isinstance(left, asyncio.CancelledError)
        assert (values(first), values(other)) == ([0], [4])
        assert model.calls == [[0], [2]]
        assert _ended(engine) == _only(success=2, cancelled=1)


def test_leaving_a_shared_call_harms_nobody():
    """Nor does it cancel the call; whoever left counts as that."""
    model = Notes(held=True)

    async def ask(engine):
        tasks = await _first_runs(engine, model, *(request(rows(float(v))) for v in (1, 2, 3)))
        model.gate.set()
        await on_thread(model.entered.acquire)
        tasks[2].cancel()
        return await _ends(tasks)

    with serving(model) as engine:
        ends = asyncio.run(ask(engine))
        assert [values(ends[n]) for n in (0, 1, 3)] == [[0], [2], [6]]
        assert sum(_ended(engine).values()) == 4


def test_leaving_while_a_batch_is_parted_answers_nobody_twice():
    """One has gone, and the others' batch fails: it is not looked at again."""
    model = Notes(lambda x: _raise(ValueError) if len(x) > 1 else None, held=True)

    async def ask(engine):
        tasks = await _first_runs(engine, model, *(request(rows(float(v))) for v in (1, 2, 3, 4)))
        model.gate.clear()
        model.gate.set()
        return await _ends(tasks)

    with serving(model) as engine:
        go_on = engine._life.go_on

        def or_gone(ticket):
            if ticket.request.inputs[0].data[0, 0] == 1:
                raise CancelledRequestError("gone")
            go_on(ticket)

        engine._life.go_on = or_gone
        ends = asyncio.run(ask(engine))
        assert isinstance(ends[1], CancelledRequestError)
        assert _ended(engine) == _only(success=4, cancelled=1)


def test_a_late_answer_of_a_submit_is_not_given_twice():
    """The same for futures, of which a second answer would end the instance's thread."""
    clock, model = (
        ManualClock(),
        Notes(lambda x: _raise(ValueError("two")) if len(x) > 1 else None, held=True),
    )
    with serving(model, clock=clock) as engine:
        first = engine.submit(request(rows(0)))
        model.entered.acquire()
        late = engine.submit(request(rows(1), deadline=5.0))
        others = [engine.submit(request(rows(2)))]
        others += [] if engine.in_flight_max < 4 else [engine.submit(request(rows(3)))]
        clock.advance(5.0)
        model.gate.set()
        assert isinstance(late.exception(WAIT_S), DeadlineError)
        assert values(first.result(WAIT_S)) == [0]
        assert [values(o.result(WAIT_S)) for o in others] == [[4]] * len(others)


def test_nobody_waits_for_an_async_predict_any_more():
    """It is cancelled once the last of its callers has gone, and not before."""
    entered, ended = threading.Semaphore(0), []

    class Slow(Model):
        async def predict(self, x):
            if x[0, 0] >= 0:
                return x
            entered.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(current_call().cancelled)
                await asyncio.sleep(0)
                ended.append("cleaned up")
                raise
            return x

    async def ask(engine):
        tasks = [asyncio.create_task(engine.ask(request(rows(-1)))) for _ in range(2)]
        await on_thread(entered.acquire)
        if engine.model_statistics().waiting_requests:
            tasks[0].cancel()
            await on_thread(entered.acquire)
        else:
            tasks[0].cancel()
            await asyncio.wait([tasks[0]])
            assert ended == []
        tasks[1].cancel()
        await _ends(tasks)
        return values(await engine.ask(request(rows(5))))

    with serving(Slow) as engine:
        for _ in range(5):
            ended.clear()
            assert asyncio.run(ask(engine)) == [5]
            assert ended[-2:] == [True, "cleaned up"]
        assert _ended(engine) == _only(success=5, cancelled=10)


def test_whoever_left_when_the_answer_was_there_already_counts_once():
    """The answer is on its way to a loop that does not look: a success that nobody saw."""

    async def ask(engine):
        task = asyncio.create_task(engine.ask(request(rows(1))))
        await asyncio.sleep(0)
        while not engine.model_statistics().success.count:
            pass  # this loop gets no turn
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with serving(EchoModel) as engine:
        asyncio.run(ask(engine))
        assert _ended(engine) == _only(success=1)


def test_every_request_counts_once_whatever_its_end():
    """A stress: some leave, some are late, some fail, some are refused, at any moment."""

    class Odd(Model):
        max_batch_rows = 8

        def predict(self, x):
            if (x < 0).any():
                raise ValueError("negative")
            return x

    asked = [0]

    async def caller(engine, number):
        chance = random.Random(number)
        for _ in range(40):
            asked[0] += 1
            soon = engine._clock.now() + chance.choice((0.0003, 0.001, 9.0))
            deadline = soon if not chance.randrange(3) else None
            value = chance.choice((1.0, 2.0, 3.0, -1.0))
            task = asyncio.create_task(engine.ask(request(rows(value), deadline=deadline)))
            if not chance.randrange(4):
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                assert values(task.result()) == [value]

    async def callers(engine):
        await asyncio.gather(*(caller(engine, n) for n in range(20)))
        ran = asyncio.create_task(engine.ask(request(rows(1))))
        await ran
        asked[0] += 1

    with serving(Odd, queue_rows_max=12, instances=2) as engine:
        asyncio.run(callers(engine))
        engine.stop()
        ends = _ended(engine)
        never_begun = asked[0] - sum(ends.values())
        # A task that is cancelled before its first step has asked nothing.
        assert 0 <= never_begun <= asked[0] // 8
        assert all(ends.values()), ends


def test_a_loop_that_closed_without_a_word_harms_nobody():
    model = Notes(held=True)
    with serving(model) as engine:
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(engine.ask(request(rows(float(n))))) for n in range(3)]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        model.gate.set()
        assert values(asyncio.run(engine.ask(request(rows(9))))) == [18]
        for task in tasks:
            task._log_destroy_pending = False
        tasks.clear()
        del task
        gc.collect()


# Deadlines and bounds


def test_a_deadline_is_told_at_once():
    """Although the call that it waits for, or is in, goes on."""
    model = Notes(held=True)

    async def ask(engine):
        now = engine._clock.now()
        tasks = await _first_runs(engine, model, request(rows(1), deadline=now + 0.05), deadline=now + 0.02)
        ends = await _ends(tasks)
        assert not model.gate.is_set()
        model.gate.set()
        return [*ends, *await _ends([engine.ask(request(rows(2)))])]

    with serving(model) as engine:
        runs, waits, after = asyncio.run(ask(engine))
        assert isinstance(runs, DeadlineError)
        assert isinstance(waits, DeadlineError)
        assert values(after) == [4]
        assert [1.0] not in model.calls
        assert _ended(engine) == _only(success=1, expired=2)


def test_a_deadline_that_has_passed_is_not_asked():
    async def ask(engine):
        await engine.ask(request(deadline=5.0, id="r"))

    with serving(EchoModel, clock=ManualClock(5.0)) as engine:
        with pytest.raises(DeadlineError, match="request r before its deadline"):
            asyncio.run(ask(engine))
        assert _ended(engine) == _only(expired=1)
        figures = engine.model_statistics()
        assert (figures.calls, figures.queue.count) == (0, 0)


def test_an_instance_that_sees_a_deadline_first_counts_it_once():
    """By the engine's clock; the caller's loop hears of it from there."""
    clock, model = ManualClock(), Notes(held=True)

    async def ask(engine):
        tasks = await _first_runs(engine, model, request(rows(1), deadline=600.0), request(rows(2)))
        clock.advance(600.0)
        model.gate.set()
        return await _ends(tasks)

    with serving(model, clock=clock) as engine:
        first, late, other = asyncio.run(ask(engine))
        assert isinstance(late, DeadlineError)
        assert (values(first), values(other)) == ([0], [4])
        assert _ended(engine) == _only(success=2, expired=1)


@pytest.mark.parametrize("raised", [TimeoutError("nobody waits"), CancelledRequestError("nobody waits")])
@pytest.mark.parametrize("others", [0, 1])
def test_whatever_a_model_raises_once_nobody_waits_is_a_deadline_s_end(raised, others):
    """It may have learned of the deadline before the caller's loop did."""
    clock = ManualClock()

    def learn(x):
        if x[0, 0]:
            clock.advance(600.0)
            raise raised

    model = Notes(learn, held=True)

    async def ask(engine):
        late = [request(rows(1), deadline=600.0) for _ in range(1 + others)]
        tasks = await _first_runs(engine, model, *late)
        model.gate.set()
        return (await _ends(tasks))[1:]

    with serving(model, clock=clock) as engine:
        ended = asyncio.run(ask(engine))
        assert [type(end) for end in ended] == [DeadlineError] * (1 + others)
        assert _ended(engine) == _only(success=1, expired=1 + others)


def test_a_full_queue_says_when_to_ask_again():
    """By how long rows took so far, whatever that was within sane bounds."""
    clock, model = ManualClock(), Notes(held=True)

    async def ask(engine):
        tasks = await _first_runs(engine, model, request(rows(1, 2, 3)))
        with pytest.raises(OverloadedError, match="3 rows wait already, and at most 4 may") as first:
            await engine.ask(request(rows(1, 2)))
        with pytest.raises(OverloadedError):
            await engine.ask(request(rows(*range(5))))
        clock.advance(8.0)
        model.gate.set()
        await _ends(tasks)
        # Those that waited had a call, too: the next to enter is the one that is waited for.
        await on_thread(model.entered.acquire)
        model.gate.clear()
        tasks = await _first_runs(engine, model, request(rows(1, 2, 3, 4)))
        with pytest.raises(OverloadedError) as second:
            await engine.ask(request())
        model.gate.set()
        await _ends(tasks)
        return first.value.retry_after_s, second.value.retry_after_s

    with serving(model, clock=clock, queue_rows_max=4) as engine:
        first, second = asyncio.run(ask(engine))
        assert first == pytest.approx(0.1)
        assert second == pytest.approx(8.0)
        assert _ended(engine) == _only(success=4, refused=3)


def test_the_most_urgent_go_first():
    model = Notes(held=True)
    model.max_batch_rows = 2

    async def ask(engine):
        priorities = (10, 30, 1, 10, 20, 1)
        tasks = await _first_runs(
            engine, model, *(request(rows(float(n)), priority=p) for n, p in enumerate(priorities, 1))
        )
        model.gate.set()
        await _ends(tasks)

    with serving(model) as engine:
        asyncio.run(ask(engine))
        assert model.calls == [[0], [3, 6], [1, 4], [5, 2]]


# What a model can ask about its call


class Asking(Model):
    """Returns what it is told of its call."""

    inputs = X_SPEC

    def predict(self, x):
        call = current_call()
        left = -1.0 if call.deadline_s is None else call.deadline_s
        return np.full((len(x), 2), (left, call.cancelled), np.float32)


class AskingAsync(Asking):
    async def load(self):
        """Makes the event loop, outside of any call."""

    async def predict(self, x):
        await asyncio.sleep(0)
        return super().predict(x)


class AskingBeside(AskingAsync):
    """In an event loop of its own."""

    async def predict_stream(self, requests):
        yield 1


@pytest.mark.parametrize(
    ("make", "isolation"),
    [(Asking, "thread"), (Asking, "inline"), (AskingAsync, "thread"), (AskingBeside, "thread")],
)
def test_a_model_can_ask_how_long_there_is(make, isolation):
    """Wherever it runs; and outside of a call nothing is left of it."""

    async def ask(engine):
        told = [values(await engine.ask(request(rows(1), deadline=d))) for d in (None, 60.0, 90.0)]
        assert current_call().deadline_s is None
        return told

    with serving(make, clock=ManualClock(10.0), isolation=isolation) as engine:
        assert asyncio.run(ask(engine)) == [[-1, 0], [50, 0], [80, 0]]


def test_a_call_within_a_call_is_forgotten_when_it_is_over():
    """A model that asks another one, inline: afterwards it is in its own call again."""
    seen = []

    async def ask(inner):
        class Both(Model):
            async def predict(self, x):
                await inner.ask(request(rows(1), deadline=20.0))
                seen.append(current_call().deadline_s)
                return x

        with serving(Both, clock=clock) as outer:
            await outer.ask(request(rows(1), deadline=60.0))

    clock = ManualClock(10.0)
    with serving(Asking, clock=clock, isolation="inline") as inner:
        asyncio.run(ask(inner))
    assert seen == [50.0]


def test_a_plain_model_can_ask_whether_anybody_still_waits():
    seen, entered, go_on = [], threading.Event(), threading.Event()

    class Looking(Model):
        def predict(self, x):
            entered.set()
            assert go_on.wait(WAIT_S)
            seen.append(current_call().cancelled)
            return x

    async def ask(engine):
        task = asyncio.create_task(engine.ask(request()))
        await on_thread(entered.wait)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()

    with serving(Looking) as engine:
        asyncio.run(ask(engine))
        engine.stop()
    assert seen == [True]


# Inline


def test_an_inline_model_is_called_in_its_callers_thread():
    seen = []

    class Here(EchoModel):
        def predict(self, x):
            seen.append(threading.get_ident())
            return x

    async def ask(engine):
        return await engine.ask(request(rows(1)))

    with serving(Here, isolation="inline") as engine:
        assert values(asyncio.run(ask(engine))) == [1]
        assert values(engine.submit(request(rows(2))).result(0)) == [2]
        assert set(seen) == {threading.get_ident()}
        assert _ended(engine) == _only(success=2)
        assert engine.model_statistics().last_inference_ms > 0
    with pytest.raises(StoppedError):
        asyncio.run(ask(engine))


def test_an_inline_model_fails_requests_as_others_do():
    async def ask(engine):
        return await _ends([engine.ask(request(rows(v))) for v in (1, 3, 2)])

    with serving(PickyModel({3.0}), isolation="inline") as engine:
        one, bad, two = asyncio.run(ask(engine))
        assert (values(one), values(two)) == ([1], [2])
        assert "ValueError: value 3.0" in str(bad)
        assert _ended(engine) == _only(success=2, fail=1)


def test_an_inline_model_is_not_closed_under_a_call():
    """Stopping waits for callers in other threads, and who comes later is told."""
    entered, go_on, order = threading.Event(), threading.Event(), []

    class Slow(EchoModel):
        def predict(self, x):
            entered.set()
            assert go_on.wait(WAIT_S)
            order.append("answered")
            return x

        def close(self):
            order.append("closed")

    with serving(Slow, isolation="inline", warm_up=False) as engine:
        caller = threading.Thread(target=lambda: asyncio.run(engine.ask(request())))
        caller.start()
        assert entered.wait(WAIT_S)
        stopper = threading.Thread(target=engine.stop)
        stopper.start()
        while engine._life.state.name != "STOPPING":
            threading.Event().wait(0.001)
        instance_thread = engine._life.threads[0]
        instance_thread.join(0.05)
        go_on.set()
        caller.join(WAIT_S)
        stopper.join(WAIT_S)
    assert order == ["answered", "closed"]


# Life


@pytest.mark.parametrize("drain", [True, False])
def test_stopping_with_asks_under_way(drain):
    """From another thread: what was taken is finished, or fails; counted once either way."""
    model = Notes(held=True)

    async def ask(engine):
        tasks = await _first_runs(engine, model, request(rows(1)), request(rows(2)))
        stopping = asyncio.create_task(on_thread(lambda: engine.stop(drain=drain)))
        await until(lambda: engine._life.channel._closed)
        with pytest.raises(StoppedError, match="model m is not running"):
            await engine.ask(request())
        if not drain:
            assert all(isinstance(e, StoppedError) for e in await _ends(tasks[1:]))
        model.gate.set()
        ends = await _ends(tasks)
        await stopping
        return ends

    with serving(model) as engine:
        ends = asyncio.run(ask(engine))
        if drain:
            assert [values(e) for e in ends] == [[0], [2], [4]]
            assert _ended(engine) == _only(success=3)
        else:
            assert all(isinstance(e, StoppedError) for e in ends)
            assert _ended(engine) == _only(fail=3)
        engine.start()
        assert values(asyncio.run(engine.ask(request(rows(7))))) == [14]
        assert _ended(engine) == _only(success=1)


def test_stopping_at_any_moment_leaves_nobody_without_an_end():
    """A stress of stops and starts against callers that go on asking."""

    async def caller(engine, over):
        ends = {"answered": 0, "stopped": 0}
        while not over.is_set():
            try:
                await asyncio.wait_for(engine.ask(request()), WAIT_S)
                ends["answered"] += 1
            except StoppedError:
                ends["stopped"] += 1
            await asyncio.sleep(0)
        return ends

    async def callers(engine):
        over = asyncio.Event()
        tasks = [asyncio.create_task(caller(engine, over)) for _ in range(8)]
        for turn in range(12):
            await asyncio.sleep(0.002)
            await on_thread(lambda drain=bool(turn % 2): engine.stop(drain=drain))
            await on_thread(engine.start)
        over.set()
        return await asyncio.gather(*tasks)

    with serving(EchoModel, instances=2) as engine:
        ends = asyncio.run(callers(engine))
        assert sum(e["answered"] for e in ends)
        assert sum(e["stopped"] for e in ends)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (type("Late", (EchoModel,), {"max_batch_delay_ms": -1.0}), "max_batch_delay_ms must be 0 or more"),
        (
            type("Unmade", (EchoModel,), {"__init__": lambda _: _raise(OSError("no file"))}),
            "OSError: no file",
        ),
    ],
)
@pytest.mark.parametrize("isolation", [None, "thread"])
def test_a_model_that_cannot_be_placed_is_told(model, why, isolation):
    """Whoever waits in `start` must hear of it."""
    engine = Engine(model, name="m", serving=ServeSettings(isolation=isolation))
    with pytest.raises(ModelLoadError, match=why):
        engine.start()


def test_several_inline_instances_are_refused():
    engine = Engine(EchoModel, name="m", serving=ServeSettings(instances=2, isolation="inline"))
    with pytest.raises(ConfigError, match="only one inline instance"):
        engine.start()


# Instances that die


class Mortal:
    """Around a backend of this process: dies, and is started again, as its test says."""

    def __init__(self, backend, script):
        self._backend, self.script = backend, script
        self.lost = False

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def call(self, parts, count, asked, call, *, fresh):
        if self.script["dies"](parts):
            self.lost = True
            raise InstanceLostError("m", "it died")
        return self._backend.call(parts, count, asked, call, fresh=fresh)

    def restart(self):
        self.script["restarts"](self)
        self.lost = False


def _mortal(engine, **script):
    load = engine._placement.load
    engine._placement.load = lambda: Mortal(load(), script)
    engine.stop()
    engine.start()


def test_what_a_dead_instance_had_is_asked_once_more_each_by_itself():
    """Only what kills it twice hears of it."""
    model = Notes(held=True)
    calls = []

    def dies(parts):
        calls.append([float(p["x"][0, 0]) for p in parts])
        return any(p["x"][0, 0] == 3 for p in parts)

    async def ask(engine):
        tasks = await _first_runs(engine, model, *(request(rows(float(v))) for v in range(1, 5)))
        model.gate.set()
        return await _ends(tasks)

    with serving(model) as engine:
        _mortal(engine, dies=dies, restarts=lambda _: None)
        ends = asyncio.run(ask(engine))
        assert isinstance(ends[3], InstanceLostError)
        assert [values(ends[n]) for n in (0, 1, 2, 4)] == [[0], [2], [4], [8]]
        assert calls == [[0], [1, 2, 3, 4], [1], [2], [3], [4]]
        assert _ended(engine) == _only(success=4, fail=1)
        assert engine.model_statistics().restarts == 2
        assert engine.alive


def test_futures_survive_the_death_of_an_instance():
    """They are begun once more."""
    deaths = iter([True, False])
    with serving(EchoModel) as engine:
        _mortal(engine, dies=lambda _: next(deaths), restarts=lambda _: None)
        assert values(engine.submit(request(rows(4))).result(WAIT_S)) == [4]


def test_an_instance_that_cannot_be_started_again_takes_nothing_more():
    """The other one answers everything; the engine says that it is not whole."""
    first = []

    def dies(_):
        me = threading.get_ident()
        first[:] = first or [me]
        return me == first[0]

    async def ask(engine):
        return [values(await engine.ask(request(rows(float(n))))) for n in range(10)]

    with serving(EchoModel, instances=2) as engine:
        _mortal(engine, dies=dies, restarts=lambda _: _raise(OSError("no memory")))
        assert asyncio.run(ask(engine)) == [[float(n)] for n in range(10)]
        assert not engine.alive
        assert engine.running
        assert _ended(engine) == _only(success=10)


def test_without_a_last_instance_everybody_hears_of_it():
    """Who waits, and who comes later."""
    gate = threading.Event()

    def dies(_):
        assert gate.wait(WAIT_S)
        return True

    async def ask(engine):
        tasks = [asyncio.create_task(engine.ask(request(rows(float(n))))) for n in range(4)]
        await until(lambda: engine.model_statistics().in_flight == 4)
        gate.set()
        ends = await _ends(tasks)
        await until(lambda: not engine._life.threads[0].is_alive())
        return ends, await _ends([engine.ask(request())])

    with serving(EchoModel) as engine:
        _mortal(engine, dies=dies, restarts=lambda _: _raise(OSError("no memory")))
        ends, (after,) = asyncio.run(ask(engine))
        assert all(isinstance(e, InstanceLostError) for e in ends)
        assert "no memory" in str(ends[-1])
        assert isinstance(after, InstanceLostError)
        assert "no memory" in str(after)
        assert _ended(engine) == _only(fail=4)


def test_an_instance_that_dies_while_it_drains_leaves_nobody_waiting():
    """The other one has ended; what comes back is told that it is over."""
    gate, entered = threading.Event(), threading.Event()

    def dies(_):
        entered.set()
        assert gate.wait(WAIT_S)
        return True

    async def ask(engine):
        task = asyncio.create_task(engine.ask(request()))
        await on_thread(entered.wait)
        stopping = asyncio.create_task(on_thread(engine.stop))
        await until(lambda: sum(t.is_alive() for t in engine._life.threads) == 1)
        gate.set()
        (end,) = await _ends([task])
        await stopping
        return end

    with serving(EchoModel, instances=2) as engine:
        _mortal(engine, dies=dies, restarts=lambda _: _raise(OSError("no memory")))
        assert isinstance(asyncio.run(ask(engine)), StoppedError)
        assert _ended(engine) == _only(fail=1)


def test_held_models_can_be_left_to_the_queue():
    """`HeldModel` beside asks: a request that waits is answered when its turn comes."""
    model = HeldModel()

    async def ask(engine):
        tasks = [asyncio.create_task(engine.ask(request(rows(float(n))))) for n in range(2)]
        await on_thread(model.wait_for_calls, 1)
        model.release(2)
        return [values(e) for e in await _ends(tasks)]

    with serving(model) as engine:
        assert asyncio.run(ask(engine)) == [[0], [1]]


# Whole requests


class Whole(Model):
    """An adapter of another server's model: it sees the request, and answers with as many rows as it likes."""

    def __init__(self):
        self.seen = []

    def predict(self, x):
        raise AssertionError("requests are served whole")

    async def predict_request(self, request):
        self.seen.append(len(request["x"]))
        if request.parameters.get("refuse"):
            raise RowError(0, "not this one")
        word = request.inputs[0].parameters.get("content_type", "none")
        tensors = (Tensor("word", text_array([word]), {"content_type": "str"}), Tensor("n", np.arange(3)))
        return InferResponse(tensors, parameters={"kind": "whole"})


def test_a_model_of_whole_requests_is_called_with_one_at_a_time():
    model = Whole()

    def asked(**settings):
        x = Tensor("x", rows(1, 2), {"content_type": "np"})
        return InferRequest((x,), **settings)

    async def ask(engine):
        requests = [asked(id="a"), asked(id="b", outputs=("n",)), asked(parameters={"refuse": True})]
        return await asyncio.gather(*(engine.ask(r) for r in requests), return_exceptions=True)

    with serving(model) as engine:
        assert engine.metadata.whole_requests
        whole, chosen, refused = asyncio.run(ask(engine))
    assert model.seen == [2, 2, 2]
    assert (whole.id, whole.model_name, whole.parameters) == ("a", "m", {"kind": "whole"})
    assert (whole["word"].tolist(), whole.outputs[0].parameters) == (["np"], {"content_type": "str"})
    assert [t.name for t in chosen.outputs] == ["n"]
    assert isinstance(refused, RefusedRowsError)
    assert "row 0: not this one" in str(refused)
