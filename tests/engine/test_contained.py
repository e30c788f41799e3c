"""One process of the operating system: how it starts and ends, asked by many threads."""

import os
import signal
import sys
import threading

import psutil
import pytest

from engine.support import WAIT_S
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.engine.confinement import Confinement
from headrace.engine.contained import ContainedProcess
from headrace.engine.settings import ServeSettings

WAITS = "import signal; signal.pause()"


@pytest.fixture
def start():
    """Processes by their code; they and their files are gone at the end."""
    before = psutil.Process().num_fds()
    started = []

    def begin(code, **settings):
        process = ContainedProcess([sys.executable, "-c", code], (), "m", ServeSettings(**settings))
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill("killed", "the test is over")
        assert process.wait(WAIT_S)
        process.release()
        process.kill("killed", "once more")
    assert psutil.Process().num_fds() == before


def test_an_end_by_itself(start):
    process = start("raise SystemExit(7)")
    assert process.wait(WAIT_S)
    assert (process.death().cause, process.death().exit_code) == ("exit", 7)


def test_a_kill_tells_why_and_the_first_reason_counts(start):
    process = start(WAITS)
    assert not process.wait(0.0)
    process.kill("timeout", "it took too long")
    process.kill("killed", "nobody wants it")
    assert process.wait(WAIT_S)
    assert (process.death().cause, process.death().why) == ("timeout", "it took too long")


def test_a_kill_of_what_has_ended_is_none(start):
    """It tells how it ended, not what came too late."""
    process = start("import os; os.abort()")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process.kill("timeout", "it took too long")
    assert process.wait(WAIT_S)
    assert (process.death().cause, process.death().signal) == ("crash", "SIGABRT")


def test_many_threads_wait_for_one_end(start):
    """It is reaped once, and all hear of it."""
    process = start(WAITS)
    deaths = []
    threads = [
        threading.Thread(target=lambda: deaths.append(process.wait(WAIT_S) and process.death()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    os.kill(process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(WAIT_S)
    assert len(deaths) == 8
    assert len(set(deaths)) == 1
    process.terminate()


def test_it_is_asked_to_end(start):
    process = start(WAITS)
    process.terminate()
    assert process.wait(WAIT_S)
    assert (process.death().cause, process.death().signal) == ("killed", "SIGTERM")


def test_what_cannot_be_started_is_a_load_error(start):
    with pytest.raises(ModelLoadError, match="cannot be started"):
        ContainedProcess(["/nonexistent/python"], (), "m", ServeSettings())


def test_what_cannot_be_bounded_is_not_left_running(start, monkeypatch):
    held = []

    def refuse(self, pid):
        held.append(pid)
        raise ConfigError("it cannot be held")

    monkeypatch.setattr(Confinement, "hold", refuse)
    with pytest.raises(ConfigError, match="cannot be held"):
        start(WAITS)
    assert not psutil.pid_exists(held[0])


def test_what_ends_before_it_is_bounded_is_no_error(start, monkeypatch):
    """Whoever talks to it finds out."""

    def late(self, pid):
        raise ProcessLookupError

    monkeypatch.setattr(Confinement, "hold", late)
    assert start("").wait(WAIT_S)
