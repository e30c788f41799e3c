"""A model in a process of its own: equal responses, and the promises when it dies."""

import asyncio
import functools
import os
import signal
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cases import for_each
from engine import process_models as models
from engine.support import WAIT_S, no_leaks, request, rows, wait_until
from headrace.core import InferRequest, Tensor, current_call
from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DeadlineError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
    PredictError,
    StoppedError,
)
from headrace.core.model import RowError
from headrace.engine import Engine
from headrace.engine.backend import CallInputs
from headrace.engine.local_backend import LocalBackend
from headrace.engine.model_methods import RemoteError
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.recipe import make_recipe
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import ITEMS_MAX
from headrace.runtimes.load import model_factory
from headrace.testing import check_predictor
from servers import polling

pytestmark = pytest.mark.timeout(60)


@contextmanager
def backend(make, **serve):
    """Yield a loaded backend that is always closed."""
    made = ProcessBackend(make_recipe(make, "m"), "m", settings=ServeSettings(**serve))
    try:
        yield made
    finally:
        made.close()


def call(backend, *parts, **tensors):
    """Return the outputs of one call."""
    given = parts or (tensors,)
    count = sum(len(next(iter(p.values()))) for p in given)
    return backend.call(CallInputs(given, count, "r"), current_call()).outputs


@contextmanager
def serving(make, instances=1, **serve):
    """Yield a started engine with its instances in processes."""
    engine = Engine(make, name="m", serving=ServeSettings(instances=instances, isolation="process", **serve))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


def pids(engine):
    return [slot.backend.pid for slot in engine._session.slots]


@pytest.fixture(autouse=True)
def _nothing_left():
    """Assert that no process, file or thread outlives its engine."""
    with no_leaks():
        yield


# Responses

_DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.unicode_string_dtypes(min_len=1, max_len=5),
)
# A lone surrogate cannot be sent to another process.
_CHARACTERS = st.characters(codec="utf-8")
_SIZES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
_TEXTS = st.one_of(st.text(_CHARACTERS), st.binary())


@st.composite
def _arrays(draw, shape):
    dtype = draw(_DTYPES)
    if dtype.kind != "U":
        return draw(npst.arrays(dtype, shape))
    texts = st.text(_CHARACTERS, max_size=dtype.itemsize // 4)
    return draw(npst.arrays(dtype, shape, elements=texts))


@st.composite
def _parts(draw):
    """Draw one to three arrays by name, with equal rows."""
    count = draw(st.integers(0, 4))
    shapes = [(count, *sizes) for sizes in draw(st.lists(_SIZES, min_size=1, max_size=3))]
    return {
        f"n{i}": draw(st.one_of(_arrays(shape), npst.arrays(object, shape, elements=_TEXTS)))
        for i, shape in enumerate(shapes)
    }


def same_response(one, other):
    """Assert equality bit by bit, and of the type."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    if one.dtype.kind == "O":
        assert [(type(v), v) for v in one.ravel()] == [(type(v), v) for v in other.ravel()]
    else:
        assert one.tobytes() == other.tobytes()


def test_responses_equal_those_of_local_backend():
    """Bit by bit, for any type and shape, alone and joined."""
    here = LocalBackend(models.Echo, "m")
    with backend(models.Echo) as there:

        @settings(suppress_health_check=[HealthCheck.too_slow])
        @given(_parts(), st.booleans())
        def check(part, twice):
            parts = (part, part) if twice else (part,)
            expected, found = call(here, *parts), call(there, *parts)
            assert list(found) == list(expected)
            for name in found:
                same_response(found[name], expected[name])

        check()


def test_views_arrive_unchanged():
    """Not contiguous, read-only, negative steps."""
    x = np.asfortranarray(np.arange(24, dtype=np.float32).reshape(6, 4))[::-1, ::2]
    x.flags.writeable = False
    with backend(models.Echo) as there:
        same_response(call(there, x=x)["x"], np.ascontiguousarray(x))


@pytest.mark.slow
def test_arena_grows_with_arrays():
    """Both ways, and back to small arrays."""
    with backend(models.Growing) as there:
        for columns in (1, 5_000_000, 2, 20_000_000):
            outputs = call(there, x=np.full((2, 3), columns, np.float32))
            assert outputs["output"].shape == (2, columns)
            assert (outputs["output"] == 7).all()
        big = np.zeros((3, 4_000_000), np.float32)
        big[:, 0] = 1
        assert call(there, x=big)["output"].shape == (3, 1)


def test_model_may_write_into_inputs():
    """The client's arrays do not change, and outputs in that memory are copied in time."""
    x = rows(1, 2, 3)
    with backend(models.Writing) as there:
        first = call(there, x=x)["output"]
        call(there, x=rows(9, 9, 9))
    assert first[:, 0].tolist() == [6, 4, 2]
    assert x[:, 0].tolist() == [1, 2, 3]


def test_kept_inputs_stay_unchanged():
    """The next call uses other memory."""
    with backend(models.Keeping) as there:
        found = [call(there, x=rows(i, i))["output"][0, 0] for i in range(1, 6)]
    assert found == [1, 1, 2, 3, 4]


@pytest.fixture
def erring():
    with backend(models.Erring) as there:
        yield there


@for_each(
    ("kind", "error", "says"),
    [
        (1, RowError, "refused"),
        (2, MemoryError, "too large"),
        (3, RemoteError, "^ValueError: odd"),
        (4, ModelContractError, "1 rows|0 rows|has"),
        (5, SystemExit, "3"),
        (6, ModelContractError, "must be bytes or str"),
    ],
)
def test_errors_keep_their_type(erring, kind, error, says):
    """The next call succeeds."""
    with pytest.raises(error, match=says):
        call(erring, x=rows(kind))
    assert call(erring, x=rows(0))["output"].tolist() == [[0]]


def test_unsendable_input_is_input_error():
    """Objects that are not text."""
    with backend(models.Echo) as there:
        with pytest.raises(ModelInputError, match="must be bytes or str"):
            call(there, x=np.array([1, None], object))
        with pytest.raises(ModelInputError, match="cannot be sent to another process"):
            call(there, x=np.zeros(2, [("a", "f4")]))


def test_batch_beyond_arena_is_halved():
    """MemoryError there concerns the batch size, as here."""
    with serving(models.Small) as engine:
        found = engine.submit(request(rows(*range(7)))).result(WAIT_S)
    assert found["output"][:, 0].tolist() == list(range(7))


def test_call_times_add_up():
    with backend(models.Echo) as there:
        called = there.call(CallInputs(({"x": rows(1)},), 1, "r"), current_call())
    assert min(called.input_s, called.infer_s, called.output_s) > 0
    assert called.input_s + called.infer_s + called.output_s < WAIT_S


def test_model_log_reaches_serving_process(caplog):
    """With its level and name."""
    with backend(models.Talking) as there:
        call(there, x=rows(1, 2))
    (record,) = [r for r in caplog.records if r.name == "model.talking"]
    assert (record.levelname, record.getMessage()) == ("WARNING", "saw 2 rows")


def test_arena_is_reused():
    """For a model that keeps nothing, even if it returns its inputs."""
    with backend(models.Echo) as there:
        call(there, x=rows(1))
        arena, returned = there._process.arena.memory, there._process.returned
        for _ in range(5):
            call(there, x=rows(1, 2))
        assert there._process.arena.memory is arena
        assert there._process.returned is returned


# Loading


def test_partial_passes_its_arguments():
    with backend(functools.partial(models.make_identity, rows_max=5)) as there:
        assert there.rows_max == there.metadata.max_batch_rows == 5
        assert [s.name for s in there.inputs.specs] == ["x"]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "says"), [("raises", "OSError: no weights"), ("dies", "SIGKILL")])
def test_load_error_is_reported(how, says):
    """Also when the process dies of it; nothing is left."""
    make = functools.partial(models.Unloadable, how=how)
    with pytest.raises(ModelLoadError, match=says), serving(make):
        pass


def test_model_file_is_passed_by_path(tmp_path):
    """Its class cannot be imported by name."""
    path = tmp_path / "doubles.py"
    path.write_text(
        "from headrace import Model\nclass Doubles(Model):\n    def predict(self, x):\n        return 2 * x\n"
    )
    with serving(model_factory(str(path)).make) as engine:
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"].tolist() == [[6]]


def test_model_chooses_process_isolation():
    engine = Engine(models.Apart, name="m", serving=ServeSettings())
    engine.start()
    try:
        assert engine.submit(request()).result(WAIT_S)["output"][0, 0] == pids(engine)[0]
    finally:
        engine.stop()


def test_factory_without_model_is_load_error():
    with pytest.raises(ModelLoadError, match="returned a NoneType"), backend(models.make_nothing):
        pass


def test_unnamed_factory_cannot_run_in_process():
    """Before any process is started."""
    with (
        pytest.raises(ConfigError, match="defined inside a function"),
        serving(lambda: models.make_identity(1)),
    ):
        pass


@pytest.mark.slow
def test_process_engine_keeps_predictor_contract():
    check_predictor(
        lambda: Engine(models.Identity, name="m", serving=ServeSettings(isolation="process")),
        request(rows(1, 2, 3), id="r"),
    )


# Death


def test_death_in_call_is_reported_and_restarted():
    """With its signal."""
    with backend(models.Pid) as there:
        first = call(there, x=rows(1))["output"][0, 0]
        with pytest.raises(InstanceLostError, match="SIGKILL"):
            call(there, x=rows(models.POISON))
        assert there.lost
        with pytest.raises(InstanceLostError):
            call(there, x=rows(1))
        there.restart()
        assert not there.lost
        assert call(there, x=rows(1))["output"][0, 0] not in (first, os.getpid())


@pytest.mark.slow
def test_fatal_request_fails_alone():
    """It is retried once; the requests of its call succeed."""

    async def ask(engine):
        requests = [engine.infer(request(rows(v))) for v in (1, models.POISON, 2, 3)]
        return await asyncio.gather(*requests, return_exceptions=True)

    with serving(models.Pid, max_batch_delay_ms=50) as engine:
        answers = asyncio.run(ask(engine))
        statistics = engine.model_statistics()
    assert isinstance(answers[1], InstanceLostError)
    assert [type(a).__name__ for a in answers].count("InferResponse") == 3
    assert statistics.restarts == 2


def test_death_while_idle_is_restarted():
    """Readiness shows it before any request does, and no request fails."""
    with serving(models.Pid) as engine:
        (pid,) = pids(engine)
        assert engine.alive
        os.kill(pid, signal.SIGKILL)
        polling.wait_until(lambda: engine.alive and pids(engine)[0] not in (None, pid))
        assert engine.submit(request()).result(WAIT_S)["output"][0, 0] == pids(engine)[0]
        assert engine.model_statistics().restarts == 1
        death = engine.last_death
        assert (death.model, death.cause) == (engine.name, "killed")
        assert "SIGKILL" in death.message


@pytest.mark.slow
def test_every_request_ends_while_processes_are_killed():
    """Completed, or lost with its instance; two processes, one killed again and again."""

    async def main(engine):
        async def one(i):
            with suppress(InstanceLostError):
                response = await engine.infer(request(rows(i, i + 1), id=str(i)))
                assert response.id == str(i)
                assert len(response["output"]) == 2
                return True
            return False

        async def kill():
            for slot in (0, 1, 0):
                before = pids(engine)[slot]
                os.kill(before, signal.SIGKILL)
                # In this order: a live process may die and be reaped before its id is checked.
                # The lambda is awaited in this iteration.
                await wait_until(
                    lambda: pids(engine)[slot] not in (None, before) and engine.alive  # noqa: B023
                )

        killing = asyncio.create_task(kill())
        results = []
        while not killing.done():
            results += await asyncio.gather(*[one(i) for i in range(100)])
        await killing
        results += await asyncio.gather(*[one(i) for i in range(100)])
        return results

    with serving(models.Pid, instances=2) as engine:
        results = asyncio.run(main(engine))
        assert sum(results) > 0.9 * len(results)
        assert engine.model_statistics().restarts == 3
    statistics = engine.model_statistics()
    assert statistics.success.count + statistics.fail.count == len(results)


@pytest.mark.slow
def test_unrestartable_instance_is_given_up(tmp_path):
    """After the limit of tries; waiting and later requests get the reason."""
    make = functools.partial(models.LoadsOnce, folder=str(tmp_path))
    with serving(make) as engine:
        with pytest.raises(InstanceLostError, match="weights are gone"):
            engine.submit(request(rows(models.POISON))).result(WAIT_S)
        polling.wait_until(lambda: not engine.alive)
        with pytest.raises(InstanceLostError, match="could not be restarted: ModelLoadError"):
            engine.submit(request()).result(WAIT_S)


@pytest.mark.slow
def test_stop_does_not_wait_for_restart(tmp_path):
    """It is between two tries, and no request waits."""
    make = functools.partial(models.LoadsOnce, folder=str(tmp_path))
    with serving(make) as engine:
        os.kill(pids(engine)[0], signal.SIGKILL)
        polling.wait_until(lambda: not engine.alive)
        engine.stop()


@pytest.mark.slow
def test_hanging_call_is_instance_lost():
    """The other requests of the batch succeed; the error names the timeout."""

    async def ask(engine):
        requests = [engine.infer(request(rows(v))) for v in (1, models.POISON, 2)]
        return await asyncio.gather(*requests, return_exceptions=True)

    with serving(models.Hanging, call_timeout_s=0.5) as engine:
        answers = asyncio.run(ask(engine))
    assert isinstance(answers[1], InstanceLostError)
    assert "call_timeout_s (0.5 s)" in str(answers[1])
    assert [a["output"][0, 0] for a in (answers[0], answers[2])] == [1, 2]


# Cancellation


@pytest.mark.slow
@pytest.mark.parametrize("make", [models.Waiting, models.WaitingAsync])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_model_sees_cancellation(tmp_path, make, how):
    """By `current_call`, or by cancellation if asynchronous; the next request completes."""

    async def main(engine):
        deadline = engine._clock.now() + 0.5 if how == "deadline" else None
        asking = asyncio.create_task(engine.infer(request(rows(1), deadline=deadline)))
        await wait_until((tmp_path / "began").exists)
        if how == "cancel":
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, DeadlineError)):
            await asking
        await wait_until((tmp_path / "cancelled").exists)
        return await engine.infer(request(rows(0)))

    with serving(functools.partial(make, folder=str(tmp_path))) as engine:
        assert asyncio.run(main(engine))["output"].tolist() == [[0]]


# Streams


def counted(n, text="a", **kwargs):
    return InferRequest((Tensor("n", np.array([n])), Tensor("text", np.array([text], object))), **kwargs)


async def collected(stream):
    found = []
    try:
        found = [int(item["i"][0]) async for item in stream]
    finally:
        await stream.aclose()
    return found


async def several(*requests):
    for one in requests:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("make", [models.Counting, models.CountingPlain])
def test_concurrent_streams_keep_order(make):
    """More items than may be in transit, of one request and of many, besides calls of `predict`."""

    async def main(engine):
        streams = [collected(engine.stream(counted(1000, id=str(i)))) for i in range(8)]
        more = collected(engine.stream(counted(3), several(counted(2), counted(4))))
        asks = [engine.infer(request(rows(i))) for i in range(8)]
        return await asyncio.gather(*streams, more, *asks)

    with serving(make) as engine:
        found = asyncio.run(main(engine))
    assert found[:8] == [list(range(1000))] * 8
    assert found[8] == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert [r["output"][0, 0] for r in found[9:]] == list(range(8))


def test_stream_items_are_yielded_items():
    """Text, ids, names."""

    async def main(engine):
        stream = engine.stream(counted(2, text="ü", id="s"))
        items = [item async for item in stream]
        await stream.aclose()
        return items

    with serving(models.Counting) as engine:
        items = asyncio.run(main(engine))
    assert [i["text"][0] for i in items] == ["täxt", "ü"]
    assert [(i.id, i.model_name) for i in items] == [("s", "m")] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "error", "says"),
    [
        (-1, InstanceLostError, "SIGKILL"),
        (-2, PredictError, "ValueError: odd"),
        (-4, ModelContractError, "bytes or str"),
    ],
)
def test_stream_error_follows_its_items(n, error, says):
    """Also when its process dies; another stream can be opened afterwards."""

    async def main(engine):
        got = []

        async def then():
            await wait_until(lambda: len(got) == 3)
            yield counted(n)

        async def take(stream):
            async for item in stream:
                got.append(int(item["i"][0]))

        with pytest.raises(error, match=says):
            await take(engine.stream(counted(3), then()))
        assert got == [0, 1, 2]
        await wait_until(lambda: engine.alive)
        return await collected(engine.stream(counted(2)))

    with serving(models.Counting) as engine:
        assert asyncio.run(main(engine)) == [0, 1]


@pytest.mark.slow
def test_closing_stream_ends_generator():
    """Before its first item, and amid more than may be in transit; no stream is left."""

    async def main(engine):
        for n in (-3, 100_000):
            stream = engine.stream(counted(n))
            if n > 0:
                assert await anext(stream)
            await stream.aclose()
            process = engine._session.slots[0].backend._process
            await wait_until(lambda process=process: not process._open)
        return await collected(engine.stream(counted(1)))

    with serving(models.Counting) as engine:
        assert asyncio.run(main(engine)) == [0]


@pytest.mark.slow
def test_slow_consumer_bounds_stream():
    """A bounded number of items is in transit, and no more are made."""

    async def main(engine):
        stream = engine.stream(counted(10_000))
        process = engine._session.slots[0].backend._process
        first = await anext(stream)
        ((call, _, _),) = process._open.values()
        await wait_until(lambda: len(call.responses._items) >= ITEMS_MAX)
        # Items sent after this one have arrived when the response to a later call has.
        for _ in range(20):
            await engine.infer(request(rows(1)))
        held = len(call.responses._items)
        rest = [item async for item in stream]
        return held, 1 + len(rest), first

    with serving(models.Counting) as engine:
        held, count, _ = asyncio.run(main(engine))
    assert 0 < held <= 3 * 256
    assert count == 10_000


@pytest.mark.slow
def test_stop_ends_open_streams():
    """With or without drain."""

    async def main(engine):
        stream = engine.stream(counted(-3))
        taking = asyncio.create_task(collected(stream))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.stop, drain=False)
        with pytest.raises((StoppedError, CancelledRequestError)):
            await taking

    with serving(models.Counting) as engine:
        asyncio.run(main(engine))


# Closing


def test_close_closes_model(tmp_path):
    with serving(functools.partial(models.Closing, folder=str(tmp_path))):
        pass
    assert (tmp_path / "closed").exists()


@pytest.mark.slow
def test_model_that_does_not_close_is_killed(tmp_path, monkeypatch):
    """Within its time limit, with a log message."""
    monkeypatch.setattr("headrace.engine.process.model_process.CLOSE_S", 0.2)
    with backend(functools.partial(models.Closing, folder=str(tmp_path), hangs=True)):
        pass
    assert not (tmp_path / "closed").exists()


def test_whole_request_model_is_refused():
    """Only arrays are sent to processes."""
    engine = Engine(models.Whole, name="m", serving=ServeSettings(isolation="process"))
    with pytest.raises(ConfigError, match="set isolation to thread"):
        engine.start()
