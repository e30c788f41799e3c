"""Changes of the number of instances that meet loads, deaths, steps, stalled stores and stops."""

import os
import signal
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from engine.process_models import Identity
from engine.support import WAIT_S, no_leaks, serving
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
