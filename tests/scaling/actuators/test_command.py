"""The actuator that runs a command, with real commands, and the one that does nothing."""

import os
import signal
import sys

import pytest

from headrace.core.errors import ActuatorError, ConfigError
from headrace.scaling.actuator import Members
from headrace.scaling.actuators.command import OUTPUT_BYTES_MAX, CommandActuator
from headrace.scaling.actuators.publish import PublishOnly
from headrace.testing import ManualClock, check_service
from scaling.records import drained, record
from servers.polling import wait_until

SCRIPT = """
import os, sys
from pathlib import Path

folder = Path(__file__).parent
variables = [os.environ["HEADRACE_WORKERS"], os.environ["HEADRACE_POOL"]]
with (folder / "calls").open("a") as calls:
    print(*sys.argv[1:], *variables, file=calls)
if (folder / "fault").exists():
    exec((folder / "fault").read_text())
"""


class Pool:
    """A command that writes down its calls, and the actuator that runs it."""

    def __init__(self, folder):
        self.script = folder / "set_size.py"
        self.script.write_text(SCRIPT)
        self.clock = ManualClock()
        self.actuator = self.open()

    def open(self, arguments="--size={workers}", **settings):
        command = f"{sys.executable} '{self.script}' {arguments}"
        return CommandActuator(command, pool="gpus", clock=self.clock, **settings)

    @property
    def calls(self):
        """The arguments and variables of every call, in order."""
        file = self.script.with_name("calls")
        return file.read_text().splitlines() if file.exists() else []

    def fail(self, code):
        self.script.with_name("fault").write_text(code)

    def recover(self):
        self.script.with_name("fault").unlink()


@pytest.fixture
def pool(tmp_path):
    # A space in the path shows that the command is split as a shell would do.
    folder = tmp_path / "my scripts"
    folder.mkdir()
    return Pool(folder)


def test_command_receives_the_number_in_its_arguments_and_environment(pool):
    pool.actuator.scale(3)
    assert pool.calls == ["--size=3 3 gpus"]


def test_command_may_read_the_number_from_the_environment_alone(pool):
    pool.open("--group 'a b; $HOME *'").scale(2)
    assert pool.calls == ["--group a b; $HOME * 2 gpus"]


def test_command_runs_only_for_a_new_number(pool):
    for workers in (3, 3, 4, 4, 3):
        pool.actuator.scale(workers, [drained("w")])
    assert [call.split()[1] for call in pool.calls] == ["3", "4", "3"]


def test_command_runs_first_also_for_no_workers(pool):
    pool.actuator.scale(0)
    assert pool.calls == ["--size=0 0 gpus"]


def test_command_is_repeated_for_pools_changed_by_hand(pool):
    pool.actuator.scale(3)
    pool.clock.advance(299)
    pool.actuator.scale(3)
    assert len(pool.calls) == 1
    pool.clock.advance(1)
    pool.actuator.scale(3)
    pool.actuator.scale(3)
    assert len(pool.calls) == 2


def test_failed_command_is_repeated_at_once(pool):
    pool.fail("sys.exit('no quota left')")
    for _ in range(2):
        with pytest.raises(ActuatorError, match=r"exit status 1.*pool gpus to 3 workers.*no quota left"):
            pool.actuator.scale(3)
    pool.recover()
    pool.actuator.scale(3)
    pool.actuator.scale(3)
    assert len(pool.calls) == 3


def test_old_number_is_repeated_after_a_failure_of_a_new_one(pool):
    """The failed command may have changed the pool before it failed."""
    pool.actuator.scale(3)
    pool.fail("sys.exit(1)")
    with pytest.raises(ActuatorError):
        pool.actuator.scale(5)
    assert pool.actuator.members([]).starting == 3
    pool.recover()
    pool.actuator.scale(3)
    assert [call.split()[1] for call in pool.calls] == ["3", "5", "3"]


def test_error_has_the_end_of_the_output(pool):
    pool.fail("print('x' * 1_000_000, flush=True); os.write(2, b'\\xffthe reason'); sys.exit(7)")
    with pytest.raises(ActuatorError, match="exit status 7") as caught:
        pool.actuator.scale(1)
    text = str(caught.value)
    assert text.endswith("x\n\N{REPLACEMENT CHARACTER}the reason")
    assert OUTPUT_BYTES_MAX < len(text) < OUTPUT_BYTES_MAX + 500


def test_error_names_no_argument(pool):
    """Arguments may have secrets."""
    pool.fail("sys.exit(1)")
    with pytest.raises(ActuatorError) as caught:
        pool.open("--token s3cret").scale(1)
    assert "s3cret" not in str(caught.value)
    assert f"the command {sys.executable} failed" in str(caught.value)


def test_signal_is_reported(pool):
    pool.fail("os.kill(os.getpid(), 9)")
    with pytest.raises(ActuatorError, match="ended by signal 9"):
        pool.actuator.scale(1)


def test_program_removed_later_is_an_error_of_the_actuator(pool, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    actuator = CommandActuator(str(program), pool="gpus")
    program.unlink()
    with pytest.raises(ActuatorError, match=r"did not start: .*No such file"):
        actuator.scale(1)


class Holders:
    """A named pipe that a command and its child hold open for writing, and write a letter into."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.letters = ""

    def are_gone(self):
        """Read, and return True if no process has the pipe open any more."""
        try:
            data = os.read(self._reader, 100)
        except BlockingIOError:
            return False
        self.letters += data.decode()
        return not data

    def close(self):
        os.close(self._reader)


@pytest.fixture
def holders(tmp_path):
    holders = Holders(tmp_path / "pipe")
    yield holders
    holders.close()


HOLD = "import os, signal; pipe = os.open({path!r}, os.O_WRONLY); os.write(pipe, b'{letter}'); "
WAIT = "signal.alarm(300); signal.pause()"


@pytest.mark.parametrize("closes", [False, True])
def test_command_that_hangs_is_killed_with_its_children(pool, holders, closes):
    """The command hangs with its output open, and also when it has closed its output."""
    child = HOLD.format(path=str(holders.path), letter="c") + WAIT
    pool.fail(
        HOLD.format(path=str(holders.path), letter="p")
        + "import subprocess\n"
        + "print('waiting', flush=True)\n"
        + ("os.close(1); os.close(2)\n" if closes else "")
        + f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    with pytest.raises(ActuatorError, match=r"ran for 2 s and was killed.*waiting"):
        pool.open(timeout_s=2.0).scale(1)
    wait_until(holders.are_gone, "the end of the command and its child", timeout_s=20)
    assert holders.letters == "pc"


def test_child_that_a_command_leaves_does_not_delay_it(pool, holders):
    """The child has the output of the command open. It keeps running: the operator wants it so."""
    child = HOLD.format(path=str(holders.path), letter="c") + WAIT
    pool.fail(
        "import subprocess\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print('child', child.pid, flush=True)\n"
        "sys.exit(4)"
    )
    with pytest.raises(ActuatorError, match=r"exit status 4.*child \d+") as caught:
        pool.open(timeout_s=20.0).scale(1)
    wait_until(lambda: not holders.are_gone() and holders.letters == "c", "a living child", timeout_s=20)
    os.kill(int(str(caught.value).split()[-1]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("no-such-program-here {workers}", "'no-such-program-here' does not exist"),
        ("./no-such-file.sh", "'./no-such-file.sh' does not exist"),
        ("echo 'open", "No closing quotation"),
    ],
)
def test_wrong_command_is_refused(command, reason):
    with pytest.raises(ConfigError, match=reason):
        CommandActuator(command, pool="gpus")


def test_members_are_the_living_workers_and_those_that_start(pool):
    living = (record("a", running=2), drained("b"))
    assert pool.actuator.members(living) == Members(living)
    pool.actuator.scale(5)
    assert pool.actuator.members(living) == Members(living, starting=3)
    pool.actuator.scale(1)
    assert pool.actuator.members(living) == Members(living)


def test_machine_that_never_comes_up_stops_counting(pool):
    pool.actuator.scale(2)
    pool.clock.advance(599)
    pool.actuator.scale(2)  # a repetition is no change
    assert pool.actuator.members([record("a")]).starting == 1
    pool.clock.advance(1)
    assert pool.actuator.members([record("a")]).starting == 0
    pool.actuator.scale(3)
    assert pool.actuator.members([record("a")]).starting == 2


def test_actuator_cannot_choose(pool):
    assert not pool.actuator.ends_chosen
    assert not PublishOnly().ends_chosen


def test_actuators_are_services(pool):
    check_service(pool.open)
    check_service(PublishOnly)


def test_publishing_alone_counts_workers_and_starts_none():
    actuator = PublishOnly()
    actuator.scale(5)
    assert actuator.members([record("a")]) == Members((record("a"),))
