"""Control groups, of either version: bounds that the kernel holds for a process and for all that it starts.

Arrives: what ``/proc`` says of this process. Leaves: folders of groups below its own, in which others are bounded.
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
class Group:
    """One group: its folder, and which version of control groups it is of."""

    folder: Path
    version: int

    # What the kernel counts

    def oom_kills(self) -> int | None:
        """How many of its processes were killed for want of memory; None where the kernel does not tell."""
        return self._counted("memory.oom_control" if self.version == 1 else "memory.events", "oom_kill")

    def memory_peak_bytes(self) -> int | None:
        """The most memory that it had."""
        text = _read(self.folder / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"))
        return int(text) if text and text.strip().isdigit() else None

    def members(self) -> list[int]:
        """The numbers of its processes, those above all that this process can see."""
        text = _read(self.folder / "cgroup.procs") or ""
        return [int(line) for line in text.split() if line != "0"]

    def _counted(self, file: str, name: str) -> int | None:
        for line in (_read(self.folder / file) or "").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
        return None

    # What may be told to it; OSError where that is not allowed

    def limit_memory(self, most_bytes: int) -> None:
        """Bound its memory, without a way out into swap."""
        if self.version == 1:
            self._write("memory.limit_in_bytes", most_bytes)
            self._write_if_there("memory.memsw.limit_in_bytes", most_bytes)
            return
        self._write("memory.max", most_bytes)
        self._write_if_there("memory.swap.max", 0)
        # Half a model answers nothing: what is killed is killed whole.
        self._write_if_there("memory.oom.group", 1)

    def limit_processes(self, most: int) -> None:
        """Bound its processes and threads."""
        self._write("pids.max", most)

    def add(self, pid: int) -> None:
        """Take a process, with all of its threads, out of its group into this one."""
        self._write("cgroup.procs", pid)

    def kill(self) -> None:
        """Kill all that is in it, where the kernel offers that (version 2); what is left can start nothing."""
        for file, value in (("pids.max", 0), ("cgroup.kill", 1)):
            with suppress(OSError):
                self._write_if_there(file, value)

    def remove(self) -> None:
        """Remove it. OSError while something is in it."""
        with suppress(FileNotFoundError):
            self.folder.rmdir()

    def _write_if_there(self, file: str, value: int) -> None:
        if (self.folder / file).exists():
            self._write(file, value)

    def _write(self, file: str, value: int) -> None:
        (self.folder / file).write_text(f"{value}\n", encoding="ascii")


def own_groups(proc: Path = _PROC) -> dict[str, Group]:
    """The groups that this process is in, by what they control (memory, pids), where they can be seen."""
    places = _places(_read(proc / "self/cgroup") or "")
    mounts = _mounts(_read(proc / "self/mountinfo") or "")
    found: dict[str, Group] = {}
    for controller in _CONTROLLERS:
        version = 1 if controller in places else 2
        name = controller if version == 1 else ""
        folder = _folder(places.get(name), mounts.get(name))
        if folder is None or (version == 2 and controller not in _words(folder / "cgroup.controllers")):
            continue
        found[controller] = Group(folder, version)
    return found


def made_in(own: Group, controllers: Iterable[str]) -> Group:
    """A new group beside or below a process's own, in which these can be bounded. OSError where there can be none.

    Of version 2, a group that has processes gives its children nothing to control, unless it is the root. There it is made beside
    this process's own, in a group that was delegated to it (systemd: Delegate= with DelegateSubgroup=).
    """
    base = own.folder if own.version == 1 else _base(own.folder, controllers)
    _sweep(base)
    folder = base / f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    return Group(folder, own.version)


def _base(folder: Path, controllers: Iterable[str]) -> Path:
    refused: OSError | None = None
    for base in (folder, *([folder.parent] if _delegated(folder.parent) else [])):
        try:
            missing = [c for c in controllers if c not in _words(base / "cgroup.subtree_control")]
            if missing:
                wanted = " ".join(f"+{c}" for c in missing)
                (base / "cgroup.subtree_control").write_text(wanted, encoding="ascii")
        except OSError as error:
            refused = error
        else:
            return base
    raise refused or OSError("no group")


def _delegated(folder: Path) -> bool:
    """Whether a group is this process's to divide: whoever may do anything needs more than being allowed to."""
    if not (folder / "cgroup.subtree_control").exists():
        return False
    if os.geteuid() != 0:
        return os.access(folder, os.W_OK)
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _sweep(base: Path) -> None:
    """Remove what processes left behind that were killed before they could; what is in use cannot be removed."""
    for left in base.glob(f"{PREFIX}-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdigit() and not (_PROC / pid).exists():
            with suppress(OSError):
                left.rmdir()


def _places(text: str) -> dict[str, str]:
    """Of ``/proc/self/cgroup``: where this process is, by controller; "" is version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, place = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = place
    return found


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Of ``/proc/self/mountinfo``: what of a hierarchy can be seen, and where, by controller; "" is version 2."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split(" ")[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", (root, place))
        elif kind == "cgroup":
            for controller in options.split(","):
                found.setdefault(controller, (root, place))
    return found


def _folder(place: str | None, mount: tuple[str, str] | None) -> Path | None:
    if place is None or mount is None:
        return None
    root, at = mount
    inside = place.removeprefix(root) if root != "/" and (place + "/").startswith(root + "/") else place
    folder = Path(at) / inside.lstrip("/")
    return folder if ".." not in folder.parts and (folder / "cgroup.procs").exists() else None


def _words(path: Path) -> list[str]:
    return (_read(path) or "").split()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def counted(groups: Mapping[str, Group]) -> int | None:
    """How many processes were killed for want of memory so far: in this process's group, or on the whole machine."""
    group = groups.get("memory")
    told = None if group is None else group.oom_kills()
    if told is not None:
        return told
    for line in (_read(_PROC / "vmstat") or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None
