"""Changes of the number of instances that meet loads, deaths, steps, stalled stores and stops."""

import asyncio
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import levels
from engine.handle_models import Twice
from engine.process_models import Identity
from engine.sequences.models import Adding, more, start, submit_result
from engine.sequences.sum_model import FaultyStore, infer_sums, sums
from engine.sequences.sum_model import engine as sums_engine
from engine.sequences.test_stalled_store import stalled
from engine.support import (
    WAIT_S,
    in_thread,
    no_leaks,
    pending_request,
    request,
    rows,
    serving,
    submit_and_wait,
    values,
    wait_until,
)
from headrace.core import HandleRequest, Model
from headrace.core.clock import SystemClock
from headrace.core.errors import InstanceLostError, StoppedError
from headrace.core.model import current_call
from headrace.engine.backend import CallInputs
from headrace.engine.batch_loop import BatchLoop
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.session import EngineSession
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import StreamCall
from headrace.testing import ManualClock
from servers import polling

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _nothing_left():
    with no_leaks():
        yield


def wait_for(engine, holds):
    """Wait until a condition of the session's instances holds."""
    session = engine._session
    with session.changed:
        assert session.changed.wait_for(holds, WAIT_S)


def wait_for_end(engine):
    """Wait until no removed instance works any longer."""
    wait_for(engine, lambda: engine.instance_counts()[2] == 0)


class Resizing:
    """A change of the number of instances in another thread."""

    def __init__(self, engine, count):
        self._done = Future()
        self._thread = threading.Thread(target=self._run, args=(engine, count))
        self._thread.start()

    def _run(self, engine, count):
        try:
            self._done.set_result(engine.set_instances(count))
        except Exception as error:
            self._done.set_exception(error)

    def end(self):
        """Wait for the end; raise the error of the change."""
        self._thread.join(WAIT_S)
        self._done.result(0)


# Loads


@contextmanager
def last_load_waits(engine, number):
    """Let the load of this number wait until the block ends."""
    factory, loads, may_load = engine._backend_factory, [], threading.Event()
    load = factory.load

    def counted():
        loads.append(None)
        if len(loads) == number:
            assert may_load.wait(WAIT_S)
        return load()

    factory.load = counted
    try:
        yield
    finally:
        may_load.set()


def test_loaded_instance_serves_while_others_load():
    with serving(Identity) as engine:
        with last_load_waits(engine, 2):
            resizing = Resizing(engine, 3)
            wait_for(engine, lambda: sum(slot.is_loaded for slot in engine._session.slots) == 2)
            assert engine.instance_counts() == (3, 2, 0)
        resizing.end()
        assert engine.instance_counts() == (3, 3, 0)


def test_added_instance_that_dies_while_others_load_is_restarted():
    with serving(Identity, isolation="process") as engine:
        with last_load_waits(engine, 2):
            resizing = Resizing(engine, 3)
            wait_for(engine, lambda: sum(slot.is_loaded for slot in engine._session.slots) == 2)
            added = next(slot for slot in engine._session.slots[1:] if slot.is_loaded)
            os.kill(added.backend.pid, signal.SIGKILL)
            polling.wait_until(lambda: added.counters.restarts == 1, timeout_s=WAIT_S)
        resizing.end()
        assert engine.alive
        assert engine.instance_counts() == (3, 3, 0)


def test_engine_without_a_living_instance_gets_no_more(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    with serving(Identity) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(BatchLoop, "take", broken)
            engine.submit(request()).result(WAIT_S)
            wait_for(engine, lambda: engine._session.slots[0].is_ended)
        assert engine.lost_reason is not None
        for count in (1, 2):
            with pytest.raises(InstanceLostError):
                engine.set_instances(count)
        assert len(engine._session.slots) == 1


def test_failed_load_after_all_other_instances_ended_fails_waiting_requests():
    session = EngineSession(
        "m", SystemClock(), threading.Condition(), 1, merge=True, in_flight_max=1, queue_rows_max=1
    )
    sent = pending_request(request())
    assert session.queue.offer(sent)
    added = session.add_slot()
    session.report_ended(session.slots[0])
    assert not sent.callback.future.done()
    session.report_loaded(added, ValueError("no memory left"))
    assert isinstance(sent.callback.future.exception(0), StoppedError)


# Deaths


def kill_until_it_waits(engine, clock, number):
    """Kill an instance until it waits before a restart."""
    slot = engine._session.slots[number]
    os.kill(slot.backend.pid, signal.SIGKILL)
    polling.wait_until(lambda: slot.counters.restarts == 1 and slot.alive, timeout_s=WAIT_S)
    os.kill(slot.backend.pid, signal.SIGKILL)
    clock.wait_for_sleepers()
    return slot


@contextmanager
def closing_waits(slot):
    """Let the end of an instance wait until the block ends; yield the event of its begin."""
    backend, begun, may_close = slot.backend, threading.Event(), threading.Event()
    close = backend.close

    def closed():
        begun.set()
        assert may_close.wait(WAIT_S)
        close()

    backend.close = closed
    try:
        yield begun
    finally:
        may_close.set()


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_instance_that_waits_for_its_restart_is_removed_first_and_at_once(number):
    clock = ManualClock()
    with serving(Identity, isolation="process", instances=2, clock=clock) as engine:
        dead = kill_until_it_waits(engine, clock, number)
        engine.set_instances(1)
        assert [slot.is_member for slot in engine._session.slots] == [number == 1, number == 0]
        assert engine.alive
        wait_for_end(engine)
        assert dead.counters.restarts == 1
        assert values(submit_and_wait(engine, rows(2))) == [2.0]


def test_removed_instance_that_is_not_restarted_cannot_be_kept():
    clock = ManualClock()
    with serving(Identity, isolation="process", instances=2, clock=clock) as engine:
        dead = kill_until_it_waits(engine, clock, 1)
        with closing_waits(dead) as closing:
            engine.set_instances(1)
            assert closing.wait(WAIT_S)
            engine.set_instances(2)
            assert engine.alive
            assert engine.instance_counts() == (2, 2, 1)
        wait_for_end(engine)
        assert engine.instance_counts() == (2, 2, 0)


def test_instance_that_is_kept_is_restarted():
    """Its restart waits for the load of another instance, or for its delay."""
    clock = ManualClock()
    with serving(Identity, isolation="process", instances=2, clock=clock) as engine:
        dead = kill_until_it_waits(engine, clock, 1)
        restart, wanted = dead.backend.restart, threading.Event()

        def waiting():
            assert wanted.wait(WAIT_S)
            restart()

        dead.backend.restart = waiting
        clock.advance(0.1)
        engine.set_instances(1)
        engine.set_instances(2)
        wanted.set()
        polling.wait_until(lambda: engine.alive, timeout_s=WAIT_S)
        assert engine.instance_counts() == (2, 2, 0)
        os.kill(dead.backend.pid, signal.SIGKILL)
        clock.wait_for_sleepers()


# Sequences


class GatedAdding(Adding):
    """Waits in each step of 9.0 until the test opens its gate. Instances share `ended`."""

    def __init__(self, stepping, gates, ended):
        super().__init__()
        self.stepping_gated, self.gates, self.ended = stepping, gates, ended

    def step(self, states, x):
        if 9.0 in x:
            self.stepping_gated.release()
            assert self.gates.acquire(timeout=WAIT_S)
        return super().step(states, x)


class Gates:
    """The gates and the ended sequences of all instances of `GatedAdding`."""

    def __init__(self):
        self.stepping, self.gates, self.ended = threading.Semaphore(0), threading.Semaphore(0), []

    def make(self):
        return GatedAdding(self.stepping, self.gates, self.ended)

    def wait_for_step(self):
        assert self.stepping.acquire(timeout=WAIT_S)


def placed(engine):
    """Return the instances of the live sequences by their ids."""
    return {s.id: s.instance for s in engine.sequences()}


@pytest.mark.parametrize("checkpoints", [None, "memory:"])
def test_busy_instance_that_is_removed_gets_no_sequence(checkpoints):
    gates = Gates()
    with serving(gates.make, instances=2, checkpoints=checkpoints) as engine:
        for id in "abcd":
            assert submit_result(engine, start(id, 1.0)) == [1.0]
        assert placed(engine) == {"a": 0, "b": 1, "c": 0, "d": 1}
        slow = engine.submit(more("b", 9.0))
        gates.wait_for_step()
        waiting = engine.submit(more("d", 1.0))
        assert submit_result(engine, start("v", 1.0)) == [1.0]
        unborn = engine.submit(start("w", 5.0))
        engine.set_instances(1)
        assert values(unborn.result(WAIT_S)) == [5.0]
        for id in "ef":
            assert submit_result(engine, start(id, 3.0)) == [3.0]
        if checkpoints is not None:
            assert values(waiting.result(WAIT_S)) == [2.0]
            assert placed(engine)["d"] == 0
        gates.gates.release()
        assert values(slow.result(WAIT_S)) == [10.0]
        assert values(waiting.result(WAIT_S)) == [2.0]
        assert values(engine.submit(more("b", 1.0)).result(WAIT_S)) == [11.0]
        # It had no step on the removed instance.
        assert "w" not in [id for id, *_ in gates.ended]


def test_sequence_can_return_to_an_instance_that_it_left():
    """Also in the middle of a request; the model of the instance forgets it in between."""
    gates = Gates()
    with serving(gates.make, instances=2, checkpoints="memory:") as engine:
        for id in "abcd":
            submit_result(engine, start(id, 1.0))
        slow = engine.submit(more("b", 9.0))
        gates.wait_for_step()
        engine.set_instances(1)
        engine.set_instances(2)
        assert engine.instance_counts() == (2, 2, 0)
        gates.gates.release()
        assert values(slow.result(WAIT_S)) == [10.0]
        assert placed(engine)["d"] == 0
        assert ("d", "stopped", 1.0) in gates.ended
        moving = engine.submit(more("d", 1.0, 9.0, 1.0, 1.0))
        gates.wait_for_step()
        # The first instance is removed, as if it were dead.
        engine._session.slots[0].alive = False
        engine.set_instances(1)
        gates.gates.release()
        assert values(moving.result(WAIT_S)) == [2.0, 11.0, 12.0, 13.0]
        assert placed(engine)["d"] == 1


@pytest.mark.parametrize("call", ["load", "save"])
def test_removed_instance_ends_after_a_stalled_call_of_the_store(call):
    store = FaultyStore()
    with sums_engine(store) as other, sums_engine(store, instances=2) as only:
        sums(other, 1, sequence_id="s", sequence_start=True)
        sums(only, 1, sequence_id="t", sequence_start=True)

        async def main():
            with stalled(store, call) as stall:
                step = asyncio.create_task(infer_sums(only, 1, sequence_id="s"))
                await stall.wait()
                assert placed(only)["s"] == 1
                await in_thread(only.set_instances, 1)
                # The step is set aside, and the instance has nothing to do.
                await wait_until(lambda: only._session.sequences.ready[1].is_asleep)
                assert only.instance_counts() == (1, 1, 1)
            return await step

        assert asyncio.run(main()) == [2]
        wait_for_end(only)
        assert sums(only, 1, sequence_id="s") == [3]
        assert placed(only) == {"s": 0, "t": 0}


# Streams


async def never():
    """Yield no request, for ever."""
    await asyncio.Event().wait()
    yield request()


def test_removed_instance_does_not_wait_for_streams_of_other_instances():
    """A stream of a model with a step follows its sequence."""

    async def use(engine):
        submit = await in_thread(submit_result, engine, start("a", 1.0))
        assert submit == [1.0]
        first, second = engine.stream(request(), never()), engine.stream(request(), never())
        assert [len(slot.streams) for slot in engine._session.slots] == [1, 1]
        # The sequence of the second stream is on the first instance.
        assert [len(await stream.next_batch()) for stream in (first, second)] == [1, 1]
        await first.aclose()
        await in_thread(engine.set_instances, 1)
        await in_thread(wait_for_end, engine)
        await second.aclose()

    with serving(Adding, instances=2) as engine:
        asyncio.run(use(engine))


class Streaming(Model):
    def predict_stream(self, requests):
        for _ in requests:
            yield rows(1.0)


def test_removed_instance_does_not_wait_for_the_memory_of_an_opened_response():
    """Exceptions of other requests of its call may hold a response for long."""
    with serving(Twice, instances=2) as engine:
        session = engine._session
        slot = session.slots[1]
        sent = CallInputs((), 1, requests=(HandleRequest({"body": b"chunks"}),))
        (response,) = slot.backend.call(sent, current_call()).responses
        slot.unopened.add(response)
        call = StreamCall(session.clock, deadline=None, id="")
        assert session.reserve_slot(call, 1, response) is slot
        engine.set_instances(1)
        assert engine.instance_counts() == (1, 1, 1)
        session.release_stream(slot, call)
        wait_for_end(engine)


class WatchedSet(set):
    """A set that reports when its size was read."""

    def __init__(self, items):
        super().__init__(items)
        self.read = threading.Event()

    def __len__(self):
        self.read.set()
        return super().__len__()


class LateEvent(threading.Event):
    """An event that is set only after a thread has read a set, and waits for a condition again."""

    def __init__(self, changed, watched):
        super().__init__()
        self._changed, self._watched = changed, watched

    def set(self):
        with self._changed:
            while not self._watched.read.is_set():
                self._changed.wait(0.001)
        super().set()


def test_stop_without_drain_does_not_wait_for_a_removed_instance_with_a_stream():
    async def use(engine):
        session = engine._session
        streams = [engine.stream(request(), never()) for _ in range(2)]
        watched = session.slots[1].streams = WatchedSet(session.slots[1].streams)
        session.stop_requested = LateEvent(session.changed, watched)
        await in_thread(engine.set_instances, 1)
        await wait_until(watched.read.is_set)
        watched.read.clear()
        try:
            await in_thread(lambda: engine.stop(drain=False))
        finally:
            for stream in streams:
                await stream.aclose()

    with serving(Streaming, instances=2) as engine:
        asyncio.run(use(engine))


# Reloads, stops and starts


def together(*actions):
    """Call all actions at once, many times."""
    barrier = threading.Barrier(len(actions))

    def repeat(action):
        for number in range(levels.by_level(30, 100, 1000)):
            barrier.wait(WAIT_S)
            action(number)

    with ThreadPoolExecutor(len(actions)) as pool:
        for done in [pool.submit(repeat, action) for action in actions]:
            done.result(2 * WAIT_S)


def until_it_runs(action, *args):
    """Call an action again while its engine is stopping, and return its result."""
    while True:
        try:
            return action(*args)
        except StoppedError:
            continue


def test_reloads_and_changes_of_instances_do_not_disturb_each_other():
    definition = ModelDefinition("m", "1", Identity, settings=ServeSettings(isolation="thread"))
    repository = ModelRepository([definition])
    repository.start()

    def infer(_):
        for _ in range(10):
            response = until_it_runs(lambda: repository.engine("m").submit(request())).result(WAIT_S)
            assert values(response) == [1.0]

    together(
        lambda number: until_it_runs(repository.set_instances, "m", "", 1 + number % 3, 3),
        lambda number: until_it_runs(repository.scale, "m", "1", 3 - number % 3),
        lambda _: repository.load("m"),
        infer,
        infer,
    )
    repository.load("m")
    status = repository.instance_status("m")
    assert (status.instances, status.ready, status.draining) == (1, 1, 0)
    assert (status.instances_min, status.instances_max) == (1, None)
    repository.stop()


@pytest.mark.parametrize("drain", [False, True])
def test_changes_of_instances_meet_stops_and_starts(drain):
    with serving(Identity) as engine:

        def restart(_):
            engine.stop(drain=drain)
            engine.start()

        def resize(number):
            until_it_runs(engine.set_instances, 1 + number % 3)

        together(resize, resize, restart)
        engine.stop()
        engine.start()
        assert engine.instance_counts() == (1, 1, 0)
        assert values(submit_and_wait(engine, rows(2))) == [2.0]
