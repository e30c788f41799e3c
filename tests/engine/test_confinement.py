"""What bounds a process, with and without control groups, and what is left of it: nothing."""

import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from engine.support import WAIT_S
from headrace.core.errors import ConfigError
from headrace.engine import confinement
from headrace.engine.cgroup import Group
from headrace.engine.confinement import Confinement, in_session, threads_of
from headrace.engine.death import OutOfMemory
from headrace.engine.settings import ServeSettings


@pytest.fixture
def process():
    """One of its own session, with a child in a process group of its own."""
    code = (
        "import subprocess, sys, signal\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], process_group=0)\n"
        "print(child.pid, flush=True)\nsignal.pause()"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    started.child = int(started.stdout.readline())
    yield started
    started.stdout.close()
    for pid in (started.child, started.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    started.wait()


@pytest.fixture
def no_groups(monkeypatch):
    monkeypatch.setattr(confinement, "own_groups", dict)


def test_without_bounds_nothing_is_made(process, monkeypatch):
    monkeypatch.setattr(confinement, "made_in", lambda *_: pytest.fail("a group"))
    held = Confinement("m", ServeSettings())
    held.hold(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == resource.getrlimit(resource.RLIMIT_DATA)
    assert held.out_of_memory() is not OutOfMemory.YES
    held.remove()


def test_limits_stand_in_for_groups(process, no_groups, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(confinement, "threads_of", lambda user: user)
    held = Confinement("m", ServeSettings(memory_bytes_max=2**30, processes_max=10))
    held.hold(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (2**30, 2**30)
    assert resource.prlimit(process.pid, resource.RLIMIT_NPROC)[0] <= 1010
    held.remove()


def test_a_limit_is_never_raised(process, no_groups):
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (2**29, 2**29))
    Confinement("m", ServeSettings(memory_bytes_max=2**30)).hold(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (2**29, 2**29)


def test_a_limit_on_processes_binds_who_is_not_root():
    """The real one, of another user: on top of what that user runs already, one is allowed, and its child is refused."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    user = 64_321
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)

    def begin(most):
        return subprocess.Popen(
            # By one of two names, as the shell has it.
            [
                "/bin/sh",
                "-c",
                f"{{ ulimit -p {most} 2>&- || ulimit -u {most}; }}; read line; /bin/true; echo done",
            ],
            **pipes,
            text=True,
            user=user,
            cwd="/",
        )

    with begin(100) as already:
        assert threads_of(user) == 1
        with begin(threads_of(user) + 1) as bound:
            said, error = bound.communicate("\n", WAIT_S)
        assert already.communicate("\n", WAIT_S) == ("done\n", "")
    assert "done" not in said
    assert "fork" in error.lower()


def test_what_binds_nobody_is_refused(no_groups, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="root is bound by no other limit"):
        Confinement("m", ServeSettings(processes_max=10))


def test_a_group_that_takes_nobody_is_given_up(process, tmp_path, monkeypatch):
    """Limits stand in for it, and its folder goes."""
    own = Group(tmp_path, 1)
    made = []

    def make(own, controllers):
        folder = own.folder / "made"
        folder.mkdir()
        made.append(folder)
        return Group(folder, 1)

    def refuse(self, *_):
        raise PermissionError("no")

    monkeypatch.setattr(confinement, "own_groups", lambda: {"memory": own})
    monkeypatch.setattr(confinement, "made_in", make)
    monkeypatch.setattr(Group, "limit_memory", lambda *_: None)
    monkeypatch.setattr(Group, "add", refuse)
    held = Confinement("m", ServeSettings(memory_bytes_max=2**30))
    held.hold(process.pid)
    assert [folder.exists() for folder in made] == [False]
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (2**30, 2**30)
    monkeypatch.setattr(Group, "limit_memory", refuse)
    Confinement("m", ServeSettings(memory_bytes_max=2**30))
    assert [folder.exists() for folder in made] == [False, False]


def test_bounds_in_one_place_have_one_group(tmp_path, monkeypatch):
    """A process is in one group of version 2."""
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    own = Group(tmp_path, 2)
    monkeypatch.setattr(confinement, "own_groups", lambda: {"memory": own, "pids": own})
    Confinement("m", ServeSettings(memory_bytes_max=2**30, processes_max=9))
    (made,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    assert {p.name: p.read_text() for p in made.iterdir()} == {"memory.max": f"{2**30}\n", "pids.max": "9\n"}


@pytest.mark.parametrize(
    ("kills", "peak", "found"),
    [
        (1, 100, OutOfMemory.YES),
        (0, 96, OutOfMemory.PROBABLY),
        (0, 94, OutOfMemory.NO),
        (None, None, OutOfMemory.NO),
    ],
)
def test_a_group_of_its_own_tells_of_its_memory(tmp_path, monkeypatch, kills, peak, found):
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    monkeypatch.setattr(confinement, "own_groups", lambda: {"memory": Group(tmp_path, 2)})
    held = Confinement("m", ServeSettings(memory_bytes_max=100))
    (made,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    if kills is not None:
        (made / "memory.events").write_text(f"oom_kill {kills}\n")
        (made / "memory.peak").write_text(f"{peak}\n")
    assert held.out_of_memory() is found


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ((3, 4), OutOfMemory.PROBABLY),
        ((3, 3), OutOfMemory.NO),
        ((None, 3), OutOfMemory.UNKNOWN),
        ((3, None), OutOfMemory.UNKNOWN),
    ],
)
def test_a_group_that_is_shared_tells_what_is_likely(monkeypatch, counts, found):
    """Somebody else may have been killed."""
    told = iter(counts)
    monkeypatch.setattr(confinement, "counted", lambda _: next(told))
    assert Confinement("m", ServeSettings()).out_of_memory() is found


def test_a_session_ends_with_its_leader(process):
    """Once the leader has ended, and before its number is anybody's."""
    assert set(in_session(process.pid)) == {process.pid, process.child}
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    held = Confinement("m", ServeSettings())
    held.end_session(process.pid)
    assert in_session(process.pid) == []
    held.remove()


def test_threads_of_a_user_are_counted():
    before = threads_of(os.geteuid())
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        assert threads_of(os.geteuid()) >= 41
        assert before >= 1
    finally:
        end.set()
        for thread in threads:
            thread.join()
