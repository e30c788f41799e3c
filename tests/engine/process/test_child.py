"""The process of an instance, as its parent sees it: its messages, and that it never stays behind."""

import mmap
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engine.support import WAIT_S
from headrace.core import ModelRecipe
from headrace.engine.process.messages import (
    CONTROL_BYTES,
    CallSocket,
    CloseMessage,
    ErrorMessage,
    LoadedMessage,
    StartMessage,
)
from headrace.engine.settings import ServeSettings

_TESTS = str(Path(__file__).parents[2])
_MODELS = "engine.process_models"
# A process that serves a model in another process, prints the id of that process, and never exits.
_PARENT = f"""
import sys, threading
sys.path.insert(0, {_TESTS!r})
from {_MODELS} import Hanging as Model
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.recipe import make_recipe
backend = ProcessBackend(make_recipe(Model, "m"), "m")
print(backend.pid, flush=True)
if sys.argv[1] == "calling":
    import numpy as np
    from headrace.core import current_call
    from headrace.engine.backend import CallInputs
    print("now", flush=True)
    backend.call(CallInputs(({{"x": np.full((1, 1), -1.0)}},), 1, fresh=True), current_call())
threading.Event().wait()
"""


@contextmanager
def _child():
    """Yield a child whose other ends are held here."""
    (calls, their_calls), (wire, their_wire) = socket.socketpair(), socket.socketpair()
    control = os.memfd_create("control")
    os.ftruncate(control, CONTROL_BYTES)
    fds = (their_calls.fileno(), their_wire.fileno(), control)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, _TESTS])}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.engine.process.child", *map(str, fds)], pass_fds=fds, env=environ
    )
    their_calls.close()
    their_wire.close()
    os.close(control)
    try:
        yield process, CallSocket(calls), wire
    finally:
        calls.close()
        wire.close()
        process.kill()
        process.wait()


def _start(function, *, parent_pid=None, **arguments):
    recipe = ModelRecipe(f"{_MODELS}:{function}", arguments)
    return StartMessage(recipe, "m", None, "", ServeSettings(), 30, parent_pid or os.getpid())


def test_child_loads_and_closes():
    with _child() as (process, calls, _):
        calls.send(_start("make_identity", rows_max=3))
        loaded, _ = calls.receive()
        assert isinstance(loaded, LoadedMessage)
        assert loaded.metadata.max_batch_rows == 3
        calls.send(CloseMessage())
        assert process.wait(WAIT_S) == 0


def test_load_error_is_sent():
    with _child() as (process, calls, _):
        calls.send(_start("Unloadable", how="raises"))
        reply, _ = calls.receive()
        assert isinstance(reply, ErrorMessage)
        assert reply.error["kind"] == "ModelLoadError"
        assert "no weights" in reply.error["why"]
        assert process.wait(WAIT_S) == 1


@pytest.mark.parametrize("when", ["before", "loaded", "call", "wire"])
def test_child_exits_when_a_socket_closes(when):
    """Before its start message, and while it waits for calls."""
    with _child() as (process, calls, wire):
        if when != "before":
            calls.send(_start("Echo"))
            calls.receive()
        if when != "wire":
            calls.end.close()
        if when != "call":
            wire.close()
        assert process.wait(WAIT_S) == 1


@pytest.mark.slow
def test_child_exits_under_another_parent():
    """Its real parent had ended before the child could arrange to be killed with it."""
    with _child() as (process, calls, _):
        calls.send(_start("Echo", parent_pid=1))
        assert process.wait(WAIT_S) == 1


def shared_memory() -> set[str]:
    """Return the shared-memory files of Python programs; databases have others."""
    return {
        p.name
        for p in Path("/dev/shm").iterdir()
        if p.name.startswith(("headrace", "psm_", "pym-", "torch_"))
    }


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["idle", "calling"])
def test_child_dies_with_its_parent(doing):
    """Also by SIGKILL, also during a call; nothing is left in shared memory."""
    shared = shared_memory()
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, doing], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    if doing == "calling":
        assert parent.stdout.readline() == "now\n"
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    # A zombie that its new parent does not reap is not running.
    try:
        child.wait(WAIT_S)
    except psutil.TimeoutExpired:
        assert child.status() == psutil.STATUS_ZOMBIE
    assert shared_memory() <= shared


def test_control_page_is_one_page():
    """It is mapped as a whole."""
    assert CONTROL_BYTES == mmap.PAGESIZE
