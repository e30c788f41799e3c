"""One model process, seen from the serving process."""

import logging
import os
import signal
import threading

import psutil
import pytest

from engine.support import WAIT_S
from headrace.core import ModelRecipe, SystemClock
from headrace.core.errors import CancelledRequestError, InstanceLostError, ModelLoadError, StoppedError
from headrace.engine.process.messages import StartMessage
from headrace.engine.process.model_process import ModelProcess
from headrace.engine.settings import ServeSettings
from headrace.engine.streams import StreamCall


def _start(name="Counting"):
    recipe = ModelRecipe(f"engine.process_models:{name}")
    return StartMessage(recipe, "m", None, "", ServeSettings(), logging.WARNING, os.getpid())


@pytest.fixture
def process():
    """Yield a loaded process; `died` is set when it is lost."""
    died = threading.Event()
    made = ModelProcess(_start(), SystemClock(), died.set)
    made.died = died
    yield made
    made.close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGKILL, "killed .SIGKILL. from outside"),
        (signal.SIGSEGV, "crashed .SIGSEGV."),
    ],
)
def test_death_is_reported_with_signal(process, number, says):
    """To the waiting call, to open streams, and to `on_lost`."""
    stream = StreamCall(SystemClock(), deadline=None, id="s")
    process.open_stream(stream)
    os.kill(process.pid, number)
    assert process.died.wait(WAIT_S)
    with pytest.raises(EOFError):
        process.calls.receive()
    with pytest.raises(InstanceLostError, match=says):
        raise process.exit_error()
    with pytest.raises(InstanceLostError, match=says):
        stream.responses.get()
    with pytest.raises(InstanceLostError, match="being restarted"):
        process.open_stream(StreamCall(SystemClock(), deadline=None, id="t"))


def test_close_is_not_reported_as_death():
    """Open streams end."""
    died = threading.Event()
    process = ModelProcess(_start(), SystemClock(), died.set)
    stream = StreamCall(SystemClock(), deadline=None, id="s")
    process.open_stream(stream)
    process.close()
    assert not died.is_set()
    assert not psutil.pid_exists(process.pid)
    with pytest.raises((StoppedError, CancelledRequestError)):
        stream.responses.get()
    with pytest.raises(StoppedError):
        process.open_stream(stream)


def test_failed_start_is_load_error(monkeypatch):
    before = psutil.Process().num_fds()
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(ModelLoadError, match="cannot be started"):
        ModelProcess(_start(), SystemClock(), lambda: None)
    assert psutil.Process().num_fds() == before


def test_kill_reason_is_reported(process):
    process.kill("timeout", "it took too long")
    with pytest.raises(InstanceLostError, match="it took too long"):
        raise process.exit_error()
