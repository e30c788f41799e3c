"""Limits of the process of an instance and all that it starts: memory, processes, and its clean-up.

Limits are enforced by a control group of its own (version 1 or 2), if one can be made below or beside
the groups of this process, else by resource limits.
"""

import logging
import os
import resource
import secrets
import select
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError
from headrace.engine.settings import ServeSettings

PREFIX: Final = "headrace"
_PROC: Final = Path("/proc")
_CONTROLLERS: Final = ("memory", "pids")
_NEAR_LIMIT_SHARE: Final = 0.95
"""Share of the memory limit from which a killed process was probably out of memory."""
_KILL_ATTEMPTS_MAX: Final = 100
_KILL_WAIT_S: Final = 1.0
"""Seconds to wait for a killed process in each attempt."""

_log = logging.getLogger("headrace.engine")


class OutOfMemory(Enum):
    """The likelihood that the kernel killed the process for lack of memory."""

    NO = auto()
    UNKNOWN = auto()
    PROBABLY = auto()
    YES = auto()


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
        if folder is None or (
            version == 2 and controller not in (_read(folder / "cgroup.controllers") or "").split()
        ):
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
            missing = [
                c for c in controllers if c not in (_read(base / "cgroup.subtree_control") or "").split()
            ]
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


class ProcessLimits:
    """The limits of one process.

    Made before it starts; `apply` them, and `remove` them after its exit.

    Raises ConfigError for a limit that cannot be enforced here.
    """

    def __init__(self, model: str, settings: ServeSettings) -> None:
        self._model = model
        self._memory_bytes_max = settings.memory_bytes_max
        self._processes_max = settings.processes_max
        self._inherited = own_groups()
        self._oom_kills = count_oom_kills(self._inherited)
        bounds = {"memory": settings.memory_bytes_max, "pids": settings.processes_max}
        self._groups = self._make_groups({name: limit for name, limit in bounds.items() if limit is not None})
        """Control groups by the controller that they limit."""
        self._check_effective()

    def _make_groups(self, bounds: Mapping[str, int]) -> dict[str, ControlGroup]:
        """Return groups that enforce these limits, as far as possible, one group per parent group."""
        groups: dict[str, ControlGroup] = {}
        controllers_by_group = {
            own: [c for c in bounds if self._inherited.get(c) == own] for own in self._inherited.values()
        }
        for own, controllers in controllers_by_group.items():
            if controllers and (group := self._make_group(own, {c: bounds[c] for c in controllers})):
                groups |= dict.fromkeys(controllers, group)
        return groups

    def _make_group(self, own: ControlGroup, bounds: Mapping[str, int]) -> ControlGroup | None:
        group: ControlGroup | None = None
        try:
            group = create_group(own, bounds)
            if "memory" in bounds:
                group.limit_memory(bounds["memory"])
            if "pids" in bounds:
                group.limit_processes(bounds["pids"])
        except OSError as error:
            _log.debug("no control group: %s", error, extra={"model": self._model})
            if group is not None:
                group.remove()
            return None
        return group

    def _check_effective(self) -> None:
        limited = (self._memory_bytes_max, self._processes_max) != (None, None)
        if limited and not self._groups and not hasattr(resource, "prlimit"):
            raise ConfigError(
                f"model {self._model}: memory_bytes_max and processes_max need Linux: leave them out"
            )
        if self._processes_max is not None and "pids" not in self._groups and os.geteuid() == 0:
            self.remove()
            raise ConfigError(
                f"model {self._model}: processes_max cannot be enforced here: no control group can be made "
                "for it, and no other limit binds root; run as another user, give headrace a pids control "
                "group, or leave it out"
            )

    def apply(self, pid: int) -> None:
        """Apply the limits to a process.

        Raises ConfigError for a limit that cannot be enforced, ProcessLookupError if the process is
        gone.
        """
        for group in set(self._groups.values()):
            try:
                group.add(pid)
            except ProcessLookupError:
                raise
            except OSError as error:
                _log.debug("a control group cannot take the process: %s", error, extra={"model": self._model})
                group.remove()
                self._groups = {c: g for c, g in self._groups.items() if g != group}
        self._check_effective()
        if self._memory_bytes_max is not None and "memory" not in self._groups:
            _set_rlimit(pid, resource.RLIMIT_DATA, self._memory_bytes_max)
        if self._processes_max is not None and "pids" not in self._groups:
            # RLIMIT_NPROC counts all processes of the user.
            _set_rlimit(pid, resource.RLIMIT_NPROC, count_threads(os.geteuid()) + self._processes_max)

    def out_of_memory(self) -> OutOfMemory:
        """Return whether the kernel killed the process for lack of memory. Called after its death."""
        group = self._groups.get("memory")
        if group is not None:
            if group.oom_kills():
                return OutOfMemory.YES
            peak = group.memory_peak_bytes()
            near = peak is not None and peak >= _NEAR_LIMIT_SHARE * (self._memory_bytes_max or 0)
            return OutOfMemory.PROBABLY if near else OutOfMemory.NO
        now = count_oom_kills(self._inherited)
        if now is None or self._oom_kills is None:
            return OutOfMemory.UNKNOWN
        # The kernel counts other processes there too.
        return OutOfMemory.PROBABLY if now > self._oom_kills else OutOfMemory.NO

    def kill(self) -> None:
        """Kill all processes in its groups."""
        for group in set(self._groups.values()):
            group.kill()

    def end_session(self, leader: int) -> None:
        """Kill all that the process `leader` has left, and wait until it is gone.

        `leader` has exited and is not reaped yet.
        """
        self.kill()
        _kill_all(lambda: [pid for pid in session_members(leader) if pid != leader], self._model)
        for group in set(self._groups.values()):
            _kill_all(lambda group=group: [pid for pid in group.members() if pid != leader], self._model)

    def remove(self) -> None:
        """Remove its groups, which are empty now."""
        for group in set(self._groups.values()):
            try:
                group.remove()
            except OSError as error:
                _log.warning("a control group cannot be removed: %s", error, extra={"model": self._model})
        self._groups = {}


def _set_rlimit(pid: int, which: int, limit: int) -> None:
    _, hard = resource.prlimit(pid, which)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.prlimit(pid, which, (limit, limit))


def _kill_all(members: Callable[[], Collection[int]], model: str) -> None:
    """Kill processes until there are none.

    Membership is checked again once a pidfd is open, since process ids are reused.
    """
    for _ in range(_KILL_ATTEMPTS_MAX):
        fds: dict[int, int] = {}
        for pid in members():
            with suppress(OSError):
                fds[pid] = os.pidfd_open(pid)
        if not fds:
            return
        try:
            current = set(members())
            for pid in [pid for pid in fds if pid in current]:
                with suppress(OSError):
                    signal.pidfd_send_signal(fds[pid], signal.SIGKILL)
                poll = select.poll()
                poll.register(fds[pid], select.POLLIN)
                poll.poll(_KILL_WAIT_S * 1000)
        finally:
            for fd in fds.values():
                os.close(fd)
    _log.warning("processes that a model started do not exit", extra={"model": model})


def session_members(leader: int) -> list[int]:
    """Return the live processes in the session of `leader`."""
    pids: list[int] = []
    for pid, fields in _process_stats():
        # The fields are state, parent, group, session.
        if fields[0] not in "ZX" and int(fields[3]) == leader:
            pids.append(pid)
    return pids


def count_threads(user: int) -> int:
    """Return the number of threads of a user."""
    count = 0
    for pid, fields in _process_stats():
        with suppress(OSError):
            if (_PROC / str(pid)).stat().st_uid == user:
                count += int(fields[17])
    return count


def _process_stats() -> list[tuple[int, list[str]]]:
    """Return the pids and status fields of all processes; none on systems without ``/proc``."""
    pids: list[tuple[int, list[str]]] = []
    for entry in os.scandir(_PROC) if _PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            # A program's name may contain anything, even a parenthesis.
            pids.append((int(entry.name), text.rpartition(")")[2].split()))
    return pids
