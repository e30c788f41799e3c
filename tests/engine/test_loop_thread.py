"""A thread with an event loop: calls and coroutines, errors, and its end."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from headrace.engine.loop_thread import LoopThread
from headrace.engine.reason import ToldError

WAIT_S = 30.0


@pytest.fixture
def home():
    made = LoopThread("test-loop")
    yield made
    made.stop()


def test_functions_and_coroutines_run_in_its_loop(home):
    async def where():
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), threading.current_thread().name

    assert home.submit(where).result(WAIT_S) == (home.loop, "test-loop")
    assert home.submit(threading.get_ident).result(WAIT_S) != threading.get_ident()


def test_a_coroutine_waits_while_others_run(home):
    """Between two awaits it is alone, at an await it is not."""
    gate = home.submit(asyncio.Event).result(WAIT_S)
    waiting = home.submit(gate.wait)
    home.submit(gate.set).result(WAIT_S)
    assert waiting.result(WAIT_S) is True


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("stop")])
@pytest.mark.parametrize("later", [False, True])
def test_what_would_end_the_loop_is_told_instead(home, error, later):
    async def fail_later():
        await asyncio.sleep(0)
        raise error

    def fail():
        raise error

    with pytest.raises(ToldError, match=type(error).__name__):
        home.submit(fail_later if later else fail).result(WAIT_S)
    assert home.submit(lambda: 1).result(WAIT_S) == 1


def test_stopping_cancels_what_runs_and_ends_the_thread():
    home, cleaned = LoopThread("test-loop"), []

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(asyncio.get_running_loop())

    future = home.submit(hang)
    home.submit(lambda: asyncio.sleep(0)).result(WAIT_S)
    home.stop()
    with pytest.raises(CancelledError):
        future.result(WAIT_S)
    assert cleaned == [home.loop]
    assert home.loop.is_closed()


def test_stopping_twice_is_once():
    home = LoopThread("test-loop")
    home.stop()
    home.stop()
    assert "test-loop" not in {t.name for t in threading.enumerate()}


def test_a_loop_that_cannot_be_had_is_told(monkeypatch):
    """No file is left to open for it: whoever makes the thread must hear of that, not wait."""

    def none_left():
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", none_left)
    with pytest.raises(OSError, match="too many open files"):
        LoopThread("test-loop")
