"""One operating-system process: its environment, its start and end, and the explanation of its exit."""

import os
import signal
import sys
import threading

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from engine.support import WAIT_S
from headrace.core.errors import ConfigError, InstanceLostError, ModelLoadError
from headrace.engine.process.contained_process import (
    ContainedProcess,
    KillReason,
    OutOfMemory,
    ProcessExit,
    explain_exit,
    filter_environment,
)
from headrace.engine.process.process_limits import ProcessLimits
from headrace.engine.settings import ServeSettings

WAITS = "import signal; signal.pause()"


@pytest.fixture
def start():
    """Yield a factory of processes by their code; all are gone at the end."""
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
    # Fewer, if objects of an earlier test were collected meanwhile.
    assert psutil.Process().num_fds() <= before


def test_exit_status_is_reported(start):
    process = start("raise SystemExit(7)")
    assert process.wait(WAIT_S)
    assert (process.exit_info().cause, process.exit_info().exit_code) == ("exit", 7)


def test_first_kill_reason_is_reported(start):
    process = start(WAITS)
    assert not process.wait(0.0)
    process.kill("timeout", "it took too long")
    process.kill("killed", "nobody wants it")
    assert process.wait(WAIT_S)
    assert (process.exit_info().cause, process.exit_info().reason) == ("timeout", "it took too long")


def test_kill_after_exit_does_nothing(start):
    """The exit is reported, not the late kill."""
    process = start("import os; os.abort()")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process.kill("timeout", "it took too long")
    assert process.wait(WAIT_S)
    assert (process.exit_info().cause, process.exit_info().signal) == ("crash", "SIGABRT")


def test_many_threads_wait_for_one_exit(start):
    """It is reaped once."""
    process = start(WAITS)
    deaths = []
    threads = [
        threading.Thread(target=lambda: deaths.append(process.wait(WAIT_S) and process.exit_info()))
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


def test_terminate_ends_process(start):
    process = start(WAITS)
    process.terminate()
    assert process.wait(WAIT_S)
    assert (process.exit_info().cause, process.exit_info().signal) == ("killed", "SIGTERM")


def test_failed_start_is_load_error(start):
    with pytest.raises(ModelLoadError, match="cannot be started"):
        ContainedProcess(["/nonexistent/python"], (), "m", ServeSettings())


def test_process_without_limits_is_killed(start, monkeypatch):
    held = []

    def refuse(self, pid):
        held.append(pid)
        raise ConfigError("it cannot be held")

    monkeypatch.setattr(ProcessLimits, "apply", refuse)
    with pytest.raises(ConfigError, match="cannot be held"):
        start(WAITS)
    assert not psutil.pid_exists(held[0])


def test_exit_before_limits_is_no_error(start, monkeypatch):
    """The first call reports the exit."""

    def late(self, pid):
        raise ProcessLookupError

    monkeypatch.setattr(ProcessLimits, "apply", late)
    assert start("").wait(WAIT_S)


TOO_LONG = KillReason("timeout", "it took too long")
NO, UNKNOWN, PROBABLY, YES = OutOfMemory.NO, OutOfMemory.UNKNOWN, OutOfMemory.PROBABLY, OutOfMemory.YES


@for_each(
    ("status", "killing", "memory", "cause", "says"),
    [
        (0, None, NO, "exit", "exited with status 0"),
        (3, TOO_LONG, YES, "exit", "exited with status 3"),
        (-signal.SIGSEGV, None, NO, "crash", r"crashed \(SIGSEGV\)"),
        (-signal.SIGSEGV, TOO_LONG, YES, "crash", "crashed"),
        (-signal.SIGABRT, None, NO, "crash", "abort, by compiled code"),
        (-signal.SIGKILL, TOO_LONG, NO, "timeout", "^it took too long$"),
        (-signal.SIGKILL, TOO_LONG, PROBABLY, "timeout", "^it took too long$"),
        (-signal.SIGKILL, None, YES, "oom", r"by the kernel for lack of memory: reduce max_batch_rows"),
        (-signal.SIGKILL, None, PROBABLY, "oom", "probably by the kernel"),
        (-signal.SIGKILL, None, NO, "killed", "from outside$"),
        (-signal.SIGKILL, None, UNKNOWN, "killed", "from outside, or by the kernel"),
        (-signal.SIGTERM, None, YES, "killed", r"\(SIGTERM\) from outside$"),
        (-(signal.SIGRTMIN + 3), None, NO, "killed", r"signal 37"),
    ],
)
def test_each_exit_has_its_cause(status, killing, memory, cause, says):
    """A kill reason counts only if the process died of it: it may have ended just before."""
    death = explain_exit(status, killing, memory)
    assert death.cause == cause
    with pytest.raises(InstanceLostError, match=says.removeprefix("^")) as caught:
        raise death.error("m")
    assert (caught.value.cause, caught.value.why) == (cause, death.reason)


def test_memory_limit_is_named():
    assert "(memory_bytes_max: 300 bytes)" in explain_exit(-signal.SIGKILL, None, YES, 300).reason


@given(st.integers(-64, 255), st.sampled_from([None, TOO_LONG]), st.sampled_from(OutOfMemory))
def test_exit_code_and_signal_are_exclusive(status, killing, memory):
    death = explain_exit(status, killing, memory)
    assert isinstance(death, ProcessExit)
    assert (death.exit_code is None) == (status < 0)
    assert (death.signal is None) == (status >= 0)
    assert death.reason


_ENVIRON = {
    "AWS_SECRET_ACCESS_KEY": "s",
    "HEADRACE_API_KEYS": "k",
    "HOME": "/h",
    "LC_ALL": "C",
    "MODEL_CACHE": "/c",
    "PATH": "/bin",
    "PYTHONHASHSEED": "0",
}


def test_all_variables_by_default():
    assert filter_environment(_ENVIRON, None) == _ENVIRON


def test_named_and_needed_variables_are_kept():
    """A missing name is ignored."""
    assert filter_environment(_ENVIRON, ("MODEL_CACHE", "ABSENT")).keys() == {
        "HOME",
        "LC_ALL",
        "MODEL_CACHE",
        "PATH",
        "PYTHONHASHSEED",
    }


@given(st.dictionaries(st.text(), st.text()), st.sets(st.text()))
def test_no_variable_is_added_or_changed(environ, names):
    found = filter_environment(environ, names)
    assert found.items() <= environ.items()
    assert {name: value for name, value in environ.items() if name in names}.items() <= found.items()
