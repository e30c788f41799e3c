"""The number of instances of a running engine: added and removed while requests go on."""

import asyncio
import gc
import threading
from weakref import WeakSet

import numpy as np
import pytest

from cases import for_each
from engine.handle_models import Twice
from engine.process_models import Identity
from engine.sequences.models import Adding, end, more, start, submit_result
from engine.support import WAIT_S, in_thread, pending_request, request, rows, serving, values, wait_until
from headrace.core import HandleRequest, Model, TensorSpec
from headrace.core.errors import ConfigError, ModelLoadError, StoppedError
from headrace.core.model import current_call
from headrace.engine import Engine
from headrace.engine.backend import CallInputs
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import StreamCall
from headrace.testing import ManualClock

ISOLATIONS = ("thread", pytest.param("process", marks=pytest.mark.slow))


class Gated(Model):
    """Instances that count themselves, and wait for a gate in each call."""

    max_batch_rows = 1

    def __init__(self, gates):
        self._gates = gates

    def load(self):
        self._gates.load()

    def predict(self, x):
        self._gates.calling.release()
        assert self._gates.gate.wait(WAIT_S)
        return x * np.float32(2)

    def close(self):
        self._gates.closed.release()


class Gates:
    """What the instances of `Gated` share."""

    def __init__(self):
        self.gate = threading.Event()
        self.calling, self.closed = threading.Semaphore(0), threading.Semaphore(0)
        self.loads = 0
        self.fails = False
        self.loading = self.may_load = None

    def load(self):
        """Load one instance; wait before that, or fail, if the test wants it."""
        self.loads += 1
        if self.loading is not None:
            self.loading.set()
            assert self.may_load.wait(WAIT_S)
        if self.fails:
            raise ValueError("no memory left")

    def wait_for_calls(self, count):
        """Wait until this many further calls have begun."""
        for _ in range(count):
            assert self.calling.acquire(timeout=WAIT_S)


def gated(gates, **settings):
    """Return a context with a started engine of `Gated`, without its warm-up call."""
    return serving(lambda: Gated(gates), warm_up=False, **settings)


def wait_for_end(engine):
    """Wait until no removed instance works any longer."""
    session = engine._session
    with session.changed:
        assert session.changed.wait_for(lambda: engine.instance_counts()[2] == 0, WAIT_S)


def counts(engine):
    return engine.instance_counts()


def results(futures):
    return [values(future.result(WAIT_S)) for future in futures]


def test_added_instances_call_at_once():
    gates = Gates()
    with gated(gates) as engine:
        assert counts(engine) == (1, 1, 0)
        engine.set_instances(3)
        assert counts(engine) == (3, 3, 0)
        sent = [engine.submit(request(rows(value))) for value in (1, 2, 3)]
        gates.wait_for_calls(3)
        gates.gate.set()
        assert results(sent) == [[2.0], [4.0], [6.0]]
        assert engine.model_statistics().instances == engine.statistics().instances == 3


def test_removed_instance_ends_its_call_and_closes_its_model():
    gates = Gates()
    with gated(gates, instances=3) as engine:
        sent = [engine.submit(request(rows(value))) for value in (1, 2, 3)]
        gates.wait_for_calls(3)
        engine.set_instances(1)
        assert counts(engine) == (1, 1, 2)
        gates.gate.set()
        assert results(sent) == [[2.0], [4.0], [6.0]]
        for _ in range(2):
            assert gates.closed.acquire(timeout=WAIT_S)
        wait_for_end(engine)
        assert counts(engine) == (1, 1, 0)
        assert not gates.closed.acquire(blocking=False)
        assert [slot.backend is None for slot in engine._session.slots] == [False, True, True]
        figures = engine.model_statistics()
        assert (figures.success.count, figures.rows, figures.instances) == (3, 3, 1)
        assert values(engine.submit(request(rows(4))).result(WAIT_S)) == [8.0]
        assert engine.alive


def test_calls_in_progress_count_as_busy_time():
    gates = Gates()
    clock = ManualClock()
    with gated(gates, instances=2, clock=clock) as engine:
        sent = [engine.submit(request(rows(value))) for value in (1, 2)]
        gates.wait_for_calls(2)
        clock.advance(3.0)
        assert engine.model_statistics().busy_s == 6.0
        gates.gate.set()
        results(sent)
        assert engine.model_statistics().busy_s == 6.0


def test_waiting_requests_of_removed_instances_are_done_by_others():
    gates = Gates()
    with gated(gates, instances=2, isolation="thread") as engine:
        sent = [engine.submit(request(rows(value))) for value in range(5)]
        gates.wait_for_calls(2)
        engine.set_instances(1)
        gates.gate.set()
        assert results(sent) == [[2.0 * value] for value in range(5)]


def test_idle_instance_ends_at_once():
    gates = Gates()
    with gated(gates, instances=2) as engine:
        engine.set_instances(1)
        assert gates.closed.acquire(timeout=WAIT_S)


def test_draining_instance_serves_again_without_a_load():
    gates = Gates()
    with gated(gates, instances=2) as engine:
        sent = [engine.submit(request(rows(value))) for value in (1, 2)]
        gates.wait_for_calls(2)
        engine.set_instances(1)
        engine.set_instances(2)
        assert (counts(engine), gates.loads) == ((2, 2, 0), 2)
        gates.gate.set()
        assert results(sent) == [[2.0], [4.0]]
        gates.gate.clear()
        sent = [engine.submit(request(rows(value))) for value in (3, 4)]
        gates.wait_for_calls(2)
        gates.gate.set()
        assert results(sent) == [[6.0], [8.0]]


def test_places_of_ended_instances_are_used_again():
    gates = Gates()
    gates.gate.set()
    with gated(gates) as engine:
        for _ in range(5):
            engine.set_instances(3)
            engine.set_instances(1)
            wait_for_end(engine)
        assert (gates.loads, len(engine._session.slots)) == (11, 3)


def test_failed_load_keeps_the_number():
    gates = Gates()
    gates.gate.set()
    with gated(gates, instances=2) as engine:
        gates.fails = True
        with pytest.raises(ModelLoadError, match="no memory left"):
            engine.set_instances(4)
        assert counts(engine)[:2] == (2, 2)
        assert engine.alive
        assert values(engine.submit(request(rows(1))).result(WAIT_S)) == [2.0]
        gates.fails = False
        engine.set_instances(3)
        assert counts(engine) == (3, 3, 0)


def test_failed_load_removes_kept_instances_again():
    gates = Gates()
    with gated(gates, instances=2) as engine:
        sent = [engine.submit(request(rows(value))) for value in (1, 2)]
        gates.wait_for_calls(2)
        engine.set_instances(1)
        gates.fails = True
        with pytest.raises(ModelLoadError):
            engine.set_instances(3)
        assert counts(engine) == (1, 1, 1)
        gates.gate.set()
        assert results(sent) == [[2.0], [4.0]]


def test_loading_instances_are_counted_and_do_not_disturb():
    gates = Gates()
    gates.gate.set()
    with gated(gates) as engine:
        gates.loading, gates.may_load = threading.Event(), threading.Event()
        resizing = threading.Thread(target=engine.set_instances, args=(2,))
        resizing.start()
        assert gates.loading.wait(WAIT_S)
        assert counts(engine) == (2, 1, 0)
        assert engine.alive
        assert values(engine.submit(request(rows(1))).result(WAIT_S)) == [2.0]
        gates.may_load.set()
        resizing.join(WAIT_S)
        assert counts(engine) == (2, 2, 0)


def test_stop_waits_for_a_loading_instance():
    gates = Gates()
    with gated(gates) as engine:
        gates.loading, gates.may_load = threading.Event(), threading.Event()
        resizing = threading.Thread(target=engine.set_instances, args=(2,))
        resizing.start()
        assert gates.loading.wait(WAIT_S)
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        gates.may_load.set()
        for thread in (resizing, stopping):
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert all(not slot.thread.is_alive() for slot in engine._session.slots)
    assert gates.closed.acquire(timeout=WAIT_S)
    assert gates.closed.acquire(timeout=WAIT_S)


def test_stopped_engine_adds_no_instance_and_starts_with_its_own_number():
    gates = Gates()
    engine = Engine(lambda: Gated(gates), name="m", serving=ServeSettings(isolation="thread", warm_up=False))
    with pytest.raises(StoppedError):
        engine.set_instances(2)
    engine.start()
    engine.set_instances(2)
    engine.stop()
    engine.start()
    assert counts(engine) == (1, 1, 0)
    engine.stop()


@for_each("count", [0, 1001])
def test_impossible_numbers_are_refused(count):
    with gated(Gates()) as engine, pytest.raises(ConfigError, match="1 to 1000"):
        engine.set_instances(count)


def test_thread_that_cannot_be_started_is_an_error(monkeypatch):
    gates = Gates()
    with gated(gates) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _raise)
            with pytest.raises(RuntimeError, match="can't start"):
                engine.set_instances(2)
        assert counts(engine) == (1, 1, 0)
        engine.set_instances(2)
        assert counts(engine) == (2, 2, 0)


def _raise(_):
    raise RuntimeError("can't start new thread")


# Inline models


class Fast(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    max_batch_rows = 4

    def predict(self, x):
        return x + np.float32(1)


def test_model_that_was_called_inline_gets_threads():
    with serving(Fast, isolation="auto") as engine:
        inline = engine._session.inline
        assert inline is not None
        assert values(engine.infer_inline(request())) == [2.0]
        engine.set_instances(2)
        assert engine._session.inline is None
        # A client may have looked it up before.
        assert inline.call_fast(request()) is None
        assert inline.call(pending_request(request())) is None
        assert engine.infer_inline(request()) is None
        assert values(asyncio.run(engine.infer(request()))) == [2.0]
        engine.set_instances(1)
        assert values(asyncio.run(engine.infer(request()))) == [2.0]


def test_model_that_must_be_inline_has_one_instance():
    with serving(Fast, isolation="inline") as engine:
        for count, most in ((2, 1), (1, 4)):
            with pytest.raises(ConfigError, match="only one instance can run inline"):
                engine.set_instances(count, most)
        assert values(engine.infer_inline(request())) == [2.0]


def test_model_that_may_get_several_instances_is_not_called_inline():
    with serving(Fast, isolation="auto", instances_max=2) as engine:
        assert engine._session.inline is None
    with serving(Fast, isolation="auto") as engine:
        assert engine._session.inline is not None
        engine.set_instances(1, most=2)
        assert engine._session.inline is None
        assert values(asyncio.run(engine.infer(request()))) == [2.0]


# Under load


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_no_request_fails_while_the_number_changes(isolation):
    ended = threading.Event()
    sent = []

    async def client(engine):
        while not ended.is_set():
            value = float(len(sent))
            sent.append(value)
            assert values(await engine.infer(request(rows(value)))) == [value]

    async def run(engine):
        clients = [asyncio.create_task(client(engine)) for _ in range(8)]
        for count in (3, 1, 4, 2, 4, 1):
            before = len(sent)
            await in_thread(engine.set_instances, count)
            await wait_until(lambda before=before: len(sent) > before + 20)
        ended.set()
        await asyncio.gather(*clients)

    with serving(Identity, isolation=isolation, max_batch_rows=4) as engine:
        asyncio.run(run(engine))
        wait_for_end(engine)
        figures = engine.model_statistics()
        assert (figures.success.count, figures.fail.count, figures.in_flight) == (len(sent), 0, 0)
        assert counts(engine) == (1, 1, 0)


# Sequences


def placed(engine):
    """Return the instances of the live sequences by their ids."""
    return {s.id: s.instance for s in engine.sequences()}


def step(engine, sent):
    return submit_result(engine, sent)


def test_sequence_stays_on_a_removed_instance_until_it_ends():
    with serving(Adding, instances=2) as engine:
        assert step(engine, start("a", 1.0)) == [1.0]
        assert step(engine, start("b", 2.0)) == [2.0]
        assert placed(engine) == {"a": 0, "b": 1}
        engine.set_instances(1)
        assert step(engine, start("c", 3.0)) == [3.0]
        assert step(engine, more("b", 4.0)) == [6.0]
        assert placed(engine) == {"a": 0, "b": 1, "c": 0}
        assert counts(engine) == (1, 1, 1)
        assert step(engine, end("b", 1.0)) == [7.0]
        wait_for_end(engine)
        assert step(engine, more("c", 1.0)) == [4.0]
        engine.set_instances(2)
        assert step(engine, start("d", 1.0)) == [1.0]
        assert placed(engine) == {"a": 0, "c": 0, "d": 1}


def test_end_of_a_sequence_is_reported_to_the_removed_instance():
    models = []

    def make():
        models.append(Adding())
        return models[-1]

    with serving(make, instances=2) as engine:
        step(engine, start("a", 1.0))
        step(engine, start("b", 2.0))
        engine.set_instances(1)
        assert engine.cancel_sequence("b")
        wait_for_end(engine)
        assert [e for model in models for e in model.ended] == [("b", "cancelled", 2.0)]


def test_sequence_with_a_checkpoint_moves_at_once():
    with serving(Adding, instances=2, checkpoints="memory:") as engine:
        for id in ("a", "b", "c", "d"):
            step(engine, start(id, 1.0))
        engine.set_instances(1)
        wait_for_end(engine)
        assert placed(engine) == {"a": 0, "b": 0, "c": 0, "d": 0}
        assert [step(engine, more(id, 2.0)) for id in ("a", "b", "c", "d")] == [[3.0]] * 4
        engine.set_instances(3)
        for id in ("e", "f"):
            step(engine, start(id, 1.0))
        assert {placed(engine)["e"], placed(engine)["f"]} == {1, 2}


def test_sequence_in_a_step_moves_after_it():
    model_gate = threading.Event()
    stepping = []

    class Slow(Adding):
        def step(self, states, x):
            if 9.0 in x:
                stepping.append(threading.current_thread().name)
                assert model_gate.wait(WAIT_S)
            return super().step(states, x)

    with serving(Slow, instances=2, checkpoints="memory:") as engine:
        step(engine, start("a", 1.0))
        step(engine, start("b", 1.0))
        sent = engine.submit(more("b", 9.0))
        asyncio.run(wait_until(lambda: stepping))
        engine.set_instances(1)
        assert counts(engine) == (1, 1, 1)
        model_gate.set()
        assert values(sent.result(WAIT_S)) == [10.0]
        wait_for_end(engine)
        assert step(engine, more("b", 1.0)) == [11.0]
        assert placed(engine) == {"a": 0, "b": 0}


# Streams


class Streaming(Model):
    def predict_stream(self, requests):
        for _ in requests:
            yield np.float32([[1.0]])


def test_removed_instance_ends_after_its_streams():
    async def use(engine):
        release = asyncio.Event()

        async def later():
            await release.wait()
            yield request()

        streams = [engine.stream(request(), later()) for _ in range(2)]
        assert [len(slot.streams) for slot in engine._session.slots] == [1, 1]
        await in_thread(engine.set_instances, 1)
        assert counts(engine) == (1, 1, 1)
        third = engine.stream(request())
        assert [len(slot.streams) for slot in engine._session.slots] == [2, 1]
        release.set()
        assert [len([item async for item in stream]) for stream in (*streams, third)] == [2, 2, 1]
        await in_thread(wait_for_end, engine)
        assert counts(engine) == (1, 1, 0)

    with serving(Streaming, instances=2) as engine:
        asyncio.run(use(engine))


def test_stop_ends_streams_of_a_removed_instance():
    async def use(engine):
        async def never():
            await asyncio.Event().wait()
            yield request()

        streams = [engine.stream(request(), never()) for _ in range(2)]
        await in_thread(engine.set_instances, 1)
        await asyncio.to_thread(engine.stop, drain=False)
        for stream in streams:
            await stream.aclose()

    with serving(Streaming, instances=2) as engine:
        asyncio.run(use(engine))
        assert all(not slot.thread.is_alive() for slot in engine._session.slots)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_chunks_come_from_the_removed_instance(isolation):
    """A body may be opened after the instance was removed; one that is dropped holds nothing."""

    async def use(engine):
        session = engine._session
        found = []
        for _ in range(2):
            response, chunks = await engine.handle(HandleRequest({"body": b"chunks"}))
            found.append(chunks)
            assert response.content_type == "text/x"
        first = {slot.number for slot in session.slots if slot.streams}
        await in_thread(engine.set_instances, 1)
        assert [b"".join([c async for c in chunks]) for chunks in found] == [b"c0c1c2"] * 2
        assert first
        await in_thread(wait_for_end, engine)

    with serving(Twice, instances=2, isolation=isolation) as engine:
        asyncio.run(use(engine))


class Watched(WeakSet):
    """A set that reports when its size was read."""

    def __init__(self):
        super().__init__()
        self.read = threading.Event()

    def __len__(self):
        self.read.set()
        return super().__len__()


def test_unopened_chunks_keep_the_removed_instance():
    with serving(Twice, instances=2) as engine:
        slot = engine._session.slots[1]
        backend = slot.backend
        slot.unopened = Watched()
        (made,) = backend.call(
            CallInputs((), 1, requests=(HandleRequest({"body": b"chunks"}),)), current_call()
        ).responses
        slot.unopened.add(made)
        engine.set_instances(1)
        assert slot.unopened.read.wait(WAIT_S)
        assert counts(engine) == (1, 1, 1)
        call = StreamCall(engine._session.clock, deadline=None, id="")
        assert engine._session.reserve_slot(call, 1, made) is slot
        engine._session.release_stream(slot, call)
        del made
        gc.collect()
        wait_for_end(engine)


# Instances that are given up


def give_up(engine, number):
    slot = engine._session.slots[number]
    with engine._session.changed:
        slot.given_up = slot.is_ended = True
        slot.alive = False


def test_instance_that_is_given_up_is_removed_first():
    gates = Gates()
    gates.gate.set()
    with gated(gates, instances=3) as engine:
        give_up(engine, 0)
        assert not engine.alive
        engine.set_instances(2)
        assert [slot.is_member for slot in engine._session.slots] == [False, True, True]
        assert engine.alive
        engine.set_instances(3)
        # The first place describes the model, so it is not used again.
        assert [slot.is_member for slot in engine._session.slots] == [False, True, True, True]
        assert engine.metadata.name == "m"


def test_place_of_an_instance_that_is_given_up_is_not_used_before_its_removal():
    with gated(Gates(), instances=2) as engine:
        give_up(engine, 1)
        engine.set_instances(3)
        assert [slot.given_up for slot in engine._session.slots] == [False, True, False]
        assert counts(engine)[:2] == (3, 2)
