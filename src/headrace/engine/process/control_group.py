"""Control groups, version 1 and 2: kernel limits of a process and all that it starts.

Reads ``/proc`` to find the groups of this process; makes groups below or beside them.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "headrace"
_PROC: Final = Path("/proc")
_CONTROLLERS: Final = ("memory", "pids")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One control group: its folder and its version."""

    folder: Path
    version: int

    # Readings of the kernel

    def oom_kills(self) -> int | None:
        """Return the number of its processes killed for lack of memory; None if unknown."""
        return self._read_count("memory.oom_control" if self.version == 1 else "memory.events", "oom_kill")

    def memory_peak_bytes(self) -> int | None:
        """Return the peak of its memory; None if unknown."""
        text = _read(self.folder / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"))
        return int(text) if text and text.strip().isdigit() else None

    def members(self) -> list[int]:
        """Return the ids of its processes that this process can see."""
        text = _read(self.folder / "cgroup.procs") or ""
        return [int(line) for line in text.split() if line != "0"]

    def _read_count(self, file: str, name: str) -> int | None:
        for line in (_read(self.folder / file) or "").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
        return None

    # Changes; each raises OSError if it is not permitted

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the memory of the group's processes to `limit_bytes`, without swap."""
        if self.version == 1:
            self._write("memory.limit_in_bytes", limit_bytes)
            self._write_if_exists("memory.memsw.limit_in_bytes", limit_bytes)
            return
        self._write("memory.max", limit_bytes)
        self._write_if_exists("memory.swap.max", 0)
        # A model cannot serve with some of its processes gone, so all of them are killed.
        self._write_if_exists("memory.oom.group", 1)

    def limit_processes(self, limit: int) -> None:
        """Limit the number of processes and threads in the group."""
        self._write("pids.max", limit)

    def add(self, pid: int) -> None:
        """Move a process, with all of its threads, into this group."""
        self._write("cgroup.procs", pid)

    def kill(self) -> None:
        """Kill all of its processes, if the kernel can (version 2). The rest can start no process."""
        for file, value in (("pids.max", 0), ("cgroup.kill", 1)):
            with suppress(OSError):
                self._write_if_exists(file, value)

    def remove(self) -> None:
        """Remove the group. Raises OSError while it has processes."""
        with suppress(FileNotFoundError):
            self.folder.rmdir()

    def _write_if_exists(self, file: str, value: int) -> None:
        if (self.folder / file).exists():
            self._write(file, value)

    def _write(self, file: str, value: int) -> None:
        (self.folder / file).write_text(f"{value}\n", encoding="ascii")


def own_groups(proc: Path = _PROC) -> dict[str, ControlGroup]:
    """Return the groups of this process by controller (memory, pids), as far as they are visible."""
    paths = _parse_cgroup_paths(_read(proc / "self/cgroup") or "")
    mounts = _parse_mounts(_read(proc / "self/mountinfo") or "")
    groups: dict[str, ControlGroup] = {}
    for controller in _CONTROLLERS:
        version = 1 if controller in paths else 2
        name = controller if version == 1 else ""
        folder = _group_folder(paths.get(name), mounts.get(name))
        if folder is None or (version == 2 and controller not in _read_words(folder / "cgroup.controllers")):
            continue
        groups[controller] = ControlGroup(folder, version)
    return groups


def create_group(own: ControlGroup, controllers: Iterable[str]) -> ControlGroup:
    """Return a new group below or beside a group of this process, with these controllers.

    Raises OSError if there can be none. In version 2, a group with processes cannot limit its
    children, unless it is the root. There the new group is made beside this process's own, in a
    group that was delegated to it (systemd: Delegate= with DelegateSubgroup=).
    """
    base = own.folder if own.version == 1 else _parent_folder(own.folder, controllers)
    _remove_stale(base)
    folder = base / f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    return ControlGroup(folder, own.version)


def _parent_folder(folder: Path, controllers: Iterable[str]) -> Path:
    refused: OSError | None = None
    for base in (folder, *([folder.parent] if _is_delegated(folder.parent) else [])):
        try:
            missing = [c for c in controllers if c not in _read_words(base / "cgroup.subtree_control")]
            if missing:
                wanted = " ".join(f"+{c}" for c in missing)
                (base / "cgroup.subtree_control").write_text(wanted, encoding="ascii")
        except OSError as error:
            refused = error
        else:
            return base
    raise refused or OSError("no control group can be made here")


def _is_delegated(folder: Path) -> bool:
    """Return True if the group is delegated to this process.

    For root, write access alone is not enough.
    """
    if not (folder / "cgroup.subtree_control").exists():
        return False
    if os.geteuid() != 0:
        return os.access(folder, os.W_OK)
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _remove_stale(base: Path) -> None:
    """Remove groups of processes that were killed before they could.

    Groups in use cannot be removed.
    """
    for stale in base.glob(f"{PREFIX}-*-*"):
        pid = stale.name.split("-")[1]
        if pid.isdigit() and not (_PROC / pid).exists():
            with suppress(OSError):
                stale.rmdir()


def _parse_cgroup_paths(text: str) -> dict[str, str]:
    """Return the path of this process by controller from ``/proc/self/cgroup``; "" is version 2."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _parse_mounts(text: str) -> dict[str, tuple[str, str]]:
    """Return root and mount point by controller from ``/proc/self/mountinfo``; "" is version 2."""
    groups: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        root, path = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            groups.setdefault("", (root, path))
        elif kind == "cgroup":
            for controller in options.split(","):
                groups.setdefault(controller, (root, path))
    return groups


def _group_folder(path: str | None, mount: tuple[str, str] | None) -> Path | None:
    if path is None or mount is None:
        return None
    root, at = mount
    inside = path.removeprefix(root) if root != "/" and (path + "/").startswith(root + "/") else path
    folder = Path(at) / inside.lstrip("/")
    return folder if ".." not in folder.parts and (folder / "cgroup.procs").exists() else None


def _read_words(path: Path) -> list[str]:
    return (_read(path) or "").split()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def count_oom_kills(groups: Mapping[str, ControlGroup]) -> int | None:
    """Return the out-of-memory kills so far, in this process's group or on the whole machine."""
    group = groups.get("memory")
    kills = None if group is None else group.oom_kills()
    if kills is not None:
        return kills
    for line in (_read(_PROC / "vmstat") or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None
