"""A model in a process of its own: the same answers as in this one, and the same promises when it dies."""

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

from engine import process_models as models
from engine.support import WAIT_S, nothing_left, request, rows
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
from headrace.engine.backend import LocalBackend
from headrace.engine.process import ProcessBackend
from headrace.engine.reason import ToldError
from headrace.engine.recipe import recipe_of
from headrace.engine.settings import ServeSettings
from headrace.runtimes.load import model_factory
from headrace.testing import check_predictor

pytestmark = pytest.mark.timeout(60)


@contextmanager
def backend(make, **serve):
    """A loaded backend that is always closed."""
    made = ProcessBackend(recipe_of(make, "m"), "m", settings=ServeSettings(**serve))
    try:
        yield made
    finally:
        made.close()


def call(backend, *parts, **tensors):
    """The outputs of one call."""
    given = parts or (tensors,)
    count = sum(len(next(iter(p.values()))) for p in given)
    return backend.call(given, count, "r", current_call(), fresh=False).outputs


@contextmanager
def serving(make, instances=1, **serve):
    """A started engine with its instances in processes."""
    engine = Engine(make, name="m", serving=ServeSettings(instances=instances, isolation="process", **serve))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


def pids(engine):
    return [slot.backend.pid for slot in engine._life.slots]


async def until(holds):
    """Wait for what another process does."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - another process tells nobody here
            await asyncio.sleep(0.002)


def until_here(holds):
    asyncio.run(until(holds))


@pytest.fixture(autouse=True)
def _nothing_left():
    """No process, file, or thread outlives its engine."""
    with nothing_left():
        yield


# Answers

_DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.unicode_string_dtypes(min_len=1, max_len=5),
)
_SIZES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
_TEXTS = st.one_of(st.text(st.characters(codec="utf-8")), st.binary())


@st.composite
def _parts(draw):
    """One to three arrays by name, with as many rows each."""
    count = draw(st.integers(0, 4))
    shapes = [(count, *sizes) for sizes in draw(st.lists(_SIZES, min_size=1, max_size=3))]
    return {
        f"n{i}": draw(st.one_of(npst.arrays(_DTYPES, shape), npst.arrays(object, shape, elements=_TEXTS)))
        for i, shape in enumerate(shapes)
    }


def same(one, other):
    """Bit by bit, and of the same type."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    if one.dtype.kind == "O":
        assert [(type(v), v) for v in one.ravel()] == [(type(v), v) for v in other.ravel()]
    else:
        assert one.tobytes() == other.tobytes()


def test_answers_are_those_of_a_model_in_this_process():
    """Bit by bit, for any type and shape, alone and joined."""
    here = LocalBackend(models.Echo, "m")
    with backend(models.Echo) as there:

        @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(_parts(), st.booleans())
        def check(part, twice):
            parts = (part, part) if twice else (part,)
            expected, found = call(here, *parts), call(there, *parts)
            assert list(found) == list(expected)
            for name in found:
                same(found[name], expected[name])

        check()


def test_a_view_of_any_order_arrives_as_it_is():
    """Not contiguous, read-only, negative steps."""
    x = np.asfortranarray(np.arange(24, dtype=np.float32).reshape(6, 4))[::-1, ::2]
    x.flags.writeable = False
    with backend(models.Echo) as there:
        same(call(there, x=x)["x"], np.ascontiguousarray(x))


def test_arrays_grow_what_they_travel_in():
    """Both ways, and back to small ones."""
    with backend(models.Growing) as there:
        for columns in (1, 5_000_000, 2, 20_000_000):
            outputs = call(there, x=np.full((2, 3), columns, np.float32))
            assert outputs["output"].shape == (2, columns)
            assert (outputs["output"] == 7).all()
        big = np.zeros((3, 4_000_000), np.float32)
        big[:, 0] = 1
        assert call(there, x=big)["output"].shape == (3, 1)


def test_a_model_may_write_into_what_it_is_given():
    """Its callers' arrays stay as they are, and what it returns out of them is copied in time."""
    x = rows(1, 2, 3)
    with backend(models.Writing) as there:
        first = call(there, x=x)["output"]
        call(there, x=rows(9, 9, 9))
    assert first[:, 0].tolist() == [6, 4, 2]
    assert x[:, 0].tolist() == [1, 2, 3]


def test_what_a_model_keeps_stays_as_it_is():
    """The next call's arrays go elsewhere."""
    with backend(models.Keeping) as there:
        found = [call(there, x=rows(i, i))["output"][0, 0] for i in range(1, 6)]
    assert found == [1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        (1, RowError, "refused"),
        (2, MemoryError, "too large"),
        (3, ToldError, "^ValueError: odd"),
        (4, ModelContractError, "1 rows|0 rows|has"),
        (5, SystemExit, "3"),
        (6, ModelContractError, "must be bytes or str"),
    ],
)
def test_errors_arrive_as_what_they_are(kind, error, says):
    """And the next call is answered."""
    with backend(models.Erring) as there:
        with pytest.raises(error, match=says):
            call(there, x=rows(kind))
        assert call(there, x=rows(0))["output"].tolist() == [[0]]


def test_what_cannot_travel_is_the_requests_fault():
    """Objects that are no text."""
    with backend(models.Echo) as there:
        with pytest.raises(ModelInputError, match="must be bytes or str"):
            call(there, x=np.array([1, None], object))
        with pytest.raises(ModelInputError, match="goes to no other process"):
            call(there, x=np.zeros(2, [("a", "f4")]))


def test_a_batch_too_large_is_halved():
    """MemoryError over there is about the size of the batch, as it is here."""
    with serving(models.Small) as engine:
        found = engine.submit(request(rows(*range(7)))).result(WAIT_S)
    assert found["output"][:, 0].tolist() == list(range(7))


def test_times_add_up():
    """None is negative, and what the model took is told."""
    with backend(models.Echo) as there:
        called = there.call(({"x": rows(1)},), 1, "r", current_call(), fresh=False)
    assert min(called.input_s, called.infer_s, called.output_s) > 0
    assert called.input_s + called.infer_s + called.output_s < WAIT_S


def test_the_models_log_is_ours(caplog):
    """With its level and name."""
    with backend(models.Talking) as there:
        call(there, x=rows(1, 2))
    (record,) = [r for r in caplog.records if r.name == "model.talking"]
    assert (record.levelname, record.getMessage()) == ("WARNING", "saw 2 rows")


def test_memory_is_used_again():
    """Of a model that keeps nothing, also where it returns what it was given."""
    with backend(models.Echo) as there:
        call(there, x=rows(1))
        arena, returned = there._link.arena.memory, there._link.returned
        for _ in range(5):
            call(there, x=rows(1, 2))
        assert there._link.arena.memory is arena
        assert there._link.returned is returned


# Loading


def test_a_partial_tells_its_arguments():
    """Plain values, in the recipe."""
    with backend(functools.partial(models.make_identity, rows_max=5)) as there:
        assert there.rows_max == there.metadata.max_batch_rows == 5
        assert [s.name for s in there.inputs.specs] == ["x"]


@pytest.mark.parametrize(("how", "says"), [("raises", "OSError: no weights"), ("dies", "SIGKILL")])
def test_what_keeps_it_from_loading_is_told(how, says):
    """Also when the process dies of it; nothing is left."""
    make = functools.partial(models.Unloadable, how=how)
    with pytest.raises(ModelLoadError, match=says), serving(make):
        pass


def test_a_model_of_a_file_travels_as_its_path(tmp_path):
    """Its class has no name that can be imported, the file has."""
    path = tmp_path / "doubles.py"
    path.write_text(
        "from headrace import Model\nclass Doubles(Model):\n    def predict(self, x):\n        return 2 * x\n"
    )
    with serving(model_factory(str(path)).make) as engine:
        assert engine.submit(request(rows(3))).result(WAIT_S)["output"].tolist() == [[6]]


def test_a_model_says_itself_where_it_runs():
    """Where nobody else does."""
    engine = Engine(models.Apart, name="m", serving=ServeSettings())
    engine.start()
    try:
        assert engine.submit(request()).result(WAIT_S)["output"][0, 0] == pids(engine)[0]
    finally:
        engine.stop()


def test_a_maker_of_no_model_is_told():
    with pytest.raises(ModelLoadError, match="returned a NoneType"), backend(models.make_nothing):
        pass


def test_what_has_no_name_cannot_run_apart():
    """Before any process is started."""
    with pytest.raises(ConfigError, match="made inside a function"), serving(lambda: models.make_identity(1)):
        pass


def test_it_keeps_the_promises_of_a_predictor():
    """The suite that any predictor goes through."""
    check_predictor(
        lambda: Engine(models.Identity, name="m", serving=ServeSettings(isolation="process")),
        request(rows(1, 2, 3), id="r"),
    )


# Death


def test_a_process_that_dies_in_a_call_is_told_and_started_again():
    """By its signal; the caller of `restart` gets a new one."""
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


def test_a_request_that_kills_fails_alone():
    """It is asked twice; those that shared its call are answered."""

    async def ask(engine):
        asked = [engine.ask(request(rows(v))) for v in (1, models.POISON, 2, 3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(models.Pid, max_batch_delay_ms=50) as engine:
        answers = asyncio.run(ask(engine))
        statistics = engine.model_statistics()
    assert isinstance(answers[1], InstanceLostError)
    assert [type(a).__name__ for a in answers].count("InferResponse") == 3
    assert statistics.restarts == 2


def test_a_death_while_idle_is_noticed_and_mended():
    """Readiness says so before any request finds out, and no request pays for it."""
    with serving(models.Pid) as engine:
        (pid,) = pids(engine)
        assert engine.alive
        os.kill(pid, signal.SIGKILL)
        until_here(lambda: engine.alive and pids(engine)[0] not in (None, pid))
        assert engine.submit(request()).result(WAIT_S)["output"][0, 0] == pids(engine)[0]
        assert engine.model_statistics().restarts == 1


def test_every_request_has_an_end_while_processes_are_killed():
    """Answered, or told that its instance was lost; two processes, one killed again and again."""

    async def main(engine):
        async def one(i):
            with suppress(InstanceLostError):
                response = await engine.ask(request(rows(i, i + 1), id=str(i)))
                assert response.id == str(i)
                assert len(response["output"]) == 2
                return True
            return False

        async def kill():
            for slot in (0, 1, 0):
                before = pids(engine)[slot]
                os.kill(before, signal.SIGKILL)
                # In this order: one that lives may die, and be gone, before its number is looked at.
                await until(lambda: pids(engine)[slot] not in (None, before) and engine.alive)  # noqa: B023 - awaited here

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


def test_an_instance_that_cannot_be_started_again_is_given_up(tmp_path):
    """After so many tries; who waits hears why, and so does who comes later."""
    make = functools.partial(models.LoadsOnce, folder=str(tmp_path))
    with serving(make) as engine:
        with pytest.raises(InstanceLostError, match="weights are gone"):
            engine.submit(request(rows(models.POISON))).result(WAIT_S)
        assert not engine.alive
        with pytest.raises(InstanceLostError, match="could not be started again: ModelLoadError"):
            engine.submit(request()).result(WAIT_S)


def test_a_stop_does_not_wait_for_an_instance_that_is_not_coming_back(tmp_path):
    """It is between two tries, and nothing waits for it."""
    make = functools.partial(models.LoadsOnce, folder=str(tmp_path))
    with serving(make) as engine:
        os.kill(pids(engine)[0], signal.SIGKILL)
        until_here(lambda: not engine.alive)
        engine.stop()


def test_a_call_that_hangs_is_a_death():
    """Its batch-mates are answered, it is told after how long."""

    async def ask(engine):
        asked = [engine.ask(request(rows(v))) for v in (1, models.POISON, 2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(models.Hanging, call_timeout_s=0.5) as engine:
        answers = asyncio.run(ask(engine))
    assert isinstance(answers[1], InstanceLostError)
    assert "call_timeout_s (0.5 s)" in str(answers[1])
    assert [a["output"][0, 0] for a in (answers[0], answers[2])] == [1, 2]


# Cancellation


@pytest.mark.parametrize("make", [models.Waiting, models.WaitingAsync])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_model_learns_that_nobody_waits(tmp_path, make, how):
    """By asking, or by being cancelled where it is asynchronous; the next request is answered."""

    async def main(engine):
        deadline = engine._clock.now() + 0.5 if how == "deadline" else None
        asking = asyncio.create_task(engine.ask(request(rows(1), deadline=deadline)))
        await until((tmp_path / "began").exists)
        if how == "cancel":
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, DeadlineError)):
            await asking
        await until((tmp_path / "cancelled").exists)
        return await engine.ask(request(rows(0)))

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


async def several(*asked):
    for one in asked:
        yield one


@pytest.mark.parametrize("make", [models.Counting, models.CountingPlain])
def test_streams_answer_in_order_many_at_once(make):
    """More items than are ever on the way, of one request and of many, beside calls of predict."""

    async def main(engine):
        streams = [collected(engine.stream(counted(1000, id=str(i)))) for i in range(8)]
        more = collected(engine.stream(counted(3), several(counted(2), counted(4))))
        asks = [engine.ask(request(rows(i))) for i in range(8)]
        return await asyncio.gather(*streams, more, *asks)

    with serving(make) as engine:
        found = asyncio.run(main(engine))
    assert found[:8] == [list(range(1000))] * 8
    assert found[8] == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert [r["output"][0, 0] for r in found[9:]] == list(range(8))


def test_items_of_a_stream_are_what_the_model_yielded():
    """Text as text, ids, names."""

    async def main(engine):
        stream = engine.stream(counted(2, text="ü", id="s"))
        items = [item async for item in stream]
        await stream.aclose()
        return items

    with serving(models.Counting) as engine:
        items = asyncio.run(main(engine))
    assert [i["text"][0] for i in items] == ["täxt", "ü"]
    assert [(i.id, i.model_name) for i in items] == [("s", "m")] * 2


@pytest.mark.parametrize(
    ("n", "error", "says"),
    [
        (-1, InstanceLostError, "SIGKILL"),
        (-2, PredictError, "ValueError: odd"),
        (-4, ModelContractError, "bytes or str"),
    ],
)
def test_a_stream_that_fails_says_why_after_its_items(n, error, says):
    """Also when its process dies; another stream is opened afterwards."""

    async def main(engine):
        got = []

        async def then():
            await until(lambda: len(got) == 3)
            yield counted(n)

        async def take(stream):
            async for item in stream:
                got.append(int(item["i"][0]))

        with pytest.raises(error, match=says):
            await take(engine.stream(counted(3), then()))
        assert got == [0, 1, 2]
        await until(lambda: engine.alive)
        return await collected(engine.stream(counted(2)))

    with serving(models.Counting) as engine:
        assert asyncio.run(main(engine)) == [0, 1]


def test_who_leaves_a_stream_ends_it():
    """Before its first item and amid more than are ever on the way; the instance has no stream left."""

    async def main(engine):
        for n in (-3, 100_000):
            stream = engine.stream(counted(n))
            if n > 0:
                assert await anext(stream)
            await stream.aclose()
            link = engine._life.slots[0].backend._link
            await until(lambda link=link: not link._open)
        return await collected(engine.stream(counted(1)))

    with serving(models.Counting) as engine:
        assert asyncio.run(main(engine)) == [0]


def test_a_stream_whose_consumer_is_slow_is_held_up():
    """So many items are on the way, and no more are made."""

    async def main(engine):
        stream = engine.stream(counted(10_000))
        link = engine._life.slots[0].backend._link
        first = await anext(stream)
        ((call, _, _),) = link._open.values()
        # Items that were sent on after this one have come when an answer to a later call has.
        for _ in range(20):
            await engine.ask(request(rows(1)))
            await asyncio.sleep(0.01)
        held = len(call.answers._items)
        rest = [item async for item in stream]
        return held, 1 + len(rest), first

    with serving(models.Counting) as engine:
        held, count, _ = asyncio.run(main(engine))
    assert 0 < held <= 3 * 256
    assert count == 10_000


def test_stopping_ends_open_streams():
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


# The end


def test_closing_closes_the_model(tmp_path):
    with serving(functools.partial(models.Closing, folder=str(tmp_path))):
        pass
    assert (tmp_path / "closed").exists()


def test_a_model_that_does_not_close_is_ended(tmp_path, monkeypatch):
    """Within its time, with a word in the log."""
    monkeypatch.setattr("headrace.engine.link.CLOSE_S", 0.2)
    with backend(functools.partial(models.Closing, folder=str(tmp_path), hangs=True)):
        pass
    assert not (tmp_path / "closed").exists()


def test_a_model_of_whole_requests_is_refused():
    """Requests are not sent to processes, arrays are."""
    engine = Engine(models.Whole, name="m", serving=ServeSettings(isolation="process"))
    with pytest.raises(ConfigError, match="set isolation to thread"):
        engine.start()
