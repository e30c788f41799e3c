"""Control groups: what the kernel's files say of both versions, and groups of the version that is here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine import cgroup
from headrace.engine.cgroup import Group, counted, made_in, own_groups

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
    """A ``/proc`` whose groups are folders of this test."""
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
    """Each controller has its own place; of a container the root of what is mounted is inside."""
    pids, memory = _folder(tmp_path / "pids/jobs"), _folder(tmp_path / "memory")
    mounts = _mount(tmp_path / "pids", "/", "cgroup", "pids")
    mounts += _mount(tmp_path / "memory", "/docker/abc", "cgroup", "hugetlb,memory")
    assert own_groups(proc(V1, mounts)) == {"pids": Group(pids, 1), "memory": Group(memory, 1)}


def test_own_groups_of_version_2(tmp_path, proc):
    """One place for all controllers, those that there are."""
    folder = _folder(tmp_path / "system.slice/headrace.service/main", cgroup__controllers="cpu memory\n")
    mounts = _mount(tmp_path, "/", "cgroup2", "nsdelegate")
    assert own_groups(proc(V2, mounts)) == {"memory": Group(folder, 2)}


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [("", ""), (V2, ""), ("0::/../other\n", _mount("/sys/fs/cgroup", "/", "cgroup2", "x"))],
)
def test_what_cannot_be_seen_is_no_group(proc, groups, mounts):
    """No files, no mounts, a place outside of what is mounted."""
    assert own_groups(proc(groups, mounts)) == {}


def test_own_groups_where_nothing_tells(tmp_path):
    assert own_groups(tmp_path) == {}


def test_counts_of_either_version(tmp_path):
    """None where a file, or its line, is not there."""
    old = Group(
        _folder(tmp_path / "1", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 1
    )
    new = Group(
        _folder(
            tmp_path / "2",
            memory__events="max 9\noom 2\noom_kill 1\noom_group_kill 1\n",
            memory__peak="512\n",
        ),
        2,
    )
    assert (old.oom_kills(), new.oom_kills()) == (3, 1)
    assert (old.memory_peak_bytes(), new.memory_peak_bytes()) == (None, 512)
    assert counted({"memory": new}) == 1
    (old.folder / "memory.oom_control").write_text("under_oom 0\n")
    assert old.oom_kills() is None


def test_the_machines_count_stands_in_for_a_groups():
    """This kernel has one."""
    machine = counted({})
    assert machine is None or machine >= 0


def test_bounds_of_version_2(tmp_path):
    """What the kernel offers is used: no way out into swap, and nothing killed by half."""
    files = {
        "memory__max": "",
        "memory__swap__max": "",
        "memory__oom__group": "",
        "pids__max": "",
        "cgroup__kill": "",
    }
    group = Group(_folder(tmp_path / "g", **files), 2)
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


def test_a_group_of_version_2_is_made_beside_the_own_one_where_that_was_delegated(tmp_path, monkeypatch):
    """A group with processes can give its children nothing: the kernel refuses, as a folder does here."""
    service = _folder(tmp_path / "service", cgroup__subtree_control="memory\n")
    main = _folder(service / "main")
    (main / "cgroup.subtree_control").mkdir()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    made = made_in(Group(main, 2), ["memory"])
    assert made.folder.parent == service
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(OSError):
        made_in(Group(main, 2), ["memory"])
    monkeypatch.setattr("os.getxattr", lambda _, name: b"1" if name == "user.delegate" else b"0")
    assert made_in(Group(main, 2), ["memory"]).folder.parent == service


def test_missing_controllers_are_asked_for(tmp_path):
    root = _folder(tmp_path / "root", cgroup__subtree_control="cpu\n")
    made = made_in(Group(root, 2), ["memory", "pids"])
    assert (root / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert made.folder.parent == root


def test_what_a_killed_process_left_is_swept(tmp_path):
    """But nothing that a living one has, and nothing that is in use."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    base = _folder(tmp_path / "own")
    left, used = base / f"headrace-{gone.pid}-1", base / f"headrace-{gone.pid}-2"
    living = base / f"headrace-{os.getpid()}-3"
    for folder in (left, used, living, base / "headrace-x-4"):
        folder.mkdir()
    (used / "child").mkdir()
    made = made_in(Group(base, 1), ["memory"])
    assert {p.name for p in base.iterdir() if p.is_dir()} == {
        used.name,
        living.name,
        "headrace-x-4",
        made.folder.name,
    }


def test_a_group_that_is_not_there_is_removed_already(tmp_path):
    Group(tmp_path / "none", 1).remove()


# With the kernel


@pytest.mark.parametrize("controller", ["memory", "pids"])
def test_a_real_group_takes_a_process_and_goes(controller):
    """Of the version that is here."""
    own = own_groups().get(controller)
    if own is None or not os.access(own.folder, os.W_OK):
        pytest.skip(f"no control group of {controller} can be made here")
    try:
        group = made_in(own, [controller])
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


def test_its_names_begin_alike():
    assert cgroup.PREFIX == "headrace"
