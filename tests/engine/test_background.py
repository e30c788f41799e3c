"""Background requests: after live ones, in calls of their own, within their share of the time."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from cases import for_each
from engine.sequences.models import Adding, more, start
from engine.support import WAIT_S, in_thread, pending_request, request, rows, values, wait_until
from headrace.batching.background import SHARE_MIN
from headrace.core import Model, TensorSpec
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    OverloadedError,
    PredictError,
    StoppedError,
)
from headrace.core.predictor import RequestTimes
from headrace.engine import Engine
from headrace.engine.background_requests import BackgroundRequests
from headrace.engine.request_queue import BlockingConsumer, RequestQueue
from headrace.engine.schedule import IndependentRequests
from headrace.engine.settings import ServeSettings
from headrace.testing import ManualClock

TINY = 2e-6
"""A share with which a call of a few microseconds is followed by a pause of many seconds."""


class Traffic:
    """The live traffic of a test: it sets the share, and gets the latencies."""

    def __init__(self, share=1.0):
        self.value = share
        self.limits = []
        self.latencies = []
        self.closed = 0

    def share(self):
        return self.value

    def limit(self, limit_s):
        self.limits.append(limit_s)
        return self

    def record(self, latency_s):
        self.latencies.append(latency_s)

    def close(self):
        self.closed += 1


class Gated(Model):
    """Waits for a turn in each call, and keeps the inputs of its calls."""

    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def __init__(self):
        self.turns, self.calling = threading.Semaphore(0), threading.Semaphore(0)
        self.calls = []

    def predict(self, x):
        self.calls.append(x.ravel().tolist())
        self.calling.release()
        assert self.turns.acquire(timeout=WAIT_S)
        return x

    def wait_for_call(self):
        assert self.calling.acquire(timeout=WAIT_S)


class Loaded:
    """A started engine of one `Gated` instance, and its traffic."""

    def __init__(self, share=1.0, **settings):
        self.model, self.traffic = Gated(), Traffic(share)
        serving = ServeSettings(**{"isolation": "thread", "warm_up": False, **settings})
        self.engine = Engine(
            lambda: self.model, name="m", serving=serving, in_flight_max=9, traffic=self.traffic
        )

    def __enter__(self):
        self.engine.start()
        return self

    def __exit__(self, *_):
        self.model.turns.release(1000)
        self.engine.stop(drain=False)

    def submit(self, *numbers, **options):
        return self.engine.submit(request(rows(*numbers)), **options)

    async def infer(self, *numbers, **options):
        return values(await self.engine.infer(request(rows(*numbers), **options)))

    async def started(self, task, waiting):
        """Wait until a request of the task waits behind others."""
        await wait_until(lambda: task.done() or self.engine.model_statistics().waiting_requests == waiting)


def results(futures):
    return [values(future.result(WAIT_S)) for future in futures]


# The order of calls


def test_live_request_goes_before_waiting_background_requests():
    async def use(loaded):
        sent = [loaded.submit(number, alone=True) for number in (1, 2, 3)]
        await in_thread(loaded.model.wait_for_call)
        live = asyncio.create_task(loaded.infer(9))
        await loaded.started(live, 3)
        loaded.model.turns.release(4)
        assert await live == [9.0]
        assert await in_thread(results, sent) == [[1.0], [2.0], [3.0]]
        assert loaded.model.calls == [[1.0], [9.0], [2.0], [3.0]]

    with Loaded() as loaded:
        asyncio.run(use(loaded))


def test_least_urgent_live_request_goes_before_background_requests():
    async def use(loaded):
        sent = [loaded.submit(1)]
        await in_thread(loaded.model.wait_for_call)
        sent.append(loaded.engine.submit(request(rows(2), priority=1)))
        live = asyncio.create_task(loaded.infer(9, priority=2**32))
        await loaded.started(live, 2)
        loaded.model.turns.release(3)
        assert await live == [9.0]
        await in_thread(results, sent)
        assert loaded.model.calls == [[1.0], [9.0], [2.0]]

    with Loaded() as loaded:
        asyncio.run(use(loaded))


def test_background_requests_keep_their_priorities():
    with Loaded() as loaded:
        sent = [loaded.submit(1)]
        loaded.model.wait_for_call()
        sent += [loaded.engine.submit(request(rows(value), priority=value)) for value in (3, 2)]
        loaded.model.turns.release(3)
        assert results(sent) == [[1.0], [3.0], [2.0]]
        assert loaded.model.calls == [[1.0], [2.0, 3.0]]


def test_call_of_live_requests_has_no_background_rows():
    async def use(loaded):
        sent = [loaded.submit(1)]
        await in_thread(loaded.model.wait_for_call)
        sent += [loaded.submit(2), loaded.submit(3)]
        live = [asyncio.create_task(loaded.infer(number)) for number in (8, 9)]
        await loaded.started(live[1], 4)
        loaded.model.turns.release(3)
        assert await asyncio.gather(*live) == [[8.0], [9.0]]
        await in_thread(results, sent)
        assert loaded.model.calls == [[1.0], [8.0, 9.0], [2.0, 3.0]]

    with Loaded() as loaded:
        asyncio.run(use(loaded))


@for_each("share", [1.0, 0.5])
def test_background_rows_take_no_place_in_the_queue_of_live_requests(share):
    async def use(loaded):
        sent = [loaded.submit(*range(6), alone=True) for _ in range(3)]
        await in_thread(loaded.model.wait_for_call)
        live = [asyncio.create_task(loaded.infer(1, 2)) for _ in range(2)]
        await loaded.started(live[1], 4 if share == 1.0 else 2)
        big = asyncio.create_task(loaded.infer(*range(5)))
        await asyncio.wait([big])
        assert "rows are waiting, the limit is 4" in str(big.exception())
        loaded.traffic.value = 1.0
        loaded.model.turns.release(1000)
        assert await asyncio.gather(*live) == [[1.0, 2.0]] * 2
        await in_thread(results, sent)

    with Loaded(share, queue_rows_max=4) as loaded:
        asyncio.run(use(loaded))


@for_each("share", [1.0, 0.5])
def test_large_live_request_is_accepted_beside_background_requests(share):
    async def use(loaded):
        sent = [loaded.submit(number, alone=True) for number in (1, 2)]
        await in_thread(loaded.model.wait_for_call)
        live = asyncio.create_task(loaded.infer(*range(6)))
        await loaded.started(live, 2 if share == 1.0 else 1)
        loaded.traffic.value = 1.0
        loaded.model.turns.release(1000)
        assert await live == [*range(6)]
        await in_thread(results, sent)

    with Loaded(share, queue_rows_max=4) as loaded:
        asyncio.run(use(loaded))


@for_each("share", [1.0, 0.5])
def test_steps_of_background_requests_take_no_place_in_the_queue_of_live_requests(share):
    """Also while they run."""

    async def use(model, engine):
        model.gate = threading.Event()
        sent = [engine.submit(start(id, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)) for id in "ab"]
        await in_thread(model.stepping.wait, WAIT_S)
        live = [asyncio.create_task(engine.infer(start(id, 1.0, 2.0))) for id in "cd"]
        await wait_until(lambda: len(engine.sequences()) >= 3 + (share == 1.0) or live[1].done())
        with pytest.raises(OverloadedError):
            await engine.infer(start("e", 1.0))
        model.gate.set()
        assert [values(response) for response in await asyncio.gather(*live)] == [[1.0, 3.0]] * 2
        assert await in_thread(results, sent) == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 2

    model = Adding()
    settings = ServeSettings(isolation="thread", queue_rows_max=4)
    engine = Engine(lambda: model, name="m", serving=settings, in_flight_max=9, traffic=Traffic(share))
    engine.start()
    try:
        asyncio.run(use(model, engine))
    finally:
        engine.stop(drain=False)


# The share


def test_background_requests_run_one_by_one_below_a_full_share():
    with Loaded(0.5) as loaded:
        sent = [loaded.submit(1), loaded.submit(2, alone=True)]
        loaded.model.wait_for_call()
        figures = loaded.engine.model_statistics()
        assert (figures.held_requests, figures.in_flight, figures.background_share) == (1, 1, 0.5)
        loaded.model.turns.release(2)
        assert results(sent) == [[1.0], [2.0]]


def test_each_instance_may_have_a_background_request():
    with Loaded(0.75, instances=2) as loaded:
        sent = [loaded.submit(1), loaded.submit(2, alone=True)]
        for _ in sent:
            loaded.model.wait_for_call()
        loaded.model.turns.release(2)
        assert results(sent) == [[1.0], [2.0]]


def test_requests_that_share_no_calls_begin_one_by_one():
    model = Gated()
    engine = Engine(lambda: model, name="m", warm_up=False, traffic=Traffic(0.5))
    engine.start()
    try:
        sent = [engine.submit(request(rows(value))) for value in (1, 2, 3)]
        model.turns.release()
        for _ in range(2):
            model.wait_for_call()
        assert engine._session.queue._background.rows == 1
    finally:
        model.turns.release(3)
        engine.stop()
    assert results(sent) == [[1.0], [2.0], [3.0]]


def test_background_requests_wait_for_their_share_and_live_ones_do_not():
    async def use(loaded):
        loaded.model.turns.release(100)
        sent = [loaded.submit(1)]
        await in_thread(results, sent)
        sent.append(loaded.submit(2))
        # The first call is charged to a tiny share, so that the second one waits.
        assert loaded.engine.model_statistics().held_requests == 1
        assert [await loaded.infer(number) for number in range(50)] == [[number] for number in range(50)]
        assert not sent[1].done()
        loaded.traffic.value = 1.0
        assert await in_thread(results, sent) == [[1.0], [2.0]]

    with Loaded(TINY) as loaded:
        asyncio.run(use(loaded))


def test_first_yield_is_logged_once(caplog):
    share = [0.5]
    background = BackgroundRequests(lambda: share[0], lambda: 1)
    for entry in entries(4, None):
        background.add(entry)
    began(background, 0.0)
    assert caplog.records == []
    for value in (0.5, 1.0, 0.5):
        share[0] = value
        began(background, 0.0)
    words = "jobs and runs yield to live requests with a latency limit"
    assert [r.message for r in caplog.records] == [words]


def waiting(loaded):
    """Return the future of a request that waits for its share, for ever."""
    loaded.model.turns.release(100)
    loaded.submit(1).result(WAIT_S)
    return loaded.submit(2)


def test_stop_finishes_requests_that_wait_for_their_share():
    with Loaded(TINY) as loaded:
        sent = waiting(loaded)
        loaded.engine.stop()
        assert values(sent.result(0)) == [2.0]


def test_stop_without_drain_fails_requests_that_wait_for_their_share():
    with Loaded(TINY) as loaded:
        sent = waiting(loaded)
        loaded.engine.stop(drain=False)
        with pytest.raises(StoppedError):
            sent.result(0)


def test_request_that_waits_for_its_share_can_be_cancelled_and_abandoned():
    with Loaded(TINY) as loaded:
        sent = waiting(loaded)
        assert sent.cancel()
        with pytest.raises(CancelledError):
            sent.result(0)
        sent = loaded.submit(3)
        loaded.engine.abandon(sent)
        with pytest.raises((CancelledError, CancelledRequestError)):
            sent.result(0)
        assert loaded.engine.model_statistics().held_requests == 0
        assert loaded.model.calls == [[1.0]]


def test_refused_request_that_waited_for_its_share_fails():
    traffic = Traffic(0.5)
    settings = ServeSettings(isolation="thread", sequences={"live_max": 1})
    engine = Engine(Adding, name="m", serving=settings, traffic=traffic)
    engine.start()
    try:
        assert values(engine.submit(start("a", 1.0)).result(WAIT_S)) == [1.0]
        refused = engine.submit(start("b", 1.0), strict=True)
        assert "live_max" in str(refused.exception(WAIT_S))
        assert values(engine.submit(more("a", 1.0)).result(WAIT_S)) == [2.0]
        figures = engine.model_statistics()
        assert (figures.success.count, figures.fail.count) == (2, 1)
    finally:
        engine.stop()


def shared_queue(**settings):
    """Return a queue whose background requests have half of the time, and its schedule."""
    schedule = IndependentRequests(merge=True)
    queue = RequestQueue(
        ManualClock(),
        schedule,
        model="m",
        in_flight_max=9,
        queue_rows_max=9,
        deliver_results=lambda _: None,
        background=BackgroundRequests(lambda: 0.5, lambda: 1),
    )
    queue.resize(**{"rows_max": 2, "delay_s": 0.0, **settings})
    return queue, schedule


def put(queue, *sent):
    for entry in sent:
        queue.put(entry, entry.callback.future)


def test_end_of_a_request_lets_the_next_one_begin_at_once():
    queue, schedule = shared_queue()
    first, second = entries(2, None)
    put(queue, first, second)
    assert first.callback.future.cancel()
    assert schedule.drain() == [second]


def test_requests_of_one_call_begin_together():
    queue, schedule = shared_queue()
    first, *others = [*entries(1, None), *entries(3)]
    put(queue, first, *others)
    assert first.callback.future.cancel()
    assert schedule.drain() == others[:2]


def test_drop_returns_requests_that_wait_for_their_share():
    queue, _ = shared_queue()
    sent = entries(3, None)
    put(queue, *sent)
    with queue.lock:
        assert queue._take(BlockingConsumer(), 0, 0.0).work == (sent[0],)
    queue._clock.advance(2.0)
    assert (queue.waiting(), queue.held_requests) == ((0, 0, 0.0, 1), 2)
    assert queue.drop() == sent[1:]


def test_background_requests_do_not_lengthen_the_delay_of_a_call():
    queue, schedule = shared_queue(delay_s=0.01)
    live = tuple(pending_request(request(), key="live") for _ in range(2))
    consumer = BlockingConsumer()
    for entry in live:
        assert queue.offer(entry)
    with queue.lock:
        assert queue._take(consumer, 0, 0.0).work == live
        schedule.end(2, 2, 0.0)
    # The first one waits for another request of its call, the second one for its share.
    put(queue, *entries(2, None))
    with queue.lock:
        assert queue._take(consumer, 0, 0.0).at_s == 0.01


# Requests that may begin


def entries(count, key="k", size=1):
    return [pending_request(request(rows(*range(size))), key=key, background=True) for _ in range(count)]


def began(background, now, rows_max=4, *, ignore_share=False):
    return list(background.next(rows_max, now, ignore_share=ignore_share))


def end(background, entry, began_s, ended_s):
    entry.times.began_s, entry.times.ended_s = began_s, ended_s
    background.end(entry, ended_s)


def test_requests_that_can_share_a_call_begin_together():
    background = BackgroundRequests(lambda: 0.5, lambda: 1)
    sent = [*entries(5), *entries(1, "other"), *entries(1, None), *entries(1, None), *entries(1, size=9)]
    for entry in sent:
        background.add(entry)
    for expected in (sent[:4], sent[4:5], sent[5:6], sent[6:7], sent[7:8], sent[8:]):
        assert began(background, 0.0, ignore_share=True) == expected
    assert began(background, 0.0) == []


def test_requests_of_one_call_are_charged_once():
    background = BackgroundRequests(lambda: 0.5, lambda: 1)
    first, second, third = entries(3)
    background.add(first)
    background.add(second)
    assert began(background, 0.0) == [first, second]
    background.add(third)
    assert began(background, 0.0) == []
    assert background.next_s(0.0) == 0.25
    end(background, first, 0.0, 1.0)
    assert began(background, 1.0) == []
    end(background, second, 0.0, 1.0)
    # One second of calls at half of the time: the next begins one second later. The share may rise before.
    assert background.next_s(1.0) == 1.25
    assert began(background, 1.9) == []
    assert background.next_s(1.9) == pytest.approx(2.0)
    assert began(background, 2.0) == [third]
    assert background.next_s(2.0) is None


@pytest.mark.parametrize(("sizes", "together"), [((2, 2, 1), 2), ((3, 2), 1), ((1, 4), 1), ((1, 3, 1), 2)])
def test_calls_are_filled_by_rows(sizes, together):
    background = BackgroundRequests(lambda: 1.0, lambda: 1)
    sent = [*entries(1, size=sizes[0]), *(each for size in sizes[1:] for each in entries(1, size=size))]
    for entry in sent:
        background.add(entry)
    assert (len(background), background.rows) == (len(sizes), sum(sizes))
    assert began(background, 0.0) == sent[:together]
    assert background.rows == sum(sizes[together:])


def test_requests_of_one_call_end_with_the_last_of_them():
    background = BackgroundRequests(lambda: 0.5, lambda: 1)
    first, second, third = entries(3)
    background.add(first)
    background.add(second)
    assert began(background, 0.0) == [first, second]
    background.add(third)
    # The call begins later than its requests, and lasts one second.
    end(background, first, 1.0, 2.0)
    assert began(background, 9.0) == []
    background.end(first, 9.0)
    assert began(background, 9.0) == []
    second.times.began_s, second.times.ended_s = 1.0, 2.0
    background.end(second, 9.0)
    assert began(background, 9.0) == [third]


def test_only_the_time_of_calls_is_charged():
    background = BackgroundRequests(lambda: 0.5, lambda: 1)
    *first, second = [*entries(2), *entries(1, "other")]
    for entry in (*first, second):
        background.add(entry)
    assert began(background, 0.0) == first
    for entry in first:
        end(background, entry, 2.5, 4.0)
    # In four seconds at half of the time, two seconds are permitted, and one call took 1.5 seconds.
    assert began(background, 4.0) == [second]


def test_next_time_depends_on_the_number_of_instances():
    background = BackgroundRequests(lambda: 0.5, lambda: 3)
    sent = entries(3, None)
    for entry in sent:
        background.add(entry)
    assert [began(background, 0.0) for _ in range(3)] == [[sent[0]], [sent[1]], []]
    end(background, sent[0], 0.0, 0.2)
    # Of 0.3 permitted seconds 0.4 were used; from now on, half a second of each second is left.
    assert background.next_s(0.2) == pytest.approx(0.4)


def test_dropped_requests_do_not_begin():
    background = BackgroundRequests(lambda: 1.0, lambda: 1)
    sent = entries(3)
    for entry in sent:
        background.add(entry)
    assert background.drain() == sent
    assert (began(background, 0.0), len(background), background.rows) == ([], 0, 0)
    assert not background.has_work


def test_request_without_a_call_costs_nothing():
    background = BackgroundRequests(lambda: 0.5, lambda: 1)
    first, second = entries(2, None)
    background.add(first)
    background.add(second)
    assert began(background, 0.0) == [first]
    background.end(first, 0.0)
    assert began(background, 0.0) == [second]
    background.end(first, 0.0)


def test_instances_have_shares_of_their_own():
    background = BackgroundRequests(lambda: 0.5, lambda: 4)
    sent = entries(4, None)
    for entry in sent:
        background.add(entry)
    assert [began(background, 0.0) for _ in range(3)] == [[sent[0]], [sent[1]], []]


def test_times_of_the_client_are_kept():
    background = BackgroundRequests(lambda: 1.0, lambda: 1)
    times = RequestTimes()
    entry = pending_request(request(), times=times, background=True)
    background.add(entry)
    assert entry.times is times


# Latencies


class Fast(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    max_batch_rows = 4

    def predict(self, x):
        if (x == 7).any():
            raise ValueError("seven")
        return x


def engine_of(make, traffic, **settings):
    settings = {"latency_limit_ms": 20.0, **settings}
    return Engine(make, name="m", serving=ServeSettings(**settings), traffic=traffic)


@for_each("isolation", ["thread", "inline"])
def test_latencies_of_live_requests_are_recorded(isolation):
    traffic = Traffic()
    engine = engine_of(Fast, traffic, isolation=isolation)
    engine.start()
    assert traffic.limits == [0.02]
    asyncio.run(engine.infer(request()))
    assert len(traffic.latencies) == 1
    with pytest.raises(PredictError):
        asyncio.run(engine.infer(request(rows(7))))
    asyncio.run(engine.infer(request(outputs=("output",))))
    assert len(traffic.latencies) == 3
    assert all(0 <= seconds < WAIT_S for seconds in traffic.latencies)
    engine.submit(request()).result(WAIT_S)
    assert len(traffic.latencies) == 3
    engine.stop()
    assert traffic.closed == 1


def test_expired_request_is_recorded_with_its_wait():
    async def use(loaded):
        loaded.submit(1)
        await in_thread(loaded.model.wait_for_call)
        with pytest.raises(DeadlineError):
            await loaded.infer(2, deadline=loaded.engine._clock.now() + 0.05)
        assert [seconds >= 0.05 for seconds in loaded.traffic.latencies] == [True]

    with Loaded(latency_limit_ms=20.0) as loaded:
        asyncio.run(use(loaded))


def test_streams_have_no_latency():
    class Streaming(Model):
        max_batch_delay_ms = 0.0

        def step(self, states, x):
            return x

    async def use(engine):
        return [item async for item in engine.stream(request())]

    traffic = Traffic()
    engine = engine_of(Streaming, traffic, isolation="thread")
    engine.start()
    assert len(asyncio.run(use(engine))) == 1
    assert traffic.latencies == []
    engine.stop()


def test_limit_must_be_positive():
    with pytest.raises(ConfigError, match="latency_limit_ms"):
        ServeSettings(latency_limit_ms=0.0)


def test_model_without_a_limit_has_no_monitor():
    traffic = Traffic()
    engine = engine_of(Fast, traffic, latency_limit_ms=None)
    engine.start()
    asyncio.run(engine.infer(request()))
    engine.stop()
    assert (traffic.limits, traffic.latencies, traffic.closed) == ([], [], 0)


def test_failed_start_withdraws_the_limit():
    class Broken(Fast):
        def load(self):
            raise ValueError("broken")

    traffic = Traffic()
    engine = engine_of(Broken, traffic)
    with pytest.raises(Exception, match="broken"):
        engine.start()
    assert (len(traffic.limits), traffic.closed) == (1, 1)


class RestClock(ManualClock):
    """A clock that moves on by itself in calls, and keeps its sleeps."""

    def __init__(self):
        super().__init__()
        self.sleeps = []

    def now(self):
        self.advance(0.001)
        return super().now()

    def sleep(self, seconds, wake=None):
        assert not wake.is_set()
        self.sleeps.append(seconds)
        return False


def test_inline_calls_of_background_work_are_followed_by_rests():
    clock, traffic = RestClock(), Traffic(0.5)
    engine = Engine(Fast, name="m", serving=ServeSettings(isolation="inline"), traffic=traffic, clock=clock)
    engine.start()
    assert values(engine.submit(request()).result(0)) == [1.0]
    (rest,) = clock.sleeps
    assert 0.001 <= rest < 0.1
    traffic.value = SHARE_MIN / 1000
    engine.submit(request()).result(0)
    assert clock.sleeps[1] == 1.0
    traffic.value = 0.25
    engine.submit(request()).result(0)
    assert clock.sleeps[2] == pytest.approx(3 * rest)
    traffic.value = 1.0
    engine.submit(request()).result(0)
    asyncio.run(engine.infer(request()))
    assert len(clock.sleeps) == 3
    engine.stop()
