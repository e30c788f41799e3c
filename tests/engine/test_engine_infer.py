"""Clients in event loops: each gets its own response or error, and harms no other of its call."""

import asyncio
import gc
import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from cases import for_each
from engine.support import WAIT_S, InstantClock, in_thread, request, rows, serving, values, wait_until
from headrace.core import InferRequest, InferResponse, Model, RowError, Tensor, TensorSpec
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
from headrace.core.model import current_call
from headrace.core.tensor import text_array
from headrace.engine import Engine
from headrace.engine.request_queue import RequestQueue
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, HeldModel, ManualClock, PickyModel
from servers import polling

X_SPEC = (TensorSpec("x", "FP32", (-1, 1)),)


class Notes(Model):
    """Doubles its input once released. Records the rows of each call, and misbehaves on some
    values.
    """

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


async def _start_while_first_runs(engine, model, *more, **settings):
    """Return tasks of which the first is in the model and the others wait, so that they share a
    call.
    """
    first = asyncio.create_task(engine.infer(request(rows(0), **settings)))
    await in_thread(model.entered.acquire)
    others = [asyncio.create_task(engine.infer(queued)) for queued in more]
    await wait_until(lambda: engine.model_statistics().waiting_requests == len(more))
    return [first, *others]


async def _results_of(tasks):
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)


def _end_counts(engine) -> dict[str, int]:
    figures = engine.model_statistics()
    return {
        "success": figures.success.count,
        "fail": figures.fail.count,
        "cancelled": figures.cancelled,
        "expired": figures.expired,
        "refused": figures.refused,
    }


def _expected_counts(**counts: int) -> dict[str, int]:
    return {"success": 0, "fail": 0, "cancelled": 0, "expired": 0, "refused": 0, **counts}


# Own responses


@pytest.mark.parametrize("instances", [1, 3])
def test_many_coroutines_get_their_own_responses(instances):
    """Of several event loops at once, in batches; crossed responses would show."""

    class Slow(EchoModel):
        max_batch_rows = 16

    async def caller(engine, number):
        chance = random.Random(number)
        for step in range(30):
            own = [number * 1000.0 + step + n / 8 for n in range(chance.randrange(1, 5))]
            response = await engine.infer(request(rows(*own), id=f"{number}-{step}"))
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
        assert _end_counts(engine) == _expected_counts(success=3 * 16 * 30)
        figures = engine.model_statistics()
        assert figures.calls < figures.success.count
        assert sum(b.rows * b.compute.count for b in figures.batches) == figures.rows
        assert sum(figures.close_reasons.values()) == figures.calls
        assert figures.last_inference_ms > 1_600_000_000_000


@pytest.mark.parametrize(("merge", "calls"), [(True, [[0.0], [1.0, 2.0]]), (False, [[0.0], [1.0], [2.0]])])
def test_without_merge_each_request_has_a_call_of_its_own(merge, calls):
    """The calls of a run depend on its source alone, also with the settings of a server."""
    model = Notes(held=True)
    settings = ServeSettings(isolation="thread", max_batch_rows=8, warm_up=False)
    engine = Engine(lambda: model, name="notes", serving=settings, merge=merge)
    engine.start()
    try:
        futures = [engine.submit(request(rows(0)))]
        assert model.entered.acquire(timeout=WAIT_S)
        futures += [engine.submit(request(rows(number))) for number in (1, 2)]
        model.gate.set()
        assert [values(future.result(WAIT_S)) for future in futures] == [[0], [2], [4]]
    finally:
        engine.stop()
    assert model.calls == calls


def test_shared_calls_give_responses_of_single_calls():
    """Also for requests without rows, for named outputs, and in another order of inputs."""

    class Sums(Model):
        def predict(self, *tensors):
            first, second = tensors
            return {"difference": first - second, "text": np.array([f"{v}" for v in first[:, 0]])}

    def sums_request(x, y, *names, **settings):
        tensors = {"x": x, "y": y}
        made = request(x)
        kind = type(made.inputs[0])
        return type(made)(tuple(kind(n, tensors[n]) for n in names), **settings)

    requests = [
        sums_request(rows(1, 2), rows(5, 6), "x", "y"),
        sums_request(rows(1, 2), rows(5, 6), "y", "x"),
        sums_request(rows(3), rows(4), "x", "y", outputs=("text",)),
        sums_request(rows(3), rows(4), "x", "y", outputs=("nothing",)),
        sums_request(rows()[:0], rows()[:0], "x", "y"),
        sums_request(rows(7).astype("f8"), rows(4), "x", "y"),
        sums_request(rows(8, 9, 10), rows(1, 1, 1), "x", "y", id="r"),
    ]

    def outcome(end):
        if isinstance(end, BaseException):
            return type(end).__name__, str(end)
        return end.id, [(t.name, t.data.dtype.name, t.data.tolist()) for t in end.outputs]

    async def together(engine):
        return await _results_of([engine.infer(r) for r in requests])

    async def alone(engine):
        return [(await _results_of([engine.infer(r)]))[0] for r in requests]

    with serving(Sums) as engine:
        singles = [outcome(e) for e in asyncio.run(alone(engine))]
        assert engine.model_statistics().calls == 6
        assert singles[0][1][0] == ("difference", "float32", [[-4.0], [-4.0]])
        assert singles[1][1][0] == ("difference", "float32", [[4.0], [4.0]])
        assert singles[3][0] == "ModelInputError"
        assert singles[4] == ("", [("difference", "float32", []), ("text", "object", [])])
        for _ in range(10):
            assert [outcome(e) for e in asyncio.run(together(engine))] == singles
        assert engine.model_statistics().calls < 6 * 11


def test_invalid_request_is_refused_without_call():
    async def ask(engine):
        await engine.infer(request(rows(1).astype("f8")))

    class Spec(EchoModel):
        inputs = X_SPEC

    with serving(Spec) as engine:
        with pytest.raises(ModelInputError, match="takes FP32"):
            asyncio.run(ask(engine))
        assert _end_counts(engine) == _expected_counts()


# A failing request fails alone


def _raise(error):
    raise error


def _faulty_models():
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


@for_each("misdeed", _faulty_models())
@for_each("asynchronous", [False, True])
def test_failing_request_fails_alone(misdeed, asynchronous):
    done, why = _faulty_models()[misdeed]
    model = Notes(done, held=True)
    if asynchronous:
        plain = model.predict

        async def predict(x):
            return plain(x)

        model.predict = predict

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, *(request(rows(float(v))) for v in range(1, 8)))
        model.gate.set()
        return await _results_of(tasks)

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
        assert _end_counts(engine) == _expected_counts(success=8 - len(bad), fail=len(bad))
        assert engine.model_statistics().rows == 8 - len(bad)


def test_row_errors_one_at_a_time_are_all_found():
    """Each costs calls, but no recursion."""

    class First(Model):
        max_batch_rows = 1024

        def predict(self, x):
            if (x < 0).any():
                raise RowError(int((x[:, 0] < 0).argmax()), "negative")
            return x

    async def ask(engine):
        return await _results_of([engine.infer(request(rows(-1.0 if n % 2 else 1.0))) for n in range(800)])

    with serving(First) as engine:
        ends = asyncio.run(ask(engine))
        assert [isinstance(end, RefusedRowsError) for end in ends] == [bool(n % 2) for n in range(800)]


def test_request_fails_as_whole_and_names_row():
    """By its index in the request, not in the batch."""
    model = Notes(
        lambda x: _raise(RowError({int(i): "bad" for i in (x < 0).nonzero()[0]})) if (x < 0).any() else None
    )

    async def ask(engine):
        return await _results_of([engine.infer(request(rows(*v))) for v in ((1, 2), (3, -4), (5, 6))])

    with serving(model) as engine:
        good, bad, other = asyncio.run(ask(engine))
        assert (values(good), values(other)) == ([2, 4], [10, 12])
        assert str(bad) == "model m: row 1: bad"


# Cancellation


def test_cancel_before_call_removes_request():
    model = Notes(held=True)

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, request(rows(1)), request(rows(2)))
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert engine.model_statistics().waiting_requests == 1
        model.gate.set()
        return await _results_of(tasks)

    with serving(model) as engine:
        first, left, other = asyncio.run(ask(engine))
        assert isinstance(left, asyncio.CancelledError)
        assert (values(first), values(other)) == ([0], [4])
        assert model.calls == [[0], [2]]
        assert _end_counts(engine) == _expected_counts(success=2, cancelled=1)


def test_cancel_in_shared_call_harms_no_other():
    """The call is not cancelled; the departed client is counted."""
    model = Notes(held=True)

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, *(request(rows(float(v))) for v in (1, 2, 3)))
        model.gate.set()
        await in_thread(model.entered.acquire)
        tasks[2].cancel()
        return await _results_of(tasks)

    with serving(model) as engine:
        ends = asyncio.run(ask(engine))
        assert [values(ends[n]) for n in (0, 1, 3)] == [[0], [2], [6]]
        assert sum(_end_counts(engine).values()) == 4


def test_cancel_during_bisection_completes_each_once(monkeypatch):
    """The cancelled request is not tried again."""
    end_error = RequestQueue.end_error

    def or_gone(queue, entry):
        if entry.request.inputs[0].data[0, 0] == 1:
            return CancelledRequestError("gone")
        return end_error(queue, entry)

    monkeypatch.setattr(RequestQueue, "end_error", or_gone)
    model = Notes(lambda x: _raise(ValueError) if len(x) > 1 else None, held=True)

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, *(request(rows(float(v))) for v in (1, 2, 3, 4)))
        model.gate.clear()
        model.gate.set()
        return await _results_of(tasks)

    with serving(model) as engine:
        ends = asyncio.run(ask(engine))
        assert isinstance(ends[1], CancelledRequestError)
        assert _end_counts(engine) == _expected_counts(success=4, cancelled=1)


def test_late_submit_result_is_delivered_once():
    """A second result of a future would end the thread of the instance."""
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


def test_async_predict_is_cancelled_without_clients():
    """Once the last client has left, and not before."""
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
        tasks = [asyncio.create_task(engine.infer(request(rows(-1)))) for _ in range(2)]
        await in_thread(entered.acquire)
        if engine.model_statistics().waiting_requests:
            tasks[0].cancel()
            await in_thread(entered.acquire)
        else:
            tasks[0].cancel()
            await asyncio.wait([tasks[0]])
            assert ended == []
        tasks[1].cancel()
        await _results_of(tasks)
        return values(await engine.infer(request(rows(5))))

    with serving(Slow) as engine:
        for _ in range(5):
            ended.clear()
            assert asyncio.run(ask(engine)) == [5]
            assert ended[-2:] == [True, "cleaned up"]
        assert _end_counts(engine) == _expected_counts(success=5, cancelled=10)


def test_cancel_after_result_counts_once():
    """The result is on its way to an event loop that does not run: a success without a reader."""

    async def ask(engine):
        task = asyncio.create_task(engine.infer(request(rows(1))))
        await asyncio.sleep(0)
        while not engine.model_statistics().success.count:
            pass  # this event loop does not run
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with serving(EchoModel) as engine:
        asyncio.run(ask(engine))
        assert _end_counts(engine) == _expected_counts(success=1)


def test_every_request_counts_once():
    """A stress: cancelled, expired, failed and refused requests at any moment."""

    class Odd(Model):
        max_batch_rows = 8

        def predict(self, x):
            if (x < 0).any():
                raise ValueError("negative")
            return x

    sent = [0]

    async def caller(engine, number):
        chance = random.Random(number)
        for _ in range(40):
            sent[0] += 1
            soon = engine._clock.now() + chance.choice((0.0003, 0.001, 9.0))
            deadline = soon if not chance.randrange(3) else None
            value = chance.choice((1.0, 2.0, 3.0, -1.0))
            task = asyncio.create_task(engine.infer(request(rows(value), deadline=deadline)))
            if not chance.randrange(4):
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                assert values(task.result()) == [value]

    async def callers(engine):
        await asyncio.gather(*(caller(engine, n) for n in range(20)))
        ran = asyncio.create_task(engine.infer(request(rows(1))))
        await ran
        sent[0] += 1

    with serving(Odd, queue_rows_max=12, instances=2) as engine:
        asyncio.run(callers(engine))
        engine.stop()
        ends = _end_counts(engine)
        never_begun = sent[0] - sum(ends.values())
        # A task that is cancelled before its first step has sent nothing.
        assert 0 <= never_begun <= sent[0] // 8
        assert all(ends.values()), ends


def test_closed_event_loop_harms_no_other():
    model = Notes(held=True)
    with serving(model) as engine:
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(engine.infer(request(rows(float(n))))) for n in range(3)]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        model.gate.set()
        assert values(asyncio.run(engine.infer(request(rows(9))))) == [18]
        for task in tasks:
            task._log_destroy_pending = False
        tasks.clear()
        del task
        gc.collect()


# Deadlines and limits


def test_deadline_is_raised_at_once():
    """Although the call in progress goes on."""
    model = Notes(held=True)

    async def ask(engine):
        now = engine._clock.now()
        tasks = await _start_while_first_runs(
            engine, model, request(rows(1), deadline=now + 0.05), deadline=now + 0.02
        )
        ends = await _results_of(tasks)
        assert not model.gate.is_set()
        model.gate.set()
        return [*ends, *await _results_of([engine.infer(request(rows(2)))])]

    with serving(model) as engine:
        runs, waits, after = asyncio.run(ask(engine))
        assert isinstance(runs, DeadlineError)
        assert isinstance(waits, DeadlineError)
        assert values(after) == [4]
        assert [1.0] not in model.calls
        assert _end_counts(engine) == _expected_counts(success=1, expired=2)


def test_expired_request_is_not_queued():
    async def ask(engine):
        await engine.infer(request(deadline=5.0, id="r"))

    with serving(EchoModel, clock=ManualClock(5.0)) as engine:
        with pytest.raises(DeadlineError, match="request r before its deadline"):
            asyncio.run(ask(engine))
        assert _end_counts(engine) == _expected_counts(expired=1)
        figures = engine.model_statistics()
        assert (figures.calls, figures.queue.count) == (0, 0)


def test_deadline_seen_by_instance_counts_once():
    """By the engine's clock; the client's event loop gets the error from there."""
    clock, model = ManualClock(), Notes(held=True)

    async def ask(engine):
        tasks = await _start_while_first_runs(
            engine, model, request(rows(1), deadline=600.0), request(rows(2))
        )
        clock.advance(600.0)
        model.gate.set()
        return await _results_of(tasks)

    with serving(model, clock=clock) as engine:
        first, late, other = asyncio.run(ask(engine))
        assert isinstance(late, DeadlineError)
        assert (values(first), values(other)) == ([0], [4])
        assert _end_counts(engine) == _expected_counts(success=2, expired=1)


@for_each("raised", [TimeoutError("nobody waits"), CancelledRequestError("nobody waits")])
@for_each("others", [0, 1])
def test_error_after_deadline_is_deadline_error(raised, others):
    """The model may see the deadline before the client's event loop does."""
    clock = ManualClock()

    def learn(x):
        if x[0, 0]:
            clock.advance(600.0)
            raise raised

    model = Notes(learn, held=True)

    async def ask(engine):
        late = [request(rows(1), deadline=600.0) for _ in range(1 + others)]
        tasks = await _start_while_first_runs(engine, model, *late)
        model.gate.set()
        return (await _results_of(tasks))[1:]

    with serving(model, clock=clock) as engine:
        ended = asyncio.run(ask(engine))
        assert [type(end) for end in ended] == [DeadlineError] * (1 + others)
        assert _end_counts(engine) == _expected_counts(success=1, expired=1 + others)


def test_full_queue_says_when_to_retry():
    """By the time per row so far, within bounds."""
    clock, model = ManualClock(), Notes(held=True)

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, request(rows(1, 2, 3)))
        with pytest.raises(OverloadedError, match="3 rows are waiting, the limit is 4") as first:
            await engine.infer(request(rows(1, 2)))
        with pytest.raises(OverloadedError):
            await engine.infer(request(rows(*range(5))))
        clock.advance(8.0)
        model.gate.set()
        await _results_of(tasks)
        # The waiting requests had a call too: wait for the next one.
        await in_thread(model.entered.acquire)
        model.gate.clear()
        tasks = await _start_while_first_runs(engine, model, request(rows(1, 2, 3, 4)))
        with pytest.raises(OverloadedError) as second:
            await engine.infer(request())
        model.gate.set()
        await _results_of(tasks)
        return first.value.retry_after_s, second.value.retry_after_s

    with serving(model, clock=clock, queue_rows_max=4) as engine:
        first, second = asyncio.run(ask(engine))
        assert first == pytest.approx(0.1)
        assert second == pytest.approx(8.0)
        assert _end_counts(engine) == _expected_counts(success=4, refused=3)


def test_urgent_requests_go_first():
    model = Notes(held=True)
    model.max_batch_rows = 2

    async def ask(engine):
        priorities = (10, 30, 1, 10, 20, 1)
        tasks = await _start_while_first_runs(
            engine, model, *(request(rows(float(n)), priority=p) for n, p in enumerate(priorities, 1))
        )
        model.gate.set()
        await _results_of(tasks)

    with serving(model) as engine:
        asyncio.run(ask(engine))
        assert model.calls == [[0], [3, 6], [1, 4], [5, 2]]


# The current call


class CallReading(Model):
    """Returns the properties of its current call."""

    inputs = X_SPEC

    def predict(self, x):
        call = current_call()
        left = -1.0 if call.deadline_s is None else call.deadline_s
        return np.full((len(x), 2), (left, call.cancelled), np.float32)


class CallReadingAsync(CallReading):
    async def load(self):
        """Make the event loop outside of any call."""

    async def predict(self, x):
        await asyncio.sleep(0)
        return super().predict(x)


class CallReadingStream(CallReadingAsync):
    """The same in an event loop of its own."""

    async def predict_stream(self, requests):
        yield 1


@pytest.mark.parametrize(
    ("make", "isolation"),
    [
        (CallReading, "thread"),
        (CallReading, "inline"),
        (CallReadingAsync, "thread"),
        (CallReadingStream, "thread"),
    ],
)
def test_model_sees_remaining_time(make, isolation):
    """With any isolation; outside of a call there is no deadline."""

    async def ask(engine):
        times_left = [values(await engine.infer(request(rows(1), deadline=d))) for d in (None, 60.0, 90.0)]
        assert current_call().deadline_s is None
        return times_left

    with serving(make, clock=ManualClock(10.0), isolation=isolation) as engine:
        assert asyncio.run(ask(engine)) == [[-1, 0], [50, 0], [80, 0]]


def test_nested_call_restores_outer_call():
    """A model calls another one inline, and is in its own call again afterwards."""
    seen = []

    async def ask(inner):
        class Both(Model):
            async def predict(self, x):
                await inner.infer(request(rows(1), deadline=20.0))
                seen.append(current_call().deadline_s)
                return x

        with serving(Both, clock=clock) as outer:
            await outer.infer(request(rows(1), deadline=60.0))

    clock = ManualClock(10.0)
    with serving(CallReading, clock=clock, isolation="inline") as inner:
        asyncio.run(ask(inner))
    assert seen == [50.0]


def test_plain_model_sees_cancellation():
    seen, entered, release = [], threading.Event(), threading.Event()

    class Looking(Model):
        def predict(self, x):
            entered.set()
            assert release.wait(WAIT_S)
            seen.append(current_call().cancelled)
            return x

    async def ask(engine):
        task = asyncio.create_task(engine.infer(request()))
        await in_thread(entered.wait)
        task.cancel()
        await asyncio.wait([task])
        release.set()

    with serving(Looking) as engine:
        asyncio.run(ask(engine))
        engine.stop()
    assert seen == [True]


# Inline


def test_inline_model_runs_in_client_thread():
    seen = []

    class Here(EchoModel):
        def predict(self, x):
            seen.append(threading.get_ident())
            return x

    async def ask(engine):
        return await engine.infer(request(rows(1)))

    with serving(Here, isolation="inline") as engine:
        assert values(asyncio.run(ask(engine))) == [1]
        assert values(engine.submit(request(rows(2))).result(0)) == [2]
        assert set(seen) == {threading.get_ident()}
        assert _end_counts(engine) == _expected_counts(success=2)
        assert engine.model_statistics().last_inference_ms > 0
    with pytest.raises(StoppedError):
        asyncio.run(ask(engine))


def test_inline_model_reports_errors():
    async def ask(engine):
        return await _results_of([engine.infer(request(rows(v))) for v in (1, 3, 2)])

    with serving(PickyModel({3.0}), isolation="inline") as engine:
        one, bad, two = asyncio.run(ask(engine))
        assert (values(one), values(two)) == ([1], [2])
        assert "ValueError: value 3.0" in str(bad)
        assert _end_counts(engine) == _expected_counts(success=2, fail=1)


def test_inline_model_is_not_closed_during_call():
    """A stop waits for clients in other threads, and refuses later ones."""
    entered, release, order = threading.Event(), threading.Event(), []

    class Slow(EchoModel):
        def predict(self, x):
            entered.set()
            assert release.wait(WAIT_S)
            order.append("answered")
            return x

        def close(self):
            order.append("closed")

    with serving(Slow, isolation="inline", warm_up=False) as engine:
        caller = threading.Thread(target=lambda: asyncio.run(engine.infer(request())))
        caller.start()
        assert entered.wait(WAIT_S)
        stopper = threading.Thread(target=engine.stop)
        stopper.start()
        polling.wait_until(lambda: engine._session.state.name == "STOPPING")
        instance_thread = engine._session.slots[0].thread
        instance_thread.join(0.05)
        release.set()
        caller.join(WAIT_S)
        stopper.join(WAIT_S)
    assert order == ["answered", "closed"]


# Stopping


@for_each("drain", [True, False])
def test_stop_with_requests_in_flight(drain):
    """From another thread: accepted requests finish or fail; each is counted once."""
    model = Notes(held=True)

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, request(rows(1)), request(rows(2)))
        stopping = asyncio.create_task(in_thread(lambda: engine.stop(drain=drain)))
        await wait_until(lambda: engine._session.queue.closed)
        with pytest.raises(StoppedError, match="model m is not running"):
            await engine.infer(request())
        if not drain:
            assert all(isinstance(e, StoppedError) for e in await _results_of(tasks[1:]))
        model.gate.set()
        ends = await _results_of(tasks)
        await stopping
        return ends

    with serving(model) as engine:
        ends = asyncio.run(ask(engine))
        if drain:
            assert [values(e) for e in ends] == [[0], [2], [4]]
            assert _end_counts(engine) == _expected_counts(success=3)
        else:
            assert all(isinstance(e, StoppedError) for e in ends)
            assert _end_counts(engine) == _expected_counts(fail=3)
        engine.start()
        assert values(asyncio.run(engine.infer(request(rows(7))))) == [14]
        assert _end_counts(engine) == _expected_counts(success=1)


def test_stop_at_any_moment_ends_every_request():
    """A stress of stops and starts while clients keep sending."""

    finished = [0]

    async def caller(engine, over):
        ends = {"answered": 0, "stopped": 0}
        while not over.is_set():
            try:
                await asyncio.wait_for(engine.infer(request()), WAIT_S)
                ends["answered"] += 1
            except StoppedError:
                ends["stopped"] += 1
            finished[0] += 1
            await asyncio.sleep(0)
        return ends

    async def callers(engine):
        over = asyncio.Event()
        tasks = [asyncio.create_task(caller(engine, over)) for _ in range(8)]
        for turn in range(12):
            enough = finished[0] + 8 + 5 * turn
            await wait_until(lambda enough=enough: finished[0] >= enough)
            await in_thread(lambda drain=bool(turn % 2): engine.stop(drain=drain))
            await in_thread(engine.start)
        over.set()
        return await asyncio.gather(*tasks)

    with serving(EchoModel, instances=2) as engine:
        ends = asyncio.run(callers(engine))
        assert sum(e["answered"] for e in ends)
        assert sum(e["stopped"] for e in ends)


@for_each(
    ("model", "why"),
    [
        (type("Late", (EchoModel,), {"max_batch_delay_ms": -1.0}), "max_batch_delay_ms must be 0 or more"),
        (
            type("Unmade", (EchoModel,), {"__init__": lambda _: _raise(OSError("no file"))}),
            "OSError: no file",
        ),
    ],
)
@for_each("isolation", [None, "thread"])
def test_impossible_isolation_fails_start(model, why, isolation):
    engine = Engine(model, name="m", serving=ServeSettings(isolation=isolation))
    with pytest.raises(ModelLoadError, match=why):
        engine.start()


def test_several_inline_instances_are_refused():
    engine = Engine(EchoModel, name="m", serving=ServeSettings(instances=2, isolation="inline"))
    with pytest.raises(ConfigError, match="only one instance can run inline"):
        engine.start()


# Instances that die


class DyingBackend:
    """A backend of this process that dies and restarts as the test says."""

    def __init__(self, backend, script):
        self._backend, self.script = backend, script
        self.lost = False

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def call(self, inputs, call):
        if self.script["dies"](inputs.parts):
            self.lost = True
            raise InstanceLostError("m", "it died")
        return self._backend.call(inputs, call)

    def restart(self):
        self.script["restarts"](self)
        self.lost = False


def _engine_of_dying(engine, **script):
    load = engine._backend_factory.load
    engine._backend_factory.load = lambda: DyingBackend(load(), script)
    engine.stop()
    engine.start()


def test_requests_of_dead_instance_are_retried_alone_once():
    """Only a request that kills twice fails."""
    model = Notes(held=True)
    calls = []

    def dies(parts):
        calls.append([float(p["x"][0, 0]) for p in parts])
        return any(p["x"][0, 0] == 3 for p in parts)

    async def ask(engine):
        tasks = await _start_while_first_runs(engine, model, *(request(rows(float(v))) for v in range(1, 5)))
        model.gate.set()
        return await _results_of(tasks)

    with serving(model) as engine:
        _engine_of_dying(engine, dies=dies, restarts=lambda _: None)
        ends = asyncio.run(ask(engine))
        assert isinstance(ends[3], InstanceLostError)
        assert [values(ends[n]) for n in (0, 1, 2, 4)] == [[0], [2], [4], [8]]
        assert calls == [[0], [1, 2, 3, 4], [1], [2], [3], [4]]
        assert _end_counts(engine) == _expected_counts(success=4, fail=1)
        assert engine.model_statistics().restarts == 2
        assert engine.alive


def test_futures_survive_instance_death():
    """They are started once more."""
    deaths = iter([True, False])
    with serving(EchoModel) as engine:
        _engine_of_dying(engine, dies=lambda _: next(deaths), restarts=lambda _: None)
        assert values(engine.submit(request(rows(4))).result(WAIT_S)) == [4]


def test_given_up_instance_takes_no_requests():
    """The other one serves all; the engine is not `alive`."""
    first = []

    def dies(_):
        me = threading.get_ident()
        first[:] = first or [me]
        return me == first[0]

    async def ask(engine):
        return [values(await engine.infer(request(rows(float(n))))) for n in range(10)]

    with serving(EchoModel, instances=2) as engine:
        _engine_of_dying(engine, dies=dies, restarts=lambda _: _raise(OSError("no memory")))
        assert asyncio.run(ask(engine)) == [[float(n)] for n in range(10)]
        polling.wait_until(lambda: not engine.alive)
        assert engine.running
        assert _end_counts(engine) == _expected_counts(success=10)


def test_loss_of_last_instance_fails_all_requests():
    """Waiting and later ones."""
    gate = threading.Event()

    def dies(_):
        assert gate.wait(WAIT_S)
        return True

    async def ask(engine):
        tasks = [asyncio.create_task(engine.infer(request(rows(float(n))))) for n in range(4)]
        await wait_until(lambda: engine.model_statistics().in_flight == 4)
        gate.set()
        ends = await _results_of(tasks)
        await wait_until(lambda: not engine._session.slots[0].thread.is_alive())
        return ends, await _results_of([engine.infer(request())])

    with serving(EchoModel, clock=InstantClock()) as engine:
        _engine_of_dying(engine, dies=dies, restarts=lambda _: _raise(OSError("no memory")))
        ends, (after,) = asyncio.run(ask(engine))
        assert all(isinstance(e, InstanceLostError) for e in ends)
        assert "no memory" in str(ends[-1])
        assert isinstance(after, InstanceLostError)
        assert "no memory" in str(after)
        assert _end_counts(engine) == _expected_counts(fail=4)


def test_death_while_draining_ends_every_request():
    """The other instance has ended; the requeued request gets StoppedError."""
    gate, entered = threading.Event(), threading.Event()

    def dies(_):
        entered.set()
        assert gate.wait(WAIT_S)
        return True

    async def ask(engine):
        task = asyncio.create_task(engine.infer(request()))
        await in_thread(entered.wait)
        stopping = asyncio.create_task(in_thread(engine.stop))
        await wait_until(lambda: sum(s.thread.is_alive() for s in engine._session.slots) == 1)
        gate.set()
        (end,) = await _results_of([task])
        await stopping
        return end

    with serving(EchoModel, instances=2) as engine:
        _engine_of_dying(engine, dies=dies, restarts=lambda _: _raise(OSError("no memory")))
        assert isinstance(asyncio.run(ask(engine)), StoppedError)
        assert _end_counts(engine) == _expected_counts(fail=1)


def test_requests_wait_while_model_is_held():
    """`HeldModel`: a waiting request completes after its release."""
    model = HeldModel()

    async def ask(engine):
        tasks = [asyncio.create_task(engine.infer(request(rows(float(n))))) for n in range(2)]
        await in_thread(model.wait_for_calls, 1)
        model.release(2)
        return [values(e) for e in await _results_of(tasks)]

    with serving(model) as engine:
        assert asyncio.run(ask(engine)) == [[0], [1]]


# Tensors without axes


class Accumulates(Model):
    """Returns the sum of a sequence's values."""

    def step(self, states, x):
        assert x.shape == (len(states),)
        for state, value in zip(states, x, strict=True):
            state["sum"] = state.get("sum", np.zeros(())) + value
        return np.array([state["sum"] for state in states])


def test_tensor_without_axes_is_one_row():
    """Also in a step of a sequence, and beside rows of other requests."""
    scalar = InferRequest((Tensor("x", np.array(2.0)),))
    start = replace(scalar, parameters={"sequence_id": "s", "sequence_start": True})

    async def ask(engine):
        return [r.outputs[0].data.tolist() for r in await asyncio.gather(*map(engine.infer, [scalar] * 2))]

    async def stream(engine):
        requests = [replace(scalar, parameters={"sequence_id": "s"})] * 2

        async def more():
            for one in requests:
                yield one

        return [r.outputs[0].data.tolist() async for r in engine.stream(start, more())]

    with serving(EchoModel()) as engine:
        assert asyncio.run(ask(engine)) == [[2.0], [2.0]]
    with serving(Accumulates) as engine:
        assert asyncio.run(engine.infer(start))["output"].tolist() == [2.0]
    with serving(Accumulates) as engine:
        assert asyncio.run(stream(engine)) == [[2.0], [4.0], [6.0]]


# Whole requests


class Whole(Model):
    """An adapter of another server's model: it takes whole requests, and returns any number of
    rows.
    """

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


def test_whole_requests_are_called_one_at_a_time():
    model = Whole()

    def whole_request(**settings):
        x = Tensor("x", rows(1, 2), {"content_type": "np"})
        return InferRequest((x,), **settings)

    async def ask(engine):
        requests = [
            whole_request(id="a"),
            whole_request(id="b", outputs=("n",)),
            whole_request(parameters={"refuse": True}),
        ]
        return await asyncio.gather(*(engine.infer(r) for r in requests), return_exceptions=True)

    with serving(model) as engine:
        assert engine.metadata.whole_requests
        whole, chosen, refused = asyncio.run(ask(engine))
    assert model.seen == [2, 2, 2]
    assert (whole.id, whole.model_name, whole.parameters) == ("a", "m", {"kind": "whole"})
    assert (whole["word"].tolist(), whole.outputs[0].parameters) == (["np"], {"content_type": "str"})
    assert [t.name for t in chosen.outputs] == ["n"]
    assert isinstance(refused, RefusedRowsError)
    assert "row 0: not this one" in str(refused)
