"""Steps beside a checkpoint store that stalls: it accepts calls, and does not respond."""

import asyncio
import os
import signal
import threading
from contextlib import contextmanager

import pytest

from engine.sequences.sum_model import WAIT_S, FaultyStore, SumModel, engine, infer_sums, sums
from engine.support import wait_until
from headrace.core.errors import UnavailableError
from headrace.engine.sequences.sequence_store import PROBE_S, STALL_S
from headrace.engine.session import SessionState
from headrace.testing import ManualClock


class Stall:
    """A fault of a store: calls wait until the test ends it, and then fail if they should."""

    def __init__(self, *, error=None):
        self.error = error
        self.began = threading.Event()
        self._over = threading.Event()

    def __call__(self):
        self.began.set()
        assert self._over.wait(WAIT_S)
        if self.error is not None:
            raise self.error

    async def wait(self):
        assert await asyncio.to_thread(self.began.wait, WAIT_S)

    def end(self):
        self._over.set()


@pytest.fixture
def store():
    return FaultyStore()


@contextmanager
def stalled(store, name, **settings):
    """Stall the calls of one method."""
    stall = store.faults[name] = Stall(**settings)
    try:
        yield stall
    finally:
        stall.end()


def unavailable():
    return UnavailableError("memory:", "it does not answer")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("call", ["load", "save", "delete"])
def test_request_without_sequence_does_not_wait_for_the_store(store, call, fails):
    last = call == "delete"
    with engine(store) as other, engine(store) as only:
        sums(other if call == "load" else only, 1, sequence_id="s", sequence_start=True)

        async def main():
            with stalled(store, call, error=unavailable() if fails else None) as stall:
                step = asyncio.create_task(infer_sums(only, 5, sequence_id="s", sequence_end=last))
                await stall.wait()
                assert [await infer_sums(only, 1, 2) for _ in range(5)] == [[1, 3]] * 5
                assert not step.done(), "it is saved before its response"
            return await step

        assert asyncio.run(main()) == ("UnavailableError" if fails else [6])
        store.faults.clear()
        if not last:
            assert sums(only, 1, sequence_id="s") == [2 if fails else 7]


def test_step_in_the_same_call_does_not_wait_for_the_store(store):
    held, release = threading.Event(), threading.Event()

    class Held(SumModel):
        rows = ()

        def step(self, states, x):
            type(self).rows = (*self.rows, len(x))
            if x[0, 0] == 100:
                held.set()
                assert release.wait(WAIT_S)
            return super().step(states, x)

    async def main(only):
        first = asyncio.create_task(infer_sums(only, 100))
        assert await asyncio.to_thread(held.wait, WAIT_S)
        asked = [{}, {"sequence_id": "s", "sequence_start": True}, {}]
        tasks = [asyncio.create_task(infer_sums(only, 1, **each)) for each in asked]
        with stalled(store, "save"):
            await asyncio.sleep(0)
            release.set()
            assert [await first, await tasks[0], await tasks[2]] == [[100], [1], [1]]
            assert not tasks[1].done()
        assert await tasks[1] == [1]

    with engine(store, Held) as only:
        asyncio.run(main(only))
        assert Held.rows == (1, 3)


@pytest.mark.parametrize("call", ["load", "save"])
def test_steps_of_a_sequence_keep_their_order_during_a_stall(store, call):
    with engine(store) as other, engine(store, max_batch_rows=2) as only:
        sums(other, 1, sequence_id="s", sequence_start=True)

        async def main():
            with stalled(store, call) as stall:
                tasks = [
                    asyncio.create_task(infer_sums(only, value, value, sequence_id="s"))
                    for value in (10, 100)
                ]
                others = [
                    asyncio.create_task(infer_sums(only, 1, 1, sequence_id=id, sequence_start=True))
                    for id in "abcdef"
                ]
                await stall.wait()
                assert await infer_sums(only, 1) == [1]
                assert call == "load" or not any(task.done() for task in (*tasks, *others))
            return await asyncio.gather(*tasks), await asyncio.gather(*others)

        assert asyncio.run(main()) == ([[11, 21], [121, 221]], [[1, 2]] * 6)
        assert sums(other, 1, sequence_id="s") == [222]


def test_late_load_can_find_nothing(store):
    with engine(store) as only:

        async def main():
            with stalled(store, "load") as stall:
                gone = asyncio.create_task(infer_sums(only, 1, sequence_id="s"))
                anew = asyncio.create_task(infer_sums(only, 1, sequence_id="t", sequence_start="auto"))
                await stall.wait()
                assert await infer_sums(only, 1) == [1]
            return await gone, await anew

        assert asyncio.run(main()) == ("SequenceGoneError", [1])


@pytest.mark.parametrize("call", ["load", "save"])
def test_defect_of_a_stalled_store_fails_its_steps_only(store, call):
    with engine(store) as other, engine(store) as only:
        sums(other, 1, sequence_id="s", sequence_start=True)

        async def main():
            with stalled(store, call, error=ZeroDivisionError()) as stall:
                step = asyncio.create_task(infer_sums(only, 1, sequence_id="s"))
                await stall.wait()
                assert await infer_sums(only, 1) == [1]
            return await step

        assert asyncio.run(main()) == "PredictError"
        store.faults.clear()
        assert sums(only, 1, sequence_id="t", sequence_start=True) == [1]


@pytest.mark.parametrize("call", ["load", "save"])
def test_client_may_leave_during_a_stall(store, call):
    with engine(store) as other, engine(store) as only:
        sums(other, 1, sequence_id="s", sequence_start=True)

        async def main():
            with stalled(store, call) as stall:
                step = asyncio.create_task(infer_sums(only, 10, 10, sequence_id="s"))
                await stall.wait()
                assert await infer_sums(only, 1) == [1]
                step.cancel()
                await asyncio.wait([step])
            return await infer_sums(only, 100, sequence_id="s")

        # A step that was done before its client left stays done.
        assert asyncio.run(main()) == [101 if call == "load" else 111]
        assert only.model_statistics().in_flight == 0


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("call", ["load", "save"])
def test_stop_during_a_stall_ends_every_request(store, call, drain):
    with engine(store) as other, engine(store) as only:
        sums(other, 1, sequence_id="s", sequence_start=True)

        async def main():
            with stalled(store, call) as stall:
                step = asyncio.create_task(infer_sums(only, 1, 1, sequence_id="s"))
                await stall.wait()
                assert await infer_sums(only, 1) == [1]
                stop = asyncio.create_task(asyncio.to_thread(only.stop, drain=drain))
                session = only._session
                await wait_until(
                    lambda: session.state is SessionState.STOPPING if drain else session.queue.dropped
                )
            await stop
            return await step

        assert asyncio.run(main()) == ([2, 3] if drain else "StoppedError")
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-m-0")]
        assert len(threads) <= 3, "those of the other engine"


@pytest.mark.parametrize("call", ["load", "save"])
def test_instance_dies_during_a_stall(store, call):
    with engine(store) as other, engine(store, isolation="process") as only:
        sums(other, 1, sequence_id="s", sequence_start=True)

        async def main():
            with stalled(store, call) as stall:
                step = asyncio.create_task(infer_sums(only, 10, 10, sequence_id="s"))
                await stall.wait()
                assert await infer_sums(only, 1) == [1]
                os.kill(only._session.slots[0].backend.pid, signal.SIGKILL)
            return await step

        assert asyncio.run(main()) == [11, 21]
        assert sums(only, 1, sequence_id="s") == [22]
        assert only.model_statistics().restarts == 1
        assert only.model_statistics().in_flight == 0


# After a stall


def test_steps_fail_at_once_until_a_probe_succeeds(store):
    clock = ManualClock()

    def time_out():
        clock.advance(STALL_S)
        raise unavailable()

    with engine(store, clock=clock) as only:
        clock.wait_for_sleepers()
        store.faults.update(save=time_out, probe="before")
        assert sums(only, 1, sequence_id="s", sequence_start=True) == "UnavailableError"
        store.faults.pop("save")
        calls = store.calls["save"], store.calls["load"]
        assert sums(only, 1, sequence_id="t", sequence_start=True) == "UnavailableError"
        assert sums(only, 1, sequence_id="u") == "UnavailableError"
        assert sums(only, sequence_id="u", sequence_cancel=True) == "UnavailableError"
        assert sums(only, 1) == [1]
        assert calls == (store.calls["save"], store.calls["load"]), "the store is spared"
        probed = threading.Event()
        store.faults["probe"] = probed.set
        clock.wait_for_sleepers()
        clock.advance(PROBE_S)
        assert probed.wait(WAIT_S)
        clock.wait_for_sleepers()
        assert sums(only, 1, sequence_id="t", sequence_start=True) == [1]


def test_quick_failure_is_tried_again(store):
    clock = ManualClock()
    with engine(store, clock=clock) as only:
        store.faults.update(save="before", probe="before")
        assert sums(only, 1, sequence_id="s", sequence_start=True) == "UnavailableError"
        store.faults.pop("save")
        assert sums(only, 1, sequence_id="s", sequence_start=True) == [1]
