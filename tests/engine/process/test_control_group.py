"""Control groups: the kernel's files of both versions, and groups of the version on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.process import process_limits
from headrace.engine.process.process_limits import ControlGroup, count_oom_kills, create_group, own_groups

V1 = """\
9:name=systemd:/
8:pids:/jobs
4:memory,hugetlb:/docker/abc
0::/
"""
V2 = "0::/system.slice/headrace.service/main\n"


def _mount(place, root, kind, options):
    return f"35 31 0:32 {root} {place} rw,relatime shared:5 - {kind} cgroup rw,{options}\n"


@pytest.fixture
def proc(tmp_path):
    """Yield a ``/proc`` whose groups are folders of this test."""
    (tmp_path / "proc/self").mkdir(parents=True)

    def tell(groups, mounts):
        (tmp_path / "proc/self/cgroup").write_text(groups)
        (tmp_path / "proc/self/mountinfo").write_text(mounts)
        return tmp_path / "proc"

    return tell


def _folder(path, **files):
    path.mkdir(parents=True, exist_ok=True)
    for name, text in {"cgroup.procs": "", **{k.replace("__", "."): v for k, v in files.items()}}.items():
        (path / name).write_text(text)
    return path


def test_own_groups_of_version_1(tmp_path, proc):
    """Each controller has a path of its own; in a container, the root of the mount is part of it."""
    pids, memory = _folder(tmp_path / "pids/jobs"), _folder(tmp_path / "memory")
    mounts = _mount(tmp_path / "pids", "/", "cgroup", "pids")
    mounts += _mount(tmp_path / "memory", "/docker/abc", "cgroup", "hugetlb,memory")
    assert own_groups(proc(V1, mounts)) == {"pids": ControlGroup(pids, 1), "memory": ControlGroup(memory, 1)}


def test_own_groups_of_version_2(tmp_path, proc):
    """One path for all controllers."""
    folder = _folder(tmp_path / "system.slice/headrace.service/main", cgroup__controllers="cpu memory\n")
    mounts = _mount(tmp_path, "/", "cgroup2", "nsdelegate")
    assert own_groups(proc(V2, mounts)) == {"memory": ControlGroup(folder, 2)}


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [("", ""), (V2, ""), ("0::/../other\n", _mount("/sys/fs/cgroup", "/", "cgroup2", "x"))],
)
def test_invisible_group_is_skipped(proc, groups, mounts):
    """No files, no mounts, a path outside of the mount."""
    assert own_groups(proc(groups, mounts)) == {}


def test_own_groups_without_proc_files(tmp_path):
    assert own_groups(tmp_path) == {}


def test_counts_of_either_version(tmp_path):
    """None for a missing file or line."""
    old = ControlGroup(
        _folder(tmp_path / "1", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 1
    )
    new = ControlGroup(
        _folder(
            tmp_path / "2",
            memory__events="max 9\noom 2\noom_kill 1\noom_group_kill 1\n",
            memory__peak="512\n",
        ),
        2,
    )
    assert (old.oom_kills(), new.oom_kills()) == (3, 1)
    assert (old.memory_peak_bytes(), new.memory_peak_bytes()) == (None, 512)
    assert count_oom_kills({"memory": new}) == 1
    (old.folder / "memory.oom_control").write_text("under_oom 0\n")
    assert old.oom_kills() is None


def test_machine_count_replaces_missing_group_count():
    machine = count_oom_kills({})
    assert machine is None or machine >= 0


def test_limits_of_version_2(tmp_path):
    """All that the kernel offers is set: no swap, and the group is killed as a whole."""
    files = {
        "memory__max": "",
        "memory__swap__max": "",
        "memory__oom__group": "",
        "pids__max": "",
        "cgroup__kill": "",
    }
    group = ControlGroup(_folder(tmp_path / "g", **files), 2)
    group.limit_memory(100)
    group.limit_processes(7)
    group.add(12)
    read = {p.name: p.read_text().strip() for p in group.folder.iterdir()}
    assert read == {
        "memory.max": "100",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "7",
        "cgroup.procs": "12",
        "cgroup.kill": "",
    }
    assert group.members() == [12]
    group.kill()
    assert ((group.folder / "cgroup.kill").read_text(), (group.folder / "pids.max").read_text()) == (
        "1\n",
        "0\n",
    )


def test_version_2_group_is_made_beside_own_delegated_group(tmp_path, monkeypatch):
    """A group with processes cannot limit children: the kernel refuses, as a folder does here."""
    service = _folder(tmp_path / "service", cgroup__subtree_control="memory\n")
    main = _folder(service / "main")
    (main / "cgroup.subtree_control").mkdir()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    made = create_group(ControlGroup(main, 2), ["memory"])
    assert made.folder.parent == service
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(OSError):
        create_group(ControlGroup(main, 2), ["memory"])
    monkeypatch.setattr("os.getxattr", lambda _, name: b"1" if name == "user.delegate" else b"0")
    assert create_group(ControlGroup(main, 2), ["memory"]).folder.parent == service


def test_missing_controllers_are_enabled(tmp_path):
    root = _folder(tmp_path / "root", cgroup__subtree_control="cpu\n")
    made = create_group(ControlGroup(root, 2), ["memory", "pids"])
    assert (root / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert made.folder.parent == root


def test_groups_of_killed_processes_are_removed(tmp_path):
    """Groups of live processes, and groups in use, stay."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    base = _folder(tmp_path / "own")
    left, used = base / f"headrace-{gone.pid}-1", base / f"headrace-{gone.pid}-2"
    living = base / f"headrace-{os.getpid()}-3"
    for folder in (left, used, living, base / "headrace-x-4"):
        folder.mkdir()
    (used / "child").mkdir()
    made = create_group(ControlGroup(base, 1), ["memory"])
    assert {p.name for p in base.iterdir() if p.is_dir()} == {
        used.name,
        living.name,
        "headrace-x-4",
        made.folder.name,
    }


def test_remove_of_missing_group_does_nothing(tmp_path):
    ControlGroup(tmp_path / "none", 1).remove()


# With the kernel


@pytest.mark.parametrize("controller", ["memory", "pids"])
def test_real_group_takes_process_and_is_removed(controller):
    """Of the version on this machine."""
    own = own_groups().get(controller)
    if own is None or not os.access(own.folder, os.W_OK):
        pytest.skip(f"no control group of {controller} can be made here")
    try:
        group = create_group(own, [controller])
    except OSError as error:
        pytest.skip(f"no control group of {controller} can be made here: {error}")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        if controller == "memory":
            group.limit_memory(2**26)
            assert group.oom_kills() == 0
            assert group.memory_peak_bytes() is not None
        else:
            group.limit_processes(5)
        group.add(process.pid)
        assert group.members() == [process.pid]
        assert group.folder.name in Path(f"/proc/{process.pid}/cgroup").read_text()
        with pytest.raises(OSError):
            group.remove()
    finally:
        process.communicate(b"\n")
        group.remove()
    assert not group.folder.exists()


def test_group_names_share_prefix():
    assert process_limits.PREFIX == "headrace"
