"""Worker processes of this machine, with real child processes that are small."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from cases import for_each
from headrace.core.errors import ActuatorError
from headrace.scaling.actuators import processes as processes_module
from headrace.scaling.actuators.processes import ProcessActuator
from headrace.testing import ManualClock, check_service
from scaling.records import record

WAIT_S = 30.0
PYTHON = [sys.executable, "-I", "-S", "-c"]
READS_STDIN = "import sys; sys.stdin.buffer.read()"
FAILS = "raise SystemExit(3)"
BEGIN = """
import os, signal, sys
def tell(text):
    events = os.open(os.environ["EVENTS"], os.O_WRONLY)
    os.write(events, text.encode() + b" ")
    os.close(events)
"""
DRAINS = f"""{BEGIN}
signals = []
def drain(number, frame):
    signals.append(number)
    tell("draining")
    if len(set(signals)) > 1:
        os._exit(7)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, drain)
tell("ready")
while True:
    signal.pause()
"""
DRAINS_AT_ONCE = f"""{BEGIN}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
tell("ready")
while True:
    signal.pause()
"""
IGNORES_SIGNALS = f"""{BEGIN}
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
tell("ready")
while True:
    signal.pause()
"""
PARENT = """
import sys
from headrace.scaling.actuators.processes import ProcessActuator
child = "import sys; print('up', flush=True); sys.stdin.buffer.read()"
actuator = ProcessActuator([sys.executable, "-I", "-S", "-c", child], stop_s=5.0)
actuator.scale(2)
sys.stdin.read()
"""


class Events:
    """The words that children write to a pipe with a name."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path = str(path)
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.words = []

    def wait_for(self, word, count=1):
        """Block until children have written the word so many times in total."""
        while self.words.count(word) < count:
            ready, _, _ = select.select([self._file], [], [], WAIT_S)
            assert ready, f"children wrote only {self.words}"
            self.words += os.read(self._file, 4096).decode().split()

    def close(self):
        os.close(self._file)


@pytest.fixture
def events(tmp_path):
    found = Events(tmp_path / "events")
    yield found
    found.close()


@pytest.fixture
def clock():
    return ManualClock(1_000.0)


@pytest.fixture
def actuator_of(clock, events):
    """Return a function that makes an actuator of a program. No child survives the test."""
    made = []

    def make(program=READS_STDIN, *, stop_s=30.0, command=None) -> ProcessActuator:
        actuator = ProcessActuator(
            command or [*PYTHON, program],
            environ={**os.environ, "EVENTS": events.path},
            stop_s=stop_s,
            clock=clock,
        )
        made.append((actuator, actuator._workers))
        return actuator

    yield make
    for actuator, _ in made:
        for worker in actuator._workers:
            with suppress(ProcessLookupError):
                worker.process.kill()
        actuator.stop(drain=False)


def processes(actuator):
    return [worker.process for worker in actuator._workers]


def record_of(pid, **fields):
    return record(f"w-{pid}", pid=pid, **{"host": socket.gethostname(), **fields})


def register(actuator, pids=None):
    """Let workers appear in the registry. Return the members of the pool."""
    return actuator.members([record_of(pid) for pid in (pids or actuator.pids)])


def fail(actuator, workers=1):
    """Let all workers of a pool that fail end. Return the error of the next round."""
    for process in processes(actuator):
        process.wait(WAIT_S)
    assert actuator.members([]).count == 0
    with pytest.raises(ActuatorError) as caught:
        actuator.scale(workers)
    return str(caught.value)


# Members


def test_new_processes_are_starting_until_they_register(actuator_of):
    actuator = actuator_of()
    actuator.scale(3)
    first, second, third = actuator.pids
    assert actuator.members([]).starting == 3
    found = register(actuator, [second])
    assert ([each.info.pid for each in found.registered], found.starting) == ([second], 2)
    assert register(actuator, [first, second, third]).starting == 0


@for_each("fields", [{"host": "other"}, {"pid": 1}])
def test_workers_of_others_are_no_members(fields):
    clock = ManualClock()
    actuator = ProcessActuator([*PYTHON, READS_STDIN], stop_s=WAIT_S, clock=clock)
    actuator.scale(1)
    (pid,) = actuator.pids
    found = actuator.members([record("w", **{"host": socket.gethostname(), "pid": pid, **fields})])
    actuator.stop()
    assert (found.registered, found.starting) == ((), 1)


def test_only_missing_processes_start(actuator_of):
    actuator = actuator_of()
    actuator.scale(2)
    before = actuator.pids
    actuator.scale(2)
    actuator.scale(1)
    actuator.scale(0)
    assert actuator.pids == before
    actuator.scale(3)
    assert actuator.pids[:2] == before
    assert len(actuator.pids) == 3


def test_actuator_ends_what_it_is_told(actuator_of):
    assert actuator_of().ends_chosen


def test_chosen_workers_end_and_no_other(actuator_of):
    actuator = actuator_of()
    actuator.scale(3)
    first, second, third = processes(actuator)
    register(actuator)
    actuator.scale(2, [record_of(second.pid)])
    assert second.wait(WAIT_S) == -signal.SIGTERM
    assert register(actuator, [first.pid, second.pid, third.pid]).count == 2
    assert (actuator.pids, first.poll(), third.poll()) == ([first.pid, third.pid], None, None)


def test_worker_that_ends_is_no_member_while_it_drains(actuator_of, events):
    actuator = actuator_of(DRAINS)
    actuator.scale(2)
    events.wait_for("ready", 2)
    first, second = actuator.pids
    actuator.scale(1, [record_of(first)])
    events.wait_for("draining")
    assert [each.info.pid for each in register(actuator, [first, second]).registered] == [second]
    actuator.scale(1, [record_of(first)])
    assert actuator.pids == [first, second]
    # A new worker need not wait for its end.
    actuator.scale(2)
    assert len(actuator.pids) == 3
    assert events.words.count("draining") == 1


def test_end_of_a_chosen_worker_is_no_failure(actuator_of):
    actuator = actuator_of()
    actuator.scale(1)
    (process,) = processes(actuator)
    actuator.scale(0, [record_of(process.pid)])
    process.wait(WAIT_S)
    assert actuator.members([]).count == 0
    actuator.scale(2)
    assert len(actuator.pids) == 2


def test_chosen_worker_that_does_not_end_is_killed(actuator_of, events, clock):
    actuator = actuator_of(IGNORES_SIGNALS, stop_s=20.0)
    actuator.scale(2)
    events.wait_for("ready", 2)
    first, second = processes(actuator)
    kills = []
    kill = first.kill

    def kill_first():
        kills.append(clock.now())
        kill()

    first.kill = kill_first
    for after_s in (0.0, 10.0, 10.0, 0.001):
        clock.advance(after_s)
        actuator.scale(1, [record_of(first.pid)])
    assert first.wait(WAIT_S) == -signal.SIGKILL
    assert kills == [1_020.001]
    assert second.poll() is None


# Processes


def test_process_has_a_session_and_the_given_variables(actuator_of, events, monkeypatch):
    monkeypatch.setenv("INHERITED", "yes")
    actuator = actuator_of(f"{BEGIN}tell(os.environ['INHERITED']); sys.stdin.read()")
    actuator.scale(1)
    events.wait_for("yes")
    (pid,) = actuator.pids
    # Ctrl-C of a terminal reaches its session only.
    assert os.getsid(pid) == pid


def test_workers_end_when_their_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert [parent.stdout.readline(), parent.stdout.readline()] == [b"up\n", b"up\n"]
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        # The children hold the other end of this pipe: it ends with the last one.
        output, _ = parent.communicate(timeout=WAIT_S)
    assert (output, parent.returncode) == (b"", -signal.SIGKILL)


# Failures


def test_pause_after_failures_doubles_up_to_a_minute(actuator_of, clock):
    actuator = actuator_of(FAILS)
    actuator.scale(1)
    pauses_s = []
    for expected_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        clock.advance(0.5)
        fail(actuator)
        clock.advance(expected_s - 0.001)
        with pytest.raises(ActuatorError):
            actuator.scale(1)
        assert processes(actuator) == []
        clock.advance(0.001)
        with suppress(ActuatorError):
            actuator.scale(1)
        pauses_s.append(len(processes(actuator)))
    assert pauses_s == [1] * 8


def test_one_worker_tries_after_a_failure(actuator_of, clock):
    actuator = actuator_of(FAILS)
    actuator.scale(3)
    clock.advance(0.5)
    fail(actuator, 3)
    clock.advance(60.0)
    actuator._command = [*PYTHON, READS_STDIN]
    for _ in range(2):
        with pytest.raises(ActuatorError):
            actuator.scale(3)
        assert len(actuator.pids) == 1
    register(actuator)
    actuator.scale(3)
    assert len(actuator.pids) == 3


def test_next_worker_tries_if_the_last_one_is_slow(actuator_of, clock):
    actuator = actuator_of(FAILS)
    actuator.scale(3)
    clock.advance(0.5)
    fail(actuator, 3)
    actuator._command = [*PYTHON, READS_STDIN]
    started = []
    for after_s in (1.0, 59.999, 0.001, 59.999, 0.001):
        clock.advance(after_s)
        with pytest.raises(ActuatorError):
            actuator.scale(3)
        started.append(len(actuator.pids))
    assert started == [1, 1, 2, 2, 3]


def test_workers_that_fail_together_are_one_failure(actuator_of, clock):
    actuator = actuator_of(FAILS)
    actuator.scale(4)
    clock.advance(0.5)
    fail(actuator, 4)
    clock.advance(1.0)
    with pytest.raises(ActuatorError):
        actuator.scale(4)
    assert len(processes(actuator)) == 1
    clock.advance(0.5)
    fail(actuator, 4)
    clock.advance(1.999)
    with pytest.raises(ActuatorError):
        actuator.scale(4)
    assert processes(actuator) == []


def test_error_is_the_same_until_a_worker_registers(actuator_of, clock):
    actuator = actuator_of(FAILS)
    actuator.scale(2)
    clock.advance(0.5)
    errors = [fail(actuator, 2)]
    for _ in range(3):
        for after_s in (30.0, 60.0, 0.5):
            clock.advance(after_s)
            with pytest.raises(ActuatorError) as caught:
                actuator.scale(2)
            errors.append(str(caught.value))
        errors.append(fail(actuator, 2))
    expected = "a worker ended with status 3 soon after its start: its log says why. "
    assert set(errors) == {expected + "The next one starts after a pause"}
    actuator._command = [*PYTHON, READS_STDIN]
    clock.advance(60.0)
    with pytest.raises(ActuatorError):
        actuator.scale(2)
    register(actuator)
    actuator.scale(2)
    assert len(actuator.pids) == 2


def test_failure_matters_only_while_workers_are_missing(actuator_of, clock):
    actuator = actuator_of()
    actuator.scale(2)
    first, second = processes(actuator)
    register(actuator)
    clock.advance(1.0)
    first.kill()
    first.wait(WAIT_S)
    assert register(actuator, [second.pid]).count == 1
    actuator.scale(1)
    with pytest.raises(ActuatorError, match="ended with status -9 soon after its start"):
        actuator.scale(2)


@for_each(
    ("registered", "life_s", "paused"),
    [(True, 9.999, True), (True, 10.0, False), (False, 0.1, True), (False, 3600.0, True)],
)
def test_worker_that_registered_and_lived_is_replaced_at_once(registered, life_s, paused):
    clock = ManualClock(1_000.0)
    actuator = ProcessActuator([*PYTHON, READS_STDIN], stop_s=WAIT_S, clock=clock)
    actuator.scale(1)
    (process,) = processes(actuator)
    if registered:
        register(actuator)
    clock.advance(life_s)
    process.kill()
    process.wait(WAIT_S)
    assert actuator.members([]).count == 0
    if paused:
        with pytest.raises(ActuatorError):
            actuator.scale(1)
    else:
        actuator.scale(1)
    assert len(actuator.pids) == (0 if paused else 1)
    actuator.stop()


def test_worker_from_before_a_failure_does_not_end_the_pause(actuator_of, clock):
    actuator = actuator_of()
    actuator.scale(1)
    (old,) = actuator.pids
    clock.advance(100.0)
    actuator._command = [*PYTHON, FAILS]
    actuator.scale(2)
    clock.advance(0.5)
    processes(actuator)[1].wait(WAIT_S)
    register(actuator, [old])
    for _ in range(2):
        with pytest.raises(ActuatorError):
            actuator.scale(2)
        assert register(actuator, [old]).count == 1


def test_command_that_does_not_exist_is_an_actuator_error(actuator_of):
    actuator = actuator_of(command=["/does/not/exist"])
    for _ in range(2):
        with pytest.raises(ActuatorError, match=r"a worker cannot be started: .*'/does/not/exist'"):
            actuator.scale(1)
    assert actuator.members([]).count == 0


def test_chosen_workers_end_although_others_cannot_start(actuator_of):
    actuator = actuator_of()
    actuator.scale(1)
    (process,) = processes(actuator)
    actuator._command = ["/does/not/exist"]
    with pytest.raises(ActuatorError):
        actuator.scale(1, [record_of(process.pid)])
    assert process.wait(WAIT_S) == -signal.SIGTERM


# Stop


def test_stop_waits_for_the_end_of_drains(actuator_of, events, monkeypatch):
    monkeypatch.setattr(processes_module, "_KILL_S", 0.0)
    actuator = actuator_of(DRAINS_AT_ONCE)
    actuator.scale(2)
    events.wait_for("ready", 2)
    children = processes(actuator)
    actuator.stop()
    assert [process.poll() for process in children] == [0, 0]
    assert all(process.stdin.closed for process in children)
    assert actuator.pids == []


def test_stop_kills_workers_that_need_too_long(actuator_of, events):
    actuator = actuator_of(IGNORES_SIGNALS, stop_s=0.01)
    actuator.scale(2)
    events.wait_for("ready", 2)
    children = processes(actuator)
    actuator.stop()
    assert [process.poll() for process in children] == [-signal.SIGKILL] * 2


def test_stop_without_drain_hurries_workers(actuator_of, events):
    actuator = actuator_of(DRAINS)
    actuator.scale(1)
    events.wait_for("ready")
    (process,) = processes(actuator)
    actuator.stop(drain=False)
    assert process.poll() == 7


def test_second_stop_without_drain_hurries_the_first(actuator_of, events):
    actuator = actuator_of(DRAINS, stop_s=600.0)
    actuator.scale(2)
    events.wait_for("ready", 2)
    children = processes(actuator)
    first = threading.Thread(target=actuator.stop)
    first.start()
    events.wait_for("draining", 2)
    assert [process.poll() for process in children] == [None, None]
    actuator.stop(drain=False)
    first.join(WAIT_S)
    assert not first.is_alive()
    assert [process.poll() for process in children] == [7, 7]


def test_no_worker_starts_after_a_stop(actuator_of):
    actuator = actuator_of()
    actuator.stop()
    actuator.scale(2)
    assert actuator.members([]).count == 0


def test_actuator_is_a_service():
    def make():
        actuator = ProcessActuator([*PYTHON, READS_STDIN], stop_s=WAIT_S)
        actuator.scale(1)
        return actuator

    check_service(make)
