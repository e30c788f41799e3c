"""One process, seen from the process that serves: how it ends is told in words that help."""

import logging
import os
import signal
import threading

import psutil
import pytest

from engine.support import WAIT_S
from headrace.core import ModelRecipe, SystemClock
from headrace.core.errors import CancelledRequestError, InstanceLostError, ModelLoadError, StoppedError
from headrace.engine.bootstrap import Bootstrap
from headrace.engine.link import Link
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import StreamCall


def _boot(name="Counting"):
    recipe = ModelRecipe(f"engine.process_models:{name}")
    return Bootstrap(recipe, "m", None, "", ServeSettings(), logging.WARNING, os.getpid())


@pytest.fixture
def link():
    """A loaded one; `told` is set when it is lost."""
    told = threading.Event()
    made = Link(_boot(), SystemClock(), told.set)
    made.told = told
    yield made
    made.close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGKILL, "killed .SIGKILL. by somebody else"),
        (signal.SIGSEGV, "crashed .SIGSEGV."),
    ],
)
def test_a_death_is_told_with_its_signal(link, number, says):
    """To who waits for an answer, to open streams, and to whoever started it."""
    stream = StreamCall(SystemClock(), deadline=None, id="s")
    link.open_stream(stream)
    os.kill(link.pid, number)
    assert link.told.wait(WAIT_S)
    with pytest.raises(EOFError):
        link.calls.receive()
    with pytest.raises(InstanceLostError, match=says):
        raise link.lost_error()
    with pytest.raises(InstanceLostError, match=says):
        stream.answers.get()
    with pytest.raises(InstanceLostError, match="being started again"):
        link.open_stream(StreamCall(SystemClock(), deadline=None, id="t"))


def test_a_close_is_no_death():
    """Nobody is told; what is open ends."""
    told = threading.Event()
    link = Link(_boot(), SystemClock(), told.set)
    stream = StreamCall(SystemClock(), deadline=None, id="s")
    link.open_stream(stream)
    link.close()
    assert not told.is_set()
    assert not psutil.pid_exists(link.pid)
    with pytest.raises((StoppedError, CancelledRequestError)):
        stream.answers.get()
    with pytest.raises(StoppedError):
        link.open_stream(stream)


def test_a_process_that_cannot_be_started_is_a_load_error(monkeypatch):
    """And leaves nothing."""
    before = psutil.Process().num_fds()
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(ModelLoadError, match="cannot be started"):
        Link(_boot(), SystemClock(), lambda: None)
    assert psutil.Process().num_fds() == before


def test_why_it_was_killed_comes_first(link):
    link.kill("timeout", "it took too long")
    with pytest.raises(InstanceLostError, match="it took too long"):
        raise link.lost_error()
