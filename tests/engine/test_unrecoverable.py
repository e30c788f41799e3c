"""Errors after which a process cannot call its model: the process is replaced, and requests go on."""

import asyncio
import functools
import logging
import os
import threading
from concurrent.futures import wait
from contextlib import aclosing, contextmanager

import pytest

from engine import device_models as models
from engine.sequences.models import end, more, start, submit_result
from engine.support import WAIT_S, InstantClock, no_leaks, request, rows, serving, values
from headrace.core import HandleRequest
from headrace.core.errors import (
    ConfigError,
    InstanceLostError,
    ModelLoadError,
    PredictError,
    SequenceLostError,
)
from headrace.core.predictor import RequestTimes
from headrace.engine import Engine
from headrace.engine.local_backend import LocalBackend
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from servers.polling import wait_until

pytestmark = pytest.mark.timeout(120)
SLOW = pytest.mark.slow
PLACES = pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=SLOW)])
STREAMING = pytest.mark.parametrize(
    "make", [models.Embedding, pytest.param(models.PlainEmbedding, marks=SLOW)]
)


@pytest.fixture(autouse=True)
def _own_context(monkeypatch):
    """Repair the device of this process after each test, and assert that nothing is left."""
    monkeypatch.setattr(models.Context, "broken", False)
    monkeypatch.setattr(models.Context, "calls_when_broken", 0)
    with no_leaks():
        yield


@contextmanager
def on_device(make=models.Embedding, isolation="thread", **settings):
    """Yield an engine whose instances restart without delay."""
    serve = ServeSettings(isolation=isolation, **settings)
    engine = Engine(make, name="m", serving=serve, in_flight_max=64, clock=InstantClock())
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


def names_device(error):
    """Return True for the error of a request whose instance was lost by a broken device."""
    return (
        isinstance(error, InstanceLostError)
        and error.cause == "unrecoverable"
        and "AcceleratorError: CUDA error: device-side assert triggered" in str(error)
    )


def in_processes(engine):
    return [isinstance(slot.backend, ProcessBackend) for slot in engine._session.slots]


def works(engine, value=5.0):
    """Return True once the engine is ready again, and predicts."""
    wait_until(lambda: engine.alive, "a restart")
    return values(engine.submit(request(rows(value))).result(WAIT_S)) == [value]


# Rows


@pytest.mark.parametrize(
    ("isolation", "instances"),
    [("thread", 1), ("process", 1), ("thread", 3), pytest.param("process", 2, marks=SLOW)],
)
def test_guilty_request_fails_alone(isolation, instances):
    """It is retried once, as after a crash. The broken device is not called again."""
    with on_device(isolation=isolation, instances=instances) as engine:
        sent = [engine.submit(request(rows(v))) for v in (0, 1, 2, models.POISON, 3, 4, 5)]
        wait(sent, WAIT_S)
        guilty = sent.pop(3)
        assert [values(each.result(0)) for each in sent] == [[float(v)] for v in range(6)]
        assert names_device(guilty.exception(0))
        assert works(engine)
        assert in_processes(engine) == [True] * instances
        assert engine.last_death.cause == "unrecoverable"
        assert models.Context.calls_when_broken == 0
        if instances == 1:
            assert engine.model_statistics().restarts == 2


@PLACES
def test_event_is_logged_once(isolation, caplog):
    with caplog.at_level(logging.WARNING, "headrace.engine"), on_device(isolation=isolation) as engine:
        assert names_device(engine.submit(request(rows(models.POISON))).exception(WAIT_S))
        assert works(engine)
    said = [r.getMessage().partition("\n")[0] for r in caplog.records]
    happened = (
        "the model cannot be called any more in this process: "
        "AcceleratorError: CUDA error: device-side assert triggered"
    )
    moved = ["an instance in a thread was loaded again in a process of its own"] * (isolation == "thread")
    restarted = "an instance died and is restarted"
    assert said == [happened, restarted, *moved, happened, restarted]


def test_instance_is_not_alive_while_it_is_loaded_again(tmp_path):
    make = functools.partial(models.Embedding, folder=str(tmp_path))
    with on_device(make) as engine:
        gate = HeldLoads(tmp_path)
        guilty = engine.submit(request(rows(models.POISON)))
        wait_until(lambda: gate.loads() == 2, "the load in a process")
        waiting = engine.submit(request(rows(3)))
        assert (engine.running, engine.alive) == (True, False)
        gate.release()
        assert names_device(guilty.exception(WAIT_S))
        assert values(waiting.result(WAIT_S)) == [3.0]
        assert works(engine)


class HeldLoads:
    """Holds the loads of `Embedding` in other processes, until released."""

    def __init__(self, folder):
        self._folder = folder
        os.mkfifo(folder / "gate")

    def loads(self):
        return len((self._folder / "loads").read_text().splitlines())

    def release(self):
        with (self._folder / "gate").open("wb"):
            (self._folder / "gate").unlink()


# Inline


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=SLOW)])
def test_inline_model_moves_to_process(short):
    with on_device(models.Quick, "inline") as engine:
        assert engine._session.inline is not None
        with pytest.raises(InstanceLostError, match="device-side assert triggered") as caught:
            engine.infer_inline(request(rows(models.POISON)), None if short else RequestTimes())
        assert names_device(caught.value)
        # Also before the instance is loaded again.
        assert values(asyncio.run(engine.infer(request(rows(2))))) == [2.0]
        assert values(engine.submit(request(rows(3))).result(WAIT_S)) == [3.0]
        assert engine.alive
        assert in_processes(engine) == [True]
        statistics = engine.model_statistics()
        assert (statistics.restarts, statistics.fail.count, statistics.in_flight) == (1, 1, 0)
        assert models.Context.calls_when_broken == 0


def test_submit_and_handle_of_lost_inline_model_are_queued():
    async def body(engine):
        return (await engine.handle(HandleRequest({"body": b"4"})))[0].body

    with on_device(models.Embedding, "inline") as engine:
        assert names_device(engine.submit(request(rows(models.POISON))).exception(0))
        assert asyncio.run(body(engine)) == b"4.0"
        assert works(engine)
        assert models.Context.calls_when_broken == 0


def test_request_that_waits_for_inline_call_is_queued(monkeypatch):
    """It does not see the broken device, nor an error."""
    calling, go_on = threading.Event(), threading.Event()
    real = models.run_kernel

    def held(x):
        calling.set()
        assert go_on.wait(WAIT_S)
        return real(x)

    monkeypatch.setattr(models, "run_kernel", held)
    with on_device(models.Quick, "inline", warm_up=False) as engine:
        errors, futures = [], []

        def ask():
            try:
                engine.infer_inline(request(rows(models.POISON)))
            except InstanceLostError as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert calling.wait(WAIT_S)
        behind = threading.Thread(target=lambda: futures.append(engine.submit(request(rows(7)))))
        behind.start()
        go_on.set()
        asking.join(WAIT_S)
        behind.join(WAIT_S)
        assert names_device(errors[0])
        assert values(futures[0].result(WAIT_S)) == [7.0]
        assert models.Context.calls_when_broken == 0


# Steps, opaque requests and streams


@PLACES
def test_sequences_of_lost_process_are_lost(isolation):
    with on_device(models.Decoder, isolation) as engine:
        assert submit_result(engine, start("a", 1)) == [1.0]
        assert names_device(submit_result(engine, start("b", models.POISON)))
        assert isinstance(submit_result(engine, more("a", 2)), SequenceLostError)
        assert submit_result(engine, start("a", 4)) == [4.0]
        assert in_processes(engine) == [True]
        assert models.Context.calls_when_broken == 0


@PLACES
def test_checkpoints_resume_sequences_in_new_process(isolation):
    with on_device(models.Decoder, isolation, checkpoints="memory:") as engine:
        assert submit_result(engine, start("a", 1)) == [1.0]
        assert names_device(submit_result(engine, start("b", models.POISON)))
        assert submit_result(engine, more("a", 2)) == [3.0]


@PLACES
def test_error_in_sequence_ended_counts(isolation):
    with on_device(models.Freeing, isolation) as engine:
        assert submit_result(engine, start("a", 1)) == [1.0]
        assert submit_result(engine, end("a", 1)) == [2.0]
        wait_until(lambda: engine.model_statistics().restarts == 1, "a restart")
        assert submit_result(engine, start("b", 3)) == [3.0]


@PLACES
def test_opaque_request_fails_alone(isolation):
    async def bodies(engine):
        asked = [engine.handle(HandleRequest({"body": b})) for b in (b"1", b"-1", b"2")]
        return await asyncio.gather(*asked, return_exceptions=True)

    with on_device(isolation=isolation) as engine:
        first, guilty, last = asyncio.run(bodies(engine))
        assert (first[0].body, last[0].body) == (b"1.0", b"2.0")
        assert names_device(guilty)
        assert models.Context.calls_when_broken == 0


async def collected(stream):
    """Return the error of a stream."""
    async with asyncio.timeout(WAIT_S), aclosing(stream):
        try:
            async for _ in stream:
                pass
        except InstanceLostError as error:
            return error
    return None


@PLACES
@STREAMING
def test_stream_replaces_process(make, isolation):
    """The other streams of the process end as well; later ones find the instance again."""

    async def main(engine):
        open_for_long = asyncio.Event()

        async def endless():
            await open_for_long.wait()
            yield request(rows(0))

        other = engine.stream(request(rows(1)), endless())
        await anext(other)
        error = await collected(engine.stream(request(rows(models.POISON))))
        assert names_device(error)
        assert not engine.alive or in_processes(engine) == [True]
        assert names_device(await collected(other))
        await asyncio.to_thread(wait_until, lambda: engine.alive)
        assert await collected(engine.stream(request(rows(3)))) is None

    with on_device(make, isolation) as engine:
        asyncio.run(main(engine))
        assert works(engine)
        assert in_processes(engine) == [True]
        assert engine.model_statistics().restarts == 1


@pytest.mark.parametrize(
    "isolation", ["thread", pytest.param("inline", marks=SLOW), pytest.param("process", marks=SLOW)]
)
def test_body_of_chunks_replaces_process(isolation):
    async def main(engine):
        _, chunks = await engine.handle(HandleRequest({"body": b"100"}))
        return await collected(chunks)

    with on_device(models.PlainEmbedding, isolation) as engine:
        assert names_device(asyncio.run(main(engine)))
        assert works(engine)
        assert in_processes(engine) == [True]


# The model's own decision


@PLACES
def test_model_names_its_own_errors(isolation):
    with on_device(models.OnBoard, isolation) as engine:
        error = engine.submit(request(rows(models.POISON))).exception(WAIT_S)
        assert isinstance(error, InstanceLostError)
        assert "BoardGoneError: no answer" in str(error)
        assert works(engine)


@PLACES
@pytest.mark.parametrize(("make", "says"), [(models.Careless, "MemoryError"), (models.Faulty, "odd")])
def test_other_errors_leave_instance_alive(make, says, isolation):
    """Lack of memory never counts, nor does a failing `is_unrecoverable`."""
    with on_device(make, isolation) as engine:
        error = engine.submit(request(rows(models.POISON)), strict=True).exception(WAIT_S)
        assert isinstance(error, PredictError)
        assert says in str(error)
        assert works(engine)
        assert engine.model_statistics().restarts == 0


# Loading again


@pytest.mark.parametrize("isolation", ["thread", "inline"])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: models.Quick(), "; then restart the server, with isolation process"),  # noqa: PLW0108
        (models.Adapter, "takes whole requests (predict_request); restart the server"),
    ],
)
def test_model_that_no_process_can_load_is_given_up(make, says, isolation):
    definition = ModelDefinition("m", "1", make, settings=ServeSettings(isolation=isolation))
    repository = ModelRepository([definition])
    repository.start()
    try:
        engine = repository.engine("m")
        with pytest.raises(InstanceLostError) as caught:
            asyncio.run(engine.infer(request(rows(models.POISON))))
        wait_until(lambda: engine.lost_reason is not None, "the end of the last instance")
        with pytest.raises(InstanceLostError) as later:
            asyncio.run(engine.infer(request(rows(1))))
        for text in ("device-side assert triggered", "cannot run in a process of its own", says):
            assert text in str(later.value)
        assert "device-side assert triggered" in str(caught.value)
        assert "isolation to thread" not in str(later.value)
        assert not repository.ready()
        (entry,) = repository.index()
        assert (entry.state, entry.reason) == ("UNAVAILABLE", engine.lost_reason)
        assert models.Context.calls_when_broken == 0
    finally:
        repository.stop(drain=False)


@SLOW
def test_failing_restarts_give_up_instance(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    make = functools.partial(models.Embedding, folder=str(folder))
    with on_device(make) as engine:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        error = engine.submit(request(rows(models.POISON))).exception(WAIT_S)
        assert isinstance(error, InstanceLostError)
        assert "could not be restarted: ModelLoadError" in str(error)


def test_engine_on_broken_device_loads_in_process():
    """After a stop; also another engine, whose load fails in a thread."""
    with on_device() as engine:
        assert names_device(engine.submit(request(rows(models.POISON))).exception(WAIT_S))
        engine.stop()
        engine.start()
        assert works(engine)
        assert in_processes(engine) == [True]
    with on_device() as other:
        assert works(other)
        assert in_processes(other) == [True]


def test_device_that_breaks_in_warm_up_fails_load():
    """In a thread and then in a process, instead of one restart after another."""
    with pytest.raises(ModelLoadError, match="device-side assert triggered"), on_device(models.Unwarmable):
        pass


def test_offline_engine_goes_on_in_process():
    engine = Engine(models.Embedding, name="m", clock=InstantClock())
    engine.start()
    try:
        assert names_device(engine.submit(request(rows(models.POISON))).exception(WAIT_S))
        assert works(engine)
    finally:
        engine.stop()


def test_closing_lost_backend_twice_is_harmless():
    backend = LocalBackend(models.Embedding, "m")
    assert backend.lost_error(models.AcceleratorError(models.ASSERTION)) is not None
    assert backend.lost
    backend.close()
    backend.close()


def test_first_load_in_process_still_advises_thread():
    with (
        pytest.raises(ConfigError, match="or set isolation to thread"),
        serving(lambda: models.Quick(), isolation="process"),  # noqa: PLW0108 - the test needs a lambda
    ):
        pass
