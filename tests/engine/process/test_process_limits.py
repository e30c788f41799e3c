"""Limits of a process, with and without control groups, and its clean-up."""

import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from engine.support import WAIT_S
from headrace.core.errors import ConfigError
from headrace.engine.process import process_limits
from headrace.engine.process.process_limits import (
    ControlGroup,
    OutOfMemory,
    ProcessLimits,
    count_threads,
    session_members,
)
from headrace.engine.settings import ServeSettings


@pytest.fixture
def process():
    """Yield a process in a session of its own, with a child in a process group of its own."""
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
    monkeypatch.setattr(process_limits, "own_groups", dict)


def test_no_group_without_limits(process, monkeypatch):
    monkeypatch.setattr(process_limits, "create_group", lambda *_: pytest.fail("a group"))
    held = ProcessLimits("m", ServeSettings())
    held.apply(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == resource.getrlimit(resource.RLIMIT_DATA)
    assert held.out_of_memory() is not OutOfMemory.YES
    held.remove()


def test_rlimits_replace_missing_groups(process, no_groups, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(process_limits, "count_threads", lambda user: user)
    held = ProcessLimits("m", ServeSettings(memory_bytes_max=2**30, processes_max=10))
    held.apply(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (2**30, 2**30)
    assert resource.prlimit(process.pid, resource.RLIMIT_NPROC)[0] <= 1010
    held.remove()


def test_hard_limit_is_never_raised(process, no_groups):
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (2**29, 2**29))
    ProcessLimits("m", ServeSettings(memory_bytes_max=2**30)).apply(process.pid)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (2**29, 2**29)


def test_process_limit_binds_other_users_than_root():
    """With the real limit and another user: one process more than that user runs is allowed, not
    its child.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    user = 64_321
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)

    def begin(most):
        return subprocess.Popen(
            # By one of two names, as shells differ.
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
        assert count_threads(user) == 1
        with begin(count_threads(user) + 1) as bound:
            said, error = bound.communicate("\n", WAIT_S)
        assert already.communicate("\n", WAIT_S) == ("done\n", "")
    assert "done" not in said
    assert "fork" in error.lower()


def test_ineffective_limit_is_refused(no_groups, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="no other limit binds root"):
        ProcessLimits("m", ServeSettings(processes_max=10))


def test_unusable_group_is_removed(process, tmp_path, monkeypatch):
    """Resource limits replace it."""
    own = ControlGroup(tmp_path, 1)
    made = []

    def make(own, controllers):
        folder = own.folder / "made"
        folder.mkdir()
        made.append(folder)
        return ControlGroup(folder, 1)

    def refuse(self, *_):
        raise PermissionError("no")

    monkeypatch.setattr(process_limits, "own_groups", lambda: {"memory": own})
    monkeypatch.setattr(process_limits, "create_group", make)
    monkeypatch.setattr(ControlGroup, "limit_memory", lambda *_: None)
    monkeypatch.setattr(ControlGroup, "add", refuse)
    held = ProcessLimits("m", ServeSettings(memory_bytes_max=2**30))
    held.apply(process.pid)
    assert [folder.exists() for folder in made] == [False]
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (2**30, 2**30)
    monkeypatch.setattr(ControlGroup, "limit_memory", refuse)
    ProcessLimits("m", ServeSettings(memory_bytes_max=2**30))
    assert [folder.exists() for folder in made] == [False, False]


def test_limits_under_one_parent_share_group(tmp_path, monkeypatch):
    """A process is in one group of version 2."""
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    own = ControlGroup(tmp_path, 2)
    monkeypatch.setattr(process_limits, "own_groups", lambda: {"memory": own, "pids": own})
    ProcessLimits("m", ServeSettings(memory_bytes_max=2**30, processes_max=9))
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
def test_own_group_reports_out_of_memory(tmp_path, monkeypatch, kills, peak, found):
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    monkeypatch.setattr(process_limits, "own_groups", lambda: {"memory": ControlGroup(tmp_path, 2)})
    held = ProcessLimits("m", ServeSettings(memory_bytes_max=100))
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
def test_shared_group_reports_probable_out_of_memory(monkeypatch, counts, found):
    """Another process may have been killed."""
    kills = iter(counts)
    monkeypatch.setattr(process_limits, "count_oom_kills", lambda _: next(kills))
    assert ProcessLimits("m", ServeSettings()).out_of_memory() is found


def test_end_session_kills_session(process):
    """Once the leader has ended, and before its id is reused."""
    assert set(session_members(process.pid)) == {process.pid, process.child}
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    held = ProcessLimits("m", ServeSettings())
    held.end_session(process.pid)
    assert session_members(process.pid) == []
    held.remove()


def test_threads_of_user_are_counted():
    before = count_threads(os.geteuid())
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        assert count_threads(os.geteuid()) >= 41
        assert before >= 1
    finally:
        end.set()
        for thread in threads:
            thread.join()
