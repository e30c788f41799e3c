"""A thread with an event loop: functions and coroutines, errors, and its end."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from cases import for_each
from headrace.engine.model_methods import LoopThread, RemoteError

WAIT_S = 30.0


@pytest.fixture
def loop_thread():
    made = LoopThread("test-loop")
    yield made
    made.stop()


def test_functions_and_coroutines_run_in_the_loop(loop_thread):
    async def where():
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), threading.current_thread().name

    assert loop_thread.submit(where).result(WAIT_S) == (loop_thread.loop, "test-loop")
    assert loop_thread.submit(threading.get_ident).result(WAIT_S) != threading.get_ident()


def test_coroutines_run_concurrently(loop_thread):
    """One at a time between awaits, others at each await."""
    gate = loop_thread.submit(asyncio.Event).result(WAIT_S)
    waiting = loop_thread.submit(gate.wait)
    loop_thread.submit(gate.set).result(WAIT_S)
    assert waiting.result(WAIT_S) is True


@for_each("error", [SystemExit(3), KeyboardInterrupt("stop")])
@for_each("later", [False, True])
def test_system_exit_is_reported_not_raised_in_loop(loop_thread, error, later):
    async def fail_later():
        await asyncio.sleep(0)
        raise error

    def fail():
        raise error

    with pytest.raises(RemoteError, match=type(error).__name__):
        loop_thread.submit(fail_later if later else fail).result(WAIT_S)
    assert loop_thread.submit(lambda: 1).result(WAIT_S) == 1


def test_stop_cancels_tasks_and_ends_thread():
    loop_thread, cleaned = LoopThread("test-loop"), []

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(asyncio.get_running_loop())

    future = loop_thread.submit(hang)
    loop_thread.submit(lambda: asyncio.sleep(0)).result(WAIT_S)
    loop_thread.stop()
    with pytest.raises(CancelledError):
        future.result(WAIT_S)
    assert cleaned == [loop_thread.loop]
    assert loop_thread.loop.is_closed()


def test_second_stop_does_nothing():
    loop_thread = LoopThread("test-loop")
    loop_thread.stop()
    loop_thread.stop()
    assert "test-loop" not in {t.name for t in threading.enumerate()}


def test_failed_loop_creation_is_raised(monkeypatch):
    """Out of file descriptors: the constructor raises instead of waiting."""

    def none_left():
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", none_left)
    with pytest.raises(OSError, match="too many open files"):
        LoopThread("test-loop")
